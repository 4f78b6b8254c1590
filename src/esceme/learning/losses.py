"""What is made small: imitation of a teacher, and the return of an agent's own walks (spec E.5, E.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Transition(NamedTuple):
    """One step of a sampled rollout, of those who were still walking."""

    rows: Tensor
    """(n,) int64: which walks of the batch took it."""
    logits: Tensor
    """(n, C)"""
    value: Tensor
    """(n,)"""
    chosen: Tensor
    """(n,) int64"""
    reward: Tensor
    """(n,)"""
    aside: Tensor | None = None
    """(n,): a loss of the agent's own, where it has one."""
    wanted: Tensor | None = None
    """(n,) int64: what should have been done, where somebody says so."""


@dataclass(frozen=True)
class ActorCritic:
    """Sums over steps of a batch; divide by `steps`, counted over all processes, or by the batch."""

    policy: Tensor
    critic: Tensor
    entropy: Tensor
    steps: int

    def total(self, entropy_weight: float) -> Tensor:
        """What is to be made small."""
        return self.policy + self.critic - entropy_weight * self.entropy


def imitation(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of what a teacher would do, summed over steps: (R, C), (R,) -> scalar."""
    return functional.cross_entropy(logits, labels, reduction="sum")


def actor_critic(steps: Sequence[Transition], beyond: Tensor, *, discount: float) -> ActorCritic:
    """A2C's terms, summed over the steps of a batch (spec E.5).

    `beyond` (B,) is the value of where walks were cut off, zero for those that stopped by themselves. Values
    are not detached: the critic's loss trains the network, too.
    """
    returns = returns_of(steps, beyond, discount=discount)
    terms = [step_terms(step, here) for step, here in zip(steps, returns, strict=True)]
    policy, critic, entropy = (
        torch.stack([getattr(each, name) for each in terms]).sum() for name in ("policy", "critic", "entropy")
    )
    return ActorCritic(policy, critic, entropy, sum(each.steps for each in terms))


def returns_of(steps: Sequence[Transition], beyond: Tensor, *, discount: float) -> list[Tensor]:
    """What the walks of each step get from it on, (n,) each: R = r + discount R' (spec E.5)."""
    left, found = beyond.detach().clone(), list[Tensor]()
    for step in reversed(steps):
        found.append(discount * left[step.rows] + step.reward)
        left = left.index_put((step.rows,), found[-1])
    return found[::-1]


def step_terms(step: Transition, returns: Tensor) -> ActorCritic:
    """The terms of one step whose walks get `returns` (n,) from it on."""
    taken = step.logits.log_softmax(1).gather(1, step.chosen[:, None]).squeeze(1)
    gain = returns - step.value
    policy, critic = -(taken * gain.detach()).sum(), 0.5 * gain.square().sum()
    return ActorCritic(policy, critic, uncertainty(step.logits).sum(), len(step.rows))


def uncertainty(logits: Tensor) -> Tensor:
    """The entropy of choosing by scores, (n, C) -> (n,); -inf where there is no choice."""
    chances = logits.log_softmax(1)
    return -(chances.exp() * chances.masked_fill(~chances.isfinite(), 0.0)).sum(1)
