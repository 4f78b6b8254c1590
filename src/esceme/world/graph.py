"""Navigation graph of a scene: viewpoints, their candidates (adjacent viewpoints) and distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from esceme.errors import DataError, WorldError, prefix_errors
from esceme.files import PrintableText, read_records, read_text
from esceme.world.camera import Camera, find_navigable
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, direction, view_angles

SUFFIX = "_connectivity.json"
FAR_AWAY = 1e6
"""Upper bound for coordinates in metres; larger coordinates are an error in the file."""
UPRIGHT = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
"""Pose of an upright camera at the origin: right, down and forward of its images are +x, -z and +y."""


class Candidate(NamedTuple):
    """Adjacent viewpoint, and the view whose centre is nearest to it (docs/spec.md A.6)."""

    viewpoint: str
    view: int
    heading: float
    """Absolute heading as in the simulator: heading of the view plus relative heading, not wrapped."""
    elevation: float
    angular_distance: float
    """Angle between the adjacent viewpoint and the centre of its view in radians."""
    distance: float
    """Length of the edge in metres."""


class NavigableLocation(NamedTuple):
    """Adjacent viewpoint visible in a view: angles in radians relative to the view, distance in metres."""

    viewpoint: str
    heading: float
    elevation: float
    distance: float


class ViewpointRecord(msgspec.Struct):
    """Record of one viewpoint in a connectivity file. Keys without a field here are ignored."""

    image_id: PrintableText
    pose: list[float]
    included: bool
    unobstructed: list[bool]


@dataclass(frozen=True, eq=False)
class SceneGraph:
    """Navigation graph of one scene, with the candidates of each viewpoint in the simulator's order.

    Arrays (P, K) have one row per viewpoint and one column per candidate. `neighbours` holds the viewpoint
    indices of the candidates, and `views` the views that show them; missing candidates are -1. `headings`,
    `elevations` and `angular_distances` are in radians, and `lengths` are the lengths of edges in metres;
    missing candidates are 0.

    >>> square = {"a": (0, 0, 0), "b": (0, 2, 0), "c": (2, 2, 0), "d": (2, 0, 0)}
    >>> graph = SceneGraph.build("toy", square, [("a", "b"), ("b", "c"), ("c", "d")])
    >>> [candidate.viewpoint for candidate in graph.candidates("b")]
    ['c', 'a']
    >>> graph.shortest_path("a", "d"), float(graph.distance("a", "d"))
    (['a', 'b', 'c', 'd'], 6.0)
    """

    scene_id: str
    viewpoints: tuple[str, ...]
    positions: NDArray[np.float64]
    neighbours: NDArray[np.int32]
    views: NDArray[np.int8]
    headings: NDArray[np.float64]
    elevations: NDArray[np.float64]
    angular_distances: NDArray[np.float64]
    lengths: NDArray[np.float64]
    record_indices: NDArray[np.int64]
    """(P,): index of every viewpoint among the records of the connectivity file."""
    poses: NDArray[np.float64]
    """(R, 4, 4): camera poses of all records of the file, including those that are not in the graph."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Id of a viewpoint that is in the file but not in the graph -> 'excluded' or 'isolated'."""

    # -- construction --------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        scene_id: str,
        positions: Mapping[str, Sequence[float]],
        edges: Iterable[tuple[str, str]],
        *,
        excluded: Iterable[str] = (),
    ) -> SceneGraph:
        """Build a graph from positions (x, y, z) in metres, with z up, and undirected edges.

        Viewpoints that are `excluded` or have no edge are left out.
        """
        names = list(positions)
        order = {name: index for index, name in enumerate(names)}
        adjacency = np.zeros((len(names), len(names)), dtype=bool)
        for a, b in edges:
            for name in (a, b):
                if name not in order:
                    raise DataError(f"scene '{scene_id}': edge {a} - {b}: viewpoint '{name}' has no position")
            adjacency[order[a], order[b]] = adjacency[order[b], order[a]] = True
        poses = np.tile(UPRIGHT, (len(names), 1, 1))
        poses[:, :3, 3] = np.array([positions[name] for name in names], dtype=np.float64).reshape(-1, 3)
        included = ~np.isin(names, list(excluded))
        return cls._compile(scene_id, names, poses, adjacency, included)

    @classmethod
    def read(cls, path: str | Path) -> SceneGraph:
        """Read a file `<scene>_connectivity.json`; raise `DataError` if the file contradicts itself."""
        path = Path(path)
        records = read_records(path, ViewpointRecord)
        names = [record.image_id for record in records]
        if len(set(names)) < len(names):
            repeated = next(name for index, name in enumerate(names) if name in names[:index])
            raise DataError(f"{path}: viewpoint '{repeated}' occurs twice")
        for record in records:
            for key, expected in (("pose", 16), ("unobstructed", len(records))):
                if (found := len(getattr(record, key))) != expected:
                    raise DataError(
                        f"{path}: viewpoint '{record.image_id}': {key} has {found} entries, not {expected}"
                    )
        poses = np.array([record.pose for record in records], dtype=np.float64).reshape(-1, 16)
        if (outside := ~(np.abs(poses) < FAR_AWAY)).any():
            row, entry = np.argwhere(outside)[0]
            raise DataError(f"{path}: viewpoint '{names[row]}': pose holds {poses[row, entry]:g}, not metres")
        flags = b"".join(bytes(record.unobstructed) for record in records)
        adjacency = np.frombuffer(flags, dtype=bool).reshape(len(names), len(names))
        included = np.array([record.included for record in records], dtype=bool)
        adjacency = adjacency & included[:, None] & included[None, :]
        if (adjacency != adjacency.T).any():
            a, b = np.argwhere(adjacency & ~adjacency.T)[0]
            raise DataError(
                f"{path}: adjacency is not symmetric: '{names[a]}' sees '{names[b]}' as reachable, "
                "but not the other way round; fetch the file again"
            )
        scene = path.name.removesuffix(SUFFIX)
        with prefix_errors(file=path):
            return cls._compile(scene, names, poses.reshape(-1, 4, 4), adjacency, included)

    @classmethod
    def _compile(
        cls,
        scene_id: str,
        names: Sequence[str],
        poses: NDArray[np.float64],
        adjacency: NDArray[np.bool_],
        included: NDArray[np.bool_],
    ) -> SceneGraph:
        """Remove excluded and isolated viewpoints, and compute the candidates of the remaining viewpoints."""
        adjacency = adjacency & included[:, None] & included[None, :] & ~np.eye(len(names), dtype=bool)
        connected = np.asarray(adjacency.any(axis=1))
        if not connected.any():
            raise DataError(f"scene '{scene_id}': no two viewpoints are connected")
        left_out = {
            name: "isolated" if included[index] else "excluded"
            for index, name in enumerate(names)
            if not connected[index]
        }
        rows = np.flatnonzero(connected)
        positions = poses[rows, :3, 3]
        here, there = np.nonzero(adjacency[np.ix_(rows, rows)])

        # The simulator computes angles from positions in single precision.
        target = direction(positions.astype(np.float32)[there] - positions.astype(np.float32)[here])
        angles = view_angles(target)
        edges = np.arange(len(here))
        nearest = np.where(angles.visible, angles.angular_distance, np.inf).argmin(axis=1)
        first = angles.visible.argmax(axis=1)

        # Order of the simulator: by the first view that shows the candidate, then from its centre outwards.
        order = np.lexsort((there, angles.angular_distance[edges, first], first, here))
        degree = np.bincount(here, minlength=len(rows))
        slot = edges - np.repeat(np.cumsum(degree) - degree, degree)

        def table(values: NDArray[Any], fill: float, dtype: type[np.generic]) -> NDArray[Any]:
            out = np.full((len(rows), int(degree.max())), fill, dtype=dtype)
            out[here[order], slot] = values[order]
            return out

        return cls(
            scene_id=scene_id,
            viewpoints=tuple(names[index] for index in rows.tolist()),
            positions=positions,
            neighbours=table(there, -1, np.int32),
            views=table(nearest, -1, np.int8),
            headings=table(VIEW_HEADINGS[nearest] + angles.heading[edges, nearest], 0.0, np.float64),
            elevations=table(target.elevation, 0.0, np.float64),
            angular_distances=table(angles.angular_distance[edges, nearest], 0.0, np.float64),
            lengths=table(np.linalg.norm(positions[there] - positions[here], axis=1), 0.0, np.float64),
            record_indices=rows,
            poses=poses,
            left_out=left_out,
        )

    # -- viewpoints --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.viewpoints)

    def __contains__(self, viewpoint: str) -> bool:
        return viewpoint in self._index_of

    @cached_property
    def _index_of(self) -> dict[str, int]:
        return {viewpoint: index for index, viewpoint in enumerate(self.viewpoints)}

    def index(self, viewpoint: str) -> int:
        """Return the index of a viewpoint id in this graph; raise `WorldError` if the id is unknown."""
        try:
            return self._index_of[viewpoint]
        except KeyError:
            raise WorldError(self._absence_message(viewpoint)) from None

    def _absence_message(self, viewpoint: str) -> str:
        reason = self.left_out.get(viewpoint)
        if reason == "excluded":
            return f"viewpoint '{viewpoint}' is excluded from scene '{self.scene_id}' (\"included\": false)"
        if reason == "isolated":
            return f"viewpoint '{viewpoint}' of scene '{self.scene_id}' has no edge to any other"
        return (
            f"viewpoint '{viewpoint}' is not in scene '{self.scene_id}'; is connectivity/ of another release?"
        )

    @cached_property
    def degrees(self) -> NDArray[np.int64]:
        """(P,): number of candidates of every viewpoint."""
        return (self.neighbours >= 0).sum(axis=1)

    @property
    def num_edges(self) -> int:
        """Number of undirected edges."""
        return int(self.degrees.sum()) // 2

    def edges(self) -> NDArray[np.int64]:
        """Return the undirected edges (E, 2) as pairs of viewpoint indices, the smaller index first."""
        here, slot = np.nonzero(self.neighbours >= 0)
        there = self.neighbours[here, slot]
        return np.stack([here, there], axis=1)[here < there]

    def adjacent(self, a: str, b: str) -> bool:
        """Return whether an edge joins the viewpoints `a` and `b`."""
        return self.index(b) in self.neighbours[self.index(a)]

    def candidates(self, viewpoint: str) -> list[Candidate]:
        """Return the candidates of a viewpoint in the simulator's order (docs/spec.md A.6)."""
        row = self.index(viewpoint)
        return [
            Candidate(
                viewpoint=self.viewpoints[self.neighbours[row, slot]],
                view=int(self.views[row, slot]),
                heading=float(self.headings[row, slot]),
                elevation=float(self.elevations[row, slot]),
                angular_distance=float(self.angular_distances[row, slot]),
                distance=float(self.lengths[row, slot]),
            )
            for slot in range(self.degrees[row])
        ]

    @cached_property
    def record_names(self) -> tuple[str, ...]:
        """Viewpoint ids of all records of the connectivity file (R,), in its order."""
        names = np.empty(len(self.poses), dtype=object)
        names[self.record_indices] = self.viewpoints
        names[np.isin(np.arange(len(names)), self.record_indices, invert=True)] = list(self.left_out)
        return tuple(names.tolist())

    @cached_property
    def adjacent_records(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Directed edges between records: sources (E,), targets (E,), and offsets (E, 3) in metres.

        Sources and targets are record indices; edges are sorted by source, then by target. Like the
        simulator, offsets are computed from positions in single precision.
        """
        row, slot = np.nonzero(self.neighbours >= 0)
        here = self.record_indices[row]
        there = self.record_indices[self.neighbours[row, slot]]
        order = np.lexsort((there, here))
        here, there = here[order], there[order]
        positions = self.poses[:, :3, 3].astype(np.float32)
        return here, there, positions[there] - positions[here]

    def navigable_locations(self, viewpoint: str, view: int) -> list[NavigableLocation]:
        """Return the adjacent viewpoints that are visible in one view, the nearest to its centre first.

        The simulator lists them in the same order.
        """
        here, there, offset = self.adjacent_records
        rows = np.flatnonzero(here == self.record_indices[self.index(viewpoint)])
        heading, elevation = VIEW_HEADINGS[view : view + 1], VIEW_ELEVATIONS[view : view + 1]
        found = find_navigable(
            offset[rows], there[rows], np.zeros_like(rows), heading, elevation, Camera().min_cosine
        )
        return [
            NavigableLocation(self.record_names[record], *angles)
            for record, *angles in zip(*(array.tolist() for array in found[1:]), strict=True)
        ]

    # -- distances ---------------------------------------------------------------------------------------

    @cached_property
    def _distances_and_next_steps(self) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        here, slot = np.nonzero(self.neighbours >= 0)
        size = (len(self), len(self))
        # scipy below 1.15 keeps 64-bit indices, and its dijkstra accepts only 32-bit ones.
        edges = (here.astype(np.int32), self.neighbours[here, slot])
        weights = csr_array((self.lengths[here, slot], edges), shape=size)
        distances, predecessors = dijkstra(weights, return_predecessors=True)
        # In an undirected graph, the predecessor of u on a path from v is the successor of u on a path to v.
        return distances, np.ascontiguousarray(predecessors.T)

    @property
    def distances(self) -> NDArray[np.float64]:
        """(P, P): shortest path length between every two viewpoints in metres; inf if there is no path."""
        return self._distances_and_next_steps[0]

    @property
    def next_steps(self) -> NDArray[np.int32]:
        """(P, P): entry [u, v] is the next viewpoint index on a shortest path from u to v.

        The entry is -9999 if u is v or if there is no path.
        """
        return self._distances_and_next_steps[1]

    def distance(self, a: str, b: str) -> float:
        """Return the length of a shortest path from `a` to `b` in metres."""
        return float(self.distances[self.index(a), self.index(b)])

    def shortest_path(self, a: str, b: str) -> list[str]:
        """Return the viewpoint ids of a shortest path from `a` to `b`, including `a` and `b`.

        Raises `WorldError` if there is no path.
        """
        return [self.viewpoints[row] for row in self.shortest_rows(self.index(a), self.index(b))]

    def shortest_rows(self, start: int, goal: int) -> list[int]:
        """Return the path of `shortest_path` as rows of `viewpoints`, from the row `start` to `goal`."""
        if not np.isfinite(self.distances[start, goal]):
            a, b = self.viewpoints[start], self.viewpoints[goal]
            raise WorldError(f"scene '{self.scene_id}': there is no path from '{a}' to '{b}'")
        path = [start]
        while path[-1] != goal:
            path.append(int(self.next_steps[path[-1], goal]))
        return path

    @property
    def is_connected(self) -> bool:
        """Whether there is a path between every two viewpoints."""
        return bool(np.isfinite(self.distances).all())


def scene_ids(directory: str | Path) -> list[str]:
    """Return the scene ids of all files in a connectivity folder, sorted."""
    directory = Path(directory)
    scenes = [name.removesuffix(SUFFIX) for name in _list_files(directory) if name.endswith(SUFFIX)]
    if not scenes:
        raise DataError(f"{directory}: no file ends in {SUFFIX}; is this the connectivity folder?")
    for scene in scenes:
        if not scene.isprintable():
            raise DataError(
                f"{directory}: scene '{scene}' has control characters in its name; rename the file"
            )
    return scenes


def listed_scene_ids(directory: str | Path) -> list[str] | None:
    """Return the scene ids that the file `scans.txt` lists, in its order; None if there is no such file."""
    directory = Path(directory)
    return read_text(directory / "scans.txt").split() if "scans.txt" in _list_files(directory) else None


def _list_files(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except OSError as error:
        raise DataError(f"{directory}: cannot be read as a connectivity folder ({error.strerror})") from None


def read_scenes(directory: str | Path, scenes: Iterable[str] | None = None) -> dict[str, SceneGraph]:
    """Return a dict from scene id to graph, sorted by id, for `scenes`, by default all scenes of a folder."""
    directory = Path(directory)
    if isinstance(scenes, str):
        raise DataError(f"expected a list of scenes, found one string; write ['{scenes}']")
    present = scene_ids(directory)
    selected = present if scenes is None else sorted(set(scenes))
    for scene in selected:
        if scene not in set(present):
            raise DataError(f"{directory}: no {scene}{SUFFIX}; the folder holds {len(present)} other scenes")
    return {scene: SceneGraph.read(directory / f"{scene}{SUFFIX}") for scene in selected}
