"""Ray casting: the nearest face in every direction of a panorama, found column by column.

All rays of one panorama column lie in a vertical plane, in which every box is a rectangle. A column is
therefore divided into spans: consecutive pixel rows that show the same face. The spans of floors, ceilings
and walls are found first, room by room and opening by opening, then the spans of boxes. Distances are
horizontal and in metres; a slope is the rise per horizontal metre. A cell is a box of air: a room, or the
hole of an opening.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import WorldError
from esceme.synth.house_model import Box, House, Opening, Point

FRAME_WIDTH, FRAME_DEPTH = 0.08, 0.015
"""Width of the boards around a door, and how far they stand out from the wall, in metres."""
MIN_DISTANCE = 1e-4
"""Minimum horizontal distance in metres; a box that is closer is above or below the camera."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Portal(NamedTuple):
    """Open part of a side of a cell (a box of air): bounds along the wall and in height, and next cell."""

    low: float
    high: float
    bottom: float
    top: float
    target: int


class SceneGeometry:
    """House as arrays: first the cells of air (rooms, then openings), then the solid boxes.

    Every cell and every box has six faces. The number of a face is 6 * index + 2 * axis, plus 1 for the side
    with the larger coordinate.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self.num_cells = len(house.rooms) + len(house.openings)
        boxes = [(box, furniture.room) for furniture in house.furniture for box in furniture.boxes]
        object_indices = [index for index, furniture in enumerate(house.furniture) for _ in furniture.boxes]
        boxes += [(box, _find_room(house, np.add(box.low, box.high) / 2)) for box in house.stairs]
        boxes += [frame for opening in house.openings for frame in door_frames(house, opening)]
        self.boxes = [box for box, _ in boxes]
        self.box_rooms: Integers = np.array([room for _, room in boxes], dtype=np.int64)
        bounds = [(room.low, room.high) for room in house.rooms]
        bounds += [opening_bounds(house, opening) for opening in house.openings]
        bounds += [(box.low, box.high) for box in self.boxes]
        extents = np.array(bounds, dtype=np.float64)
        self.low: Floats = extents[:, 0]
        self.high: Floats = extents[:, 1]
        self.object_index_of: NDArray[np.int16] = np.full(len(extents), -1, dtype=np.int16)
        """Furniture index of every cell and box; -1 for cells, stairs and door frames."""
        self.object_index_of[self.num_cells : self.num_cells + len(object_indices)] = object_indices

    @cached_property
    def portals(self) -> dict[int, list[Portal]]:
        """Face number -> the open parts of this face, from the highest to the lowest."""
        portals: defaultdict[int, list[Portal]] = defaultdict(list)
        for index, opening in enumerate(self.house.openings, start=len(self.house.rooms)):
            for end, room in enumerate(opening.rooms):
                bottom = max(opening.bottom, self.low[room, 2])
                top = min(opening.top, self.high[room, 2])
                hole = (opening.low, opening.high, bottom, top)
                portals[6 * index + 2 * opening.axis + end].append(Portal(*hole, room))
                portals[6 * room + 2 * opening.axis + 1 - end].append(Portal(*hole, index))
        return {face: sorted(group, key=lambda portal: -portal.top) for face, group in portals.items()}

    def cell_at(self, position: Point) -> int:
        """Return the index of the cell (room or opening) at a position; raise `WorldError` if none."""
        low, high = self.low[: self.num_cells], self.high[: self.num_cells]
        inside = ((low <= position) & (position <= high)).all(axis=1)
        if not inside.any():
            raise WorldError(
                f"{self.house.scene_id}: {position} is in none of its rooms; place the camera in one"
            )
        return int(inside.argmax())


def opening_bounds(house: House, opening: Opening) -> tuple[Point, Point]:
    """Return the lower and the upper corner of an opening's hole in the wall between its two rooms."""
    before, after = (house.rooms[room] for room in opening.rooms)
    near, far = before.high[opening.axis], after.low[opening.axis]
    if opening.axis == 0:
        return (near, opening.low, opening.bottom), (far, opening.high, opening.top)
    return (opening.low, near, opening.bottom), (opening.high, far, opening.top)


def door_frames(house: House, opening: Opening) -> list[tuple[Box, int]]:
    """Return (board, room index) pairs of the frame around a door or an arch, on both sides of the wall.

    An open side has no frame.
    """
    if opening.kind == "open":
        return []
    frames = []
    left, right, above = opening.low - FRAME_WIDTH, opening.high + FRAME_WIDTH, opening.top + FRAME_WIDTH
    boards = [
        (left, opening.low, opening.bottom, opening.top),
        (opening.high, right, opening.bottom, opening.top),
        (left, right, opening.top, above),
    ]
    for index, depth in zip(opening.rooms, (-FRAME_DEPTH, FRAME_DEPTH), strict=True):
        room = house.rooms[index]
        face = room.high[opening.axis] if depth < 0 else room.low[opening.axis]
        lower, upper = min(face, face + depth), max(face, face + depth)
        for start, end, bottom, top in boards:
            start, end = max(start, room.low[1 - opening.axis]), min(end, room.high[1 - opening.axis])
            bottom, top = max(bottom, room.low[2]), min(top, room.high[2])
            if start < end and bottom < top:
                low, high = (lower, start, bottom), (upper, end, top)
                if opening.axis == 1:
                    low, high = (start, lower, bottom), (end, upper, top)
                frames.append((Box(low, high, opening.frame), index))
    return frames


def _find_room(house: House, position: Floats) -> int:
    """Return the index of the room that contains a position; -1 if there is none."""
    for index, room in enumerate(house.rooms):
        if (position >= room.low).all() and (position <= room.high).all():
            return index
    return -1


class PanoramaCamera:
    """Ray directions of the columns and rows of an equirectangular image that is twice as wide as high."""

    def __init__(self, height: int) -> None:
        self.height, self.width = height, 2 * height
        heading = (np.arange(self.width) + 0.5) / self.width * 2 * np.pi - np.pi
        horizontal = np.stack([np.sin(heading), np.cos(heading)])
        self.horizontal: Floats = np.where(np.abs(horizontal) < 1e-9, 1e-9, horizontal)
        """(2, width): east and north components of every column's direction."""
        elevation = np.pi / 2 - (np.arange(height) + 0.5) / height * np.pi
        self.slope: NDArray[np.float32] = np.tan(elevation).astype(np.float32)
        self.stretch: NDArray[np.float32] = (1 / np.cos(elevation)).astype(np.float32)
        """(height,): metres along the ray per horizontal metre."""

    def count_rows_above(self, slope: NDArray[np.floating]) -> Integers:
        """Return the number of pixel rows whose rays rise more steeply than the given slopes."""
        row = (0.5 - np.arctan(slope) / np.pi) * self.height - 0.5
        return np.ceil(row).astype(np.int64).clip(0, self.height)


class ColumnSpans(NamedTuple):
    """Vertical spans of pixels, as arrays with one entry per span. The pixels of a span show one face."""

    column: Integers
    first: Integers
    last: Integers
    """First row after the span."""
    is_level: NDArray[np.bool_]
    """Whether the face is horizontal: a floor, a ceiling, the top of a table."""
    value: Floats
    """Height above the camera of a horizontal face, horizontal distance of any other face, in metres."""
    face: Integers


def make_spans(
    column: Integers,
    first: Integers,
    last: Integers,
    value: NDArray[np.floating] | float,
    face: Integers | int,
) -> ColumnSpans:
    """Return spans (vertical runs of pixels) with these fields, without empty ones (`first` >= `last`)."""
    values, faces = np.broadcast_to(value, column.shape), np.broadcast_to(face, column.shape)
    rows = np.flatnonzero(first < last)
    faces = faces[rows]
    return ColumnSpans(
        column[rows], first[rows], last[rows], faces % 6 >= 4, values[rows].astype(np.float64), faces
    )


def concatenate_spans(parts: list[ColumnSpans]) -> ColumnSpans:
    """Concatenate several collections of spans."""
    return ColumnSpans(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


class RayHits(NamedTuple):
    """Visible face of every pixel: its horizontal distance in metres and its number, (width, height) each."""

    distance: NDArray[np.float32]
    face: NDArray[np.int32]


def cast_rays(geometry: SceneGeometry, position: Point, camera: PanoramaCamera) -> RayHits:
    """Return the nearest face and its distance for every pixel of the panorama at a position."""
    air, reached = trace_room_surfaces(geometry, geometry.cell_at(position), position, camera)
    reach = np.zeros(camera.width)
    np.maximum.at(reach, air.column[~air.is_level], air.value[~air.is_level])
    boxes = trace_boxes(geometry, reached, position, camera, reach)
    # One integer per pixel: distance bits above the face number, so that the minimum is the nearest face.
    pixel, key = _spans_to_pixels(air, camera)
    nearest = np.empty_like(key)
    nearest[pixel] = key
    np.minimum.at(nearest, *_spans_to_pixels(boxes, camera))
    shape = (camera.width, camera.height)
    distance = (nearest >> 32).astype(np.int32).view(np.float32)
    return RayHits(distance.reshape(shape), nearest.astype(np.int32).reshape(shape))


def trace_room_surfaces(
    geometry: SceneGeometry, start_cell: int, position: Point, camera: PanoramaCamera
) -> tuple[ColumnSpans, set[int]]:
    """Return pixel spans of floors, ceilings and walls, and indices of visible cells (rooms, openings).

    The spans cover every pixel exactly once. `start_cell` is the index of the cell that contains `position`.
    """
    parts = []
    columns = np.arange(camera.width)
    pending = [(start_cell, columns, np.zeros_like(columns), np.full_like(columns, camera.height))]
    reached = set()
    while pending:
        cell, column, first, last = pending.pop()
        reached.add(cell)
        ray = camera.horizontal[:, column]
        low, high = geometry.low[cell] - position, geometry.high[cell] - position
        to_sides = np.where(ray > 0, high[:2, None], low[:2, None]) / ray
        distance = np.maximum(to_sides.min(axis=0), MIN_DISTANCE)
        ceiling = camera.count_rows_above(high[2] / distance).clip(first, last)
        floor = camera.count_rows_above(low[2] / distance).clip(ceiling, last)
        parts.append(make_spans(column, first, ceiling, high[2], 6 * cell + 5))
        parts.append(make_spans(column, floor, last, low[2], 6 * cell + 4))
        axis = (to_sides[1] < to_sides[0]).astype(np.int64)
        side = 6 * cell + 2 * axis + (ray[axis, np.arange(len(column))] > 0)
        for face in range(6 * cell, 6 * cell + 4):
            rows = np.flatnonzero(side == face)
            if not len(rows):
                continue
            columns, away, start, end = column[rows], distance[rows], ceiling[rows], floor[rows]
            other = 1 - (face % 6) // 2
            along = position[other] + away * ray[other, rows]
            for portal in geometry.portals.get(face, ()):
                is_open = (portal.low < along) & (along < portal.high)
                top = camera.count_rows_above((portal.top - position[2]) / away).clip(start, end)
                bottom = camera.count_rows_above((portal.bottom - position[2]) / away).clip(top, end)
                top, bottom = np.where(is_open, top, start), np.where(is_open, bottom, start)
                parts.append(make_spans(columns, start, top, away, face))
                through = np.flatnonzero(top < bottom)
                if len(through):
                    pending.append((portal.target, columns[through], top[through], bottom[through]))
                start = bottom
            parts.append(make_spans(columns, start, end, away, face))
    return concatenate_spans(parts), reached


def trace_boxes(
    geometry: SceneGeometry, cells: set[int], position: Point, camera: PanoramaCamera, reach: Floats
) -> ColumnSpans:
    """Return the spans of all box faces in the given cells that no other face of the same box hides.

    Boxes may hide each other; their spans then overlap. `reach` (width,) is the distance to the farthest wall
    of every column. A box that contains the camera is not visible.
    """
    index = np.flatnonzero(np.isin(geometry.box_rooms, [-1, *cells])) + geometry.num_cells
    low = (geometry.low[index] - position).astype(np.float32)
    high = (geometry.high[index] - position).astype(np.float32)
    ray = camera.horizontal.astype(np.float32)
    near, far, entered = _intersect_footprints(low, high, ray)
    contains_camera: NDArray[np.bool_] = np.all((low < 0) & (high > 0), axis=1)
    is_hit = (near < far) & (far > MIN_DISTANCE) & (near < reach.astype(np.float32))
    box, column = np.nonzero(is_hit & ~contains_camera[:, None])
    near, far, axis = near[box, column], far[box, column], entered[box, column].astype(np.int64)
    is_under, near = near <= MIN_DISTANCE, np.maximum(near, np.float32(MIN_DISTANCE))
    bottom_height, top_height, face = low[box, 2], high[box, 2], 6 * index[box]
    top, bottom = camera.count_rows_above(top_height / near), camera.count_rows_above(bottom_height / near)
    side = face + 2 * axis + (ray[axis, column] < 0)
    upright = make_spans(column, top, np.where(is_under, top, bottom), near, side)
    below = np.flatnonzero(top_height < 0)
    far_edge = camera.count_rows_above(top_height[below] / far[below])
    tops = make_spans(column[below], far_edge, top[below], top_height[below], face[below] + 5)
    above = np.flatnonzero(bottom_height > 0)
    far_edge = camera.count_rows_above(bottom_height[above] / far[above])
    undersides = make_spans(column[above], bottom[above], far_edge, bottom_height[above], face[above] + 4)
    return concatenate_spans([upright, tops, undersides])


def _intersect_footprints(
    low: NDArray[np.float32], high: NDArray[np.float32], ray: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """Return the distances at which every column's ray enters and leaves every box, seen from above.

    All results have shape (boxes, columns). The third is True where the ray enters through a side of constant
    y.
    """
    nears, fars = [], []
    for axis in (0, 1):
        inverse = 1 / ray[axis]
        is_positive = inverse > 0
        to_low, to_high = low[:, axis, None] * inverse, high[:, axis, None] * inverse
        nears.append(np.where(is_positive, to_low, to_high))
        fars.append(np.where(is_positive, to_high, to_low))
    return np.maximum(*nears), np.minimum(*fars), nears[1] > nears[0]


def _spans_to_pixels(spans: ColumnSpans, camera: PanoramaCamera) -> tuple[Integers, Integers]:
    """Return the pixel indices of all spans, and one sort key per pixel.

    A key has the bits of the distance above the bits of the face number, so that the smallest key is nearest.
    """
    length = spans.last - spans.first
    start = spans.column * camera.height + spans.first
    before = np.cumsum(length) - length
    pixel = np.repeat(start - before, length) + np.arange(length.sum())
    value = np.repeat(spans.value.astype(np.float32), length)
    level = np.flatnonzero(np.repeat(spans.is_level, length))
    value[level] /= camera.slope[pixel[level] % camera.height]
    key = value.view(np.int32).astype(np.int64) << 32
    return pixel, key | np.repeat(spans.face, length)
