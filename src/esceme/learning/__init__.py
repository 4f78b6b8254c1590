"""Learning to walk and to remember: teachers, rewards, losses, and runs that last."""

from esceme.learning.distributed import ProcessGroup
from esceme.learning.memory_dropout import MemoryDropout, TrainingMemory
from esceme.learning.run import TrainingCallback, TrainingRun
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import TrainingConfig, ValidationConfig

__all__ = [
    "MemoryDropout",
    "TrainingRun",
    "ProcessGroup",
    "Trainer",
    "TrainingConfig",
    "TrainingMemory",
    "ValidationConfig",
    "TrainingCallback",
]
