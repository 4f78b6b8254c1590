"""Routes as they are walked, and lanes that keep those on one way apart."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.errors import ConfigError, WorldError
from esceme.report.lanes import LANE, Leg, PathOverlay, legs_of, length, pieces_on, walk
from esceme.world import SceneGraph

PLACES = {"a": (0, 0, 0), "b": (3, 0, 0), "c": (3, 4, 0), "d": (0, 4, 0)}
SQUARE = SceneGraph.build("square", PLACES, [("a", "b"), ("b", "c"), ("c", "d")])

walks = st.lists(
    st.lists(st.integers(0, 4), min_size=2, max_size=8).filter(lambda w: all(x != y for x, y in pairwise(w))),
    min_size=1,
    max_size=5,
)


def place(row: int) -> tuple[float, float]:
    return 100.0 * row, 10.0 * row**2


def aside(leg: Leg) -> np.ndarray:
    """Where a leg is drawn, as an offset from its edge that does not depend on who walks which way."""
    a, b = np.array(place(leg.start)), np.array(place(leg.end))
    along = (b - a) / np.linalg.norm(b - a)
    return leg.lane * np.array([-along[1], along[0]])


@settings(derandomize=True, deadline=None)
@given(walks)
def test_no_two_legs_of_one_edge_lie_upon_each_other(walks: list[list[int]]) -> None:
    legs = [leg for each in legs_of(walks) for leg in each]
    for n, leg in enumerate(legs):
        for other in legs[:n]:
            if {leg.start, leg.end} == {other.start, other.end}:
                assert np.linalg.norm(aside(leg) - aside(other)) > 0.1


@settings(derandomize=True, deadline=None)
@given(walks)
def test_lanes_are_balanced_around_their_edge(walks: list[list[int]]) -> None:
    legs = [leg for each in legs_of(walks) for leg in each]
    for edge in {frozenset(leg[:2]) for leg in legs}:
        offsets = [aside(leg) for leg in legs if {leg.start, leg.end} == edge]
        assert np.allclose(np.sum(offsets, axis=0), 0, atol=1e-9)
        assert max(np.linalg.norm(offset) for offset in offsets) < 3


def test_a_route_alone_stays_on_its_edges() -> None:
    assert [leg.lane for leg in legs_of([[0, 1, 2]])[0]] == [0, 0]


def test_standing_still_is_merged() -> None:
    assert walk(SQUARE, PathOverlay("agent", ("a", "a", "b", "b"), "predicted")) == [0, 1]


def test_a_jump_is_walked_the_shortest_way() -> None:
    rows = walk(SQUARE, PathOverlay("agent", ("a", "d"), "predicted"))
    assert rows == [0, 1, 2, 3]
    assert length(SQUARE, rows) == pytest.approx(3 + 4 + 3)


def test_an_unknown_viewpoint_is_refused() -> None:
    with pytest.raises(WorldError, match="'nowhere' is not in scene 'square'"):
        walk(SQUARE, PathOverlay("agent", ("a", "nowhere"), "predicted"))


def test_an_empty_route_is_refused() -> None:
    with pytest.raises(ConfigError, match="route 'agent' has no viewpoint"):
        PathOverlay("agent", (), "predicted")


def test_a_piece_passes_all_viewpoints_in_order() -> None:
    (piece,) = pieces_on(legs_of([[0, 1, 2, 3]])[0], lambda row: True, place, place(3))
    assert [turn.step for turn in piece.turns] == [1, 2]
    assert piece.path.startswith("M0,0 L") and piece.path.endswith(" L300,90")
    for turn in piece.turns:
        assert np.hypot(*np.subtract(turn[1:], place(turn.step))) < LANE


def test_a_route_to_another_floor_is_cut_halfway() -> None:
    legs = legs_of([[0, 1, 2]])[0]
    (here,) = pieces_on(legs, lambda row: row < 2, place, place(2))
    (there,) = pieces_on(legs, lambda row: row == 2, place, place(2))
    assert here.path.endswith("L150,25")
    assert there.path == "M150,25 L200,40"


def test_a_route_that_leaves_a_floor_and_comes_back_has_two_pieces() -> None:
    legs = legs_of([[0, 1, 2, 3]])[0]
    pieces = pieces_on(legs, lambda row: row in (0, 3), place, place(3))
    assert len(pieces) == 2
    assert not re.search("Q", "".join(piece.path for piece in pieces))
