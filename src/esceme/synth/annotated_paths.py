"""Annotated paths: shortest paths through generated houses, as in R2R, with three instructions each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esceme.synth.instructions import Clause, clauses_to_text, plan_clauses
from esceme.synth.visibility import Mention, Visibility
from esceme.tasks.r4r import JOIN_WITHIN

NUM_INSTRUCTIONS = 3
"""Instructions per path; they differ in wording and often in their cues."""
MIN_EDGES, MAX_EDGES = 4, 6
"""Range of a path's length in edges; R2R has 3 to 6, on average 5."""


@dataclass(frozen=True)
class AnnotatedPath:
    """Shortest path over viewpoint indices with its instructions as clauses and as text."""

    visibility: Visibility
    path_id: int
    path: tuple[int, ...]
    heading: float
    clauses: tuple[tuple[Clause, ...], ...]
    instructions: tuple[str, ...]

    @property
    def scene_id(self) -> str:
        """The house's scene id."""
        return self.visibility.house.scene_id

    @property
    def viewpoints(self) -> list[str]:
        """Viewpoint ids of the path."""
        return [self.visibility.graph.viewpoints[index] for index in self.path]

    @property
    def target(self) -> Mention:
        """The object at which the first instruction stops."""
        stop = self.clauses[0][-1].stop
        assert stop is not None
        return stop


def sample_paths(
    visibility: Visibility, count: int, generator: np.random.Generator, *, first_id: int = 0
) -> list[AnnotatedPath]:
    """Return up to `count` different paths of one house for which instructions can be generated.

    Every second path starts near the end of the one before it, so that R4R can join them.
    """
    paths: list[AnnotatedPath] = []
    distances = visibility.graph.distances
    shuffled = generator.permutation(np.argwhere((distances >= 5.0) & (distances <= 18.0)))
    pairs = [(int(start), int(goal)) for start, goal in shuffled]
    while pairs and len(paths) < count:
        near = 0
        if len(paths) % 2:
            end = paths[-1].path[-1]
            starts = (index for index, (start, _) in enumerate(pairs) if distances[end, start] <= JOIN_WITHIN)
            near = next(starts, 0)
        start, goal = pairs.pop(near)
        path = _annotate_path(visibility, start, goal, first_id + len(paths), generator)
        if path is not None:
            paths.append(path)
    return paths


def _annotate_path(
    visibility: Visibility, start: int, goal: int, path_id: int, generator: np.random.Generator
) -> AnnotatedPath | None:
    graph = visibility.graph
    names = graph.shortest_path(graph.viewpoints[start], graph.viewpoints[goal])
    path = tuple(graph.index(name) for name in names)
    if not MIN_EDGES <= len(path) - 1 <= MAX_EDGES:
        return None
    heading = round(float(generator.uniform(0, 2 * np.pi)), 3)
    planned = [plan_clauses(visibility, path, heading, generator) for _ in range(NUM_INSTRUCTIONS)]
    clauses = tuple(tuple(plan) for plan in planned if plan is not None)
    if len(clauses) < NUM_INSTRUCTIONS:
        return None
    instructions = tuple(clauses_to_text(plan, generator) for plan in clauses)
    return AnnotatedPath(visibility, path_id, path, heading, clauses, instructions)


def fraction_needing_memory(paths: list[AnnotatedPath]) -> float:
    """Return the fraction of instructions with a decision that only a `beyond` cue identifies."""
    plans = [clauses for path in paths for clauses in path.clauses]
    return sum(any(clause.beyond for clause in clauses) for clauses in plans) / max(1, len(plans))
