"""Walks: shortest paths of R2R's length, each told three times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from esceme.synth.sights import Sights
from esceme.synth.walks import EDGES, INSTRUCTIONS, Walk, share_needing_memory, take_walks
from esceme.tasks.r4r import JOIN_WITHIN

LookAt = Callable[[int], Sights]
WalksOf = Callable[[int], list[Walk]]
HOUSES = range(5)


@pytest.mark.parametrize("number", HOUSES)
def test_walks_are_shortest_and_as_long_as_those_of_r2r(number: int, walks_of: WalksOf) -> None:
    for walk in walks_of(number):
        graph = walk.sights.graph
        assert 4 <= EDGES[0] <= len(walk.path) - 1 <= EDGES[1] <= 6
        steps = [graph.distance(a, b) for a, b in zip(walk.viewpoints, walk.viewpoints[1:], strict=False)]
        assert all(graph.adjacent(a, b) for a, b in zip(walk.viewpoints, walk.viewpoints[1:], strict=False))
        assert sum(steps) == pytest.approx(graph.distance(walk.viewpoints[0], walk.viewpoints[-1]))
        assert 5 <= sum(steps) <= 18
        assert 0 <= walk.heading <= 2 * np.pi


@pytest.mark.parametrize("number", HOUSES)
def test_each_walk_is_told_step_by_step_three_times(number: int, walks_of: WalksOf) -> None:
    for walk in walks_of(number):
        assert len(walk.told) == len(walk.texts) == INSTRUCTIONS == 3
        assert {len(clauses) for clauses in walk.told} == {len(walk.path)}
        assert walk.target == walk.told[0][-1].stop
        assert walk.scene_id == walk.sights.house.scene_id


@pytest.mark.parametrize("number", HOUSES)
def test_no_walk_is_taken_twice(number: int, walks_of: WalksOf) -> None:
    ends = [(walk.path[0], walk.path[-1]) for walk in walks_of(number)]
    assert len(set(ends)) == len(ends)
    assert [walk.path_id for walk in walks_of(number)] == list(range(len(ends)))


def test_most_walks_come_in_pairs_that_can_be_joined(walks_of: WalksOf) -> None:
    walks = [walk for number in HOUSES for walk in walks_of(number)]
    gaps = [
        first.sights.graph.distances[first.path[-1], second.path[0]]
        for first, second in zip(walks[::2], walks[1::2], strict=True)
        if first.scene_id == second.scene_id
    ]
    assert np.mean(np.array(gaps) <= JOIN_WITHIN) > 0.9


def test_the_same_generator_takes_the_same_walks(look: LookAt, walks_of: WalksOf) -> None:
    again = take_walks(look(1), 20, np.random.default_rng(1))
    assert [(walk.path, walk.heading, walk.texts) for walk in again] == [
        (walk.path, walk.heading, walk.texts) for walk in walks_of(1)
    ]
    other = take_walks(look(1), 20, np.random.default_rng(2))
    assert [walk.path for walk in other] != [walk.path for walk in again]


def test_no_more_walks_are_taken_than_wanted_or_there_are(look: LookAt) -> None:
    assert take_walks(look(1), 0, np.random.default_rng(0)) == []
    few = take_walks(look(1), 3, np.random.default_rng(0), first_id=70)
    assert [walk.path_id for walk in few] == [70, 71, 72]
    everything = take_walks(look(1), 10_000, np.random.default_rng(0))
    assert 100 < len(everything) < 30 * 29


def test_needing_memory_is_counted_by_instruction(walks_of: WalksOf) -> None:
    walk = next(walk for walk in walks_of(0) if any(c.beyond for told in walk.told for c in told))
    needing = [told for told in walk.told if any(clause.needs_memory for clause in told)]
    free = tuple(tuple(replace(clause, beyond=None) for clause in told) for told in walk.told)
    assert share_needing_memory([walk]) == len(needing) / 3 > 0
    assert share_needing_memory([replace(walk, told=free)]) == 0
    assert share_needing_memory([]) == 0
