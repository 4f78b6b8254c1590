"""What is remembered: the paper. Memory never imports agents, and agents never import memory."""

from esceme.memory.bank import MaskedMemory, Memory, MemoryBank, MemorySubgraph
from esceme.memory.bank_file import load_bank, save_bank
from esceme.memory.both import Both, BothConfig, SequentialReaders
from esceme.memory.graph_encoding import GraphEncoding, GraphEncodingConfig
from esceme.memory.reader import (
    CandidateEnhancing,
    CandidateEnhancingConfig,
    NoMemory,
    NoMemoryConfig,
    NoVision,
    NoVisionConfig,
    Reader,
)
from esceme.memory.scene import Pooling, Rows, SceneMemory, pool

READERS: dict[str, type[Reader]] = {
    "unaided": NoMemory,
    "candidate-enhancing": CandidateEnhancing,
    "graph-encoding": GraphEncoding,
    "both": Both,
    "blindfolded": NoVision,
}
"""Every reader by its name; each is built from its `Config`."""

ReaderConfig = NoMemoryConfig | CandidateEnhancingConfig | GraphEncodingConfig | BothConfig | NoVisionConfig
"""The `Config` of any reader in `READERS`."""

__all__ = [
    "READERS",
    "NoVision",
    "Both",
    "BothConfig",
    "CandidateEnhancing",
    "CandidateEnhancingConfig",
    "GraphEncoding",
    "GraphEncodingConfig",
    "SequentialReaders",
    "MaskedMemory",
    "Memory",
    "MemoryBank",
    "Pooling",
    "Reader",
    "Rows",
    "SceneMemory",
    "MemorySubgraph",
    "NoMemory",
    "NoMemoryConfig",
    "NoVisionConfig",
    "ReaderConfig",
    "load_bank",
    "pool",
    "save_bank",
]
