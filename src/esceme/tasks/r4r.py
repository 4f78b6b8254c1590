"""R4R, made from R2R: two paths of a scene are joined if the second starts near the end of the first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import fsum
from pathlib import Path

import numpy as np

from esceme.errors import DataError, prefix_errors
from esceme.files import read_records
from esceme.tasks.episode import check_path
from esceme.tasks.r2r import R2RRecord
from esceme.world.graph import SceneGraph

JOIN_WITHIN = 3.0
"""Maximum distance in metres from the end of the first path to the start of the second path."""
R4R_MANIFEST = "r4r_manifest.json"
"""Name of the manifest of the splits that were written together."""


def join_paths(
    records: Sequence[R2RRecord],
    graphs: Mapping[str, SceneGraph],
    *,
    progress: Callable[[Sequence[R2RRecord]], Iterable[R2RRecord]] = iter,
) -> Iterator[R2RRecord]:
    """Yield a record for every pair of different paths of a scene that can be joined, in file order.

    The joined path is the first path, then the shortest path to the start of the second path, then the second
    path, without repeated viewpoints. Its instructions are all pairs of an instruction of the first path and
    an instruction of the second path. `progress` may wrap the records in a progress bar.
    """
    by_scene: dict[str, list[R2RRecord]] = defaultdict(list)
    for record in records:
        by_scene[record.scan].append(record)
    starts: dict[str, np.ndarray] = {}
    for scene, group in by_scene.items():
        starts[scene] = np.array([graphs[scene].index(record.path[0]) for record in group])

    path_id = 0
    for first in progress(records):
        graph = graphs[first.scan]
        gaps = graph.distances[graph.index(first.path[-1]), starts[first.scan]]
        for index in np.flatnonzero(gaps <= JOIN_WITHIN):
            second = by_scene[first.scan][index]
            if second is not first:
                yield _join_records(first, second, graph, path_id)
                path_id += 1


def _join_records(first: R2RRecord, second: R2RRecord, graph: SceneGraph, path_id: int) -> R2RRecord:
    """Return the record of the path that joins two paths, with all pairs of instructions."""
    between = graph.shortest_path(first.path[-1], second.path[0])
    path = [*first.path, *between[1:], *second.path[1:]]
    return R2RRecord(
        scan=first.scan,
        path_id=path_id,
        path=path,
        heading=first.heading,
        instructions=[
            _concatenate_instructions(a, b) for a in first.instructions for b in second.instructions
        ],
        distance=fsum(graph.distance(a, b) for a, b in pairwise(path)),
    )


def _concatenate_instructions(a: str, b: str) -> str:
    return f"{a}{b}" if a[-1:].isspace() else f"{a} {b}"


def read_r2r_records(path: Path, graphs: dict[str, SceneGraph]) -> list[R2RRecord]:
    """Return the records of an R2R file; raise `DataError` if a path is not in the graph of its scene."""
    records = read_records(path, R2RRecord)
    for record in records:
        with prefix_errors(file=path, record=f"path {record.path_id}"):
            if not record.path or not record.instructions:
                raise DataError("'path' or 'instructions' is empty; expected at least one entry in each")
            check_path(record.scan, record.path, graphs)
    return records
