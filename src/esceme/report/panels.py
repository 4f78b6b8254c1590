"""Where the floors of a scene stand in a figure: side by side at one scale, north up, wrapped into rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.report.svg import width_of

WIDTH, HEIGHT = 720.0, 460.0
"""Pixels that panels may fill; the height is exceeded rather than drawing smaller than SMALLEST."""
LARGEST, SMALLEST = 22.0, 10.0
"""Pixels per metre."""
THUMBNAIL_SCALE, THUMBNAIL_SIZE = 0.4, 130.0
"""How much smaller thumbnails are than panels, and how large in pixels at the most."""
GAP, HEADING, HEADING_SIZE = 16.0, 15.0, 9.0

Point = tuple[float, float]


class Bounds(NamedTuple):
    """A rectangle in metres."""

    west: float
    south: float
    east: float
    north: float

    @classmethod
    def around(cls, places: NDArray[np.float64], margin: float) -> Bounds:
        """The rectangle of all `places` (N, 2) and a margin."""
        return cls(*(places.min(axis=0) - margin).tolist(), *(places.max(axis=0) + margin).tolist())

    def within(self, other: Bounds) -> Bounds:
        """The part that lies in `other`, too."""
        low, high = np.maximum(self[:2], other[:2]), np.minimum(self[2:], other[2:])
        return Bounds(*low.tolist(), *high.tolist())

    @property
    def area(self) -> float:
        """In square metres."""
        return (self.east - self.west) * (self.north - self.south)

    def meets(self, places: NDArray[np.float64]) -> bool:
        """Whether the rectangle around `places` has anything in common with this one."""
        low, high = places.min(axis=0), places.max(axis=0)
        return bool((high >= self[:2]).all() and (low <= self[2:]).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One floor, or the part of it that matters, and where that lies in the figure."""

    floor: int
    heading: str
    bounds: Bounds
    thumbnail: bool = False
    """Whether this is a small overview: of a floor that no route enters, or of one shown in part."""
    focus: Bounds | None = None
    """The part that has a panel of its own; in that panel, the panel's own bounds."""
    scale: float = 1.0
    """Pixels per metre."""
    x: float = 0.0
    y: float = 0.0
    top: float = 0.0
    """Where the heading stands, above `y` or level with it."""

    @property
    def width(self) -> float:
        """In pixels."""
        return max((self.bounds.east - self.bounds.west) * self.scale, width_of(self.heading, HEADING_SIZE))

    @property
    def height(self) -> float:
        """In pixels, without the heading."""
        return (self.bounds.north - self.bounds.south) * self.scale

    def place(self, position: NDArray[np.float64]) -> Point:
        """Where a position in metres lies in the figure."""
        east, north = position[:2].tolist()
        return self.x + (east - self.bounds.west) * self.scale, self.y + (
            self.bounds.north - north
        ) * self.scale

    def box(self, bounds: Bounds) -> dict[str, float]:
        """A rectangle of the floor as the attributes of an SVG rectangle."""
        x, y = self.place(np.array([bounds.west, bounds.north]))
        width, height = (bounds.east - bounds.west) * self.scale, (bounds.north - bounds.south) * self.scale
        return {"x": x, "y": y, "width": width, "height": height}


def arrange(panels: Sequence[Panel]) -> list[Panel]:
    """The panels at the largest scale that fits; thumbnails to the right of the others, or else below."""
    scale = LARGEST
    while True:
        large = _rows([replace(panel, scale=scale) for panel in panels if not panel.thumbnail])
        small = _shrink([panel for panel in panels if panel.thumbnail], scale * THUMBNAIL_SCALE)
        width, height = extent(large)
        beside = _columns(small, x=width + GAP, height=max(height, THUMBNAIL_SIZE))
        below = _rows(small, y=height + GAP)
        for placed in (large + beside, large + below):
            width, height = extent(placed)
            if width <= WIDTH and (height <= HEIGHT or scale <= SMALLEST):
                return placed
        scale *= 0.97


def extent(panels: Sequence[Panel]) -> tuple[float, float]:
    """Width and height in pixels that the panels fill."""
    return max(panel.x + panel.width for panel in panels), max(panel.y + panel.height for panel in panels)


def _shrink(panels: Sequence[Panel], scale: float) -> list[Panel]:
    """Thumbnails at one scale, none larger than THUMBNAIL_SIZE."""
    sides = [side for panel in panels for side in (np.subtract(panel.bounds[2:], panel.bounds[:2])).tolist()]
    scale = min([scale, *(THUMBNAIL_SIZE / side for side in sides)])
    return [replace(panel, scale=scale) for panel in panels]


def _rows(panels: Sequence[Panel], *, y: float = 0.0) -> list[Panel]:
    """Panels from left to right; those in a row line up, so that stairs are at the same height in all."""
    placed: list[Panel] = []
    row: list[Panel] = []
    for panel in panels:
        x = row[-1].x + row[-1].width + GAP if row else 0.0
        if row and x + panel.width > WIDTH:
            placed += _line_up(row, y)
            x, y, row = 0.0, extent(placed)[1] + GAP, []
        row.append(replace(panel, x=x))
    return placed + _line_up(row, y)


def _line_up(row: Sequence[Panel], y: float) -> list[Panel]:
    below_heading = y + (HEADING if any(panel.heading for panel in row) else 0.0)
    north = max((panel.bounds.north for panel in row), default=0.0)
    return [
        replace(panel, top=y, y=below_heading + (north - panel.bounds.north) * panel.scale) for panel in row
    ]


def _columns(panels: Sequence[Panel], *, x: float, height: float) -> list[Panel]:
    """Panels from top to bottom, in as many columns as they need."""
    placed: list[Panel] = []
    y = 0.0
    for panel in panels:
        if y and y + HEADING + panel.height > height:
            x, y = extent(placed)[0] + GAP, 0.0
        placed.append(replace(panel, x=x, top=y, y=y + (HEADING if panel.heading else 0.0)))
        y = placed[-1].y + panel.height + GAP
    return placed
