"""Losses beside imitation and rewards: an agent's own, and what should have been done instead (spec D.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents import TDSTP, TdstpConfig
from esceme.agents.base import Decision
from esceme.errors import ConfigError
from esceme.learning.reinforcement import PathReward, Transition
from esceme.learning.rollouts import dagger_rollout, forward_stepwise, sample_rollout
from esceme.learning.teachers import IGNORE_INDEX, ORACLES, shortest_path_teacher
from esceme.learning.trainer import EpisodeStream, Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank, NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep
from esceme.tasks.episode import Episode
from esceme.trajectory import SingleBatch, Trajectory, sampling
from fixtures.toy_atlas import VOCABULARY, WALKS, WIDTH, blind_navigator, cottage, encode, led

ATLAS = cottage()
BATCH, LIMIT, SEED = 3, 6, 7


def planner(*, remembering: bool = False, **settings: Any) -> Navigator:
    """A small agent that may go back and guesses where its goal is; nothing is dropped."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocabulary": VOCABULARY,
        "positions": 20,
        "hidden": 16,
        "heads": 2,
        "feed_forward": 24,
        "text_layers": 1,
        "cross_layers": 2,
        "panorama_layers": 1,
        "feature_width": WIDTH,
        "max_steps": 20,
        "critic_inner": 16,
        "initial_std": 0.2,
        "initial_bias_std": 0.3,
        "dropout": 0.0,
        "head_dropout": 0.0,
        "critic_dropout": 0.0,
    }
    agent = TDSTP(TdstpConfig(**sizes | settings))
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH, initial_std=0.3))
    return Navigator(agent, reader if remembering else NoMemory(), feature_dropout=0.0)


def trainer_of(navigator: Navigator | None = None, **settings: Any) -> Trainer:
    chosen = {"batch": BATCH, "clip": 1e9, "iterations": 10, "learning_rate": 1e-3} | settings
    return Trainer(
        navigator or planner(),
        ATLAS,
        [WALKS],
        TrainingConfig(**chosen),
        encode=encode,
        max_steps=LIMIT,
        seed=SEED,
    )


def gradient(navigator: Navigator) -> Tensor:
    """All gradients in a row, zeros where there is none."""
    return torch.cat(
        [
            (torch.zeros_like(each) if each.grad is None else each.grad).flatten()
            for each in navigator.parameters()
        ]
    )


def learned(navigator: Navigator | None = None, **settings: Any) -> Tensor:
    """The gradient of a first iteration."""
    trainer = trainer_of(navigator, **settings)
    trainer.training_step(0)
    return gradient(trainer.navigator)


def by_hand(
    navigator: Navigator, steps: Sequence[RolloutStep], loss: Callable[[RolloutStep], Tensor]
) -> Tensor:
    """The gradient of something summed over steps."""
    navigator.zero_grad(set_to_none=True)
    torch.stack([loss(step) for step in steps]).sum().backward()
    return gradient(navigator)


def batches() -> tuple[list[Episode], list[Episode]]:
    stream = EpisodeStream(WALKS, seed=SEED)
    return stream.batch(0, BATCH), stream.batch(1, BATCH)


def followed(navigator: Navigator) -> list[RolloutStep]:
    return list(led(navigator.train(), ATLAS, batches()[0], None, max_steps=LIMIT))


def sampled(navigator: Navigator) -> list[RolloutStep]:
    """The walks of the second batch, each alone: what is drawn depends on the episode and the step."""
    return [
        step
        for episode in batches()[1]
        for step in led(
            navigator.train(), ATLAS, [episode], None, choose=sampling([SEED, 0]), max_steps=LIMIT
        )
    ]


def guessing(step: RolloutStep) -> Tensor:
    """How unlikely the nearest point of a 5 x 5 grid around the start is, seen from above."""
    total = torch.zeros(())
    points = torch.tensor([(x, y) for x in range(-12, 13, 6) for y in range(-12, 13, 6)])
    assert step.decision.guess is not None
    for walk, guess in zip(step.trajectories, step.decision.guess, strict=True):
        start, goal = (
            torch.from_numpy(ATLAS.positions[ATLAS.locate(walk.episode.scene_id, [name])[0]][:2])
            for name in (walk.episode.start, walk.episode.goal)
        )
        total = total - guess.log_softmax(0)[(points - (goal - start)).norm(dim=1).argmin()]
    return total


def imitating(step: RolloutStep) -> Tensor:
    return functional.cross_entropy(step.decision.logits, step.actions, reduction="sum")


def near(found: Tensor, expected: Tensor) -> None:
    assert expected.norm() > 1e-3
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-3)


# -- the agent's own ---------------------------------------------------------------------------------------


def test_the_agents_own_loss_is_divided_by_the_batch_and_has_its_own_weight_alone() -> None:
    navigator = planner()
    expected = by_hand(navigator, followed(navigator), guessing) / BATCH
    for weight in (0.3, 1.0):
        whole, without = (
            learned(planner(target_weight=each), method="imitation", imitation_weight=0.5)
            for each in (weight, 0.0)
        )
        near(whole - without, weight * expected)


def test_beside_rewards_both_rollouts_have_it_and_the_weight_of_imitation_is_not_its() -> None:
    navigator = planner()
    expected = by_hand(navigator, followed(navigator), guessing)
    expected = (expected + by_hand(navigator, sampled(navigator), guessing)) / BATCH
    for imitation_weight in (0.2, 0.9):
        whole, without = (
            learned(planner(target_weight=each), imitation_weight=imitation_weight) for each in (1.0, 0.0)
        )
        near(whole - without, expected)


def test_the_weight_of_imitation_is_that_of_the_cross_entropy_alone() -> None:
    navigator = planner()
    expected = by_hand(navigator, followed(navigator), imitating) / BATCH
    more, less = (learned(planner(), imitation_weight=each) for each in (1.2, 0.2))
    near(more - less, expected)


def test_the_log_says_what_was_added() -> None:
    navigator = planner(target_weight=0.3)
    with torch.no_grad():
        led_, drawn = followed(navigator), sampled(navigator)
        guesses = [0.3 * float(sum(guessing(step) for step in each)) / BATCH for each in (led_, drawn)]
        wanted = float(sum(commenting("path")(step) for step in drawn)) / BATCH
        taught = float(sum(imitating(step) for step in led_)) / BATCH
    said = trainer_of(navigator, oracle_weight=0.4).training_step(0)
    assert said["auxiliary"] == pytest.approx(sum(guesses), rel=1e-4)
    assert said["oracle"] == pytest.approx(wanted, rel=1e-4)
    assert said["imitation"] == pytest.approx(taught, rel=1e-4)
    said = trainer_of(planner(target_weight=0.3), method="imitation").training_step(0)
    assert said["auxiliary"] == pytest.approx(guesses[0], rel=1e-4) and "oracle" not in said


def test_who_has_no_loss_of_its_own_and_is_not_commented_on_says_nothing_of_it() -> None:
    for navigator in (blind_navigator(), planner(grid=0)):
        said = trainer_of(navigator).training_step(0)
        assert not {"auxiliary", "oracle"} & said.keys()


# -- comments ----------------------------------------------------------------------------------------------


def commenting(name: str) -> Callable[[RolloutStep], Tensor]:
    comment = ORACLES[name](ATLAS)

    def loss(step: RolloutStep) -> Tensor:
        wanted = comment(step.decision, step.observation, step.trajectories).tolist()
        chances = step.decision.logits.log_softmax(1)
        taught = [-chances[row, choice] for row, choice in enumerate(wanted) if choice != IGNORE_INDEX]
        return torch.stack([torch.zeros(()), *taught]).sum()

    return loss


@pytest.mark.parametrize("name", ORACLES)
def test_comments_on_sampled_walks_are_divided_by_the_batch_and_weighted(name: str) -> None:
    navigator = planner()
    expected = by_hand(navigator, sampled(navigator), commenting(name)) / BATCH
    for weight in (0.4, 2.0):
        commented, not_ = (learned(oracle=name, oracle_weight=each) for each in (weight, 0.0))
        near(commented - not_, weight * expected)


def test_comments_speak_of_ways_back_where_there_are_any() -> None:
    navigator, comment, back = planner(), ORACLES["path"](ATLAS), 0
    for step in sampled(navigator):
        assert step.decision.routes is not None
        back += int(
            (comment(step.decision, step.observation, step.trajectories) >= step.decision.routes.first).sum()
        )
    assert back > 0
    assert any((step.actions >= step.decision.routes.first).any() for step in sampled(navigator))  # type: ignore[union-attr]


def test_who_cannot_go_back_is_commented_on_as_far_as_anybody_can_say() -> None:
    """Off the path nothing may lead back to it: that step teaches nothing, and nothing breaks."""
    trainer = trainer_of(blind_navigator(), oracle_weight=0.4)
    said = [trainer.training_step(number) for number in range(4)]
    assert all(each["oracle"] > 0 for each in said)


def test_imitation_is_not_commented_on() -> None:
    plain, commented = (learned(method="imitation", oracle_weight=each) for each in (0.0, 3.0))
    assert torch.equal(plain, commented)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"oracle": "nobody"}, "oracle 'nobody': expected one of path, goal"),
        ({"oracle_weight": -0.1}, "oracle_weight: expected 0 or more, found -0.1"),
        ({"oracle_weight": float("nan")}, "oracle_weight: expected 0 or more, found nan"),
        ({"oracle_weight": float("inf")}, "oracle_weight: expected 0 or more, found inf"),
    ],
)
def test_comments_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**settings)


# -- walks with ways back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_steps", [2, 3, 5])
def test_the_value_beyond_a_jump_is_that_of_the_next_step(max_steps: int) -> None:
    """Whoever is cut off by a way back: what was thought at the last step is taken along."""
    navigator, jumped = planner().eval(), 0
    drawing = sampling(2)

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        nonlocal jumped
        chosen = drawing(decision, observation, walks)
        assert decision.routes is not None
        for row, walk in enumerate(walks):
            back = (decision.routes.viewpoint[row] >= 0).nonzero().flatten().tolist()
            if walk.num_decisions < max_steps - 1:
                chosen[row] = row % int(observation.candidate_count[row])  # goes on, to be cut off
            elif walk.num_decisions == max_steps - 1 and back:
                chosen[row], jumped = decision.routes.first + back[0], jumped + 1
        return chosen

    def lived(limit: int) -> tuple[list[Transition], Tensor]:
        source = SingleBatch(ATLAS, WALKS)
        reward = PathReward(ATLAS, source.trajectories)
        return sample_rollout(navigator, ATLAS, source, None, reward, choose, encode=encode, max_steps=limit)

    steps, beyond = lived(max_steps)
    assert len(steps) == max_steps and jumped >= len(WALKS) - 1
    longer, _ = lived(max_steps + 1)
    after = dict(zip(longer[-1].rows.tolist(), longer[-1].value.tolist(), strict=True))
    assert beyond.tolist() == pytest.approx([after.get(row, 0.0) for row in range(len(WALKS))], abs=1e-5)


def test_what_was_tried_out_is_walked_again_ways_back_included() -> None:
    navigator, said, back = planner(), list[Tensor](), 0
    drawing = sampling(1)

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        nonlocal back
        said.append(decision.logits)
        chosen = drawing(decision, observation, walks)
        assert decision.routes is not None
        back += int((chosen >= decision.routes.first).sum())
        return chosen

    told = dagger_rollout(
        navigator, ATLAS, WALKS, None, shortest_path_teacher(ATLAS), choose, encode=encode, max_steps=LIMIT
    )
    again = forward_stepwise(navigator.eval(), ATLAS, told, None, encode=encode)
    assert back > 3 and again.aside is not None and again.aside.shape == again.logits.shape[:1]
    for row, logits in enumerate(logits for step in said for logits in step):
        torch.testing.assert_close(again.logits[row, : len(logits)], logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["imitation", "imitation+a2c", "dagger"])
def test_every_part_of_the_agent_learns_by_every_method(method: str) -> None:
    trainer = trainer_of(planner(remembering=True), method=method, oracle_weight=0.4)
    said = [trainer.training_step(number) for number in range(2)]
    assert all(each["auxiliary"] > 0 for each in said)
    learning = {
        name
        for name, each in trainer.navigator.named_parameters()
        if each.grad is not None and each.grad.any()
    }
    for part in ("positions.", "guess.", "map.", "history.picture.", "sight.picture.", "action."):
        assert any(name.startswith(f"agent.{part}") for name in learning), part
    assert any(name.startswith("reader.") for name in learning)
    assert any(name.startswith("agent.critic.") for name in learning) == (method == "imitation+a2c")


def test_on_ways_back_training_remembers_places_where_something_was_decided_once() -> None:
    trainer = trainer_of(planner(remembering=True), oracle_weight=0.4)
    for iteration in range(3):
        trainer.training_step(iteration)
    assert trainer.memory is not None
    places = trainer.memory.bank.visited.nonzero().flatten()
    seen = MemoryBank.of(ATLAS)
    seen.remember_at(places.tolist())
    assert len(places) > 5
    assert torch.equal(trainer.memory.recall_at(places), seen.recall_at(places))


@pytest.mark.parametrize("method", ["imitation+a2c", "dagger"])
def test_the_same_seed_learns_the_same_and_resumes_the_same(method: str) -> None:
    def fresh() -> Trainer:
        return trainer_of(planner(remembering=True), method=method, oracle_weight=0.4)

    one, other, resumed = fresh(), fresh(), fresh()
    said = [one.training_step(iteration) for iteration in range(4)]
    for iteration in range(2):
        other.training_step(iteration)
    resumed.load_state_dict(other.state_dict())
    assert [resumed.training_step(iteration) for iteration in (2, 3)] == said[2:]
    for mine, theirs in zip(one.navigator.parameters(), resumed.navigator.parameters(), strict=True):
        assert torch.equal(mine, theirs)
