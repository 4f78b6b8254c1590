"""Jobs for `esceme.demo.crew`; in a file of their own, since processes cannot import files of tests."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from esceme.demo.crew import Voice
from esceme.errors import DataError


def count_to(total: int, file: Path, voice: Voice) -> None:
    """Tell every number, and write the last to a file."""
    for done in range(total + 1):
        voice.count(done, total, {"half": done / 2})
    voice.note("counted")
    file.write_text(f"{total} in {os.getpid()}")


def complain(voice: Voice) -> None:
    """End as for bad data."""
    voice.count(0, 1)
    raise DataError("no such split; expected another")


def stumble(voice: Voice) -> None:
    """End as by a bug."""
    raise ZeroDivisionError("a bug")


def be_killed(voice: Voice) -> None:
    """End as where memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def linger(file: Path, voice: Voice) -> None:
    """Say who it is, and never end."""
    file.write_text(f"{os.getpid()}")
    voice.count(0, 1)
    while True:
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, one that has ended but was not asked for its code left aside."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
