"""Floors of a scene: found from the heights of viewpoints, and arranged as panels of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.report.svg import text_width
from esceme.world.graph import SceneGraph

MIN_STOREY = 2.2
"""Minimum distance of two floors in metres; smaller differences are steps within a floor."""
FLOOR_COST = 8.0
"""Cost of a floor in metres. A floor must reduce the sum of distances to the nearest floor by more."""
WIDTH, HEIGHT = 720.0, 460.0
"""Pixels available to all panels. The height may be exceeded so that the scale is at least `MIN_SCALE`."""
MAX_SCALE, MIN_SCALE = 22.0, 10.0
"""Maximum and minimum of the scale in pixels per metre."""
THUMBNAIL_SCALE, THUMBNAIL_SIZE = 0.4, 130.0
"""Scale of thumbnails relative to panels, and their maximum size in pixels."""
GAP, HEADING_HEIGHT, HEADING_SIZE = 16.0, 15.0, 9.0

Point = tuple[float, float]
"""x and y in pixels."""


def floor_indices(graph: SceneGraph) -> NDArray[np.int64]:
    """Return the floor of every viewpoint (P,), counted from 0 at the bottom.

    Viewpoints on stairs belong to the nearest floor.

    >>> rooms = {"hall": (0, 0, 0), "den": (2, 0, 0.6), "stairs": (4, 0, 1.4), "bed": (4, 2, 3)}
    >>> doors = [("hall", "den"), ("den", "stairs"), ("stairs", "bed")]
    >>> floor_indices(SceneGraph.build("toy", rooms, doors)).tolist()
    [0, 0, 0, 1]
    """
    heights = graph.positions[:, 2]
    return np.abs(heights[:, None] - floor_heights(graph)).argmin(axis=1)


def floor_heights(graph: SceneGraph) -> NDArray[np.float64]:
    """Return the height of every floor in metres, from the lowest to the highest.

    The floors minimise the sum of the distances from viewpoints to their nearest floor, plus a cost per
    floor. Dynamic programming over possible heights (levels) finds the exact minimum: `cost[top]` is the
    minimum for all viewpoints below level `top` if this level is a floor.
    """
    lowest = graph.positions[:, 2].min()
    heights = graph.positions[:, 2] - lowest
    levels = np.unique(np.round(heights, 1))
    floor_cost = min(FLOOR_COST, len(heights) / 2)
    distances = np.abs(heights[:, None] - levels)  # (P, levels)
    is_above = heights[:, None] >= levels
    cost = np.where(is_above, 0.0, distances).sum(axis=0) + floor_cost
    below = np.full(len(levels), -1)
    for top in range(len(levels)):
        for low in np.flatnonzero(levels[top] - levels >= MIN_STOREY - 1e-6):
            between = is_above[:, low] & ~is_above[:, top]
            nearest = np.minimum(distances[between, low], distances[between, top])
            total = cost[low] + nearest.sum() + floor_cost
            if total < cost[top] - 1e-6:
                cost[top], below[top] = total, low
    top = int(np.round(cost + np.where(is_above, distances, 0.0).sum(axis=0), 6).argmin())
    chosen = [top]
    while below[chosen[-1]] >= 0:
        chosen.append(int(below[chosen[-1]]))
    return lowest + levels[chosen[::-1]]


# -- panels ----------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """A rectangle seen from above, in metres."""

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def around(cls, positions: NDArray[np.float64], margin: float) -> Bounds:
        """Return the bounding box of positions (N, 2), enlarged by `margin` metres on all sides."""
        return cls(*(positions.min(axis=0) - margin).tolist(), *(positions.max(axis=0) + margin).tolist())

    def intersection(self, other: Bounds) -> Bounds:
        """Return the intersection of this rectangle and another."""
        low, high = np.maximum(self[:2], other[:2]), np.minimum(self[2:], other[2:])
        return Bounds(*low.tolist(), *high.tolist())

    @property
    def size(self) -> tuple[float, float]:
        """Width and height in metres."""
        return self.east - self.west, self.north - self.south

    def overlaps(self, positions: NDArray[np.float64]) -> bool:
        """Return whether the bounding box of positions (N, 2) overlaps this rectangle."""
        low, high = positions.min(axis=0), positions.max(axis=0)
        return bool((high >= self[:2]).all() and (low <= self[2:]).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Drawing of one floor, or of a part of a floor, and its position in the figure in pixels."""

    floor: int
    heading: str
    bounds: Bounds
    is_thumbnail: bool = False
    """Whether this is a small overview of a floor without paths or of a floor shown in part."""
    focus: Bounds | None = None
    """Part of the floor that gets a frame, if a large panel shows only this part."""
    scale: float = 1.0
    """Pixels per metre."""
    x: float = 0.0
    y: float = 0.0
    top: float = 0.0
    """Vertical position of the heading in pixels; at most `y`."""

    @property
    def width(self) -> float:
        """Width in pixels."""
        return max(self.bounds.size[0] * self.scale, text_width(self.heading, HEADING_SIZE))

    @property
    def height(self) -> float:
        """Height in pixels, without the heading."""
        return self.bounds.size[1] * self.scale

    def to_pixels(self, position: NDArray[np.float64]) -> Point:
        """Return the point in the figure, in pixels, of a position in metres."""
        east, north = position[:2].tolist()
        x = self.x + (east - self.bounds.west) * self.scale
        return x, self.y + (self.bounds.north - north) * self.scale

    def rectangle(self, bounds: Bounds) -> dict[str, float]:
        """Return x, y, width and height in pixels of a part of the floor, as attributes of an SVG element."""
        x, y = self.to_pixels(np.array([bounds.west, bounds.north]))
        width, height = bounds.size
        return {"x": x, "y": y, "width": width * self.scale, "height": height * self.scale}


def arrange_panels(panels: Sequence[Panel]) -> list[Panel]:
    """Return the panels, placed in the figure at the largest scale at which all panels fit.

    Thumbnails are placed to the right of the large panels or below them.
    """
    thumbnails = [panel for panel in panels if panel.is_thumbnail]
    limits = [THUMBNAIL_SIZE / side for panel in thumbnails for side in panel.bounds.size]
    scale = MAX_SCALE
    while True:
        large = _place_in_rows([replace(panel, scale=scale) for panel in panels if not panel.is_thumbnail])
        small_scale = min([scale * THUMBNAIL_SCALE, *limits])
        small = [replace(panel, scale=small_scale) for panel in thumbnails]
        width, height = total_size(large)
        beside = _place_in_columns(small, x=width + GAP, height=max(height, THUMBNAIL_SIZE))
        below = _place_in_rows(small, y=height + GAP)
        for placed in (large + beside, large + below):
            width, height = total_size(placed)
            if width <= WIDTH and (height <= HEIGHT or scale <= MIN_SCALE):
                return placed
        scale *= 0.97


def total_size(panels: Sequence[Panel]) -> tuple[float, float]:
    """Return width and height of all panels together, in pixels."""
    return max(panel.x + panel.width for panel in panels), max(panel.y + panel.height for panel in panels)


def _place_in_rows(panels: Sequence[Panel], *, y: float = 0.0) -> list[Panel]:
    """Return the panels placed from left to right, in as many rows as needed.

    Within a row, panels are aligned from south to north: equal positions of different floors have equal y.
    """
    placed: list[Panel] = []
    row: list[Panel] = []
    for panel in panels:
        x = row[-1].x + row[-1].width + GAP if row else 0.0
        if row and x + panel.width > WIDTH:
            placed += _align_row(row, y)
            x, y, row = 0.0, total_size(placed)[1] + GAP, []
        row.append(replace(panel, x=x))
    return placed + _align_row(row, y)


def _align_row(row: Sequence[Panel], y: float) -> list[Panel]:
    below_heading = y + (HEADING_HEIGHT if any(panel.heading for panel in row) else 0.0)
    north = max((panel.bounds.north for panel in row), default=0.0)
    return [
        replace(panel, top=y, y=below_heading + (north - panel.bounds.north) * panel.scale) for panel in row
    ]


def _place_in_columns(panels: Sequence[Panel], *, x: float, height: float) -> list[Panel]:
    """Return the panels placed from top to bottom, in as many columns as needed."""
    placed: list[Panel] = []
    y = 0.0
    for panel in panels:
        if y and y + HEADING_HEIGHT + panel.height > height:
            x, y = total_size(placed)[0] + GAP, 0.0
        placed.append(replace(panel, x=x, top=y, y=y + (HEADING_HEIGHT if panel.heading else 0.0)))
        y = placed[-1].y + panel.height + GAP
    return placed
