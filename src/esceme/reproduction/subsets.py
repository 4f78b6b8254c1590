"""Subsets of episodes by what had been visited in their scene before, and the scores of rows on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from esceme.evaluation.compare import Interval, bootstrap_interval
from esceme.evaluation.result import EpisodeResult, Result
from esceme.tasks.episode import Episode

LAST = 10**6
VISITS = ((1, 5), (6, 15), (16, 30), (31, 60), (61, 120), (121, LAST))
"""First and last visit of groups of episodes."""


class SubsetScore(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of a measure on a subset of episodes, and its difference to another row, in per cent."""

    episodes: int
    """Number of episodes that are in the subset for at least one seed."""
    mean: float
    difference: float | None = None
    over_paths: tuple[float, float] | None = None
    over_scenes: tuple[float, float] | None = None


def select_subsets(result: Result, episodes: Mapping[str, Episode]) -> dict[str, list[str]]:
    """Return ids of episodes by what the agent of `result` had visited before, and by visit number.

    What earlier reference paths contain does not depend on the agent: "goal on no earlier reference path" is
    the same subset for all agents in one order of episodes.
    """
    by_scene: dict[str, list[EpisodeResult]] = {}
    for episode in result.episodes:
        by_scene.setdefault(episode.scene, []).append(episode)
    subsets: dict[str, list[str]] = {}
    for runs in by_scene.values():
        visited, walked, described, named = set[str](), set[tuple[str, ...]](), set[str](), set[str]()
        for run in sorted(runs, key=lambda run: run.visit):
            reference = episodes[run.id].reference_path
            path = tuple(viewpoint for viewpoint, _, _ in run.trajectory)
            applies = {
                "first instruction of a path": run.path not in described,
                "reference path not walked before": reference not in walked,
                "some reference viewpoint never visited": not set(reference) <= visited,
                "goal never visited": reference[-1] not in visited,
                "goal on no earlier reference path": reference[-1] not in named,
                **{
                    f"visits {low} to {high if high < LAST else 'last'}": low <= run.visit <= high
                    for low, high in VISITS
                },
            }
            for label, is_in in applies.items():
                subsets.setdefault(label, []).extend([run.id] if is_in else [])
            described.add(run.path)
            named.update(reference)
            visited.update(path)
            walked.add(path)
    return {label: ids for label, ids in subsets.items() if ids}


def score_subsets(
    subsets: Sequence[Mapping[str, Sequence[str]]],
    results: Sequence[Result],
    base: Sequence[Result] | None,
    measure: str,
) -> dict[str, SubsetScore]:
    """Return the scores of a row on subsets; the subsets, results and those of the other row are per seed.

    An episode counts once, with its mean over the seeds for which it is in the subset.
    """
    clusters = {episode.id: (episode.path, episode.scene) for episode in results[0].episodes}
    found = {}
    for label in subsets[0]:
        ids = [of_seed.get(label, ()) for of_seed in subsets]
        values = _means(ids, results, measure)
        score = SubsetScore(episodes=len(values), mean=100 * fmean(values.values()))
        if base is not None:
            others = _means(ids, base, measure)
            gains = [values[key] - others[key] for key in values]
            over_paths, over_scenes = (
                _edges(bootstrap_interval(gains, [clusters[key][part] for key in values])) for part in (0, 1)
            )
            score = msgspec.structs.replace(
                score, difference=100 * fmean(gains), over_paths=over_paths, over_scenes=over_scenes
            )
        found[label] = score
    return found


def _means(ids: Sequence[Sequence[str]], results: Sequence[Result], measure: str) -> dict[str, float]:
    """Return the mean of a measure over seeds for every episode, by id."""
    values: dict[str, list[float]] = {}
    for of_seed, result in zip(ids, results, strict=False):
        scores = {episode.id: episode.scores[measure] for episode in result.episodes}
        for key in of_seed:
            values.setdefault(key, []).append(scores[key])
    return {key: fmean(found) for key, found in values.items()}


def _edges(interval: Interval | None) -> tuple[float, float] | None:
    return None if interval is None else (100 * interval.low, 100 * interval.high)
