"""What is made small: imitation of a teacher, and the return of an agent's own walks (spec E.5, E.6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional


class Lived(NamedTuple):
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


@dataclass(frozen=True)
class ActorCritic:
    """Sums over all steps of a batch; divide by `steps`, counted over all processes, or by the batch."""

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


def actor_critic(steps: Sequence[Lived], beyond: Tensor, *, discount: float) -> ActorCritic:
    """A2C's terms, summed over the steps of a batch (spec E.5).

    `beyond` (B,) is the value of where walks were cut off, zero for those that stopped by themselves. Values
    are not detached: the critic's loss trains the network, too.
    """
    returns = beyond.detach().clone()
    terms = []
    for step in reversed(steps):
        here = discount * returns[step.rows] + step.reward
        returns = returns.index_put((step.rows,), here)
        terms.append(_terms(step, here))
    policy, critic, entropy = (torch.stack(each).sum() for each in zip(*terms, strict=True))
    return ActorCritic(policy, critic, entropy, sum(len(step.rows) for step in steps))


def _terms(step: Lived, returns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Policy, critic and entropy of one step, summed over walks."""
    chances = step.logits.log_softmax(1)  # (n, C), -inf where there is no choice
    taken = chances.gather(1, step.chosen[:, None]).squeeze(1)
    gain = returns - step.value
    possible = chances.isfinite()
    entropy = -(chances.exp() * chances.masked_fill(~possible, 0.0)).sum()
    return -(taken * gain.detach()).sum(), 0.5 * gain.square().sum(), entropy
