"""Who walks when: lanes keep a scene's order and refill at once, batches are the released code's."""

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
from esceme.evaluation.context import EvaluationContext
from esceme.evaluation.schedule import Interleaved, Lanes, ReleasedOrder
from esceme.memory import MemoryBank
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import EpisodeSource, Trajectory, greedy
from fixtures.toy_dataset import ToyDataset


def named(count: int) -> list[Episode]:
    return [
        Episode(
            episode_id=f"{number}_0",
            scene_id=f"scene-{number % 3}",
            path_id=f"{number}",
            reference_path=("v",),
            heading=0.0,
            instruction="",
        )
        for number in range(count)
    ]


def ids(batch: Iterable[Episode]) -> list[str]:
    return [episode.episode_id for episode in batch]


@pytest.fixture(scope="module")
def context(dataset: ToyDataset) -> EvaluationContext:
    return dataset.context()


@torch.inference_mode()
def steps(context: EvaluationContext, source: EpisodeSource, bank: MemoryBank) -> Iterator[RolloutStep]:
    run, limit = context.run.navigator, context.limits.max_steps
    yield from roll_out(run, context.atlas, source, bank, greedy, encode=context.encode, max_steps=limit)


def in_lanes(
    context: EvaluationContext, slots: int, done: dict[str, Trajectory] | None = None
) -> Iterator[RolloutStep]:
    bank = MemoryBank.from_atlas(context.atlas)
    lifetime = MemoryLifetime("cold", context.atlas, bank)
    return steps(
        context, Lanes(context.atlas, context.episodes, lifetime, num_slots=slots, finished=done), bank
    )


def interleaved(
    context: EvaluationContext,
    batches: Sequence[Sequence[Episode]],
    done: Sequence[Sequence[Trajectory]] = (),
) -> Iterator[RolloutStep]:
    bank = MemoryBank.from_atlas(context.atlas)
    lifetime = MemoryLifetime("cold", context.atlas, bank)
    return steps(context, Interleaved(context.atlas, batches, lifetime, finished=done), bank)


def ended(lived: Iterable[RolloutStep]) -> dict[str, Trajectory]:
    return {walk.episode.episode_id: walk for step in lived for walk in step.finished}


@pytest.fixture(scope="module")
def told(context: EvaluationContext) -> dict[str, Trajectory]:
    return ended(in_lanes(context, 3))


# -- lanes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_a_scene_is_lived_in_order_one_episode_at_a_time(context: EvaluationContext, slots: int) -> None:
    begun: dict[str, list[str]] = defaultdict(list)
    for step in in_lanes(context, slots):
        scenes = [walk.episode.scene_id for walk in step.trajectories]
        assert len(set(scenes)) == len(scenes) <= slots
        for walk in step.trajectories:
            if walk.num_decisions == 1:
                begun[walk.episode.scene_id].append(walk.episode.episode_id)
    for scene, lived in begun.items():
        assert lived == [each.episode_id for each in context.episodes if each.scene_id == scene]
    assert sum(map(len, begun.values())) == len(context.episodes)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_a_free_slot_is_refilled_at_once(context: EvaluationContext, slots: int) -> None:
    left = Counter(episode.scene_id for episode in context.episodes)
    for step in in_lanes(context, slots):
        assert len(step.trajectories) == min(slots, len(left))
        left -= Counter(walk.episode.scene_id for walk in step.finished)
    assert not left


def test_the_longest_lane_is_opened_first(context: EvaluationContext) -> None:
    counts = Counter(episode.scene_id for episode in context.episodes)
    first = next(in_lanes(context, 1)).trajectories[0].episode.scene_id
    assert counts[first] == max(counts.values())


def test_visits_number_the_episodes_of_a_scene(
    context: EvaluationContext, told: dict[str, Trajectory]
) -> None:
    seen: Counter[str] = Counter()
    for episode in context.episodes:
        seen[episode.scene_id] += 1
        assert told[episode.episode_id].visit == seen[episode.scene_id]


def test_what_is_done_is_remembered_and_not_lived_again(
    context: EvaluationContext, told: dict[str, Trajectory]
) -> None:
    firsts = {name: walk for name, walk in told.items() if walk.visit <= 2}
    again = ended(in_lanes(context, 8, firsts))
    assert set(again) == set(told) - set(firsts)
    assert all(again[name].poses == told[name].poses and again[name].visit > 2 for name in again)
    # What is remembered matters: walks that were never taken lead elsewhere later.
    empty = {name: replace(walk, poses=walk.poses[:1], stopped=False) for name, walk in firsts.items()}
    assert not any(walk.decision_viewpoints for walk in empty.values())
    assert any(walk.poses != told[name].poses for name, walk in ended(in_lanes(context, 8, empty)).items())


def test_with_everything_done_nobody_walks(context: EvaluationContext, told: dict[str, Trajectory]) -> None:
    assert list(in_lanes(context, 3, told)) == []


# -- interleaved -------------------------------------------------------------------------------------------


def test_a_batch_begins_together_when_the_last_has_ended(context: EvaluationContext) -> None:
    batches = [list(context.episodes[at : at + 5]) for at in range(0, 15, 5)]
    alive: set[str] = set()
    begun = []
    for step in interleaved(context, batches):
        if not alive:
            begun.append([walk.episode.episode_id for walk in step.trajectories])
            assert all(walk.num_decisions == 1 for walk in step.trajectories)
            alive = set(begun[-1])
        assert {walk.episode.episode_id for walk in step.trajectories} == alive
        alive -= {walk.episode.episode_id for walk in step.finished}
    assert begun == [ids(batch) for batch in batches]


def test_interleaved_visits_count_the_episodes_begun_in_a_scene(context: EvaluationContext) -> None:
    order = [list(context.episodes[at : at + 8]) for at in (8, 0, 16)]
    told = ended(interleaved(context, order))
    seen: Counter[str] = Counter()
    for episode in (each for batch in order for each in batch):
        seen[episode.scene_id] += 1
        assert told[episode.episode_id].visit == seen[episode.scene_id]


def test_interleaved_goes_on_after_batches_that_are_done(context: EvaluationContext) -> None:
    order = [list(context.episodes[at : at + 8]) for at in (8, 0, 16)]
    whole = ended(interleaved(context, order))
    rest = ended(interleaved(context, order, [[whole[name] for name in ids(batch)] for batch in order[:2]]))
    assert set(rest) == set(ids(order[2]))
    for name, walk in rest.items():
        assert (walk.poses, walk.visit) == (whole[name].poses, whole[name].visit)


def test_concurrent_episodes_of_a_scene_write_into_one_memory(context: EvaluationContext) -> None:
    """What one episode of a batch has left behind, another one recalls a step later (spec C.3)."""
    scene = context.episodes[0].scene_id
    same = [each for each in context.episodes if each.scene_id == scene]
    together = {name: walk.poses for name, walk in ended(interleaved(context, [same])).items()}
    alone: dict[str, list[tuple[int, int]]] = {}
    for episode in same:
        alone |= {name: walk.poses for name, walk in ended(interleaved(context, [[episode]])).items()}
    assert set(alone) == set(together) and alone != together


# -- the released order ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 4])
def test_the_first_pass_is_one_seeded_shuffle(seed: int) -> None:
    episodes = named(20)
    shuffled = list(episodes)
    random.Random(seed).shuffle(shuffled)
    batches = list(ReleasedOrder(episodes, 8, seed=seed).batches())
    assert [each for batch in batches for each in batch][:20] == shuffled
    assert ids(episodes) == ids(named(20))  # nobody else's list is shuffled


def test_the_last_batch_is_filled_up_after_shuffling_again() -> None:
    generator, data = random.Random(3), named(20)
    generator.shuffle(data)
    first = data[:16]
    rest = data[16:]
    generator.shuffle(data)
    order = ReleasedOrder(named(20), 8, seed=3)
    expected = [first[:8], first[8:], rest + data[:4]]
    assert [ids(batch) for batch in order.batches()] == [ids(batch) for batch in expected]
    # The next pass begins at the front of what was shuffled last.
    assert ids(next(order.batches())) == ids(data[:8])


def test_where_the_size_divides_evenly_a_whole_batch_is_lived_too_many() -> None:
    generator, data = random.Random(3), named(16)
    generator.shuffle(data)
    once = ids(data)
    generator.shuffle(data)
    batches = [ids(batch) for batch in ReleasedOrder(named(16), 8, seed=3).batches()]
    assert batches == [once[:8], once[8:], ids(data)[:8]]


@given(count=st.integers(1, 40), batch=st.integers(1, 12), seed=st.integers(0, 5))
def test_a_pass_meets_every_episode_and_ends_with_the_first_repetition(
    count: int, batch: int, seed: int
) -> None:
    order = ReleasedOrder(named(count), batch, seed=seed)
    for _ in range(2):
        passed = [ids(each) for each in order.batches()]
        met = [name for each in passed for name in each]
        assert set(met) == set(ids(named(count)))
        before = [name for each in passed[:-1] for name in each]
        assert len(set(before)) == len(before)
        assert len(set(met)) < len(met)
        assert len(passed) == (count // batch + 1 if count % batch == 0 else -(-count // batch))
