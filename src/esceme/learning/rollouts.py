"""Rollouts for training: demonstrations of a teacher, DAgger, and sampled rollouts with rewards.

If trajectories are known before the forward pass, and the agent supports it, all decisions are computed in
one pass instead of step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision, StepIndex
from esceme.errors import ConfigError
from esceme.learning.memory_dropout import TrainingMemory
from esceme.learning.reinforcement import Reward, Transition
from esceme.learning.teachers import Oracle, Teacher, teacher_actions
from esceme.memory.bank import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep, begin_trajectories, roll_out
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import ActionSelector, SingleBatch, Trajectory, previous_viewpoints
from esceme.world.atlas import Atlas, Pose

# -- demonstrations ----------------------------------------------------------------------------------------


class DemonstrationStep(NamedTuple):
    """One step of the n trajectories of a batch that have not ended; all arrays are (n,) int64."""

    rows: NDArray[np.int64]
    """Indices of these trajectories in the batch."""
    pose: Pose
    action: NDArray[np.int64]
    """Action that was taken: index of a candidate, or the number of candidates for STOP."""
    label: NDArray[np.int64]
    """Action that the teacher prefers at this step, which is the training label."""


@dataclass
class Demonstrations:
    """Finished trajectories, step by step, with the teacher's action as label of every step.

    The properties concatenate all steps of all trajectories into R entries, ordered by step number.
    """

    trajectories: list[Trajectory]
    steps: list[DemonstrationStep] = field(default_factory=list)

    @property
    def step_index(self) -> StepIndex:
        """Trajectory and step number of each of the R entries."""
        episode = np.concatenate([step.rows for step in self.steps])
        number = np.concatenate([np.full(len(step.rows), index) for index, step in enumerate(self.steps)])
        return StepIndex(torch.from_numpy(episode), torch.from_numpy(number))

    @property
    def pose(self) -> Pose:
        """Viewpoint and view of the agent at each of the R entries."""
        viewpoints, views = zip(*(step.pose for step in self.steps), strict=True)
        return Pose(np.concatenate(viewpoints), np.concatenate(views))

    @property
    def previous_viewpoints(self) -> NDArray[np.int64]:
        """Viewpoints that the trajectory visited before each of the R entries, (R, T), padded with -1."""
        visited = np.full((len(self.trajectories), len(self.steps)), -1, dtype=np.int64)
        for index, step in enumerate(self.steps):
            visited[step.rows, index] = step.pose.viewpoint
        episode, number = self.step_index
        is_earlier = np.arange(len(self.steps)) < number.numpy()[:, None]
        return np.where(is_earlier, visited[episode.numpy()], -1)

    @property
    def actions(self) -> Tensor:
        """Actions that were taken, (R,) int64."""
        return torch.from_numpy(np.concatenate([step.action for step in self.steps]))

    @property
    def labels(self) -> Tensor:
        """Actions of the teacher, (R,) int64."""
        return torch.from_numpy(np.concatenate([step.label for step in self.steps]))


def teacher_rollout(
    atlas: Atlas, episodes: Sequence[Episode], teacher: Teacher, *, max_steps: int
) -> Demonstrations:
    """Return demonstrations in which every action is that of the teacher. No agent is involved."""
    demonstrations = Demonstrations([Trajectory.begin(atlas, episode) for episode in episodes])
    rows = np.arange(len(demonstrations.trajectories))
    while len(rows):
        active = [demonstrations.trajectories[row] for row in rows]
        pose = Pose(*np.array([trajectory.poses[-1] for trajectory in active], dtype=np.int64).T)
        actions = teacher_actions(atlas, teacher, active)
        demonstrations.steps.append(DemonstrationStep(rows, pose, actions, actions))
        for trajectory, viewpoint, view in zip(active, *atlas.step(pose, actions), strict=True):
            trajectory.num_decisions += 1
            trajectory.stopped = int(viewpoint) == trajectory.viewpoint
            if not trajectory.stopped:
                trajectory.poses.append((int(viewpoint), int(view)))
        rows = rows[
            [not trajectory.stopped and trajectory.num_decisions < max_steps for trajectory in active]
        ]
    return demonstrations


def dagger_rollout(
    navigator: Navigator,
    atlas: Atlas,
    episodes: Sequence[Episode],
    memory: TrainingMemory | None,
    teacher: Teacher,
    select_action: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
) -> Demonstrations:
    """Return a rollout of the agent without gradients, with the teacher's action at every step (DAgger)."""
    source = SingleBatch(atlas, episodes)
    demonstrations = Demonstrations(list(source.trajectories))
    row_of = {trajectory: row for row, trajectory in enumerate(demonstrations.trajectories)}
    labels: list[NDArray[np.int64]] = []

    def label_and_select(
        decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        labels.append(teacher_actions(atlas, teacher, trajectories))
        return select_action(decision, observation, trajectories)

    was_training = navigator.training
    navigator.eval()
    with torch.no_grad():
        for step in roll_out(
            navigator, atlas, source, memory, label_and_select, encode=encode, max_steps=max_steps
        ):
            rows = np.array([row_of[trajectory] for trajectory in step.trajectories])
            pose = Pose(step.observation.viewpoint.cpu().numpy(), step.observation.facing_view.cpu().numpy())
            actions = step.actions.cpu().numpy()
            demonstrations.steps.append(DemonstrationStep(rows, pose, actions, labels[-1]))
    navigator.train(was_training)
    if memory is not None:
        memory.end_rollout()
    return demonstrations


# -- forward passes over demonstrations --------------------------------------------------------------------


def forward_demonstrations(
    navigator: Navigator,
    atlas: Atlas,
    demonstrations: Demonstrations,
    memory: TrainingMemory | None,
    *,
    encode: InstructionEncoder,
    stepwise: bool | None = None,
) -> Decision:
    """Return the agent's decisions at all R steps of demonstrations, with logits (R, C).

    Each decision sees the memory as it was at its step. With `stepwise`, steps are computed one after
    another, otherwise in one pass by `Agent.decide_all`. The default is one pass if the agent supports it.
    """
    stepwise = not navigator.agent.supports_decide_all if stepwise is None else stepwise
    device, trajectories, pose = navigator.device, demonstrations.trajectories, demonstrations.pose
    step_index = StepIndex(*(index.to(device) for index in demonstrations.step_index))
    memory_view = None
    if memory is not None:
        viewpoints = torch.from_numpy(pose.viewpoint).to(device)
        memory_view = memory.remember_trajectories(viewpoints, step_index.step, stepwise=stepwise)
    if stepwise:
        return _replay(navigator, atlas, demonstrations, memory_view, encode)
    observation = Observation.from_atlas(
        atlas, pose, previous_viewpoints=demonstrations.previous_viewpoints, device=device
    )
    observation = navigator.observe(observation, memory_view)
    state = begin_trajectories(navigator, atlas, trajectories, encode)
    decision = navigator.agent.decide_all(state, observation, demonstrations.actions.to(device), step_index)
    goals = goal_positions(atlas, trajectories, device)
    return with_auxiliary_loss(navigator, decision, goals[step_index.episode])


def _replay(
    navigator: Navigator,
    atlas: Atlas,
    demonstrations: Demonstrations,
    memory: Memory | None,
    encode: InstructionEncoder,
) -> Decision:
    """Return the agent's decisions while it repeats demonstrated actions, concatenated over all steps."""
    actions = (torch.from_numpy(step.action) for step in demonstrations.steps)

    def next_action(decision: Decision, observation: Observation, active: Sequence[Trajectory]) -> Tensor:
        return next(actions).to(decision.logits.device)

    source = SingleBatch(atlas, [trajectory.episode for trajectory in demonstrations.trajectories])
    max_steps = len(demonstrations.steps)
    rollout = roll_out(navigator, atlas, source, memory, next_action, encode=encode, max_steps=max_steps)
    goals = goal_positions(atlas, demonstrations.trajectories, navigator.device)
    decisions = [
        with_auxiliary_loss(navigator, step.decision, goals[demonstration.rows])
        for step, demonstration in zip(rollout, demonstrations.steps, strict=True)
    ]
    num_choices = max(decision.logits.shape[1] for decision in decisions)
    logits = [
        functional.pad(decision.logits, (0, num_choices - decision.logits.shape[1]), value=-torch.inf)
        for decision in decisions
    ]
    losses = [decision.auxiliary_loss for decision in decisions if decision.auxiliary_loss is not None]
    return Decision(torch.cat(logits), auxiliary_loss=torch.cat(losses) if losses else None)


def with_auxiliary_loss(navigator: Navigator, decision: Decision, goals: Tensor) -> Decision:
    """Return the decision with the agent's auxiliary loss, given goal positions (B, 3) in metres."""
    return decision._replace(auxiliary_loss=navigator.agent.auxiliary_loss(decision, goals))


def goal_positions(atlas: Atlas, trajectories: Sequence[Trajectory], device: torch.device) -> Tensor:
    """Return the goal position of each trajectory in metres, (B, 3)."""
    episodes = (trajectory.episode for trajectory in trajectories)
    viewpoints = [int(atlas.locate(episode.scene_id, [episode.goal])[0]) for episode in episodes]
    return torch.from_numpy(atlas.positions[viewpoints].astype(np.float32)).to(device)


# -- sampled rollouts --------------------------------------------------------------------------------------


class LabelledStep(NamedTuple):
    """One step of a sampled rollout, for the n trajectories of the batch that have not ended."""

    logits: Tensor
    """(n, C): scores of the C possible actions; -inf for actions that do not exist."""
    label: Tensor
    """(n,) int64: action that the oracle prefers, or `IGNORE_INDEX` for none."""
    auxiliary_loss: Tensor | None
    """(n,): the agent's auxiliary loss; None if the agent has no such loss."""


def oracle_rollout(
    navigator: Navigator,
    atlas: Atlas,
    source: SingleBatch,
    memory: TrainingMemory | None,
    oracle: Oracle,
    select_action: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
) -> list[LabelledStep]:
    """Roll out the agent with gradients; return every step with the action of an oracle as its label."""
    row_of = {trajectory: row for row, trajectory in enumerate(source.trajectories)}
    goals = goal_positions(atlas, source.trajectories, navigator.device)
    labels: list[Tensor] = []

    def label_and_select(
        decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        labels.append(oracle(decision, observation, trajectories).to(decision.logits.device))
        return select_action(decision, observation, trajectories)

    steps = []
    for step in roll_out(
        navigator, atlas, source, memory, label_and_select, encode=encode, max_steps=max_steps
    ):
        rows = [row_of[trajectory] for trajectory in step.trajectories]
        decision = with_auxiliary_loss(navigator, step.decision, goals[rows])
        steps.append(LabelledStep(decision.logits, labels[-1], decision.auxiliary_loss))
    if memory is not None:
        memory.end_rollout()
    return steps


def sample_rollout(
    navigator: Navigator,
    atlas: Atlas,
    source: SingleBatch,
    memory: TrainingMemory | None,
    reward: Reward,
    select_action: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
    oracle: Oracle | None = None,
) -> tuple[list[Transition], Tensor]:
    """Roll out the agent with gradients and rewards; return transitions and bootstrap values for A2C.

    There is one transition per step. The bootstrap values (B,) are the critic's values of the final states of
    truncated trajectories; they are zero for trajectories that stopped. Raise `ConfigError` without a critic.
    """
    row_of = {trajectory: row for row, trajectory in enumerate(source.trajectories)}
    device, transitions, last = navigator.device, list[Transition](), None
    goals = goal_positions(atlas, source.trajectories, device)
    for step in roll_out(navigator, atlas, source, memory, select_action, encode=encode, max_steps=max_steps):
        if step.decision.value is None:
            raise ConfigError(
                f"{type(navigator.agent).__name__} has no critic, which learning from rewards needs; "
                "train it by imitation"
            )
        rows = torch.tensor([row_of[trajectory] for trajectory in step.trajectories], device=device)
        decision = with_auxiliary_loss(navigator, step.decision, goals[rows])
        transitions.append(
            Transition(
                rows,
                decision.logits,
                step.decision.value,
                step.actions,
                torch.from_numpy(reward.step(step.trajectories)).to(step.decision.value),
                decision.auxiliary_loss,
                None if oracle is None else oracle(decision, step.observation, step.trajectories).to(device),
            )
        )
        last = step
    bootstrap = torch.zeros(len(source.trajectories), device=device)
    if last is not None:
        truncated, values = _final_values(navigator, atlas, last, memory)
        bootstrap = bootstrap.index_put((transitions[-1].rows[truncated],), values.to(bootstrap))
    if memory is not None:
        memory.end_rollout()
    return transitions, bootstrap


def _final_values(
    navigator: Navigator, atlas: Atlas, last: RolloutStep, memory: TrainingMemory | None
) -> tuple[Tensor, Tensor]:
    """Return the indices (t,) of truncated trajectories in the last step, and their final values (t,).

    The viewpoint that a truncated trajectory reaches last is not stored in the memory (docs/spec.md C.3).
    """
    device = navigator.device
    is_truncated = [not trajectory.stopped for trajectory in last.trajectories]
    trajectories = list(compress(last.trajectories, is_truncated))
    truncated = torch.tensor(is_truncated).nonzero().flatten().to(device)
    if not trajectories:
        return truncated, torch.zeros(0, device=device)
    with torch.no_grad():
        state = navigator.advance(
            last.state.select(truncated), last.observation.select(truncated), last.actions[truncated]
        )
        pose = Pose(*np.array([trajectory.poses[-1] for trajectory in trajectories], dtype=np.int64).T)
        past = previous_viewpoints(trajectories)
        observation = Observation.from_atlas(atlas, pose, previous_viewpoints=past, device=device)
        value = navigator.decide(state, navigator.observe(observation, memory)).value
    return truncated, torch.zeros(len(truncated)) if value is None else value
