"""How the benchmarks measure, and what a result is: a ratio, an amount, a quality, an agent's scores.

Times are process time, one thread, both sides by turns, the best of several rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esceme.metrics import Scores
from esceme.tasks.folder import default_data

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
REPEATS = 3
"""How often the quicker side runs in a round: so short a time is easily disturbed."""
SPEED_HEAD = ("what", "obvious", "ours", "ratio", "wanted", "met", "what bounds ours next")
SHOWN = {"sr": 100.0, "spl": 100.0, "tl": 1.0, "ne": 1.0, "ndtw": 100.0}
"""The measures shown of an agent, and what they are multiplied by."""


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

    @property
    def met(self) -> bool:
        """Whether it is as much as is wanted."""
        return self.value >= self.wanted

    @property
    def head(self) -> tuple[str, ...]:
        """The columns of its table."""
        return SPEED_HEAD

    def row(self) -> tuple[str, ...]:
        """Its cells."""
        value = f"{self.value:.0f}x" if self.value >= 10 else f"{self.value:.2f}x"
        times = f"{self.obvious:.3f} s", f"{self.ours:.4f} s", value
        return self.name, *times, f">= {self.wanted}x", yes(self.met), self.bound


class Amount(NamedTuple):
    """One measured amount with the most it may be."""

    name: str
    value: float
    unit: str
    most: float
    bound: str

    @property
    def met(self) -> bool:
        """Whether it is less than the most it may be."""
        return self.value < self.most

    @property
    def head(self) -> tuple[str, ...]:
        """The columns of its table."""
        return SPEED_HEAD

    def row(self) -> tuple[str, ...]:
        """Its cells."""
        shown = f"{self.value:.0f}" if self.value >= 10 else f"{self.value:.2f}"
        amount, most = f"{shown} {self.unit}", f"< {self.most} {self.unit}"
        return self.name, "", amount, "", most, yes(self.met), self.bound


class Found(NamedTuple):
    """Something that was counted; nothing is wanted of it."""

    name: str
    value: str
    bound: str
    met: bool = True

    @property
    def head(self) -> tuple[str, ...]:
        """The columns of its table."""
        return SPEED_HEAD

    def row(self) -> tuple[str, ...]:
        """Its cells."""
        return self.name, "", self.value, "", "", "", self.bound


class Quality(NamedTuple):
    """One measured quality with the least it may be, and what guessing would reach."""

    name: str
    value: float
    least: float
    chance: float
    bound: str
    spread: float | None = None
    """The standard deviation over seeds, where there are several."""

    @property
    def met(self) -> bool:
        """Whether it is as much as is wanted."""
        return self.value >= self.least

    @property
    def head(self) -> tuple[str, ...]:
        """The columns of its table."""
        return "what", "reached", "by guessing", "wanted", "met", "what bounds it"

    def row(self) -> tuple[str, ...]:
        """Its cells."""
        reached = f"{self.value:.3f}" + ("" if self.spread is None else f" ± {self.spread:.3f}")
        return self.name, reached, f"{self.chance:.3f}", f">= {self.least:.3f}", yes(self.met), self.bound


class Agent(NamedTuple):
    """An agent's scores over several seeds, and what was wanted of them."""

    name: str
    cells: tuple[str, ...]
    """The mean of each measure over the seeds, their standard deviation, and the first seed's interval."""
    wanted: str
    met: bool

    @classmethod
    def of(cls, name: str, scores: Sequence[Scores], wanted: str, met: bool, *, draws: int) -> Agent:
        """An agent by what it scored with each seed."""
        intervals = scores[0].intervals(draws=draws)
        cells = []
        for measure, times in SHOWN.items():
            means = [times * each.values[measure].mean() for each in scores]
            low, high = (times * end for end in intervals[measure])
            cells.append(f"{np.mean(means):.1f} ± {np.std(means):.1f} [{low:.1f}, {high:.1f}]")
        return cls(name, tuple(cells), wanted, met)

    @property
    def head(self) -> tuple[str, ...]:
        """The columns of its table."""
        return "agent", "SR", "SPL", "TL", "NE", "nDTW", "wanted", "met"

    def row(self) -> tuple[str, ...]:
        """Its cells."""
        return self.name, *self.cells, self.wanted, yes(self.met)


class Beside(NamedTuple):
    """Something said about the embedded world and about the real data; nothing is wanted of it."""

    name: str
    ours: str
    real: str
    met: bool = True

    @property
    def head(self) -> tuple[str, ...]:
        """The columns of its table."""
        return "what", "embedded world, small", "Matterport3D, R2R"

    def row(self) -> tuple[str, ...]:
        """Its cells."""
        return self.name, self.ours, self.real


Result = Ratio | Amount | Found | Quality | Agent | Beside


def yes(met: bool) -> str:
    return "yes" if met else "NO"


def line(cells: Sequence[str]) -> str:
    """A row of a table in markdown."""
    return f"| {' | '.join(cells)} |"


def seconds(work: Callable[[], object]) -> float:
    """Process time of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def both_sides(obvious: Callable[[], object], ours: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The best time of each side over rounds in which both run."""
    times = [(seconds(obvious), min(seconds(ours) for _ in range(REPEATS))) for _ in range(rounds)]
    return min(slow for slow, _ in times), min(fast for _, fast in times)


def data_root() -> Path | None:
    """The folder of public datasets, if there is one."""
    root = default_data()
    return root if (root / "connectivity").is_dir() else None
