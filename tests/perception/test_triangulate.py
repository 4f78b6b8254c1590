from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from esceme.perception.triangulate import (
    FOCAL,
    GUESS,
    Boxes,
    Things,
    look_through,
    merge,
    pointing,
    sight_from,
    triangulate,
    view_shares,
)
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS

VIEWPOINTS = np.array([[0.0, 0.0, 1.5], [2.0, 0.5, 1.5], [0.5, 2.5, 1.6], [-3.0, 4.0, 1.4]])
OBJECTS = np.array([[1.0, 1.2, 0.9], [-0.6, 1.0, 2.0]])
RADIUS = 0.15


def camera(view: int) -> NDArray[np.float64]:
    """Right, up and forward of a view, made from rotations: the camera model once more, another way."""
    heading, elevation = VIEW_HEADINGS[view], VIEW_ELEVATIONS[view]
    yaw = np.array([[np.cos(heading), -np.sin(heading), 0], [np.sin(heading), np.cos(heading), 0], [0, 0, 1]])
    pitch = np.array(
        [[1, 0, 0], [0, np.cos(elevation), np.sin(elevation)], [0, -np.sin(elevation), np.cos(elevation)]]
    )
    right, forward, up = pitch @ yaw
    return np.stack([right, up, forward])


def photograph(eye: NDArray[np.float64], thing: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
    """The boxes around a small square that faces the eye, in all views that show some of it."""
    towards = thing - eye
    side = np.cross(towards, [0, 0, 1.0])
    side *= RADIUS / np.linalg.norm(side)
    corners = [thing + a * side + b * np.array([0, 0, RADIUS]) for a in (-1, 1) for b in (-1, 1)]
    boxes = {}
    for view in range(VIEWS):
        right, up, forward = camera(view) @ (np.array(corners) - eye).T
        if (forward <= 0.05).any():
            continue
        x, y = 320 + FOCAL * right / forward, 240 - FOCAL * up / forward
        left, high = max(x.min(), 0), max(y.min(), 0)
        width, height = min(x.max(), 640) - left, min(y.max(), 480) - high
        if width > 1 and height > 1:
            boxes[view] = np.array([left, high, width, height])
    return boxes


def annotate(viewpoints: NDArray[np.float64]) -> Boxes:
    entries = [
        (thing, place, view, box)
        for thing, position in enumerate(OBJECTS)
        for place, eye in enumerate(viewpoints)
        for view, box in photograph(eye, position).items()
    ]
    things, places, views, boxes = zip(*entries, strict=True)
    return Boxes(np.array(things), np.array(places), np.array(views), np.stack(boxes))


def locate(viewpoints: NDArray[np.float64]) -> Things:
    return triangulate(merge(annotate(viewpoints)), viewpoints, count=len(OBJECTS))


def test_the_middle_of_a_picture_is_the_views_own_direction() -> None:
    heading, elevation = look_through(np.arange(VIEWS), np.full(VIEWS, 320.0), np.full(VIEWS, 240.0))
    np.testing.assert_allclose(heading, VIEW_HEADINGS)
    np.testing.assert_allclose(elevation, VIEW_ELEVATIONS)


def test_a_pixel_looks_where_the_rotated_camera_does() -> None:
    rng = np.random.default_rng(0)
    view, x, y = rng.integers(0, VIEWS, 200), rng.uniform(0, 640, 200), rng.uniform(0, 480, 200)
    expected = np.array(
        [
            ((a - 320) / FOCAL) * camera(v)[0] + ((240 - b) / FOCAL) * camera(v)[1] + camera(v)[2]
            for v, a, b in zip(view, x, y, strict=True)
        ]
    )
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(pointing(*look_through(view, x, y)), expected, atol=1e-12)


def test_objects_seen_from_two_viewpoints_are_found_within_centimetres() -> None:
    found = locate(VIEWPOINTS[:3])
    assert np.linalg.norm(found.position - OBJECTS, axis=1).max() < 0.05
    np.testing.assert_allclose(found.size, 2 * RADIUS, rtol=0.25)


def test_an_object_seen_from_one_viewpoint_stands_at_the_guessed_distance() -> None:
    found = locate(VIEWPOINTS[:1])
    towards = OBJECTS - VIEWPOINTS[0]
    np.testing.assert_allclose(np.linalg.norm(found.position - VIEWPOINTS[0], axis=1), GUESS)
    cosine = ((found.position - VIEWPOINTS[0]) * towards).sum(1) / GUESS / np.linalg.norm(towards, axis=1)
    assert np.degrees(np.arccos(cosine)).max() < 2


def test_an_object_that_nobody_sees_has_no_position() -> None:
    found = triangulate(merge(annotate(VIEWPOINTS)), VIEWPOINTS, count=len(OBJECTS) + 1)
    assert np.isnan(found.position[-1]).all()
    assert np.isfinite(found.position[:-1]).all()


def test_a_scene_without_boxes_has_no_sightings() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    seen = merge(Boxes(nothing, nothing, nothing, np.zeros((0, 4))))
    assert len(seen.thing) == 0
    assert triangulate(seen, VIEWPOINTS, count=0).position.shape == (0, 3)


def test_an_object_reappears_in_the_views_of_a_viewpoint_that_did_not_annotate_it() -> None:
    found = locate(VIEWPOINTS[:3])
    for thing, position in enumerate(OBJECTS):
        shown = photograph(VIEWPOINTS[3], position)
        shares = view_shares(*sight_from(found.position[[thing]] - VIEWPOINTS[3], found.size[[thing]]))[0]
        expected = np.zeros(VIEWS)
        expected[list(shown)] = [box[2] * box[3] / (640 * 480) for box in shown.values()]
        assert np.flatnonzero(expected > 0.001).size
        assert set(np.flatnonzero(expected > 0.001)) <= set(np.flatnonzero(shares))
        assert set(np.flatnonzero(shares > 0.001)) <= set(np.flatnonzero(expected))
        np.testing.assert_allclose(shares, expected, atol=0.01)


@pytest.mark.parametrize("column", range(12))
def test_a_box_around_a_views_middle_fills_that_view_most(column: int) -> None:
    heading = np.array([np.pi / 6 * column])
    shares = view_shares(heading - 0.1, heading + 0.1, np.array([-0.1]), np.array([0.1]))[0]
    assert shares[12 + column] == pytest.approx((2 * np.tan(0.1) * FOCAL) ** 2 / (640 * 480), rel=0.02)
    assert shares[12 + (column + 6) % 12] == 0
    assert set(np.flatnonzero(shares) % 12) <= {(column + turn) % 12 for turn in (-1, 0, 1)}


def test_what_surrounds_the_viewer_fills_every_level_view() -> None:
    all_round = view_shares(np.array([-np.pi]), np.array([np.pi]), np.array([-0.5]), np.array([0.5]))[0]
    assert (all_round[12:24] > 0.9).all()
