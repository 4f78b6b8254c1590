"""Schedules: lanes keep the order of a scene and refill at once; batches follow the released code."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esceme.evaluation import MemoryLifetime
from esceme.evaluation.context import EvaluationConfig, EvaluationContext, load_context
from esceme.evaluation.schedule import Interleaved, Lanes, ReleasedOrder
from esceme.memory import MemoryBank
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import EpisodeSource, Trajectory, greedy
from fixtures.toy_atlas import toy_episode
from fixtures.toy_dataset import ToyDataset


def make_episodes(count: int) -> list[Episode]:
    return [toy_episode(f"{number}_0", f"scene-{number % 3}", "v") for number in range(count)]


def ids(batch: Iterable[Episode]) -> list[str]:
    return [episode.episode_id for episode in batch]


@pytest.fixture(scope="module")
def context(dataset: ToyDataset) -> EvaluationContext:
    return dataset.context()


@torch.inference_mode()
def run_source(
    context: EvaluationContext, source: EpisodeSource, bank: MemoryBank | None
) -> Iterator[RolloutStep]:
    run, limit = context.run.navigator, context.limits.max_steps
    yield from roll_out(run, context.atlas, source, bank, greedy, encode=context.encode, max_steps=limit)


def run_lanes(
    context: EvaluationContext, slots: int, finished: dict[str, Trajectory] | None = None
) -> Iterator[RolloutStep]:
    bank = MemoryBank.from_atlas(context.atlas)
    lifetime = MemoryLifetime("cold", context.atlas, bank)
    return run_source(
        context, Lanes(context.atlas, context.episodes, lifetime, num_slots=slots, finished=finished), bank
    )


def run_interleaved(
    context: EvaluationContext,
    batches: Sequence[Sequence[Episode]],
    finished: Sequence[Sequence[Trajectory]] = (),
) -> Iterator[RolloutStep]:
    bank = MemoryBank.from_atlas(context.atlas)
    lifetime = MemoryLifetime("cold", context.atlas, bank)
    return run_source(context, Interleaved(context.atlas, batches, lifetime, finished=finished), bank)


def finished_in(steps: Iterable[RolloutStep]) -> dict[str, Trajectory]:
    return {trajectory.episode.episode_id: trajectory for step in steps for trajectory in step.finished}


@pytest.fixture(scope="module")
def expected(context: EvaluationContext) -> dict[str, Trajectory]:
    return finished_in(run_lanes(context, 3))


# -- lanes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_episodes_of_a_scene_run_in_order_one_at_a_time(context: EvaluationContext, slots: int) -> None:
    begun: dict[str, list[str]] = defaultdict(list)
    for step in run_lanes(context, slots):
        scenes = [trajectory.episode.scene_id for trajectory in step.trajectories]
        assert len(set(scenes)) == len(scenes) <= slots
        for trajectory in step.trajectories:
            if trajectory.num_decisions == 1:
                begun[trajectory.episode.scene_id].append(trajectory.episode.episode_id)
    for scene, names in begun.items():
        assert names == [episode.episode_id for episode in context.episodes if episode.scene_id == scene]
    assert sum(map(len, begun.values())) == len(context.episodes)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_free_slot_is_refilled_at_once(context: EvaluationContext, slots: int) -> None:
    left = Counter(episode.scene_id for episode in context.episodes)
    for step in run_lanes(context, slots):
        assert len(step.trajectories) == min(slots, len(left))
        left -= Counter(trajectory.episode.scene_id for trajectory in step.finished)
    assert not left


def test_batch_is_full_without_memory_although_scenes_are_few(dataset: ToyDataset) -> None:
    settings = EvaluationConfig(run="random", data=str(dataset.root), split="val_unseen", memory="none")
    context = load_context(settings)
    lifetime, found = MemoryLifetime("none", context.atlas, None), []
    scene = [episode for episode in context.episodes if episode.scene_id == context.episodes[0].scene_id]
    for slots in (1, 4):
        source = Lanes(context.atlas, scene, lifetime, num_slots=slots)
        waiting, poses = len(scene), {}
        for step in run_source(context, source, None):
            waiting -= sum(trajectory.num_decisions == 1 for trajectory in step.trajectories)
            assert len(step.trajectories) == slots or not waiting
            poses |= {name: trajectory.poses for name, trajectory in finished_in([step]).items()}
        found.append(poses)
    assert found[0] == found[1] and found[0].keys() == {*ids(scene)}


def test_longest_lane_starts_first(context: EvaluationContext) -> None:
    counts = Counter(episode.scene_id for episode in context.episodes)
    first = next(run_lanes(context, 1)).trajectories[0].episode.scene_id
    assert counts[first] == max(counts.values())


def test_finished_episodes_are_remembered_and_not_repeated(
    context: EvaluationContext, expected: dict[str, Trajectory]
) -> None:
    firsts = {name: trajectory for name, trajectory in expected.items() if trajectory.visit <= 2}
    again = finished_in(run_lanes(context, 8, firsts))
    assert set(again) == set(expected) - set(firsts)
    assert all(again[name].poses == expected[name].poses and again[name].visit > 2 for name in again)
    assert list(run_lanes(context, 3, expected)) == []
    # Later trajectories depend on the memory of the finished ones.
    empty = {
        name: replace(trajectory, poses=trajectory.poses[:1], stopped=False)
        for name, trajectory in firsts.items()
    }
    assert not any(trajectory.decision_viewpoints for trajectory in empty.values())
    assert any(
        trajectory.poses != expected[name].poses
        for name, trajectory in finished_in(run_lanes(context, 8, empty)).items()
    )


# -- interleaved -----------------------------------------------------------------------------------------


def test_batch_begins_when_the_previous_one_has_ended(context: EvaluationContext) -> None:
    batches = [list(context.episodes[at : at + 5]) for at in range(0, 15, 5)]
    active: set[str] = set()
    begun = []
    for step in run_interleaved(context, batches):
        if not active:
            begun.append([trajectory.episode.episode_id for trajectory in step.trajectories])
            assert all(trajectory.num_decisions == 1 for trajectory in step.trajectories)
            active = set(begun[-1])
        assert {trajectory.episode.episode_id for trajectory in step.trajectories} == active
        active -= {trajectory.episode.episode_id for trajectory in step.finished}
    assert begun == [ids(batch) for batch in batches]


def test_interleaved_visits_number_the_episodes_of_a_scene(context: EvaluationContext) -> None:
    order = [list(context.episodes[at : at + 8]) for at in (8, 0, 16)]
    found = finished_in(run_interleaved(context, order))
    seen: Counter[str] = Counter()
    for episode in (episode for batch in order for episode in batch):
        seen[episode.scene_id] += 1
        assert found[episode.episode_id].visit == seen[episode.scene_id]


def test_interleaved_continues_after_finished_batches(context: EvaluationContext) -> None:
    order = [list(context.episodes[at : at + 8]) for at in (8, 0, 16)]
    whole = finished_in(run_interleaved(context, order))
    rest = finished_in(
        run_interleaved(context, order, [[whole[name] for name in ids(batch)] for batch in order[:2]])
    )
    assert set(rest) == set(ids(order[2]))
    for name, trajectory in rest.items():
        assert (trajectory.poses, trajectory.visit) == (whole[name].poses, whole[name].visit)


def test_concurrent_episodes_of_a_scene_share_one_memory(context: EvaluationContext) -> None:
    """An episode recalls what another one of its batch remembered a step before (spec C.3)."""
    scene = context.episodes[0].scene_id
    same = [episode for episode in context.episodes if episode.scene_id == scene]
    together = {
        name: trajectory.poses for name, trajectory in finished_in(run_interleaved(context, [same])).items()
    }
    alone: dict[str, list[tuple[int, int]]] = {}
    for episode in same:
        alone |= {
            name: trajectory.poses
            for name, trajectory in finished_in(run_interleaved(context, [[episode]])).items()
        }
    assert set(alone) == set(together) and alone != together


# -- the released order ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 4])
def test_first_pass_is_one_seeded_shuffle(seed: int) -> None:
    episodes = make_episodes(20)
    shuffled = list(episodes)
    random.Random(seed).shuffle(shuffled)
    batches = list(ReleasedOrder(episodes, 8, seed=seed).batches())
    assert [episode for batch in batches for episode in batch][:20] == shuffled
    assert ids(episodes) == ids(make_episodes(20))  # the argument is not shuffled


def test_last_batch_is_filled_up_after_another_shuffle() -> None:
    generator, data = random.Random(3), make_episodes(20)
    generator.shuffle(data)
    first = data[:16]
    rest = data[16:]
    generator.shuffle(data)
    order = ReleasedOrder(make_episodes(20), 8, seed=3)
    expected = [first[:8], first[8:], rest + data[:4]]
    assert [ids(batch) for batch in order.batches()] == [ids(batch) for batch in expected]
    # The next pass begins at the front of what was shuffled last.
    assert ids(next(order.batches())) == ids(data[:8])


def test_split_of_whole_batches_runs_one_batch_too_many() -> None:
    generator, data = random.Random(3), make_episodes(16)
    generator.shuffle(data)
    once = ids(data)
    generator.shuffle(data)
    batches = [ids(batch) for batch in ReleasedOrder(make_episodes(16), 8, seed=3).batches()]
    assert batches == [once[:8], once[8:], ids(data)[:8]]


@given(count=st.integers(1, 40), batch=st.integers(1, 12), seed=st.integers(0, 5))
def test_pass_has_every_episode_and_ends_with_the_first_repetition(count: int, batch: int, seed: int) -> None:
    order = ReleasedOrder(make_episodes(count), batch, seed=seed)
    for _ in range(2):
        batches = [ids(episodes) for episodes in order.batches()]
        names = [name for episodes in batches for name in episodes]
        assert set(names) == set(ids(make_episodes(count)))
        before = [name for episodes in batches[:-1] for name in episodes]
        assert len(set(before)) == len(before)
        assert len(set(names)) < len(names)
        assert len(batches) == (count // batch + 1 if count % batch == 0 else -(-count // batch))
