"""What is remembered: the paper. Memory never imports agents, and agents never import memory."""

from esceme.memory.bank import Masked, Memory, MemoryBank, Surroundings
from esceme.memory.both import Both, BothConfig, InTurn
from esceme.memory.graph_encoding import GraphEncoding, GraphEncodingConfig
from esceme.memory.reader import Blindfolded, CandidateEnhancing, CandidateEnhancingConfig, Reader, Unaided
from esceme.memory.scene import Pooling, Rows, SceneMemory, pool
from esceme.memory.store import load_bank, save_bank

READERS: dict[str, type[Reader]] = {
    "unaided": Unaided,
    "candidate-enhancing": CandidateEnhancing,
    "graph-encoding": GraphEncoding,
    "both": Both,
    "blindfolded": Blindfolded,
}

__all__ = [
    "READERS",
    "Blindfolded",
    "Both",
    "BothConfig",
    "CandidateEnhancing",
    "CandidateEnhancingConfig",
    "GraphEncoding",
    "GraphEncodingConfig",
    "InTurn",
    "Masked",
    "Memory",
    "MemoryBank",
    "Pooling",
    "Reader",
    "Rows",
    "SceneMemory",
    "Surroundings",
    "Unaided",
    "load_bank",
    "pool",
    "save_bank",
]
