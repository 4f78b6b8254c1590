"""Compare training steps with those of the original code: losses, critic values, rewards and gradients.

A training step is repeated with the actions that the reference file stores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.tdstp import TDSTP
from esceme.checkpoints.names import CRITIC as CRITIC_PREFIX
from esceme.checkpoints.names import fine_tuned_names
from esceme.errors import ConfigError, DataError
from esceme.learning.reinforcement import (
    Transition,
    actor_critic_loss,
    discounted_returns,
    transition_loss,
)
from esceme.learning.rollouts import (
    DemonstrationStep,
    forward_demonstrations,
    sample_rollout,
    teacher_rollout,
)
from esceme.learning.teachers import TEACHERS
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.navigator import Navigator
from esceme.tasks.episode import Episode
from esceme.trajectory import SingleBatch, Trajectory
from esceme.verify.comparison import FileComparison, Json
from esceme.verify.fixtures import CRITIC, NetworkFiles, ReferenceData
from esceme.verify.forced_actions import ForcedActions, RecordingReward
from esceme.verify.recording import ENCODER, RecordedFile, RecordedItem, RecordedRollout
from esceme.world.atlas import Atlas

FILES = r"(.*/)?train_il_a2c[^/]*\.json\.gz"
TOLERANCE = 1e-4
"""Tolerance relative to the stored value."""
MIN_SCALE, MIN_NORM_SCALE = 0.1, 0.01
"""Smallest numbers by which a difference is divided: for losses and values, and for gradient norms.

In single precision, a difference of 1e-5 in a loss or value and of 1e-6 in a gradient norm is noise. The
gradients of key biases consist of noise only.
"""
FORWARD_MODES = {"at once": False, "step by step": True}
"""Name of a way to compute the decisions of a teacher-forced rollout -> its argument `stepwise`."""
REWARD_ROWS = ("reward", "mask", "distance", "nDTW")
STOPPED = -1
"""Stored action of an episode that stops at this step or has stopped before."""
GradientNorms = dict[str, float | None]
"""Original name of a parameter -> norm of its gradient, or None if the parameter has no gradient."""


class TrainingItem(RecordedItem, kw_only=True):
    """Record of one episode of a training step in a reference file."""

    instr_id: str


class ImitationLogs(msgspec.Struct):
    """Losses that the original code logs for a teacher-forced rollout."""

    loss: list[float] = msgspec.field(name="IL_loss")
    target: list[float] | None = msgspec.field(name="GP_loss", default=None)
    """Loss of TD-STP's target prediction."""


class A2CLogs(msgspec.Struct):
    """Losses and counts that the original code logs for a sampled rollout."""

    entropy: list[float]
    """Policy entropy of every step, from first to last, summed over active and ended episodes."""
    critic_loss: list[float]
    """Critic loss of every step, from last to first."""
    policy_loss: list[float]
    total: list[float]
    """Number of decisions of all episodes, without those after the end of an episode."""
    loss: list[float] = msgspec.field(name="RL_loss")
    target: list[float] | None = msgspec.field(name="GP_loss", default=None)


class TrainingRollout(RecordedRollout, kw_only=True):
    """Rollout of a training step, with its loss and the norms of the gradients."""

    items: list[TrainingItem]
    actions: list[list[int]]
    loss: list[float] | float
    """Either the loss of each episode, whose sum is the loss of the rollout, or the loss of the rollout."""
    grad_norms: GradientNorms
    paths: list[list[str]]

    @property
    def episode_ids(self) -> list[str]:
        """Episode ids, in the order of `items`."""
        return [item.instr_id for item in self.items]


class ImitationRollout(TrainingRollout, kw_only=True):
    """Rollout of imitation learning, in which the actions are the teacher's."""

    logs: ImitationLogs


class A2CRollout(TrainingRollout, kw_only=True):
    """Rollout of reinforcement learning (A2C), in which the actions are sampled."""

    actions: list[list[int]] = msgspec.field(name="sampled_actions(-1=stop/ended)")
    rewards: list[list[list[float]]] = msgspec.field(name="reward_mask_dist_ndtw_per_step")
    """For every step, four lists over episodes: reward, 1 if active, metres to goal, nDTW. May be empty."""
    values: list[list[float]] = msgspec.field(name="critic_calls(first=last state,then t=T-1..0)")
    """Critic values of active and ended episodes: of the final state, then from last to first step."""
    logs: A2CLogs = msgspec.field(name="logs(policy/critic in reverse time)")
    grad_norm: float = msgspec.field(name="total_grad_norm_before_clip_vln_bert")


class TrainingFile(RecordedFile, kw_only=True):
    """Content of a file of training steps without dropout. Every rollout starts with an empty memory."""

    imitation: ImitationRollout | None = msgspec.field(name="IL", default=None)
    a2c: A2CRollout | None = msgspec.field(name="A2C", default=None)
    mode: str = ""

    @property
    def rollouts(self) -> list[tuple[str, RecordedRollout]]:
        """(key in the file, rollout) pairs of all rollouts in the file."""
        rollouts = {"IL": self.imitation, "A2C": self.a2c}
        return [(key, rollout) for key, rollout in rollouts.items() if rollout is not None]


def check_training(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the training steps in a reference file `train_il_a2c….json.gz` with those of our code."""
    stored, _ = TrainingFile.read(path, comparison)
    files = NetworkFiles(path, comparison.used)
    stored.compare_items(references, comparison)
    trainer = reference_trainer(stored, files, references)
    if stored.imitation is None or not stored.imitation.items:
        comparison.add_missing("IL")
    else:
        for mode, stepwise in trainer.forward_modes.items():
            ours = trainer.imitate(stored.imitation, stepwise=stepwise)
            _compare_rollout("IL", stored.imitation, ours, comparison, f" ({mode})")
    if stored.a2c is None or not stored.a2c.items:
        comparison.add_missing("A2C")
    elif not files.has(CRITIC):
        comparison.skipped.append(f"A2C: there is no {CRITIC} beside it")
    else:
        _compare_a2c(stored.a2c, trainer.reinforce(stored.a2c), comparison)


def reference_trainer(
    stored: TrainingFile, files: NetworkFiles, references: ReferenceData
) -> ReferenceTrainer:
    """Build a trainer from the weights beside a file, and the scenes and settings that the file names."""
    navigator = stored.navigator(files)
    rollouts = [rollout for rollout in (stored.imitation, stored.a2c) if rollout is not None]
    max_steps = stored.max_steps(max((len(rollout.actions) for rollout in rollouts), default=0))
    atlas = stored.atlas(navigator, references)
    return ReferenceTrainer(navigator, atlas, _training_config(stored.options), max_steps)


def _training_config(flags: Mapping[str, Json]) -> TrainingConfig:
    """Return the training settings on the command line, with the original defaults for all others."""
    normalise = {"total": "steps", "batch": "batch"}.get(str(flags.get("normalize", "total")), "unknown")
    try:
        return TrainingConfig(
            imitation_weight=float(flags.get("ml_weight", 0.2)),
            discount=float(flags.get("gamma", 0.9)),
            oracle_weight=float(flags.get("rl_teacher_weight", 0.0)),
            oracle="goal" if flags.get("no-path-restriction", False) else "path",
            entropy_weight=float(flags.get("entropy_loss_weight", 0.01)),
            normalise=normalise,  # type: ignore[arg-type]  # checked by TrainingConfig
        )
    except (ValueError, ConfigError) as error:
        raise DataError(f"flags that this version does not know: {error}") from None


# -- training steps with stored actions --------------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceTrainer:
    """Repeats stored training steps with our training code and the stored actions."""

    navigator: Navigator
    atlas: Atlas
    training: TrainingConfig
    max_steps: int

    @property
    def forward_modes(self) -> dict[str, bool]:
        """Name of a way to compute decisions that the agent supports -> argument `stepwise` of `imitate`."""
        at_once = self.navigator.agent.supports_decide_all
        return {mode: stepwise for mode, stepwise in FORWARD_MODES.items() if at_once or stepwise}

    def imitate(self, rollout: TrainingRollout, *, stepwise: bool) -> ImitationRollout:
        """Run a rollout with teacher forcing, and compute its loss and gradients.

        With `stepwise`, the network computes one step after another; otherwise it computes all steps in one
        call.
        """
        trainer, episodes = self.begin(rollout)
        teacher = TEACHERS[trainer.config.teacher](self.atlas)
        demonstrations = teacher_rollout(self.atlas, episodes, teacher, max_steps=self.max_steps)
        weight = trainer.config.imitation_weight
        decision = forward_demonstrations(
            self.navigator, self.atlas, demonstrations, trainer.memory, encode=ENCODER, stepwise=stepwise
        )
        loss, _ = trainer.imitation_loss(demonstrations, decision, weight=weight)
        torch.autograd.backward(loss)
        logits, target = decision.logits, decision.auxiliary_loss
        labels, episode, batch = demonstrations.labels, demonstrations.step_index.episode, len(episodes)
        parts = [
            functional.cross_entropy(logits[episode == row], labels[episode == row], reduction="sum") / batch
            for row in range(batch)
        ]
        losses = [float(weight * part.detach()) for part in parts]
        target_losses = None if target is None else [float(target.sum().detach()) / batch]
        return ImitationRollout(
            items=rollout.items,
            actions=self._recorded_actions(demonstrations.trajectories, demonstrations.steps),
            loss=losses if target is None else float(loss.detach()),
            logs=ImitationLogs([fsum(losses)], target_losses),
            grad_norms=gradient_norms(trainer.navigator),
            paths=self._viewpoint_names(demonstrations.trajectories),
        )

    def reinforce(self, rollout: TrainingRollout) -> A2CRollout:
        """Repeat a sampled rollout with its stored actions, and compute the loss and gradients of A2C."""
        trainer, episodes = self.begin(rollout)
        source = SingleBatch(self.atlas, episodes)
        forced = ForcedActions(trainer.navigator, self.atlas, source.trajectories, rollout.actions)
        reward = RecordingReward(self.atlas, source.trajectories)
        steps, final_values = sample_rollout(
            forced.navigator,
            self.atlas,
            source,
            trainer.memory,
            reward,
            forced.choose,
            encode=ENCODER,
            max_steps=self.max_steps,
            oracle=trainer.oracle,
        )
        forced.finish(final_values)
        loss, _ = trainer.a2c_loss(steps, final_values)
        torch.autograd.backward(loss)
        targets = [
            float(step.auxiliary_loss.sum().detach()) for step in steps if step.auxiliary_loss is not None
        ]
        total = float(loss.detach())
        return A2CRollout(
            items=rollout.items,
            loss=total if targets else self._episode_losses(steps, final_values, trainer.config),
            grad_norms=gradient_norms(trainer.navigator),
            paths=self._viewpoint_names(source.trajectories),
            actions=self._recorded_actions(source.trajectories, steps),
            rewards=reward.steps,
            values=forced.values[::-1],
            logs=self._a2c_logs(steps, final_values, forced.entropy, total, targets),
            grad_norm=trainer.clip_gradients(),
        )

    def _recorded_actions(
        self, trajectories: Sequence[Trajectory], steps: Sequence[DemonstrationStep | Transition]
    ) -> list[list[int]]:
        """Return `actions[step][episode]` in the numbering of reference files.

        In files of TD-STP, history tokens are numbered before candidates. A teacher never chooses a history
        token.
        """
        table = []
        for number, step in enumerate(steps):
            num_history = number + 1 if isinstance(self.navigator.agent, TDSTP) else 0
            first = math.inf
            if num_history and isinstance(step, Transition):
                first = step.logits.shape[1] - num_history
            line = [STOPPED] * len(trajectories)
            for row, action in zip(step.rows.tolist(), step.action.tolist(), strict=True):
                if not trajectories[row].stopped or number < trajectories[row].num_decisions - 1:
                    line[row] = action + num_history if action < first else action - int(first)
            table.append(line)
        return table

    def _viewpoint_names(self, trajectories: Sequence[Trajectory]) -> list[list[str]]:
        return [
            [self.atlas.name(viewpoint)[1] for viewpoint, _ in trajectory.poses]
            for trajectory in trajectories
        ]

    def begin(self, rollout: RecordedRollout) -> tuple[Trainer, list[Episode]]:
        """Return a trainer with an empty memory and without gradients, and the episodes of the rollout."""
        episodes = rollout.episodes(self.navigator.agent.config.vocabulary)
        self.navigator.zero_grad(set_to_none=True)
        trainer = Trainer(
            self.navigator,
            self.atlas,
            [episodes],
            replace(self.training, batch=len(episodes)),
            encode=ENCODER,
            max_steps=self.max_steps,
        )
        if trainer.memory is not None:
            trainer.memory.begin_rollout(episodes, np.random.default_rng(0))
        return trainer, episodes

    def _episode_losses(
        self, steps: Sequence[Transition], final_values: Tensor, training: TrainingConfig
    ) -> list[float]:
        """Return the part of the A2C loss that comes from each episode."""
        num_steps = sum(len(step.rows) for step in steps)
        divisor, losses = num_steps if training.normalise == "steps" else training.batch, []
        for row in range(len(final_values)):
            selected = [
                Transition(*(None if field is None else field[step.rows == row] for field in step))  # type: ignore[arg-type]
                for step in steps
            ]
            terms = actor_critic_loss(selected, final_values, discount=training.discount)
            losses.append(float(terms.total(training.entropy_weight).detach()) / divisor)
        return losses

    def _a2c_logs(
        self,
        steps: Sequence[Transition],
        final_values: Tensor,
        entropy: list[float],
        loss: float,
        targets: Sequence[float],
    ) -> A2CLogs:
        returns = discounted_returns(steps, final_values, discount=self.training.discount)
        terms = [transition_loss(*pair) for pair in zip(steps, returns, strict=True)][::-1]
        target = fsum(targets) / len(final_values)
        return A2CLogs(
            entropy=entropy,
            critic_loss=[float(term.critic.detach()) for term in terms],
            policy_loss=[float(term.policy.detach()) for term in terms],
            total=[float(sum(term.num_steps for term in terms))],
            loss=[loss - target],
            target=[target] if targets else None,
        )


def gradient_norms(navigator: Navigator) -> GradientNorms:
    """Return the norm of every parameter's gradient, by the original name of the parameter."""
    names = {
        ours: f"critic.{name}" if name.startswith(CRITIC_PREFIX) else name
        for ours, name in fine_tuned_names(navigator).items()
    }
    return {
        names[name]: None if parameter.grad is None else float(parameter.grad.double().norm())
        for name, parameter in navigator.named_parameters()
    }


# -- comparison --------------------------------------------------------------------------------------------


def _compare_rollout(
    key: str,
    stored: ImitationRollout | A2CRollout,
    ours: ImitationRollout | A2CRollout,
    comparison: FileComparison,
    mode: str = "",
) -> None:
    actions = "sampled_actions" if key == "A2C" else "actions"
    comparison.add(f"{key}.{actions}{mode}", stored.actions, ours.actions, 0.0)
    comparison.add(f"{key}.paths{mode}", stored.paths, ours.paths, 0.0)
    stored_losses, own_losses = _losses(stored), _losses(ours)
    for name, values in own_losses.items():
        if values or stored_losses[name]:
            compare_losses(f"{key}.{name}{mode}", stored_losses[name] or [], values or [], comparison)
    compare_norms(f"{key}.grad_norms{mode}", stored.grad_norms, ours.grad_norms, comparison)


def _losses(rollout: ImitationRollout | A2CRollout) -> dict[str, list[float] | None]:
    """Return a dict from name to numbers: the loss of a rollout and all logged losses and counts."""
    loss = rollout.loss if isinstance(rollout.loss, list) else [rollout.loss]
    logs = msgspec.to_builtins(rollout.logs)
    return {"loss": loss, **{f"logs.{name}": values for name, values in logs.items()}}


def _compare_a2c(stored: A2CRollout, ours: A2CRollout, comparison: FileComparison) -> None:
    _compare_rollout("A2C", stored, ours, comparison)
    compare_losses("A2C.total_grad_norm_before_clip", [stored.grad_norm], [ours.grad_norm], comparison)
    comparison.add("A2C.critic_calls (how many)", len(stored.values), len(ours.values), 0.0)
    for values, own_values in zip(stored.values, ours.values, strict=False):
        compare_losses("A2C.critic_calls", values, own_values, comparison)
    if not stored.rewards:
        return
    comparison.add("A2C.rewards (how many)", len(stored.rewards), len(ours.rewards), 0.0)
    for step, own_step in zip(stored.rewards, ours.rewards, strict=False):
        comparison.add("A2C.rewards (kinds)", len(step), len(own_step), 0.0)
        for kind, row, own_row in zip(REWARD_ROWS, step, own_step, strict=False):
            compare_losses(f"A2C.rewards.{kind}", row, own_row, comparison)


def compare_norms(
    quantity: str, stored: GradientNorms, ours: GradientNorms, comparison: FileComparison
) -> None:
    """Compare parameter names, which parameters have no gradient, and the norms of the gradients."""
    comparison.add(f"{quantity}, parameters", sorted(stored), sorted(ours), 0.0)
    for name, norm in ours.items():
        stored_norm = stored.get(name)
        if norm is None or stored_norm is None:
            comparison.add(f"{quantity}, none", stored_norm is None, norm is None, 0.0)
        else:
            comparison.add_relative(quantity, [stored_norm], [norm], TOLERANCE, floor=MIN_NORM_SCALE)


def compare_losses(
    quantity: str, stored: Sequence[float], ours: Sequence[float], comparison: FileComparison
) -> None:
    """Compare losses or values, relative to the stored ones."""
    comparison.add_relative(quantity, stored, ours, TOLERANCE, floor=MIN_SCALE)
