"""The simulator's camera, and the adjacent viewpoints that it shows: the navigable locations of a pose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Camera:
    """Image size in pixels and vertical field of view in radians; by default the camera of R2R agents."""

    width: int = 640
    height: int = 480
    vfov: float = np.pi / 3

    @property
    def min_cosine(self) -> float:
        """Cosine of the largest relative heading at which an adjacent viewpoint is navigable.

        The simulator's half angle is `vfov * width / height / 2`, not half of the horizontal field of view of
        a perspective image. If this angle is not finite, as for an image height of 0, the value is infinite,
        and nothing is navigable.

        >>> round(float(np.degrees(np.arccos(Camera().min_cosine))), 6)
        40.0
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            cosine = np.cos(np.float64(self.vfov) * self.width / self.height / 2)
        return float("inf") if np.isnan(cosine) else float(cosine)


class RelativeDirections(NamedTuple):
    """Directions relative to camera poses, as arrays of one shape."""

    heading: NDArray[np.float32]
    """Radians, positive to the right, from -π to π."""
    elevation: NDArray[np.float64]
    """Radians, positive above the centre of the image."""
    distance: NDArray[np.float32]
    """Metres."""
    cosine: NDArray[np.float32]
    """Cosine of the relative heading; NaN straight above and below."""


def relative_directions(
    offset: NDArray[np.float32], heading: NDArray[np.float64], elevation: NDArray[np.float64]
) -> RelativeDirections:
    """Return directions of `offset` (..., 3) relative to poses (...), with the simulator's arithmetic.

    Offsets are differences of positions in single precision. The simulator computes in single precision
    except for elevations; a viewpoint at the edge of the field of view is visible or not by the last bit.
    """
    x, y, z = (offset[..., axis] for axis in range(3))
    ahead = np.pi / 2 - heading
    with np.errstate(invalid="ignore", divide="ignore"):
        ahead_x, ahead_y = np.cos(ahead).astype(np.float32), np.sin(ahead).astype(np.float32)
        square = x * x + y * y
        length = np.sqrt(square)
        scale = np.float32(1) / length
        cosine = (x * scale) * ahead_x + (y * scale) * ahead_y
        right, forward = x * ahead_y - y * ahead_x, x * ahead_x + y * ahead_y
        rise = np.arctan2(z.astype(np.float64), length.astype(np.float64))
    return RelativeDirections(
        np.arctan2(right, forward), rise - elevation, np.sqrt(square + z * z), np.asarray(cosine)
    )


class NavigableTable(NamedTuple):
    """Navigable locations of several poses: adjacent viewpoints, without the viewpoints of the poses.

    The locations of pose `p` are the entries `start[p]` to `start[p + 1]` of the other arrays, from the
    centre of the image outwards. Headings and elevations are in radians, relative to the pose; distances are
    in metres.
    """

    start: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    heading: NDArray[np.float64]
    elevation: NDArray[np.float64]
    distance: NDArray[np.float64]


def find_navigable(
    offset: NDArray[np.float32],
    neighbour: NDArray[np.int64],
    pose: NDArray[np.int64],
    heading: NDArray[np.float64],
    elevation: NDArray[np.float64],
    min_cosine: float | None,
) -> NavigableTable:
    """Return the navigable locations of poses, in the simulator's order.

    `heading` and `elevation` (Q,) are the poses in radians. Row m of `offset` (M, 3), `neighbour` and `pose`
    (M,) is an adjacent viewpoint of pose `pose[m]`; rows are sorted by pose, then by neighbour. `min_cosine`
    is `Camera.min_cosine`. If it is None, all neighbours are navigable, whatever the camera shows.
    """
    angles = relative_directions(offset, heading[pose], elevation[pose])
    # numpy would round a Python float to single precision before it compares.
    is_navigable = True if min_cosine is None else angles.cosine >= np.float64(min_cosine)
    rows = np.flatnonzero(np.broadcast_to(is_navigable, pose.shape))
    right, up = angles.heading[rows].astype(np.float64), angles.elevation[rows]
    order = np.lexsort((np.sqrt(right * right + up * up), pose[rows]))  # equal angles keep their order
    rows = rows[order]
    start = np.zeros(len(heading) + 1, dtype=np.int64)
    np.cumsum(np.bincount(pose[rows], minlength=len(heading)), out=start[1:])
    distance = angles.distance[rows].astype(np.float64)
    return NavigableTable(start, neighbour[rows], right[order], up[order], distance)
