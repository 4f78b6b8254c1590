"""Scene memory: storage, files, and readers, which fuse remembered features into observations.

Memory and agents do not import each other.
"""

from esceme.memory.bank import Memory, MemoryBank, MemorySubgraph, ZeroRecallMemory
from esceme.memory.bank_file import load_bank, save_bank
from esceme.memory.graph_encoding import (
    CombinedReader,
    CombinedReaderConfig,
    GraphEncoding,
    GraphEncodingConfig,
)
from esceme.memory.map_reader import MapReader, MapReaderConfig
from esceme.memory.reader import (
    CandidateEnhancing,
    CandidateEnhancingConfig,
    NoMemory,
    NoMemoryConfig,
    NoVision,
    NoVisionConfig,
    Reader,
)
from esceme.memory.scene import GrowingMatrix, Pooling, SceneMemory, pool
from esceme.memory.store import MemoryStore, ObservationStore
from esceme.memory.store_record import StoredObservation, StoreSettings
from esceme.memory.stored_memory import StoredMemory, store_settings

READERS: dict[str, type[Reader]] = {
    "none": NoMemory,
    "candidate-enhancing": CandidateEnhancing,
    "graph-encoding": GraphEncoding,
    "both": CombinedReader,
    "map": MapReader,
    "blind": NoVision,
}
"""Reader classes by name, as used by the option `--reader`."""

ReaderConfig = (
    NoMemoryConfig
    | CandidateEnhancingConfig
    | GraphEncodingConfig
    | CombinedReaderConfig
    | MapReaderConfig
    | NoVisionConfig
)
"""Settings of any reader in `READERS`."""

__all__ = [
    "READERS",
    "CandidateEnhancing",
    "CandidateEnhancingConfig",
    "CombinedReader",
    "CombinedReaderConfig",
    "GraphEncoding",
    "GraphEncodingConfig",
    "GrowingMatrix",
    "MapReader",
    "MapReaderConfig",
    "ZeroRecallMemory",
    "Memory",
    "MemoryBank",
    "MemoryStore",
    "MemorySubgraph",
    "NoMemory",
    "NoMemoryConfig",
    "NoVision",
    "NoVisionConfig",
    "ObservationStore",
    "Pooling",
    "Reader",
    "ReaderConfig",
    "SceneMemory",
    "StoreSettings",
    "StoredMemory",
    "StoredObservation",
    "load_bank",
    "pool",
    "save_bank",
    "store_settings",
]
