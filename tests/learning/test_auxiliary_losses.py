"""Losses beside imitation and A2C: the agent's auxiliary loss and the oracle's (spec D.7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents import TDSTP, TdstpConfig
from esceme.agents.base import Decision
from esceme.learning.reinforcement import PathReward, Transition
from esceme.learning.rollouts import dagger_rollout, forward_demonstrations, sample_rollout
from esceme.learning.teachers import IGNORE_INDEX, ORACLES, shortest_path_teacher
from esceme.learning.trainer import EpisodeStream, Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank, NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep
from esceme.tasks.episode import Episode
from esceme.trajectory import SingleBatch, Trajectory, sampling
from fixtures.toy_atlas import (
    TOY_EPISODES,
    VOCABULARY,
    WIDTH,
    build_toy_atlas,
    encode,
    gradient,
    plain_navigator,
    run_batch,
)

ATLAS = build_toy_atlas()
BATCH, LIMIT, SEED = 3, 6, 7


def tdstp_navigator(*, uses_memory: bool = False, **settings: Any) -> Navigator:
    """A small TD-STP without dropout; it can backtrack and predicts its goal."""
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
    return Navigator(agent, reader if uses_memory else NoMemory(), feature_dropout=0.0)


def make_trainer(navigator: Navigator | None = None, **settings: Any) -> Trainer:
    config = {"batch": BATCH, "max_grad_norm": 1e9, "iterations": 10, "learning_rate": 1e-3} | settings
    return Trainer(
        navigator or tdstp_navigator(),
        ATLAS,
        [TOY_EPISODES],
        TrainingConfig(**config),
        encode=encode,
        max_steps=LIMIT,
        seed=SEED,
    )


def step_gradient(navigator: Navigator | None = None, **settings: Any) -> Tensor:
    """Return the gradient of the first iteration."""
    trainer = make_trainer(navigator, **settings)
    trainer.training_step(0)
    return gradient(trainer.navigator)


def expected_gradient(
    navigator: Navigator, steps: Sequence[RolloutStep], loss: Callable[[RolloutStep], Tensor]
) -> Tensor:
    """Return the gradient of a loss summed over steps."""
    navigator.zero_grad(set_to_none=True)
    torch.stack([loss(step) for step in steps]).sum().backward()
    return gradient(navigator)


def batches() -> tuple[list[Episode], list[Episode]]:
    stream = EpisodeStream(TOY_EPISODES, seed=SEED)
    return stream.batch(0, BATCH), stream.batch(1, BATCH)


def teacher_steps(navigator: Navigator) -> list[RolloutStep]:
    return list(run_batch(navigator.train(), ATLAS, batches()[0], None, max_steps=LIMIT))


def sampled_steps(navigator: Navigator) -> list[RolloutStep]:
    """Roll out the second batch one by one; samples depend only on the episode and the step."""
    return [
        step
        for episode in batches()[1]
        for step in run_batch(
            navigator.train(), ATLAS, [episode], None, choose=sampling([SEED, 0]), max_steps=LIMIT
        )
    ]


def goal_loss(step: RolloutStep) -> Tensor:
    """Negative log-likelihood of the grid point nearest to the goal, on a 5 x 5 grid around the start."""
    total = torch.zeros(())
    points = torch.tensor([(x, y) for x in range(-12, 13, 6) for y in range(-12, 13, 6)])
    assert step.decision.goal_logits is not None
    for trajectory, logits in zip(step.trajectories, step.decision.goal_logits, strict=True):
        start, goal = (
            torch.from_numpy(ATLAS.positions[ATLAS.locate(trajectory.episode.scene_id, [name])[0]][:2])
            for name in (trajectory.episode.start, trajectory.episode.goal)
        )
        total = total - logits.log_softmax(0)[(points - (goal - start)).norm(dim=1).argmin()]
    return total


def action_loss(step: RolloutStep) -> Tensor:
    return functional.cross_entropy(step.decision.logits, step.actions, reduction="sum")


def assert_near(found: Tensor, expected: Tensor) -> None:
    assert expected.norm() > 1e-3
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-3)


# -- auxiliary loss ---------------------------------------------------------------------------------------


def test_auxiliary_loss_has_only_its_own_weight() -> None:
    navigator = tdstp_navigator()
    expected = expected_gradient(navigator, teacher_steps(navigator), goal_loss) / BATCH
    for weight in (0.3, 1.0):
        whole, without = (
            step_gradient(
                tdstp_navigator(target_weight=target_weight), method="imitation", imitation_weight=0.5
            )
            for target_weight in (weight, 0.0)
        )
        assert_near(whole - without, weight * expected)


def test_auxiliary_loss_applies_to_teacher_and_sampled_rollouts() -> None:
    navigator = tdstp_navigator()
    expected = expected_gradient(navigator, teacher_steps(navigator), goal_loss)
    expected = (expected + expected_gradient(navigator, sampled_steps(navigator), goal_loss)) / BATCH
    for imitation_weight in (0.2, 0.9):
        whole, without = (
            step_gradient(tdstp_navigator(target_weight=weight), imitation_weight=imitation_weight)
            for weight in (1.0, 0.0)
        )
        assert_near(whole - without, expected)


def test_imitation_weight_applies_to_the_cross_entropy_only() -> None:
    navigator = tdstp_navigator()
    expected = expected_gradient(navigator, teacher_steps(navigator), action_loss) / BATCH
    more, less = (step_gradient(imitation_weight=weight) for weight in (1.2, 0.2))
    assert_near(more - less, expected)


def test_metrics_report_every_loss() -> None:
    navigator = tdstp_navigator(target_weight=0.3)
    with torch.no_grad():
        teacher, sampled = teacher_steps(navigator), sampled_steps(navigator)
        auxiliary = [0.3 * float(sum(map(goal_loss, steps))) / BATCH for steps in (teacher, sampled)]
        oracle = float(sum(map(oracle_loss("path"), sampled))) / BATCH
        imitation = float(sum(map(action_loss, teacher))) / BATCH
    metrics = make_trainer(navigator, oracle_weight=0.4).training_step(0)
    assert metrics["auxiliary"] == pytest.approx(sum(auxiliary), rel=1e-4)
    assert metrics["oracle"] == pytest.approx(oracle, rel=1e-4)
    assert metrics["imitation"] == pytest.approx(imitation, rel=1e-4)
    metrics = make_trainer(tdstp_navigator(target_weight=0.3), method="imitation").training_step(0)
    assert metrics["auxiliary"] == pytest.approx(auxiliary[0], rel=1e-4) and "oracle" not in metrics


def test_metrics_omit_losses_that_do_not_apply() -> None:
    for navigator in (plain_navigator(), tdstp_navigator(grid=0)):
        metrics = make_trainer(navigator).training_step(0)
        assert not {"auxiliary", "oracle"} & metrics.keys()


# -- oracle loss ------------------------------------------------------------------------------------------


def oracle_loss(name: str) -> Callable[[RolloutStep], Tensor]:
    oracle = ORACLES[name](ATLAS)

    def loss(step: RolloutStep) -> Tensor:
        actions = oracle(step.decision, step.observation, step.trajectories).tolist()
        log_probability = step.decision.logits.log_softmax(1)
        losses = [-log_probability[row, a] for row, a in enumerate(actions) if a != IGNORE_INDEX]
        return torch.stack([torch.zeros(()), *losses]).sum()

    return loss


@pytest.mark.parametrize("name", ORACLES)
def test_oracle_loss_is_weighted_and_divided_by_the_batch(name: str) -> None:
    navigator = tdstp_navigator()
    expected = expected_gradient(navigator, sampled_steps(navigator), oracle_loss(name)) / BATCH
    for weight in (0.4, 2.0):
        with_oracle, without = (step_gradient(oracle=name, oracle_weight=w) for w in (weight, 0.0))
        assert_near(with_oracle - without, weight * expected)


def test_oracle_prefers_backtracking_where_it_helps() -> None:
    navigator, oracle, num_backtracks = tdstp_navigator(), ORACLES["path"](ATLAS), 0
    for step in sampled_steps(navigator):
        assert step.decision.routes is not None
        actions = oracle(step.decision, step.observation, step.trajectories)
        num_backtracks += int((actions >= step.decision.routes.first_action).sum())
    assert num_backtracks > 0
    assert any((step.actions >= step.decision.routes.first_action).any() for step in sampled_steps(navigator))  # type: ignore[union-attr]


def test_oracle_without_backtracking_ignores_steps_off_the_path() -> None:
    """Off the path no choice may lead back to it; such a step contributes no loss."""
    trainer = make_trainer(plain_navigator(), oracle_weight=0.4)
    assert all(trainer.training_step(iteration)["oracle"] > 0 for iteration in range(4))


def test_imitation_has_no_oracle_loss() -> None:
    without, with_oracle = (step_gradient(method="imitation", oracle_weight=w) for w in (0.0, 3.0))
    assert torch.equal(without, with_oracle)


# -- backtracking -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_steps", [2, 3, 5])
def test_bootstrap_after_a_backtrack_is_the_value_of_the_next_step(max_steps: int) -> None:
    """A truncated trajectory that ends with a backtrack uses the state after the last decision."""
    navigator, num_backtracks = tdstp_navigator().eval(), 0
    sample = sampling(2)

    def choose(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        nonlocal num_backtracks
        actions = sample(decision, observation, trajectories)
        assert decision.routes is not None
        for row, trajectory in enumerate(trajectories):
            back = (decision.routes.viewpoints[row] >= 0).nonzero().flatten().tolist()
            if trajectory.num_decisions < max_steps - 1:
                actions[row] = row % int(observation.num_candidates[row])  # continue
            elif trajectory.num_decisions == max_steps - 1 and back:
                actions[row] = decision.routes.first_action + back[0]
                num_backtracks += 1
        return actions

    def rollout(limit: int) -> tuple[list[Transition], Tensor]:
        source = SingleBatch(ATLAS, TOY_EPISODES)
        reward = PathReward(ATLAS, source.trajectories)
        return sample_rollout(navigator, ATLAS, source, None, reward, choose, encode=encode, max_steps=limit)

    steps, bootstrap = rollout(max_steps)
    assert len(steps) == max_steps and num_backtracks >= len(TOY_EPISODES) - 1
    longer, _ = rollout(max_steps + 1)
    after = dict(zip(longer[-1].rows.tolist(), longer[-1].value.tolist(), strict=True))
    assert bootstrap.tolist() == pytest.approx(
        [after.get(row, 0.0) for row in range(len(TOY_EPISODES))], abs=1e-5
    )


def test_stepwise_forward_repeats_a_dagger_rollout_with_backtracks() -> None:
    navigator, recorded, num_backtracks = tdstp_navigator(), list[Tensor](), 0
    sample = sampling(1)

    def choose(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        nonlocal num_backtracks
        recorded.append(decision.logits)
        actions = sample(decision, observation, trajectories)
        assert decision.routes is not None
        num_backtracks += int((actions >= decision.routes.first_action).sum())
        return actions

    demonstrations = dagger_rollout(
        navigator,
        ATLAS,
        TOY_EPISODES,
        None,
        shortest_path_teacher(ATLAS),
        choose,
        encode=encode,
        max_steps=LIMIT,
    )
    again = forward_demonstrations(navigator.eval(), ATLAS, demonstrations, None, encode=encode)
    assert (
        num_backtracks > 3
        and again.auxiliary_loss is not None
        and again.auxiliary_loss.shape == again.logits.shape[:1]
    )
    for row, logits in enumerate(logits for step in recorded for logits in step):
        torch.testing.assert_close(again.logits[row, : len(logits)], logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("method", ["imitation", "imitation+a2c", "dagger"])
def test_every_module_gets_gradients_by_every_method(method: str) -> None:
    trainer = make_trainer(tdstp_navigator(uses_memory=True), method=method, oracle_weight=0.4)
    assert all(trainer.training_step(iteration)["auxiliary"] > 0 for iteration in range(2))
    trained = {
        name
        for name, parameter in trainer.navigator.named_parameters()
        if parameter.grad is not None and parameter.grad.any()
    }
    for part in (
        *("position_encoder.", "goal_head.", "history_mapper."),
        *("history.picture.", "sight.picture.", "action."),
    ):
        assert any(name.startswith(f"agent.{part}") for name in trained), part
    assert any(name.startswith("reader.") for name in trained)
    assert any(name.startswith("agent.critic.") for name in trained) == (method == "imitation+a2c")


def test_backtracks_do_not_change_what_is_remembered() -> None:
    trainer = make_trainer(tdstp_navigator(uses_memory=True), oracle_weight=0.4)
    for iteration in range(3):
        trainer.training_step(iteration)
    assert trainer.memory is not None
    viewpoints = trainer.memory.bank.visited.nonzero().flatten()
    expected = MemoryBank.from_atlas(ATLAS)
    expected.remember_at(viewpoints.tolist())
    assert len(viewpoints) > 5
    assert torch.equal(trainer.memory.recall_at(viewpoints), expected.recall_at(viewpoints))
