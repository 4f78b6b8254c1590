"""Comparison of results on the same episodes: paired differences with intervals, and scores by visit.

A result may be a group of results with different seeds, which are averaged episode by episode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError
from esceme.evaluation.aggregate import average_results, means_over_seeds
from esceme.evaluation.aggregate import first_told as restrict_to_first_told
from esceme.evaluation.result import EpisodeResult, Result
from esceme.metrics import TOUR_METRICS
from esceme.runs import flatten

MEASURES = ("sr", "spl", "osr", "ne", "tl", "cls", "ndtw", "sdtw", "gp")
LEVEL = 0.95
MAX_CELLS = 2_000_000
"""Maximum number of resampling counts in memory at a time, which take some megabytes."""
VISITS = (1, 2, 3, 6, 11, 21, 51, 101)
"""First visit number of each group of `by_visit`. A visit is one episode in a scene or tour."""

Array = NDArray[np.float64]

FITTED = ("planner.beliefs.", "planner.exploration.", "planner.prior.", "planner.fit.")
"""Beginnings of the names of facts that follow from the fit of a planner."""


@dataclass(frozen=True)
class Interval:
    """A 95 % bootstrap interval of a difference between two means."""

    low: float
    high: float
    p: float
    """Two-sided p-value: twice the share of bootstrap samples on the less frequent side of zero.

    In this share, one is added to the number of samples on that side and to the number of all samples. With n
    resampled paths or scenes, p is at least 2^(1 - n), the p-value of a sign test in which all n differences
    have one sign.
    """


@dataclass(frozen=True)
class Difference:
    """Difference between the mean of a result and the mean of the first result."""

    mean: float
    over_paths: Interval | None
    """Interval over resampled reference paths; all instructions of a path are resampled together.

    None if there is only one path, and for tour metrics, because episodes of a tour are not independent.
    """
    over_scenes: Interval | None
    """Interval over resampled scenes, an estimate for other buildings; None if there is only one scene."""


@dataclass(frozen=True)
class MetricComparison:
    """Means of one metric in each result, and their differences."""

    measure: str
    means: tuple[float, ...]
    stds: tuple[float | None, ...]
    """Standard deviation over the seeds of each group (of a sample, n - 1); None for a single result."""
    differences: tuple[Difference, ...]
    """Difference of every other result to the first result."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of several results, or groups of results, on the same episodes."""

    names: tuple[str, ...]
    runs: tuple[int, ...]
    """Number of results of each group; 1 for a single result."""
    episodes: int
    paths: int
    scenes: int
    draws: int
    seed: int
    differing: Mapping[str, tuple[Any, ...]]
    """Facts, such as settings and hashes, that differ between results: name -> value in each result. The
    value is None if a result does not have the fact. Of a group, the facts of its first result count."""
    first_told: bool
    """Whether only the first instruction of each path counts. Episodes are then paired by their path."""
    measures: tuple[MetricComparison, ...]


def compare(
    results: Sequence[Result | Sequence[Result]],
    *,
    draws: int = 10_000,
    seed: int = 0,
    measures: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    first_told: bool = False,
) -> Comparison:
    """Compare each result with the first result, episode by episode.

    A group of results that differ in their seeds or orders counts as one result: its scores are means over
    the group, per episode. `measures` are the metrics to compare. The default is the common metrics, and the
    tour metrics if all results have the same tours. `draws` is the number of bootstrap samples. `names`
    identify results or groups in messages. With `first_told`, only the first instruction of each path counts,
    see `aggregate.first_told`. Raise `DataError` if the results are not on the same episodes or have no
    scores.
    """
    if draws < 1 or seed < 0:
        raise ConfigError(f"{draws} draws with seed {seed}: expected at least 1 draw and no negative seed")
    groups = [[group] if isinstance(group, Result) else list(group) for group in results]
    if not all(groups):
        raise ConfigError("a group of results is empty; give at least one result per group")
    names = list(names or (f"result {number}" for number in range(1, len(groups) + 1)))
    if first_told:
        groups = [[_named_by_path(restrict_to_first_told(result)) for result in group] for group in groups]
    members = [result for group in groups for result in group]
    of_group = [name for name, group in zip(names, groups, strict=True) for _ in group]
    _align_episodes(members, of_group)
    averages = [average_results(group) for group in groups]
    rows = _align_episodes(averages, names)
    measures = _default_metrics(averages) if measures is None else measures
    values = _score_array(rows, measures, names)  # (results, measures, E)
    gains = (values[1:] - values[0]).reshape(-1, values.shape[2])  # (others x measures, E)
    paths = np.unique([episode.path for episode in rows[0]], return_inverse=True)[1]
    scenes = np.unique([episode.scene for episode in rows[0]], return_inverse=True)[1]
    over_paths, over_scenes = (
        _bootstrap_intervals(gains, cluster, draws=draws, seed=seed) for cluster in (paths, scenes)
    )
    is_tour_metric = np.tile([measure in TOUR_METRICS for measure in measures], len(averages) - 1)
    differences = [
        Difference(mean, None if of_tours else by_path, by_scene)
        for mean, by_path, by_scene, of_tours in zip(
            gains.mean(axis=1).tolist(), over_paths, over_scenes, is_tour_metric, strict=True
        )
    ]
    stds = [
        [over.std if (over := means_over_seeds(group).get(measure)) else None for group in groups]
        for measure in measures
    ]
    return Comparison(
        names=tuple(names),
        runs=tuple(map(len, groups)),
        episodes=len(rows[0]),
        paths=int(paths.max()) + 1,
        scenes=int(scenes.max()) + 1,
        draws=draws,
        seed=seed,
        differing=differing_facts(averages),
        first_told=first_told,
        measures=tuple(
            MetricComparison(
                measure,
                tuple(values[:, row].mean(axis=1).tolist()),
                tuple(stds[row]),
                tuple(differences[row :: len(measures)]),
            )
            for row, measure in enumerate(measures)
        ),
    )


def _default_metrics(results: Sequence[Result]) -> tuple[str, ...]:
    tours = {str(result.facts.get("hashes", {}).get("tours")) for result in results}
    have_tour_metrics = all(TOUR_METRICS[0] in result.means for result in results)
    return MEASURES + (TOUR_METRICS if len(tours) == 1 and have_tour_metrics else ())


def _named_by_path(result: Result) -> Result:
    """Return a result of first-told instructions whose episode ids are replaced by path ids.

    Results of different orders can then be paired, although the first instruction of a path may differ.
    """
    episodes = [msgspec.structs.replace(episode, id=episode.path) for episode in result.episodes]
    return msgspec.structs.replace(result, episodes=episodes)


def is_fitted(fact: str) -> bool:
    """Whether a fact of a result, such as `planner.beliefs.full.loss`, follows from the fit of its planner.

    The digests of the planner differ if any of these does.
    """
    return fact.startswith(FITTED) and not fact.startswith("planner.fit.settings.")


def differing_facts(results: Sequence[Result]) -> dict[str, tuple[Any, ...]]:
    """Return settings and hashes that differ between results, by name, such as `hashes.weights`."""
    facts = [
        {name: value for name, value in flatten(result.facts).items() if not is_fitted(name)}
        for result in results
    ]
    names = dict.fromkeys(name for flat in facts for name in flat)
    values = {name: tuple(flat.get(name) for flat in facts) for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


# -- alignment -------------------------------------------------------------------------------------------


def _align_episodes(results: Sequence[Result], names: Sequence[str]) -> list[list[EpisodeResult]]:
    """Return the episodes of every result in the order of the first result.

    Raise `DataError` if the results are not on the same episodes.
    """
    if len(results) < 2:
        raise DataError(f"expected at least two results to compare, found {len(results)}")
    first = {episode.id for episode in results[0].episodes}
    rows = []
    for name, result in zip(names, results, strict=True):
        require_same_data(results[0], result, names[0], name)
        by_id = {episode.id: episode for episode in result.episodes}
        if len(by_id) < len(result.episodes):
            raise DataError(f"{name}: an episode occurs twice; evaluate again")
        if unmatched := sorted(by_id.keys() ^ first):
            where = name if unmatched[0] in by_id else names[0]
            raise DataError(
                f"{name}: other episodes than in {names[0]}: {len(by_id)} and {len(first)}, "
                f"{unmatched[0]} is only in {where}; expected results of the same episodes"
            )
        if not by_id or any(not episode.scores for episode in result.episodes):
            raise DataError(
                f"{name}: its episodes have no scores; of split '{result.facts.get('split')}' "
                "only the leaderboard knows the goals"
            )
        rows.append([by_id[episode.id] for episode in results[0].episodes])
    return rows


def require_same_data(first: Result, other: Result, first_name: str, name: str) -> None:
    """Raise `DataError` if two results differ in task, split or data."""
    expected, found = (flatten(result.facts) for result in (first, other))
    for fact, label in (("task", "task"), ("split", "split"), ("hashes.data", "data (sha256)")):
        if expected.get(fact) != found.get(fact):
            values = [str(facts.get(fact))[:20] for facts in (found, expected)]
            raise DataError(
                f"{name}: {label} '{values[0]}', and '{values[1]}' in {first_name}; "
                "expected results of the same episodes"
            )


def _score_array(
    rows: Sequence[Sequence[EpisodeResult]], measures: Sequence[str], names: Sequence[str]
) -> Array:
    """Return the scores of E episodes as an array (results, measures, E)."""
    if not measures:
        raise ConfigError("no measures to compare; name at least one")
    for name, episodes in zip(names, rows, strict=True):
        known = frozenset.intersection(*{frozenset(episode.scores) for episode in episodes})
        if missing := [measure for measure in measures if measure not in known]:
            raise ConfigError(
                f"{name}: no measure '{missing[0]}' of every episode; there are {', '.join(sorted(known))}"
            )
    return np.array(
        [[[episode.scores[name] for episode in episodes] for name in measures] for episodes in rows]
    )


# -- resampling ------------------------------------------------------------------------------------------


def bootstrap_interval(
    gains: Sequence[float], clusters: Sequence[str], *, draws: int = 10_000, seed: int = 0
) -> Interval | None:
    """Return a bootstrap interval for the mean of `gains`, one per episode; whole clusters are resampled."""
    index = np.unique(clusters, return_inverse=True)[1]
    return _bootstrap_intervals(np.array([gains]), index, draws=draws, seed=seed)[0]


def _bootstrap_intervals(
    gains: Array, cluster: NDArray[np.integer], *, draws: int, seed: int
) -> Sequence[Interval | None]:
    """Return a bootstrap interval for the mean of each row of `gains` (R, E).

    `cluster` (E,) is the path or scene of each episode. Whole clusters are resampled.
    """
    size = np.bincount(cluster).astype(float)
    if len(size) < 2:
        return [None] * len(gains)
    sums = np.stack([np.bincount(cluster, weights=row) for row in gains], axis=1)  # (clusters, R)
    generator = np.random.default_rng(seed)
    equal = np.full(len(size), 1 / len(size))
    means, chunk = [], max(1, MAX_CELLS // len(size))
    for begin in range(0, draws, chunk):
        times = generator.multinomial(len(size), equal, size=min(chunk, draws - begin)).astype(float)
        means.append(times @ sums / (times @ size)[:, None])
    samples = np.concatenate(means)  # (draws, R)
    edges = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    beyond = np.minimum((samples <= 0).sum(axis=0), (samples >= 0).sum(axis=0))
    p = np.clip(2 * (beyond + 1) / (draws + 1), 2.0 ** (1 - len(size)), 1.0)
    return [Interval(float(low), float(high), float(q)) for low, high, q in zip(*edges, p, strict=True)]


# -- by visit --------------------------------------------------------------------------------------------


class VisitGroup(NamedTuple):
    """Mean of a metric over the visits `first` to `last` to every scene (or in every tour)."""

    first: int
    last: int
    mean: float
    episodes: int


def by_visit(result: Result, measure: str = "spl", edges: Sequence[int] = VISITS) -> list[VisitGroup]:
    """Return the mean of a metric in groups of visits, given the first visit of each group (`edges`).

    The visit number counts the episodes in a scene (or tour) from 1. Empty groups are omitted. A result
    without scores has no groups.
    """
    if not edges or edges[0] != 1 or any(a >= b for a, b in pairwise(edges)):
        raise ConfigError(f"visits: expected increasing numbers from 1, found {list(edges)}")
    scored = [episode for episode in result.episodes if episode.scores]
    if missing := [episode for episode in scored if measure not in episode.scores]:
        raise ConfigError(f"no measure '{measure}'; there are {', '.join(missing[0].scores)}")
    visit = np.array([episode.visit for episode in scored], dtype=np.int64)
    values = np.array([episode.scores[measure] for episode in scored])
    latest = int(visit.max(initial=0))
    groups = []
    for first, after in pairwise([*edges, max(latest, edges[-1]) + 1]):
        inside = (visit >= first) & (visit < after)
        if inside.any():
            last = min(after - 1, latest)
            groups.append(VisitGroup(first, last, float(values[inside].mean()), int(inside.sum())))
    return groups
