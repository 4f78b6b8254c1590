"""Where one can stand in a house: spots on both sides of every opening, and spread over every room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import label
from scipy.sparse.csgraph import connected_components

from esceme.synth.plan import Opening, Room

BESIDE = 0.45
"""Free space around a place, in metres."""
ALONG = 0.4
"""Free space on both sides of a way."""
JAMB = 0.17
"""How far from the side of an opening one walks through it."""
STEP = 0.2
"""Spacing of the spots that are tried."""
SHORTEST, LONGEST = 0.8, 5.0
"""How long an edge may be."""
BRIDGES = 4
"""How many spots may be added to a room to join its others."""

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Spot(NamedTuple):
    """A place to stand before it has a name: in which room, where on the floor, how high that floor is."""

    room: int
    at: tuple[float, float]
    floor: float


class Ground(NamedTuple):
    """The floor of a room: where one can stand (S, 2), all of it within reach of all its openings."""

    spots: Array
    obstacles: Array
    """Outlines of furniture (F, 4)."""


def gaps(points: Array, rects: Array) -> Array:
    """Distances (..., R) from points (..., 2) to rectangles (R, 4); zero inside."""
    beyond = np.maximum(rects[:, :2] - points[..., None, :], points[..., None, :] - rects[:, 2:])
    beyond = np.maximum(beyond, 0.0)
    return np.hypot(beyond[..., 0], beyond[..., 1])


def samples(starts: Array, ends: Array, count: int) -> Array:
    """Points along straight lines (E, count, 2)."""
    share = np.linspace(0.0, 1.0, count)[:, None]
    return starts[:, None] * (1 - share) + ends[:, None] * share


def is_clear(starts: Array, ends: Array, obstacles: Array) -> Mask:
    """Which straight ways (E,) keep their distance from every obstacle."""
    if not len(obstacles):
        return np.ones(len(starts), dtype=bool)
    return np.asarray((gaps(samples(starts, ends, 41), obstacles) >= ALONG).all(axis=(1, 2)))


def survey(index: int, room: Room, openings: Sequence[Opening], obstacles: Array) -> Ground:
    """The part of a room's floor that links all its openings; nothing if the obstacles leave no such part."""
    low, high = np.array(room.low[:2]), np.array(room.high[:2])
    size = high - low
    margin = np.minimum(np.where(size < 2.6, 0.42, 0.5), size / 2 - 0.05)
    counts = np.floor((size - 2 * margin) / STEP).astype(int) + 1
    axes = [np.linspace(low[i] + margin[i], high[i] - margin[i], counts[i]) for i in (0, 1)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    free = np.ones(grid.shape[:2], dtype=bool)
    if len(obstacles):
        free = np.asarray((gaps(grid, obstacles) >= BESIDE).all(axis=-1))
    parts, found = label(free, structure=np.ones((3, 3)))
    shared = set(range(1, found + 1))
    for opening in openings:
        shared &= set(parts[_in_front(grid, index, room, opening)].tolist())
    if not shared:
        return Ground(np.zeros((0, 2)), obstacles)
    return Ground(grid[parts == max(shared, key=lambda part: int((parts == part).sum()))], obstacles)


def face_of(index: int, room: Room, opening: Opening) -> float:
    """Where the side of a room is that an opening is in."""
    return room.high[opening.axis] if opening.rooms[0] == index else room.low[opening.axis]


def _in_front(points: Array, index: int, room: Room, opening: Opening) -> Mask:
    """Which points of a room lie straight in front of an opening, at most a good step from it."""
    across, along = points[..., opening.axis], points[..., 1 - opening.axis]
    near = np.abs(across - face_of(index, room, opening)) < 1.0
    return np.asarray(near & (along > opening.low + JAMB) & (along < opening.high - JAMB))


def find_spots(
    rooms: Sequence[Room],
    openings: Sequence[Opening],
    grounds: Sequence[Ground],
    fixed: Sequence[Spot],
    *,
    spacing: float,
) -> list[Spot]:
    """The fixed spots, one on each side of every opening, and more until no floor is far from one."""
    spots = list(fixed)
    for opening in openings:
        spots += _doorsteps(rooms, opening, grounds, spots)
    for index, room in enumerate(rooms):
        here = np.array([spot.at for spot in spots if spot.room == index]).reshape(-1, 2)
        if len(grounds[index].spots):
            more = _bridge(grounds[index], _spread(grounds[index], here, spacing))[len(here) :]
            spots += [Spot(index, (float(x), float(y)), room.low[2]) for x, y in more]
    return spots


def _doorsteps(
    rooms: Sequence[Room], opening: Opening, grounds: Sequence[Ground], spots: Sequence[Spot]
) -> list[Spot]:
    """The new spots, none to two, with which one can walk straight through an opening."""
    tried, fresh = [], []
    for index in opening.rooms:
        known, new = _near_opening(index, rooms[index], opening, grounds[index], spots)
        tried.append(np.concatenate([known, new]))
        fresh.append(np.arange(len(known) + len(new)) >= len(known))
    a, b = (grid.ravel() for grid in np.indices((len(tried[0]), len(tried[1]))))
    starts, ends = tried[0][a], tried[1][b]
    lengths = np.linalg.norm(ends - starts, axis=1)
    askew = np.abs(ends - starts)[:, 1 - opening.axis] / lengths
    cost = np.abs(lengths - 1.35) + 0.7 * (fresh[0][a] + 1.0 * fresh[1][b]) + 0.8 * askew
    cost += np.where(passes(starts, ends, rooms, opening) & (lengths > 0.9) & (lengths < LONGEST), 0, np.inf)
    obstacles = np.concatenate([grounds[index].obstacles for index in opening.rooms])
    for pair in np.argsort(cost, kind="stable")[: int(np.isfinite(cost).sum())]:
        if is_clear(starts[pair][None], ends[pair][None], obstacles)[0]:
            sides = zip(opening.rooms, (a[pair], b[pair]), tried, fresh, strict=True)
            return [
                Spot(room, (float(points[at][0]), float(points[at][1])), opening.bottom)
                for room, at, points, new in sides
                if new[at]
            ]
    return []


def _near_opening(
    index: int, room: Room, opening: Opening, ground: Ground, spots: Sequence[Spot]
) -> tuple[Array, Array]:
    """Spots already chosen near an opening on one side of it, and new ones not too close to those."""
    middle = np.empty(2)
    middle[opening.axis] = face_of(index, room, opening)
    middle[1 - opening.axis] = (opening.low + opening.high) / 2
    chosen = [spot.at for spot in spots if spot.room == index and abs(spot.floor - opening.bottom) < 0.1]
    known = np.array(chosen).reshape(-1, 2)
    new = ground.spots[np.linalg.norm(ground.spots - middle, axis=1) < max(1.3, opening.high - opening.low)]
    if len(known):
        apart = np.linalg.norm(new[:, None] - known[None], axis=2).min(axis=1)
        new = new[apart > 1.1]
    return known[np.linalg.norm(known - middle, axis=1) < 2.5], new


def passes(starts: Array, ends: Array, rooms: Sequence[Room], opening: Opening) -> Mask:
    """Which straight ways, from its first room to its second, go through an opening off its sides."""
    across, along = opening.axis, 1 - opening.axis
    inside = np.ones(len(starts), dtype=bool)
    for index in opening.rooms:
        face = face_of(index, rooms[index], opening)
        share = (face - starts[:, across]) / (ends[:, across] - starts[:, across])
        at = starts[:, along] + share * (ends[:, along] - starts[:, along])
        inside &= (at > opening.low + JAMB) & (at < opening.high - JAMB)
    return inside


def _spread(ground: Ground, here: Array, spacing: float) -> Array:
    """A room's spots and more, always where the next one is farthest but can be walked to straight away."""
    left = ground.spots
    while len(left):
        if len(here):
            apart = np.linalg.norm(left[:, None] - here[None], axis=2).min(axis=1)
            best = int(apart.argmax())
            if apart[best] < spacing:
                break
        else:
            best = int(np.linalg.norm(left - left.mean(axis=0), axis=1).argmin())
        spot, left = left[best : best + 1], np.delete(left, best, axis=0)
        if not len(here) or _sees(spot, here, ground.obstacles).any():
            here = np.concatenate([here, spot])
    return here


def _bridge(ground: Ground, here: Array) -> Array:
    """A room's spots and more where furniture keeps them apart, until one can walk from each to each."""
    for _ in range(BRIDGES):
        parts, part_of = connected_components(_sees(here, here, ground.obstacles).astype(np.int8))
        if parts == 1:
            break
        sees = _sees(ground.spots, here, ground.obstacles)
        seen = np.stack([sees[:, part_of == part].any(axis=1) for part in range(parts)], axis=1)
        apart = np.linalg.norm(ground.spots[:, None] - here[None], axis=2)
        towards = np.where(seen[:, part_of], np.inf, apart).min(axis=1)  # to the nearest part out of sight
        towards[~seen.any(axis=1) | (apart.min(axis=1) < SHORTEST)] = np.inf
        joins = np.where(apart.min(axis=1) >= SHORTEST, seen.sum(axis=1), 0)
        best = joins.argmax() if joins.max() > 1 else towards.argmin()
        here = np.concatenate([here, ground.spots[best][None]])
    return here


def _sees(starts: Array, ends: Array, obstacles: Array) -> Mask:
    """From which starts to which ends (S, E) of one room a straight way is free and as long as an edge."""
    a, b = (grid.ravel() for grid in np.indices((len(starts), len(ends))))
    lengths = np.linalg.norm(starts[a] - ends[b], axis=1)
    sees = (lengths >= SHORTEST) & (lengths <= LONGEST)
    sees[sees] = is_clear(starts[a[sees]], ends[b[sees]], obstacles)
    return sees.reshape(len(starts), len(ends))
