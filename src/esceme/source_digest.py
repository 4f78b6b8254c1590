"""Digests of the package's own source files, by which generated worlds, runs and results are identified."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parent
RESULT_MODULES = (
    "world",
    "tasks",
    "metrics.py",
    "observation.py",
    "memory",
    "agents",
    "navigator.py",
    "runs.py",
    "planning",
    "trajectory.py",
    "rollout.py",
    "evaluation",
    "learning",
    "config.py",
    "training.py",
)
"""Modules that determine trained weights and scores, given an experiment and data."""
TRAINING_MODULES = tuple(module for module in RESULT_MODULES if module != "evaluation")
"""Modules that determine trained weights, given an experiment without validation and data."""


@lru_cache
def source_digest(modules: Sequence[str] = RESULT_MODULES, suffixes: Sequence[str] = (".py",)) -> str:
    """Return the SHA-256 of the source files of modules of this package; `modules` must be hashable.

    A folder in `modules` stands for the files directly in it that have one of the suffixes.
    """
    paths = [PACKAGE / module for module in modules]
    files = sorted(
        file for path in paths for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()
    )
    return hashlib.sha256(
        b"".join(file.read_bytes() for file in files if file.suffix in suffixes)
    ).hexdigest()
