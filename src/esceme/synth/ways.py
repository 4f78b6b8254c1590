"""Which places of a house are joined: straight free ways, thinned until a house has about four per place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.csgraph import connected_components

from esceme.synth.plan import Opening, Room
from esceme.synth.spots import ALONG, JAMB, LONGEST, SHORTEST, Array, Mask, Spot, gaps, samples

CROWDING = 0.15
"""What one more edge at either end counts when edges are chosen, in metres."""

Edges = list[tuple[int, int]]


def walkable(
    rooms: Sequence[Room], openings: Sequence[Opening], obstacles: Sequence[Array], spots: Sequence[Spot]
) -> Mask:
    """Between which spots (P, P) of one level a straight way is free of walls and furniture.

    `obstacles` holds the outlines of furniture (F, 4) room by room.
    """
    at = np.array([spot.at for spot in spots])
    floors = np.array([spot.floor for spot in spots])
    lengths = np.linalg.norm(at[:, None] - at[None], axis=2)
    level = np.abs(floors[:, None] - floors[None]) < 0.1
    close = _at_most_one_between(len(rooms), openings)[np.ix_(*[[spot.room for spot in spots]] * 2)]
    a, b = np.nonzero(np.triu(close & level & (lengths >= SHORTEST) & (lengths <= LONGEST), 1))
    free = np.zeros(len(a), dtype=bool)
    for floor in np.unique(floors):
        those = np.abs(floors[a] - floor) < 0.1
        points = samples(at[a[those]], at[b[those]], 81)
        inside = _indoors(rooms, openings, float(floor))
        within = (points[:, :, None] >= inside[:, :2]) & (points[:, :, None] <= inside[:, 2:])
        indoors: Mask = np.asarray(within.all(axis=-1).any(axis=-1).all(axis=-1))
        level_rooms = [index for index, room in enumerate(rooms) if abs(room.low[2] - floor) < 0.1]
        things = np.concatenate([np.zeros((0, 4)), *(obstacles[index] for index in level_rooms)])
        indoors[indoors] = (gaps(points[indoors][:, ::2], things) >= ALONG).all(axis=(1, 2))
        free[those] = indoors
    result = np.zeros((len(spots), len(spots)), dtype=bool)
    result[a[free], b[free]] = result[b[free], a[free]] = True
    return result


def _at_most_one_between(count: int, openings: Sequence[Opening]) -> Mask:
    """Which rooms (R, R) are the same, open to each other, or both open to a third."""
    step = np.eye(count, dtype=bool)
    for opening in openings:
        step[opening.rooms, opening.rooms[::-1]] = True
    return step @ step


def _indoors(rooms: Sequence[Room], openings: Sequence[Opening], floor: float) -> Array:
    """Where one can be on a level (R, 4): in its rooms and, off their sides, in the openings."""
    rects = [(*room.low[:2], *room.high[:2]) for room in rooms if room.low[2] < floor + 0.1 < room.high[2]]
    for opening in openings:
        if abs(opening.bottom - floor) < 0.1:
            first, second = (rooms[index] for index in opening.rooms)
            wall = first.high[opening.axis], second.low[opening.axis]
            hole = opening.low + JAMB, opening.high - JAMB
            (x0, x1), (y0, y1) = (wall, hole) if opening.axis == 0 else (hole, wall)
            rects.append((x0, y0, x1, y1))
    return np.array(rects)


def is_connected(joined: Mask) -> bool:
    """Whether the graph is in one piece."""
    return bool(connected_components(joined.astype(np.int8))[0] == 1)


def thin(joined: Mask, positions: Array, *, degree: float) -> Edges:
    """As many of the edges as give the mean degree, the graph as connected as it was.

    First those that no third place lies between (the relative neighbourhood, which holds a shortest spanning
    tree), then short ones between places that have few, rather with no third place in the circle over them
    (Gabriel's graph).
    """
    lengths = np.where(joined, np.linalg.norm(positions[:, None] - positions[None], axis=2), np.inf)
    a, b = np.nonzero(np.triu(joined))
    length = lengths[a, b]
    between = np.maximum(lengths[a], lengths[b]).min(axis=1) < length
    circled = (lengths[a] ** 2 + lengths[b] ** 2).min(axis=1) < length**2
    aside = (lengths[a] + lengths[b]).min(axis=1) / length
    cost = length * np.where(aside < 1.06, 1.6, 1.0)  # straight past another place: rarely worth an edge
    kept = ~between
    degrees = np.bincount(np.concatenate([a[kept], b[kept]]), minlength=len(positions))
    while kept.sum() < degree * len(positions) / 2 and not kept.all():
        crowded = CROWDING * (degrees[a] + degrees[b]) - (np.minimum(degrees[a], degrees[b]) == 1)
        best = int(np.where(kept, np.inf, cost + circled + crowded).argmin())
        kept[best] = True
        degrees[[a[best], b[best]]] += 1
    return sorted((int(one), int(two)) for one, two in zip(a[kept], b[kept], strict=True))
