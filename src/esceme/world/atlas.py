"""Atlas: all scenes as arrays, so that one call observes or moves a whole batch of agents.

The viewpoints of all scenes are numbered from 0 to P - 1. This number is the viewpoint index. The panorama at
a viewpoint is a sequence of tokens, one per candidate, STOP or other view.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esceme.errors import WorldError
from esceme.world.features import FeatureStore, open_features
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, nearest_view, panorama_angles
from esceme.world.graph import SceneGraph, read_scenes

CONTEXT, CANDIDATE, STOP = 0, 1, 2
"""Token types: a view without a candidate (also padding), a candidate, STOP."""


class Pose(NamedTuple):
    """Poses of a batch of agents: viewpoint indices (B,), and views that the agents face (B,), 0 to 35."""

    viewpoint: NDArray[np.int64]
    view: NDArray[np.int64]


class Panoramas(NamedTuple):
    """Batch of panoramas as tokens: candidates, then STOP, then all other views in view order, then padding.

    STOP and padding have features and angles of 0 and view -1.
    """

    features: NDArray[np.float32]
    """(B, N, D): image features of the tokens."""
    angles: NDArray[np.float32]
    """(B, N, 4): sine and cosine of the heading relative to the faced view, and of the absolute elevation."""
    token_type: NDArray[np.uint8]
    """(B, N): CANDIDATE, STOP, or CONTEXT."""
    view: NDArray[np.int8]
    """(B, N): view (0 to 35) that a token shows; -1 for STOP and padding."""
    neighbour: NDArray[np.int32]
    """(B, N): viewpoint index to which a candidate leads; -1 for all other tokens."""
    valid: NDArray[np.bool_]
    """(B, N): False for padding."""


class Atlas:
    """Graphs and features of several scenes as arrays, which are indexed by viewpoint index.

    >>> graph = SceneGraph.build("toy", {"a": (0, 0, 0), "b": (0, 2, 0)}, [("a", "b")])
    >>> atlas = Atlas([graph])
    >>> pose = atlas.begin(atlas.locate("toy", ["a"]), heading=[3.1])
    >>> pose = atlas.step(pose, [0])
    >>> atlas.name(pose.viewpoint[0]), int(pose.view[0])
    (('toy', 'b'), 12)
    """

    def __init__(self, graphs: Iterable[SceneGraph], features: FeatureStore | None = None) -> None:
        """Compile `graphs` into arrays. `features` must hold every viewpoint; only `observe` needs it."""
        self.graphs: dict[str, SceneGraph] = {}
        for graph in graphs:
            if graph.scene_id in self.graphs:
                raise WorldError(f"scene '{graph.scene_id}' is given twice")
            self.graphs[graph.scene_id] = graph
        if not self.graphs:
            raise WorldError("an atlas needs at least one scene")
        sizes = [len(graph) for graph in self.graphs.values()]
        self.first: NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)])
        """(S + 1,): index of the first viewpoint of each of S scenes, then the number of all viewpoints."""
        self.scene_of: NDArray[np.int32] = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
        self._scene_order = {scene: index for index, scene in enumerate(self.graphs)}

        self.neighbours: NDArray[np.int32] = self._concatenate_tables("neighbours", -1)
        self.neighbours[self.neighbours >= 0] += np.repeat(
            self.first[self.scene_of], (self.neighbours >= 0).sum(axis=1)
        ).astype(np.int32)
        self.views: NDArray[np.int8] = self._concatenate_tables("views", -1)
        self.lengths: NDArray[np.float64] = self._concatenate_tables("lengths", 0.0)
        self.degrees: NDArray[np.int64] = (self.neighbours >= 0).sum(axis=1)
        self.positions: NDArray[np.float64] = np.concatenate(
            [graph.positions for graph in self.graphs.values()]
        )
        """(P, 3): position of every viewpoint in metres."""
        self._compile_tokens()

        self.features = features
        if features is not None:
            self._feature_rows = features.locate([f"{scene}_{viewpoint}" for scene, viewpoint in self.names])

    @classmethod
    def read(
        cls,
        connectivity: str | Path,
        *,
        features: str | Path | FeatureStore | None = None,
        scenes: Iterable[str] | None = None,
        width: int | None = None,
    ) -> Atlas:
        """Read the graphs of a connectivity folder, by default of all scenes, and optionally a feature file.

        `width` is the number of features per view to read from the file; by default all.
        """
        store = (
            features if isinstance(features, FeatureStore | None) else open_features(features, width=width)
        )
        return cls(read_scenes(connectivity, scenes).values(), store)

    def _concatenate_tables(self, table: str, fill: float) -> NDArray[Any]:
        """Return the attribute `table` (P, K) of all graphs as one array; `fill` pads missing candidates."""
        tables = [getattr(graph, table) for graph in self.graphs.values()]
        joined = np.full((len(self), max(part.shape[1] for part in tables)), fill, dtype=tables[0].dtype)
        for start, part in zip(self.first, tables, strict=False):
            joined[start : start + len(part), : part.shape[1]] = part
        return joined

    def _compile_tokens(self) -> None:
        """Compute the view, type, neighbour and angles of all tokens at every viewpoint."""
        size = len(self)
        is_candidate = self.neighbours >= 0
        has_candidate = np.zeros((size, VIEWS), dtype=bool)
        rows, slots = np.nonzero(is_candidate)
        has_candidate[rows, self.views[rows, slots]] = True

        self.token_count: NDArray[np.int64] = self.degrees + 1 + (~has_candidate).sum(axis=1)
        """(P,): number of tokens of every panorama."""
        shape = (size, int(self.token_count.max()))
        self._token_view = np.full(shape, -1, dtype=np.int8)
        self._token_type = np.zeros(shape, dtype=np.uint8)
        self._token_neighbour = np.full(shape, -1, dtype=np.int32)
        self._token_angle = np.zeros((*shape, 4), dtype=np.float32)
        """(P, N, 4): sine and cosine of absolute heading and elevation; 0 for STOP and padding."""

        self._token_view[rows, slots] = self.views[rows, slots]
        self._token_type[rows, slots] = CANDIDATE
        self._token_neighbour[rows, slots] = self.neighbours[rows, slots]
        headings, elevations = (
            self._concatenate_tables("headings", 0.0),
            self._concatenate_tables("elevations", 0.0),
        )
        self._token_angle[rows, slots] = _sines_and_cosines(headings[rows, slots], elevations[rows, slots])

        self._token_type[np.arange(size), self.degrees] = STOP

        rows, rest = np.nonzero(~has_candidate)
        slots = self.degrees[rows] + (~has_candidate).cumsum(axis=1)[rows, rest]
        self._token_view[rows, slots] = rest
        self._token_angle[rows, slots] = _sines_and_cosines(VIEW_HEADINGS[rest], VIEW_ELEVATIONS[rest])

    # -- names -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.first[-1])

    @property
    def scenes(self) -> tuple[str, ...]:
        """Scene ids, in the order of the viewpoint indices."""
        return tuple(self.graphs)

    @cached_property
    def names(self) -> tuple[tuple[str, str], ...]:
        """(scene id, viewpoint id) of every viewpoint, in the order of the viewpoint indices."""
        return tuple((scene, name) for scene, graph in self.graphs.items() for name in graph.viewpoints)

    def name(self, viewpoint: int | np.integer) -> tuple[str, str]:
        """Return (scene id, viewpoint id) of a viewpoint index."""
        return self.names[viewpoint]

    def graph(self, scene: str) -> SceneGraph:
        """Return the navigation graph of a scene; raise `WorldError` if the atlas does not have the scene."""
        try:
            return self.graphs[scene]
        except KeyError:
            raise WorldError(f"scene '{scene}' is not loaded ({len(self.graphs)} others are)") from None

    def locate(self, scene: str, viewpoints: Sequence[str]) -> NDArray[np.int64]:
        """Return the viewpoint indices of viewpoint ids in a scene; raise `WorldError` for an unknown id."""
        graph = self.graph(scene)
        start = int(self.first[self._scene_order[scene]])
        return np.array([start + graph.index(viewpoint) for viewpoint in viewpoints], dtype=np.int64)

    def locate_all(self, paths: Iterable[tuple[str, Sequence[str]]]) -> list[list[int]]:
        """Return the viewpoint indices of many paths, each given as (scene id, viewpoint ids).

        Raises `WorldError` if an id is unknown.
        """
        located: list[list[int]] = []
        previous: tuple[str, Sequence[str]] = ("", ())
        for scene, viewpoints in paths:
            if viewpoints is previous[1] and scene == previous[0]:  # instructions of one path share it
                located.append(located[-1])
                continue
            try:
                order = self._index_of[scene]
                located.append([order[viewpoint] for viewpoint in viewpoints])
            except KeyError:
                self.locate(scene, viewpoints)
                raise
            previous = scene, viewpoints
        return located

    @cached_property
    def _index_of(self) -> dict[str, dict[str, int]]:
        """Scene id -> viewpoint id -> viewpoint index."""
        return {
            scene: {name: start + row for row, name in enumerate(graph.viewpoints)}
            for start, (scene, graph) in zip(self.first.tolist(), self.graphs.items(), strict=False)
        }

    # -- simulation --------------------------------------------------------------------------------------

    def begin(self, viewpoints: ArrayLike, heading: ArrayLike, elevation: ArrayLike = 0.0) -> Pose:
        """Return the poses (B,) of agents at the start of episodes; angles are in radians.

        An agent faces the view nearest to its heading and elevation (docs/spec.md A.4).
        """
        viewpoint = np.asarray(viewpoints, dtype=np.int64)
        return Pose(viewpoint, np.broadcast_to(nearest_view(heading, elevation), viewpoint.shape))

    def step(self, pose: Pose, choices: ArrayLike) -> Pose:
        """Return the poses after every agent moves to a candidate or stops.

        `choices` (B,) are candidate numbers; -1 or the number of candidates means STOP, which keeps the pose.
        After a move the agent faces the view in which the candidate was visible.
        """
        choice = np.asarray(choices, dtype=np.int64)
        degree = self.degrees[pose.viewpoint]
        if (is_invalid := (choice < -1) | (choice > degree)).any():
            slot = int(np.flatnonzero(is_invalid)[0])
            scene, viewpoint = self.name(pose.viewpoint[slot])
            raise WorldError(
                f"choice {choice[slot]} at viewpoint '{viewpoint}' of scene '{scene}': "
                f"it has candidates 0 to {degree[slot] - 1} (and {degree[slot]} or -1 for STOP)"
            )
        moves = (choice >= 0) & (choice < degree)
        candidate = np.where(moves, choice, 0)
        return Pose(
            np.where(moves, self.neighbours[pose.viewpoint, candidate], pose.viewpoint),
            np.where(moves, self.views[pose.viewpoint, candidate], pose.view),
        )

    def observe(self, pose: Pose, *, out: NDArray[np.float32] | None = None) -> Panoramas:
        """Return the panoramas at a batch of poses, padded to the largest number of tokens in the batch.

        If `out`, a buffer from `feature_buffer`, is given, features are written to this buffer, not to a new
        array.
        """
        viewpoints = pose.viewpoint
        count = self.token_count[viewpoints]
        longest = int(count.max())
        view = self._token_view.take(viewpoints, axis=0)[:, :longest]
        return Panoramas(
            features=self._token_features(viewpoints, view, out),
            angles=self._token_angles(pose, longest),
            token_type=self._token_type.take(viewpoints, axis=0)[:, :longest],
            view=view,
            neighbour=self._token_neighbour.take(viewpoints, axis=0)[:, :longest],
            valid=np.arange(longest) < count[:, None],
        )

    def feature_buffer(self, batch: int) -> NDArray[np.float32]:
        """Return an uninitialised array for `observe(out=...)` that is large enough for `batch` panoramas."""
        return np.empty(
            (batch, int(self.token_count.max()), self._require_features().width), dtype=np.float32
        )

    def panorama_features(self, viewpoints: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the features of all 36 views at viewpoint indices: (B,) -> (B, 36, D)."""
        store, rows = self._require_features(), self._feature_rows[viewpoints]
        return store.gather(rows, np.broadcast_to(np.arange(VIEWS), (len(rows), VIEWS)))

    def panorama_angles(self, views: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the angle features of all 36 views for agents that face `views`: (B,) -> (B, 36, 4)."""
        return panorama_angles(views)

    def _require_features(self) -> FeatureStore:
        if self.features is None:
            raise WorldError("this atlas has no features; give it a feature file to observe panoramas")
        return self.features

    def _token_features(
        self, viewpoints: NDArray[np.integer], view: NDArray[np.int8], out: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        features = self._require_features().gather(self._feature_rows[viewpoints], view.clip(0), out=out)
        features[view < 0] = 0.0
        return features

    def _token_angles(self, pose: Pose, longest: int) -> NDArray[np.float32]:
        """Return the angles (B, N, 4) of tokens; headings are relative to the faced view.

        STOP and padding have angles of 0.
        """
        angles = self._token_angle.take(pose.viewpoint, axis=0)[:, :longest]  # (B, N, 4), a copy
        # sine + i cosine of the heading is a complex number, whose product with a phase is a rotation.
        rotated = angles.view(np.complex64)[..., 0]
        rotated *= np.exp(1j * VIEW_HEADINGS[pose.view]).astype(np.complex64)[:, None]
        return angles

    # -- distances ---------------------------------------------------------------------------------------

    @cached_property
    def _all_distances(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Distance matrices of all scenes, flattened into one array, and the start index of each matrix."""
        matrices = [graph.distances.ravel() for graph in self.graphs.values()]
        return np.concatenate(matrices), np.concatenate(
            [[0], np.cumsum([len(matrix) for matrix in matrices])]
        )

    def distance(self, a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
        """Return shortest path lengths in metres between viewpoint indices; inf between different scenes.

        `a` and `b` are broadcast against each other.
        """
        a, b = np.asarray(a), np.asarray(b)
        flat, offset = self._all_distances
        scene = self.scene_of[a]
        first = self.first[scene]
        row = offset[scene] + (a - first) * (self.first[scene + 1] - first) - first
        is_same = scene == self.scene_of[b]
        if is_same.all():
            return flat[row + b]
        return np.where(is_same, flat[np.where(is_same, row + b, 0)], np.inf)


def _sines_and_cosines(heading: NDArray[np.float64], elevation: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.stack([np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)], axis=-1)
