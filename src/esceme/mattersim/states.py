"""Objects that programs read: states, viewpoints and image buffers, with the simulator's attribute names."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn

import numpy as np

from esceme.mattersim.navigation_graphs import NavigableEntries, ScanGraph, ViewpointPlace
from esceme.mattersim.pictures import PictureFolder
from esceme.world.camera import Camera

NO_TABLE = NavigableEntries(*(np.zeros(0).data for _ in NavigableEntries._fields))


class _ReadOnly:
    """Object that programs can neither construct, copy, pickle nor change."""

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError(f"MatterSim.{type(self).__name__}: No constructor defined!")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot copy or pickle MatterSim.{type(self).__name__}; read its attributes instead")


class ViewPoint(_ReadOnly):
    """Viewpoint relative to the camera: id, position in metres, relative angles in radians and distance."""

    __slots__ = ("_place", "_point", "_rel_distance", "_rel_elevation", "_rel_heading")
    _place: ViewpointPlace
    _point: list[float] | None
    _rel_heading: float
    _rel_elevation: float
    _rel_distance: float

    viewpointId = property(attrgetter("_place.viewpoint_id"))
    ix = property(attrgetter("_place.ix"))
    x = property(attrgetter("_place.x"))
    y = property(attrgetter("_place.y"))
    z = property(attrgetter("_place.z"))
    rel_heading = property(attrgetter("_rel_heading"))
    rel_elevation = property(attrgetter("_rel_elevation"))
    rel_distance = property(attrgetter("_rel_distance"))

    @property
    def point(self) -> list[float]:
        """Position [x, y, z], as in the scalar interface."""
        if self._point is None:
            self._point = [*self._place[2:]]
        return self._point

    def __repr__(self) -> str:
        return f"<MatterSim.ViewPoint {self._place.viewpoint_id}>"


def make_viewpoint(
    place: ViewpointPlace, heading: float = 0.0, elevation: float = 0.0, distance: float = 0.0
) -> ViewPoint:
    """Return a viewpoint with relative angles in radians and its distance in metres."""
    viewpoint = object.__new__(ViewPoint)
    viewpoint._place, viewpoint._point = place, None
    viewpoint._rel_heading, viewpoint._rel_elevation, viewpoint._rel_distance = heading, elevation, distance
    return viewpoint


class Mat(np.ndarray[Any, Any]):
    """Image buffer: an array (H, W, channels) that programs may read and write."""


class Environment:
    """Pose and navigable locations of one environment of the batch."""

    __slots__ = (
        *("camera", "depth", "elevation", "entries", "first", "graph", "has_depth", "heading"),
        *("is_live", "is_rendered", "location", "pictures", "rgb", "scan_id", "size"),
        *("step", "stop", "table", "view_index"),
    )
    graph: ScanGraph

    def __init__(
        self, size: tuple[int, int], pictures: PictureFolder | None, *, has_depth: bool, is_live: bool
    ) -> None:
        """Prepare an environment without an episode; images have `size` (width, height).

        With `is_live`, states that programs hold change when this environment changes. With `has_depth`,
        reading the depth image causes a warning that there is none.
        """
        self.size, self.pictures, self.has_depth, self.is_live = size, pictures, has_depth, is_live
        self.scan_id, self.step, self.view_index = "", 0, 0
        self.heading = self.elevation = 0.0
        self.location: ViewPoint | None = None
        self.table, self.first, self.stop = NO_TABLE, 0, -1
        self.entries: list[ViewPoint] | None = None
        self.rgb: Mat | None = None
        self.depth: Mat | None = None
        self.is_rendered, self.camera = False, Camera()

    @property
    def num_navigable(self) -> int:
        """Number of navigable locations, including the current viewpoint; 0 before the first episode."""
        return self.stop - self.first + 1

    def navigable(self) -> list[ViewPoint]:
        """Return the navigable locations, the current viewpoint first. They are built at the first use."""
        if self.entries is None:
            if self.location is None:
                return []
            places, table = self.graph.places, self.table
            # A snapshot's first entry is a copy of the location, as in the scalar interface.
            stay = self.location if self.is_live else make_viewpoint(self.location._place)
            self.entries = [stay]
            for row in range(self.first, self.stop):
                self.entries.append(
                    make_viewpoint(
                        places[table.neighbour[row]],
                        table.heading[row],
                        table.elevation[row],
                        table.distance[row],
                    )
                )
        return self.entries

    def move(self, index: int) -> None:
        """Make a navigable location the current viewpoint; its relative angles and distance become 0."""
        if self.entries is None:
            self.location = make_viewpoint(self.graph.places[self.table.neighbour[self.first + index - 1]])
            return
        self.location = chosen = self.entries[index]
        chosen._rel_heading = chosen._rel_elevation = chosen._rel_distance = 0.0

    def snapshot(self) -> Environment:
        """Return a copy that does not change with this environment."""
        copy = object.__new__(Environment)
        for name in Environment.__slots__:
            if hasattr(self, name):
                setattr(copy, name, getattr(self, name))
        copy.is_live, copy.entries, copy.rgb, copy.depth, copy.is_rendered = False, None, None, None, False
        if self.location is not None:
            copy.location = make_viewpoint(self.location._place)
        return copy

    def image(self) -> Mat:
        """Return the image (H, W, 3) in the order blue, green, red; zeros where there is no picture."""
        if self.rgb is None:
            self.rgb = np.zeros((*self.size[::-1], 3), np.uint8).view(Mat)
        if self.pictures is not None and self.location is not None and not self.is_rendered:
            self.is_rendered = True
            pose = self.graph.poses[self.location.ix]
            self.pictures.render(
                (self.scan_id, self.location.viewpointId),
                (pose, self.heading, self.elevation),
                self.camera.vfov,
                self.rgb,
            )
        return self.rgb

    def depth_image(self) -> Mat:
        """Return an empty depth image (H, W, 1)."""
        if self.depth is None:
            if self.has_depth and self.pictures is not None:
                self.pictures.warn_about_depth()
            self.depth = np.zeros((*self.size[::-1], 1), np.uint16).view(Mat)
        return self.depth


class SimState(_ReadOnly):
    """State of one environment: scan, step, pose, view, location, navigable locations and images."""

    __slots__ = ("_environment",)
    _environment: Environment

    scanId = property(attrgetter("_environment.scan_id"))
    step = property(attrgetter("_environment.step"))
    heading = property(attrgetter("_environment.heading"))
    elevation = property(attrgetter("_environment.elevation"))
    viewIndex = property(attrgetter("_environment.view_index"))
    location = property(attrgetter("_environment.location"))

    @property
    def navigableLocations(self) -> list[ViewPoint]:
        """Viewpoints to which the next action can lead; index 0 is the current one."""
        entries = self._environment.navigable()
        return entries[:] if self._environment.is_live else entries

    @property
    def rgb(self) -> Mat:
        """Image (H, W, 3) as uint8, in the order blue, green, red."""
        return self._environment.image()

    @property
    def depth(self) -> Mat:
        """Depth image (H, W, 1) as uint16; zeros."""
        return self._environment.depth_image()


def make_state(environment: Environment) -> SimState:
    """Return a state whose attributes are read from `environment`."""
    state = object.__new__(SimState)
    state._environment = environment
    return state
