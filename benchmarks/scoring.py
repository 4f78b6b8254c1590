"""Scoring R4R val_unseen (45,234 episodes), against per-episode Python DTW over a distance table.

The baseline holds distances in nested dicts by viewpoint id and computes every metric of an episode on
its own, DTW cell by cell. Predictions are seeded: the reference path up to a random point, then random steps.
Both sides start from the same episodes and predictions, and the results are asserted to be equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import Ratio, both_sides
from esceme.metrics import score
from esceme.tasks.episode import Episode
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.world import Atlas, SceneGraph, read_scenes

Table = dict[str, dict[str, dict[str, float]]]


def score_baseline(pairs: list[tuple[Episode, Prediction]], table: Table) -> dict[str, float]:
    rows = [
        score_one(episode.reference_path, prediction.path, table[episode.scene_id])
        for episode, prediction in pairs
    ]
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def score_one(
    reference: tuple[str, ...], path: tuple[str, ...], distance: dict[str, dict[str, float]]
) -> dict[str, float]:
    goal = reference[-1]
    length = sum(distance[a][b] for a, b in zip(path, path[1:], strict=False))
    reference_length = sum(distance[a][b] for a, b in zip(reference, reference[1:], strict=False))
    error = distance[path[-1]][goal]
    success = float(error < 3.0)
    shortest = distance[reference[0]][goal]
    ndtw = math.exp(-dtw_distance(reference, path, distance) / (3.0 * len(reference)))
    coverage = sum(math.exp(-min(distance[r][p] for p in path) / 3.0) for r in reference) / len(reference)
    expected = coverage * reference_length
    return {
        "tl": length,
        "ne": error,
        "osr": float(min(distance[p][goal] for p in path) < 3.0),
        "sr": success,
        "spl": success * reference_length / max(length, reference_length, 0.01),
        "spl_shortest": success * (shortest / max(length, shortest) if shortest else float(length == 0)),
        "cls": coverage * expected / (expected + abs(expected - length)),
        "ndtw": ndtw,
        "sdtw": success * ndtw,
        "gp": shortest - error,
        "steps": len(path) - 1.0,
    }


def dtw_distance(
    reference: Sequence[str], path: Sequence[str], distance: dict[str, dict[str, float]]
) -> float:
    """Return the dynamic time warping distance of two paths.

    D(p, r) = d(p, r) + min(D(p-1, r), D(p, r-1), D(p-1, r-1)), with D = 0 before both paths begin and
    infinity where only one of them has begun. Only the values of the previous viewpoint are held.
    """
    previous = [0.0, *(math.inf for _ in reference)]
    for viewpoint in path:
        current = [math.inf]
        for column, target in enumerate(reference):
            cheapest = min(previous[column], previous[column + 1], current[column])
            current.append(cheapest + distance[viewpoint][target])
        previous = current
    return previous[-1]


def read_episodes(data: Path, graphs: dict[str, SceneGraph]) -> Iterator[Episode]:
    for record in join_paths(read_r2r_records(data / "R2R" / "R2R_val_unseen.json", graphs), graphs):
        path = tuple(record.path)
        for k, instruction in enumerate(record.instructions):
            yield Episode(
                episode_id=f"{record.path_id}_{k}",
                scene_id=record.scan,
                path_id=str(record.path_id),
                reference_path=path,
                heading=record.heading,
                instruction=instruction,
            )


def random_prediction(episode: Episode, graph: SceneGraph, generator: np.random.Generator) -> Prediction:
    """Follow the reference up to a random viewpoint, then move at random; about as long as the reference."""
    followed = int(generator.integers(1, len(episode.reference_path) + 1))
    path = [graph.index(name) for name in episode.reference_path[:followed]]
    steps = len(episode.reference_path) + int(generator.integers(-2, 3))
    while len(path) < steps:
        path.append(int(generator.choice(graph.neighbours[path[-1], : graph.degrees[path[-1]]])))
    return Prediction(episode.episode_id, tuple(TrajectoryPoint(graph.viewpoints[row]) for row in path))


def run(data: Path) -> Iterator[Ratio]:
    graphs = read_scenes(data / "connectivity")
    generator = np.random.default_rng(0)
    episodes = list(read_episodes(data, graphs))
    pairs = [
        (episode, random_prediction(episode, graphs[episode.scene_id], generator)) for episode in episodes
    ]
    used = {episode.scene_id for episode in episodes}
    atlas = Atlas(graph for scene, graph in graphs.items() if scene in used)
    table = {
        scene: {
            name: dict(zip(graph.viewpoints, row, strict=True))
            for name, row in zip(graph.viewpoints, graph.distances.tolist(), strict=True)
        }
        for scene, graph in atlas.graphs.items()
    }
    expected, ours = score_baseline(pairs, table), score(pairs, atlas).means()
    for key, value in expected.items():
        assert math.isclose(value, ours[key], abs_tol=1e-9), key
    times = both_sides(lambda: score_baseline(pairs, table), lambda: score(pairs, atlas), 2)
    bound = "turning viewpoint names into integers, one dict look-up each; then the gathers of distances"
    yield Ratio(f"scoring R4R val_unseen ({len(pairs):,} episodes)", *times, 20, bound)
