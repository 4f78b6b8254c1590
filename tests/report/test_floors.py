"""Floors told from heights: few steps are no floor, a storey is, and rooms of real houses stay together."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.files import read_json
from esceme.report.floors import STOREY, floor_heights, floors_of
from esceme.world import SceneGraph, read_scenes


def corridor(heights: list[float]) -> SceneGraph:
    """Viewpoints in a row, two metres apart, at the given heights."""
    places = {f"v{n}": (2.0 * n, 0.0, height) for n, height in enumerate(heights)}
    return SceneGraph.build("corridor", places, [(f"v{n}", f"v{n + 1}") for n in range(len(heights) - 1)])


def test_a_few_steps_are_no_floor() -> None:
    assert floors_of(corridor([0.0] * 20 + [0.5, 1.0, 1.5] + [1.6] * 20)).tolist() == [0] * 43


def test_stairs_belong_to_the_nearer_floor() -> None:
    floors = floors_of(corridor([0.0] * 10 + [0.8, 1.4, 1.6, 2.4] + [3.0] * 10))
    assert floors.tolist() == [0] * 12 + [1] * 12


def test_a_gallery_of_a_single_viewpoint_is_no_floor() -> None:
    assert not floors_of(corridor([0.0] * 30 + [2.8])).any()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-20, 20), min_size=2, max_size=40))
def test_floors_are_numbered_upwards_without_gaps(heights: list[float]) -> None:
    graph = corridor(heights)
    floors, levels = floors_of(graph), floor_heights(graph)
    assert set(floors.tolist()) == set(range(len(levels)))
    assert (np.diff(levels) >= STOREY - 1e-6).all()
    assert (np.diff(floors[np.argsort(heights, kind="stable")]) >= 0).all()


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.lists(st.floats(0, 9), min_size=2, max_size=12), st.integers(-30, 30))
def test_raising_the_whole_building_changes_no_floor(heights: list[float], metres: int) -> None:
    heights = [round(height, 1) for height in heights]
    raised = [height + metres for height in heights]
    assert len(floor_heights(corridor(heights))) == len(floor_heights(corridor(raised)))


def test_toy_houses_have_the_storeys_they_were_built_with(toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    counts = {scene: int(floors_of(graph).max()) + 1 for scene, graph in graphs.items()}
    assert counts == {"toy-cottage": 1, "toy-house": 1, "toy-villa": 2}


@pytest.mark.real
def test_real_houses_have_one_to_five_floors(real_graphs: dict[str, SceneGraph]) -> None:
    counts = Counter(len(floor_heights(graph)) for graph in real_graphs.values())
    assert dict(counts) == {1: 31, 2: 32, 3: 18, 4: 6, 5: 3}


@pytest.mark.real
def test_every_floor_of_a_real_house_is_a_place_of_several_viewpoints(
    real_graphs: dict[str, SceneGraph],
) -> None:
    for graph in real_graphs.values():
        assert np.bincount(floors_of(graph)).min() >= 4


@pytest.mark.real
def test_rooms_of_real_houses_are_not_torn_apart(real_graphs: dict[str, SceneGraph], data_root: Path) -> None:
    rooms = read_json(data_root / "rooms" / "viewpoint_rooms.json", dict)["panos"]
    floors_of_room: dict[tuple[str, int], set[int]] = defaultdict(set)
    for scene, graph in real_graphs.items():
        for viewpoint, floor in zip(graph.viewpoints, floors_of(graph).tolist(), strict=True):
            room = rooms[scene].get(viewpoint)
            if room is not None and room[1] != "s":  # stairs
                floors_of_room[scene, room[0]].add(floor)
    whole = sum(len(floors) == 1 for floors in floors_of_room.values())
    assert len(floors_of_room) > 1500
    assert whole / len(floors_of_room) > 0.97
