"""Navigation graphs by record index, as the simulator's interface numbers viewpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from esceme.errors import DataError
from esceme.files import read_text
from esceme.world.camera import NavigableTable, find_navigable
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS
from esceme.world.graph import SUFFIX, UPRIGHT, SceneGraph

ANGLE_PROBE = ("ZMojNkEp431", "2f4d90acd4024c269fb0efe49a8ac540")
"""Scan and viewpoint of Matterport3D at which many programs read the angles of the 36 views."""
MAX_TABLES = 4
"""Number of cameras for which a scan keeps its table of navigable locations in memory."""


class ViewpointPlace(NamedTuple):
    """Id, record index and position of a viewpoint. Positions are metres in single precision."""

    viewpoint_id: str
    ix: int
    x: float
    y: float
    z: float


class NavigableEntries(NamedTuple):
    """`world.camera.NavigableTable` as buffers, whose items are Python numbers."""

    start: memoryview
    neighbour: memoryview
    heading: memoryview
    elevation: memoryview
    distance: memoryview


class ScanGraph:
    """Graph of one scan: viewpoints by record index, and the navigable locations of every pose."""

    def __init__(
        self,
        scan_id: str,
        names: Sequence[str],
        poses: NDArray[np.float64],
        excluded: Collection[str],
        edges: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]],
    ) -> None:
        """Prepare R viewpoints with ids `names` and camera `poses` (R, 4, 4).

        `edges` has the format of `SceneGraph.adjacent_records`.
        """
        self.scan_id, self.poses, self._excluded = scan_id, poses, excluded
        positions = poses[:, :3, 3].astype(np.float32).tolist()
        self.places = [
            ViewpointPlace(name, ix, *position)
            for ix, (name, position) in enumerate(zip(names, positions, strict=True))
        ]
        self._index = {place.viewpoint_id: place.ix for place in self.places}
        self._here, self.there, self.offsets = edges
        self.first_edge = np.searchsorted(self._here, np.arange(len(self.places) + 1)).tolist()
        self._tables: dict[float | None, NavigableEntries] = {}

    @classmethod
    def from_scene(cls, graph: SceneGraph) -> ScanGraph:
        """Return the graph of a scene, by record index."""
        excluded = {name for name, reason in graph.left_out.items() if reason == "excluded"}
        return cls(graph.scene_id, graph.record_names, graph.poses, excluded, graph.adjacent_records)

    @classmethod
    def isolated(cls, scan_id: str, viewpoint_id: str) -> ScanGraph:
        """Return a graph of one viewpoint without neighbours, at the origin."""
        nothing = np.zeros(0, dtype=np.int64)
        edges = (nothing, nothing, np.zeros((0, 3), dtype=np.float32))
        return cls(scan_id, [viewpoint_id], UPRIGHT[None], set(), edges)

    def find(self, viewpoint_id: str) -> ViewpointPlace:
        """Return a viewpoint; raise `ValueError` if it is unknown or excluded."""
        if viewpoint_id not in self._index:
            raise ValueError(
                f"could not find viewpoint '{viewpoint_id}' of scan '{self.scan_id}'; expected an image_id "
                f"of {self.scan_id}{SUFFIX}"
            )
        if viewpoint_id in self._excluded:
            raise ValueError(
                f"viewpoint '{viewpoint_id}' is excluded from scan '{self.scan_id}' (\"included\": false)"
            )
        return self.places[self._index[viewpoint_id]]

    def next_included(self, ix: int) -> ViewpointPlace:
        """Return the viewpoint of record `ix`, or of the next included record; record 0 follows the last."""
        while self.places[ix].viewpoint_id in self._excluded:
            ix = (ix + 1) % len(self.places)
        return self.places[ix]

    def view_table(self, min_cosine: float | None) -> NavigableEntries:
        """Return the navigable locations of pose `36 * record + view`, for every record and view.

        `find_navigable` explains `min_cosine`.
        """
        table = self._tables.get(min_cosine)
        if table is None:
            if len(self._tables) >= MAX_TABLES:
                self._tables.clear()
            pose = (self._here[:, None] * VIEWS + np.arange(VIEWS)).ravel()
            order = np.argsort(pose, kind="stable")
            rows = np.repeat(np.arange(len(self._here)), VIEWS)[order]
            count = len(self.places)
            headings, elevations = np.tile(VIEW_HEADINGS, count), np.tile(VIEW_ELEVATIONS, count)
            found = find_navigable(
                self.offsets[rows], self.there[rows], pose[order], headings, elevations, min_cosine
            )
            table = self._tables[min_cosine] = as_entries(found)
        return table


def as_entries(table: NavigableTable) -> NavigableEntries:
    """Return a table as buffers."""
    return NavigableEntries(*(np.ascontiguousarray(array).data for array in table))


class GraphFolder:
    """Connectivity folder, whose graphs are read at their first use."""

    _open: WeakValueDictionary[Path, GraphFolder] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        """Use the folder `path`. No file is read yet."""
        self.path = path
        self._listed: frozenset[str] | None = None
        self._graphs: dict[str, ScanGraph] = {}

    @classmethod
    def open(cls, path: str) -> GraphFolder:
        """Return the folder at `path`. Simulators that exist at the same time share its graphs."""
        resolved = Path(path).resolve()
        folder = cls._open.get(resolved)
        if folder is None:
            folder = cls._open[resolved] = cls(resolved)
        return folder

    def holds(self, scan_id: str) -> bool:
        """Return whether the folder has a file of a scan."""
        return (self.path / f"{scan_id}{SUFFIX}").is_file()

    def listed(self, scan_id: str) -> ScanGraph:
        """Return the graph of a scan in `scans.txt`.

        Raises `IndexError` if the scan is not in `scans.txt`, and `ValueError` if a file cannot be read.
        """
        graph = self._graphs.get(scan_id)
        if self._listed is None:
            try:
                self._listed = frozenset(read_text(self.path / "scans.txt").split())
            except DataError as error:
                raise ValueError(f"could not read the list of scans: {error}; see setNavGraphPath") from None
        if scan_id not in self._listed:
            raise IndexError(
                f"scan '{scan_id}' is not in {self.path / 'scans.txt'}, which lists {len(self._listed)} scans"
            )
        return self.read(scan_id) if graph is None else graph

    def read(self, scan_id: str) -> ScanGraph:
        """Return the graph of a scan; raise `ValueError` if its file cannot be read."""
        if scan_id not in self._graphs:
            try:
                graph = SceneGraph.read(self.path / f"{scan_id}{SUFFIX}")
            except DataError as error:
                raise ValueError(
                    f"could not read the navigation graph of scan '{scan_id}': {error}"
                ) from None
            self._graphs[scan_id] = ScanGraph.from_scene(graph)
        return self._graphs[scan_id]
