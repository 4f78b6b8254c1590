"""Annotated paths: shortest paths through generated houses, as in R2R, with three instructions per path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esceme.synth.instructions import Clause, clauses_to_text, plan_clauses
from esceme.synth.visibility import Mention, Visibility
from esceme.tasks.r4r import JOIN_WITHIN

NUM_INSTRUCTIONS = 3
"""Number of instructions per path. The instructions differ in wording and often in the objects they name."""
MIN_EDGES, MAX_EDGES = 4, 6
"""Minimum and maximum number of edges of a path. Paths of R2R have 3 to 6 edges, on average 5."""


@dataclass(frozen=True)
class AnnotatedPath:
    """Shortest path through one house with its instructions."""

    visibility: Visibility
    """The house, its graph and the objects visible from every viewpoint."""
    path_id: int
    path: tuple[int, ...]
    """Viewpoint indices, from the start to the goal."""
    heading: float
    """Heading of the agent at the start, in radians."""
    clauses: tuple[tuple[Clause, ...], ...]
    """For every instruction: one clause per step, and a last clause that states where to stop."""
    instructions: tuple[str, ...]
    """The clauses of every instruction as English text."""

    @property
    def scene_id(self) -> str:
        """Scene id of the house."""
        return self.visibility.house.scene_id

    @property
    def viewpoints(self) -> list[str]:
        """Viewpoint ids of the path, from the start to the goal."""
        return [self.visibility.graph.viewpoints[index] for index in self.path]

    @property
    def length(self) -> float:
        """Length in metres."""
        return float(self.visibility.graph.distances[self.path[0], self.path[-1]])

    @property
    def target(self) -> Mention:
        """The object at which the first instruction ends."""
        stop = self.clauses[0][-1].stop
        assert stop is not None
        return stop


def sample_paths(
    visibility: Visibility, count: int, generator: np.random.Generator, *, first_id: int = 0
) -> list[AnnotatedPath]:
    """Sample up to `count` different paths of one house and generate their instructions.

    Paths without clear instructions are skipped. Path ids count up from `first_id`. Every second path starts
    near the end of the path before, if possible, so that R4R can join the two paths.
    """
    paths: list[AnnotatedPath] = []
    distances = visibility.graph.distances
    shuffled = generator.permutation(np.argwhere((distances >= 5.0) & (distances <= 18.0)))
    pairs = [(int(start), int(goal)) for start, goal in shuffled]
    while pairs and len(paths) < count:
        selected = 0
        if len(paths) % 2:
            end = paths[-1].path[-1]
            starts = (index for index, (start, _) in enumerate(pairs) if distances[end, start] <= JOIN_WITHIN)
            selected = next(starts, 0)
        start, goal = pairs.pop(selected)
        path = _annotate_path(visibility, start, goal, first_id + len(paths), generator)
        if path is not None:
            paths.append(path)
    return paths


def _annotate_path(
    visibility: Visibility, start: int, goal: int, path_id: int, generator: np.random.Generator
) -> AnnotatedPath | None:
    """Return the shortest path from `start` to `goal` with instructions.

    Returns None if the path is too short or too long, or if no clear instructions exist.
    """
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
    """Return the fraction of instructions, from 0 to 1, with at least one clause that has a `beyond` object.

    Such an object is visible only from the next viewpoint, so that following the clause requires memory.
    """
    plans = [clauses for path in paths for clauses in path.clauses]
    return sum(any(clause.beyond for clause in clauses) for clauses in plans) / max(1, len(plans))
