"""Digests of the package's own source files, by which generated worlds, runs and results are identified."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

PACKAGE = Path(__file__).parent
RESULT_MODULES = (
    "world",
    "tasks",
    "metrics.py",
    "dropout.py",
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
TRAINING_MODULES = (
    *(module for module in RESULT_MODULES if module not in ("evaluation", "planning")),
    "-learning/matcher_fitting.py",
    "-learning/planner_fitting.py",
    "-learning/speaker_fitting.py",
    "-memory/map_file.py",
    "-memory/scene_map.py",
)
"""Modules that determine trained weights, given an experiment without validation and data: no planners."""
PLANNER_MODULES = (*RESULT_MODULES, "planner_training.py")
"""Modules that determine a fitted planner, given a run, settings and data."""


@lru_cache
def source_digest(modules: Sequence[str] = RESULT_MODULES, suffixes: Sequence[str] = (".py",)) -> str:
    """Return the SHA-256 of the source files of modules of this package; `modules` must be hashable.

    Docstrings and comments on lines of their own do not count.
    """
    content = (
        strip_documentation(text) if file.suffix == ".py" else text
        for file in source_files(modules, suffixes)
        for text in [file.read_text(encoding="utf-8")]
    )
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def source_files(modules: Sequence[str] = RESULT_MODULES, suffixes: Sequence[str] = (".py",)) -> list[Path]:
    """Return the source files of modules of this package that have one of the suffixes, in order.

    Folders stand for the files directly in them; `-` excludes a file of them.
    """
    paths = [PACKAGE / module for module in modules if not module.startswith("-")]
    excluded = {PACKAGE / module[1:] for module in modules if module.startswith("-")}
    files = {file for path in paths for file in (path.iterdir() if path.is_dir() else [path])}
    return sorted(file for file in files - excluded if file.suffix in suffixes and file.is_file())


def strip_documentation(source: str) -> str:
    r"""Return Python source without docstrings, comments on lines of their own, and empty lines.

    >>> strip_documentation("def f():\n    'a'\n    # b\n\n    return 1  # c")
    'def f():\n    return 1  # c'
    """
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
    return "\n".join(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
