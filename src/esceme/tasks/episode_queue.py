"""Which episode comes next: one after the other, shuffled, or a lane per scene."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np

from esceme.errors import ConfigError
from esceme.tasks.episode import Episode

Order = Literal["file", "shuffled", "lanes"]
"""How episodes are handed out to the slots of a batch.

- `file`: one after the other, whichever slot asks.
- `shuffled`: the same, in an order drawn at random, anew for every round.
- `lanes`: every slot has a scene to itself and takes that scene's episodes in file order, so that no two
  slots are ever in the same building, as a memory of buildings wants it.

All begin again when nothing is left: no slot waits, and a last round may repeat episodes.
"""


class EpisodeQueue:
    """Which episode each slot begins next."""

    def __init__(self, episodes: Sequence[Episode], order: Order, slots: int) -> None:
        """Hand out `episodes`; raises `ConfigError` where lanes outnumber the scenes."""
        self._order = order
        self._slots = slots
        self._count = len(episodes)
        self._scenes: dict[str, list[int]] = {}
        for index, episode in enumerate(episodes):
            self._scenes.setdefault(episode.scene_id, []).append(index)
        if order == "lanes" and slots > len(self._scenes):
            raise ConfigError(
                f"order 'lanes' keeps a scene in one slot at a time: {slots} slots need as many scenes, "
                f"the episodes have {len(self._scenes)}; use fewer slots or order 'file'"
            )
        self.restart()

    def restart(self) -> None:
        """Begin with the first episode again."""
        self._round: deque[int] = deque()
        self._waiting = deque(self._scenes)
        self._scene: list[str | None] = [None] * self._slots
        self._lane: list[deque[int]] = [deque() for _ in range(self._slots)]

    def next(self, slot: int, rng: np.random.Generator) -> int:
        """The index of the episode that `slot` is to begin."""
        if self._order == "lanes":
            return self._next_in_lane(slot)
        if not self._round:
            shuffled = self._order == "shuffled"
            self._round.extend(rng.permutation(self._count).tolist() if shuffled else range(self._count))
        return self._round.popleft()

    def _next_in_lane(self, slot: int) -> int:
        """A finished scene queues up behind the waiting ones, so none is ever in two slots."""
        if not self._lane[slot]:
            if (finished := self._scene[slot]) is not None:
                self._waiting.append(finished)
            scene = self._scene[slot] = self._waiting.popleft()
            self._lane[slot].extend(self._scenes[scene])
        return self._lane[slot].popleft()
