"""What is remembered: the paper. Memory never imports agents, and agents never import memory."""

from esceme.memory.bank import Masked, Memory, MemoryBank
from esceme.memory.reader import Blindfolded, CandidateEnhancing, CandidateEnhancingConfig, Reader, Unaided
from esceme.memory.scene import Pooling, Rows, SceneMemory, pool
from esceme.memory.store import load_bank, save_bank

READERS: dict[str, type[Reader]] = {
    "unaided": Unaided,
    "candidate-enhancing": CandidateEnhancing,
    "blindfolded": Blindfolded,
}

__all__ = [
    "READERS",
    "Blindfolded",
    "CandidateEnhancing",
    "CandidateEnhancingConfig",
    "Masked",
    "Memory",
    "MemoryBank",
    "Pooling",
    "Reader",
    "Rows",
    "SceneMemory",
    "Unaided",
    "load_bank",
    "pool",
    "save_bank",
]
