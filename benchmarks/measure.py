"""Timing of benchmarks, and the kinds of their results.

Times are process time of one thread. Both sides run alternately; the best of several rounds counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from esceme.metrics import Scores
from esceme.tasks.folder import default_data

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
REPEATS = 3
"""Runs of the faster side per round, because short times are noisy."""
SPEED_HEAD = ("what", "baseline", "ours", "ratio", "target", "met", "what bounds ours next")
SHOWN = {"sr": 100.0, "spl": 100.0, "tl": 1.0, "ne": 1.0, "ndtw": 100.0}
"""Metrics in the table of an agent, and their factors."""


class Ratio(NamedTuple):
    """Seconds that the baseline implementation and ours take for the same work; the ratio has a target."""

    name: str
    baseline: float
    ours: float
    target: float
    bound: str
    """What limits our implementation now."""

    @property
    def value(self) -> float:
        """Speed-up of our implementation."""
        return self.baseline / self.ours

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value >= self.target

    @property
    def head(self) -> tuple[str, ...]:
        """Column names of the table."""
        return SPEED_HEAD

    def row(self) -> tuple[str, ...]:
        """Cells of the table row."""
        value = f"{self.value:.0f}x" if self.value >= 10 else f"{self.value:.2f}x"
        times = f"{self.baseline:.3f} s", f"{self.ours:.4f} s", value
        return self.name, *times, f">= {self.target}x", yes_or_no(self.met), self.bound


class Amount(NamedTuple):
    """A measured amount and its upper limit."""

    name: str
    value: float
    unit: str
    limit: float
    bound: str

    @property
    def met(self) -> bool:
        """Whether the amount is below its limit."""
        return self.value < self.limit

    @property
    def head(self) -> tuple[str, ...]:
        """Column names of the table."""
        return SPEED_HEAD

    def row(self) -> tuple[str, ...]:
        """Cells of the table row."""
        shown = f"{self.value:.0f}" if self.value >= 10 else f"{self.value:.2f}"
        amount, limit = f"{shown} {self.unit}", f"< {self.limit} {self.unit}"
        return self.name, "", amount, "", limit, yes_or_no(self.met), self.bound


class Measurement(NamedTuple):
    """A measurement without a target."""

    name: str
    value: str
    bound: str
    met: bool = True

    @property
    def head(self) -> tuple[str, ...]:
        """Column names of the table."""
        return SPEED_HEAD

    def row(self) -> tuple[str, ...]:
        """Cells of the table row."""
        return self.name, "", self.value, "", "", "", self.bound


class Quality(NamedTuple):
    """A measured quality, its lower limit, and its value at chance."""

    name: str
    value: float
    target: float
    chance: float
    bound: str
    spread: float | None = None
    """Standard deviation over seeds, if there are several."""

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.value >= self.target

    @property
    def head(self) -> tuple[str, ...]:
        """Column names of the table."""
        return "what", "measured", "chance", "target", "met", "what bounds it"

    def row(self) -> tuple[str, ...]:
        """Cells of the table row."""
        measured = f"{self.value:.3f}" + ("" if self.spread is None else f" ± {self.spread:.3f}")
        return (
            self.name,
            measured,
            f"{self.chance:.3f}",
            f">= {self.target:.3f}",
            yes_or_no(self.met),
            self.bound,
        )


class AgentScores(NamedTuple):
    """Scores of an agent over several seeds, and their target."""

    name: str
    cells: tuple[str, ...]
    """Mean and standard deviation of each metric over the seeds, and the first seed's interval."""
    target: str
    met: bool

    @classmethod
    def from_seeds(
        cls, name: str, scores: Sequence[Scores], target: str, met: bool, *, draws: int
    ) -> AgentScores:
        """Summarise the scores of each seed."""
        intervals = scores[0].intervals(draws=draws)
        cells = []
        for metric, factor in SHOWN.items():
            means = [factor * seed.values[metric].mean() for seed in scores]
            low, high = (factor * end for end in intervals[metric])
            cells.append(f"{np.mean(means):.1f} ± {np.std(means):.1f} [{low:.1f}, {high:.1f}]")
        return cls(name, tuple(cells), target, met)

    @property
    def head(self) -> tuple[str, ...]:
        """Column names of the table."""
        return "agent", "SR", "SPL", "TL", "NE", "nDTW", "target", "met"

    def row(self) -> tuple[str, ...]:
        """Cells of the table row."""
        return self.name, *self.cells, self.target, yes_or_no(self.met)


class WorldStatistic(NamedTuple):
    """One statistic of the embedded world and of the real data."""

    name: str
    ours: str
    real: str
    met: bool = True

    @property
    def head(self) -> tuple[str, ...]:
        """Column names of the table."""
        return "what", "embedded world, small", "Matterport3D, R2R"

    def row(self) -> tuple[str, ...]:
        """Cells of the table row."""
        return self.name, self.ours, self.real


Result = Ratio | Amount | Measurement | Quality | AgentScores | WorldStatistic


def yes_or_no(met: bool) -> str:
    return "yes" if met else "NO"


def line(cells: Sequence[str]) -> str:
    """Format a row of a markdown table."""
    return f"| {' | '.join(cells)} |"


def print_results(results: Iterable[Result]) -> int:
    """Print a row per result; return the exit code: 0 if all targets are met, else 1."""
    are_met = []
    for result in results:
        print(line(result.row()))
        are_met.append(result.met)
    return 0 if all(are_met) else 1


def seconds(work: Callable[[], object]) -> float:
    """Process time of one call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def both_sides(
    baseline: Callable[[], object], ours: Callable[[], object], rounds: int
) -> tuple[float, float]:
    """Best process times of the baseline implementation and of ours, in seconds."""
    times = [(seconds(baseline), min(seconds(ours) for _ in range(REPEATS))) for _ in range(rounds)]
    return min(slow for slow, _ in times), min(fast for _, fast in times)


def data_root() -> Path | None:
    """The folder of public datasets, if there is one."""
    root = default_data()
    return root if (root / "connectivity").is_dir() else None
