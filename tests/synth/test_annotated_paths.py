"""Annotated paths: shortest paths of R2R's length with three instructions each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from esceme.synth.annotated_paths import AnnotatedPath, fraction_needing_memory, sample_paths
from esceme.synth.visibility import Visibility
from esceme.tasks.r4r import JOIN_WITHIN

VisibilityOf = Callable[[int], Visibility]
PathsOf = Callable[[int], list[AnnotatedPath]]
HOUSES = range(5)


@pytest.mark.parametrize("number", HOUSES)
def test_paths_are_shortest_and_different_with_three_instructions(number: int, paths_of: PathsOf) -> None:
    paths = paths_of(number)
    assert len({(path.path[0], path.path[-1]) for path in paths}) == len(paths)
    assert [path.path_id for path in paths] == list(range(len(paths)))
    for path in paths:
        graph = path.visibility.graph
        edges = list(zip(path.viewpoints, path.viewpoints[1:], strict=False))
        assert 4 <= len(edges) <= 6 and all(graph.adjacent(a, b) for a, b in edges)
        length = sum(graph.distance(a, b) for a, b in edges)
        assert length == pytest.approx(graph.distance(path.viewpoints[0], path.viewpoints[-1]))
        assert 5 <= length <= 18 and 0 <= path.heading <= 2 * np.pi
        assert len(path.clauses) == len(path.instructions) == 3
        assert {len(clauses) for clauses in path.clauses} == {len(path.path)}
        assert path.target == path.clauses[0][-1].stop


def test_most_paths_come_in_pairs_that_r4r_can_join(paths_of: PathsOf) -> None:
    paths = [path for number in HOUSES for path in paths_of(number)]
    gaps = [
        first.visibility.graph.distances[first.path[-1], second.path[0]]
        for first, second in zip(paths[::2], paths[1::2], strict=True)
        if first.scene_id == second.scene_id
    ]
    assert np.mean(np.array(gaps) <= JOIN_WITHIN) > 0.9


def test_sampling_is_deterministic_and_limited_by_count(
    visibility_of: VisibilityOf, paths_of: PathsOf
) -> None:
    def sample(count: int, seed: int, first_id: int = 0) -> list[AnnotatedPath]:
        return sample_paths(visibility_of(1), count, np.random.default_rng(seed), first_id=first_id)

    again = sample(20, seed=1)
    assert [(path.path, path.heading, path.instructions) for path in again] == [
        (path.path, path.heading, path.instructions) for path in paths_of(1)
    ]
    assert [path.path for path in sample(20, seed=2)] != [path.path for path in again]
    assert sample(0, seed=0) == []
    assert [path.path_id for path in sample(3, seed=0, first_id=70)] == [70, 71, 72]
    assert 100 < len(sample(10_000, seed=0)) < 30 * 29


def test_fraction_needing_memory_counts_instructions(paths_of: PathsOf) -> None:
    path = next(p for p in paths_of(0) if any(c.beyond for clauses in p.clauses for c in clauses))
    num_needing = sum(any(clause.beyond for clause in clauses) for clauses in path.clauses)
    without = tuple(tuple(replace(clause, beyond=None) for clause in clauses) for clauses in path.clauses)
    assert fraction_needing_memory([path]) == num_needing / 3 > 0
    assert fraction_needing_memory([replace(path, clauses=without)]) == 0 == fraction_needing_memory([])
