"""Paths over a scene: graph rows, lanes and polylines."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.errors import ConfigError, WorldError
from esceme.report.paths import (
    LANE_WIDTH,
    PathOverlay,
    PathSegment,
    assign_lanes,
    expand_path,
    path_parts_on_floor,
)
from esceme.world import SceneGraph

POSITIONS = {"a": (0, 0, 0), "b": (3, 0, 0), "c": (3, 4, 0), "d": (0, 4, 0)}
SQUARE = SceneGraph.build("square", POSITIONS, [("a", "b"), ("b", "c"), ("c", "d")])

row_paths = st.lists(
    st.lists(st.integers(0, 4), min_size=2, max_size=8).filter(lambda w: all(x != y for x, y in pairwise(w))),
    min_size=1,
    max_size=5,
)


def to_pixels(row: int) -> tuple[float, float]:
    return 100.0 * row, 10.0 * row**2


def offset(segment: PathSegment) -> np.ndarray:
    """Offset of a segment from its edge; independent of the direction of movement."""
    a, b = np.array(to_pixels(segment.start)), np.array(to_pixels(segment.end))
    direction = (b - a) / np.linalg.norm(b - a)
    return segment.lane * np.array([-direction[1], direction[0]])


@settings(derandomize=True, deadline=None)
@given(row_paths)
def test_segments_of_one_edge_have_different_lanes_around_it(paths: list[list[int]]) -> None:
    segments = [segment for path in assign_lanes(paths) for segment in path]
    for edge in {frozenset(segment[:2]) for segment in segments}:
        offsets = [offset(segment) for segment in segments if {segment.start, segment.end} == edge]
        assert np.allclose(np.sum(offsets, axis=0), 0, atol=1e-9)
        assert max(np.linalg.norm(value) for value in offsets) < 3
        for n, value in enumerate(offsets):
            assert all(np.linalg.norm(value - other) > 0.1 for other in offsets[:n])


@pytest.mark.parametrize(
    ("path", "rows"),
    [("aabb", [0, 1]), ("ad", [0, 1, 2, 3])],
    ids=["repeated viewpoints are merged", "jumps become shortest paths"],
)
def test_path_is_expanded_to_rows(path: str, rows: list[int]) -> None:
    assert expand_path(SQUARE, PathOverlay("agent", tuple(path), "predicted")) == rows


def test_unknown_viewpoint_and_empty_path_are_refused() -> None:
    with pytest.raises(WorldError, match="'nowhere' is not in scene 'square'"):
        expand_path(SQUARE, PathOverlay("agent", ("a", "nowhere"), "predicted"))
    with pytest.raises(ConfigError, match="path 'agent' has no viewpoint"):
        PathOverlay("agent", (), "predicted")


def test_polyline_passes_all_viewpoints_in_order() -> None:
    (line,) = path_parts_on_floor(assign_lanes([[0, 1, 2, 3]])[0], lambda row: True, to_pixels, to_pixels(3))
    assert [step for step, _, _ in line.steps] == [1, 2]
    assert line.data.startswith("M0,0 L") and line.data.endswith(" L300,90")
    for step, x, y in line.steps:
        assert np.hypot(*np.subtract((x, y), to_pixels(step))) < LANE_WIDTH


def test_path_to_another_floor_is_cut_at_the_midpoint() -> None:
    segments = assign_lanes([[0, 1, 2]])[0]
    (lower,) = path_parts_on_floor(segments, lambda row: row < 2, to_pixels, to_pixels(2))
    (upper,) = path_parts_on_floor(segments, lambda row: row == 2, to_pixels, to_pixels(2))
    assert lower.data.endswith("L150,25")
    assert upper.data == "M150,25 L200,40"


def test_path_that_leaves_a_floor_and_returns_has_two_polylines() -> None:
    segments = assign_lanes([[0, 1, 2, 3]])[0]
    lines = path_parts_on_floor(segments, lambda row: row in (0, 3), to_pixels, to_pixels(3))
    assert len(lines) == 2
    assert "Q" not in "".join(line.data for line in lines)
