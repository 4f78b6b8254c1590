"""Edges between viewpoints: walls and furniture block them, and selection keeps the graph connected."""

from __future__ import annotations

import numpy as np

from esceme.synth.house_model import Opening, Room
from esceme.synth.palette import CEILING
from esceme.synth.viewpoint_sampling import FloorPoint, Mask
from esceme.synth.walkable_edges import find_walkable_pairs, is_connected, select_edges

ROOMS = [
    Room("office", 0, (0.0, 0.0, 0.0), (4.0, 4.0, 2.7), CEILING, CEILING, CEILING),
    Room("bedroom", 0, (4.12, 0.0, 0.0), (8.0, 4.0, 2.7), CEILING, CEILING, CEILING),
]
DOOR = Opening((0, 1), 0, 1.5, 2.4, 0.0, 2.05, "door", CEILING)
NOTHING = np.zeros((0, 4))


def walkable(*points: tuple[int, float, float], obstacles: np.ndarray = NOTHING) -> Mask:
    viewpoints = [FloorPoint(room, (x, y), 0.0) for room, x, y in points]
    return find_walkable_pairs(ROOMS, [DOOR], [obstacles, NOTHING], viewpoints)


def test_edges_pass_the_door_and_not_the_wall() -> None:
    pairs = walkable((0, 3, 2), (1, 5, 2), (0, 3, 3.5), (1, 5, 3.5))
    assert pairs[0, 1] and pairs[0, 2] and pairs[1, 3]
    assert not pairs[2, 3] and not pairs[0, 3] and not pairs[1, 2]
    assert (pairs == pairs.T).all()


def test_furniture_close_to_an_edge_blocks_it() -> None:
    for low, is_free in ((1.41, True), (1.3, False), (0.9, False)):
        table = np.array([[1.8, low, 2.2, low + 0.5]])
        assert walkable((0, 1, 1), (0, 3, 1), obstacles=table)[0, 1] == is_free


def test_edges_are_neither_too_short_nor_too_long() -> None:
    assert not walkable((0, 1, 2), (0, 1.5, 2), (1, 7.5, 2)).any()


def test_selection_keeps_a_graph_connected_and_gives_the_degree() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        positions = rng.uniform(0, 9, (40, 3)) * (1, 1, 0)
        pairs = np.linalg.norm(positions[:, None] - positions[None], axis=2) < 4
        np.fill_diagonal(pairs, False)
        if not is_connected(pairs):
            continue
        edges = select_edges(pairs, positions, degree=4.0)
        assert len(edges) == 80
        selected = np.zeros_like(pairs)
        selected[tuple(np.array(edges).T)] = True
        assert is_connected(selected | selected.T) and not (selected & ~pairs).any()


def test_selection_drops_the_long_side_of_a_triangle() -> None:
    positions = np.array([(0.0, 0, 0), (2.0, 0.3, 0), (4.0, 0, 0)])
    assert select_edges(~np.eye(3, dtype=bool), positions, degree=1.0) == [(0, 1), (1, 2)]
