"""What is seen from where: shares of views, ways to speak of things, and what memory keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.synth.house import graph_of, make_house
from esceme.synth.sights import NOTICED, Mention, Sights, view_shares

LookAt = Callable[[int], Sights]


def test_shares_count_pixels() -> None:
    ids = np.full((36, 4, 5), -1, dtype=np.int16)
    ids[7, 0, :] = 2
    ids[7, 1, 0] = 0
    ids[35] = 1
    share = view_shares(ids, 3)
    assert share.shape == (36, 3) and share.dtype == np.float32
    assert share[7].tolist() == pytest.approx([0.05, 0, 0.25])
    assert share[35].tolist() == [0, 1, 0]
    assert share.sum() == pytest.approx(1.3)


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_shares_are_those_of_each_thing(seed: int, things: int) -> None:
    ids = np.random.default_rng(seed).integers(-1, things, (36, 3, 4)).astype(np.int16)
    share = view_shares(ids, things)
    for thing in range(things):
        assert share[:, thing] == pytest.approx((ids == thing).mean(axis=(1, 2)))


def staged(shares: dict[tuple[int, int, int], float]) -> Sights:
    """A house in which exactly these (place, view, thing) are seen."""
    house = make_house("home-0001", 0)
    share = np.zeros((len(house.places), 36, len(house.furniture)), dtype=np.float32)
    for where, much in shares.items():
        share[where] = much
    return Sights(house, graph_of(house), share)


def names(sights: Sights, thing: int) -> set[Mention]:
    found = sights.house.furniture[thing]
    return {Mention(found.name), Mention(found.name, found.surface.colour)}


def test_a_thing_is_seen_from_one_hundredth_of_the_view_on() -> None:
    sights = staged({(0, 3, 5): NOTICED, (0, 4, 5): np.nextafter(np.float32(NOTICED), np.float32(0))})
    assert sights.in_view(0, 3) == names(sights, 5)
    assert sights.in_view(0, 4) == frozenset() == sights.in_view(1, 3)
    assert sights.around(0) == names(sights, 5)


def test_two_faint_things_of_a_name_are_not_one_plain_one() -> None:
    house = make_house("home-0001", 0)
    listed = [(thing.name, thing.surface.colour) for thing in house.furniture]
    twin = next(index for index, each in enumerate(listed) if listed.count(each) > 1)
    other = listed.index(listed[twin], twin + 1)
    sights = staged({(0, 3, twin): 0.006, (0, 3, other): 0.006})
    assert sights.in_view(0, 3) == frozenset()


def test_memory_keeps_the_views_that_lead_on_and_nothing_else() -> None:
    graph = graph_of(make_house("home-0001", 0))
    leading = set(graph.views[4, : graph.degrees[4]].tolist())
    aside = next(view for view in range(36) if view not in leading)
    sights = staged({(4, min(leading), 1): 0.2, (4, aside, 2): 0.9})
    assert sights.remembered(4) == names(sights, 1)
    assert sights.around(4) == names(sights, 1) | names(sights, 2)
    assert all(sights.remembered(place) == frozenset() for place in range(len(graph)) if place != 4)


def test_prominence_is_the_largest_share_of_any_view() -> None:
    sights = staged({(2, 3, 5): 0.1, (2, 30, 5): 0.4, (3, 3, 5): 0.5})
    for mention in names(sights, 5):
        assert sights.prominence(2, mention) == pytest.approx(0.4)
        assert sights.prominence(0, mention) == 0


@pytest.mark.parametrize("number", range(2))
def test_what_a_house_shows_fits_together(number: int, look: LookAt) -> None:
    sights = look(number)
    assert sights.share.shape == (len(sights.graph), 36, len(sights.house.furniture))
    assert sights.share.min() >= 0 and sights.share.sum(axis=2).max() <= 1 + 1e-6
    for place in range(len(sights.graph)):
        views = [sights.in_view(place, view) for view in range(36)]
        assert sights.around(place) == frozenset().union(*views)
        assert sights.remembered(place) <= sights.around(place) <= set(sights.mentions)
        for mention in sights.around(place):
            assert Mention(mention.name) in sights.around(place)
            assert sights.prominence(place, mention) >= NOTICED
    unseen = set(sights.mentions) - {m for place in range(len(sights.graph)) for m in sights.around(place)}
    assert len(unseen) < 0.2 * len(sights.mentions)


def test_every_thing_can_be_spoken_of_with_and_without_its_colour(look: LookAt) -> None:
    sights = look(0)
    assert list(sights.mentions) == sorted(set(sights.mentions))
    for index in range(len(sights.house.furniture)):
        assert names(sights, index) <= set(sights.mentions)
    assert str(Mention("sofa")) == "sofa" and str(Mention("sofa", "red")) == "red sofa"


def test_a_house_without_furniture_shows_nothing() -> None:
    house = replace(make_house("home-0001", 0), furniture=())
    sights = Sights(house, graph_of(house), np.zeros((len(house.places), 36, 0), dtype=np.float32))
    assert sights.mentions == ()
    assert sights.around(0) == sights.remembered(0) == sights.in_view(0, 0) == frozenset()
