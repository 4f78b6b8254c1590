"""Schedules: the order of episodes in an evaluation, and which episodes run in parallel.

Memory is sequential within a scene and independent across scenes. `Lanes` runs the episodes of a scene one
after another if there is a memory, and different scenes in parallel. Trajectories then do not depend on the
batch size.
`Interleaved` follows the released code: episodes of a batch may share a scene and its memory.
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
    """Episode source that runs one episode per scene at a time, and several scenes in parallel.

    A lane is the queue of one scene's episodes. When an episode ends, another takes its place in the batch.
    Without memory, every episode is a lane of its own.
    """

    def __init__(
        self,
        atlas: Atlas,
        episodes: Iterable[Episode],
        lifetime: MemoryLifetime,
        *,
        num_slots: int,
        finished: Mapping[str, Trajectory] | None = None,
        visits: Mapping[str, int] | None = None,
        previous_passes: int = 0,
    ) -> None:
        """Run `episodes`, at most `num_slots` in parallel.

        Episodes whose id is in `finished` are not run again; only their effect on the memory is repeated.
        `visits` is the visit number by episode id. By default it counts the episodes in a scene from 1,
        continuing after `previous_passes` runs over the same episodes.
        """
        self._atlas, self._lifetime, self._num_slots = atlas, lifetime, num_slots
        self._finished = finished or {}
        lanes: dict[str, deque[Episode]] = {}
        for episode in episodes:
            lanes.setdefault(episode.scene_id, deque()).append(episode)
        self._visits = visits or {
            episode.episode_id: number
            for lane in lanes.values()
            for number, episode in enumerate(lane, 1 + previous_passes * len(lane))
        }
        # Long lanes first: started last, they would run alone at the end.
        self._waiting = deque(sorted(lanes.values(), key=len, reverse=True))
        if (
            lifetime.memory is None
        ):  # episodes of a scene are independent: fill the batch where scenes are few
            self._waiting = deque(deque([episode]) for lane in self._waiting for episode in lane)
        self._lanes: dict[str, deque[Episode]] = {}

    def next(self, finished: Sequence[Trajectory], active: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return new trajectories for the free places in the batch.

        A scene whose episode has finished continues with its next episode. Then waiting scenes start.
        """
        started = []
        for trajectory in finished:
            self._lifetime.finish(trajectory)
            started += self._start_next(self._lanes[trajectory.episode.scene_id])
        while len(active) + len(started) < self._num_slots and self._waiting:
            lane = self._waiting.popleft()
            self._lanes[lane[0].scene_id] = lane
            started += self._start_next(lane)
        return started

    def _start_next(self, lane: deque[Episode]) -> list[Trajectory]:
        """Return a list with the trajectory of a scene's next unfinished episode; empty if there is none."""
        while lane:
            episode = lane.popleft()
            if (trajectory := self._finished.get(episode.episode_id)) is None:
                trajectory = Trajectory.begin(self._atlas, episode, visit=self._visits[episode.episode_id])
                self._lifetime.begin(trajectory)
                return [trajectory]
            self._lifetime.replay(trajectory)
        return []


class Interleaved:
    """Episode source of whole batches. A batch starts when all episodes of the previous batch have ended."""

    def __init__(
        self,
        atlas: Atlas,
        batches: Iterable[Sequence[Episode]],
        lifetime: MemoryLifetime,
        *,
        finished: Sequence[Sequence[Trajectory]] = (),
        visits: Counter[str] | None = None,
    ) -> None:
        """Run `batches` one after another.

        `finished` are the trajectories of the first batches, which are not run again; only their effect on
        the memory is repeated. `visits` counts the episodes started in each scene and is updated.
        """
        self._atlas, self._batches = atlas, iter(batches)
        self._visits = Counter[str]() if visits is None else visits
        for batch in finished:
            self._visits.update(episode.scene_id for episode in next(self._batches))
            for trajectory in batch:
                lifetime.replay(trajectory)

    def next(self, finished: Sequence[Trajectory], active: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return the trajectories of the next batch if no trajectory is active, otherwise none."""
        if active:
            return []
        return [self._start(episode) for episode in next(self._batches, ())]

    def _start(self, episode: Episode) -> Trajectory:
        self._visits[episode.scene_id] += 1
        return Trajectory.begin(self._atlas, episode, visit=self._visits[episode.scene_id])


class ReleasedOrder:
    """The batches of the released code, for repeated runs over all episodes (docs/spec.md A.10).

    Episodes of all scenes are shuffled by a seed. If the last batch is not full, all episodes are shuffled
    again and the first of them fill the batch. A run ends with the first batch that repeats an episode.

    >>> episodes = [Episode(episode_id=name, scene_id="s", path_id=name, reference_path=("v",), heading=0.0,
    ...                     instruction="") for name in "abcde"]
    >>> [len(batch) for batch in ReleasedOrder(episodes, 2, seed=0).batches()]
    [2, 2, 2]
    >>> [len(batch) for batch in ReleasedOrder(episodes[:4], 2, seed=0).batches()]  # a whole batch too many
    [2, 2, 2]
    """

    def __init__(self, episodes: Sequence[Episode], batch: int, *, seed: int) -> None:
        self._episodes, self._batch, self._random = list(episodes), batch, random.Random(seed)
        self._random.shuffle(self._episodes)

    def batches(self) -> Iterator[list[Episode]]:
        """Yield the batches of one run over all episodes."""
        seen: set[str] = set()
        start = 0
        while True:
            batch = self._episodes[start : start + self._batch]
            start += self._batch
            if len(batch) < self._batch:
                self._random.shuffle(self._episodes)
                start = self._batch - len(batch)
                batch = batch + self._episodes[:start]
            yield batch
            ids = {episode.episode_id for episode in batch}
            if ids & seen or len(ids) < len(batch):
                return
            seen |= ids
