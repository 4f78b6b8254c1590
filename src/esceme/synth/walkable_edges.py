"""Edges between viewpoints: straight walkable lines, of which about four per viewpoint are selected."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse.csgraph import connected_components

from esceme.synth.house_model import Opening, Room
from esceme.synth.viewpoint_sampling import (
    EDGE_CLEARANCE,
    MAX_EDGE,
    MIN_EDGE,
    OPENING_CLEARANCE,
    Array,
    FloorPoint,
    Mask,
    points_along,
    rect_distances,
)

DEGREE_COST = 0.15
"""Additional cost of an edge, in metres, for every edge that its two viewpoints already have."""

EdgeList = list[tuple[int, int]]
"""Pairs of viewpoint indices, the smaller index first."""


def find_walkable_pairs(
    rooms: Sequence[Room],
    openings: Sequence[Opening],
    obstacles: Sequence[Array],
    viewpoints: Sequence[FloorPoint],
) -> Mask:
    """Return a mask (P, P): True for two viewpoints on one floor with no wall or furniture in between.

    `obstacles` holds the furniture outlines (F, 4) of every room.
    """
    xy = np.array([point.xy for point in viewpoints])
    floors = np.array([point.floor for point in viewpoints])
    lengths = np.linalg.norm(xy[:, None] - xy[None], axis=2)
    same_level = np.abs(floors[:, None] - floors[None]) < 0.1
    adjacent = np.eye(len(rooms), dtype=bool)
    for opening in openings:
        adjacent[opening.rooms, opening.rooms[::-1]] = True
    room_of = [point.room for point in viewpoints]
    close = (adjacent @ adjacent)[np.ix_(room_of, room_of)]  # at most one room in between
    a, b = np.nonzero(np.triu(close & same_level & (lengths >= MIN_EDGE) & (lengths <= MAX_EDGE), 1))
    free = np.zeros(len(a), dtype=bool)
    for floor in np.unique(floors):
        on_floor = np.abs(floors[a] - floor) < 0.1
        points = points_along(xy[a[on_floor]], xy[b[on_floor]], 81)
        air = _walkable_rects(rooms, openings, float(floor))
        within = (points[:, :, None] >= air[:, :2]) & (points[:, :, None] <= air[:, 2:])
        clear: Mask = np.asarray(within.all(axis=-1).any(axis=-1).all(axis=-1))
        level_rooms = [index for index, room in enumerate(rooms) if abs(room.low[2] - floor) < 0.1]
        furniture = np.concatenate([np.zeros((0, 4)), *(obstacles[index] for index in level_rooms)])
        distances = rect_distances(points[clear][:, ::2], furniture)
        clear[clear] = (distances >= EDGE_CLEARANCE).all(axis=(1, 2))
        free[on_floor] = clear
    walkable = np.zeros((len(viewpoints), len(viewpoints)), dtype=bool)
    walkable[a[free], b[free]] = walkable[b[free], a[free]] = True
    return walkable


def _walkable_rects(rooms: Sequence[Room], openings: Sequence[Opening], floor: float) -> Array:
    """Return the rectangles (R, 4) without walls at a floor height: rooms, and the middle of openings."""
    rects = [(*room.low[:2], *room.high[:2]) for room in rooms if room.low[2] < floor + 0.1 < room.high[2]]
    for opening in openings:
        if abs(opening.bottom - floor) < 0.1:
            first, second = (rooms[index] for index in opening.rooms)
            wall = first.high[opening.axis], second.low[opening.axis]
            hole = opening.low + OPENING_CLEARANCE, opening.high - OPENING_CLEARANCE
            (x0, x1), (y0, y1) = (wall, hole) if opening.axis == 0 else (hole, wall)
            rects.append((x0, y0, x1, y1))
    return np.array(rects)


def is_connected(adjacency: Mask) -> bool:
    """Return whether a graph with this adjacency matrix (P, P) is connected."""
    return bool(connected_components(adjacency.astype(np.int8))[0] == 1)


def select_edges(walkable: Mask, positions: Array, *, degree: float) -> EdgeList:
    """Select walkable pairs as edges until the mean number of edges per viewpoint is `degree`.

    First, an edge from a to b is selected if no third viewpoint is closer to a and to b than they are to each
    other (relative neighbourhood graph). These edges contain a minimum spanning tree, so that connected
    viewpoints stay connected. Further edges are selected by their cost. Short edges between viewpoints with
    few edges cost least. An edge costs more if a third viewpoint lies in the circle whose diameter is the
    edge, that is, if the edge is not in the Gabriel graph.
    """
    lengths = np.where(walkable, np.linalg.norm(positions[:, None] - positions[None], axis=2), np.inf)
    a, b = np.nonzero(np.triu(walkable))
    length = lengths[a, b]
    has_between = np.maximum(lengths[a], lengths[b]).min(axis=1) < length
    has_in_circle = (lengths[a] ** 2 + lengths[b] ** 2).min(axis=1) < length**2
    detour = (lengths[a] + lengths[b]).min(axis=1) / length
    cost = length * np.where(detour < 1.06, 1.6, 1.0)  # an edge that passes close to another viewpoint
    selected = ~has_between
    degrees = np.bincount(np.concatenate([a[selected], b[selected]]), minlength=len(positions))
    while selected.sum() < degree * len(positions) / 2 and not selected.all():
        degree_cost = DEGREE_COST * (degrees[a] + degrees[b]) - (np.minimum(degrees[a], degrees[b]) == 1)
        best = int(np.where(selected, np.inf, cost + has_in_circle + degree_cost).argmin())
        selected[best] = True
        degrees[[a[best], b[best]]] += 1
    return sorted((int(one), int(two)) for one, two in zip(a[selected], b[selected], strict=True))
