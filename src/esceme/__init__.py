"""Vision-and-language navigation agents that remember the buildings they have been in.

The names below are the front door; each is loaded when it is first used, so that `import esceme` and the
command line start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esceme.agents import HAMT, HamtConfig
    from esceme.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        EscemeError,
        MemoryMismatch,
        WorldError,
    )
    from esceme.evaluation import EvaluationConfig
    from esceme.evaluation.evaluate import evaluate
    from esceme.memory import CandidateEnhancing, MemoryBank, SceneMemory, load_bank, save_bank
    from esceme.metrics import score
    from esceme.navigator import Navigator
    from esceme.report import PathOverlay, draw_scene
    from esceme.rollout import roll_out
    from esceme.runs import load_run
    from esceme.tasks import TASKS, DataFolder, Episode, Prediction, make_tours, read_predictions
    from esceme.tasks.gym import NavigationEnv, NavigationVectorEnv, make_env
    from esceme.world import ArrayFeatures, Atlas, SceneGraph, open_features, read_scenes

__version__ = "0.1.0"

__all__ = [
    # world
    "ArrayFeatures",
    "Atlas",
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
    "make_env",
    "make_tours",
    "read_predictions",
    # memory
    "CandidateEnhancing",
    "MemoryBank",
    "SceneMemory",
    "load_bank",
    "save_bank",
    # agents
    "HAMT",
    "HamtConfig",
    "Navigator",
    # evaluation
    "EvaluationConfig",
    "evaluate",
    "load_run",
    "roll_out",
    # metrics and figures
    "PathOverlay",
    "draw_scene",
    "score",
    # errors
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EscemeError",
    "MemoryMismatch",
    "WorldError",
]

_HOMES = {
    "esceme.world": ("ArrayFeatures", "Atlas", "SceneGraph", "open_features", "read_scenes"),
    "esceme.tasks": (
        *("DataFolder", "Episode", "Prediction", "TASKS"),
        *("make_tours", "read_predictions"),
    ),
    "esceme.tasks.gym": ("NavigationEnv", "NavigationVectorEnv", "make_env"),
    "esceme.memory": ("CandidateEnhancing", "MemoryBank", "SceneMemory", "load_bank", "save_bank"),
    "esceme.agents": ("HAMT", "HamtConfig"),
    "esceme.navigator": ("Navigator",),
    "esceme.runs": ("load_run",),
    "esceme.rollout": ("roll_out",),
    "esceme.evaluation": ("EvaluationConfig", "evaluate"),
    "esceme.metrics": ("score",),
    "esceme.report": ("PathOverlay", "draw_scene"),
    "esceme.errors": (
        *("CheckpointError", "ConfigError", "DataError", "EscemeError"),
        *("MemoryMismatch", "WorldError"),
    ),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'esceme' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
