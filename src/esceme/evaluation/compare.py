"""Comparing results of the same episodes: paired differences with intervals, and scores by visit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError
from esceme.evaluation.result import EpisodeResult, Result
from esceme.metrics import TOUR_METRICS

MEASURES = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw", "gp")
LEVEL = 0.95
CELLS_AT_ONCE = 2_000_000
"""How many counts of draws are held at a time: some megabytes."""
VISITS = (1, 2, 3, 6, 11, 21, 51, 101)
"""Visits with which a new group begins."""

Array = NDArray[np.float64]


class Interval(NamedTuple):
    """Where a difference lies in 95 % of the draws."""

    low: float
    high: float
    p: float
    """Two-sided: twice the share of draws on the far side of zero, the difference itself counted as one.

    For n paths or scenes never below 2^(1 - n), the chance that as many coins fall on the same side.
    """


@dataclass(frozen=True)
class Difference:
    """By how much the mean of a result differs from that of the first."""

    mean: float
    over_paths: Interval | None
    """Paths resampled, a path's instructions together; None where all episodes are of one path, and for
    measures of tours, whose episodes belong together."""
    over_scenes: Interval | None
    """Whole scenes resampled, as for buildings nobody has seen yet; None where there is only one."""


@dataclass(frozen=True)
class Measured:
    """One measure of all results."""

    measure: str
    means: tuple[float, ...]
    differences: tuple[Difference, ...]
    """Of every result but the first, against the first."""


@dataclass(frozen=True)
class Comparison:
    """Results of the same episodes side by side."""

    names: tuple[str, ...]
    episodes: int
    paths: int
    scenes: int
    draws: int
    seed: int
    differing: Mapping[str, tuple[Any, ...]]
    """Facts that are not the same in all results -> the fact in each, None where it does not apply."""
    measures: tuple[Measured, ...]


def compare(
    results: Sequence[Result],
    *,
    draws: int = 10_000,
    seed: int = 0,
    measures: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
) -> Comparison:
    """Compare results of the same episodes with the first of them, episode by episode.

    By default by the usual `measures`, and by those of tours where all of them lived the same tours.
    Raises `DataError` where they are not of the same episodes or hold no scores; `names` are what messages
    call the results.
    """
    if draws < 1 or seed < 0:
        raise ConfigError(f"{draws} draws with seed {seed}: expected at least 1 draw and no negative seed")
    named = list(names or (f"result {number}" for number in range(1, len(results) + 1)))
    rows = _paired(results, named)
    measures = _usual(results) if measures is None else measures
    values = _values(rows, measures, named)  # (results, measures, E)
    gains = (values[1:] - values[0]).reshape(-1, values.shape[2])  # (others x measures, E)
    paths = np.unique([each.path for each in rows[0]], return_inverse=True)[1]
    scenes = np.unique([each.scene for each in rows[0]], return_inverse=True)[1]
    over_paths, over_scenes = (_intervals(gains, of, draws=draws, seed=seed) for of in (paths, scenes))
    of_tours = np.tile([measure in TOUR_METRICS for measure in measures], len(results) - 1)
    differences = [
        Difference(mean, None if whole else by_path, by_scene)
        for mean, by_path, by_scene, whole in zip(
            _means(gains), over_paths, over_scenes, of_tours, strict=True
        )
    ]
    return Comparison(
        names=tuple(named),
        episodes=len(rows[0]),
        paths=int(paths.max()) + 1,
        scenes=int(scenes.max()) + 1,
        draws=draws,
        seed=seed,
        differing=differing_facts(results),
        measures=tuple(
            Measured(measure, tuple(_means(values[:, place])), tuple(differences[place :: len(measures)]))
            for place, measure in enumerate(measures)
        ),
    )


def _usual(results: Sequence[Result]) -> tuple[str, ...]:
    """What results are compared by if nothing else is asked for."""
    tours = {str(result.facts.get("hashes", {}).get("tours")) for result in results}
    return MEASURES + (TOUR_METRICS if len(tours) == 1 and tours != {"None"} else ())


def differing_facts(results: Sequence[Result]) -> dict[str, tuple[Any, ...]]:
    """Facts that are not the same in all results, by dotted names: `memory`, `hashes.weights`."""
    facts = [dict(_flat(result.facts)) for result in results]
    found = {name: tuple(each.get(name) for each in facts) for each in facts for name in each}
    return {name: stated for name, stated in found.items() if any(each != stated[0] for each in stated)}


def _flat(facts: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in facts.items():
        flat += _flat(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]
    return flat


# -- pairing ---------------------------------------------------------------------------------------------


def _paired(results: Sequence[Result], names: Sequence[str]) -> list[list[EpisodeResult]]:
    """The episodes of every result in the order of the first's; raises `DataError` where they differ."""
    if len(results) < 2:
        raise DataError(f"expected at least two results to compare, found {len(results)}")
    first = {each.id: each for each in results[0].episodes}
    rows = []
    for name, result in zip(names, results, strict=True):
        _require_same_data(results[0], result, names[0], name)
        by_id = {each.id: each for each in result.episodes}
        if len(by_id) < len(result.episodes):
            raise DataError(f"{name}: an episode occurs twice; evaluate again")
        if astray := sorted(by_id.keys() ^ first.keys()):
            where = name if astray[0] in by_id else names[0]
            raise DataError(
                f"{name}: other episodes than in {names[0]}: {len(by_id)} and {len(first)}, "
                f"{astray[0]} is only in {where}; expected results of the same episodes"
            )
        if not by_id or any(not each.scores for each in result.episodes):
            raise DataError(
                f"{name}: its episodes have no scores; of split '{result.facts.get('split')}' "
                "only the leaderboard knows the goals"
            )
        rows.append([by_id[each] for each in first])
    return rows


def _require_same_data(first: Result, other: Result, first_name: str, name: str) -> None:
    """Raise `DataError` where two results are of another task, split or data."""
    stated = [dict(_flat(each.facts)) for each in (first, other)]
    for fact, called in (("task", "task"), ("split", "split"), ("hashes.data", "data (sha256)")):
        expected, found = (str(each.get(fact))[:20] for each in stated)
        if stated[0].get(fact) != stated[1].get(fact):
            raise DataError(
                f"{name}: {called} '{found}', and '{expected}' in {first_name}; "
                "expected results of the same episodes"
            )


def _values(rows: Sequence[Sequence[EpisodeResult]], measures: Sequence[str], names: Sequence[str]) -> Array:
    """The scores as an array (results, measures, E)."""
    if not measures:
        raise ConfigError("no measures to compare; name at least one")
    for name, episodes in zip(names, rows, strict=True):
        known = set.intersection(*(set(each.scores) for each in episodes))
        if missing := [measure for measure in measures if measure not in known]:
            raise ConfigError(
                f"{name}: no measure '{missing[0]}' of every episode; there are {', '.join(sorted(known))}"
            )
    return np.array([[[each.scores[m] for each in episodes] for m in measures] for episodes in rows])


# -- resampling ------------------------------------------------------------------------------------------


def _intervals(
    gains: Array, cluster: NDArray[np.integer], *, draws: int, seed: int
) -> Sequence[Interval | None]:
    """Bootstrap intervals of the mean of each row of `gains` (R, E), resampling whole clusters (E,)."""
    size = np.bincount(cluster).astype(float)
    if len(size) < 2:
        return [None] * len(gains)
    sums = np.stack([np.bincount(cluster, weights=each) for each in gains], axis=1)  # (clusters, R)
    generator = np.random.default_rng(seed)
    equal = np.full(len(size), 1 / len(size))
    means, chunk = [], max(1, CELLS_AT_ONCE // len(size))
    for begin in range(0, draws, chunk):
        times = generator.multinomial(len(size), equal, size=min(chunk, draws - begin)).astype(float)
        means.append(times @ sums / (times @ size)[:, None])
    drawn = np.concatenate(means)  # (draws, R)
    edges = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    beyond = np.minimum((drawn <= 0).sum(axis=0), (drawn >= 0).sum(axis=0))
    p = np.clip(2 * (beyond + 1) / (draws + 1), 2.0 ** (1 - len(size)), 1.0)
    return [Interval(*map(float, each)) for each in zip(*edges, p, strict=True)]


def _means(values: Array) -> list[float]:
    """The mean of each row."""
    return [float(each) for each in values.mean(axis=1)]


# -- by visit --------------------------------------------------------------------------------------------


class Visits(NamedTuple):
    """Episodes that were the `first`-th to the `last`-th in their scene (or tour)."""

    first: int
    last: int
    mean: float
    episodes: int


def by_visit(result: Result, measure: str = "spl", edges: Sequence[int] = VISITS) -> list[Visits]:
    """The mean of a measure by the number of the visit to a scene, in groups that begin at `edges`.

    Groups without episodes are left out; a result without scores has none.
    """
    if not edges or edges[0] != 1 or any(a >= b for a, b in pairwise(edges)):
        raise ConfigError(f"visits are grouped by rising numbers from 1, not by {list(edges)}")
    scored = [each for each in result.episodes if each.scores]
    if missing := [each for each in scored if measure not in each.scores]:
        raise ConfigError(f"no measure '{measure}'; there are {', '.join(missing[0].scores)}")
    visit = np.array([each.visit for each in scored], dtype=np.int64)
    values = np.array([each.scores[measure] for each in scored])
    latest = int(visit.max(initial=0))
    groups = []
    for first, after in pairwise([*edges, max(latest, edges[-1]) + 1]):
        inside = (visit >= first) & (visit < after)
        if inside.any():
            last = min(after - 1, latest)
            groups.append(Visits(first, last, float(values[inside].mean()), int(inside.sum())))
    return groups
