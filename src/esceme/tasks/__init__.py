"""Tasks: episodes read from annotation files, predictions, tours and tokenizers.

The Gymnasium environments are in `esceme.tasks.gym`, and the checks of a data folder in
`esceme.tasks.folder_check`.
"""

from esceme.tasks.catalogue import TASKS, SplitSize, Task
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.submission import Prediction, TrajectoryPoint, read_predictions
from esceme.tasks.text import Vocabulary, WordPiece
from esceme.tasks.tours import Tour, make_tours, read_tours

__all__ = [
    "TASKS",
    "SplitSize",
    "DataFolder",
    "DialogEpisode",
    "Episode",
    "Prediction",
    "TrajectoryPoint",
    "Task",
    "Tour",
    "Vocabulary",
    "WordPiece",
    "make_tours",
    "read_predictions",
    "read_tours",
]
