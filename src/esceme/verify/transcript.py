"""What the original wrote down of its training: one rollout led by the teacher, and one that was sampled."""

from __future__ import annotations

import msgspec

Norms = dict[str, float | None]
"""The norm of each parameter's gradient, None where it has none, by the original's names."""


class Asked(msgspec.Struct):
    """An episode, as a file of training states it."""

    instr_id: str
    scan: str
    path: list[str]
    heading: float
    instr_encoding: list[int]


class ImitationLogs(msgspec.Struct):
    """What the original logs of a rollout led by the teacher."""

    loss: list[float] = msgspec.field(name="IL_loss")
    target: list[float] | None = msgspec.field(name="GP_loss", default=None)
    """Of guessing where the goal is, where an agent does."""


class Imitated(msgspec.Struct):
    """A rollout led by the teacher, and what was learned from it."""

    items: list[Asked]
    actions: list[list[int]]
    loss: list[float] | float
    """One per episode, whose sum is the loss; or that itself."""
    logs: ImitationLogs
    grad_norms: Norms
    paths: list[list[str]]


class RewardedLogs(msgspec.Struct):
    """What the original logs of a sampled rollout."""

    entropy: list[float]
    """Of every step, in order; of those who have stopped, too."""
    critic_loss: list[float]
    """Of every step, the last first."""
    policy_loss: list[float]
    total: list[float]
    """How many steps count."""
    loss: list[float] = msgspec.field(name="RL_loss")
    target: list[float] | None = msgspec.field(name="GP_loss", default=None)


class Rewarded(msgspec.Struct):
    """A sampled rollout, and what was learned from it."""

    items: list[Asked]
    loss: list[float] | float
    grad_norms: Norms
    paths: list[list[str]]
    actions: list[list[int]] = msgspec.field(name="sampled_actions(-1=stop/ended)")
    rewards: list[list[list[float]]] = msgspec.field(name="reward_mask_dist_ndtw_per_step")
    """Per step: rewards, who was still walking, metres to the goal, nDTW; a file may hold none."""
    values: list[list[float]] = msgspec.field(name="critic_calls(first=last state,then t=T-1..0)")
    """Of where the rollout ended, then of every step, the last first; of those who have stopped, too."""
    logs: RewardedLogs = msgspec.field(name="logs(policy/critic in reverse time)")
    norm: float = msgspec.field(name="total_grad_norm_before_clip_vln_bert")


class Lessons(msgspec.Struct):
    """A file of training; memory is empty at the beginning of each rollout, and nothing is dropped."""

    imitated: Imitated | None = msgspec.field(name="IL", default=None)
    rewarded: Rewarded | None = msgspec.field(name="A2C", default=None)
    variant: str = ""
    flags: str = ""
    mode: str = ""
