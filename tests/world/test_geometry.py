"""The grid of 36 views against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.world.geometry import (
    TURN,
    VIEW_HEADINGS,
    angle_feature,
    direction,
    nearest_view,
    panorama_angles,
    view_angles,
    wrap_angle,
)

angles = st.floats(-1000.0, 1000.0)
offsets = st.tuples(*[st.floats(-50.0, 50.0).map(lambda x: round(x, 3))] * 3)


@given(angles)
def test_wrapped_angle_is_within_one_turn_and_equal(angle: float) -> None:
    wrapped = float(wrap_angle(angle))
    assert -math.pi <= wrapped <= math.pi
    assert math.sin(wrapped) == pytest.approx(math.sin(angle), abs=1e-9)
    assert math.cos(wrapped) == pytest.approx(math.cos(angle), abs=1e-9)


@given(st.floats(-3.14, 3.14))
def test_wrapping_leaves_a_wrapped_angle_unchanged(angle: float) -> None:
    assert float(wrap_angle(angle)) == pytest.approx(angle, abs=1e-12)
    assert wrap_angle([math.pi, -math.pi, 3 * math.pi]).tolist() == pytest.approx([math.pi] * 3)


def snap_by_loop(heading: float, elevation: float) -> int:
    """Spec A.4: nearest multiple of 30°, halves away from zero, 12 is 0; beyond 15° another row."""
    heading = math.fmod(heading, 2 * math.pi)
    if heading < 0:
        heading += 2 * math.pi
    column = math.floor(heading / math.radians(30) + 0.5)
    row = 1
    if elevation < -math.radians(15):
        row = 0
    if elevation > math.radians(15):
        row = 2
    return row * 12 + column % 12


@given(angles, st.floats(-1.5, 1.5))
def test_episode_begins_at_the_nearest_view(heading: float, elevation: float) -> None:
    view = int(nearest_view(heading, elevation))
    if abs(heading / TURN % 1 - 0.5) > 1e-6 and abs(abs(elevation) - TURN / 2) > 1e-9:
        assert view == snap_by_loop(heading, elevation)
    assert abs(float(wrap_angle(VIEW_HEADINGS[view] - heading))) <= TURN / 2 + 1e-6


@pytest.mark.parametrize(
    ("heading", "elevation", "view"),
    [
        (TURN / 2, 0.0, 13),  # between two views: the larger
        (-TURN / 2, 0.0, 12),
        (11.75 * TURN, 0.0, 12),
        (-1e-20, 0.0, 12),  # rounds to a whole turn
        (2 * np.pi, 0.0, 12),
        (-4 * np.pi, 0.0, 12),
        (2 * np.pi - 1e-9, 0.0, 12),
        (0.0, TURN / 2, 12),  # exactly 15 degrees: the middle row
        (0.0, -TURN / 2, 12),
        (0.0, TURN / 2 + 1e-6, 24),
        (0.0, -TURN / 2 - 1e-6, 0),
    ],
)
def test_views_at_the_borders(heading: float, elevation: float, view: int) -> None:
    assert int(nearest_view(heading, elevation)) == view


def test_heading_grows_clockwise_from_y() -> None:
    seen = direction([(0, 1, 0), (1, 0, 0), (0, -1, 0), (-1, 0, 0), (0, 1, 1), (0, 1, -1)])
    assert np.degrees(seen.heading) == pytest.approx([0, 90, 180, -90, 0, 0])
    assert np.degrees(seen.elevation) == pytest.approx([0, 0, 0, 0, 45, -45])


@given(offsets)
def test_heading_and_elevation_give_the_direction_back(offset: tuple[float, float, float]) -> None:
    length = math.hypot(*offset)
    seen = direction(offset)
    flat = math.cos(float(seen.elevation)) * length
    back = (
        math.sin(float(seen.heading)) * flat,
        math.cos(float(seen.heading)) * flat,
        math.sin(float(seen.elevation)) * length,
    )
    assert back == pytest.approx(offset, abs=1e-9)


@given(offsets)
def test_view_angles_equal_those_of_the_simulator(
    offset: tuple[float, float, float],
) -> None:
    x, y, z = offset
    seen = view_angles(direction(offset))
    for view in range(36):
        heading = math.atan2(x, y) - math.radians(view % 12 * 30)
        while heading <= -math.pi:
            heading += 2 * math.pi
        elevation = math.atan2(z, math.hypot(x, y)) - math.radians((view // 12 - 1) * 30)
        if abs(abs(heading) - math.pi) > 1e-9:
            assert seen.heading[view] == pytest.approx(heading, abs=1e-9)
        assert seen.elevation[view] == pytest.approx(elevation, abs=1e-9)
        assert seen.angular_distance[view] == pytest.approx(math.hypot(heading, elevation), abs=1e-6)
        if abs(abs(heading) - math.radians(40)) > 1e-9:
            assert bool(seen.visible[view]) == (abs(heading) <= math.radians(40))


def test_direction_at_exactly_40_degrees_is_visible() -> None:
    angle = np.radians(40.0)
    assert view_angles(direction((np.sin(angle), np.cos(angle), 0.0))).visible[13]


@given(angles, st.floats(-1.5, 1.5), st.sampled_from([4, 8, 128]))
def test_angle_feature_repeats_four_numbers(heading: float, elevation: float, size: int) -> None:
    expected = [math.sin(heading), math.cos(heading), math.sin(elevation), math.cos(elevation)]
    feature = angle_feature(heading, elevation, size=size)
    assert feature.dtype == np.float32
    assert feature.tolist() == pytest.approx(expected * (size // 4), abs=1e-6)


@pytest.mark.parametrize("faced", [0, 5, 17, 35])
def test_panorama_angles_are_relative_to_the_heading_only(faced: int) -> None:
    table = panorama_angles(faced)
    assert table.shape == (36, 4)
    for view in range(36):
        heading = math.radians(view % 12 * 30) - math.radians(faced % 12 * 30)
        elevation = math.radians((view // 12 - 1) * 30)
        expected = [math.sin(heading), math.cos(heading), math.sin(elevation), math.cos(elevation)]
        assert table[view].tolist() == pytest.approx(expected, abs=1e-6)
    assert panorama_angles([[faced]] * 2, size=8).shape == (2, 1, 36, 8)
