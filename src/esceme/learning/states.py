"""Where a run stands, on disk: written whole or not at all, and the last good state is always kept."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from esceme.files import writing

STATES = "state"
KEPT = 2
"""How many states are kept: the latest, and one before it in case that was damaged."""
FORMAT = "esceme-state-1"


def save_state(folder: Path, iteration: int, state: dict[str, Any]) -> None:
    """Keep the state of a run after so many iterations, then let go of older ones."""
    with writing(folder / STATES / f"{iteration:08d}.pt") as file:
        torch.save({"format": FORMAT, "iteration": iteration, **state}, file)
    for old in _states(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    for torn in (folder / STATES).glob(".*.part"):  # of a process that was killed while it wrote
        torn.unlink(missing_ok=True)


def load_state(folder: Path, *, note: Callable[[str], None]) -> dict[str, Any] | None:
    """The latest good state of a run, None where there is none; `note` is told of damaged ones."""
    for path in _states(folder):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            if state.get("format") == FORMAT and state["iteration"] == int(path.stem):
                return state
            note(f"{path}: not a state of this version; trying the one before")
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError, ValueError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            note(f"{path}: damaged ({reason}); trying the one before")
    return None


def _states(folder: Path) -> list[Path]:
    """The states of a run, the latest first."""
    return sorted((each for each in (folder / STATES).glob("*.pt") if each.stem.isdigit()), reverse=True)
