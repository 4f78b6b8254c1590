"""Floor plans over many seeds: rooms side by side, all of them reached, both storeys in one outline."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from esceme.synth.layout import draw_layout
from esceme.synth.plan import WALL
from esceme.synth.sketch import Layout, is_whole

DRAWN = [(seed, 1 + seed % 2, seed % 3 == 0) for seed in range(240)]


def draw(seed: int, storeys: int, large: bool) -> Layout:
    return draw_layout(np.random.default_rng(seed), storeys=storeys, large=large)


@pytest.fixture(scope="module")
def layouts() -> list[Layout]:
    return [draw(*case) for case in DRAWN]


def test_rooms_leave_room_for_walls(layouts: list[Layout]) -> None:
    for case, layout in zip(DRAWN, layouts, strict=True):
        for a, b in itertools.combinations(layout.rooms, 2):
            gap = [max(a.rect[i] - b.rect[i + 2], b.rect[i] - a.rect[i + 2]) for i in (0, 1)]
            assert max(gap) > WALL - 1e-5 or a.top < b.bottom or b.top < a.bottom, (case, a, b)


def test_every_room_is_reached(layouts: list[Layout]) -> None:
    assert all(is_whole(layout) for layout in layouts)


def test_a_room_without_a_door_is_noticed(layouts: list[Layout]) -> None:
    closets = [layout for layout in layouts if "closet" in layout.kinds()]
    for layout in closets:
        closet = layout.kinds().index("closet")
        passages = [passage for passage in layout.passages if closet not in passage.rooms]
        assert not is_whole(Layout(layout.rooms, passages))
    assert closets


def test_houses_stand_in_all_directions(layouts: list[Layout]) -> None:
    spans = [np.array([room.rect for room in layout.rooms]) for layout in layouts]
    sizes = np.array([span[:, 2:].max(axis=0) - span[:, :2].min(axis=0) for span in spans])
    wide = (sizes[:, 0] > sizes[:, 1]).mean()
    assert 0.25 < wide < 0.75
    assert all(np.allclose(span[:, :2].min(axis=0), 0) for span in spans)


def test_large_houses_have_more_rooms(layouts: list[Layout]) -> None:
    rooms = np.array([len(layout.rooms) for layout in layouts])
    large = np.array([case[2] for case in DRAWN])
    assert rooms[large].mean() > rooms[~large].mean() + 4
