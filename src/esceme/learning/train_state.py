"""Where a run stands, on disk: written whole or not at all, and the last good state is always kept."""

from __future__ import annotations

import fcntl
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from esceme.errors import CheckpointError, DataError
from esceme.files import atomic_open

STATES = "state"
LOCK = ".lock"
KEPT = 2
"""How many states are kept: the latest, and one before it in case that was damaged."""
FORMAT = "esceme-state-1"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """A run folder to ourselves while the block lasts; raises `DataError` where another training is in it.

    What a process that was killed had not written to its end is cleared away.
    """
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = held.enter_context((folder / LOCK).open("ab"))  # a file: network disks lock no folders
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for torn in (*folder.glob(".*.part"), *folder.glob("*/.*.part")):
                if torn.is_file():  # a folder is not ours: worlds in the making are such
                    torn.unlink(missing_ok=True)
        except BlockingIOError:
            raise DataError(f"{folder}: another training is at work there; let it finish") from None
        except OSError as error:
            raise DataError(f"{folder}: cannot be written ({error.strerror or error})") from None
        yield


def save_state(folder: Path, iteration: int, state: dict[str, Any]) -> None:
    """Keep the state of a run after so many iterations, and the last one before it; let go of all others."""
    path = folder / STATES / f"{iteration:08d}.pt"
    with atomic_open(path) as file:
        try:
            torch.save({"format": FORMAT, "iteration": iteration, **state}, file)
        except RuntimeError as error:  # by which torch hides what is wrong with the disk
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
    before = [each for each in _states(folder) if int(each.stem) < iteration]
    for other in {*_states(folder)} - {path, *before[: KEPT - 1]}:
        other.unlink(missing_ok=True)


def load_state(folder: Path, *, note: Callable[[str], None]) -> dict[str, Any] | None:
    """The latest good state of a run, None where there is none at all; `note` is told of damaged ones.

    Raises `CheckpointError` where all are damaged: a run does not begin anew because its disk is failing.
    """
    for path in (found := _states(folder)):
        try:
            return _read(path)
        except Exception as error:  # of many kinds, depending on which byte is wrong
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            note(f"{path}: damaged ({reason}); trying the one before")
    if found:
        raise CheckpointError(
            f"{folder / STATES}: none of its {len(found)} states can be read; remove the folder to begin anew"
        )
    return None


def _read(path: Path) -> dict[str, Any]:
    """A state; raises almost anything where it is not one, or not as it was written."""
    with zipfile.ZipFile(path) as archive:  # torch.load does not look at checksums
        if (record := archive.testzip()) is not None:
            raise ValueError(f"wrong checksum of {record}")
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["format"] != FORMAT or state["iteration"] != int(path.stem):
        raise ValueError("not a state of this version")
    return state


def _states(folder: Path) -> list[Path]:
    """The states of a run, the latest first."""
    return sorted((each for each in (folder / STATES).glob("*.pt") if each.stem.isdigit()), reverse=True)
