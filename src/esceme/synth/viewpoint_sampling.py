"""Viewpoint sampling: points on both sides of every opening, and points spread over every room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label
from scipy.sparse.csgraph import connected_components

from esceme.synth.house_model import Opening, Room

VIEWPOINT_CLEARANCE = 0.45
"""Minimum distance from a viewpoint to furniture in metres."""
EDGE_CLEARANCE = 0.4
"""Minimum distance from an edge of the graph to furniture, in metres."""
OPENING_CLEARANCE = 0.17
"""Minimum distance from an edge of the graph to the sides of an opening, in metres."""
GRID_SPACING = 0.2
"""Distance in metres of neighbouring grid points, at which viewpoints may be placed."""
MIN_EDGE, MAX_EDGE = 0.8, 5.0
"""Minimum and maximum length of an edge, in metres."""
MAX_CONNECTING_POINTS = 4
"""Maximum number of viewpoints added to a room to connect its other viewpoints."""

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class FloorPoint(NamedTuple):
    """Future viewpoint: room index, x and y, and height of the floor, all lengths in metres."""

    room: int
    xy: tuple[float, float]
    floor: float


class FreeFloor(NamedTuple):
    """Part of a room's floor without furniture that is connected to all openings of the room.

    `points` (S, 2) are its grid points, at which viewpoints may be placed. `obstacles` (F, 4) are the
    outlines of the furniture: lower x, lower y, higher x, higher y.
    """

    points: Array
    obstacles: Array


def rect_distances(points: Array, rects: Array) -> Array:
    """Return the distances (..., R) in metres from points (..., 2) to rectangles (R, 4); zero inside."""
    outside = np.maximum(rects[:, :2] - points[..., None, :], points[..., None, :] - rects[:, 2:])
    outside = np.maximum(outside, 0.0)
    return np.hypot(outside[..., 0], outside[..., 1])


def points_along(starts: Array, ends: Array, count: int) -> Array:
    """Return `count` evenly spaced points on every line from `starts` to `ends`: (E, 2) -> (E, count, 2)."""
    share = np.linspace(0.0, 1.0, count)[:, None]
    return starts[:, None] * (1 - share) + ends[:, None] * share


def is_clear_of_furniture(starts: Array, ends: Array, obstacles: Array) -> Mask:
    """Return a mask (E,) that is True for lines at least `EDGE_CLEARANCE` away from all obstacles."""
    if not len(obstacles):
        return np.ones(len(starts), dtype=bool)
    distances = rect_distances(points_along(starts, ends, 41), obstacles)
    return np.asarray((distances >= EDGE_CLEARANCE).all(axis=(1, 2)))


def find_free_floor(index: int, room: Room, openings: Sequence[Opening], obstacles: Array) -> FreeFloor:
    """Return the largest free part of a room's floor that is connected to all openings of the room.

    The result has no points if there is no such part. `index` is the index of the room.
    """
    low, high = np.array(room.low[:2]), np.array(room.high[:2])
    size = high - low
    margin = np.minimum(np.where(size < 2.6, 0.42, 0.5), size / 2 - 0.05)
    counts = np.floor((size - 2 * margin) / GRID_SPACING).astype(int) + 1
    axes = [np.linspace(low[i] + margin[i], high[i] - margin[i], counts[i]) for i in (0, 1)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    free = np.ones(grid.shape[:2], dtype=bool)
    if len(obstacles):
        free = np.asarray((rect_distances(grid, obstacles) >= VIEWPOINT_CLEARANCE).all(axis=-1))
    part_of, num_parts = label(free, structure=np.ones((3, 3)))
    linking = set(range(1, num_parts + 1))
    for opening in openings:
        across, along = grid[..., opening.axis], grid[..., 1 - opening.axis]
        in_front = np.abs(across - face_coordinate(index, room, opening)) < 1.0
        in_front &= (along > opening.low + OPENING_CLEARANCE) & (along < opening.high - OPENING_CLEARANCE)
        linking &= set(part_of[in_front].tolist())
    if not linking:
        return FreeFloor(np.zeros((0, 2)), obstacles)
    return FreeFloor(grid[part_of == max(linking, key=lambda part: int((part_of == part).sum()))], obstacles)


def face_coordinate(index: int, room: Room, opening: Opening) -> float:
    """Return the coordinate along `opening.axis` of the wall of room `index` that contains the opening."""
    return room.high[opening.axis] if opening.rooms[0] == index else room.low[opening.axis]


def sample_viewpoints(
    rooms: Sequence[Room],
    openings: Sequence[Opening],
    floors: Sequence[FreeFloor],
    fixed_points: Sequence[FloorPoint],
    *,
    spacing: float,
) -> list[FloorPoint]:
    """Return viewpoints: the fixed points, points on both sides of openings, and points spread over rooms.

    Every grid point of `floors` (one per room) is then at most `spacing` metres from a viewpoint, if
    possible.
    """
    viewpoints = list(fixed_points)
    for opening in openings:
        viewpoints += _new_points_at_opening(rooms, opening, floors, viewpoints)
    for index, room in enumerate(rooms):
        chosen = np.array([point.xy for point in viewpoints if point.room == index]).reshape(-1, 2)
        if len(floors[index].points):
            more = _add_connecting_points(floors[index], _add_spread_points(floors[index], chosen, spacing))[
                len(chosen) :
            ]
            viewpoints += [FloorPoint(index, (float(x), float(y)), room.low[2]) for x, y in more]
    return viewpoints


def _new_points_at_opening(
    rooms: Sequence[Room], opening: Opening, floors: Sequence[FreeFloor], viewpoints: Sequence[FloorPoint]
) -> list[FloorPoint]:
    """Return the new viewpoints (at most two) that are needed for a straight edge through an opening."""
    candidates, is_new = [], []
    for index in opening.rooms:
        chosen, new = _find_points_near_opening(index, rooms[index], opening, floors[index], viewpoints)
        candidates.append(np.concatenate([chosen, new]))
        is_new.append(np.arange(len(chosen) + len(new)) >= len(chosen))
    a, b = (grid.ravel() for grid in np.indices((len(candidates[0]), len(candidates[1]))))
    starts, ends = candidates[0][a], candidates[1][b]
    lengths = np.linalg.norm(ends - starts, axis=1)
    skew = np.abs(ends - starts)[:, 1 - opening.axis] / lengths
    cost = np.abs(lengths - 1.35) + 0.7 * (is_new[0][a] + 1.0 * is_new[1][b]) + 0.8 * skew
    is_valid = _crosses_opening(starts, ends, rooms, opening) & (lengths > 0.9) & (lengths < MAX_EDGE)
    cost += np.where(is_valid, 0, np.inf)
    obstacles = np.concatenate([floors[index].obstacles for index in opening.rooms])
    for pair in np.argsort(cost, kind="stable")[: int(np.isfinite(cost).sum())]:
        if is_clear_of_furniture(starts[pair][None], ends[pair][None], obstacles)[0]:
            sides = zip(opening.rooms, (a[pair], b[pair]), candidates, is_new, strict=True)
            return [
                FloorPoint(room, (float(points[chosen][0]), float(points[chosen][1])), opening.bottom)
                for room, chosen, points, new in sides
                if new[chosen]
            ]
    return []


def _find_points_near_opening(
    index: int, room: Room, opening: Opening, floor: FreeFloor, viewpoints: Sequence[FloorPoint]
) -> tuple[Array, Array]:
    """Return the viewpoints of room `index` near an opening, and grid points not too close to viewpoints."""
    middle = np.empty(2)
    middle[opening.axis] = face_coordinate(index, room, opening)
    middle[1 - opening.axis] = (opening.low + opening.high) / 2
    same_floor = [p.xy for p in viewpoints if p.room == index and abs(p.floor - opening.bottom) < 0.1]
    chosen = np.array(same_floor).reshape(-1, 2)
    reach = max(1.3, opening.high - opening.low)
    new = floor.points[np.linalg.norm(floor.points - middle, axis=1) < reach]
    if len(chosen):
        new = new[np.linalg.norm(new[:, None] - chosen[None], axis=2).min(axis=1) > 1.1]
    return chosen[np.linalg.norm(chosen - middle, axis=1) < 2.5], new


def _crosses_opening(starts: Array, ends: Array, rooms: Sequence[Room], opening: Opening) -> Mask:
    """Return a mask (E,): True for lines from the first room to the second that pass through the opening."""
    across, along = opening.axis, 1 - opening.axis
    inside = np.ones(len(starts), dtype=bool)
    for index in opening.rooms:
        face = face_coordinate(index, rooms[index], opening)
        share = (face - starts[:, across]) / (ends[:, across] - starts[:, across])
        at = starts[:, along] + share * (ends[:, along] - starts[:, along])
        inside &= (at > opening.low + OPENING_CLEARANCE) & (at < opening.high - OPENING_CLEARANCE)
    return inside


def _add_spread_points(floor: FreeFloor, chosen: Array, spacing: float) -> Array:
    """Return the chosen points and more grid points, so that every grid point is near a chosen point.

    Near means within `spacing` metres. The farthest grid point is added first, if an edge can join it to a
    chosen point.
    """
    remaining = floor.points
    while len(remaining):
        if len(chosen):
            distance = np.linalg.norm(remaining[:, None] - chosen[None], axis=2).min(axis=1)
            best = int(distance.argmax())
            if distance[best] < spacing:
                break
        else:
            best = int(np.linalg.norm(remaining - remaining.mean(axis=0), axis=1).argmin())
        point, remaining = remaining[best : best + 1], np.delete(remaining, best, axis=0)
        if not len(chosen) or _can_be_joined(point, chosen, floor.obstacles).any():
            chosen = np.concatenate([chosen, point])
    return chosen


def _add_connecting_points(floor: FreeFloor, chosen: Array) -> Array:
    """Return the chosen points and more grid points, so that edges can connect all chosen points.

    At most `MAX_CONNECTING_POINTS` points are added.
    """
    for _ in range(MAX_CONNECTING_POINTS):
        num_parts, part_of = connected_components(
            _can_be_joined(chosen, chosen, floor.obstacles).astype(np.int8)
        )
        if num_parts == 1:
            break
        has_edge = _can_be_joined(floor.points, chosen, floor.obstacles)
        joined = np.stack([has_edge[:, part_of == part].any(axis=1) for part in range(num_parts)], axis=1)
        distance = np.linalg.norm(floor.points[:, None] - chosen[None], axis=2)
        to_unjoined = np.where(joined[:, part_of], np.inf, distance).min(axis=1)
        too_close = distance.min(axis=1) < MIN_EDGE
        to_unjoined[~joined.any(axis=1) | too_close] = np.inf
        num_joined = np.where(too_close, 0, joined.sum(axis=1))
        best = num_joined.argmax() if num_joined.max() > 1 else to_unjoined.argmin()
        chosen = np.concatenate([chosen, floor.points[best][None]])
    return chosen


def _can_be_joined(starts: Array, ends: Array, obstacles: Array) -> Mask:
    """Return a mask (S, E): True for pairs of points in one room that an edge can join.

    The line must be clear of furniture and its length between `MIN_EDGE` and `MAX_EDGE`.
    """
    a, b = (grid.ravel() for grid in np.indices((len(starts), len(ends))))
    lengths = np.linalg.norm(starts[a] - ends[b], axis=1)
    has_edge = (lengths >= MIN_EDGE) & (lengths <= MAX_EDGE)
    has_edge[has_edge] = is_clear_of_furniture(starts[a[has_edge]], ends[b[has_edge]], obstacles)
    return has_edge.reshape(len(starts), len(ends))
