"""Floors found from heights, and the arrangement of their panels."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.files import read_json
from esceme.report.floors import (
    MIN_STOREY,
    WIDTH,
    Bounds,
    Panel,
    arrange_panels,
    floor_heights,
    floor_indices,
    total_size,
)
from esceme.world import SceneGraph, read_scenes


def corridor(heights: list[float]) -> SceneGraph:
    """Viewpoints in a row, two metres apart, at the given heights."""
    positions = {f"v{n}": (2.0 * n, 0.0, height) for n, height in enumerate(heights)}
    return SceneGraph.build("corridor", positions, [(f"v{n}", f"v{n + 1}") for n in range(len(heights) - 1)])


@pytest.mark.parametrize(
    ("heights", "floors"),
    [
        ([0.0] * 20 + [0.5, 1.0, 1.5] + [1.6] * 20, [0] * 43),
        ([0.0] * 10 + [0.8, 1.4, 1.6, 2.4] + [3.0] * 10, [0] * 12 + [1] * 12),
        ([0.0] * 30 + [2.8], [0] * 31),
    ],
    ids=["a few steps are no floor", "stairs belong to the nearer floor", "one viewpoint is no floor"],
)
def test_floors_of_a_corridor(heights: list[float], floors: list[int]) -> None:
    assert floor_indices(corridor(heights)).tolist() == floors


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=40))
def test_floors_are_numbered_upwards_without_gaps(heights: list[float]) -> None:
    graph = corridor(heights)
    floors, levels = floor_indices(graph), floor_heights(graph)
    assert set(floors.tolist()) == set(range(len(levels)))
    assert (np.diff(levels) >= MIN_STOREY - 1e-6).all()
    assert (np.diff(floors[np.argsort(heights, kind="stable")]) >= 0).all()


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.floats(0, 9), min_size=2, max_size=12), st.integers(-30, 30))
def test_raising_the_whole_building_changes_no_floor(heights: list[float], metres: int) -> None:
    heights = [round(height, 1) for height in heights]
    raised = [height + metres for height in heights]
    assert len(floor_heights(corridor(heights))) == len(floor_heights(corridor(raised)))


def test_toy_houses_have_their_number_of_storeys(toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    counts = {scene: int(floor_indices(graph).max()) + 1 for scene, graph in graphs.items()}
    assert counts == {"toy-cottage": 1, "toy-house": 1, "toy-villa": 2}


@pytest.mark.real
def test_real_houses_have_one_to_five_floors_with_several_viewpoints(
    real_graphs: dict[str, SceneGraph],
) -> None:
    counts = Counter(len(floor_heights(graph)) for graph in real_graphs.values())
    assert dict(counts) == {1: 31, 2: 32, 3: 18, 4: 6, 5: 3}
    assert all(np.bincount(floor_indices(graph)).min() >= 4 for graph in real_graphs.values())


@pytest.mark.real
def test_rooms_of_real_houses_lie_on_one_floor(real_graphs: dict[str, SceneGraph], data_root: Path) -> None:
    rooms = read_json(data_root / "rooms" / "viewpoint_rooms.json", dict)["panos"]
    floors_by_room: dict[tuple[str, int], set[int]] = defaultdict(set)
    for scene, graph in real_graphs.items():
        for viewpoint, floor in zip(graph.viewpoints, floor_indices(graph).tolist(), strict=True):
            room = rooms[scene].get(viewpoint)
            if room is not None and room[1] != "s":  # stairs
                floors_by_room[scene, room[0]].add(floor)
    whole = sum(len(floors) == 1 for floors in floors_by_room.values())
    assert len(floors_by_room) > 1500
    assert whole / len(floors_by_room) > 0.97


# -- panels ----------------------------------------------------------------------------------------------

Rectangle = tuple[float, float, float, float, bool]
sides = st.floats(1, 90)
rectangles = st.lists(
    st.tuples(st.floats(-50, 50), st.floats(-50, 50), sides, sides, st.booleans()), min_size=1, max_size=6
)


def make_panels(rectangles: list[Rectangle]) -> list[Panel]:
    return [
        Panel(
            floor=n,
            heading=f"Floor {n + 1}",
            bounds=Bounds(west, south, west + width, south + height),
            is_thumbnail=is_small and n > 0,
        )
        for n, (west, south, width, height, is_small) in enumerate(rectangles)
    ]


@settings(deadline=None, derandomize=True)
@given(rectangles)
def test_panels_fit_without_overlap_at_one_scale(rectangles: list[Rectangle]) -> None:
    placed = arrange_panels(make_panels(rectangles))
    assert sorted(panel.floor for panel in placed) == list(range(len(rectangles)))
    assert total_size(placed)[0] <= WIDTH
    for n, a in enumerate(placed):
        assert a.x >= 0 and a.top >= 0 and a.y >= a.top
        for b in placed[:n]:
            is_beside = a.x >= b.x + b.width or b.x >= a.x + a.width
            is_below = a.top >= b.y + b.height or b.top >= a.y + a.height
            assert is_beside or is_below
    (large,) = {panel.scale for panel in placed if not panel.is_thumbnail}
    small = {panel.scale for panel in placed if panel.is_thumbnail}
    assert len(small) <= 1 and all(scale < large for scale in small)


def test_north_is_up_and_east_is_right() -> None:
    (panel,) = arrange_panels(make_panels([(0, 0, 10, 10, False)]))
    x, y = panel.to_pixels(np.array([5.0, 5.0]))
    assert panel.to_pixels(np.array([5.0, 6.0])) == (x, y - panel.scale)
    assert panel.to_pixels(np.array([6.0, 5.0])) == (x + panel.scale, y)


def test_floors_in_a_row_are_aligned() -> None:
    first, second = arrange_panels(make_panels([(0, 0, 10, 10, False), (0, 4, 10, 3, False)]))
    assert second.x > first.x
    stairs = np.array([5.0, 5.0])
    assert first.to_pixels(stairs)[1] == second.to_pixels(stairs)[1]
