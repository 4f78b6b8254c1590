"""How the benchmarks measure: process time, one thread, both sides by turns, the best of several rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class Ratio(NamedTuple):
    """One benchmark: seconds of the obvious side and of ours, for the same work."""

    name: str
    obvious: float
    ours: float
    wanted: float
    bound: str
    """What limits our side now."""

    @property
    def value(self) -> float:
        """How many times faster ours is."""
        return self.obvious / self.ours


class Amount(NamedTuple):
    """One measured amount with the most it may be."""

    name: str
    value: float
    unit: str
    most: float
    bound: str


def seconds(work: Callable[[], object]) -> float:
    """Process time of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def both_sides(obvious: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The best time of each side over rounds in which both run."""
    times = [(seconds(obvious), seconds(ours)) for _ in range(rounds)]
    return min(slow for slow, _ in times), min(fast for _, fast in times)


def data_root() -> Path | None:
    """Where the public datasets are, if they are here."""
    root = Path(os.environ.get("ESCEME_DATA") or Path(__file__).parents[2] / "shared" / "data")
    return root if (root / "connectivity").is_dir() else None
