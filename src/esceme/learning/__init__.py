"""Training of navigators: teachers, rewards, losses, memory dropout and training runs."""

from esceme.learning.distributed import ProcessGroup
from esceme.learning.memory_dropout import MemoryDropout, TrainingMemory
from esceme.learning.run import TrainingCallback, TrainingRun
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import TrainingConfig, ValidationConfig

__all__ = [
    "MemoryDropout",
    "ProcessGroup",
    "Trainer",
    "TrainingCallback",
    "TrainingConfig",
    "TrainingMemory",
    "TrainingRun",
    "ValidationConfig",
]
