from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from esceme.errors import ConfigError
from esceme.tasks.episode_queue import EpisodeQueue
from fixtures.toy_atlas import toy_episode

# The letters are the scenes of the episodes in file order.
EPISODES = [toy_episode(str(number), scene) for number, scene in enumerate("xxyzxy")]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_file_order_wraps_around(rng: np.random.Generator) -> None:
    queue = EpisodeQueue(EPISODES, "file", 2)
    assert [queue.next(slot, rng) for slot in (0, 1, 1, 1, 0, 1, 0, 0)] == [0, 1, 2, 3, 4, 5, 0, 1]


def test_every_shuffled_round_holds_every_episode_once(rng: np.random.Generator) -> None:
    queue = EpisodeQueue(EPISODES, "shuffled", 3)
    rounds = [[queue.next(index % 3, rng) for index in range(6)] for _ in range(8)]
    assert all(sorted(indices) == list(range(6)) for indices in rounds)
    assert len({tuple(indices) for indices in rounds}) > 1


def test_lane_runs_all_episodes_of_a_scene_in_file_order(rng: np.random.Generator) -> None:
    queue = EpisodeQueue(EPISODES, "lanes", 1)
    assert [queue.next(0, rng) for _ in range(7)] == [0, 1, 4, 2, 5, 3, 0]


def test_finished_lane_takes_the_scene_that_waits_longest(rng: np.random.Generator) -> None:
    queue = EpisodeQueue(EPISODES, "lanes", 2)
    # Slot 0: scene x. Slot 1: scene y, then z, and again y because x is still in progress.
    assert [queue.next(slot, rng) for slot in (0, 1, 1, 1, 1, 0, 0)] == [0, 2, 5, 3, 2, 1, 4]
    assert queue.next(0, rng) == 3


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_lanes_never_share_a_scene(slots: int) -> None:
    rng = np.random.default_rng(slots)
    queue = EpisodeQueue(EPISODES, "lanes", slots)
    scene_of: dict[int, str] = {}
    indices_by_scene: dict[str, list[int]] = defaultdict(list)
    for slot in [*range(slots), *rng.integers(slots, size=200)]:
        index = queue.next(int(slot), rng)
        scene_of[int(slot)] = EPISODES[index].scene_id
        indices_by_scene[EPISODES[index].scene_id].append(index)
        assert len(set(scene_of.values())) == len(scene_of)
    for scene, indices in indices_by_scene.items():
        listed = [index for index, episode in enumerate(EPISODES) if episode.scene_id == scene]
        assert indices == [listed[k % len(listed)] for k in range(len(indices))]


@pytest.mark.parametrize("order", ["file", "lanes"])
def test_restart_begins_with_the_first_episode(order: str, rng: np.random.Generator) -> None:
    queue = EpisodeQueue(EPISODES, order, 2)  # type: ignore[arg-type]
    slots = (0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 1)
    before = [queue.next(slot, rng) for slot in slots]
    queue.restart()
    assert [queue.next(slot, rng) for slot in slots] == before


def test_more_lanes_than_scenes_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 slots need as many scenes, the episodes have 3"):
        EpisodeQueue(EPISODES, "lanes", 4)
