"""Which places are joined: thinning keeps the graph whole, walls and furniture stop ways."""

from __future__ import annotations

import numpy as np

from esceme.synth.palette import CEILING
from esceme.synth.plan import Opening, Room
from esceme.synth.spots import Spot
from esceme.synth.ways import is_connected, thin, walkable

ROOMS = [
    Room("office", 0, (0.0, 0.0, 0.0), (4.0, 4.0, 2.7), CEILING, CEILING, CEILING),
    Room("bedroom", 0, (4.12, 0.0, 0.0), (8.0, 4.0, 2.7), CEILING, CEILING, CEILING),
]
DOOR = Opening((0, 1), 0, 1.5, 2.4, 0.0, 2.05, "door", CEILING)
NOTHING = [np.zeros((0, 4)), np.zeros((0, 4))]


def spots(*places: tuple[int, float, float]) -> list[Spot]:
    return [Spot(room, (x, y), 0.0) for room, x, y in places]


def test_one_walks_through_the_door_and_not_through_the_wall() -> None:
    joined = walkable(ROOMS, [DOOR], NOTHING, spots((0, 3, 2), (1, 5, 2), (0, 3, 3.5), (1, 5, 3.5)))
    assert joined[0, 1] and joined[0, 2] and joined[1, 3]
    assert not joined[2, 3] and not joined[0, 3] and not joined[1, 2]
    assert (joined == joined.T).all()


def test_furniture_stops_a_way_that_it_is_too_close_to() -> None:
    places = spots((0, 1, 1), (0, 3, 1))
    for low, free in ((1.41, True), (1.3, False), (0.9, False)):
        table = [np.array([[1.8, low, 2.2, low + 0.5]]), np.zeros((0, 4))]
        assert walkable(ROOMS, [DOOR], table, places)[0, 1] == free


def test_ways_are_neither_too_short_nor_too_long() -> None:
    joined = walkable(ROOMS, [DOOR], NOTHING, spots((0, 1, 2), (0, 1.5, 2), (1, 7.5, 2)))
    assert not joined.any()


def test_thinning_keeps_a_graph_connected_and_gives_the_degree() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        at = rng.uniform(0, 9, (40, 3)) * (1, 1, 0)
        joined = np.linalg.norm(at[:, None] - at[None], axis=2) < 4
        np.fill_diagonal(joined, False)
        if not is_connected(joined):
            continue
        edges = thin(joined, at, degree=4.0)
        assert len(edges) == 80
        kept = np.zeros_like(joined)
        kept[tuple(np.array(edges).T)] = True
        assert is_connected(kept | kept.T) and not (kept & ~joined).any()


def test_thinning_leaves_out_the_long_side_of_a_triangle() -> None:
    at = np.array([(0.0, 0, 0), (2.0, 0.3, 0), (4.0, 0, 0)])
    joined = ~np.eye(3, dtype=bool)
    assert thin(joined, at, degree=1.0) == [(0, 1), (1, 2)]
