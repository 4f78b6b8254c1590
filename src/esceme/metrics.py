"""Navigation metrics of episodes (TL NE OSR SR SPL CLS nDTW SDTW GP) and of tours.

Paths are viewpoint indices of an `Atlas`, padded by repeating the last viewpoint. The last axis is the
episode: predicted paths have shape (T, E), reference paths (S, E).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError, WorldError, prefix_errors
from esceme.tasks.catalogue import SuccessRule
from esceme.tasks.episode import SUCCESS_WITHIN, DialogEpisode, Episode
from esceme.tasks.submission import Prediction
from esceme.tasks.tours import Tour
from esceme.world.atlas import Atlas

METRICS = ("tl", "ne", "osr", "sr", "spl", "spl_shortest", "cls", "ndtw", "sdtw", "gp", "steps")
"""Names of the metrics of an episode."""
FRACTIONS = ("osr", "sr", "sr_end", "spl", "spl_shortest", "cls", "ndtw", "sdtw")
"""Names of the metrics of an episode that lie between 0 and 1."""
TOUR_METRICS = ("t_ndtw", "t_sr", "t_spl")
"""Names of tour metrics. Each is a mean over episodes, to which every episode contributes a number."""
METRES = {"tl", "ne", "gp"}
COUNTS = {"steps", "n"}
"""Metrics in metres, and counts. All other metrics are fractions, which are printed in per cent."""
MAX_COSTS = 400_000
"""Maximum number of distances computed at once. They take a few megabytes, which fit into CPU caches."""

Array = NDArray[np.float64]
Integers = NDArray[np.integer]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PaddedPaths:
    """Paths of E episodes as viewpoint indices, padded to equal length."""

    viewpoints: NDArray[np.int64]
    """(T, E): viewpoint indices, padded by repeating the last viewpoint of a path."""
    count: NDArray[np.int64]
    """(E,): number of viewpoints of each path without padding."""

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> PaddedPaths:
        """Return the padded paths. Paths must not be empty; consecutive equal viewpoints are merged first."""
        count = np.array([len(path) for path in paths])
        flat = np.fromiter(chain.from_iterable(paths), dtype=np.int64, count=count.sum())
        first = np.cumsum(count) - count
        is_new = np.ones(len(flat), dtype=bool)
        is_new[1:] = flat[1:] != flat[:-1]
        is_new[first] = True
        flat, count = flat[is_new], np.add.reduceat(is_new, first, dtype=np.int64)
        steps = np.minimum(np.arange(count.max())[:, None], count - 1)  # (T, E)
        return cls(flat[steps + np.cumsum(count) - count], count)

    def select(self, episodes: Integers) -> PaddedPaths:
        """Return the paths with indices `episodes`, padded to the longest path among them."""
        count = self.count[episodes]
        return PaddedPaths(self.viewpoints[: count.max(), episodes], count)

    @property
    def end(self) -> NDArray[np.int64]:
        """(E,): last viewpoint of each path."""
        return self.viewpoints[-1]


# -- single metrics --------------------------------------------------------------------------------------


def path_length(paths: PaddedPaths, atlas: Atlas) -> Array:
    """Return the lengths of paths in metres, (E,). A step without an edge counts as a shortest path."""
    return atlas.distance(paths.viewpoints[:-1], paths.viewpoints[1:]).sum(axis=0)


def dtw(costs: Array, rows: Integers, columns: Integers) -> Array:
    """Return the dynamic time warping (DTW) distances of E pairs of paths, (E,).

    `costs` (T, S, E) are the distances between the viewpoints of the first and the second path. `rows` and
    `columns` (E,) are the numbers of viewpoints of the first and the second path without padding. Infinite
    costs forbid a match.

    >>> costs = np.array([[[0.0], [2.0]], [[2.0], [0.0]], [[3.0], [1.0]]])  # 3 viewpoints against 2
    >>> dtw(costs, np.array([3]), np.array([2])).tolist()
    [1.0]
    """
    num_steps, width, num_episodes = costs.shape
    totals = np.full((width + 1, num_episodes), np.inf)
    totals[0] = 0.0
    result = np.empty(num_episodes)
    episodes = np.arange(num_episodes)
    for step in range(num_steps):
        dtw_step(totals, costs[step])
        is_last = rows == step + 1
        result[is_last] = totals[columns[is_last], episodes[is_last]]
    return result


def dtw_step(totals: Array, costs: Array) -> None:
    """Replace one row of E dynamic time warping tables by the next row, in place.

    `totals` (S + 1, E) initially is 0 at index 0 and infinity elsewhere. `costs` (S, E) are the distances
    from the next viewpoint of each path to the viewpoints of its reference path.
    """
    diagonal = totals[0].copy()
    totals[0] = np.inf
    for column in range(1, len(totals)):
        above = totals[column].copy()
        np.minimum(above, diagonal, out=diagonal)
        np.minimum(diagonal, totals[column - 1], out=diagonal)
        np.add(diagonal, costs[column - 1], out=totals[column])
        diagonal = above


def ndtw(dtw_distance: Array, reference_count: Integers) -> Array:
    """Return nDTW, from 0 to 1: exp(-DTW / (3 m x number of reference viewpoints))."""
    return np.exp(-dtw_distance / (SUCCESS_WITHIN * reference_count))


def cls(nearest: Array, reference_count: Integers, *, length: Array, reference_length: Array) -> Array:
    """Return the coverage weighted by length score (CLS), from 0 to 1, (E,).

    `nearest` (S, E) are the distances in metres from each reference viewpoint to the nearest path viewpoint.
    """
    on_reference = np.arange(len(nearest))[:, None] < reference_count
    coverage = np.where(on_reference, np.exp(-nearest / SUCCESS_WITHIN), 0.0).sum(axis=0) / reference_count
    expected = coverage * reference_length
    both = expected + np.abs(expected - length)
    score = np.divide(expected, both, out=np.ones_like(both), where=both > 0)
    return coverage * score


def spl(success: Array, *, length: Array, reference_length: Array) -> Array:
    """Return SPL, success weighted by path length, relative to the reference path (docs/spec.md F.1)."""
    return success * reference_length / np.maximum(np.maximum(length, reference_length), 0.01)


def spl_shortest(success: Array, *, length: Array, shortest: Array) -> Array:
    """Return SPL, success weighted by path length, relative to the shortest distance from start to goal.

    If the shortest distance is 0, the weight is 1 for a path of length 0 and otherwise 0.
    """
    at_start = (length == 0.0).astype(float)
    return success * np.divide(shortest, np.maximum(length, shortest), out=at_start, where=shortest > 0)


# -- scores of a split -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Metrics of E episodes: one value per episode, means and confidence intervals."""

    episode_ids: tuple[str, ...]
    path_ids: tuple[str, ...]
    values: Mapping[str, Array]
    """Values of each metric, by name: one number per episode, (E,)."""
    tour_values: Mapping[str, Array] = field(default_factory=dict)
    """Contributions of the episodes to the mean of each tour metric, by name, (E,); empty without tours."""

    def __len__(self) -> int:
        return len(self.episode_ids)

    def means(self) -> dict[str, float | int]:
        """Return the mean of each metric by name (fractions or metres), and as `n` the number of episodes."""
        means: dict[str, float | int] = {name: float(values.mean()) for name, values in self.values.items()}
        means["n"] = len(self)
        return means | {name: float(values.mean()) for name, values in self.tour_values.items()}

    def first_told(self, order: Sequence[int] | None = None) -> Scores:
        """Return the scores of the first instruction of every path, without tour metrics.

        Several instructions describe each path. The path is new to a memory only at the first of them.
        `order` are the episode indices in the order in which the episodes were run, by default 0 to E - 1.
        """
        rows = first_told_rows(self.path_ids, order)
        return Scores(
            episode_ids=tuple(self.episode_ids[row] for row in rows),
            path_ids=tuple(self.path_ids[row] for row in rows),
            values={name: values[rows] for name, values in self.values.items()},
        )

    def intervals(self, *, draws: int, seed: int = 0, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return bootstrap confidence intervals of the means, by metric: (lower, upper).

        `draws` is the number of bootstrap samples, and `level` the confidence level. Reference paths are
        resampled, because instructions of one path are not independent. Tour metrics have no intervals,
        because episodes of a tour are not independent either.
        """
        if draws < 1 or seed < 0:
            raise ConfigError(
                f"{draws} draws with seed {seed}: expected at least 1 draw and no negative seed"
            )
        cluster = np.unique(self.path_ids, return_inverse=True)[1]
        size = np.bincount(cluster).astype(float)
        sums = np.stack([np.bincount(cluster, weights=values) for values in self.values.values()], axis=1)
        generator = np.random.default_rng(seed)
        equal = np.full(len(size), 1 / len(size))
        samples = (generator.multinomial(len(size), equal) for _ in range(draws))
        means = np.stack([times @ sums / (times @ size) for times in samples])  # (draws, metrics)
        edges = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return {name: (float(low), float(high)) for name, low, high in zip(self.values, *edges, strict=True)}


def first_told_rows(path_ids: Sequence[Hashable], order: Sequence[int] | None = None) -> list[int]:
    """Return the index of the first episode of each path, ascending; `Scores.first_told` explains `order`.

    >>> first_told_rows(["a", "a", "b"]), first_told_rows(["a", "a", "b"], order=[2, 1, 0])
    ([0, 2], [1, 2])
    """
    first: dict[Hashable, int] = {}
    for row in range(len(path_ids)) if order is None else order:
        first.setdefault(path_ids[row], row)
    return sorted(first.values())


def score(
    pairs: Sequence[tuple[Episode, Prediction]],
    atlas: Atlas,
    *,
    success_rule: SuccessRule = "trusted",
    objects: Mapping[str, frozenset[str]] | None = None,
    tours: Sequence[Tour] | None = None,
    file: object = "predictions",
    annotations: object = "annotations",
) -> Scores:
    """Return the scores of pairs of an episode and its prediction; see `score_paths` for the options."""
    episodes = [episode for episode, _ in pairs]
    names = [[viewpoint for viewpoint, _, _ in prediction.trajectory] for _, prediction in pairs]
    return score_paths(
        episodes,
        _locate_paths(episodes, names, atlas, file),
        atlas,
        success_rule=success_rule,
        objects=objects,
        tours=tours,
        file=file,
        annotations=annotations,
    )


def score_paths(
    episodes: Sequence[Episode],
    paths: Sequence[Sequence[int]],
    atlas: Atlas,
    *,
    success_rule: SuccessRule = "trusted",
    objects: Mapping[str, frozenset[str]] | None = None,
    tours: Sequence[Tour] | None = None,
    file: object = "predictions",
    annotations: object = "annotations",
) -> Scores:
    """Return the scores of one path per episode, given as viewpoint indices of `atlas`.

    `success_rule` affects dialogs only. With `objects` (`<scene>_<viewpoint>` -> object ids), an episode
    succeeds if its target object is visible from the last viewpoint. With `tours`, tour metrics are added.
    Error messages name the sources of the paths (`file`) and of the episodes (`annotations`).
    """
    if not episodes:
        raise DataError(f"{file}: no episodes to score")
    for episode in episodes:
        if episode.goal_withheld:
            fault = "is a test episode: only the leaderboard knows its goal"
            raise DataError(f"{annotations}: episode {episode.episode_id} {fault}")
    names = [episode.reference_path for episode in episodes]
    references = PaddedPaths.from_paths(_locate_paths(episodes, names, atlas, annotations))
    predicted = PaddedPaths.from_paths(paths)
    for row in np.flatnonzero(predicted.viewpoints[0] != references.viewpoints[0])[:1]:
        start, episode = atlas.name(predicted.viewpoints[0, row])[1], episodes[row]
        raise DataError(f"{file}: episode {episode.episode_id}: starts at '{start}', not '{episode.start}'")
    _check_finite(path_length(predicted, atlas), episodes, file, "its trajectory is disconnected")
    _check_finite(path_length(references, atlas), episodes, annotations, "its reference path is disconnected")
    values = _metric_values(episodes, predicted, references, atlas, success_rule, objects, annotations)
    return Scores(
        tuple(episode.episode_id for episode in episodes),
        tuple(episode.path_id for episode in episodes),
        values,
        {} if tours is None else _tour_values(tours, episodes, predicted, references, values, atlas),
    )


def _locate_paths(
    episodes: Sequence[Episode], paths: Sequence[Sequence[str]], atlas: Atlas, file: object
) -> list[list[int]]:
    """Return viewpoint indices for viewpoint ids. Errors name the episode of an unknown viewpoint."""
    try:
        scenes = (episode.scene_id for episode in episodes)
        return atlas.locate_all(zip(scenes, paths, strict=True))
    except WorldError:
        for episode, path in zip(episodes, paths, strict=True):
            with prefix_errors(file=file, record=f"episode {episode.episode_id}"):
                atlas.locate(episode.scene_id, path)
        raise


def _check_finite(metres: Array, episodes: Sequence[Episode], file: object, fault: str) -> None:
    """Raise `DataError`, which states `fault`, if a distance in metres (E,) is infinite."""
    for row in np.flatnonzero(np.isinf(metres))[:1]:
        raise DataError(f"{file}: episode {episodes[row].episode_id}: {fault}")


def _metric_values(
    episodes: Sequence[Episode],
    predicted: PaddedPaths,
    references: PaddedPaths,
    atlas: Atlas,
    success_rule: SuccessRule,
    objects: Mapping[str, frozenset[str]] | None,
    annotations: object,
) -> dict[str, Array]:
    """Return the values (E,) of every metric of E episodes, by name."""
    length, reference_length = path_length(predicted, atlas), path_length(references, atlas)
    to_goal = atlas.distance(predicted.viewpoints, references.end)  # (T, E)
    is_goal = to_goal < SUCCESS_WITHIN  # (T, E), whether a stop there is a success
    progress = to_goal[0] - to_goal[-1]
    is_dialog = isinstance(episodes[0], DialogEpisode)
    if is_dialog:
        names = [episode.goals or (episode.goal,) for episode in episodes]
        ends = PaddedPaths.from_paths(_locate_paths(episodes, names, atlas, annotations)).viewpoints
        to_end = np.stack([atlas.distance(step, ends).min(axis=0) for step in predicted.viewpoints])
        _check_finite(to_end[0], episodes, annotations, "its end panoramas are out of reach")
        progress = to_end[0] - to_end[-1]
        if success_rule == "end-panos":
            to_goal, is_goal = to_end, to_end == 0
        elif not all(isinstance(episode, DialogEpisode) and episode.planner_path for episode in episodes):
            raise ConfigError("dialogs without planner path have no trusted path; use --success end-panos")
    if objects is not None:
        is_goal = _sees_object(episodes, predicted, atlas, objects)

    dtw_distance, coverage = np.empty(len(length)), np.empty(len(length))
    for rows, path, reference, costs in _chunk_episodes(predicted, references, atlas):
        dtw_distance[rows] = dtw(costs, path.count, reference.count)
        lengths = {"length": length[rows], "reference_length": reference_length[rows]}
        coverage[rows] = cls(costs.min(axis=0), reference.count, **lengths)
    success, similarity = is_goal[-1].astype(float), ndtw(dtw_distance, references.count)
    to_shortest = spl_shortest(success, length=length, shortest=to_goal[0])
    to_reference = spl(success, length=length, reference_length=reference_length)
    return {
        "tl": length,
        "ne": to_goal[-1],
        "osr": is_goal.any(axis=0).astype(float),
        "sr": success,
        "spl": to_shortest if is_dialog else to_reference,
        "spl_shortest": to_shortest,
        "cls": coverage,
        "ndtw": similarity,
        "sdtw": success * similarity,
        "gp": progress,
        "steps": (predicted.count - 1).astype(float),
        **({"sr_end": (to_end[-1] == 0).astype(float)} if is_dialog else {}),
    }


def _sees_object(
    episodes: Sequence[Episode], paths: PaddedPaths, atlas: Atlas, objects: Mapping[str, frozenset[str]]
) -> Mask:
    """Return a mask (T, E): whether the episode's target object is visible from each path viewpoint."""
    is_visible = [
        [episode.object_id in objects.get("_".join(atlas.name(viewpoint)), ()) for viewpoint in path]
        for episode, path in zip(episodes, paths.viewpoints.T, strict=True)
    ]
    return np.array(is_visible).T


def _chunk_episodes(
    predicted: PaddedPaths, references: PaddedPaths, atlas: Atlas
) -> Iterator[tuple[Integers, PaddedPaths, PaddedPaths, Array]]:
    """Divide episodes into groups of similar path lengths, so that little padding is needed.

    Yield episode indices (E,), predicted paths, reference paths, and the distances (T, S, E) between them.
    """
    order = np.lexsort((-predicted.count, references.count))
    for group in np.split(order, np.flatnonzero(np.diff(references.count[order])) + 1):
        while len(group):
            size = max(1, MAX_COSTS // int(references.count[group[0]] * predicted.count[group[0]]))
            rows, group = group[:size], group[size:]
            path, reference = predicted.select(rows), references.select(rows)
            yield rows, path, reference, atlas.distance(path.viewpoints[:, None], reference.viewpoints[None])


def _tour_values(
    tours: Sequence[Tour],
    episodes: Sequence[Episode],
    predicted: PaddedPaths,
    references: PaddedPaths,
    values: Mapping[str, Array],
    atlas: Atlas,
) -> dict[str, Array]:
    """Return the contribution of each episode to the means t-nDTW, t-SR and t-SPL (docs/spec.md H.4).

    The weight of a tour is its number of episodes. For t-nDTW, all paths of a tour are compared as one path,
    and each episode contributes the result. For t-SR and t-SPL, the weight of an episode within its tour is
    proportional to its path length divided by its reference length, but at least 1. Episodes that are in no
    tour contribute 0.
    """
    row_of = {episode.episode_id: row for row, episode in enumerate(episodes)}
    toured = [(tour, name) for tour in tours for name in tour.episode_ids]
    if not toured:
        raise DataError("the tours hold no episodes")
    for tour, name in toured:
        if name not in row_of:
            raise DataError(f"a tour of scene '{tour.scene_id}' names episode {name}, which was not scored")
    rows = np.array([row_of[name] for _, name in toured])
    sizes = np.array([len(tour) for tour in tours if tour.episode_ids])
    number = np.repeat(np.arange(len(sizes)), sizes)  # of the tour, for every toured episode
    is_first, is_last = np.diff(number, prepend=-1) > 0, np.diff(number, append=len(sizes)) > 0

    paths, plans = predicted.select(rows), references.select(rows)
    distance = np.bincount(number, weights=_tour_dtw(paths, plans, atlas, is_first, is_last))
    similarity = np.exp(-distance / (SUCCESS_WITHIN * np.bincount(number, weights=plans.count)))
    reference_length = np.maximum(path_length(plans, atlas), 0.01)
    ratio = np.maximum(values["tl"][rows], reference_length) / reference_length
    weight = ratio * (sizes / np.bincount(number, weights=ratio))[number]
    parts = (similarity[number], weight * values["sr"][rows], weight * values["spl"][rows])
    contributions = {name: np.zeros(len(episodes)) for name in TOUR_METRICS}
    for contribution, part in zip(contributions.values(), parts, strict=True):
        np.add.at(contribution, rows, part * (len(episodes) / len(rows)))
    return contributions


def _tour_dtw(
    predicted: PaddedPaths, references: PaddedPaths, atlas: Atlas, is_first: Mask, is_last: Mask
) -> Array:
    """Return the DTW distance of each episode, whose sum over a tour is the DTW distance of the tour.

    Only viewpoints of the same episode may match. The starts of path and reference match only each other,
    except in the first episode of a tour. The ends match only each other, except in the last episode.
    """
    distances = np.empty(len(is_first))
    for rows, path, reference, costs in _chunk_episodes(predicted, references, atlas):
        step, episodes, last = np.arange(len(costs))[:, None], np.arange(len(rows)), reference.count - 1
        costs[:, 0][(step > 0) & ~is_first[rows]] = np.inf
        ends = costs[:, last, episodes]  # (T, rows), a copy
        costs[:, last, episodes] = np.where((step < path.count - 1) & ~is_last[rows], np.inf, ends)
        distances[rows] = dtw(costs, path.count, reference.count)
    return distances
