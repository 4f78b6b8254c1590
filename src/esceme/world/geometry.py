"""The 36 views of a panorama: headings, elevations, nearest views and angle features.

Angles are in radians. Heading 0 points along +y; headings grow clockwise, towards +x. Elevation is positive
above the horizon. View `row * 12 + column` looks along heading `column * 30°` and elevation `(row - 1) *
30°`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

VIEWS = 36
COLUMNS = 12
TURN: float = np.pi / 6
"""Angle between neighbouring views in radians (30°)."""
HALF_FIELD = np.radians(40.0)
"""Half of the horizontal field of view of an image of 640x480 pixels with a vertical field of view of 60°."""

VIEW_HEADINGS: NDArray[np.float64] = np.float64(TURN) * (np.arange(VIEWS) % COLUMNS)
VIEW_ELEVATIONS: NDArray[np.float64] = np.float64(TURN) * (np.arange(VIEWS) // COLUMNS - 1)


class Direction(NamedTuple):
    """Absolute headings and elevations in radians, as arrays of any shape."""

    heading: NDArray[np.float64]
    elevation: NDArray[np.float64]


def wrap_angle(angle: ArrayLike) -> NDArray[np.float64]:
    """Wrap angles in radians to (-π, π].

    >>> wrap_angle([np.pi, -np.pi, 2.5 * np.pi]).round(3).tolist()
    [3.142, 3.142, 1.571]
    """
    return -((-np.asarray(angle, dtype=np.float64) + np.pi) % (2 * np.pi) - np.pi)


def direction(offset: ArrayLike) -> Direction:
    """Return heading and elevation of vectors `offset` (..., 3), which lead from one position to another."""
    x, y, z = np.moveaxis(np.asarray(offset, dtype=np.float64), -1, 0)
    return Direction(np.arctan2(x, y), np.arctan2(z, np.hypot(x, y)))


def nearest_view(heading: ArrayLike, elevation: ArrayLike = 0.0) -> NDArray[np.int64]:
    """Return the number (0 to 35) of the view nearest to a heading and elevation in radians.

    A heading halfway between two views is rounded up (clockwise), an elevation halfway to the middle row.

    >>> nearest_view([0.0, 6.2, 3.751]).tolist()
    [12, 12, 19]
    """
    turns = np.asarray(heading, dtype=np.float64) % (2 * np.pi) / TURN
    column = np.floor(turns).astype(np.int64) + (turns % 1 >= 0.5)  # adding 0.5 would round twice
    elevation = np.asarray(elevation, dtype=np.float64)
    row = 1 + (elevation > TURN / 2).astype(np.int64) - (elevation < -TURN / 2).astype(np.int64)
    return row * COLUMNS + column % COLUMNS


def angle_feature(heading: ArrayLike, elevation: ArrayLike, *, size: int = 4) -> NDArray[np.float32]:
    """Return sine and cosine of heading and elevation, repeated to `size` numbers: (...) -> (..., size)."""
    heading, elevation = np.broadcast_arrays(heading, elevation)
    quartet = np.stack([np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)], axis=-1)
    return np.tile(quartet.astype(np.float32), size // 4)


def panorama_angles(view: ArrayLike, *, size: int = 4) -> NDArray[np.float32]:
    """Return the angle features of all 36 views for agents that face `view`: (...) -> (..., 36, size).

    Headings are relative to the heading of the faced view; elevations are absolute.
    """
    base = VIEW_HEADINGS[np.asarray(view)][..., None]
    return angle_feature(VIEW_HEADINGS - base, VIEW_ELEVATIONS, size=size)


class ViewAngles(NamedTuple):
    """Angles (..., 36) in radians between directions and the centres of all 36 views."""

    heading: NDArray[np.float64]
    elevation: NDArray[np.float64]
    angular_distance: NDArray[np.float64]
    visible: NDArray[np.bool_]


def view_angles(target: Direction) -> ViewAngles:
    """Return the angles (..., 36) of directions (...) relative to the 36 views, and where they are visible.

    A direction is visible in a view if its relative heading is at most 40°, whatever its elevation. The
    Matterport3D simulator with restricted navigation has the same rule.
    """
    heading = wrap_angle(target.heading[..., None] - VIEW_HEADINGS)
    elevation = target.elevation[..., None] - VIEW_ELEVATIONS
    return ViewAngles(heading, elevation, np.hypot(heading, elevation), np.abs(heading) <= HALF_FIELD)
