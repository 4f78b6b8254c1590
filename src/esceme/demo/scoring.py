"""What came out of a split: the means of every protocol with their intervals, and what memory changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from esceme.evaluation.compare import Difference, Visits, by_visit, compare
from esceme.evaluation.result import Result, scores_of
from esceme.report import Curve

HEADINGS = {"tl": "TL (m)", "ne": "NE (m)", "sr": "SR (%)", "spl": "SPL (%)"}
"""Measures of the table, and what stands above them."""
GAIN = "SPL - none"
"""What stands above the paired difference."""
METRES = ("tl", "ne")
DRAWS = 1000


@dataclass(frozen=True)
class Row:
    """One protocol."""

    memory: str
    means: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    """95 %, paths resampled."""
    gain: Difference | None
    """Of SPL against `none`, episode by episode; None for that itself."""
    visits: Sequence[Visits]
    """SPL by the number of the visit to a scene."""


@dataclass(frozen=True)
class Scoring:
    """All protocols on one split."""

    split: str
    episodes: int
    paths: int
    scenes: int
    rows: Sequence[Row]

    def row(self, memory: str) -> Row:
        """That of a protocol."""
        return next(row for row in self.rows if row.memory == memory)

    @classmethod
    def of(cls, split: str, results: Mapping[str, Result]) -> Scoring:
        """Score results by their protocols, `none` first."""
        found = compare(list(results.values()), measures=["spl"], names=[f"{split}, {m}" for m in results])
        gains = (None, *found.measures[0].differences)
        rows = [_row(memory, results[memory], gain) for memory, gain in zip(results, gains, strict=True)]
        return cls(split, found.episodes, found.paths, found.scenes, rows)


def _row(memory: str, result: Result, gain: Difference | None) -> Row:
    intervals = scores_of(result).intervals(draws=DRAWS)
    return Row(
        memory,
        {name: result.means[name] for name in HEADINGS},
        {name: intervals[name] for name in HEADINGS},
        gain,
        by_visit(result),
    )


# -- in words --------------------------------------------------------------------------------------------


def written(measure: str, value: float, *, sign: str = "") -> str:
    """Metres with two digits, shares as per cent with one.

    >>> written("ne", 3.14159), written("spl", 0.5), written("spl", 0.051, sign="+")
    ('3.14', '50.0', '+5.1')
    """
    return f"{value:{sign}.2f}" if measure in METRES else f"{100 * value:{sign}.1f}"


def cells(row: Row) -> list[tuple[str, str]]:
    """The values of a row and their intervals, as the table has them; empty where there is none."""
    told = [(written(name, row.means[name]), _edges(name, *row.intervals[name])) for name in HEADINGS]
    if row.gain is None:
        return [*told, ("", "")]
    interval = row.gain.over_paths
    edges = "" if interval is None else _edges("spl", interval.low, interval.high, sign="+")
    return [*told, (written("spl", row.gain.mean, sign="+"), edges)]


def _edges(measure: str, low: float, high: float, *, sign: str = "") -> str:
    return f"{written(measure, low, sign=sign)}..{written(measure, high, sign=sign)}"


def visit_curves(scoring: Scoring, memories: Sequence[str]) -> list[Curve]:
    """SPL by visit as curves, with how many episodes each value is the mean of."""
    return [
        Curve(
            name=memory,
            xs=[_visits(each) for each in scoring.row(memory).visits],
            ys=[100 * each.mean for each in scoring.row(memory).visits],
        )
        for memory in memories
    ]


def _visits(group: Visits) -> str:
    numbers = f"{group.first}" if group.first == group.last else f"{group.first}-{group.last}"
    return f"{numbers} (n {group.episodes})"


def verdict(scoring: Scoring) -> str:
    """What was just seen, in a sentence; honest where memory did not help."""
    none, cold, twice, episodic = (
        written("spl", scoring.row(memory).means["spl"])
        for memory in ("none", "cold", "two-pass", "episodic")
    )
    houses = f"{scoring.scenes} houses" if scoring.scenes > 1 else "a house"
    return (
        f"On {scoring.episodes} walks through {houses} that neither agent had seen in training, the one that "
        f"remembers earlier walks there (cold) reached {cold} SPL and the one without memory {none}, "
        f"{_change(scoring)}; with everything walked once before (two-pass) it reached {twice}, and "
        f"forgetting all at the end of every walk (episodic) {episodic}."
    )


def _change(scoring: Scoring) -> str:
    """How much a cold memory changed, and whether that can be told from chance."""
    gain = scoring.row("cold").gain
    assert gain is not None
    change = f"a difference of {written('spl', gain.mean, sign='+')} points"
    if gain.over_paths is None:
        return f"{change}, for which one path gives no interval"
    low, high = gain.over_paths.low, gain.over_paths.high
    meaning = (
        "so memory helped"
        if low > 0
        else "so memory did harm"
        if high < 0
        else "so this run does not tell whether memory helped"
    )
    return f"{change} (95 % interval {_edges('spl', low, high, sign='+')}), {meaning}"
