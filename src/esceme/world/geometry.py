"""The 36-view grid of a panorama: headings, elevations, and how a direction becomes a view or a feature.

Heading 0 points along +y and grows clockwise (towards +x); elevation is positive upwards; both in radians.
View `row * 12 + column` looks along heading `column * 30°` and elevation `(row - 1) * 30°`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

VIEWS = 36
COLUMNS = 12
TURN: float = np.pi / 6
"""The angle between two neighbouring views, 30°."""
HALF_FIELD = np.radians(40.0)
"""Half the horizontal field of view: a 640x480 picture with a vertical field of 60°."""

VIEW_HEADINGS: NDArray[np.float64] = np.float64(TURN) * (np.arange(VIEWS) % COLUMNS)
VIEW_ELEVATIONS: NDArray[np.float64] = np.float64(TURN) * (np.arange(VIEWS) // COLUMNS - 1)


class Direction(NamedTuple):
    """Absolute heading and elevation of something seen from a viewpoint, any shape."""

    heading: NDArray[np.float64]
    elevation: NDArray[np.float64]


def wrap(angle: ArrayLike) -> NDArray[np.float64]:
    """The same angle in (-π, π].

    >>> wrap([np.pi, -np.pi, 2.5 * np.pi]).round(3).tolist()
    [3.142, 3.142, 1.571]
    """
    return -((-np.asarray(angle, dtype=np.float64) + np.pi) % (2 * np.pi) - np.pi)


def direction(offset: ArrayLike) -> Direction:
    """The direction of `offset` (..., 3), the difference of two positions."""
    x, y, z = np.moveaxis(np.asarray(offset, dtype=np.float64), -1, 0)
    return Direction(np.arctan2(x, y), np.arctan2(z, np.hypot(x, y)))


def snap(heading: ArrayLike, elevation: ArrayLike = 0.0) -> NDArray[np.int64]:
    """The view an agent faces at the start of an episode: the nearest column and row, halves away from zero.

    >>> snap([0.0, 6.2, 3.751]).tolist()
    [12, 12, 19]
    """
    column = np.floor(np.asarray(heading, dtype=np.float64) % (2 * np.pi) / TURN + 0.5).astype(np.int64)
    elevation = np.asarray(elevation, dtype=np.float64)
    row = 1 + (elevation > TURN / 2).astype(np.int64) - (elevation < -TURN / 2).astype(np.int64)
    return row * COLUMNS + column % COLUMNS


def angle_feature(heading: ArrayLike, elevation: ArrayLike, *, size: int = 4) -> NDArray[np.float32]:
    """`[sin h, cos h, sin e, cos e]` repeated to `size` numbers: (...) -> (..., size)."""
    heading, elevation = np.broadcast_arrays(heading, elevation)
    quartet = np.stack([np.sin(heading), np.cos(heading), np.sin(elevation), np.cos(elevation)], axis=-1)
    return np.tile(quartet.astype(np.float32), size // 4)


def panorama_angles(view: ArrayLike, *, size: int = 4) -> NDArray[np.float32]:
    """Angle features of all 36 views for an agent that faces `view`: (...) -> (..., 36, size).

    Headings are relative to the faced column; elevations stay absolute.
    """
    base = VIEW_HEADINGS[np.asarray(view)][..., None]
    return angle_feature(VIEW_HEADINGS - base, VIEW_ELEVATIONS, size=size)


class ViewAngles(NamedTuple):
    """How directions lie relative to every view; all arrays (..., 36)."""

    heading: NDArray[np.float64]
    elevation: NDArray[np.float64]
    angular_distance: NDArray[np.float64]
    visible: NDArray[np.bool_]


def view_angles(seen: Direction) -> ViewAngles:
    """Relate directions (...) to the 36 views (..., 36).

    A direction is visible in a view when it is at most 40° to its side, whatever its elevation: this is the
    rule of the Matterport3D simulator with restricted navigation.
    """
    heading = wrap(seen.heading[..., None] - VIEW_HEADINGS)
    elevation = seen.elevation[..., None] - VIEW_ELEVATIONS
    return ViewAngles(heading, elevation, np.hypot(heading, elevation), np.abs(heading) <= HALF_FIELD)
