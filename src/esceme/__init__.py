"""Vision-and-language navigation agents with a memory of the scenes that they have visited.

The names below are the public interface. Each name is imported at its first use, so that `import esceme` and
the command line start quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esceme.gym_registration import register_with_gymnasium

if TYPE_CHECKING:
    from esceme.agents import DUET, HAMT, TDSTP, DuetConfig, HamtConfig, Seq2Seq, Seq2SeqConfig, TdstpConfig
    from esceme.config import Experiment
    from esceme.errors import (
        CheckpointError,
        ConfigError,
        DataError,
        EscemeError,
        MemoryMismatch,
        WorldError,
    )
    from esceme.evaluation import EvaluationConfig
    from esceme.evaluation.compare import compare
    from esceme.evaluation.evaluate import evaluate
    from esceme.memory import (
        CandidateEnhancing,
        CandidateEnhancingConfig,
        GraphEncoding,
        GraphEncodingConfig,
        MemoryBank,
        NoMemory,
        SceneMemory,
        load_bank,
        save_bank,
    )
    from esceme.metrics import score
    from esceme.navigator import Navigator
    from esceme.recipes import RECIPES
    from esceme.report import PathOverlay, draw_scene
    from esceme.rollout import roll_out
    from esceme.runs import NavigatorConfig, load_run, save_run
    from esceme.synth import WorldConfig, embedded_world
    from esceme.tasks import TASKS, DataFolder, Episode, Prediction, make_tours, read_predictions
    from esceme.tasks.gym import NavigationEnv, NavigationVectorEnv, make_env, make_vector_env
    from esceme.training import train
    from esceme.world import ArrayFeatures, Atlas, SceneGraph, open_features, read_scenes

__version__ = "0.1.0"

_MODULES = {
    # experiments
    "esceme.training": ("train",),
    "esceme.evaluation": ("EvaluationConfig", "compare", "evaluate"),
    "esceme.config": ("Experiment",),
    "esceme.recipes": ("RECIPES",),
    "esceme.runs": ("NavigatorConfig", "load_run", "save_run"),
    # agents and memory
    "esceme.agents": (
        "DUET",
        "HAMT",
        "TDSTP",
        "DuetConfig",
        "HamtConfig",
        "Seq2Seq",
        "Seq2SeqConfig",
        "TdstpConfig",
    ),
    "esceme.memory": (
        *("CandidateEnhancing", "CandidateEnhancingConfig", "GraphEncoding", "GraphEncodingConfig"),
        *("MemoryBank", "NoMemory", "SceneMemory", "load_bank", "save_bank"),
    ),
    "esceme.navigator": ("Navigator",),
    "esceme.rollout": ("roll_out",),
    # data
    "esceme.world": ("ArrayFeatures", "Atlas", "SceneGraph", "open_features", "read_scenes"),
    "esceme.synth": ("WorldConfig", "embedded_world"),
    "esceme.tasks": ("TASKS", "DataFolder", "Episode", "Prediction", "make_tours", "read_predictions"),
    "esceme.tasks.gym": ("NavigationEnv", "NavigationVectorEnv", "make_env", "make_vector_env"),
    # metrics and figures
    "esceme.metrics": ("score",),
    "esceme.report": ("PathOverlay", "draw_scene"),
    "esceme.errors": (
        *("CheckpointError", "ConfigError", "DataError", "EscemeError"),
        *("MemoryMismatch", "WorldError"),
    ),
}
"""Names of the public interface, by the module that defines them."""

__all__ = [
    # experiments
    "train",
    "EvaluationConfig",
    "compare",
    "evaluate",
    "Experiment",
    "RECIPES",
    "NavigatorConfig",
    "load_run",
    "save_run",
    # agents and memory
    "DUET",
    "HAMT",
    "TDSTP",
    "DuetConfig",
    "HamtConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "TdstpConfig",
    "CandidateEnhancing",
    "CandidateEnhancingConfig",
    "GraphEncoding",
    "GraphEncodingConfig",
    "MemoryBank",
    "NoMemory",
    "SceneMemory",
    "load_bank",
    "save_bank",
    "Navigator",
    "roll_out",
    # data
    "ArrayFeatures",
    "Atlas",
    "SceneGraph",
    "open_features",
    "read_scenes",
    "WorldConfig",
    "embedded_world",
    "TASKS",
    "DataFolder",
    "Episode",
    "Prediction",
    "make_tours",
    "read_predictions",
    "NavigationEnv",
    "NavigationVectorEnv",
    "make_env",
    "make_vector_env",
    # metrics and figures
    "score",
    "PathOverlay",
    "draw_scene",
    # errors
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EscemeError",
    "MemoryMismatch",
    "WorldError",
]


register_with_gymnasium()


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'esceme' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
