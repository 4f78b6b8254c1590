"""Vision-and-language navigation agents that remember the buildings they have been in.

The names below are the front door; each is loaded when it is first used, so that `import esceme` and the
command line start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esceme.errors import ConfigError, DataError, EscemeError, WorldError
    from esceme.metrics import Scores, score
    from esceme.report import Route, draw_scene
    from esceme.tasks import TASKS, DataFolder, Episode, Prediction, Task, Tour, make_tours, read_predictions
    from esceme.tasks.gym import NavigationEnv, NavigationVectorEnv, make_env
    from esceme.world import ArrayFeatures, Atlas, Panoramas, Pose, SceneGraph, open_features, read_scenes

__version__ = "0.1.0"

__all__ = [
    # world
    "ArrayFeatures",
    "Atlas",
    "Panoramas",
    "Pose",
    "SceneGraph",
    "open_features",
    "read_scenes",
    # data
    "DataFolder",
    "Episode",
    "NavigationEnv",
    "NavigationVectorEnv",
    "Prediction",
    "TASKS",
    "Task",
    "Tour",
    "make_env",
    "make_tours",
    "read_predictions",
    # metrics and figures
    "Route",
    "Scores",
    "draw_scene",
    "score",
    # errors
    "ConfigError",
    "DataError",
    "EscemeError",
    "WorldError",
]

_HOMES = {
    "esceme.world": (
        "ArrayFeatures",
        "Atlas",
        "Panoramas",
        "Pose",
        "SceneGraph",
        "open_features",
        "read_scenes",
    ),
    "esceme.tasks": (
        *("DataFolder", "Episode", "Prediction", "TASKS", "Task", "Tour"),
        *("make_tours", "read_predictions"),
    ),
    "esceme.tasks.gym": ("NavigationEnv", "NavigationVectorEnv", "make_env"),
    "esceme.metrics": ("Scores", "score"),
    "esceme.report": ("Route", "draw_scene"),
    "esceme.errors": ("ConfigError", "DataError", "EscemeError", "WorldError"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'esceme' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
