"""The measures of the field over whole prediction files: TL NE OSR SR SPL CLS nDTW SDTW GP, and of tours.

Everything is array code over many episodes at once: walks are integers of an atlas, padded by repeating
their last viewpoint, with episodes along the last axis (T, E).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError, WorldError, blaming
from esceme.tasks.catalogue import SuccessRule
from esceme.tasks.episode import SUCCESS_WITHIN, DialogEpisode, Episode
from esceme.tasks.submission import Prediction
from esceme.tasks.tours import Tour
from esceme.world.atlas import Atlas

MEANS = ("tl", "ne", "osr", "sr", "spl", "spl_shortest", "cls", "ndtw", "sdtw", "gp", "steps")
"""Every measure that is the mean of a value per episode."""
TOUR_MEANS = ("t_ndtw", "t_sr", "t_spl")
"""Measures of tours: the means of what every episode adds to them."""
CELLS_AT_ONCE = 400_000
"""Distances held at a time: a few megabytes, which the processor's caches keep."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Walks:
    """Many walks as integers of an atlas."""

    viewpoints: NDArray[np.int64]
    """(T, E), padded by repeating the last viewpoint."""
    count: NDArray[np.int64]
    """(E,): how many viewpoints each walk has."""

    def of(self, chosen: NDArray[np.integer]) -> Walks:
        """Some of the walks, trimmed to the longest of them."""
        count = self.count[chosen]
        return Walks(self.viewpoints[: count.max(), chosen], count)

    @property
    def end(self) -> NDArray[np.int64]:
        """Where each walk ends (E,)."""
        return self.viewpoints[-1]


def pad_walks(flat: NDArray[np.int64], count: NDArray[np.int64]) -> Walks:
    """Walks that lie end to end in `flat`, `count` viewpoints each, as one array."""
    steps = np.minimum(np.arange(count.max())[:, None], count - 1)  # (T, E)
    return Walks(flat[steps + np.cumsum(count) - count], count)


def locate_walks(paths: Iterable[tuple[str, Sequence[str]]], atlas: Atlas) -> Walks:
    """Walks given as (scene, viewpoints), consecutive equal viewpoints merged."""
    flat, count = atlas.locate_all(paths)
    first = np.cumsum(count) - count
    kept = np.ones(len(flat), dtype=bool)
    kept[1:] = flat[1:] != flat[:-1]
    kept[first] = True
    return pad_walks(flat[kept], np.add.reduceat(kept, first, dtype=np.int64))


# -- one measure each ------------------------------------------------------------------------------------


def length(walks: Walks, atlas: Atlas) -> Array:
    """Metres walked; a step between viewpoints that share no edge counts as the shortest way."""
    return atlas.distance(walks.viewpoints[:-1], walks.viewpoints[1:]).sum(axis=0)


def dtw(costs: Array, rows: NDArray[np.integer], columns: NDArray[np.integer]) -> Array:
    """Dynamic time warping of many pairs at once.

    `costs` (T, S, E) are the distances between the T viewpoints of a walk and the S of its reference; `rows`
    and `columns` (E,) are the true lengths. Infinite costs forbid a match.

    >>> costs = np.array([[[0.0], [2.0]], [[2.0], [0.0]], [[3.0], [1.0]]])  # 3 steps against 2
    >>> dtw(costs, np.array([3]), np.array([2])).tolist()
    [1.0]
    """
    steps, width, episodes = costs.shape
    best = np.full((width + 1, episodes), np.inf)
    best[0] = 0.0
    result = np.empty(episodes)
    every = np.arange(episodes)
    for step in range(steps):
        warp(best, costs[step])
        done = rows == step + 1
        result[done] = best[columns[done], every[done]]
    return result


def warp(best: Array, costs: Array) -> None:
    """Go on by one viewpoint in a dynamic time warping of many pairs, in place.

    `best` (S + 1, E) begins with zeros in row 0 and is infinite below; `costs` (S, E) are the distances
    between the viewpoints reached and those of the references.
    """
    diagonal = best[0].copy()
    best[0] = np.inf
    for column in range(1, len(best)):
        above = best[column].copy()
        np.minimum(above, diagonal, out=diagonal)
        np.minimum(diagonal, best[column - 1], out=diagonal)
        np.add(diagonal, costs[column - 1], out=best[column])
        diagonal = above


def ndtw(warped: Array, reference_count: NDArray[np.integer]) -> Array:
    """How closely a walk follows its reference, 0 to 1: exp(-DTW / (3 m x reference viewpoints))."""
    return np.exp(-warped / (SUCCESS_WITHIN * reference_count))


def cls(nearest: Array, reference_count: NDArray[np.integer], *, walked: Array, planned: Array) -> Array:
    """Coverage weighted by length score; `nearest` (S, E) is each reference viewpoint's distance to it."""
    on_reference = np.arange(len(nearest))[:, None] < reference_count
    coverage = np.where(on_reference, np.exp(-nearest / SUCCESS_WITHIN), 0.0).sum(axis=0) / reference_count
    expected = coverage * planned
    both = expected + np.abs(expected - walked)
    score = np.divide(expected, both, out=np.ones_like(both), where=both > 0)
    return coverage * score


def spl(success: Array, walked: Array, due: Array) -> Array:
    """Success weighted by `due` metres over the metres walked, against the reference's length (spec F.1)."""
    return success * due / np.maximum(np.maximum(walked, due), 0.01)


def spl_shortest(success: Array, walked: Array, shortest: Array) -> Array:
    """Success weighted against the shortest way; where that is zero, standing still is 1, moving is 0."""
    ratio = np.divide(
        shortest, np.maximum(walked, shortest), out=(walked == 0.0).astype(float), where=shortest > 0
    )
    return success * ratio


# -- whole files -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Values per episode and their means."""

    episode_ids: tuple[str, ...]
    path_ids: tuple[str, ...]
    values: Mapping[str, Array]
    """Measure -> one number per episode (E,)."""
    toured: Mapping[str, Array] = field(default_factory=dict)
    """t-nDTW, t-SR and t-SPL -> what every episode adds to their means (E,); empty without tours."""

    def __len__(self) -> int:
        return len(self.episode_ids)

    def means(self) -> dict[str, float | int]:
        """The split's scores as plain fractions and metres, and `n`, the number of episodes."""
        means: dict[str, float | int] = {name: float(values.mean()) for name, values in self.values.items()}
        means["n"] = len(self)
        return means | {name: float(parts.mean()) for name, parts in self.toured.items()}

    def intervals(self, *, draws: int, seed: int = 0, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals of the means, resampling paths: a path's instructions are not independent.

        There are none of tours, whose episodes are not independent, either.
        """
        if draws < 1 or seed < 0:
            raise ConfigError(
                f"{draws} draws with seed {seed}: expected at least 1 draw and no negative seed"
            )
        cluster = np.unique(self.path_ids, return_inverse=True)[1]
        size = np.bincount(cluster).astype(float)
        sums = np.stack([np.bincount(cluster, weights=each) for each in self.values.values()], axis=1)
        generator = np.random.default_rng(seed)
        equal = np.full(len(size), 1 / len(size))
        drawn = (generator.multinomial(len(size), equal) for _ in range(draws))
        means = np.stack([times @ sums / (times @ size) for times in drawn])  # (draws, measures)
        edges = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return {name: (float(low), float(high)) for name, low, high in zip(self.values, *edges, strict=True)}


def score(
    pairs: Sequence[tuple[Episode, Prediction]],
    atlas: Atlas,
    *,
    success: SuccessRule = "trusted",
    objects: Mapping[str, frozenset[str]] | None = None,
    tours: Sequence[Tour] | None = None,
    file: object = "predictions",
    annotations: object = "annotations",
) -> Scores:
    """Score every episode's walk against its reference.

    `success` decides what counts in a dialog (CVDN): within 3 m of the trusted path's end, or in one of the
    end panoramas. With `objects` (REVERIE), success is seeing the target object where the agent stopped.
    """
    pairs = list(pairs)
    if not pairs:
        raise DataError(f"{file}: no episodes to score")
    for episode, _ in pairs:
        if episode.goal_withheld:
            raise DataError(
                f"{annotations}: episode {episode.episode_id} is a test episode: "
                "only the leaderboard knows its goal"
            )
    walked = _walks(pairs, lambda _, walk: [place for place, _, _ in walk.trajectory], atlas, file)
    planned = _walks(pairs, lambda episode, _: episode.reference_path, atlas, annotations)
    if (astray := walked.viewpoints[0] != planned.viewpoints[0]).any():
        episode, prediction = pairs[int(np.flatnonzero(astray)[0])]
        raise DataError(
            f"{file}: episode {episode.episode_id}: starts at '{prediction.path[0]}', not '{episode.start}'"
        )
    _refuse(pairs, np.isinf(length(walked, atlas)), file, "no way leads along its trajectory")
    _refuse(pairs, np.isinf(length(planned, atlas)), annotations, "no way leads along its reference path")
    values = _values(pairs, walked, planned, atlas, success, objects, annotations)
    return Scores(
        episode_ids=tuple(episode.episode_id for episode, _ in pairs),
        path_ids=tuple(episode.path_id for episode, _ in pairs),
        values=values,
        toured={} if tours is None else tour_parts(tours, pairs, walked, planned, values, atlas),
    )


def _refuse(
    pairs: Sequence[tuple[Episode, Prediction]], faulty: NDArray[np.bool_], file: object, fault: str
) -> None:
    """Raise `DataError` for the first faulty episode, if there is one."""
    for row in np.flatnonzero(faulty)[:1]:
        raise DataError(f"{file}: episode {pairs[row][0].episode_id}: {fault}")


def _walks(
    pairs: Sequence[tuple[Episode, Prediction]],
    path_of: Callable[[Episode, Prediction], Sequence[str]],
    atlas: Atlas,
    file: object,
) -> Walks:
    """One path of each episode; a viewpoint that does not exist is blamed on its episode."""
    try:
        return locate_walks(((episode.scene_id, path_of(episode, walk)) for episode, walk in pairs), atlas)
    except WorldError:
        for episode, walk in pairs:
            with blaming(file=file, record=f"episode {episode.episode_id}"):
                atlas.locate(episode.scene_id, path_of(episode, walk))
        raise


def _values(
    pairs: Sequence[tuple[Episode, Prediction]],
    walked: Walks,
    planned: Walks,
    atlas: Atlas,
    success: SuccessRule,
    objects: Mapping[str, frozenset[str]] | None,
    annotations: object,
) -> dict[str, Array]:
    metres, due = length(walked, atlas), length(planned, atlas)
    start, end = planned.viewpoints[0], planned.end
    error = atlas.distance(walked.end, end)
    nearest = atlas.distance(walked.viewpoints, end).min(axis=0)
    reached, passed = error < SUCCESS_WITHIN, nearest < SUCCESS_WITHIN
    shortest = atlas.distance(start, end)
    progress = shortest - error
    extra: dict[str, Array] = {}

    is_dialog = isinstance(pairs[0][0], DialogEpisode)
    if is_dialog:
        goals = _walks(pairs, lambda each, _: each.goals or (each.goal,), atlas, annotations).viewpoints
        to_goals = np.stack([atlas.distance(step, goals).min(axis=0) for step in walked.viewpoints])  # (T, E)
        _refuse(pairs, np.isinf(to_goals[0]), annotations, "no way leads to its end panoramas")
        progress = to_goals[0] - to_goals[-1]
        extra["sr_end"] = (to_goals[-1] == 0).astype(float)
        if success == "end-panos":
            error, shortest = to_goals[-1], to_goals[0]
            reached, passed = to_goals[-1] == 0, (to_goals == 0).any(axis=0)
        elif not all(isinstance(each, DialogEpisode) and each.planner_path for each, _ in pairs):
            raise ConfigError(
                "these dialogs have no planner path, so no trusted path; use --success end-panos"
            )
    if objects is not None:
        reached, passed = _object_success(pairs, objects)

    hit = reached.astype(float)
    warped, covered = _compare(walked, planned, atlas, metres, due)
    follow = ndtw(warped, planned.count)
    due_spl = spl_shortest(hit, metres, shortest)
    return {
        "tl": metres,
        "ne": error,
        "osr": passed.astype(float),
        "sr": hit,
        "spl": due_spl if is_dialog else spl(hit, metres, due),
        "spl_shortest": due_spl,
        "cls": covered,
        "ndtw": follow,
        "sdtw": hit * follow,
        "gp": progress,
        "steps": (walked.count - 1).astype(float),
        **extra,
    }


def _object_success(
    pairs: Sequence[tuple[Episode, Prediction]], objects: Mapping[str, frozenset[str]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether the target object can be seen where the agent stopped, and anywhere on its way."""
    seen = [
        [
            episode.object_id in objects.get(f"{episode.scene_id}_{viewpoint}", ())
            for viewpoint in prediction.path
        ]
        for episode, prediction in pairs
    ]
    return np.array([each[-1] for each in seen]), np.array([any(each) for each in seen])


def _chunks(walked: Walks, planned: Walks) -> Iterator[NDArray[np.int64]]:
    """Episodes of similar length together, few enough that their distances fit the processor's caches."""
    order = np.lexsort((-walked.count, planned.count))
    border = np.flatnonzero(np.diff(planned.count[order])) + 1
    for group in np.split(order, border):
        while len(group):
            cells = int(planned.count[group[0]] * walked.count[group[0]])
            size = max(1, CELLS_AT_ONCE // cells)
            yield group[:size]
            group = group[size:]


def _compare(walked: Walks, planned: Walks, atlas: Atlas, metres: Array, due: Array) -> tuple[Array, Array]:
    """DTW and CLS of every episode."""
    warped, covered = np.empty(len(metres)), np.empty(len(metres))
    for chunk in _chunks(walked, planned):
        walk, plan = walked.of(chunk), planned.of(chunk)
        costs = atlas.distance(walk.viewpoints[:, None], plan.viewpoints[None])  # (T, S, E)
        warped[chunk] = dtw(costs, walk.count, plan.count)
        covered[chunk] = cls(costs.min(axis=0), plan.count, walked=metres[chunk], planned=due[chunk])
    return warped, covered


# -- tours -----------------------------------------------------------------------------------------------


class OnTours(NamedTuple):
    """Episodes tour by tour (E,)."""

    rows: NDArray[np.int64]
    """Which of the scored episodes each is."""
    tour: NDArray[np.int64]
    opens: NDArray[np.bool_]
    closes: NDArray[np.bool_]


def tour_parts(
    tours: Sequence[Tour],
    pairs: Sequence[tuple[Episode, Prediction]],
    walked: Walks,
    planned: Walks,
    values: Mapping[str, Array],
    atlas: Atlas,
) -> dict[str, Array]:
    """What every episode adds to t-nDTW, t-SR and t-SPL: their means are the split's (spec H.4).

    A tour weighs as much as it has episodes. For t-nDTW it is warped as one long walk, and that is what each
    of its episodes adds. For t-SR and t-SPL an episode weighs, among those of its tour, as many times as its
    walk is longer than its reference. Episodes on no tour add nothing, and do not count.
    """
    on = _on_tours(tours, pairs)
    walks, plans = walked.of(on.rows), planned.of(on.rows)
    warped = np.bincount(on.tour, weights=_tied_dtw(walks, plans, atlas, on.opens, on.closes))
    followed = np.exp(-warped / (SUCCESS_WITHIN * np.bincount(on.tour, weights=plans.count)))
    due = np.maximum(length(plans, atlas), 0.01)
    longer = np.maximum(values["tl"][on.rows], due) / due
    weight = longer * (np.bincount(on.tour) / np.bincount(on.tour, weights=longer))[on.tour]
    parts = {
        "t_ndtw": followed[on.tour],
        "t_sr": weight * values["sr"][on.rows],
        "t_spl": weight * values["spl"][on.rows],
    }
    spread = {name: np.zeros(len(pairs)) for name in TOUR_MEANS}
    for name, part in parts.items():
        np.add.at(spread[name], on.rows, part * (len(pairs) / len(on.rows)))
    return spread


def _on_tours(tours: Sequence[Tour], pairs: Sequence[tuple[Episode, Prediction]]) -> OnTours:
    row_of = {episode.episode_id: row for row, (episode, _) in enumerate(pairs)}
    found = []
    for number, tour in enumerate(tour for tour in tours if tour.episode_ids):
        for place, name in enumerate(tour.episode_ids):
            if name not in row_of:
                raise DataError(
                    f"a tour of scene '{tour.scene_id}' names episode {name}, which was not scored"
                )
            found.append((row_of[name], number, place == 0, place == len(tour) - 1))
    if not found:
        raise DataError("the tours hold no episodes")
    return OnTours(*(np.array(column) for column in zip(*found, strict=True)))


def _tied_dtw(
    walked: Walks, planned: Walks, atlas: Atlas, opens: NDArray[np.bool_], closes: NDArray[np.bool_]
) -> Array:
    """DTW of every episode, its ends tied together but where it opens or closes its tour.

    Their sum is that of the tour as one walk, whose warping may not cross the border between two episodes.
    """
    warped = np.empty(len(opens))
    for chunk in _chunks(walked, planned):
        walk, plan = walked.of(chunk), planned.of(chunk)
        costs = atlas.distance(walk.viewpoints[:, None], plan.viewpoints[None])  # (T, S, E)
        step, every, last = np.arange(len(costs))[:, None], np.arange(len(chunk)), plan.count - 1
        costs[:, 0][(step > 0) & ~opens[chunk]] = np.inf
        ends = costs[:, last, every]  # (T, E), a copy
        costs[:, last, every] = np.where((step < walk.count - 1) & ~closes[chunk], np.inf, ends)
        warped[chunk] = dtw(costs, walk.count, plan.count)
    return warped
