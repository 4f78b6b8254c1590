"""The Matterport3D simulator's Python interface: batched (`initialize`) and scalar (`init`).

`Simulator` follows both generations of the original interface, whose method names it keeps. Poses and
navigable locations equal those of the original. Four unintended behaviours of the original are not
reproduced:

* A call that fails changes nothing. The original leaves some environments changed.
* A second `initialize` has no effect; after `close` it starts again. In the original, the batch grows.
* Every simulator has its own navigation graphs and random numbers. In the original, the first simulator of a
  process decides.
* A scan whose file could not be read is read again at the next call.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from esceme.mattersim.arguments import (
    as_flag,
    as_float,
    as_floats,
    as_indices,
    as_int,
    as_text,
    as_texts,
    is_sequence,
)
from esceme.mattersim.navigation_graphs import (
    ANGLE_PROBE,
    GraphFolder,
    ScanGraph,
    ViewpointPlace,
    as_entries,
)
from esceme.mattersim.pictures import PictureFolder
from esceme.mattersim.random_starts import draw_viewpoint, draws, random_headings
from esceme.mattersim.states import Environment, SimState, make_state, make_viewpoint
from esceme.world.camera import Camera, find_navigable
from esceme.world.geometry import COLUMNS, TURN, VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS

HEADINGS: list[float] = VIEW_HEADINGS.tolist()
ELEVATIONS: list[float] = VIEW_ELEVATIONS.tolist()
FULL_TURN = 2 * math.pi
Interface = Literal["batched", "scalar"]
Start = tuple[ScanGraph, ViewpointPlace]


class Simulator:
    """Simulator of camera poses on navigation graphs, with the interface of `MatterSim.Simulator`.

    Programs call `initialize` for lists of environments, or `init` for one environment whose states are
    snapshots. Without either, the first `newEpisode` decides by its arguments.
    """

    connectivity: ClassVar[str | None] = None
    """Connectivity folder that replaces the argument of `setNavGraphPath`.

    Many programs start an episode in one scan of Matterport3D to read the angles of the 36 views. If the
    folder lacks this scan, such episodes have a graph of one viewpoint without neighbours.
    """
    panoramas: ClassVar[str | None] = None
    """Folder of pictures that replaces the argument of `setDatasetPath`."""

    __slots__ = (
        *("_batch_size", "_cache_size", "_camera", "_environments", "_folder", "_graph_path", "_graphs"),
        *("_has_depth", "_has_rendering", "_interface", "_is_discrete", "_is_initialized", "_is_restricted"),
        *("_limits", "_min_cosine", "_picture_path", "_pictures", "_seed", "_states", "_stream"),
        *("_timer_start", "_warned"),
    )

    def __init__(self) -> None:
        self._graph_path, self._picture_path = "./connectivity", "./data/v1/scans/"
        self._camera = Camera(320, 240, 0.8)
        self._limits = (-0.94, 0.94)
        self._has_rendering, self._has_depth = True, False
        self._is_discrete, self._is_restricted = False, True
        self._batch_size, self._cache_size = 1, 200
        self._seed: int | None = None
        self._interface: Interface | None = None
        self._is_initialized = self._warned = False
        self._environments: list[Environment] = []
        self._states: list[SimState] = []
        self._graphs: dict[str, ScanGraph] = {}
        self._folder: GraphFolder | None = None
        self._pictures: PictureFolder | None = None
        self._stream: Iterator[int] = draws(1)
        self._min_cosine: float | None = None
        self.resetTimers()

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("cannot copy or pickle MatterSim.Simulator; construct one in every process")

    # -- settings that count until the simulator is initialised ------------------------------------------

    def setNavGraphPath(self, path: str, /) -> None:
        """Set the folder of the files `<scan>_connectivity.json` and `scans.txt`."""
        path = as_text(path)
        if not self._is_initialized or self._interface == "scalar":
            self._graph_path = path

    def setDatasetPath(self, path: str, /) -> None:
        """Set the folder of panoramas or skyboxes."""
        path = as_text(path)
        if not self._is_initialized or self._interface == "scalar":
            self._picture_path = path
            if self._pictures is not None:
                self._pictures.path = self.panoramas or path

    def setRenderingEnabled(self, value: bool, /) -> None:
        """Set whether `rgb` shows pictures; by default it does."""
        self._set("_has_rendering", as_flag(value))

    def setDepthEnabled(self, value: bool, /) -> None:
        """Set whether programs expect depth images. Depth is not simulated: `depth` is always zero."""
        self._set("_has_depth", as_flag(value))

    def setDiscretizedViewingAngles(self, value: bool, /) -> None:
        """Set whether the camera looks along the 36 standard views only."""
        self._set("_is_discrete", as_flag(value))

    def setRestrictedNavigation(self, value: bool, /) -> None:
        """Set whether only viewpoints within the camera's horizontal field of view are navigable."""
        self._set("_is_restricted", as_flag(value))

    def setBatchSize(self, size: int, /) -> None:
        """Set the number of environments."""
        self._set("_batch_size", as_int(size, unsigned=True))

    def setCacheSize(self, size: int, /) -> None:
        """Set the number of panoramas that are kept in memory."""
        self._set("_cache_size", as_int(size, unsigned=True))

    def setPreloadingEnabled(self, value: bool, /) -> None:
        """Accept the setting; pictures are read at their first use."""
        as_flag(value)

    def setSeed(self, seed: int, /) -> None:
        """Set the seed of random viewpoints. After `initialize`, it has no effect; after `init`, it has."""
        seed = as_int(seed)
        if not self._is_initialized or self._interface == "scalar":
            self._seed, self._stream = seed, draws(seed)

    def _set(self, name: str, value: object) -> None:
        if not self._is_initialized:
            setattr(self, name, value)

    # -- settings that count from the next call on -------------------------------------------------------

    def setCameraResolution(self, width: int, height: int, /) -> None:
        """Set the image size, which with the field of view decides what is navigable."""
        self._camera = Camera(as_int(width), as_int(height), self._camera.vfov)
        self._update_visibility()

    def setCameraVFOV(self, vfov: float, /) -> None:
        """Set the vertical field of view in radians."""
        self._camera = Camera(self._camera.width, self._camera.height, as_float(vfov))
        self._update_visibility()

    def setElevationLimits(self, low: float, high: float, /) -> bool:
        """Set limits of the elevation in radians; return False, and change nothing, if they are invalid."""
        low, high = as_float(low), as_float(high)
        is_valid = -math.pi / 2 < low < 0 < high < math.pi / 2
        if is_valid:
            self._limits = (low, high)
        return is_valid

    def _update_visibility(self) -> None:
        is_restricted = self._is_restricted or self._interface == "scalar"
        self._min_cosine = self._camera.min_cosine if is_restricted else None

    # -- episodes ----------------------------------------------------------------------------------------

    def initialize(self) -> None:
        """Start the batched interface with the current settings. Files are read at the first episode."""
        self._start("batched")

    def init(self) -> None:
        """Start the scalar interface, whose calls take and return single values."""
        self._start("scalar")

    def _start(self, interface: Interface) -> None:
        if self._is_initialized:
            return
        size = (self._camera.width, self._camera.height)
        if min(size) < 0:
            raise RuntimeError(f"a camera of {size[0]} x {size[1]} pixels; call setCameraResolution")
        previous = self._environments if self._interface == interface == "scalar" else []
        self._interface, self._is_initialized = interface, True
        self._update_visibility()
        self._folder, self._graphs = None, {}
        self._pictures = (
            PictureFolder(self.panoramas or self._picture_path, self._cache_size)
            if self._has_rendering
            else None
        )
        is_live = interface == "batched"
        if is_live or self._seed is not None:
            self._stream = draws(1 if self._seed is None else self._seed)
        else:  # as in the original, the scalar interface is seeded by the clock
            self._stream = draws(time.time_ns())
        self._environments = [
            Environment(size, self._pictures, has_depth=self._has_depth, is_live=is_live)
            for _ in range(self._batch_size if is_live else 1)
        ]
        for environment, before in zip(self._environments, previous, strict=False):
            environment.view_index = before.view_index  # it stays until angles are discretised again
        self._states = [make_state(environment) for environment in self._environments]

    def newEpisode(
        self,
        scan_ids: str | Sequence[str],
        viewpoint_ids: str | Sequence[str],
        headings: float | Sequence[float],
        elevations: float | Sequence[float],
        /,
    ) -> None:
        """Start episodes at viewpoints with headings and elevations in radians, one per environment.

        In the scalar interface, an empty viewpoint id draws a random viewpoint. Raises `IndexError` if a list
        is too short or a scan is unknown, and `ValueError` if a viewpoint is unknown or excluded.
        """
        if self._is_scalar(scan_ids):
            scan, viewpoint = as_text(scan_ids), as_text(viewpoint_ids)
            heading, elevation = as_float(headings), as_float(elevations)
            if not self._is_initialized:
                self.init()
            graph = self._find_graph(scan)
            place = graph.find(viewpoint) if viewpoint else draw_viewpoint(self._stream, graph)
            self._begin([(graph, place)], [heading], [elevation])
            return
        scans, viewpoints = as_texts(scan_ids), as_texts(viewpoint_ids)
        turns, tilts = as_floats(headings), as_floats(elevations)
        if not self._is_initialized:
            self.initialize()
        count = len(self._environments)
        _require_length(count, scans, viewpoints, turns, tilts)
        graphs = list(map(self._find_graph, scans[:count]))
        starts = [
            (graph, graph.find(viewpoint)) for graph, viewpoint in zip(graphs, viewpoints, strict=False)
        ]
        self._begin(starts, turns[:count], tilts[:count])

    def newRandomEpisode(self, scan_ids: Sequence[str], /) -> None:
        """Start episodes at random viewpoints of scans, with random headings and elevation 0.

        The viewpoints depend on the seed; the headings are always the same.
        """
        scans = as_texts(scan_ids)
        if not self._is_initialized:
            self.initialize()
        graphs = list(map(self._find_graph, scans))
        starts = [(graph, draw_viewpoint(self._stream, graph)) for graph in graphs]
        count = len(self._environments)
        _require_length(count, starts)
        self._begin(starts[:count], random_headings(count), [0.0] * count)

    def makeAction(
        self,
        indices: int | Sequence[int],
        headings: float | Sequence[float],
        elevations: float | Sequence[float],
        /,
    ) -> None:
        """Move to navigable locations, given by index, and change headings and elevations (radians).

        With discretised angles only the sign of a change counts. Raises `ValueError` if there is no location
        of an index, `IndexError` if a list is too short, and `RuntimeError` before the first episode.
        """
        if self._is_scalar(indices):
            choice, turn, tilt = as_int(indices), as_float(headings), as_float(elevations)
            environment = self._environments[0] if self._is_initialized else None
            if environment is None or not 0 <= choice < environment.num_navigable:
                count = environment.num_navigable if environment else 0
                raise ValueError(f"invalid action index {choice}: there are {count} navigable locations")
            self._act([choice], [turn], [tilt])
            return
        choices, turns, tilts = as_indices(indices), as_floats(headings), as_floats(elevations)
        if not self._is_initialized:
            raise RuntimeError("newEpisode must be called before makeAction")
        environments = self._environments
        count = len(environments)
        _require_length(count, choices, turns, tilts)
        for slot, environment in enumerate(environments):
            if choices[slot] > environment.stop - environment.first:
                raise ValueError(
                    f"invalid action index {choices[slot]} in environment {slot} of {count}: there are "
                    f"{environment.num_navigable} navigable locations"
                )
        self._act(choices, turns, tilts)

    def getState(self) -> SimState | list[SimState]:
        """Return the states of all environments; in the scalar interface, a snapshot of the state."""
        if self._interface != "scalar":
            return self._states[:]
        environment = self._environments[0]
        if environment.location is None:
            raise RuntimeError("newEpisode must be called before getState")
        return make_state(environment.snapshot())

    def close(self) -> None:
        """End all episodes. Settings may be changed until the simulator is initialised again."""
        self._is_initialized = False

    def resetTimers(self) -> None:
        """Set the times of `timingInfo` to zero."""
        self._timer_start = (time.perf_counter(), time.process_time())
        if self._pictures is not None:
            self._pictures.load_seconds = self._pictures.cut_seconds = 0.0

    def timingInfo(self) -> str:
        """Return a text with the number of images and times in milliseconds."""
        wall, process = (
            1000 * (now - start)
            for now, start in zip((time.perf_counter(), time.process_time()), self._timer_start, strict=True)
        )
        pictures = self._pictures or PictureFolder("", 0)
        return (
            "Preloading images: 0 minutes\n"
            f"Rendered {pictures.num_frames} frames\n"
            f"Wall time: {wall:.3f} ms\n"
            f"Process time: {process:.3f} ms\n"
            f"\tImage loading: {1000 * pictures.load_seconds:.3f} ms\n"
            f"\tRendering: {1000 * pictures.cut_seconds:.3f} ms\n"
            "\tReading rendered image: 0 ms\n"
        )

    # -- poses -------------------------------------------------------------------------------------------

    def _is_scalar(self, value: object) -> bool:
        """Return whether a call with the first argument `value` belongs to the scalar interface."""
        return self._interface == "scalar" if self._is_initialized else not is_sequence(value)

    def _open_folder(self) -> GraphFolder:
        path = self.connectivity or self._graph_path
        if self._folder is None or self._folder.path != GraphFolder.open(path).path:
            self._folder = GraphFolder.open(path)
        return self._folder

    def _find_graph(self, scan_id: str) -> ScanGraph:
        """Return the graph of a scan, read at its first episode."""
        graph = self._graphs.get(scan_id)
        if graph is None:
            folder = self._open_folder()
            if self.connectivity is not None and scan_id == ANGLE_PROBE[0] and not folder.holds(scan_id):
                warnings.warn(
                    f"scan {scan_id} is not in {folder.path}; programs read the angles of views there: it "
                    "has one viewpoint without neighbours",
                    stacklevel=3,
                )
                graph = ScanGraph.isolated(*ANGLE_PROBE)
            elif self._interface == "scalar":
                graph = folder.read(scan_id)
            else:
                graph = folder.listed(scan_id)
            self._graphs[scan_id] = graph
        return graph

    def _begin(self, starts: Sequence[Start], headings: Sequence[float], elevations: Sequence[float]) -> None:
        """Set all environments to starting viewpoints and poses. The arguments have been checked."""
        self._warn_if_not_finite(headings, elevations)
        for environment, (graph, place), heading, elevation in zip(
            self._environments, starts, headings, elevations, strict=True
        ):
            environment.step, environment.scan_id, environment.graph = 0, graph.scan_id, graph
            environment.location = make_viewpoint(place)
            if self._is_discrete:
                self._look(environment, _snap(heading, elevation))
            else:
                environment.heading, environment.elevation = _wrap(heading), self._clamp(elevation)
        if not self._is_discrete:
            self._find_navigable()

    def _act(self, choices: Sequence[int], turns: Sequence[float], tilts: Sequence[float]) -> None:
        """Apply valid actions to all environments."""
        self._warn_if_not_finite(turns, tilts)
        is_discrete, look = self._is_discrete, self._look
        for environment, choice, turn, tilt in zip(self._environments, choices, turns, tilts, strict=False):
            environment.step += 1
            if choice:
                environment.move(choice)
            if is_discrete:
                row, column = divmod(environment.view_index, COLUMNS)
                if turn > 0:
                    column = (column + 1) % COLUMNS
                elif turn < 0:
                    column = (column - 1) % COLUMNS
                elif turn:  # NaN
                    column = 0
                if tilt > 0:
                    row = min(row + 1, 2)
                elif tilt < 0:
                    row = max(row - 1, 0)
                elif tilt:
                    row = 1
                look(environment, row * COLUMNS + column)
            else:
                environment.heading = _wrap(environment.heading + turn)
                environment.elevation = self._clamp(environment.elevation + tilt)
        if not is_discrete:
            self._find_navigable()

    def _look(self, environment: Environment, view: int) -> None:
        """Set the view of an environment, and the navigable locations that this view shows."""
        environment.view_index = view
        environment.heading, environment.elevation = HEADINGS[view], ELEVATIONS[view]
        environment.table = table = environment.graph.view_table(self._min_cosine)
        pose = environment.location._place.ix * VIEWS + view  # type: ignore[union-attr]
        environment.first, environment.stop = table.start[pose], table.start[pose + 1]
        environment.entries, environment.is_rendered, environment.camera = None, False, self._camera

    def _find_navigable(self) -> None:
        """Set the navigable locations of all environments if camera angles are not discretised."""
        environments = self._environments
        if not environments:
            return
        edges = []
        for environment in environments:
            graph, ix = environment.graph, environment.location._place.ix  # type: ignore[union-attr]
            edges.append((graph, graph.first_edge[ix], graph.first_edge[ix + 1]))
        found = find_navigable(
            np.concatenate([graph.offsets[first:stop] for graph, first, stop in edges]),
            np.concatenate([graph.there[first:stop] for graph, first, stop in edges]),
            np.repeat(np.arange(len(edges)), [stop - first for _, first, stop in edges]),
            np.array([environment.heading for environment in environments]),
            np.array([environment.elevation for environment in environments]),
            self._min_cosine,
        )
        table = as_entries(found)
        for slot, environment in enumerate(environments):
            environment.table, environment.entries, environment.is_rendered = table, None, False
            environment.first, environment.stop = table.start[slot], table.start[slot + 1]
            environment.camera = self._camera

    def _clamp(self, elevation: float) -> float:
        return max(min(elevation, self._limits[1]), self._limits[0])

    def _warn_if_not_finite(self, headings: Sequence[float], elevations: Sequence[float]) -> None:
        if not self._warned and not (
            all(map(math.isfinite, headings)) and all(map(math.isfinite, elevations))
        ):
            self._warned = True
            warnings.warn(
                "a heading or elevation is not finite: continuous cameras then see nothing until the next "
                "episode, discretised ones look along heading 0",
                stacklevel=4,
            )


def _wrap(heading: float) -> float:
    """Return a heading in radians from 0 to 2π. As in the original, tiny negative headings give 2π."""
    if not math.isfinite(heading):
        return math.nan
    heading = math.fmod(heading, FULL_TURN)
    return heading + FULL_TURN if heading < 0 else heading


def _snap(heading: float, elevation: float) -> int:
    """Return `world.geometry.nearest_view` of one direction, without the cost of arrays.

    As in the original, a heading that is not finite counts as 0.
    """
    turns = _wrap(heading) / TURN if math.isfinite(heading) else 0.0
    column = int(turns)
    column = (column + (turns - column >= 0.5)) % COLUMNS
    row = 0 if elevation < -TURN / 2 else 2 if elevation > TURN / 2 else 1
    return row * COLUMNS + column


def _require_length(count: int, *arguments: Sequence[object]) -> None:
    for values in arguments:
        if len(values) < count:
            raise IndexError(f"a list of {len(values)} entries for {count} environments; see setBatchSize")
