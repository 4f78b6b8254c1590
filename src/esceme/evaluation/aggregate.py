"""Several results as one: means over seeds or orders, and the restriction to first-told instructions."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec

from esceme.errors import DataError
from esceme.evaluation.result import EpisodeResult, Result, scores_of
from esceme.metrics import TOUR_METRICS, first_told_rows


class MeanOverSeeds(NamedTuple):
    """Mean of a metric over results that differ in their seeds or orders."""

    mean: float
    std: float | None
    """Standard deviation of a sample (n - 1); None for a single result."""


def means_over_seeds(results: Sequence[Result]) -> dict[str, MeanOverSeeds]:
    """Return mean and standard deviation of each metric that all results have, by name."""
    names = [name for name in results[0].means if all(name in result.means for result in results)]
    values = {name: [result.means[name] for result in results] for name in names}
    return {
        name: MeanOverSeeds(fmean(column), stdev(column) if len(column) > 1 else None)
        for name, column in values.items()
    }


def average_results(results: Sequence[Result]) -> Result:
    """Return a result whose scores are means over `results`, episode by episode.

    Everything else is copied from the first result. Raise `DataError` if the results have different episodes.
    """
    if len(results) == 1:
        return results[0]
    by_id = [{episode.id: episode.scores for episode in result.episodes} for result in results]
    if any(scores.keys() != by_id[0].keys() for scores in by_id):
        raise DataError("results to be averaged have different episodes; evaluate them on the same ones")
    episodes = [
        msgspec.structs.replace(
            episode,
            scores={
                name: fmean(scores[episode.id][name] for scores in by_id)
                for name in episode.scores
                if all(name in scores[episode.id] for scores in by_id)
            },
        )
        for episode in results[0].episodes
    ]
    means = {name: value.mean for name, value in means_over_seeds(results).items()}
    return Result(facts=results[0].facts, means=means, episodes=episodes)


def first_told(result: Result) -> Result:
    """Return the result of the first instruction of every path, in the order in which the episodes were run.

    Several instructions describe each path. After the first of them, a memory may know the path. Tour metrics
    are left out. In the schedule `lanes`, the episodes of a result are in the order of the run. In the
    schedule `interleaved`, the visit numbers give this order.
    """
    order = sorted(range(len(result.episodes)), key=lambda row: result.episodes[row].visit)
    is_interleaved = result.facts.get("schedule") == "interleaved"
    paths = [(episode.scene, episode.path) for episode in result.episodes]
    rows = first_told_rows(paths, order if is_interleaved else None)
    episodes = [_without_tour_metrics(result.episodes[row]) for row in rows]
    restricted = msgspec.structs.replace(result, episodes=episodes, means={})
    if result.means:
        means = {name: float(mean) for name, mean in scores_of(restricted).means().items()}
        restricted = msgspec.structs.replace(restricted, means=means)
    return restricted


def _without_tour_metrics(episode: EpisodeResult) -> EpisodeResult:
    scores = {name: value for name, value in episode.scores.items() if name not in TOUR_METRICS}
    return msgspec.structs.replace(episode, scores=scores)
