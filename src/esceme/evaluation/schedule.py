"""In what order episodes are lived, and which of them side by side.

Memory is sequential inside a scene and independent across scenes. `Lanes` follows that: it keeps a scene's
episodes in order, one at a time, and lets different scenes run side by side, so that walks do not depend on
how many do. `Interleaved` does what the released code does: batches drawn from all scenes, whose episodes
write into the memory of the others.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from esceme.evaluation.protocol import MemoryLifetime
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

ScheduleName = Literal["lanes", "interleaved"]


class Lanes:
    """A source that gives every scene a lane of its own and refills a free slot at once."""

    def __init__(
        self,
        atlas: Atlas,
        episodes: Iterable[Episode],
        lifetime: MemoryLifetime,
        *,
        slots: int,
        done: Mapping[str, Trajectory] | None = None,
        visits: Mapping[str, int] | None = None,
        lived: int = 0,
    ) -> None:
        """Hand out `episodes`; those `done` already are only remembered.

        `visits` numbers the episodes, by default in their scenes; all were `lived` so many times before.
        """
        self._atlas, self._lifetime, self._slots, self._done = atlas, lifetime, slots, done or {}
        lanes: dict[str, deque[Episode]] = {}
        for episode in episodes:
            lanes.setdefault(episode.scene_id, deque()).append(episode)
        self._visits = visits or {
            episode.episode_id: number
            for lane in lanes.values()
            for number, episode in enumerate(lane, 1 + lived * len(lane))
        }
        # The longest lanes first, or they would run alone at the end.
        self._waiting = deque(sorted(lanes.values(), key=len, reverse=True))
        self._lanes: dict[str, deque[Episode]] = {}

    def next(self, finished: Sequence[Trajectory], living: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """The next episode of every lane that is free, and of lanes that are opened."""
        begun = []
        for walk in finished:
            self._lifetime.finish(walk)
            begun += self._next_of(self._lanes[walk.episode.scene_id])
        while len(living) + len(begun) < self._slots and self._waiting:
            lane = self._waiting.popleft()
            self._lanes[lane[0].scene_id] = lane
            begun += self._next_of(lane)
        return begun

    def _next_of(self, lane: deque[Episode]) -> list[Trajectory]:
        """The next walk of a lane, if there is one, past those that are done."""
        while lane:
            episode = lane.popleft()
            if (walk := self._done.get(episode.episode_id)) is None:
                walk = Trajectory.begin(self._atlas, episode, visit=self._visits[episode.episode_id])
                self._lifetime.begin(walk)
                return [walk]
            self._lifetime.replay(walk)
        return []


class Interleaved:
    """A source that hands out whole batches, a new one when all walks of the last have ended."""

    def __init__(
        self,
        atlas: Atlas,
        batches: Iterable[Sequence[Episode]],
        lifetime: MemoryLifetime,
        *,
        done: Sequence[Sequence[Trajectory]] = (),
        visits: Counter[str] | None = None,
    ) -> None:
        """Hand out `batches`; the first of them are `done` already and only remembered.

        `visits` counts the episodes that were begun in each scene, and goes on from pass to pass.
        """
        self._atlas, self._batches, self._lifetime = atlas, iter(batches), lifetime
        self._visits = Counter[str]() if visits is None else visits
        for batch in done:
            self._visits.update(episode.scene_id for episode in next(self._batches))
            for walk in batch:
                lifetime.replay(walk)

    def next(self, finished: Sequence[Trajectory], living: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """The next batch, when nobody is walking."""
        if living:
            return []
        return [self._begin(episode) for episode in next(self._batches, ())]

    def _begin(self, episode: Episode) -> Trajectory:
        self._visits[episode.scene_id] += 1
        return Trajectory.begin(self._atlas, episode, visit=self._visits[episode.scene_id])


class ReleasedOrder:
    """The batches of the released code, pass after pass (spec A.10).

    A seeded shuffle across scenes; where fewer than a batch remain, all are shuffled again and the batch is
    filled up from the front. A pass ends with the first batch in which an episode comes up again.

    >>> names = [Episode(episode_id=name, scene_id="s", path_id=name, reference_path=("v",), heading=0.0,
    ...                  instruction="") for name in "abcde"]
    >>> [len(batch) for batch in ReleasedOrder(names, 2, seed=0).batches()]
    [2, 2, 2]
    >>> [len(batch) for batch in ReleasedOrder(names[:4], 2, seed=0).batches()]  # a whole batch too many
    [2, 2, 2]
    """

    def __init__(self, episodes: Sequence[Episode], batch: int, *, seed: int) -> None:
        """Shuffle `episodes` for the first time."""
        self._episodes, self._batch, self._random = list(episodes), batch, random.Random(seed)
        self._random.shuffle(self._episodes)

    def batches(self) -> Iterator[list[Episode]]:
        """The batches of one pass."""
        seen: set[str] = set()
        at = 0
        while True:
            batch = self._episodes[at : at + self._batch]
            at += self._batch
            if len(batch) < self._batch:
                self._random.shuffle(self._episodes)
                at = self._batch - len(batch)
                batch = batch + self._episodes[:at]
            yield batch
            ids = {episode.episode_id for episode in batch}
            if ids & seen or len(ids) < len(batch):
                return
            seen |= ids
