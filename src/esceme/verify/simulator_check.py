"""Compare candidates, shortest paths, teacher actions and view angles with the original simulator."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from pathlib import Path

import numpy as np

from esceme.errors import DataError, WorldError
from esceme.files import read_json
from esceme.tasks.episode import Episode, check_path
from esceme.verify.comparison import FileComparison, Json, value_or_error, without
from esceme.verify.fixtures import ReferenceData
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, angle_feature, panorama_angles
from esceme.world.graph import Candidate, NavigableLocation, SceneGraph

FILES = r"(.*/)?sim_candidates\.json\.gz"
SECTIONS = {"source", "scans", "observations", "shortest_pairs", "teacher_path_actions", "graph_stats"}
ANGLE_FEATURES = r"view_angle_feature_base([0-9]|[12][0-9]|3[0-5])"
POSE_KEYS = ("scan", "viewpoint", "viewIndex")
ANGLE_TOLERANCE = 1e-6
"""Tolerance of angles (radians) and positions (metres), which the simulator computes in single precision."""
DISTANCE_TOLERANCE = 1e-9
SUM_TOLERANCE = 1e-6
"""Tolerance in metres of the sum of the distances between all pairs of viewpoints of a scene."""


def check_simulator(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the simulator's values in a reference file `sim_candidates.json.gz` with those of our code."""
    stored, atlas = read_json(path, dict[str, Json]), references.atlas
    statistics = comparison.section(stored, "graph_stats", dict[str, Json])
    scenes = comparison.section(stored, "scans", list[str])
    comparison.add("scans", sorted(scenes), sorted(statistics), 0.0)
    for scene, counts in statistics.items():
        comparison.add("graph_stats", counts, value_or_error(_graph_statistics, scene, atlas), SUM_TOLERANCE)
    for observation in comparison.section(stored, "observations", list[dict[str, Json]]):
        ours = value_or_error(_observation, observation, atlas)
        comparison.add("observations", without(observation, POSE_KEYS), ours, ANGLE_TOLERANCE)
    for pair in comparison.section(stored, "shortest_pairs", list[dict[str, Json]]):
        ours = value_or_error(_shortest_pair, pair, atlas)
        comparison.add("shortest_pairs", without(pair, ("scan",)), ours, DISTANCE_TOLERANCE)
    angles = {key: int(match[1]) for key in stored if (match := re.fullmatch(ANGLE_FEATURES, key))}
    for key, view in angles.items():
        comparison.add(key, stored[key], panorama_angles(view).tolist(), ANGLE_TOLERANCE)
    actions = comparison.section(stored, "teacher_path_actions", list[dict[str, Json]])
    try:
        _compare_teacher(actions, references, comparison)
    except DataError as error:
        comparison.skipped.append(f"teacher_path_actions: {error}")
    comparison.unknown |= set(stored) - SECTIONS - set(angles)


def _observation(stored: Json, atlas: Atlas) -> Json:
    """Return our record of the observation at the pose that the stored record names."""
    graph, viewpoint, view = atlas.graph(stored["scan"]), stored["viewpoint"], stored["viewIndex"]
    if not isinstance(view, int) or not 0 <= view < VIEWS:
        raise WorldError(f"there is no view {view}")
    visible = [NavigableLocation(viewpoint, 0.0, 0.0, 0.0), *graph.navigable_locations(viewpoint, view)]
    return {
        "state_heading": float(VIEW_HEADINGS[view]),
        "state_elevation": float(VIEW_ELEVATIONS[view]),
        "position": _position(graph, viewpoint),
        "navigableLocations": [_location(graph, sighting) for sighting in visible],
        "candidates": [
            _candidate(graph, viewpoint, view, candidate) for candidate in graph.candidates(viewpoint)
        ],
    }


def _position(graph: SceneGraph, viewpoint: str) -> list[float]:
    return graph.positions[graph.index(viewpoint)].astype(np.float32).tolist()


def _location(graph: SceneGraph, sighting: NavigableLocation) -> Json:
    """Return our record of a navigable location."""
    return {
        "viewpointId": sighting.viewpoint,
        "ix": int(graph.record_indices[graph.index(sighting.viewpoint)]),
        "rel_heading": sighting.heading,
        "rel_elevation": sighting.elevation,
        "rel_distance": sighting.distance,
        **dict(zip("xyz", _position(graph, sighting.viewpoint), strict=True)),
    }


def _candidate(graph: SceneGraph, viewpoint: str, view: int, candidate: Candidate) -> Json:
    """Return our record of a candidate, seen by an agent at `viewpoint` that faces `view`."""
    heading = candidate.heading - float(VIEW_HEADINGS[view])
    in_view = [sighting.viewpoint for sighting in graph.navigable_locations(viewpoint, candidate.view)]
    return {
        "viewpointId": candidate.viewpoint,
        "pointId": candidate.view,
        "idx": 1 + in_view.index(candidate.viewpoint),
        "heading": heading,
        "elevation": candidate.elevation,
        "normalized_heading": candidate.heading,
        "angular_distance": candidate.angular_distance,
        "angle_feat": angle_feature(heading, candidate.elevation).tolist(),
        "position": _position(graph, candidate.viewpoint),
        "metric_distance": candidate.distance,
    }


def _shortest_pair(stored: Json, atlas: Atlas) -> Json:
    """Return the record of a shortest path. If the stored path is equally short, it is used as the path."""
    graph = atlas.graph(stored["scan"])
    distance, path = graph.distance(stored["from"], stored["to"]), stored["path"]
    if not _is_path_of_length(path, graph, stored["from"], stored["to"], distance):
        path = graph.shortest_path(stored["from"], stored["to"])
    return {
        "from": path[0],
        "to": path[-1],
        "teacher_next": path[min(1, len(path) - 1)],
        "path": path,
        "distance": distance,
    }


def _is_path_of_length(path: list[str], graph: SceneGraph, start: str, goal: str, metres: float) -> bool:
    try:
        check_path(graph.scene_id, path, {graph.scene_id: graph})
    except WorldError:
        return False
    length = fsum(graph.distance(a, b) for a, b in pairwise(path))
    return path[:1] == [start] and path[-1:] == [goal] and abs(length - metres) <= DISTANCE_TOLERANCE


def _compare_teacher(records: Sequence[Json], references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the teacher's actions along R2R paths with the stored actions.

    A teacher action is given by the time step (`Episode.expert_at`) or by the viewpoint (`expert_from`).
    """
    if not records:
        return
    by_path = {episode.path_id: episode for episode in references.episodes("val_unseen").values()}
    steps = [(record.get("path_id"), record.get("t")) for record in records]
    comparison.add_distinct("teacher_path_actions", steps)
    for record in records:
        ours = value_or_error(_teacher_action, record, by_path)
        comparison.add("teacher_path_actions", without(record, ("path_id", "t")), ours, 0.0)


def _teacher_action(stored: Json, by_path: Mapping[str, Episode]) -> Json:
    if str(stored["path_id"]) not in by_path or stored["t"] < 0:
        raise WorldError(f"R2R has no path {stored['path_id']} with a step {stored['t']}")
    episode, step = by_path[str(stored["path_id"])], stored["t"]
    viewpoint = episode.reference_path[min(step, len(episode.reference_path) - 1)]
    return {
        "scan": episode.scene_id,
        "at": viewpoint,
        "teacher_t": episode.expert_at(step),
        "teacher_none": episode.expert_from(viewpoint),
    }


def _graph_statistics(scene: str, atlas: Atlas) -> Json:
    graph = atlas.graph(scene)
    reachable = np.isfinite(graph.distances)
    return {
        "nodes": len(graph),
        "edges": graph.num_edges,
        "sum_all_pairs_distance": float(graph.distances[reachable].sum()),
        "components": len(np.unique(reachable, axis=0)),
    }
