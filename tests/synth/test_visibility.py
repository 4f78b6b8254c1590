"""Visibility: coverage of views, mentions of objects, and the objects in candidate views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.synth.house import build_graph, generate_house
from esceme.synth.visibility import MIN_COVERAGE, Mention, Visibility, view_coverage

HOUSE = generate_house("home-0001", 0)
GRAPH = build_graph(HOUSE)


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_coverage_is_the_share_of_pixels(seed: int, num_objects: int) -> None:
    objects = np.random.default_rng(seed).integers(-1, num_objects, (36, 3, 4)).astype(np.int16)
    coverage = view_coverage(objects, num_objects)
    assert coverage.shape == (36, num_objects) and coverage.dtype == np.float32
    for index in range(num_objects):
        assert coverage[:, index] == pytest.approx((objects == index).mean(axis=(1, 2)))


def make_visibility(coverage: dict[tuple[int, int, int], float]) -> Visibility:
    """Visibility with the given coverage of (viewpoint, view, object) and zero elsewhere."""
    array = np.zeros((len(HOUSE.viewpoints), 36, len(HOUSE.furniture)), dtype=np.float32)
    for index, value in coverage.items():
        array[index] = value
    return Visibility(HOUSE, GRAPH, array)


def mentions_of(index: int) -> set[Mention]:
    item = HOUSE.furniture[index]
    return {Mention(item.name), Mention(item.name, item.surface.colour)}


def test_object_is_visible_from_the_minimum_coverage_on() -> None:
    below = np.nextafter(np.float32(MIN_COVERAGE), np.float32(0))
    visibility = make_visibility({(0, 3, 5): MIN_COVERAGE, (0, 4, 5): below})
    assert visibility.seen_in_view(0, 3) == mentions_of(5) == visibility.seen_in_panorama(0)
    assert visibility.seen_in_view(0, 4) == frozenset() == visibility.seen_in_view(1, 3)


def test_coverage_of_two_objects_with_the_same_name_is_not_added() -> None:
    names = [(item.name, item.surface.colour) for item in HOUSE.furniture]
    first = next(index for index, name in enumerate(names) if names.count(name) > 1)
    second = names.index(names[first], first + 1)
    assert make_visibility({(0, 3, first): 0.006, (0, 3, second): 0.006}).seen_in_view(0, 3) == frozenset()


def test_candidate_views_exclude_all_other_views() -> None:
    views = set(GRAPH.views[4, : GRAPH.degrees[4]].tolist())
    other = next(view for view in range(36) if view not in views)
    visibility = make_visibility({(4, min(views), 1): 0.2, (4, other, 2): 0.9})
    assert visibility.seen_in_candidate_views(4) == mentions_of(1)
    assert visibility.seen_in_panorama(4) == mentions_of(1) | mentions_of(2)
    assert all(
        visibility.seen_in_candidate_views(index) == frozenset() for index in range(len(GRAPH)) if index != 4
    )


def test_max_coverage_is_the_largest_of_any_view() -> None:
    visibility = make_visibility({(2, 3, 5): 0.1, (2, 30, 5): 0.4, (3, 3, 5): 0.5})
    for mention in mentions_of(5):
        assert visibility.max_coverage(2, mention) == pytest.approx(0.4)
        assert visibility.max_coverage(0, mention) == 0


@pytest.mark.parametrize("number", range(2))
def test_visibility_of_a_house_is_consistent(number: int, visibility_of: Callable[[int], Visibility]) -> None:
    visibility = visibility_of(number)
    furniture, viewpoints = visibility.house.furniture, range(len(visibility.graph))
    assert visibility.coverage.shape == (len(viewpoints), 36, len(furniture))
    assert visibility.coverage.min() >= 0 and visibility.coverage.sum(axis=2).max() <= 1 + 1e-6
    for viewpoint in viewpoints:
        visible = visibility.seen_in_panorama(viewpoint)
        assert visible == frozenset().union(*(visibility.seen_in_view(viewpoint, view) for view in range(36)))
        assert visibility.seen_in_candidate_views(viewpoint) <= visible <= set(visibility.mentions)
        for mention in visible:
            assert Mention(mention.name) in visible
            assert visibility.max_coverage(viewpoint, mention) >= MIN_COVERAGE
    hidden = set(visibility.mentions) - {
        m for index in viewpoints for m in visibility.seen_in_panorama(index)
    }
    assert len(hidden) < 0.2 * len(visibility.mentions)
    names = {Mention(item.name) for item in furniture}
    coloured = {Mention(item.name, item.surface.colour) for item in furniture}
    assert list(visibility.mentions) == sorted(names | coloured)


def test_house_without_furniture_has_no_mentions() -> None:
    empty = np.zeros((len(HOUSE.viewpoints), 36, 0), dtype=np.float32)
    visibility = Visibility(replace(HOUSE, furniture=()), GRAPH, empty)
    assert visibility.mentions == ()
    assert (
        visibility.seen_in_panorama(0)
        == visibility.seen_in_candidate_views(0)
        == visibility.seen_in_view(0, 0)
        == frozenset()
    )
