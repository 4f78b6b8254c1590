"""Rollouts to learn from: decided at once as step by step, and nothing is known before its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision
from esceme.agents.scripted import StopAtOnce
from esceme.errors import ConfigError, WorldError
from esceme.learning.memory_dropout import MemoryDropout, TrainingMemory
from esceme.learning.reinforcement import GoalReward, PathReward
from esceme.learning.rollouts import (
    Demonstrations,
    dagger_rollout,
    forward_all,
    forward_demonstrations,
    forward_stepwise,
    sample_rollout,
    teacher_rollout,
)
from esceme.learning.teachers import shortest_path_teacher, teacher_by_step
from esceme.memory import NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import ActionSelector, SingleBatch, Trajectory, sampling
from fixtures.toy_atlas import build_toy_atlas, encode, make_episode, plain_navigator, small_navigator

ATLAS = build_toy_atlas()
# Two come to the hall and the landing after another has been there; one stops at once, one comes by twice.
EPISODES = [
    make_episode("garden", "door", "hall", "kitchen", name="0_0"),
    make_episode("hall", "landing", "attic", name="1_0", heading=1.0),
    make_episode("attic", "landing", "hall", "landing", "hall", "pantry", name="2_0", heading=3.0),
    make_episode("kitchen", name="3_0"),
    make_episode("hall", "door", scene="shed", name="4_0"),
]
MODES = ("as-released", "reset", "forgetting", "sampled")
NETWORKS: dict[str, dict[str, Any]] = {
    "frozen": {},
    "once-read": {"language_cross_attention": False, "freeze_text": False, "freeze_history": False},
    "bare": {"encode_panorama": False, "context_views": False, "stop_shows": "panorama"},
}


def at(name: str, scene: str = "cottage") -> int:
    return int(ATLAS.locate(scene, [name])[0])


def names(places: Sequence[int]) -> list[str]:
    return [ATLAS.name(place)[1] for place in places]


def begun(navigator: Navigator, mode: Any = "as-released", *, seed: int = 0) -> TrainingMemory | None:
    """A memory of some places, at the beginning of a rollout; the same seed, the same memory."""
    if not navigator.reader.uses_memory:
        return None
    settings = MemoryDropout(
        mode=mode, reset_after=2, forget_probability=0.4, full_probability=0.0, empty_probability=0.0
    )
    memory = TrainingMemory(ATLAS, navigator.reader, settings)
    for number in range(2):  # the second time, a scene may be forgotten
        memory.begin_rollout(EPISODES, np.random.default_rng([seed, number]))
        memory.remember_at([at("door"), at("pantry"), at("attic")][number:])
    memory.begin_rollout(EPISODES, np.random.default_rng([seed, 2]))
    return memory


def run_batch(max_steps: int = 15) -> Demonstrations:
    return teacher_rollout(ATLAS, EPISODES, teacher_by_step(ATLAS), max_steps=max_steps)


def forcing(told: Demonstrations) -> ActionSelector:
    """What was chosen, by walk and step."""
    taken = {
        (row, step): choice
        for step, (rows, chosen) in enumerate((step.rows, step.action) for step in told.steps)
        for row, choice in zip(rows.tolist(), chosen.tolist(), strict=True)
    }
    rows = {walk.episode.episode_id: row for row, walk in enumerate(told.trajectories)}

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        return torch.tensor([taken[rows[walk.episode.episode_id], walk.num_decisions] for walk in walks])

    return choose


def stepping(navigator: Navigator, told: Demonstrations, memory: TrainingMemory | None) -> Tensor:
    """The same walks by the loop that everything walks with, all steps one below the other, (R, C)."""
    source = SingleBatch(ATLAS, [walk.episode for walk in told.trajectories])
    steps = roll_out(
        navigator, ATLAS, source, memory, forcing(told), encode=encode, max_steps=len(told.steps)
    )
    logits = [step.decision.logits for step in steps]
    most = max(each.shape[1] for each in logits)
    return torch.cat([functional.pad(each, (0, most - each.shape[1]), value=-torch.inf) for each in logits])


def left(memory: TrainingMemory | None) -> list[int]:
    return [] if memory is None else memory.bank.visited.nonzero().flatten().tolist()


# -- at once and step by step ------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("max_steps", [15, 3])
def test_decisions_made_at_once_are_those_of_stepping(mode: str | None, network: str, max_steps: int) -> None:
    make = plain_navigator if mode is None else small_navigator
    navigator, told = make(**NETWORKS[network]), run_batch(max_steps)
    for seed in range(2):
        memories = [begun(navigator, mode, seed=seed) for _ in range(4)]
        expected = stepping(navigator, told, memories[0])
        assert len(expected) == sum(walk.num_decisions for walk in told.trajectories)
        for decide, memory in zip(
            (forward_all, forward_stepwise, forward_demonstrations), memories[1:], strict=True
        ):
            found = decide(navigator, ATLAS, told, memory, encode=encode).logits
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert left(memory) == left(memories[0])


@pytest.mark.parametrize("mode", MODES)
def test_places_visited_by_others_in_the_meantime_matter(mode: str) -> None:
    """So that the test above can fail: alone, some walks decide otherwise from a later step on."""
    navigator, told = small_navigator(), run_batch()
    process_group = forward_all(navigator, ATLAS, told, begun(navigator, mode), encode=encode).logits
    for row, episode in enumerate(EPISODES):
        alone = teacher_rollout(ATLAS, [episode], teacher_by_step(ATLAS), max_steps=15)
        apart = forward_all(navigator, ATLAS, alone, begun(navigator, mode), encode=encode).logits
        with_others = process_group[told.step_index.episode == row]
        same = [torch.allclose(a[: len(b)], b, atol=1e-5) for a, b in zip(with_others, apart, strict=True)]
        assert same[0]  # nobody has written anything yet
        if (
            row == 2 and mode != "forgetting"
        ):  # comes to the landing, from which 1_0 has just come to the attic
            assert not all(same)


@pytest.mark.parametrize("fusing", [False, True])
def test_gradients_of_both_ways_are_alike(fusing: bool) -> None:
    navigator = (small_navigator if fusing else plain_navigator)(**NETWORKS["once-read"])
    told, gradients = run_batch(), []
    for decide in (forward_all, forward_stepwise):
        navigator.zero_grad()
        logits = decide(navigator, ATLAS, told, begun(navigator), encode=encode).logits
        functional.cross_entropy(logits, told.labels, reduction="sum").backward()
        gradients.append(
            {name: each.grad.clone() for name, each in navigator.named_parameters() if each.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        apart = (gradient - gradients[1][name]).norm()
        assert apart <= 1e-3 * gradient.norm() + 1e-4, name


def test_an_agent_whose_history_is_recurrent_is_stepped() -> None:
    navigator = Navigator(StopAtOnce(), NoMemory())
    assert not navigator.agent.supports_decide_all
    told = teacher_rollout(ATLAS, EPISODES, lambda walk: walk.viewpoint, max_steps=3)
    logits = forward_demonstrations(navigator, ATLAS, told, None, encode=encode).logits
    assert logits.argmax(1).tolist() == told.labels.tolist()


# -- following a teacher -----------------------------------------------------------------------------------


def test_walks_are_told_step_by_step_with_who_is_still_walking() -> None:
    told = run_batch()
    assert [rows.tolist() for rows, *_ in told.steps] == [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 4],
        [0, 1, 2],
        [0, 2],
        [2],
        [2],
    ]
    assert names([place for place, _ in told.trajectories[2].poses]) == list(EPISODES[2].reference_path)
    assert all(walk.stopped for walk in told.trajectories)
    assert [walk.num_decisions for walk in told.trajectories] == [4, 3, 6, 1, 2]
    assert told.step_index.episode.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 4, 0, 1, 2, 0, 2, 2, 2]
    assert told.step_index.step.tolist() == [0] * 5 + [1] * 4 + [2] * 3 + [3] * 2 + [4, 5]
    assert names(told.pose.viewpoint[told.step_index.episode == 1]) == ["hall", "landing", "attic"]
    assert np.array_equal(told.labels, told.actions)
    (stop,) = told.labels[(told.step_index.episode == 3)].tolist()
    assert stop == ATLAS.degrees[at("kitchen")]


def test_poses_are_those_of_the_loop() -> None:
    """What is faced after a move counts, too: it is seen, and part of the history."""
    told, navigator = run_batch(), plain_navigator()
    steps: list[RolloutStep] = list(
        roll_out(
            navigator, ATLAS, SingleBatch(ATLAS, EPISODES), None, forcing(told), encode=encode, max_steps=15
        )
    )
    assert (
        np.concatenate([step.observation.viewpoint for step in steps]).tolist()
        == told.pose.viewpoint.tolist()
    )
    assert (
        np.concatenate([step.observation.facing_view for step in steps]).tolist() == told.pose.view.tolist()
    )


def test_a_teacher_leads_no_farther_than_the_limit() -> None:
    told = run_batch(max_steps=2)
    assert [walk.num_decisions for walk in told.trajectories] == [2, 2, 2, 1, 2]
    assert [walk.stopped for walk in told.trajectories] == [False, False, False, True, True]
    # The places that were reached by the last move are not remembered (spec C.3).
    navigator = small_navigator()
    memory = TrainingMemory(ATLAS, navigator.reader, MemoryDropout())
    memory.begin_rollout(EPISODES, np.random.default_rng(0))
    forward_all(navigator, ATLAS, told, memory, encode=encode)
    assert set(left(memory)) == {
        *(at(name) for name in ("garden", "door", "hall", "landing", "attic", "kitchen")),
        *(at(name, "shed") for name in ("hall", "door")),
    }
    assert at("pantry") not in left(memory)


def test_pitfall_11_a_path_is_followed_by_the_clock_through_places_it_comes_by_twice() -> None:
    loop = make_episode("hall", "door", "hall", "door", "garden")
    told = teacher_rollout(ATLAS, [loop], teacher_by_step(ATLAS), max_steps=15)
    assert names([place for place, _ in told.trajectories[0].poses]) == list(loop.reference_path)
    assert [int(each) for each in told.steps[-1].label] == [ATLAS.degrees[at("garden")]]


def test_pitfall_11_stop_is_taught_when_the_path_is_over_not_when_its_end_is_reached() -> None:
    """The path comes by its own end on the way."""
    back = make_episode("door", "hall", "door")
    told = teacher_rollout(ATLAS, [back], teacher_by_step(ATLAS), max_steps=15)
    assert [walk.num_decisions for walk in told.trajectories] == [3]
    assert told.labels[0] != ATLAS.degrees[at("door")] == told.labels[2]


# -- DAgger ------------------------------------------------------------------------------------------------


def trying(
    navigator: Navigator, memory: TrainingMemory | None, said: list[Tensor], seed: int = 1
) -> Demonstrations:
    drawing = sampling(seed)

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        said.append(decision.logits)
        return drawing(decision, observation, walks)

    return dagger_rollout(
        navigator, ATLAS, EPISODES, memory, shortest_path_teacher(ATLAS), choose, encode=encode, max_steps=6
    )


@pytest.mark.parametrize("mode", [None, *MODES])
def test_what_was_tried_out_is_relived_without_what_came_later(mode: str | None) -> None:
    navigator = (plain_navigator if mode is None else small_navigator)()
    memory, said = begun(navigator, mode), list[Tensor]()
    told = trying(navigator, memory, said)
    found = forward_all(navigator, ATLAS, told, memory, encode=encode).logits
    assert len(found) > 12
    for row, logits in enumerate(logits for step in said for logits in step):
        torch.testing.assert_close(found[row, : len(logits)], logits, atol=1e-5, rtol=1e-5)
    if memory is None:
        return
    # Were the walks' own future known, they would decide otherwise.
    after = TrainingMemory(ATLAS, navigator.reader, MemoryDropout())
    after.remember_at(left(memory))
    after.begin_rollout(EPISODES, np.random.default_rng(0))
    leaked = forward_all(navigator, ATLAS, told, after, encode=encode).logits
    assert not torch.allclose(leaked, found, atol=1e-3)


def test_comments_are_the_teachers_on_where_the_agent_went() -> None:
    navigator = plain_navigator()
    told = trying(navigator, None, [])
    teacher = shortest_path_teacher(ATLAS)
    for row, walk in enumerate(told.trajectories):
        mine = told.step_index.episode == row
        for place, label in zip(told.pose.viewpoint[mine], told.labels[mine].tolist(), strict=True):
            wanted = teacher(Trajectory(walk.episode, [(int(place), 12)]))
            ways = [*ATLAS.neighbours[place, : ATLAS.degrees[place]].tolist(), int(place)]
            assert ways[label] == wanted
    assert not np.array_equal(told.labels, told.actions)


def test_trying_out_learns_nothing_and_drops_nothing_but_leaves_training_on() -> None:
    navigator, said = small_navigator().train(), list[Tensor]()
    trying(navigator, begun(navigator), said)
    assert navigator.training and not any(logits.requires_grad for logits in said)
    again: list[Tensor] = []
    trying(navigator.eval(), begun(navigator), again)
    assert not navigator.training
    assert all(torch.equal(*pair) for pair in zip(said, again, strict=True))


def test_a_teacher_by_time_may_not_know_the_way_of_who_went_astray() -> None:
    def stray(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        return torch.zeros(len(walks), dtype=torch.int64)

    episode = make_episode("attic", "landing", "hall", "kitchen", "pantry")
    with pytest.raises(WorldError, match="is not an edge"):
        dagger_rollout(
            plain_navigator(),
            ATLAS,
            [episode],
            None,
            teacher_by_step(ATLAS),
            stray,
            encode=encode,
            max_steps=6,
        )


# -- sampled walks -----------------------------------------------------------------------------------------


def sampled(
    navigator: Navigator, told: Demonstrations, memory: TrainingMemory | None, max_steps: int
) -> tuple[Any, Tensor, SingleBatch]:
    source = SingleBatch(ATLAS, [walk.episode for walk in told.trajectories])
    steps, beyond = sample_rollout(
        navigator,
        ATLAS,
        source,
        memory,
        PathReward(ATLAS, source.trajectories),
        forcing(told),
        encode=encode,
        max_steps=max_steps,
    )
    return steps, beyond, source


@pytest.mark.parametrize("fusing", [False, True])
@pytest.mark.parametrize("max_steps", [1, 2, 3, 5])
def test_the_value_beyond_a_walk_that_was_cut_off_is_that_of_its_next_step(
    fusing: bool, max_steps: int
) -> None:
    navigator = (small_navigator if fusing else plain_navigator)()
    told = run_batch()
    longer, _, _ = sampled(navigator, told, begun(navigator), max_steps + 1)
    memory = begun(navigator)
    steps, beyond, source = sampled(navigator, told, memory, max_steps)
    assert len(steps) == max_steps
    after = dict(zip(longer[-1].rows.tolist(), longer[-1].value.tolist(), strict=True))
    cut = [row for row, walk in enumerate(source.trajectories) if not walk.stopped]
    assert cut and set(cut) == set(after)
    expected = [after.get(row, 0.0) for row in range(len(source.trajectories))]
    assert beyond.tolist() == pytest.approx(expected, abs=1e-6)
    assert not beyond.requires_grad
    if memory is not None:  # where they were cut off is not remembered unless somebody decided there
        decided = {place for walk in source.trajectories for place in walk.decision_viewpoints}
        assert set(left(memory)) - set(left(begun(navigator))) <= decided


def test_where_a_walk_is_cut_off_is_not_remembered() -> None:
    navigator = small_navigator()
    memory = TrainingMemory(ATLAS, navigator.reader, MemoryDropout())
    episode = make_episode("hall", "door", "garden")
    memory.begin_rollout([episode], np.random.default_rng(0))
    told = teacher_rollout(ATLAS, [episode], teacher_by_step(ATLAS), max_steps=5)
    _, beyond, source = sampled(navigator, told, memory, 2)
    assert source.trajectories[0].viewpoint == at("garden") and not source.trajectories[0].stopped
    assert set(names(left(memory))) == {"hall", "door"}
    assert beyond[0] != 0


def test_nothing_lies_beyond_walks_that_all_stopped() -> None:
    navigator = plain_navigator()
    told = run_batch()
    steps, beyond, source = sampled(navigator, told, None, 15)
    assert all(walk.stopped for walk in source.trajectories) and len(steps) == 6
    assert not beyond.any()
    # Even where the last of them stops with the last decision that is allowed.
    assert not sampled(navigator, told, None, 6)[1].any()


def test_steps_hold_who_took_them_what_they_chose_and_what_it_was_worth() -> None:
    navigator, told = plain_navigator(), run_batch()
    steps, _, source = sampled(navigator, told, None, 15)
    assert [step.rows.tolist() for step in steps] == [rows.tolist() for rows, *_ in told.steps]
    assert [step.action.tolist() for step in steps] == [chosen.tolist() for _, _, chosen, _ in told.steps]
    assert steps[0].value.requires_grad and steps[0].logits.requires_grad
    # Who follows the path stops at its end: 2 + 2 nDTW.
    last = {row: step.reward[index] for step in steps for index, row in enumerate(step.rows.tolist())}
    assert [float(last[row]) for row in range(len(source.trajectories))] == pytest.approx([4.0] * 5)


def test_rewards_need_a_critic() -> None:
    navigator = Navigator(StopAtOnce(), NoMemory())
    source = SingleBatch(ATLAS, EPISODES)
    with pytest.raises(ConfigError, match="StopAtOnce has no critic.*train it by imitation"):
        sample_rollout(
            navigator,
            ATLAS,
            source,
            None,
            GoalReward(ATLAS, source.trajectories),
            sampling(0),
            encode=encode,
            max_steps=3,
        )


def test_episodes_of_one_scene_share_a_memory_within_a_rollout() -> None:
    """Spec C.3: reads of a step come before its writes; from the next step on, all know of them."""
    navigator = small_navigator()
    memory = TrainingMemory(ATLAS, navigator.reader, MemoryDropout())
    episodes: list[Episode] = [
        make_episode("door", "hall", name="0_0"),
        make_episode("kitchen", "pantry", name="1_0"),
    ]
    memory.begin_rollout(episodes, np.random.default_rng(0))
    told = teacher_rollout(ATLAS, episodes, teacher_by_step(ATLAS), max_steps=5)
    foreseen = memory.remember_trajectories(torch.from_numpy(told.pose.viewpoint), told.step_index.step)
    observation = Observation.from_atlas(ATLAS, told.pose)
    found = [
        set(names(row[known].tolist()))
        for row, known in zip(
            observation.neighbour, foreseen.recall_at(observation.neighbour).any(-1), strict=True
        )
    ]
    assert found == [set(), set(), {"door", "kitchen"}, {"kitchen"}]
