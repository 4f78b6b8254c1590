"""Triangulation, compared with an independent camera model."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from esceme.perception.triangulation import (
    FOCAL_LENGTH,
    PRIOR_DISTANCE,
    ImageBoxes,
    ObjectGeometry,
    angular_box,
    box_coverage,
    merge_views,
    pixel_direction,
    triangulate,
    unit_vectors,
)
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS

VIEWPOINTS = np.array([[0.0, 0.0, 1.5], [2.0, 0.5, 1.5], [0.5, 2.5, 1.6], [-3.0, 4.0, 1.4]])
OBJECTS = np.array([[1.0, 1.2, 0.9], [-0.6, 1.0, 2.0]])
RADIUS = 0.15


def camera(view: int) -> NDArray[np.float64]:
    """Right, up and forward vectors of a view from rotation matrices: an independent camera model."""
    heading, elevation = VIEW_HEADINGS[view], VIEW_ELEVATIONS[view]
    yaw = np.array([[np.cos(heading), -np.sin(heading), 0], [np.sin(heading), np.cos(heading), 0], [0, 0, 1]])
    pitch = np.array(
        [[1, 0, 0], [0, np.cos(elevation), np.sin(elevation)], [0, -np.sin(elevation), np.cos(elevation)]]
    )
    right, forward, up = pitch @ yaw
    return np.stack([right, up, forward])


def project(eye: NDArray[np.float64], position: NDArray[np.float64]) -> dict[int, NDArray[np.float64]]:
    """The boxes of a small square that faces the camera, in all views that show some of it."""
    towards = position - eye
    side = np.cross(towards, [0, 0, 1.0])
    side *= RADIUS / np.linalg.norm(side)
    corners = [position + a * side + b * np.array([0, 0, RADIUS]) for a in (-1, 1) for b in (-1, 1)]
    boxes = {}
    for view in range(VIEWS):
        right, up, forward = camera(view) @ (np.array(corners) - eye).T
        if (forward <= 0.05).any():
            continue
        x, y = 320 + FOCAL_LENGTH * right / forward, 240 - FOCAL_LENGTH * up / forward
        left, high = max(x.min(), 0), max(y.min(), 0)
        width, height = min(x.max(), 640) - left, min(y.max(), 480) - high
        if width > 1 and height > 1:
            boxes[view] = np.array([left, high, width, height])
    return boxes


def annotate(viewpoints: NDArray[np.float64]) -> ImageBoxes:
    entries = [
        (index, viewpoint, view, box)
        for index, position in enumerate(OBJECTS)
        for viewpoint, eye in enumerate(viewpoints)
        for view, box in project(eye, position).items()
    ]
    return ImageBoxes(*(np.array(column) for column in zip(*entries, strict=True)))


def locate(viewpoints: NDArray[np.float64]) -> ObjectGeometry:
    return triangulate(merge_views(annotate(viewpoints)), viewpoints, num_objects=len(OBJECTS))


def test_pixel_directions_agree_with_the_rotated_camera() -> None:
    rng = np.random.default_rng(0)
    view, x, y = rng.integers(0, VIEWS, 200), rng.uniform(0, 640, 200), rng.uniform(0, 480, 200)
    x[:VIEWS], y[:VIEWS], view[:VIEWS] = 320, 240, np.arange(VIEWS)
    expected = np.array(
        [
            ((a - 320) / FOCAL_LENGTH) * camera(v)[0]
            + ((240 - b) / FOCAL_LENGTH) * camera(v)[1]
            + camera(v)[2]
            for v, a, b in zip(view, x, y, strict=True)
        ]
    )
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    heading, elevation = pixel_direction(view, x, y)
    np.testing.assert_allclose(unit_vectors(heading, elevation), expected, atol=1e-12)
    np.testing.assert_allclose(heading[:VIEWS], VIEW_HEADINGS)
    np.testing.assert_allclose(elevation[:VIEWS], VIEW_ELEVATIONS)


def test_objects_seen_from_several_viewpoints_are_located_within_centimetres() -> None:
    geometry = locate(VIEWPOINTS[:3])
    assert np.linalg.norm(geometry.position - OBJECTS, axis=1).max() < 0.05
    np.testing.assert_allclose(geometry.size, 2 * RADIUS, rtol=0.25)


def test_object_seen_from_one_viewpoint_is_at_the_prior_distance() -> None:
    offset = locate(VIEWPOINTS[:1]).position - VIEWPOINTS[0]
    towards = OBJECTS - VIEWPOINTS[0]
    np.testing.assert_allclose(np.linalg.norm(offset, axis=1), PRIOR_DISTANCE)
    cosine = (offset * towards).sum(1) / PRIOR_DISTANCE / np.linalg.norm(towards, axis=1)
    assert np.degrees(np.arccos(cosine)).max() < 2


def test_object_without_a_box_has_no_position() -> None:
    geometry = triangulate(merge_views(annotate(VIEWPOINTS)), VIEWPOINTS, num_objects=len(OBJECTS) + 1)
    assert np.isnan(geometry.position[-1]).all()
    assert np.isfinite(geometry.position[:-1]).all()
    empty = np.zeros(0, dtype=np.int64)
    merged = merge_views(ImageBoxes(empty, empty, empty, np.zeros((0, 4))))
    assert len(merged.object) == 0
    assert triangulate(merged, VIEWPOINTS, num_objects=0).position.shape == (0, 3)


def test_object_is_reprojected_into_the_views_that_show_it() -> None:
    geometry = locate(VIEWPOINTS[:3])
    for index, position in enumerate(OBJECTS):
        boxes = project(VIEWPOINTS[3], position)
        box = angular_box(geometry.position[[index]] - VIEWPOINTS[3], geometry.size[[index]])
        coverage, expected = box_coverage(*box)[0], np.zeros(VIEWS)
        expected[list(boxes)] = [box[2] * box[3] / (640 * 480) for box in boxes.values()]
        assert np.flatnonzero(expected > 0.001).size
        assert set(np.flatnonzero(expected > 0.001)) <= set(np.flatnonzero(coverage))
        assert set(np.flatnonzero(coverage > 0.001)) <= set(np.flatnonzero(expected))
        np.testing.assert_allclose(coverage, expected, atol=0.01)


@pytest.mark.parametrize("column", range(12))
def test_box_around_the_centre_of_a_view_covers_that_view_most(column: int) -> None:
    heading = np.array([np.pi / 6 * column])
    coverage = box_coverage(heading - 0.1, heading + 0.1, np.array([-0.1]), np.array([0.1]))[0]
    assert coverage[12 + column] == pytest.approx(
        (2 * np.tan(0.1) * FOCAL_LENGTH) ** 2 / (640 * 480), rel=0.02
    )
    assert coverage[12 + (column + 6) % 12] == 0
    assert set(np.flatnonzero(coverage) % 12) <= {(column + turn) % 12 for turn in (-1, 0, 1)}


def test_box_all_around_the_camera_covers_every_level_view() -> None:
    coverage = box_coverage(np.array([-np.pi]), np.array([np.pi]), np.array([-0.5]), np.array([0.5]))[0]
    assert (coverage[12:24] > 0.9).all()
