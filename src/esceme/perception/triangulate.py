"""Where annotated objects stand: boxes of several viewpoints become positions, positions boxes of others.

Boxes are (x, y, width, height) on pictures of 640x480 pixels whose vertical field is 60°. What one viewpoint
sees of an object in up to 36 overlapping views is first merged into one angular box; the rays through the
middles of these meet at the object. An object is a rectangle that faces whoever looks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.world.geometry import COLUMNS, TURN, VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, wrap

PICTURE = (640, 480)
FOCAL: float = PICTURE[1] / 2 / np.tan(TURN)
"""Pixels per unit of tangent."""
EDGE = 1
"""A side of a box that is this near to the picture's edge, in pixels, was cut there."""
GUESS = 1.55
"""Metres to an object that only one viewpoint sees: the median of the Matterport objects that several see.

There it is 0.25 m off in the median; sizes typical of the object's name were no better a guide (0.31 m).
"""
TRUST = 0.02
"""How much the guess counts beside a ray: next to nothing, unless all rays are nearly parallel."""
NEAREST = 0.3
"""Whatever is nearer than this many metres is treated as if it were not."""
GRID = (9, 5)
"""Headings and elevations at which an angular box is laid over the views."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Boxes(NamedTuple):
    """The annotated boxes of a scene, one entry each: object, viewpoint, view, and (x, y, width, height)."""

    thing: Integers
    viewpoint: Integers
    view: Integers
    box: Floats


class Sightings(NamedTuple):
    """Objects as viewpoints see them, one entry per pair: angular boxes, absolute, in radians."""

    thing: Integers
    viewpoint: Integers
    left: Floats
    """Heading; not wrapped, always at most `right`."""
    right: Floats
    bottom: Floats
    top: Floats

    @property
    def rays(self) -> Floats:
        """Unit vectors towards the middles (M, 3)."""
        return pointing((self.left + self.right) / 2, (self.bottom + self.top) / 2)


class Things(NamedTuple):
    """Objects of a scene: positions (O, 3), width and height (O, 2), in metres; NaN where nobody sees one."""

    position: Floats
    size: Floats


def pointing(heading: Floats, elevation: Floats) -> Floats:
    """Unit vectors (..., 3) of directions."""
    level = np.cos(elevation)
    return np.stack([np.sin(heading) * level, np.cos(heading) * level, np.sin(elevation)], axis=-1)


def look_through(view: Integers, x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Absolute heading and elevation of a pixel of a view."""
    tilt = VIEW_ELEVATIONS[view]
    right, up = (x - PICTURE[0] / 2) / FOCAL, (PICTURE[1] / 2 - y) / FOCAL
    forward = np.cos(tilt) - up * np.sin(tilt)
    elevation = np.arctan2(np.sin(tilt) + up * np.cos(tilt), np.hypot(forward, right))
    return VIEW_HEADINGS[view] + np.arctan2(right, forward), elevation


def merge(boxes: Boxes) -> Sightings:
    """One angular box for each object and viewpoint, from its boxes in all the views.

    Each side comes from the box that shows it nearest to the middle of a picture; one that is cut off in all
    of them (below a picture that looks down) is taken where it is cut.
    """
    pairs, pair = np.unique(np.stack([boxes.thing, boxes.viewpoint]), axis=1, return_inverse=True)
    x, y, width, height = boxes.box.T
    middle = look_through(boxes.view, x + width / 2, y + height / 2)
    pull = np.zeros((pairs.shape[1], 3))
    np.add.at(pull, pair, pointing(*middle) * (width * height)[:, None])
    around = np.arctan2(pull[:, 0], pull[:, 1])

    def side(sign: int, *, upright: bool) -> Floats:
        edge_x = x + (width / 2 if upright else (width if sign > 0 else 0))
        edge_y = y + (height / 2 if not upright else (0 if sign > 0 else height))
        heading, elevation = look_through(boxes.view, edge_x, edge_y)
        place, length = (edge_y, PICTURE[1]) if upright else (edge_x, PICTURE[0])
        angle = elevation if upright else wrap(heading - around[pair])
        off = np.hypot(edge_x - PICTURE[0] / 2, edge_y - PICTURE[1] / 2)
        # Vertical edges keep their heading in level views only.
        off = off if upright else off + PICTURE[0] / 3 * (boxes.view // COLUMNS != 1)
        cut = (place <= EDGE) | (place >= length - EDGE)
        return _best(angle, pair, off, cut, sign)

    left, right = side(-1, upright=False), side(1, upright=False)
    bottom, top = side(-1, upright=True), side(1, upright=True)
    left, right = np.minimum(left, right) + around, np.maximum(left, right) + around
    return Sightings(pairs[0], pairs[1], left, right, np.minimum(bottom, top), np.maximum(bottom, top))


def _best(angle: Floats, group: Integers, off: Floats, cut: NDArray[np.bool_], sign: int) -> Floats:
    """For each group the angle that is least off and not cut; else the one furthest in the sign's sense."""
    order = np.lexsort((np.where(cut, -sign * angle, off), cut, group))
    first = np.searchsorted(group[order], np.arange(group.max(initial=-1) + 1))
    return angle[order[first]]


def triangulate(seen: Sightings, viewpoints: Floats, *, count: int, guess: float = GUESS) -> Things:
    """Where each of `count` objects stands and how large it is, from who sees it in which direction.

    Least squares over the distances to all rays. A ray counts less the larger the object is in the picture
    (its middle is vague) and the farther it is (the same angle is more metres): solved three times with the
    distances found before.
    """
    rays, origin = seen.rays, viewpoints[seen.viewpoint]
    vague = np.hypot(seen.right - seen.left, seen.top - seen.bottom)
    distance = np.full(len(rays), guess)
    position = np.full((count, 3), np.nan)
    for _ in range(3):
        weight = 1 / (np.hypot(0.02, 0.15 * vague) * np.maximum(distance, NEAREST)) ** 2
        position = _meet(origin, rays, weight, seen.thing, count, guess)
        distance = np.linalg.norm(position[seen.thing] - origin, axis=1)
    return Things(position, _sizes(seen, position[seen.thing] - origin, count))


def _meet(origin: Floats, rays: Floats, weight: Floats, thing: Integers, count: int, guess: float) -> Floats:
    """The points nearest to their rays, with a little pull towards `guess` metres along each."""
    across = np.eye(3) - (1 - TRUST) * rays[:, :, None] * rays[:, None, :]
    across *= weight[:, None, None]
    towards = np.einsum("nij,nj->ni", across, origin) + (TRUST * guess * weight)[:, None] * rays
    left, right = np.zeros((count, 3, 3)), np.zeros((count, 3))
    np.add.at(left, thing, across)
    np.add.at(right, thing, towards)
    position = np.full((count, 3), np.nan)
    known = np.unique(thing)
    position[known] = np.linalg.solve(left[known], right[known, :, None])[..., 0]
    return position


def _sizes(seen: Sightings, offset: Floats, count: int) -> Floats:
    """Mean width and height over the viewpoints that see an object, in metres."""
    far = np.maximum(np.hypot(offset[:, 0], offset[:, 1]), NEAREST)
    half = np.minimum((seen.right - seen.left) / 2, np.radians(70))
    width = 2 * far * np.tan(half)
    height = far * (np.tan(seen.top) - np.tan(seen.bottom))
    witnesses = np.bincount(seen.thing, minlength=count)
    sums = [np.bincount(seen.thing, each, minlength=count) for each in (width, height)]
    with np.errstate(invalid="ignore"):
        return np.stack(sums, axis=1) / witnesses[:, None]


def sight_from(offset: Floats, size: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Left, right, bottom, top (M,) of objects at `offset` (M, 3) from whoever looks, of `size` (M, 2)."""
    far = np.maximum(np.hypot(offset[:, 0], offset[:, 1]), NEAREST)
    heading, half = np.arctan2(offset[:, 0], offset[:, 1]), np.arctan2(size[:, 0] / 2, far)
    bottom = np.arctan2(offset[:, 2] - size[:, 1] / 2, far)
    top = np.arctan2(offset[:, 2] + size[:, 1] / 2, far)
    return heading - half, heading + half, bottom, top


def view_shares(left: Floats, right: Floats, bottom: Floats, top: Floats) -> NDArray[np.float32]:
    """What part of each of the 36 pictures angular boxes (M,) fill, cut at its edges: (M, 36)."""
    across, up = (np.linspace(0, 1, steps) for steps in GRID)
    heading = left[:, None] + (right - left)[:, None] * across  # (M, 9)
    elevation = bottom[:, None] + (top - bottom)[:, None] * up  # (M, 5)
    shares = np.zeros((len(left), VIEWS), dtype=np.float32)
    for view in range(VIEWS):
        rows = _facing(heading, view)
        points = _project(heading[rows], elevation[rows], view)
        shares[rows, view] = _area(*points)
    return shares


def _facing(heading: Floats, view: int) -> Integers:
    """The boxes some of which lies less than a right angle to a view's side."""
    return np.flatnonzero((np.cos(heading - VIEW_HEADINGS[view]) > 0).any(axis=1))


def _project(heading: Floats, elevation: Floats, view: int) -> tuple[Floats, Floats]:
    """Pixels (M, 9, 5) of a view where directions lie; NaN behind the camera."""
    turn, tilt = (heading - VIEW_HEADINGS[view])[:, :, None], VIEW_ELEVATIONS[view]
    level, rise = np.cos(elevation)[:, None, :], np.sin(elevation)[:, None, :]
    ahead = level * np.cos(turn)
    depth = ahead * np.cos(tilt) + rise * np.sin(tilt)
    depth = np.where(depth > 0.05, depth, np.nan)
    x = PICTURE[0] / 2 + FOCAL * level * np.sin(turn) / depth
    return x, PICTURE[1] / 2 - FOCAL * (rise * np.cos(tilt) - ahead * np.sin(tilt)) / depth


def _area(x: Floats, y: Floats) -> Floats:
    """The share of a picture inside the box around points (M, 9, 5)."""
    area = np.ones(len(x))
    for place, length in ((x, PICTURE[0]), (y, PICTURE[1])):
        low = np.fmin.reduce(place, axis=(1, 2), initial=np.inf)
        high = np.fmax.reduce(place, axis=(1, 2), initial=-np.inf)
        area *= np.clip(np.clip(high, 0, length) - np.clip(low, 0, length), 0, None) / length
    return area
