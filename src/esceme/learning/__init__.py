"""Learning to walk and to remember: teachers, rewards, losses, and runs that last."""

from esceme.learning.completeness import Completeness, TrainingMemory
from esceme.learning.course import Course, Watch
from esceme.learning.distributed import Together
from esceme.learning.trainer import Trainer
from esceme.learning.training import Training, Validation

__all__ = [
    "Completeness",
    "Course",
    "Together",
    "Trainer",
    "Training",
    "TrainingMemory",
    "Validation",
    "Watch",
]
