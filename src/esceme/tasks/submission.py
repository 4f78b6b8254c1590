"""Prediction files: reading in all common formats, checking, and writing of leaderboard submissions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from esceme.errors import DataError, EscemeError, prefix_errors
from esceme.files import PrintableText, atomic_open, read_records, write_json
from esceme.tasks.catalogue import Task
from esceme.tasks.episode import Angle, Episode, check_path
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, nearest_view
from esceme.world.graph import SceneGraph


class TrajectoryPoint(NamedTuple):
    """Pose in a trajectory. Angles are in radians; they are None if the file has no angles."""

    viewpoint: str
    heading: float | None = None
    elevation: float | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Trajectory of an agent in one episode, as read from a prediction file."""

    episode_id: str
    trajectory: tuple[TrajectoryPoint, ...]
    object_id: str | None = None

    @property
    def path(self) -> tuple[str, ...]:
        """Viewpoint ids in order, without consecutive repetitions."""
        return tuple(viewpoint for viewpoint, _ in groupby(point.viewpoint for point in self.trajectory))


class PredictionRecord(msgspec.Struct):
    """Record of a prediction file. It has one of three id keys, and either a trajectory or a path."""

    instr_id: PrintableText | int | None = None
    inst_idx: PrintableText | int | None = None
    instruction_id: PrintableText | int | None = None
    trajectory: list[str | list[str | Angle | None]] | None = None
    path: list[str] | None = None
    predObjId: PrintableText | int | None = None  # noqa: N815 - the key of the REVERIE server


def read_predictions(path: str | Path) -> dict[str, Prediction]:
    """Read a prediction file (JSON or JSON lines) as a dict from episode id to prediction.

    A trajectory entry is `[viewpoint, heading, elevation]`, `[viewpoint]` or a viewpoint id. Agents that move
    over several edges in one step write several viewpoint ids (`["b", "c", "d"]`).
    """
    path = Path(path)
    predictions: dict[str, Prediction] = {}
    for number, record in enumerate(read_records(path, PredictionRecord)):
        ids = [i for i in (record.instr_id, record.inst_idx, record.instruction_id) if i is not None]
        if len(ids) != 1:
            raise DataError(
                f"{path}: record {number}: {len(ids)} ids; expected instr_id, inst_idx or instruction_id"
            )
        episode_id = str(ids[0])
        if episode_id in predictions:
            raise DataError(f"{path}: record {number}: id '{episode_id}' occurs twice")
        trajectory = tuple(
            _trajectory_points(record.trajectory or record.path or (), f"{path}: episode {episode_id}")
        )
        if not trajectory:
            raise DataError(f"{path}: episode {episode_id}: no trajectory; expected at least the start")
        target = None if record.predObjId is None else str(record.predObjId)
        predictions[episode_id] = Prediction(episode_id, trajectory, target)
    return predictions


def _trajectory_points(
    entries: Iterable[str | list[str | float | None]], location: str
) -> Iterable[TrajectoryPoint]:
    """Yield the poses of a trajectory in a file; errors name `location`."""
    for number, entry in enumerate(entries):
        match [entry] if isinstance(entry, str) else entry:
            case [str(viewpoint), *angles] if len(angles) <= 2 and not any(
                isinstance(a, str) for a in angles
            ):
                yield TrajectoryPoint(viewpoint, *angles)
            case [*hops] if hops and all(isinstance(hop, str) for hop in hops):
                yield from (TrajectoryPoint(str(hop)) for hop in hops)
            case _:
                raise DataError(
                    f"{location}: trajectory entry {number} is {entry}; "
                    "expected [viewpoint, heading, elevation] or viewpoints"
                )


# -- matching and checking -------------------------------------------------------------------------------


def match_predictions(
    episodes: Sequence[Episode],
    predictions: Mapping[str, Prediction],
    task: Task,
    *,
    file: object,
    partial: bool = False,
) -> list[tuple[Episode, Prediction]]:
    """Return (episode, prediction) pairs in the order of the episodes.

    RxR predictions may use the instruction id without the path id. Raises `DataError` for a prediction of an
    unknown episode, for two predictions of one episode and, unless `partial`, for an episode without a
    prediction. `file` is the file that the message names.
    """
    known = {task.submission_id(episode): episode for episode in episodes}
    known |= {episode.episode_id: episode for episode in episodes}
    unknown = [name for name in predictions if name not in known]
    if unknown:
        raise DataError(
            f"{file}: episode {unknown[0]}{_count_others(unknown)} is not among "
            f"the {len(episodes)} annotated ones; "
            "is this the right split?"
        )
    by_episode: dict[str, Prediction] = {}
    for name, prediction in predictions.items():
        if by_episode.setdefault(known[name].episode_id, prediction) is not prediction:
            raise DataError(f"{file}: episode {known[name].episode_id} is predicted twice, once as '{name}'")
    missing = [episode.episode_id for episode in episodes if episode.episode_id not in by_episode]
    if missing and not partial:
        raise DataError(
            f"{file}: no prediction for episode {missing[0]}{_count_others(missing)} of {len(episodes)}; "
            "only esceme score can leave episodes out, with --partial"
        )
    return [(e, by_episode[e.episode_id]) for e in episodes if e.episode_id in by_episode]


def _count_others(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def find_prediction_fault(
    episode: Episode, prediction: Prediction, graphs: dict[str, SceneGraph]
) -> str | None:
    """Return why a prediction is invalid (wrong start, or a step without an edge); None if it is valid."""
    path = prediction.path
    if path[0] != episode.start:
        return f"starts at '{path[0]}', expected the episode's start '{episode.start}'"
    try:
        check_path(episode.scene_id, path, graphs)
    except EscemeError as error:
        return str(error)
    return None


def check_predictions(
    pairs: Iterable[tuple[Episode, Prediction]], graphs: dict[str, SceneGraph], *, file: object
) -> None:
    """Raise a `DataError` that describes up to three invalid predictions, unless all are valid."""
    faults = [
        f"episode {episode.episode_id}: {fault}"
        for episode, prediction in pairs
        if (fault := find_prediction_fault(episode, prediction, graphs))
    ]
    if len(faults) == 1:
        raise DataError(f"{file}: {faults[0]}")
    if faults:
        rest = [f"and {len(faults) - 3} more"] if len(faults) > 3 else []
        raise DataError(f"{file}: {len(faults)} faulty predictions: {'; '.join([*faults[:3], *rest])}")


# -- writing ---------------------------------------------------------------------------------------------


def write_submission(
    path: Path, task: Task, pairs: Sequence[tuple[Episode, Prediction]], graphs: Mapping[str, SceneGraph]
) -> None:
    """Write valid predictions in the format of the task's leaderboard, atomically."""
    records = []
    for episode, prediction in pairs:
        with prefix_errors(file=path, record=f"episode {episode.episode_id}"):
            records.append(_submission_record(task, episode, prediction, graphs))
    if not task.submits_paths:
        return write_json(path, records)
    with atomic_open(path) as file:
        for record in sorted(records, key=lambda record: record[task.id_key]):
            file.write(msgspec.json.encode(record) + b"\n")


def _submission_record(
    task: Task, episode: Episode, prediction: Prediction, graphs: Mapping[str, SceneGraph]
) -> dict[str, Any]:
    name = task.submission_id(episode)
    record: dict[str, Any] = {task.id_key: _integer_id(name, task.id_key) if task.has_integer_ids else name}
    if task.submits_paths:
        return {**record, "path": prediction.path}
    record["trajectory"] = _complete_poses(episode, prediction, graphs[episode.scene_id])
    if task.scores_objects and prediction.object_id is not None:
        record["predObjId"] = _integer_id(prediction.object_id, "predObjId")
    return record


def _integer_id(text: str, key: str) -> int:
    """Return an episode id as an integer; raise `DataError` if it is not one."""
    if not text.isdecimal():
        raise DataError(f"'{text}' cannot be written as {key}: the server expects an integer")
    return int(text)


def _complete_poses(
    episode: Episode, prediction: Prediction, graph: SceneGraph
) -> list[tuple[str, float, float]]:
    """Return the trajectory with a heading and an elevation at every point (docs/spec.md A.4).

    Missing angles are computed from the moves: after a move, the agent faces the view in which the viewpoint
    was visible before the move.
    """
    view = int(nearest_view(episode.heading))
    heading, elevation = float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view])
    poses: list[tuple[str, float, float]] = []
    for point in prediction.trajectory:
        if poses and poses[-1][0] != point.viewpoint:
            here = graph.index(poses[-1][0])
            slot = int(np.flatnonzero(graph.neighbours[here] == graph.index(point.viewpoint))[0])
            view = int(graph.views[here, slot])
            heading, elevation = float(VIEW_HEADINGS[view]), float(VIEW_ELEVATIONS[view])
        heading = heading if point.heading is None else point.heading
        elevation = elevation if point.elevation is None else point.elevation
        poses.append((point.viewpoint, heading, elevation))
    return poses
