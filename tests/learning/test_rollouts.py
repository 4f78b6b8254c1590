"""Rollouts for training: forward passes at once equal those step by step, and use no later memory."""

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
from esceme.learning.reinforcement import PathReward, Transition
from esceme.learning.rollouts import (
    Demonstrations,
    dagger_rollout,
    forward_demonstrations,
    sample_rollout,
    teacher_rollout,
)
from esceme.learning.teachers import reference_path_teacher_by_step, shortest_path_teacher
from esceme.memory import NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep, roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import ActionSelector, SingleBatch, Trajectory, sampling
from fixtures.toy_atlas import build_toy_atlas, encode, make_episode, plain_navigator, small_navigator

ATLAS = build_toy_atlas()
# Two reach the hall and the landing after another one; one stops at once, one visits viewpoints twice.
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
    "text-encoded-once": {"language_cross_attention": False, "freeze_text": False, "freeze_history": False},
    "plain": {"encode_panorama": False, "context_views": False, "stop_features": "panorama-max"},
}


def at(name: str, scene: str = "cottage") -> int:
    return int(ATLAS.locate(scene, [name])[0])


def names(viewpoints: Sequence[int]) -> list[str]:
    return [ATLAS.name(viewpoint)[1] for viewpoint in viewpoints]


def empty_memory(navigator: Navigator, episodes: Sequence[Episode] = EPISODES) -> TrainingMemory:
    memory = TrainingMemory(ATLAS, navigator.reader, MemoryDropout())
    memory.begin_rollout(episodes, np.random.default_rng(0))
    return memory


def partial_memory(
    navigator: Navigator, mode: Any = "as-released", *, seed: int = 0
) -> TrainingMemory | None:
    """Return a memory of some viewpoints at the beginning of a rollout; it depends on the seed only."""
    if not navigator.reader.uses_memory:
        return None
    settings = MemoryDropout(
        mode=mode, reset_after=2, forget_probability=0.4, full_probability=0.0, empty_probability=0.0
    )
    memory = TrainingMemory(ATLAS, navigator.reader, settings)
    for index in range(2):  # the second rollout may clear a scene
        memory.begin_rollout(EPISODES, np.random.default_rng([seed, index]))
        memory.remember_at([at("door"), at("pantry"), at("attic")][index:])
    memory.begin_rollout(EPISODES, np.random.default_rng([seed, 2]))
    return memory


def remembered(memory: TrainingMemory | None) -> list[int]:
    return [] if memory is None else memory.bank.visited.nonzero().flatten().tolist()


def demonstrate(*episodes: Episode, max_steps: int = 15) -> Demonstrations:
    return teacher_rollout(
        ATLAS, episodes or EPISODES, reference_path_teacher_by_step(ATLAS), max_steps=max_steps
    )


def forward(
    navigator: Navigator,
    demonstrations: Demonstrations,
    memory: TrainingMemory | None,
    *,
    stepwise: bool | None = None,
) -> Tensor:
    return forward_demonstrations(
        navigator, ATLAS, demonstrations, memory, encode=encode, stepwise=stepwise
    ).logits


def replaying(demonstrations: Demonstrations) -> ActionSelector:
    """Select the actions of demonstrations."""
    actions = {
        (demonstrations.trajectories[row].episode.episode_id, index): action
        for index, step in enumerate(demonstrations.steps)
        for row, action in zip(step.rows.tolist(), step.action.tolist(), strict=True)
    }

    def select(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        return torch.tensor([actions[t.episode.episode_id, t.num_decisions] for t in trajectories])

    return select


def replay(
    navigator: Navigator, demonstrations: Demonstrations, memory: TrainingMemory | None
) -> list[RolloutStep]:
    """Repeat demonstrations by the rollout of evaluation."""
    source = SingleBatch(ATLAS, [trajectory.episode for trajectory in demonstrations.trajectories])
    select, max_steps = replaying(demonstrations), len(demonstrations.steps)
    return list(roll_out(navigator, ATLAS, source, memory, select, encode=encode, max_steps=max_steps))


# -- at once and step by step ------------------------------------------------------------------------------


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("max_steps", [15, 3])
def test_decisions_at_once_equal_those_step_by_step(mode: str | None, network: str, max_steps: int) -> None:
    make = plain_navigator if mode is None else small_navigator
    navigator, demonstrations = make(**NETWORKS[network]), demonstrate(max_steps=max_steps)
    for seed in range(2):
        memories = [partial_memory(navigator, mode, seed=seed) for _ in range(4)]
        logits = [step.decision.logits for step in replay(navigator, demonstrations, memories[0])]
        width = max(step.shape[1] for step in logits)
        expected = torch.cat(
            [functional.pad(step, (0, width - step.shape[1]), value=-torch.inf) for step in logits]
        )
        assert len(expected) == sum(trajectory.num_decisions for trajectory in demonstrations.trajectories)
        for stepwise, memory in zip((False, True, None), memories[1:], strict=True):
            found = forward(navigator, demonstrations, memory, stepwise=stepwise)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert remembered(memory) == remembered(memories[0])


@pytest.mark.parametrize("mode", MODES)
def test_decisions_depend_on_what_other_episodes_remember_meanwhile(mode: str) -> None:
    """Shows that the test above can fail."""
    navigator, demonstrations = small_navigator(), demonstrate()
    memory = partial_memory(navigator, mode)
    batch = forward(navigator, demonstrations, memory)
    for row, episode in enumerate(EPISODES):
        memory = partial_memory(navigator, mode)
        single = forward(navigator, demonstrate(episode), memory)
        pairs = zip(batch[demonstrations.step_index.episode == row], single, strict=True)
        is_equal = [torch.allclose(a[: len(b)], b, atol=1e-5) for a, b in pairs]
        assert is_equal[0]  # nothing is remembered before the first step
        if row == 2 and mode != "forgetting":  # at the landing, after episode 1_0
            assert not all(is_equal)


@pytest.mark.parametrize("uses_memory", [False, True])
def test_gradients_at_once_equal_those_step_by_step(uses_memory: bool) -> None:
    navigator = (small_navigator if uses_memory else plain_navigator)(**NETWORKS["text-encoded-once"])
    demonstrations, gradients = demonstrate(), []
    for stepwise in (False, True):
        navigator.zero_grad()
        logits = forward(navigator, demonstrations, partial_memory(navigator), stepwise=stepwise)
        functional.cross_entropy(logits, demonstrations.labels, reduction="sum").backward()
        gradients.append({n: p.grad.clone() for n, p in navigator.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert (gradient - gradients[1][name]).norm() <= 1e-3 * gradient.norm() + 1e-4, name


def test_agent_without_decide_all_runs_step_by_step() -> None:
    navigator = Navigator(StopAtOnce(), NoMemory())
    assert not navigator.agent.supports_decide_all
    demonstrations = teacher_rollout(ATLAS, EPISODES, lambda trajectory: trajectory.viewpoint, max_steps=3)
    logits = forward(navigator, demonstrations, None)
    assert logits.argmax(1).tolist() == demonstrations.labels.tolist()


# -- following a teacher -----------------------------------------------------------------------------------


def test_demonstrations_hold_the_active_trajectories_of_every_step() -> None:
    demonstrations = demonstrate()
    rows = [[0, 1, 2, 3, 4], [0, 1, 2, 4], [0, 1, 2], [0, 2], [2], [2]]
    episode, step = demonstrations.step_index
    assert [step.rows.tolist() for step in demonstrations.steps] == rows
    assert episode.tolist() == sum(rows, [])
    assert step.tolist() == [0] * 5 + [1] * 4 + [2] * 3 + [3] * 2 + [4, 5]
    path = [viewpoint for viewpoint, _ in demonstrations.trajectories[2].poses]
    assert names(path) == list(EPISODES[2].reference_path)
    assert all(trajectory.stopped for trajectory in demonstrations.trajectories)
    assert [trajectory.num_decisions for trajectory in demonstrations.trajectories] == [4, 3, 6, 1, 2]
    assert names(demonstrations.pose.viewpoint[episode == 1]) == ["hall", "landing", "attic"]
    assert np.array_equal(demonstrations.labels, demonstrations.actions)
    assert demonstrations.labels[episode == 3].tolist() == [ATLAS.degrees[at("kitchen")]]


def test_poses_equal_those_of_a_rollout() -> None:
    demonstrations = demonstrate()
    observations = [step.observation for step in replay(plain_navigator(), demonstrations, None)]
    for name, expected in zip(("viewpoint", "facing_view"), demonstrations.pose, strict=True):
        found = np.concatenate([getattr(observation, name) for observation in observations])
        assert found.tolist() == expected.tolist()


def test_truncated_demonstrations_do_not_remember_the_last_viewpoint() -> None:
    """Spec C.3."""
    demonstrations = demonstrate(max_steps=2)
    assert [trajectory.num_decisions for trajectory in demonstrations.trajectories] == [2, 2, 2, 1, 2]
    stopped = [trajectory.stopped for trajectory in demonstrations.trajectories]
    assert stopped == [False, False, False, True, True]
    navigator = small_navigator()
    memory = empty_memory(navigator)
    forward(navigator, demonstrations, memory)
    assert set(remembered(memory)) == {
        *(at(name) for name in ("garden", "door", "hall", "landing", "attic", "kitchen")),
        *(at(name, "shed") for name in ("hall", "door")),
    }


@pytest.mark.parametrize("path", [("hall", "door", "hall", "door", "garden"), ("door", "hall", "door")])
def test_pitfall_11_path_with_repeated_viewpoints_is_followed_by_step(path: tuple[str, ...]) -> None:
    """STOP is taught at the end of the path, not at an earlier visit of its last viewpoint."""
    demonstrations = demonstrate(make_episode(*path))
    assert names([viewpoint for viewpoint, _ in demonstrations.trajectories[0].poses]) == list(path)
    is_stop = demonstrations.labels == torch.from_numpy(ATLAS.degrees[demonstrations.pose.viewpoint])
    assert is_stop.tolist() == [False] * (len(path) - 1) + [True]


# -- DAgger ------------------------------------------------------------------------------------------------


def sampled_dagger(
    navigator: Navigator, memory: TrainingMemory | None
) -> tuple[Demonstrations, list[Tensor]]:
    """Return a DAgger rollout and the logits of its steps."""
    logits, sample = list[Tensor](), sampling(1)

    def select(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        logits.append(decision.logits)
        return sample(decision, observation, trajectories)

    teacher = shortest_path_teacher(ATLAS)
    demonstrations = dagger_rollout(
        navigator, ATLAS, EPISODES, memory, teacher, select, encode=encode, max_steps=6
    )
    return demonstrations, logits


@pytest.mark.parametrize("mode", [None, *MODES])
def test_forward_of_a_dagger_rollout_uses_no_later_memory(mode: str | None) -> None:
    navigator = (plain_navigator if mode is None else small_navigator)()
    memory = partial_memory(navigator, mode)
    demonstrations, logits = sampled_dagger(navigator, memory)
    found = forward(navigator, demonstrations, memory)
    assert len(found) > 12
    for row, expected in enumerate(expected for step in logits for expected in step):
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=1e-5, rtol=1e-5)
    if memory is not None:  # the final memory leads to other decisions
        final = TrainingMemory(ATLAS, navigator.reader, MemoryDropout())
        final.remember_at(remembered(memory))
        final.begin_rollout(EPISODES, np.random.default_rng(0))
        leaked = forward(navigator, demonstrations, final)
        assert not torch.allclose(leaked, found, atol=1e-3)


def test_dagger_labels_are_the_teachers_at_the_agents_viewpoints() -> None:
    demonstrations, _ = sampled_dagger(plain_navigator(), None)
    teacher, episode = shortest_path_teacher(ATLAS), demonstrations.step_index.episode
    for row, trajectory in enumerate(demonstrations.trajectories):
        viewpoints, labels = (
            demonstrations.pose.viewpoint[episode == row],
            demonstrations.labels[episode == row],
        )
        for viewpoint, label in zip(viewpoints.tolist(), labels.tolist(), strict=True):
            choices = [*ATLAS.neighbours[viewpoint, : ATLAS.degrees[viewpoint]].tolist(), viewpoint]
            assert choices[label] == teacher(Trajectory(trajectory.episode, [(viewpoint, 12)]))
    assert not np.array_equal(demonstrations.labels, demonstrations.actions)


def test_dagger_rollout_has_no_gradients_and_no_dropout_and_restores_the_mode() -> None:
    navigator = small_navigator().train()
    _, logits = sampled_dagger(navigator, partial_memory(navigator))
    assert navigator.training and not any(step.requires_grad for step in logits)
    _, again = sampled_dagger(navigator.eval(), partial_memory(navigator))
    assert not navigator.training
    assert all(torch.equal(*pair) for pair in zip(logits, again, strict=True))


def test_reference_path_teacher_by_step_fails_off_the_path() -> None:
    def first_candidate(decision: Decision, observation: Observation, batch: Sequence[Trajectory]) -> Tensor:
        return torch.zeros(len(batch), dtype=torch.int64)

    episode, teacher = (
        make_episode("attic", "landing", "hall", "kitchen", "pantry"),
        reference_path_teacher_by_step(ATLAS),
    )
    with pytest.raises(WorldError, match="is not an edge"):
        dagger_rollout(
            plain_navigator(), ATLAS, [episode], None, teacher, first_candidate, encode=encode, max_steps=6
        )


# -- sampled rollouts --------------------------------------------------------------------------------------


def sample(
    navigator: Navigator, demonstrations: Demonstrations, memory: TrainingMemory | None, max_steps: int
) -> tuple[list[Transition], Tensor, Sequence[Trajectory]]:
    """Repeat demonstrations as a sampled rollout."""
    source = SingleBatch(ATLAS, [trajectory.episode for trajectory in demonstrations.trajectories])
    reward, select = PathReward(ATLAS, source.trajectories), replaying(demonstrations)
    transitions, bootstrap = sample_rollout(
        navigator, ATLAS, source, memory, reward, select, encode=encode, max_steps=max_steps
    )
    return transitions, bootstrap, source.trajectories


@pytest.mark.parametrize("uses_memory", [False, True])
@pytest.mark.parametrize("max_steps", [1, 2, 3, 5])
def test_bootstrap_of_truncated_trajectories_is_the_value_of_the_next_step(
    uses_memory: bool, max_steps: int
) -> None:
    navigator = (small_navigator if uses_memory else plain_navigator)()
    demonstrations, memory = demonstrate(), partial_memory(navigator)
    longer, _, _ = sample(navigator, demonstrations, partial_memory(navigator), max_steps + 1)
    transitions, bootstrap, trajectories = sample(navigator, demonstrations, memory, max_steps)
    assert len(transitions) == max_steps
    values = dict(zip(longer[-1].rows.tolist(), longer[-1].value.tolist(), strict=True))
    assert values.keys() == {row for row, trajectory in enumerate(trajectories) if not trajectory.stopped}
    expected = [values.get(row, 0.0) for row in range(len(trajectories))]
    assert bootstrap.tolist() == pytest.approx(expected, abs=1e-6)
    assert not bootstrap.requires_grad
    if memory is not None:
        decided = {viewpoint for trajectory in trajectories for viewpoint in trajectory.decision_viewpoints}
        assert set(remembered(memory)) - set(remembered(partial_memory(navigator))) <= decided


def test_last_viewpoint_of_a_truncated_trajectory_is_not_remembered() -> None:
    navigator, episode = small_navigator(), make_episode("hall", "door", "garden")
    memory = empty_memory(navigator, [episode])
    _, bootstrap, (trajectory,) = sample(navigator, demonstrate(episode), memory, 2)
    assert trajectory.viewpoint == at("garden") and not trajectory.stopped
    assert set(names(remembered(memory))) == {"hall", "door"}
    assert bootstrap[0] != 0


@pytest.mark.parametrize("max_steps", [15, 6])
def test_transitions_of_stopped_trajectories(max_steps: int) -> None:
    demonstrations = demonstrate()
    transitions, bootstrap, trajectories = sample(plain_navigator(), demonstrations, None, max_steps)
    assert all(trajectory.stopped for trajectory in trajectories) and not bootstrap.any()
    for transition, step in zip(transitions, demonstrations.steps, strict=True):
        assert transition.rows.tolist() == step.rows.tolist()
        assert transition.action.tolist() == step.action.tolist()
    assert transitions[0].value.requires_grad and transitions[0].logits.requires_grad
    rewards = {row: t.reward[index] for t in transitions for index, row in enumerate(t.rows.tolist())}
    assert [float(rewards[row]) for row in range(5)] == pytest.approx([4.0] * 5)  # STOP: 2 + 2 nDTW


def test_sampled_rollout_needs_a_critic() -> None:
    with pytest.raises(ConfigError, match="StopAtOnce has no critic.*train it by imitation"):
        sample(Navigator(StopAtOnce(), NoMemory()), demonstrate(), None, 3)


def test_episodes_of_one_scene_share_a_memory_within_a_rollout() -> None:
    """Spec C.3: a step reads before it writes; what it writes is visible to all from the next step on."""
    episodes = [make_episode("door", "hall", name="0_0"), make_episode("kitchen", "pantry", name="1_0")]
    memory, demonstrations = empty_memory(small_navigator(), episodes), demonstrate(*episodes)
    viewpoints = torch.from_numpy(demonstrations.pose.viewpoint)
    view = memory.remember_trajectories(viewpoints, demonstrations.step_index.step)
    neighbours = Observation.from_atlas(ATLAS, demonstrations.pose).neighbour
    known = view.recall_at(neighbours).any(-1)
    visible = [set(names(row[mask].tolist())) for row, mask in zip(neighbours, known, strict=True)]
    assert visible == [set(), set(), {"door", "kitchen"}, {"kitchen"}]
