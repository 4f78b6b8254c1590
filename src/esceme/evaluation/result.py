"""Result of an evaluation: every trajectory with its scores, and everything that determines them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from esceme.errors import DataError
from esceme.evaluation.context import EvaluationContext
from esceme.files import PrintableText, pause_garbage_collection, read_json, write_json
from esceme.metrics import FRACTIONS, TOUR_METRICS, Scores, score_paths
from esceme.tasks.catalogue import Task
from esceme.tasks.episode import Angle
from esceme.tasks.folder import DataFolder
from esceme.tasks.reverie import read_objects
from esceme.tasks.tours import Tour
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS

FORMAT = "esceme-result-1"
RESULT = "result.json"
PREDICTIONS = "predictions.json"
RANGES = {**dict.fromkeys(FRACTIONS, (0.0, 1.0)), **dict.fromkeys(("tl", "ne", "steps"), (0.0, math.inf))}
"""Least and greatest value of metrics."""
ROUNDING = 1e-9


class EpisodeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Trajectory and scores of one episode."""

    id: PrintableText
    scene: PrintableText
    path: PrintableText
    """Id of the reference path. Several instructions may describe the same path."""
    visit: Annotated[int, msgspec.Meta(ge=1)]
    """Number of the episode in its scene (or tour), counted from 1."""
    decisions: Annotated[int, msgspec.Meta(ge=1)]
    """Number of decisions, including STOP."""
    stopped: bool
    trajectory: list[tuple[PrintableText, Angle, Angle]]
    """(viewpoint, heading, elevation) of every pose, with angles in radians, as in prediction files."""
    recomputed: int | None = None
    """Number of decisions that precision `guarded` computed again; None for other precisions."""
    scores: dict[str, float]
    """Value of each metric, by name; empty if the goal is withheld. The value of a tour metric is the
    episode's contribution to the mean (docs/spec.md H.4)."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an evaluation, as stored in `result.json`."""

    format: str = FORMAT
    facts: dict[str, Any]
    """Everything that determines the result: hashes of weights and data, protocol, seed, limits, version."""
    means: dict[str, float]
    """Mean of each metric over the episodes, by name; empty if goals are withheld."""
    episodes: list[EpisodeResult]


def make_result(context: EvaluationContext, trajectories: Sequence[Trajectory]) -> Result:
    """Return the result, given one trajectory per episode. If any goal is withheld, there are no scores."""
    values: dict[str, Any] = {}
    means: dict[str, float] = {}
    if not any(trajectory.episode.goal_withheld for trajectory in trajectories):
        scores = score_trajectories(
            trajectories,
            context.atlas,
            context.task,
            objects=load_objects(DataFolder(context.config.data), context.task),
            tours=context.tours,
            file=context.config.run,
            annotations=context.annotations,
        )
        values = {**scores.values, **scores.tour_values}
        means = {name: float(mean) for name, mean in scores.means().items()}
    episodes = [
        EpisodeResult(
            id=trajectory.episode.episode_id,
            scene=trajectory.episode.scene_id,
            path=trajectory.episode.path_id,
            visit=trajectory.visit,
            decisions=trajectory.num_decisions,
            stopped=trajectory.stopped,
            trajectory=named_poses(trajectory, context.atlas),
            recomputed=trajectory.num_recomputed if context.config.precision == "guarded" else None,
            scores={name: float(column[row]) for name, column in values.items()},
        )
        for row, trajectory in enumerate(trajectories)
    ]
    return Result(facts=context.facts, means=means, episodes=episodes)


def score_trajectories(
    trajectories: Sequence[Trajectory],
    atlas: Atlas,
    task: Task,
    *,
    objects: Mapping[str, frozenset[str]] | None,
    tours: Sequence[Tour] | None = None,
    file: object = "trajectories",
    annotations: object = "annotations",
) -> Scores:
    """Return the scores of trajectories by the rules of `task`; see `score_paths`.

    `objects` maps viewpoints to visible objects, as returned by `load_objects`.
    """
    return score_paths(
        [trajectory.episode for trajectory in trajectories],
        [[viewpoint for viewpoint, _ in trajectory.poses] for trajectory in trajectories],
        atlas,
        success_rule=task.success_rule,
        objects=objects,
        tours=tours,
        file=file,
        annotations=annotations,
    )


def load_objects(data: DataFolder, task: Task) -> Mapping[str, frozenset[str]] | None:
    """Return the objects visible from each viewpoint if the task's metrics need them (REVERIE), else None."""
    if not task.scores_objects:
        return None
    if data.objects is None:
        raise DataError(
            f"{data.root}: {task.name} is scored by visible objects, and there is no objects file"
        )
    return read_objects(data.objects)


def named_poses(trajectory: Trajectory, atlas: Atlas) -> list[tuple[str, float, float]]:
    """Return (viewpoint, heading, elevation) of every pose, in radians, as in prediction files."""
    return [
        (atlas.name(viewpoint)[1], float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view]))
        for viewpoint, view in trajectory.poses
    ]


# -- files -----------------------------------------------------------------------------------------------


def save_result(result: Result, folder: Path) -> None:
    """Write `result.json`, and the trajectories in VLN's common format to `predictions.json`."""
    predictions = [{"instr_id": episode.id, "trajectory": episode.trajectory} for episode in result.episodes]
    write_json(folder / PREDICTIONS, predictions)
    write_json(folder / RESULT, result)


@pause_garbage_collection()
def read_result(path: str | Path) -> Result:
    """Return the result in a file, given the path of the file or of the evaluation's folder."""
    path = Path(path)
    path = path / RESULT if path.is_dir() else path
    result = read_json(path, Result)
    if result.format != FORMAT:
        raise DataError(f"{path}: format '{result.format}', expected '{FORMAT}'")
    _check_scores(result.means, f"{path}: means")
    for episode in result.episodes:
        _check_scores(episode.scores, f"{path}: episode {episode.id}")
    return result


def _check_scores(scores: Mapping[str, float], location: str) -> None:
    """Raise `DataError` if a score is not finite, or out of the range of its metric."""
    for name, value in scores.items():
        low, high = RANGES.get(name, (-math.inf, math.inf))
        if not math.isfinite(value) or not low - ROUNDING <= value <= high + ROUNDING:
            raise DataError(f"{location}: {name} is {value:g}, expected {low:g} to {high:g}; evaluate again")


def scores_of(result: Result) -> Scores:
    """Return the scores of a result as arrays. Scores are absent if goals are withheld."""
    values = {
        name: np.array([episode.scores[name] for episode in result.episodes])
        for name in result.episodes[0].scores
    }
    tour_values = {name: values.pop(name) for name in TOUR_METRICS if name in values}
    return Scores(
        episode_ids=tuple(episode.id for episode in result.episodes),
        path_ids=tuple(episode.path for episode in result.episodes),
        values=values,
        tour_values=tour_values,
    )
