"""A result: every walk of an evaluation with its scores, and all that determined them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from esceme.errors import DataError
from esceme.evaluation.context import EvaluationContext
from esceme.files import read_json, write_json
from esceme.metrics import TOUR_METRICS, Scores, score
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.reverie import read_objects
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

FORMAT = "esceme-result-1"
RESULT = "result.json"
PREDICTIONS = "predictions.json"


class EpisodeResult(msgspec.Struct, frozen=True, kw_only=True):
    """One episode of a result."""

    id: str
    scene: str
    path: str
    """Shared by instructions of the same walk."""
    visit: int
    """The how-manyth episode in its scene (or tour) it was, from 1."""
    decisions: int
    stopped: bool
    trajectory: list[tuple[str, float, float]]
    """[viewpoint, heading, elevation] of every pose, as prediction files have them."""
    scores: dict[str, float]
    """Measure -> value; empty where the goal is withheld. Of tours: what it adds to the mean (spec H.4)."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation found."""

    format: str = FORMAT
    facts: dict[str, Any]
    """Weights and data (as hashes), protocol, schedule, order, seed, limits, version."""
    means: dict[str, float]
    episodes: list[EpisodeResult]


def make_result(stage: EvaluationContext, walks: Sequence[Trajectory]) -> Result:
    """Score walks, one per episode; nothing is scored without goals."""
    atlas = stage.atlas
    trajectories = {walk.episode.episode_id: trajectory_of(walk, atlas) for walk in walks}
    withheld = any(walk.episode.goal_withheld for walk in walks)
    scores = None if withheld else _scores(stage, walks, trajectories)
    values = {} if scores is None else {**scores.values, **scores.tour_values}
    episodes = [
        EpisodeResult(
            id=walk.episode.episode_id,
            scene=walk.episode.scene_id,
            path=walk.episode.path_id,
            visit=walk.visit,
            decisions=walk.num_decisions,
            stopped=walk.stopped,
            trajectory=trajectories[walk.episode.episode_id],
            scores={name: float(each[row]) for name, each in values.items()},
        )
        for row, walk in enumerate(walks)
    ]
    means = {} if scores is None else {name: float(value) for name, value in scores.means().items()}
    return Result(facts=stage.facts, means=means, episodes=episodes)


def save_result(result: Result, folder: Path) -> None:
    """Write `predictions.json`, which every tool of the field reads, and `result.json`, the whole."""
    predictions = [{"instr_id": each.id, "trajectory": each.trajectory} for each in result.episodes]
    write_json(folder / PREDICTIONS, predictions)
    write_json(folder / RESULT, result)


def read_result(path: str | Path) -> Result:
    """A result file, or that of an evaluation's folder."""
    path = Path(path)
    path = path / RESULT if path.is_dir() else path
    result = read_json(path, Result)
    if result.format != FORMAT:
        raise DataError(f"{path}: format '{result.format}', expected '{FORMAT}'")
    wrong = [each.id for each in result.episodes if not all(map(math.isfinite, each.scores.values()))]
    if wrong:
        raise DataError(f"{path}: episode {wrong[0]} has scores that are no numbers")
    return result


def scores_of(result: Result) -> Scores:
    """The scores of a result as arrays, as they were when it was made; none where goals are withheld."""
    values = {
        name: np.array([each.scores[name] for each in result.episodes]) for name in result.episodes[0].scores
    }
    toured = {name: values.pop(name) for name in TOUR_METRICS if name in values}
    return Scores(
        episode_ids=tuple(each.id for each in result.episodes),
        path_ids=tuple(each.path for each in result.episodes),
        values=values,
        tour_values=toured,
    )


def trajectory_of(walk: Trajectory, atlas: Atlas) -> list[tuple[str, float, float]]:
    """A walk as prediction files have it."""
    return [
        (atlas.name(viewpoint)[1], float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view]))
        for viewpoint, view in walk.poses
    ]


def _scores(
    stage: EvaluationContext,
    walks: Sequence[Trajectory],
    trajectories: Mapping[str, list[tuple[str, float, float]]],
) -> Scores:
    pairs = [
        (walk.episode, Prediction(name, tuple(TrajectoryPoint(*each) for each in trajectories[name])))
        for walk in walks
        for name in (walk.episode.episode_id,)
    ]
    task = TASKS[str(stage.facts["task"])]
    return score(
        pairs,
        stage.atlas,
        success_rule=task.success_rule,
        objects=_objects(stage) if task.scores_objects else None,
        tours=stage.tours,
        file=stage.plan.run,
        annotations=stage.annotations,
    )


def _objects(stage: EvaluationContext) -> Mapping[str, frozenset[str]]:
    path = DataFolder(stage.plan.data).objects
    if path is None:
        raise DataError(f"{stage.plan.data}: REVERIE counts success by objects, and there is no objects file")
    return read_objects(path)
