"""Which floor of a building each viewpoint is on, told from the heights alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esceme.world.graph import SceneGraph

STOREY = 2.2
"""Metres between two floors at the least; a few steps within a floor are less."""
PRICE_OF_A_FLOOR = 8.0
"""Metres by which another floor must shorten the viewpoints' summed distances to their floors."""


def floors_of(graph: SceneGraph) -> NDArray[np.int64]:
    """The floor of every viewpoint (P,), 0 the lowest; those on stairs belong to the nearest in height.

    >>> rooms = {"hall": (0, 0, 0), "den": (2, 0, 0.6), "stairs": (4, 0, 1.4), "bed": (4, 2, 3)}
    >>> doors = [("hall", "den"), ("den", "stairs"), ("stairs", "bed")]
    >>> floors_of(SceneGraph.build("toy", rooms, doors)).tolist()
    [0, 0, 0, 1]
    """
    heights = graph.positions[:, 2]
    away = np.abs(heights[:, None] - floor_heights(graph))
    return away.argmin(axis=1)


def floor_heights(graph: SceneGraph) -> NDArray[np.float64]:
    """The height of every floor, upwards: the few levels, a storey apart, that lie nearest to all viewpoints.

    Minimises the summed distances to the nearest level plus a price per level, exactly, from the lowest
    level upwards: `cost[top]` is the least for all viewpoints below level `top` if it is one of the floors.
    """
    lowest = graph.positions[:, 2].min()
    heights = graph.positions[:, 2] - lowest
    levels = np.unique(np.round(heights, 1))
    price = min(PRICE_OF_A_FLOOR, len(heights) / 2)
    away = np.abs(heights[:, None] - levels)  # (P, levels)
    above = heights[:, None] >= levels
    cost = np.where(above, 0.0, away).sum(axis=0) + price
    below = np.full(len(levels), -1)
    for top in range(len(levels)):
        for low in np.flatnonzero(levels[top] - levels >= STOREY - 1e-6):
            between = above[:, low] & ~above[:, top]
            total = cost[low] + np.minimum(away[between, low], away[between, top]).sum() + price
            if total < cost[top] - 1e-6:
                cost[top], below[top] = total, low
    top = int(np.round(cost + np.where(above, away, 0.0).sum(axis=0), 6).argmin())
    chosen = [top]
    while below[chosen[-1]] >= 0:
        chosen.append(int(below[chosen[-1]]))
    return lowest + levels[chosen[::-1]]
