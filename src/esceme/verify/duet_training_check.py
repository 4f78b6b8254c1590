"""Compare DUET's training steps with those of the original code: labels, losses, gradients and an update.

Sampled rollouts repeat the draws that the reference file stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from pathlib import Path
from typing import ClassVar

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision
from esceme.checkpoints.names import fine_tuned_names
from esceme.learning.reinforcement import policy_entropy
from esceme.learning.rollouts import forward_demonstrations, oracle_rollout, teacher_rollout
from esceme.learning.teachers import IGNORE_INDEX, ORACLES, TEACHERS, Oracle, OracleName, stopping_at_goal
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import TrainingConfig
from esceme.observation import Observation
from esceme.rollout import roll_out
from esceme.tasks.episode import Episode
from esceme.trajectory import ActionSelector, SingleBatch, Trajectory, teacher_forcing
from esceme.verify.comparison import FileComparison
from esceme.verify.duet_map import MapOrder, Segments, action_to, action_viewpoint
from esceme.verify.fixtures import NetworkFiles, ReferenceData, duet_of
from esceme.verify.recording import ENCODER, RecordedFile, RecordedRollout
from esceme.verify.training_check import (
    STOPPED,
    GradientNorms,
    ReferenceTrainer,
    TrainingItem,
    compare_losses,
    compare_norms,
    gradient_norms,
)
from esceme.world.atlas import Atlas

FILES = r"(.*/)?train_il_dagger[^/]*\.json\.gz"
UPDATE_TOLERANCE, MIN_GRADIENT = 1e-3, 1e-4
"""Relative tolerance of the norms of weight updates, and the smallest gradient norm of compared tensors."""


class DuetLogs(msgspec.Struct):
    """Losses and entropies that the original code logs."""

    losses: list[float] = msgspec.field(name="IL_loss")
    entropy: list[float] = msgspec.field(default_factory=list)
    """Entropy of each step, summed also over ended episodes. It is compared until the first episode ends."""


class LabelledRollout(RecordedRollout, kw_only=True):
    """Rollout with labels, in the original numbering of actions (`duet_map`)."""

    items: list[TrainingItem]
    actions: list[list[int]]
    """Actions that were taken, by step and episode; -1 for STOP and after the end."""
    targets: list[list[int]]
    sampled: list[list[int]] = msgspec.field(name="sampled_raw", default_factory=list)
    """Actions that were drawn. At the goal, and after the end, they are not used."""
    feedback: str = ""

    @property
    def episode_ids(self) -> list[str]:
        """Episode ids, in the order of `items`."""
        return [item.instr_id for item in self.items]


class DuetTrainingRollout(LabelledRollout, kw_only=True):
    """Rollout with its loss and gradients."""

    loss: float
    step_losses: list[float]
    logs: DuetLogs
    grad_norms: GradientNorms
    trajectories: list[list[list[str]]]
    grad_norm: float = msgspec.field(name="total_grad_norm_before_clip_vln_bert")


class OtherOracle(msgspec.Struct, kw_only=True):
    """Labels, loss and gradients of a sampled rollout with another oracle."""

    targets: list[list[int]]
    loss: float
    step_losses: list[float]
    grad_norms: GradientNorms
    flags_added: str = ""
    note: str = ""


class DuetIteration(msgspec.Struct, kw_only=True):
    """One training iteration: a rollout of the teacher, a sampled one, and one update of the weights."""

    rollouts: list[LabelledRollout]
    loss: float
    logs: DuetLogs
    grad_norm: float = msgspec.field(name="total_grad_norm_before_clip_vln_bert")
    clip: float = 40.0
    grad_norms_after_clip: GradientNorms = msgspec.field(default_factory=dict)
    update_norms: dict[str, float] = msgspec.field(default_factory=dict)


class DuetTrainingFile(RecordedFile, kw_only=True):
    """Content of a file of DUET's training steps without dropout."""

    variants: ClassVar[tuple[str, ...]] = ("duet",)
    imitation: DuetTrainingRollout = msgspec.field(name="IL")
    dagger: DuetTrainingRollout = msgspec.field(name="DAGGER")
    dagger_ndtw: OtherOracle | None = msgspec.field(name="DAGGER_ndtw", default=None)
    iteration: DuetIteration | None = None
    mode: str = ""
    feature_width: int = 0

    @property
    def rollouts(self) -> list[tuple[str, RecordedRollout]]:
        """(key in the file, rollout) pairs of all rollouts in the file."""
        steps = [] if self.iteration is None else self.iteration.rollouts
        return [
            ("IL", self.imitation),
            ("DAGGER", self.dagger),
            *(("iteration.rollouts", rollout) for rollout in steps),
        ]


def check_duet_training(path: Path, references: ReferenceData, comparison: FileComparison) -> None:
    """Compare the training steps in a reference file `train_il_dagger….json.gz` with those of our code."""
    stored, _ = DuetTrainingFile.read(path, comparison)
    stored.compare_items(references, comparison)
    trainer = DuetReferenceTrainer(stored, NetworkFiles(path, comparison.used), references)
    _compare_rollout("IL", stored.imitation, trainer.imitate(stored.imitation), comparison)
    _compare_rollout("DAGGER", stored.dagger, trainer.sample(stored.dagger, "shortest"), comparison)
    if stored.dagger_ndtw is None:
        comparison.add_missing("DAGGER_ndtw")
    else:
        ours = trainer.sample(stored.dagger, "ndtw")
        comparison.add("DAGGER_ndtw.targets", stored.dagger_ndtw.targets, ours.targets, 0.0)
        _compare_loss("DAGGER_ndtw", stored.dagger_ndtw, ours, comparison)
    if stored.iteration is None or len(stored.iteration.rollouts) != 2:
        comparison.add_missing("iteration")
    else:
        _compare_iteration(stored.iteration, trainer.iterate(stored.iteration), comparison)


# -- our training steps ------------------------------------------------------------------------------------


class LabelRecording:
    """Action selector that records labels and actions of a rollout in the original numbering."""

    def __init__(
        self,
        atlas: Atlas,
        source: SingleBatch,
        label: ActionSelector | Oracle,
        select: ActionSelector,
        max_steps: int,
    ) -> None:
        """Record the actions of `select` and the labels of `label`."""
        self.actions: list[list[int]] = []
        self.targets: list[list[int]] = []
        self.entropy: list[float] = []
        """Sum of the policy's entropies, as long as no episode has ended."""
        self._label, self._select, self._max_steps = label, select, max_steps
        self._row_of = {trajectory: row for row, trajectory in enumerate(source.trajectories)}
        self._segments, self._gave_up = Segments(atlas), set[Trajectory]()

    def choose(
        self, decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        """Return the actions of `select`, (A,), and record the step."""
        labels, actions = (
            function(decision, observation, trajectories) for function in (self._label, self._select)
        )
        line, targets = [STOPPED] * len(self._row_of), [IGNORE_INDEX] * len(self._row_of)
        for row, trajectory in enumerate(trajectories):
            self._segments.add_decision(trajectory)
            order, slot = MapOrder.of_decision(decision, row), self._row_of[trajectory]
            goal, label = (
                None
                if int(action[row]) == IGNORE_INDEX
                else order.number(action_viewpoint(int(action[row]), decision, observation, row))
                for action in (actions, labels)
            )
            targets[slot] = IGNORE_INDEX if label is None else label
            is_last = trajectory.num_decisions + 1 >= self._max_steps
            if goal and not is_last:
                line[slot] = goal
            elif label not in (0, None) and not is_last:  # STOP was drawn away from the goal
                self._gave_up.add(trajectory)
        self.actions.append(line)
        self.targets.append(targets)
        if len(trajectories) == len(self._row_of):
            self.entropy.append(float(policy_entropy(decision.logits.detach()).sum()))
        return actions

    def trajectories(self) -> list[list[list[str]]]:
        """Return the paths of all episodes, without a way back if STOP was drawn away from the goal."""
        return [
            self._segments.of(trajectory, with_way_back=trajectory not in self._gave_up)
            for trajectory in self._row_of
        ]


class DuetReferenceTrainer:
    """Repeats stored training steps with our training code and the stored draws."""

    def __init__(self, stored: DuetTrainingFile, files: NetworkFiles, references: ReferenceData) -> None:
        """Build the network from the weights beside the file."""
        navigator = stored.navigator(files)
        duet_of(navigator)
        flags = stored.options
        self.atlas = stored.atlas(navigator, references)
        self.max_steps = stored.max_steps(len(stored.dagger.actions))
        config = TrainingConfig(
            method="imitation+dagger",
            imitation_weight=float(str(flags.get("ml_weight", 0.2))),
            oracle_weight=1.0,
            oracle="shortest",
            learning_rate=float(str(flags.get("lr", 1e-5))),
        )
        self._trainer = ReferenceTrainer(navigator, self.atlas, config, self.max_steps)

    def imitate(self, rollout: LabelledRollout) -> DuetTrainingRollout:
        """Follow the teacher; return labels, loss and gradients."""
        trainer, episodes = self._trainer.begin(rollout)
        loss, step_losses, recording = self._imitation(trainer, episodes)
        torch.autograd.backward(loss)
        return self._recorded(rollout, trainer, loss, step_losses, recording)

    def sample(self, rollout: LabelledRollout, oracle: OracleName) -> DuetTrainingRollout:
        """Repeat a sampled rollout; return the oracle's labels, loss and gradients."""
        trainer, episodes = self._trainer.begin(rollout)
        loss, step_losses, recording = self._sampled(trainer, episodes, rollout, oracle)
        torch.autograd.backward(loss)
        return self._recorded(rollout, trainer, loss, step_losses, recording)

    def iterate(self, stored: DuetIteration) -> DuetIteration:
        """Repeat one iteration, and update the weights."""
        first, second = stored.rollouts
        trainer, episodes = self._trainer.begin(first)
        parameters = dict(trainer.navigator.named_parameters())
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        vocabulary = trainer.navigator.agent.config.vocabulary
        imitation, _, taught = self._imitation(trainer, episodes)
        sampled, _, drawn = self._sampled(trainer, second.episodes(vocabulary), second, "shortest")
        torch.autograd.backward(imitation + sampled)
        norm = trainer.clip_gradients()
        clipped = gradient_norms(trainer.navigator)
        trainer.optimizer.step()
        names = fine_tuned_names(trainer.navigator)
        losses = [float(loss.detach()) for loss in (imitation, sampled)]
        return DuetIteration(
            rollouts=[
                LabelledRollout(items=rollout.items, actions=recording.actions, targets=recording.targets)
                for rollout, recording in ((first, taught), (second, drawn))
            ],
            loss=fsum(losses),
            logs=DuetLogs(losses, drawn.entropy),
            grad_norm=norm,
            clip=trainer.config.max_grad_norm,
            grad_norms_after_clip=clipped,
            update_norms={
                names[name]: float((parameter.detach() - before[name]).double().norm())
                for name, parameter in parameters.items()
            },
        )

    def _imitation(
        self, trainer: Trainer, episodes: Sequence[Episode]
    ) -> tuple[Tensor, list[float], LabelRecording]:
        """Return the imitation loss, the summed cross-entropy of each step, and the rollout."""
        teacher = TEACHERS["time"](self.atlas)
        demonstrations = teacher_rollout(self.atlas, episodes, teacher, max_steps=self.max_steps)
        decision = forward_demonstrations(trainer.navigator, self.atlas, demonstrations, None, encode=ENCODER)
        loss, _ = trainer.imitation_loss(demonstrations, decision, weight=trainer.config.imitation_weight)
        entropies = functional.cross_entropy(
            decision.logits, demonstrations.labels, reduction="none"
        ).detach()
        steps = demonstrations.step_index.step
        step_losses = [float(entropies[steps == step].sum()) for step in range(len(demonstrations.steps))]
        source, select = SingleBatch(self.atlas, episodes), teacher_forcing(self.atlas, teacher)
        recording = LabelRecording(self.atlas, source, select, select, self.max_steps)
        with torch.no_grad():
            for _ in roll_out(
                trainer.navigator,
                self.atlas,
                source,
                None,
                recording.choose,
                encode=ENCODER,
                max_steps=self.max_steps,
            ):
                pass
        return loss, step_losses, recording

    def _sampled(
        self, trainer: Trainer, episodes: Sequence[Episode], rollout: LabelledRollout, oracle: OracleName
    ) -> tuple[Tensor, list[float], LabelRecording]:
        """Return the loss of a sampled rollout, the summed cross-entropy of each step, and the rollout.

        A draw that is missing or leads to a closed node counts as STOP.
        """
        source, label = SingleBatch(self.atlas, episodes), ORACLES[oracle](self.atlas)
        row_of = {trajectory: row for row, trajectory in enumerate(source.trajectories)}

        def forced(
            decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
        ) -> Tensor:
            actions = observation.num_candidates.clone()
            for row, trajectory in enumerate(trajectories):
                line = rollout.sampled[trajectory.num_decisions :][:1] or [[]]
                (number,) = line[0][row_of[trajectory] :][:1] or [0]
                order = MapOrder.of_decision(decision, row)
                if 1 <= number <= len(order.nodes) and not order.closed_flags[number]:
                    actions[row] = action_to(order.viewpoints[number - 1], decision, observation, row)
            return actions

        select = stopping_at_goal(self.atlas, forced)
        recording = LabelRecording(self.atlas, source, label, select, self.max_steps)
        steps = oracle_rollout(
            trainer.navigator,
            self.atlas,
            source,
            None,
            label,
            recording.choose,
            encode=ENCODER,
            max_steps=self.max_steps,
        )
        loss, _ = trainer.oracle_loss(steps)
        step_losses = [
            float(functional.cross_entropy(step.logits, step.label, reduction="sum").detach())
            for step in steps
        ]
        return loss, step_losses, recording

    def _recorded(
        self,
        rollout: LabelledRollout,
        trainer: Trainer,
        loss: Tensor,
        step_losses: list[float],
        recording: LabelRecording,
    ) -> DuetTrainingRollout:
        norms = gradient_norms(trainer.navigator)
        return DuetTrainingRollout(
            items=rollout.items,
            actions=recording.actions,
            targets=recording.targets,
            sampled=rollout.sampled,
            loss=float(loss.detach()),
            step_losses=step_losses,
            logs=DuetLogs([float(loss.detach())], recording.entropy),
            grad_norms=norms,
            trajectories=recording.trajectories(),
            grad_norm=trainer.clip_gradients(),
        )


# -- comparison --------------------------------------------------------------------------------------------


def _compare_rollout(
    key: str, stored: DuetTrainingRollout, ours: DuetTrainingRollout, comparison: FileComparison
) -> None:
    _compare_labels(key, stored, ours, comparison)
    comparison.add(f"{key}.trajectories", stored.trajectories, ours.trajectories, 0.0)
    _compare_loss(key, stored, ours, comparison)
    compare_losses(f"{key}.logs.IL_loss", stored.logs.losses, ours.logs.losses, comparison)
    _compare_entropy(key, stored.logs, ours.logs, comparison)
    compare_losses(f"{key}.total_grad_norm_before_clip", [stored.grad_norm], [ours.grad_norm], comparison)


def _compare_labels(
    key: str, stored: LabelledRollout, ours: LabelledRollout, comparison: FileComparison
) -> None:
    comparison.add(f"{key}.actions", stored.actions, ours.actions, 0.0)
    comparison.add(f"{key}.targets", stored.targets, ours.targets, 0.0)


def _compare_entropy(key: str, stored: DuetLogs, ours: DuetLogs, comparison: FileComparison) -> None:
    """Compare the entropies of the steps before the first episode ended."""
    if stored.entropy:
        shared = stored.entropy[: len(ours.entropy)]
        compare_losses(f"{key}.logs.entropy (no episode ended)", shared, ours.entropy, comparison)


def _compare_loss(
    key: str,
    stored: DuetTrainingRollout | OtherOracle,
    ours: DuetTrainingRollout,
    comparison: FileComparison,
) -> None:
    compare_losses(f"{key}.loss", [stored.loss], [ours.loss], comparison)
    compare_losses(f"{key}.step_losses", stored.step_losses, ours.step_losses, comparison)
    compare_norms(f"{key}.grad_norms", stored.grad_norms, ours.grad_norms, comparison)


def _compare_iteration(stored: DuetIteration, ours: DuetIteration, comparison: FileComparison) -> None:
    for rollout, own in zip(stored.rollouts, ours.rollouts, strict=True):
        _compare_labels("iteration.rollouts", rollout, own, comparison)
    compare_losses("iteration.loss", [stored.loss], [ours.loss], comparison)
    compare_losses("iteration.logs.IL_loss", stored.logs.losses, ours.logs.losses, comparison)
    _compare_entropy("iteration", stored.logs, ours.logs, comparison)
    comparison.add("iteration.clip", stored.clip, ours.clip, 0.0)
    norms = [stored.grad_norm], [ours.grad_norm]
    compare_losses("iteration.total_grad_norm_before_clip", *norms, comparison)
    after = stored.grad_norms_after_clip, ours.grad_norms_after_clip
    compare_norms("iteration.grad_norms_after_clip", *after, comparison)
    comparison.add(
        "iteration.update_norms, parameters", sorted(stored.update_norms), sorted(ours.update_norms), 0.0
    )
    for name, update in ours.update_norms.items():
        gradient = stored.grad_norms_after_clip.get(name) or 0.0
        if gradient > MIN_GRADIENT and not name.endswith("in_proj_bias") and name in stored.update_norms:
            comparison.add_relative(
                "iteration.update_norms", [stored.update_norms[name]], [update], UPDATE_TOLERANCE, floor=1e-9
            )
