"""A2C and imitation losses and their combination, compared with computations by hand (PITFALLS 10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from esceme.learning.reinforcement import (
    PathReward,
    Transition,
    actor_critic_loss,
    discounted_returns,
    policy_entropy,
)
from esceme.learning.trainer import EpisodeStream, Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.trajectory import SingleBatch, sampling
from fixtures.toy_atlas import TOY_EPISODES, build_toy_atlas, encode, gradient, plain_navigator, run_batch

ATLAS = build_toy_atlas()
HALF, QUARTER = math.log(0.5), math.log(0.25)


def transition(
    rows: list[int],
    probabilities: list[list[float]],
    values: list[float],
    actions: list[int],
    rewards: list[float],
) -> Transition:
    logits = torch.tensor(probabilities).log().requires_grad_()
    value = torch.tensor(values, requires_grad=True)
    return Transition(torch.tensor(rows), logits, value, torch.tensor(actions), torch.tensor(rewards))


# Trajectory 0 is truncated after three steps with a bootstrap value of 4; trajectory 1 stops at its second
# step, trajectory 2 at its first.
STEPS = [
    transition(
        [0, 1, 2],
        [[0.5, 0.25, 0.25], [0.5, 0.5, 0], [1, 0, 0]],
        [1.0, 0.0, -1.0],
        [1, 0, 0],
        [1.0, -1.0, -2.0],
    ),
    transition([0, 1], [[0.25, 0.75], [0.5, 0.5]], [2.0, 1.0], [0, 1], [-1.0, 3.0]),
    transition([0], [[0.5, 0.5]], [0.5], [0], [1.0]),
]
BOOTSTRAP = torch.tensor([4.0, 0.0, 0.0])
# Discount 0.5: trajectory 0 has 1 + 4 / 2 = 3, -1 + 3 / 2 = 0.5, 1 + 0.5 / 2 = 1.25 from its end;
# trajectory 1 has 3, -1 + 3 / 2 = 0.5; trajectory 2 has -2.
RETURNS = [[1.25, 0.5, -2.0], [0.5, 3.0], [3.0]]
ADVANTAGES = [[0.25, 0.5, -1.0], [-1.5, 2.0], [2.5]]
# Probabilities of the actions: 1/4, 1/2, 1; 1/4, 1/2; 1/2.
POLICY = -(0.25 * QUARTER + 0.5 * HALF - 1.0 * 0 - 1.5 * QUARTER + 2.0 * HALF + 2.5 * HALF)
CRITIC = 0.5 * sum(advantage**2 for step in ADVANTAGES for advantage in step)
ENTROPY = (
    -(0.5 * HALF + 2 * 0.25 * QUARTER) - HALF - 0 - (0.25 * QUARTER + 0.75 * math.log(0.75)) - HALF - HALF
)


# -- A2C ---------------------------------------------------------------------------------------------------


def test_a2c_terms_equal_those_computed_by_hand() -> None:
    returns = discounted_returns(STEPS, BOOTSTRAP, discount=0.5)
    assert [values.tolist() for values in returns] == RETURNS
    terms = actor_critic_loss(STEPS, BOOTSTRAP, discount=0.5)
    assert float(terms.policy.detach()) == pytest.approx(POLICY)
    assert float(terms.critic.detach()) == pytest.approx(CRITIC)
    assert float(terms.entropy.detach()) == pytest.approx(ENTROPY)
    assert terms.num_steps == 6
    assert float(terms.total(0.01).detach()) == pytest.approx(POLICY + CRITIC - 0.01 * ENTROPY)


def test_order_of_rows_does_not_matter() -> None:
    flipped = [Transition(*(tensor.flip(0) for tensor in step if tensor is not None)) for step in STEPS]
    one, other = (actor_critic_loss(steps, BOOTSTRAP, discount=0.5) for steps in (STEPS, flipped))
    for name in ("policy", "critic", "entropy"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


def test_only_the_critic_loss_has_a_gradient_with_respect_to_values() -> None:
    """The advantage is detached in the policy loss; returns and bootstrap values are always detached."""
    terms = actor_critic_loss(STEPS, BOOTSTRAP, discount=0.5)
    assert torch.autograd.grad(terms.policy, STEPS[0].value, allow_unused=True, retain_graph=True) == (None,)
    (gradient,) = torch.autograd.grad(terms.critic, STEPS[0].value, retain_graph=True)
    assert gradient.tolist() == [-advantage for advantage in ADVANTAGES[0]]
    bootstrap = BOOTSTRAP.clone().requires_grad_()
    total = actor_critic_loss(STEPS, bootstrap, discount=0.5).total(0.01)
    assert torch.autograd.grad(total, bootstrap, allow_unused=True) == (None,)


def test_masked_choices_have_no_entropy_and_finite_gradients() -> None:
    logits = torch.tensor([[2.0, 2.0, -torch.inf], [5.0, -torch.inf, -torch.inf]], requires_grad=True)
    entropy = policy_entropy(logits)
    assert entropy.tolist() == pytest.approx([-HALF, 0.0])
    step = Transition(torch.arange(2), logits, torch.zeros(2), torch.tensor([1, 0]), torch.ones(2))
    total = actor_critic_loss([step], torch.zeros(2), discount=0.9).total(0.01)
    for loss in (entropy.sum(), total):
        (gradient,) = torch.autograd.grad(loss, logits)
        assert gradient.isfinite().all()


# -- one iteration -----------------------------------------------------------------------------------------

BATCH, LIMIT, SEED = 3, 5, 7
SETTINGS: dict[str, Any] = {
    "dropout": 0.0,
    "head_dropout": 0.0,
    "critic_dropout": 0.0,
    "feature_dropout": 0.0,
    "initial_bias_std": 0.5,  # otherwise the gradients of STOP, whose features are zeros, are huge
}


def make_trainer(encoded: list[str] | None = None, **settings: Any) -> Trainer:
    """Return a trainer without dropout; it appends the ids of episodes to `encoded`."""

    def record(episode: Episode) -> Sequence[int]:
        if encoded is not None:
            encoded.append(episode.episode_id)
        return encode(episode)

    training = TrainingConfig(**{"batch": BATCH, "max_grad_norm": 1e9, "iterations": 10} | settings)
    navigator = plain_navigator(**SETTINGS)
    return Trainer(navigator, ATLAS, [TOY_EPISODES], training, encode=record, max_steps=LIMIT, seed=SEED)


def step_gradient(**settings: Any) -> Tensor:
    """Return the gradient of the first iteration."""
    trainer = make_trainer(**settings)
    trainer.training_step(0)
    return gradient(trainer.navigator)


def batches() -> tuple[list[Episode], list[Episode]]:
    stream = EpisodeStream(TOY_EPISODES, seed=SEED)
    return stream.batch(0, BATCH), stream.batch(1, BATCH)


def imitation_loss_by_hand(navigator: Navigator) -> Tensor:
    """Sum the cross-entropy over all steps of the first batch."""
    total = torch.zeros(())
    for step in run_batch(navigator, ATLAS, batches()[0], None, max_steps=LIMIT):
        for logits, action in zip(step.decision.logits, step.actions, strict=True):
            total = total - logits.softmax(0)[action].log()
    return total


def a2c_loss_by_hand(navigator: Navigator) -> tuple[Tensor, int]:
    """Sum the A2C loss over all steps of the second batch; return it and the number of steps."""
    total, num_steps = torch.zeros(()), 0
    for episode in batches()[1]:  # samples depend only on the episode and the step
        steps = list(
            run_batch(navigator, ATLAS, [episode], None, choose=sampling([SEED, 0]), max_steps=LIMIT + 1)
        )
        returns = 0.0
        if len(steps) > LIMIT:
            value = steps.pop().decision.value
            assert value is not None
            returns = float(value.detach())
        (trajectory,) = steps[0].trajectories
        (replayed,) = (source := SingleBatch(ATLAS, [episode])).trajectories
        reward, rewards = PathReward(ATLAS, source.trajectories), []
        for index, step in enumerate(steps):
            replayed.stopped = int(step.actions) == int(step.observation.num_candidates)
            replayed.poses = trajectory.poses[: index + 2]
            rewards.append(float(reward.step([replayed])[0]))
        for step, step_reward in zip(reversed(steps), reversed(rewards), strict=True):
            returns = 0.9 * returns + step_reward
            assert step.decision.value is not None
            value, probabilities = step.decision.value[0], step.decision.logits[0].softmax(0)
            advantage = returns - value
            entropy = -sum(probability * probability.log() for probability in probabilities)
            log_probability = probabilities[int(step.actions)].log()
            total = total - log_probability * advantage.detach() + 0.5 * advantage**2 - 0.01 * entropy
            num_steps += 1
    return total, num_steps


@pytest.mark.parametrize("normalise", ["steps", "batch"])
@pytest.mark.parametrize("scale_by_batch", [False, True])
def test_pitfall_10_gradient_of_an_iteration_equals_one_by_hand(normalise: str, scale_by_batch: bool) -> None:
    """Imitation: 0.2 times the sum over steps, divided by the batch; A2C: divided by the number of steps.

    The released CVDN code multiplies A2C by the batch by accident (spec E.6).
    """
    navigator = plain_navigator(**SETTINGS).train()
    a2c, num_steps = a2c_loss_by_hand(navigator)
    assert BATCH < num_steps < BATCH * LIMIT  # some stop, some are truncated
    a2c = a2c / (num_steps if normalise == "steps" else BATCH) * (BATCH if scale_by_batch else 1)
    (0.2 * imitation_loss_by_hand(navigator) / BATCH + a2c).backward()
    found = step_gradient(normalise=normalise, scale_by_batch=scale_by_batch)
    torch.testing.assert_close(found, gradient(navigator), atol=1e-4, rtol=1e-3)


def test_pitfall_10_metrics_equal_losses_by_hand() -> None:
    navigator = plain_navigator(**SETTINGS).train()
    metrics = make_trainer().training_step(0)
    imitation = float(imitation_loss_by_hand(navigator).detach())
    assert metrics["imitation"] == pytest.approx(imitation / BATCH, rel=1e-5)
    a2c, num_steps = a2c_loss_by_hand(navigator)
    total = metrics["policy"] + metrics["critic"] - 0.01 * metrics["entropy"]
    assert total == pytest.approx(float(a2c.detach()) / num_steps, rel=1e-4)


def test_pitfall_10_imitation_and_a2c_use_different_batches() -> None:
    encoded: list[str] = []
    trainer = make_trainer(encoded)
    trainer.training_step(0)
    expected = [{episode.episode_id for episode in batch} for batch in batches()]
    assert [set(encoded[:BATCH]), set(encoded[BATCH:])] == expected
    assert len(encoded) == len(set(encoded)) == 2 * BATCH
    trainer.training_step(1)  # the next epoch
    assert sorted(encoded[2 * BATCH :]) == sorted(episode.episode_id for episode in TOY_EPISODES)


def test_imitation_alone_has_weight_one_and_one_batch_per_iteration() -> None:
    encoded: list[str] = []
    trainer = make_trainer(encoded, method="imitation")
    trainer.training_step(0)
    navigator = plain_navigator(**SETTINGS).train()
    (imitation_loss_by_hand(navigator) / BATCH).backward()
    torch.testing.assert_close(gradient(trainer.navigator), gradient(navigator), atol=1e-4, rtol=1e-3)
    trainer.training_step(1)
    assert sorted(encoded) == sorted(episode.episode_id for episode in TOY_EPISODES)


def test_imitation_with_weight_zero_is_not_computed() -> None:
    encoded: list[str] = []
    metrics = make_trainer(encoded, imitation_weight=0.0).training_step(0)
    assert set(encoded) == {episode.episode_id for episode in batches()[1]} and "imitation" not in metrics


@pytest.mark.parametrize("max_norm", [0.05, 1.0])
def test_pitfall_10_gradient_of_the_network_is_clipped_and_that_of_the_critic_is_not(max_norm: float) -> None:
    free, clipped, unclipped = (
        make_trainer(),
        make_trainer(max_grad_norm=max_norm),
        make_trainer(max_grad_norm=1e6),
    )
    norms = [trainer.training_step(0)["gradient_norm"] for trainer in (free, clipped, unclipped)]
    network, clipped_network = (gradient(t.navigator, exclude="agent.critic.") for t in (free, clipped))
    critic, clipped_critic = (gradient(t.navigator, "agent.critic.") for t in (free, clipped))
    assert critic.norm() > max_norm and network.norm() > max_norm
    assert norms == [pytest.approx(float(network.norm()), rel=1e-4)] * 3  # before clipping
    torch.testing.assert_close(clipped_network, network * max_norm / network.norm(), atol=1e-6, rtol=1e-4)
    assert torch.equal(clipped_critic, critic)
    assert torch.equal(gradient(unclipped.navigator), gradient(free.navigator))


def test_critic_loss_trains_the_network() -> None:
    """Values are not detached, so every layer before the critic has gradients."""
    trainer = make_trainer(imitation_weight=0.0, entropy_weight=0.0)
    navigator = trainer.navigator.train()
    (step,) = run_batch(navigator, ATLAS, batches()[1], None, choose=sampling(0), max_steps=1)
    logits, value = step.decision.logits.detach(), step.decision.value
    assert value is not None
    transitions = [Transition(torch.arange(BATCH), logits, value, step.actions, torch.ones(BATCH))]
    loss, _ = trainer.a2c_loss(transitions, torch.zeros(BATCH))
    loss.backward()
    trained = {name for name, parameter in navigator.named_parameters() if parameter.grad is not None}
    assert {"agent.sight.picture.linear.weight", "agent.cross_layers.0.across.query.weight"} <= trained
    assert not any(name.startswith("agent.action.") for name in trained)


# -- order of episodes -------------------------------------------------------------------------------------


def test_batches_do_not_depend_on_the_order_of_requests() -> None:
    forwards = EpisodeStream("abcde", seed=3)
    expected = [forwards.batch(index, 3) for index in range(12)]
    assert sorted(sum(expected[:5], [])) == sorted("abcde" * 3)
    backwards = EpisodeStream("abcde", seed=3)
    assert [backwards.batch(index, 3) for index in reversed(range(12))] == expected[::-1]
    assert EpisodeStream("abcde", seed=3).batch(7, 3) == expected[7]
    assert [EpisodeStream("abcde", seed=3, key=1).batch(index, 3) for index in range(12)] != expected


def test_batch_may_be_larger_than_the_dataset() -> None:
    assert sorted(EpisodeStream("ab", seed=0).batch(1, 4)) == ["a", "a", "b", "b"]
