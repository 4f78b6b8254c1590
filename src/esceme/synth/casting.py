"""What each direction from a place meets first: rays cast column by column through rooms, openings and boxes.

All rays of one column of a panorama share a vertical plane, in which every upright box is a rectangle. So a
column is cut into spans of rows that show the same face, found from a few distances per column instead of per
pixel: first the air one looks through, room by room and opening by opening, then the solids that stand in it.
Distances here are horizontal; a slope is the rise per horizontal metre.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import WorldError
from esceme.synth.plan import Box, House, Opening

CASING, PROUD = 0.08, 0.015
"""The boards around a door: how wide, and how far they stand out from the wall."""
NEAR = 1e-4
"""What is nearer than this, horizontally, has the eye above or below it."""

Point = tuple[float, float, float]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Portal(NamedTuple):
    """A part of a cell's side that is open, and the cell behind it."""

    low: float
    high: float
    bottom: float
    top: float
    target: int


class Stage:
    """A house as numbers: cells of air (its rooms, then its openings), then solid boxes.

    Each has six faces, numbered 6 * index + 2 * axis, plus one on the side of the larger coordinate.
    """

    def __init__(self, house: House) -> None:
        self.house = house
        self.cells = len(house.rooms) + len(house.openings)
        boxes = [(box, furniture.room) for furniture in house.furniture for box in furniture.boxes]
        named = [index for index, furniture in enumerate(house.furniture) for _ in furniture.boxes]
        boxes += [(box, room_at(house, np.add(box.low, box.high) / 2)) for box in house.stairs]
        boxes += [each for opening in house.openings for each in casings(house, opening)]
        self.boxes = [box for box, _ in boxes]
        self.box_rooms: Integers = np.array([room for _, room in boxes], dtype=np.int64)
        air = [(room.low, room.high) for room in house.rooms]
        air += [opening_cell(house, opening) for opening in house.openings]
        extents = np.array(air + [(box.low, box.high) for box in self.boxes], dtype=np.float64)
        self.low: Floats = extents[:, 0]
        self.high: Floats = extents[:, 1]
        self.owner: NDArray[np.int16] = np.full(len(extents), -1, dtype=np.int16)
        self.owner[self.cells : self.cells + len(named)] = named

    @cached_property
    def portals(self) -> dict[int, list[Portal]]:
        """The open parts of each side, by the number of its face, the highest first."""
        found: defaultdict[int, list[Portal]] = defaultdict(list)
        for index, opening in enumerate(self.house.openings, start=len(self.house.rooms)):
            for end, room in enumerate(opening.rooms):
                bottom = max(opening.bottom, self.low[room, 2])
                top = min(opening.top, self.high[room, 2])
                hole = (opening.low, opening.high, bottom, top)
                found[6 * index + 2 * opening.axis + end].append(Portal(*hole, room))
                found[6 * room + 2 * opening.axis + 1 - end].append(Portal(*hole, index))
        return {side: sorted(portals, key=lambda each: -each.top) for side, portals in found.items()}

    def cell_at(self, position: Point) -> int:
        """The room, or else the opening, that a position is in."""
        low, high = self.low[: self.cells], self.high[: self.cells]
        inside = ((low <= position) & (position <= high)).all(axis=1)
        if not inside.any():
            raise WorldError(
                f"{self.house.scene_id}: {position} is in none of its rooms; place the camera in one"
            )
        return int(inside.argmax())


def opening_cell(house: House, opening: Opening) -> tuple[Point, Point]:
    """The corners of the air within the wall, between the facing sides of the two rooms."""
    before, after = (house.rooms[room] for room in opening.rooms)
    near, far = before.high[opening.axis], after.low[opening.axis]
    if opening.axis == 0:
        return (near, opening.low, opening.bottom), (far, opening.high, opening.top)
    return (opening.low, near, opening.bottom), (opening.high, far, opening.top)


def casings(house: House, opening: Opening) -> list[tuple[Box, int]]:
    """The boards around both ends of a door or an arch, each with its room; none around an open side."""
    if opening.kind == "open":
        return []
    found = []
    left, right, above = opening.low - CASING, opening.high + CASING, opening.top + CASING
    boards = [
        (left, opening.low, opening.bottom, opening.top),
        (opening.high, right, opening.bottom, opening.top),
        (left, right, opening.top, above),
    ]
    for index, depth in zip(opening.rooms, (-PROUD, PROUD), strict=True):
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
                found.append((Box(low, high, opening.frame), index))
    return found


def room_at(house: House, position: Floats) -> int:
    """The room that a position is in, or -1."""
    for index, room in enumerate(house.rooms):
        if (position >= room.low).all() and (position <= room.high).all():
            return index
    return -1


class Lens:
    """The directions of an equirectangular picture's columns and rows."""

    def __init__(self, height: int) -> None:
        self.height, self.width = height, 2 * height
        heading = (np.arange(self.width) + 0.5) / self.width * 2 * np.pi - np.pi
        across = np.stack([np.sin(heading), np.cos(heading)])
        self.across: Floats = np.where(np.abs(across) < 1e-9, 1e-9, across)  # (2, width): east, north
        elevation = np.pi / 2 - (np.arange(height) + 0.5) / height * np.pi
        self.slope: NDArray[np.float32] = np.tan(elevation).astype(np.float32)
        self.stretch: NDArray[np.float32] = (1 / np.cos(elevation)).astype(np.float32)
        """By row: metres along the ray per horizontal metre."""

    def rows_above(self, slope: NDArray[np.floating]) -> Integers:
        """How many rows look higher than a slope."""
        row = (0.5 - np.arctan(slope) / np.pi) * self.height - 0.5
        return np.ceil(row).astype(np.int64).clip(0, self.height)


class Spans(NamedTuple):
    """Parts of columns that each show one face: arrays of equal length."""

    column: Integers
    first: Integers
    last: Integers
    """The row after the last one."""
    flat: NDArray[np.bool_]
    """Whether the face is level: a floor, a ceiling, a table's top."""
    value: Floats
    """Of a level face, its height above the eye; of an upright one, its horizontal distance."""
    face: Integers


def spans_of(
    column: Integers,
    first: Integers,
    last: Integers,
    value: NDArray[np.floating] | float,
    face: Integers | int,
) -> Spans:
    """Those of the spans that have any rows; level ones where `face` is one of a floor or a ceiling."""
    values, faces = np.broadcast_to(value, column.shape), np.broadcast_to(face, column.shape)
    kept = np.flatnonzero(first < last)
    faces = faces[kept]
    return Spans(
        column[kept], first[kept], last[kept], faces % 6 >= 4, values[kept].astype(np.float64), faces
    )


def join(parts: list[Spans]) -> Spans:
    """All spans of the parts."""
    return Spans(
        np.concatenate([part.column for part in parts]),
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.last for part in parts]),
        np.concatenate([part.flat for part in parts]),
        np.concatenate([part.value for part in parts]),
        np.concatenate([part.face for part in parts]),
    )


class Hits(NamedTuple):
    """Per column and row: the horizontal distance to the face that is seen, and its number."""

    distance: NDArray[np.float32]
    face: NDArray[np.int32]


def cast(stage: Stage, position: Point, lens: Lens) -> Hits:
    """What is seen from a position, (width, height) each."""
    air, reached = look_through(stage, stage.cell_at(position), position, lens)
    reach = np.zeros(lens.width)
    np.maximum.at(reach, air.column[~air.flat], air.value[~air.flat])
    boxes = look_at_boxes(stage, reached, position, lens, reach)
    # One integer per pixel, the distance before the face, so that the least of them is what is nearest.
    pixel, nearest = _expand(air, lens)
    seen = np.empty_like(nearest)
    seen[pixel] = nearest
    np.minimum.at(seen, *_expand(boxes, lens))
    shape = (lens.width, lens.height)
    distance = (seen >> 32).astype(np.int32).view(np.float32)
    return Hits(distance.reshape(shape), seen.astype(np.int32).reshape(shape))


def look_through(stage: Stage, cell: int, position: Point, lens: Lens) -> tuple[Spans, set[int]]:
    """Spans of floors, ceilings and walls that cover every pixel once, and the cells that are seen."""
    parts = []
    whole = np.arange(lens.width)
    waiting = [(cell, whole, np.zeros_like(whole), np.full_like(whole, lens.height))]
    reached = set()
    while waiting:
        cell, column, first, last = waiting.pop()
        reached.add(cell)
        ahead = lens.across[:, column]
        low, high = stage.low[cell] - position, stage.high[cell] - position
        to_sides = np.where(ahead > 0, high[:2, None], low[:2, None]) / ahead
        distance = np.maximum(to_sides.min(axis=0), NEAR)
        ceiling = lens.rows_above(high[2] / distance).clip(first, last)
        floor = lens.rows_above(low[2] / distance).clip(ceiling, last)
        parts.append(spans_of(column, first, ceiling, high[2], 6 * cell + 5))
        parts.append(spans_of(column, floor, last, low[2], 6 * cell + 4))
        axis = (to_sides[1] < to_sides[0]).astype(np.int64)
        side = 6 * cell + 2 * axis + (ahead[axis, np.arange(len(column))] > 0)
        for face in range(6 * cell, 6 * cell + 4):
            here = np.flatnonzero(side == face)
            if not len(here):
                continue
            columns, away, start, end = column[here], distance[here], ceiling[here], floor[here]
            other = 1 - (face % 6) // 2
            along = position[other] + away * ahead[other, here]
            for portal in stage.portals.get(face, ()):
                open_here = (portal.low < along) & (along < portal.high)
                top = lens.rows_above((portal.top - position[2]) / away).clip(start, end)
                bottom = lens.rows_above((portal.bottom - position[2]) / away).clip(top, end)
                top, bottom = np.where(open_here, top, start), np.where(open_here, bottom, start)
                parts.append(spans_of(columns, start, top, away, face))
                through = np.flatnonzero(top < bottom)
                if len(through):
                    waiting.append((portal.target, columns[through], top[through], bottom[through]))
                start = bottom
            parts.append(spans_of(columns, start, end, away, face))
    return join(parts), reached


def look_at_boxes(stage: Stage, cells: set[int], position: Point, lens: Lens, reach: Floats) -> Spans:
    """Spans of the faces of the boxes in these cells that are turned to the eye and nearer than `reach`.

    A box around the eye itself is not seen.
    """
    index = np.flatnonzero(np.isin(stage.box_rooms, [-1, *cells])) + stage.cells
    low = (stage.low[index] - position).astype(np.float32)
    high = (stage.high[index] - position).astype(np.float32)
    ahead = lens.across.astype(np.float32)
    near, far, entered = _footprints(low, high, ahead)
    surrounding: NDArray[np.bool_] = np.all((low < 0) & (high > 0), axis=1)
    hit = (near < far) & (far > NEAR) & (near < reach.astype(np.float32)) & ~surrounding[:, None]
    box, column = np.nonzero(hit)
    near, far, axis = near[box, column], far[box, column], entered[box, column].astype(np.int64)
    under, near = near <= NEAR, np.maximum(near, np.float32(NEAR))
    low_rise, high_rise, face = low[box, 2], high[box, 2], 6 * index[box]
    top, bottom = lens.rows_above(high_rise / near), lens.rows_above(low_rise / near)
    side = face + 2 * axis + (ahead[axis, column] < 0)
    upright = spans_of(column, top, np.where(under, top, bottom), near, side)
    over = np.flatnonzero(high_rise < 0)
    farther = lens.rows_above(high_rise[over] / far[over])
    tops = spans_of(column[over], farther, top[over], high_rise[over], face[over] + 5)
    below = np.flatnonzero(low_rise > 0)
    farther = lens.rows_above(low_rise[below] / far[below])
    undersides = spans_of(column[below], bottom[below], farther, low_rise[below], face[below] + 4)
    return join([upright, tops, undersides])


def _footprints(
    low: NDArray[np.float32], high: NDArray[np.float32], ahead: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """Where each column enters and leaves each box as seen from above, and whether through its y side."""
    nears, fars = [], []
    for axis in (0, 1):
        inverse = 1 / ahead[axis]
        positive = inverse > 0
        one, two = low[:, axis, None] * inverse, high[:, axis, None] * inverse
        nears.append(np.where(positive, one, two))
        fars.append(np.where(positive, two, one))
    return np.maximum(*nears), np.minimum(*fars), nears[1] > nears[0]


def _expand(spans: Spans, lens: Lens) -> tuple[Integers, Integers]:
    """The pixels of all spans, and for each the bits of its distance above the number of its face."""
    length = spans.last - spans.first
    start = spans.column * lens.height + spans.first
    before = np.cumsum(length) - length
    pixel = np.repeat(start - before, length) + np.arange(length.sum())
    value = np.repeat(spans.value.astype(np.float32), length)
    flat = np.flatnonzero(np.repeat(spans.flat, length))
    value[flat] /= lens.slope[pixel[flat] % lens.height]
    key = value.view(np.int32).astype(np.int64) << 32
    return pixel, key | np.repeat(spans.face, length)
