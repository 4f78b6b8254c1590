"""Walks through generated houses: shortest paths as R2R has them, each told several times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esceme.synth.language import Clause, plan_clauses, say
from esceme.synth.sights import Mention, Sights
from esceme.tasks.r4r import JOIN_WITHIN

INSTRUCTIONS = 3
"""How often each walk is told, in other words and often by other cues."""
EDGES = (4, 6)
"""Least and most edges of a walk; R2R has 3 to 6, on average 5."""


@dataclass(frozen=True)
class Walk:
    """A shortest path over places, and what was said about it."""

    sights: Sights
    path_id: int
    path: tuple[int, ...]
    heading: float
    told: tuple[tuple[Clause, ...], ...]
    texts: tuple[str, ...]

    @property
    def scene_id(self) -> str:
        """The house."""
        return self.sights.house.scene_id

    @property
    def viewpoints(self) -> list[str]:
        """The path by name."""
        return [self.sights.graph.viewpoints[place] for place in self.path]

    @property
    def target(self) -> Mention:
        """What the first telling stops beside."""
        stop = self.told[0][-1].stop
        assert stop is not None
        return stop


def take_walks(
    sights: Sights, wanted: int, generator: np.random.Generator, *, first_id: int = 0
) -> list[Walk]:
    """Up to `wanted` different walks of one house, those whose every decision can be told.

    Every second one begins near the end of the one before it, so that longer walks can be joined from them.
    """
    walks: list[Walk] = []
    pairs = _pairs(sights, generator)
    while pairs and len(walks) < wanted:
        start, goal = _next(pairs, walks[-1].path[-1] if len(walks) % 2 else None, sights)
        walk = _tell(sights, start, goal, first_id + len(walks), generator)
        if walk is not None:
            walks.append(walk)
    return walks


def _pairs(sights: Sights, generator: np.random.Generator) -> list[tuple[int, int]]:
    """Starts and goals at a walking distance like R2R's, in random order."""
    distances = sights.graph.distances
    pairs = np.argwhere((distances >= 5.0) & (distances <= 18.0))
    return [(int(start), int(goal)) for start, goal in generator.permutation(pairs)]


def _next(pairs: list[tuple[int, int]], end: int | None, sights: Sights) -> tuple[int, int]:
    """Take the first pair that begins near `end`, or the first of all, out of the list."""
    near = (
        index
        for index, (start, _) in enumerate(pairs)
        if end is not None and sights.graph.distances[end, start] <= JOIN_WITHIN
    )
    return pairs.pop(next(near, 0))


def _tell(sights: Sights, start: int, goal: int, path_id: int, generator: np.random.Generator) -> Walk | None:
    graph = sights.graph
    names = graph.shortest_path(graph.viewpoints[start], graph.viewpoints[goal])
    path = tuple(graph.index(name) for name in names)
    if not EDGES[0] <= len(path) - 1 <= EDGES[1]:
        return None
    heading = round(float(generator.uniform(0, 2 * np.pi)), 3)
    told = [plan_clauses(sights, path, heading, generator) for _ in range(INSTRUCTIONS)]
    clauses = tuple(tuple(each) for each in told if each is not None)
    if len(clauses) < INSTRUCTIONS:
        return None
    return Walk(sights, path_id, path, heading, clauses, tuple(say(each, generator) for each in clauses))


def share_needing_memory(walks: list[Walk]) -> float:
    """How many instructions hold a decision that only what lies beyond settles."""
    told = [clauses for walk in walks for clauses in walk.told]
    return sum(any(clause.needs_memory for clause in clauses) for clauses in told) / max(1, len(told))
