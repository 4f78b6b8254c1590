"""Content of the memory during an evaluation, reconstructed from the result."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from esceme.evaluation.result import EpisodeResult, Result

CLEARED_PER_EPISODE, CLEARED_PER_TOUR, NO_MEMORY = "episodic", "tour", "none"


class Moment(NamedTuple):
    """Time in the evaluation of one scene: number of the episode from 0, and step in the episode from 0."""

    episode: int
    step: int


BEFORE = Moment(-1, 0)
"""Moment of viewpoints that were in memory before the first episode."""


@dataclass(frozen=True)
class MemoryHistory:
    """Viewpoints that the episodes of one scene stored in memory, in the order of the evaluation."""

    episode_ids: tuple[str, ...]
    stored: tuple[tuple[str, ...], ...]
    """For every episode, the viewpoint that each step stores. A viewpoint in memory is not stored again."""
    cleared: frozenset[int] = frozenset()
    """Numbers of the episodes before which the memory was cleared."""
    initial: frozenset[str] = frozenset()
    """Viewpoints in memory before the first episode."""

    def remembered(self, episode: int, step: int = 0) -> dict[str, Moment]:
        """Return the viewpoints in memory before a step of an episode, each with the moment of its storage.

        `episode` is an index into `episode_ids`; `len(episode_ids)` stands for the time after the last
        episode.

        >>> history = MemoryHistory(("a", "b"), (("hall", "den"), ("hall", "attic")))
        >>> history.remembered(1, 2)
        {'hall': Moment(episode=0, step=0), 'den': Moment(episode=0, step=1),
         'attic': Moment(episode=1, step=1)}
        """
        begin = max((number for number in self.cleared if number <= episode), default=0)
        memory = {} if self.cleared else dict.fromkeys(sorted(self.initial), BEFORE)
        for number in range(begin, min(episode + 1, len(self.stored))):
            viewpoints = self.stored[number][: step if number == episode else None]
            for earlier, viewpoint in enumerate(viewpoints):
                memory.setdefault(viewpoint, Moment(number, earlier))
        return memory


def decision_viewpoints(episode: EpisodeResult) -> tuple[str, ...]:
    """Return the viewpoints at which an agent decided, which a memory stores (docs/spec.md C.3)."""
    viewpoints = tuple(viewpoint for viewpoint, _, _ in episode.trajectory)
    return viewpoints if episode.stopped else viewpoints[:-1]


def memory_histories(
    result: Result, initial: Mapping[str, Collection[str]] | None = None
) -> dict[str, MemoryHistory]:
    """Return the history of the memory of every scene, by scene id.

    `initial` maps scenes to the viewpoints in memory before the first episode. Episodes of the schedule
    `interleaved` are treated as if they ran one after the other.
    """
    protocol = result.facts.get("memory", NO_MEMORY)
    by_scene: dict[str, list[EpisodeResult]] = defaultdict(list)
    for episode in result.episodes:
        by_scene[episode.scene].append(episode)
    histories = {}
    for scene, episodes in by_scene.items():
        cleared = {
            number
            for number, episode in enumerate(episodes)
            if protocol == CLEARED_PER_EPISODE or (protocol == CLEARED_PER_TOUR and episode.visit == 1)
        }
        has_memory = protocol != NO_MEMORY
        histories[scene] = MemoryHistory(
            tuple(episode.id for episode in episodes),
            tuple(decision_viewpoints(episode) if has_memory else () for episode in episodes),
            frozenset(cleared),
            frozenset((initial or {}).get(scene, ())),
        )
    return histories
