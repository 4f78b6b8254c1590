"""Triangulation of object positions from boxes at several viewpoints, and projection into other views.

Boxes are (x, y, width, height) on images of 640x480 pixels with a vertical field of view of 60°. The boxes of
an object in up to 36 overlapping views of one viewpoint are first merged into one angular box, which is
bounded by headings and elevations. The rays through the centres of these boxes meet at the object. An object
is modelled as a rectangle that faces the camera.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.world.geometry import COLUMNS, TURN, VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, wrap_angle

IMAGE_SIZE = (640, 480)
"""Width and height of a view image in pixels."""
FOCAL_LENGTH: float = IMAGE_SIZE[1] / 2 / np.tan(TURN)
"""Focal length in pixels."""
BORDER_PIXELS = 1
"""A box side at most this many pixels from the image border counts as cut off by the border."""
PRIOR_DISTANCE = 1.55
"""Assumed distance in metres of an object that only one viewpoint sees.

It is the median distance of the Matterport objects that several viewpoints see; for these, the median error
is 0.25 m. Sizes typical of the object's name were no better (0.31 m).
"""
PRIOR_WEIGHT = 0.02
"""Weight of the prior distance relative to a ray; it matters only if all rays are nearly parallel."""
MIN_DISTANCE = 0.3
"""Minimum distance in metres; smaller distances are clipped."""
PROJECTION_GRID = (9, 5)
"""Number of headings and elevations at which an angular box is projected into the views."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class ImageBoxes(NamedTuple):
    """Annotated boxes (N, 4) of a scene in pixels, with the indices (N,) of object, viewpoint and view."""

    object: Integers
    viewpoint: Integers
    view: Integers
    box: Floats


class AngularBoxes(NamedTuple):
    """Angular boxes, one per pair of object and viewpoint, as arrays (N,); absolute angles in radians."""

    object: Integers
    viewpoint: Integers
    left: Floats
    """Heading of the left side in radians. It is not wrapped, so that it is at most `right`."""
    right: Floats
    bottom: Floats
    top: Floats

    @property
    def rays(self) -> Floats:
        """Unit vectors (N, 3) from the camera to the centres of the boxes."""
        return unit_vectors((self.left + self.right) / 2, (self.bottom + self.top) / 2)


class ObjectGeometry(NamedTuple):
    """Positions (O, 3), width and height (O, 2) of objects in metres; NaN for objects without a box."""

    position: Floats
    size: Floats


def unit_vectors(heading: Floats, elevation: Floats) -> Floats:
    """Return the unit vectors (..., 3) of directions, given in radians."""
    level = np.cos(elevation)
    return np.stack([np.sin(heading) * level, np.cos(heading) * level, np.sin(elevation)], axis=-1)


def pixel_direction(view: Integers, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the absolute heading and elevation, in radians, of pixel positions (x, y) in views."""
    tilt = VIEW_ELEVATIONS[view]
    right, up = (x - IMAGE_SIZE[0] / 2) / FOCAL_LENGTH, (IMAGE_SIZE[1] / 2 - y) / FOCAL_LENGTH
    forward = np.cos(tilt) - up * np.sin(tilt)
    elevation = np.arctan2(np.sin(tilt) + up * np.cos(tilt), np.hypot(forward, right))
    return VIEW_HEADINGS[view] + np.arctan2(right, forward), elevation


def merge_views(boxes: ImageBoxes) -> AngularBoxes:
    """Return one angular box for every pair of object and viewpoint, merged from its boxes in all views.

    Every side of the angular box comes from the image box whose side is nearest to the image centre. A side
    that the image border cuts off in all boxes is set to the outermost cut.
    """
    pairs, pair = np.unique(np.stack([boxes.object, boxes.viewpoint]), axis=1, return_inverse=True)
    x, y, width, height = boxes.box.T
    centre = pixel_direction(boxes.view, x + width / 2, y + height / 2)
    weighted = np.zeros((pairs.shape[1], 3))
    np.add.at(weighted, pair, unit_vectors(*centre) * (width * height)[:, None])
    middle = np.arctan2(weighted[:, 0], weighted[:, 1])

    def side(sign: int, *, is_vertical: bool) -> Floats:
        edge_x = x + (width / 2 if is_vertical else (width if sign > 0 else 0))
        edge_y = y + (height / 2 if not is_vertical else (0 if sign > 0 else height))
        heading, elevation = pixel_direction(boxes.view, edge_x, edge_y)
        pixel, length = (edge_y, IMAGE_SIZE[1]) if is_vertical else (edge_x, IMAGE_SIZE[0])
        angle = elevation if is_vertical else wrap_angle(heading - middle[pair])
        off = np.hypot(edge_x - IMAGE_SIZE[0] / 2, edge_y - IMAGE_SIZE[1] / 2)
        # The heading of a vertical edge is constant in level views only.
        off = off if is_vertical else off + IMAGE_SIZE[0] / 3 * (boxes.view // COLUMNS != 1)
        is_cut = (pixel <= BORDER_PIXELS) | (pixel >= length - BORDER_PIXELS)
        return _best_angles(angle, pair, off, is_cut, sign)

    left, right = side(-1, is_vertical=False), side(1, is_vertical=False)
    bottom, top = side(-1, is_vertical=True), side(1, is_vertical=True)
    left, right = np.minimum(left, right) + middle, np.maximum(left, right) + middle
    return AngularBoxes(pairs[0], pairs[1], left, right, np.minimum(bottom, top), np.maximum(bottom, top))


def _best_angles(angle: Floats, group: Integers, off: Floats, is_cut: NDArray[np.bool_], sign: int) -> Floats:
    """Return one angle per group: among the angles that are not cut off, the one with the smallest `off`.

    If all angles of a group are cut off, the result is the largest angle if `sign` is 1, else the smallest.
    `group` (N,) holds the group index of every angle (N,), and `off` its distance from the image centre.
    """
    order = np.lexsort((np.where(is_cut, -sign * angle, off), is_cut, group))
    first = np.searchsorted(group[order], np.arange(group.max(initial=-1) + 1))
    return angle[order[first]]


def triangulate(
    boxes: AngularBoxes, viewpoints: Floats, *, num_objects: int, prior: float = PRIOR_DISTANCE
) -> ObjectGeometry:
    """Return positions and sizes of objects, given angular boxes and viewpoint positions (P, 3).

    A position minimises the sum of weighted squared distances to all rays of its object. The weight of a ray
    decreases with the angular size of the object, whose centre is then uncertain, and with the distance. The
    distance starts at `prior` metres and is estimated in three iterations.
    """
    rays, origins = boxes.rays, viewpoints[boxes.viewpoint]
    angular_size = np.hypot(boxes.right - boxes.left, boxes.top - boxes.bottom)
    distance = np.full(len(rays), prior)
    position = np.full((num_objects, 3), np.nan)
    for _ in range(3):
        weights = 1 / (np.hypot(0.02, 0.15 * angular_size) * np.maximum(distance, MIN_DISTANCE)) ** 2
        position = _nearest_points_to_rays(origins, rays, weights, boxes.object, num_objects, prior)
        distance = np.linalg.norm(position[boxes.object] - origins, axis=1)
    return ObjectGeometry(position, _mean_sizes(boxes, position[boxes.object] - origins, num_objects))


def _nearest_points_to_rays(
    origins: Floats, rays: Floats, weights: Floats, object_index: Integers, num_objects: int, prior: float
) -> Floats:
    """Return the point (O, 3) nearest to the rays of each of O objects, by weighted least squares.

    `origins` (N, 3) are the starts of N unit vectors `rays` (N, 3), and `weights` (N,) their weights.
    `object_index` (N,) is the object of every ray. To fix the distance if all rays are parallel, the point
    `prior` metres along every ray is also fitted, with a small weight.
    """
    across = np.eye(3) - (1 - PRIOR_WEIGHT) * rays[:, :, None] * rays[:, None, :]
    across *= weights[:, None, None]
    towards = np.einsum("nij,nj->ni", across, origins) + (PRIOR_WEIGHT * prior * weights)[:, None] * rays
    left, right = np.zeros((num_objects, 3, 3)), np.zeros((num_objects, 3))
    np.add.at(left, object_index, across)
    np.add.at(right, object_index, towards)
    position = np.full((num_objects, 3), np.nan)
    known = np.unique(object_index)
    position[known] = np.linalg.solve(left[known], right[known, :, None])[..., 0]
    return position


def _mean_sizes(boxes: AngularBoxes, offsets: Floats, num_objects: int) -> Floats:
    """Return width and height (O, 2) of O objects in metres, as means over the boxes of each object.

    `offsets` (N, 3) lead from the camera of each box to the position of the box's object, in metres.
    """
    far = np.maximum(np.hypot(offsets[:, 0], offsets[:, 1]), MIN_DISTANCE)
    half = np.minimum((boxes.right - boxes.left) / 2, np.radians(70))
    width = 2 * far * np.tan(half)
    height = far * (np.tan(boxes.top) - np.tan(boxes.bottom))
    num_boxes = np.bincount(boxes.object, minlength=num_objects)
    sums = [np.bincount(boxes.object, values, minlength=num_objects) for values in (width, height)]
    with np.errstate(invalid="ignore"):
        return np.stack(sums, axis=1) / num_boxes[:, None]


def angular_box(offset: Floats, size: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the angles of the left, right, bottom and top sides (M,) of objects, in radians.

    `offset` (M, 3) are positions relative to the camera and `size` (M, 2) widths and heights, in metres.
    """
    far = np.maximum(np.hypot(offset[:, 0], offset[:, 1]), MIN_DISTANCE)
    heading, half = np.arctan2(offset[:, 0], offset[:, 1]), np.arctan2(size[:, 0] / 2, far)
    bottom = np.arctan2(offset[:, 2] - size[:, 1] / 2, far)
    top = np.arctan2(offset[:, 2] + size[:, 1] / 2, far)
    return heading - half, heading + half, bottom, top


def box_coverage(left: Floats, right: Floats, bottom: Floats, top: Floats) -> NDArray[np.float32]:
    """Return the share (M, 36) of every view image that every angular box covers, from 0 to 1."""
    across, up = (np.linspace(0, 1, steps) for steps in PROJECTION_GRID)
    heading = left[:, None] + (right - left)[:, None] * across  # (M, 9)
    elevation = bottom[:, None] + (top - bottom)[:, None] * up  # (M, 5)
    coverage = np.zeros((len(left), VIEWS), dtype=np.float32)
    for view in range(VIEWS):
        in_front = np.flatnonzero((np.cos(heading - VIEW_HEADINGS[view]) > 0).any(axis=1))
        coverage[in_front, view] = _image_share(
            *_project_into_view(heading[in_front], elevation[in_front], view)
        )
    return coverage


def _project_into_view(heading: Floats, elevation: Floats, view: int) -> tuple[Floats, Floats]:
    """Return x and y in pixels (M, 9, 5) of directions in a view; NaN for directions behind the camera."""
    turn, tilt = (heading - VIEW_HEADINGS[view])[:, :, None], VIEW_ELEVATIONS[view]
    level, rise = np.cos(elevation)[:, None, :], np.sin(elevation)[:, None, :]
    ahead = level * np.cos(turn)
    depth = ahead * np.cos(tilt) + rise * np.sin(tilt)
    depth = np.where(depth > 0.05, depth, np.nan)
    x = IMAGE_SIZE[0] / 2 + FOCAL_LENGTH * level * np.sin(turn) / depth
    return x, IMAGE_SIZE[1] / 2 - FOCAL_LENGTH * (rise * np.cos(tilt) - ahead * np.sin(tilt)) / depth


def _image_share(x: Floats, y: Floats) -> Floats:
    """Return the share (M,) of an image inside the bounding box of its points (M, 9, 5)."""
    area = np.ones(len(x))
    for pixel, length in ((x, IMAGE_SIZE[0]), (y, IMAGE_SIZE[1])):
        low = np.fmin.reduce(pixel, axis=(1, 2), initial=np.inf)
        high = np.fmax.reduce(pixel, axis=(1, 2), initial=-np.inf)
        area *= np.clip(np.clip(high, 0, length) - np.clip(low, 0, length), 0, None) / length
    return area
