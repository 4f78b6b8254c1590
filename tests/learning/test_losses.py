"""What is made small: A2C by hand, imitation, and how the two are scaled and joined (PITFALLS 10)."""

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
    transition_loss,
)
from esceme.learning.trainer import EpisodeStream, Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.trajectory import SingleBatch, sampling
from fixtures.toy_atlas import WALKS, blind_navigator, cottage, encode, led

ATLAS = cottage()
HALF, QUARTER = math.log(0.5), math.log(0.25)


def lived(
    rows: list[int], chances: list[list[float]], values: list[float], chosen: list[int], rewards: list[float]
) -> Transition:
    logits = torch.tensor(chances).log().requires_grad_()
    value = torch.tensor(values, requires_grad=True)
    return Transition(torch.tensor(rows), logits, value, torch.tensor(chosen), torch.tensor(rewards))


# Walk 0 takes three steps and is cut off, where 4 is to be expected; walk 1 stops with its second step, and
# walk 2 at once.
STEPS = [
    lived(
        [0, 1, 2],
        [[0.5, 0.25, 0.25], [0.5, 0.5, 0], [1, 0, 0]],
        [1.0, 0.0, -1.0],
        [1, 0, 0],
        [1.0, -1.0, -2.0],
    ),
    lived([0, 1], [[0.25, 0.75], [0.5, 0.5]], [2.0, 1.0], [0, 1], [-1.0, 3.0]),
    lived([0], [[0.5, 0.5]], [0.5], [0], [1.0]),
]
BEYOND = torch.tensor([4.0, 0.0, 0.0])
# Discounted by a half: walk 0 gets 1 + 4 / 2 = 3, then -1 + 3 / 2 = 0.5, then 1 + 0.5 / 2 = 1.25;
# walk 1 gets 3, then -1 + 3 / 2 = 0.5; walk 2 gets -2.
RETURNS = [[1.25, 0.5, -2.0], [0.5, 3.0], [3.0]]
GAINS = [[0.25, 0.5, -1.0], [-1.5, 2.0], [2.5]]
# In order: taken with chances 1/4, 1/2, 1; 1/4, 1/2; 1/2.
POLICY = -(0.25 * QUARTER + 0.5 * HALF - 1.0 * 0 - 1.5 * QUARTER + 2.0 * HALF + 2.5 * HALF)
CRITIC = 0.5 * sum(gain**2 for step in GAINS for gain in step)
ENTROPY = (
    -(0.5 * HALF + 2 * 0.25 * QUARTER) - HALF - 0 - (0.25 * QUARTER + 0.75 * math.log(0.75)) - HALF - HALF
)


# -- A2C ---------------------------------------------------------------------------------------------------


def test_returns_go_back_from_the_end_or_from_what_lies_beyond() -> None:
    found = [each.tolist() for each in discounted_returns(STEPS, BEYOND, discount=0.5)]
    assert found == RETURNS


def test_the_terms_by_hand() -> None:
    terms = actor_critic_loss(STEPS, BEYOND, discount=0.5)
    assert float(terms.policy.detach()) == pytest.approx(POLICY)
    assert float(terms.critic.detach()) == pytest.approx(CRITIC)
    assert float(terms.entropy.detach()) == pytest.approx(ENTROPY)
    assert terms.num_steps == 6
    assert float(terms.total(0.01).detach()) == pytest.approx(POLICY + CRITIC - 0.01 * ENTROPY)


def test_the_terms_are_those_of_the_steps() -> None:
    whole = actor_critic_loss(STEPS, BEYOND, discount=0.5)
    parts = [transition_loss(step, torch.tensor(here)) for step, here in zip(STEPS, RETURNS, strict=True)]
    for name in ("policy", "critic", "entropy", "num_steps"):
        found, expected = sum(getattr(each, name) for each in parts), getattr(whole, name)
        assert float(torch.as_tensor(found).detach()) == pytest.approx(
            float(torch.as_tensor(expected).detach())
        )


def test_rows_may_come_in_any_order() -> None:
    turned = [Transition(*(each.flip(0) for each in step if each is not None)) for step in STEPS]
    one, other = (actor_critic_loss(steps, BEYOND, discount=0.5) for steps in (STEPS, turned))
    for name in ("policy", "critic", "entropy"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name))


def test_the_critic_learns_by_its_own_loss_alone() -> None:
    """The gain that the policy is weighted by is a number; the expected return, in the critic's, is not."""
    terms = actor_critic_loss(STEPS, BEYOND, discount=0.5)
    assert torch.autograd.grad(terms.policy, STEPS[0].value, allow_unused=True, retain_graph=True) == (None,)
    (learned,) = torch.autograd.grad(terms.critic, STEPS[0].value, retain_graph=True)
    assert learned.tolist() == [-gain for gain in GAINS[0]]
    # What lies beyond, and later values, are no business of an earlier step.
    beyond = torch.tensor([4.0, 0.0, 0.0], requires_grad=True)
    total = actor_critic_loss(STEPS, beyond, discount=0.5).total(0.01)
    assert torch.autograd.grad(total, beyond, allow_unused=True) == (None,)


def test_choices_that_do_not_exist_give_neither_entropy_nor_nan() -> None:
    logits = torch.tensor([[2.0, 2.0, -torch.inf], [5.0, -torch.inf, -torch.inf]], requires_grad=True)
    found = policy_entropy(logits)
    assert found.tolist() == pytest.approx([-HALF, 0.0])
    found.sum().backward()
    assert logits.grad is not None and logits.grad.isfinite().all()
    step = Transition(torch.arange(2), logits, torch.zeros(2), torch.tensor([1, 0]), torch.ones(2))
    logits.grad = None
    actor_critic_loss([step], torch.zeros(2), discount=0.9).total(0.01).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


# -- an iteration by hand ----------------------------------------------------------------------------------

BATCH, LIMIT, SEED = 3, 5, 7
SETTINGS: dict[str, Any] = {
    "dropout": 0.0,
    "head_dropout": 0.0,
    "critic_dropout": 0.0,
    "feature_dropout": 0.0,
    "initial_bias_std": 0.5,  # without, gradients of STOP, which shows nothing, are as large as a million
}


def trainer_of(heard: list[str] | None = None, **settings: Any) -> Trainer:
    """Who learns without dropping anything, and notes whose instructions are read."""

    def read(episode: Episode) -> Sequence[int]:
        if heard is not None:
            heard.append(episode.episode_id)
        return encode(episode)

    training = TrainingConfig(**{"batch": BATCH, "max_grad_norm": 1e9, "iterations": 10} | settings)
    navigator = blind_navigator(**SETTINGS)
    return Trainer(navigator, ATLAS, [WALKS], training, encode=read, max_steps=LIMIT, seed=SEED)


def gradient(navigator: Navigator) -> Tensor:
    """All gradients in a row, zeros where there is none."""
    return torch.cat(
        [
            (torch.zeros_like(each) if each.grad is None else each.grad).flatten()
            for each in navigator.parameters()
        ]
    )


def learned(**settings: Any) -> Tensor:
    """The gradient of a first iteration."""
    trainer = trainer_of(**settings)
    trainer.training_step(0)
    return gradient(trainer.navigator)


def batches() -> tuple[list[Episode], list[Episode]]:
    stream = EpisodeStream(WALKS, seed=SEED)
    return stream.batch(0, BATCH), stream.batch(1, BATCH)


def imitated_by_hand(navigator: Navigator) -> Tensor:
    """The cross-entropy of all steps of the first batch, one by one."""
    total = torch.zeros(())
    for step in led(navigator, ATLAS, batches()[0], None, max_steps=LIMIT):
        for logits, choice in zip(step.decision.logits, step.actions, strict=True):
            total = total - logits.softmax(0)[choice].log()
    return total


def rewarded_by_hand(navigator: Navigator) -> tuple[Tensor, int]:
    """A2C's terms of the second batch, walk by walk and step by step, and how many steps there were."""
    total, count = torch.zeros(()), 0
    for episode in batches()[1]:  # what is drawn depends on the episode and the step alone
        steps = list(led(navigator, ATLAS, [episode], None, choose=sampling([SEED, 0]), max_steps=LIMIT + 1))
        left = 0.0
        if len(steps) > LIMIT:
            value = steps.pop().decision.value
            assert value is not None
            left = float(value.detach())
        (walk,) = steps[0].trajectories
        # Rewards, told as the walk comes by.
        (again,) = (source := SingleBatch(ATLAS, [episode])).trajectories
        reward, rewards = PathReward(ATLAS, source.trajectories), []
        for number, step in enumerate(steps):
            again.stopped = int(step.actions) == int(step.observation.num_candidates)
            again.poses = walk.poses[: number + 2]
            rewards.append(float(reward.step([again])[0]))
        for step, worth in zip(reversed(steps), reversed(rewards), strict=True):
            left = 0.9 * left + worth
            assert step.decision.value is not None
            value, chances = step.decision.value[0], step.decision.logits[0].softmax(0)
            gain = left - value
            doubt = -sum(chance * chance.log() for chance in chances)
            total = total - chances[int(step.actions)].log() * gain.detach() + 0.5 * gain**2 - 0.01 * doubt
            count += 1
    return total, count


@pytest.mark.parametrize("normalise", ["steps", "batch"])
@pytest.mark.parametrize("scale_by_batch", [False, True])
def test_pitfall_10_an_iteration_by_hand(normalise: str, scale_by_batch: bool) -> None:
    """Imitation: 0.2 times the sum over steps by the batch; A2C: by the number of steps that count."""
    navigator = blind_navigator(**SETTINGS).train()
    rewarded, count = rewarded_by_hand(navigator)
    assert BATCH < count < BATCH * LIMIT  # some stop, some are cut off
    rewarded = rewarded / (count if normalise == "steps" else BATCH) * (BATCH if scale_by_batch else 1)
    (0.2 * imitated_by_hand(navigator) / BATCH + rewarded).backward()
    found = learned(normalise=normalise, scale_by_batch=scale_by_batch)
    torch.testing.assert_close(found, gradient(navigator), atol=1e-4, rtol=1e-3)


def test_pitfall_10_the_log_says_the_same() -> None:
    navigator = blind_navigator(**SETTINGS).train()
    said = trainer_of().training_step(0)
    assert said["imitation"] == pytest.approx(float(imitated_by_hand(navigator).detach()) / BATCH, rel=1e-5)
    rewarded, count = rewarded_by_hand(navigator)
    total = said["policy"] + said["critic"] - 0.01 * said["entropy"]
    assert total == pytest.approx(float(rewarded.detach()) / count, rel=1e-4)


def test_pitfall_10_imitation_and_rewards_use_different_batches() -> None:
    heard: list[str] = []
    trainer = trainer_of(heard)
    trainer.training_step(0)
    assert [set(heard[:BATCH]), set(heard[BATCH:])] == [
        {each.episode_id for each in batch} for batch in batches()
    ]
    assert len(heard) == len(set(heard)) == 2 * BATCH
    # All episodes come before any comes again.
    trainer.training_step(1)
    assert sorted(heard[2 * BATCH :]) == sorted(each.episode_id for each in WALKS)


def test_imitation_alone_has_weight_one_and_a_batch_of_its_own_each_time() -> None:
    heard: list[str] = []
    trainer = trainer_of(heard, method="imitation")
    trainer.training_step(0)
    navigator = blind_navigator(**SETTINGS).train()
    (imitated_by_hand(navigator) / BATCH).backward()
    torch.testing.assert_close(gradient(trainer.navigator), gradient(navigator), atol=1e-4, rtol=1e-3)
    trainer.training_step(1)
    assert sorted(heard) == sorted(each.episode_id for each in WALKS)


def test_without_weight_imitation_is_left_out() -> None:
    heard: list[str] = []
    trainer = trainer_of(heard, imitation_weight=0.0)
    said = trainer.training_step(0)
    assert set(heard) == {each.episode_id for each in batches()[1]} and "imitation" not in said


@pytest.mark.parametrize("normalise", ["steps", "batch"])
def test_pitfall_10_cvdn_multiplies_rewards_by_the_batch_and_nothing_else(normalise: str) -> None:
    """Spec E.6, as the released CVDN code does by accident."""
    both, both_scaled = (learned(normalise=normalise, scale_by_batch=scaled) for scaled in (False, True))
    alone, alone_scaled = (
        learned(normalise=normalise, scale_by_batch=scaled, imitation_weight=0.0) for scaled in (False, True)
    )
    torch.testing.assert_close(alone_scaled, BATCH * alone, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(both_scaled - alone_scaled, both - alone, atol=1e-4, rtol=1e-3)
    assert (both - alone).norm() > 0.1


def test_rewards_are_divided_by_steps_or_by_the_batch() -> None:
    by_steps, by_batch = (learned(normalise=each, imitation_weight=0.0) for each in ("steps", "batch"))
    count = rewarded_by_hand(blind_navigator(**SETTINGS))[1]
    torch.testing.assert_close(by_steps * count, by_batch * BATCH, atol=1e-4, rtol=1e-4)


def parts(trainer: Trainer) -> tuple[Tensor, Tensor]:
    """The gradient of the network and that of the critic."""
    named = [(name, each) for name, each in trainer.navigator.named_parameters() if each.grad is not None]
    critic = [each.grad.flatten() for name, each in named if name.startswith("agent.critic.")]  # type: ignore[union-attr]
    rest = [each.grad.flatten() for name, each in named if not name.startswith("agent.critic.")]  # type: ignore[union-attr]
    return torch.cat(rest), torch.cat(critic)


@pytest.mark.parametrize("max_norm", [0.05, 1.0])
def test_pitfall_10_the_network_is_clipped_once_and_the_critic_never(max_norm: float) -> None:
    free, clipped = trainer_of(), trainer_of(max_grad_norm=max_norm)
    norms = [trainer.training_step(0)["gradient_norm"] for trainer in (free, clipped)]
    (network, critic), (small, same) = parts(free), parts(clipped)
    assert critic.norm() > max_norm and network.norm() > max_norm
    assert norms == [pytest.approx(float(network.norm()), rel=1e-4)] * 2  # before the clip
    torch.testing.assert_close(small, network * max_norm / network.norm(), atol=1e-6, rtol=1e-4)
    assert torch.equal(same, critic)


def test_a_gradient_below_the_clip_is_left_alone() -> None:
    free, clipped = learned(), learned(max_grad_norm=1e6)
    assert torch.equal(free, clipped)


def test_the_critics_loss_trains_the_network() -> None:
    """Values are not detached: with nothing else to learn from, all that leads to them has gradients."""
    trainer = trainer_of(imitation_weight=0.0, entropy_weight=0.0)
    trainer.navigator.train()
    steps = [step._replace(logits=step.logits.detach()) for step in _sampled(trainer)]
    loss, _ = trainer.a2c_loss(steps, torch.zeros(BATCH))
    loss.backward()
    learning = {name for name, each in trainer.navigator.named_parameters() if each.grad is not None}
    assert {"agent.sight.picture.linear.weight", "agent.cross_layers.0.across.query.weight"} <= learning
    assert not any(name.startswith("agent.action.") for name in learning)


def _sampled(trainer: Trainer) -> list[Transition]:
    steps = led(trainer.navigator, ATLAS, batches()[1], None, choose=sampling(0), max_steps=1)
    return [
        Transition(
            torch.arange(len(step.trajectories)),
            step.decision.logits,
            step.decision.value,
            step.actions,
            torch.ones(BATCH),
        )
        for step in steps
        if step.decision.value is not None
    ]


# -- the order of episodes ---------------------------------------------------------------------------------


def test_a_stream_can_be_asked_for_any_batch_in_any_order() -> None:
    forwards = EpisodeStream("abcde", seed=3)
    expected = [forwards.batch(number, 3) for number in range(12)]
    assert sorted(sum(expected[:5], [])) == sorted("abcde" * 3)
    backwards = EpisodeStream("abcde", seed=3)
    assert [backwards.batch(number, 3) for number in reversed(range(12))] == expected[::-1]
    assert EpisodeStream("abcde", seed=3).batch(7, 3) == expected[7]
    assert [EpisodeStream("abcde", seed=3, key=1).batch(number, 3) for number in range(12)] != expected


def test_a_batch_may_be_larger_than_all_episodes() -> None:
    assert sorted(EpisodeStream("ab", seed=0).batch(1, 4)) == ["a", "a", "b", "b"]
