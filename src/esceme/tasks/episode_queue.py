"""Order in which episodes are distributed over the slots (parallel episodes) of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np

from esceme.errors import ConfigError
from esceme.tasks.episode import Episode

EpisodeOrder = Literal["file", "shuffled", "lanes"]
"""Order in which the slots (parallel episodes) of a batch receive episodes.

- `file`: in file order, to the next free slot.
- `shuffled`: in random order, drawn anew for every round.
- `lanes`: a slot runs all episodes of a scene in file order before the next scene. No two slots are ever
  in the same scene, as memories of scenes require.

After the last episode a new round begins. A batch may therefore repeat episodes in the last round.
"""


class EpisodeQueue:
    """Selects the next episode of every slot, that is, of every parallel environment."""

    def __init__(self, episodes: Sequence[Episode], order: EpisodeOrder, num_slots: int) -> None:
        """Prepare the first round; raise `ConfigError` if the order is `lanes` and slots outnumber scenes."""
        self._order = order
        self._num_slots = num_slots
        self._num_episodes = len(episodes)
        self._scenes: dict[str, list[int]] = {}
        for index, episode in enumerate(episodes):
            self._scenes.setdefault(episode.scene_id, []).append(index)
        if order == "lanes" and num_slots > len(self._scenes):
            raise ConfigError(
                f"order 'lanes' keeps a scene in one slot at a time: {num_slots} slots need as many scenes, "
                f"the episodes have {len(self._scenes)}; use fewer slots or order 'file'"
            )
        self.restart()

    def restart(self) -> None:
        """Start again with the first episode."""
        self._round: deque[int] = deque()
        self._waiting = deque(self._scenes)
        self._scene: list[str | None] = [None] * self._num_slots
        self._lane: list[deque[int]] = [deque() for _ in range(self._num_slots)]

    def next(self, slot: int, rng: np.random.Generator) -> int:
        """Return the index of the episode that `slot` runs next."""
        if self._order == "lanes":
            return self._next_scene_by_scene(slot)
        if not self._round:
            shuffled, count = self._order == "shuffled", self._num_episodes
            self._round.extend(rng.permutation(count).tolist() if shuffled else range(count))
        return self._round.popleft()

    def _next_scene_by_scene(self, slot: int) -> int:
        """Return the next episode index of the slot's scene; after the last one, take the next scene."""
        if not self._lane[slot]:
            if (finished := self._scene[slot]) is not None:
                self._waiting.append(finished)
            scene = self._scene[slot] = self._waiting.popleft()
            self._lane[slot].extend(self._scenes[scene])
        return self._lane[slot].popleft()
