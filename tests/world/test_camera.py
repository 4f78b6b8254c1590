"""What a camera shows: relative directions and navigable locations of poses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.world.camera import Camera, find_navigable, relative_directions
from esceme.world.graph import SceneGraph

coordinates = st.floats(-20, 20).map(lambda value: round(value, 2))
offsets = st.tuples(coordinates, coordinates, coordinates).filter(lambda offset: any(offset[:2]))


@given(offsets, st.floats(0, 2 * math.pi), st.floats(-1, 1))
def test_relative_directions_are_rotations(
    offset: tuple[float, float, float], heading: float, elevation: float
) -> None:
    found = relative_directions(np.array([offset], np.float32), np.array([heading]), np.array([elevation]))
    x, y, z = offset
    expected = math.atan2(x, y) - heading
    assert math.remainder(float(found.heading[0]) - expected, 2 * math.pi) == pytest.approx(0, abs=2e-6)
    assert found.elevation[0] == pytest.approx(math.atan2(z, math.hypot(x, y)) - elevation, abs=1e-6)
    assert found.distance[0] == pytest.approx(math.hypot(x, y, z), rel=1e-6)
    assert found.cosine[0] == pytest.approx(math.cos(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("camera", "degrees"),
    [
        (Camera(), 40),
        (Camera(320, 240, 0.8), math.degrees(0.8 * 2 / 3)),
        (Camera(3, 1, -0.5), math.degrees(0.75)),
    ],
)
def test_half_angle_is_the_simulators(camera: Camera, degrees: float) -> None:
    assert math.degrees(math.acos(camera.min_cosine)) == pytest.approx(degrees)


@pytest.mark.parametrize(
    "camera", [Camera(640, 0), Camera(0, 0), Camera(4, 3, math.nan), Camera(4, 3, math.inf)]
)
def test_camera_without_an_angle_shows_nothing(camera: Camera) -> None:
    assert camera.min_cosine == math.inf


def test_navigable_locations_of_several_poses() -> None:
    """Four neighbours around: pose 0 looks along +y, pose 1 along +x; the last one is straight above."""
    around = np.array([(0, 2, 0), (2, 0, 0), (0.2, 2, 0), (0, 0, 3)], np.float32)
    offset, neighbour = np.tile(around, (2, 1)), np.tile(np.arange(4), 2)
    pose, headings = np.repeat([0, 1], 4), np.array([0.0, math.pi / 2])
    table = find_navigable(offset, neighbour, pose, headings, np.zeros(2), Camera().min_cosine)
    assert table.start.tolist() == [0, 2, 3]
    assert table.neighbour.tolist() == [0, 2, 1]
    everything = find_navigable(offset, neighbour, pose, headings, np.zeros(2), None)
    assert everything.start.tolist() == [0, 4, 8]
    assert everything.neighbour[:2].tolist() == [0, 2]
    assert sorted(everything.neighbour[:4].tolist()) == [0, 1, 2, 3]
    nothing = find_navigable(offset, neighbour, pose, np.full(2, np.nan), np.zeros(2), Camera().min_cosine)
    assert nothing.start.tolist() == [0, 0, 0]


def test_records_include_viewpoints_that_are_not_in_the_graph() -> None:
    positions = {"a": (0, 0, 0), "b": (0, 1, 0), "c": (1, 0, 0), "d": (5, 5, 5), "e": (0, 2, 0)}
    edges = [("a", "b"), ("b", "c"), ("b", "e")]
    graph = SceneGraph.build("house", positions, edges, excluded=["b2", "c"])
    assert graph.record_names == ("a", "b", "c", "d", "e")
    assert graph.poses[3, :3, 3].tolist() == [5, 5, 5]
    here, there, offset = graph.adjacent_records
    assert list(zip(here.tolist(), there.tolist(), strict=True)) == [(0, 1), (1, 0), (1, 4), (4, 1)]
    assert offset[2].tolist() == [0, 1, 0]
