"""Rollouts to learn from: walks led by a teacher, one's own with a teacher's comments, sampled ones.

Where a walk is known before anything has to be learned from it, all its decisions are made at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision, State, StepIndex
from esceme.errors import ConfigError
from esceme.learning.losses import Transition
from esceme.learning.memory_dropout import TrainingMemory
from esceme.learning.rewards import Reward
from esceme.learning.teachers import Comment, Teacher, teacher_actions
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.rollout import RolloutStep, begin_trajectories, roll_out
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import ActionSelector, SingleBatch, Trajectory, previous_viewpoints
from esceme.world.atlas import Atlas, Pose

DecideAll = Callable[[State, Observation, Tensor, StepIndex], Decision]


class Decide(Protocol):
    """How the decisions of walks that are known are made."""

    def __call__(
        self,
        navigator: Navigator,
        atlas: Atlas,
        told: Demonstrations,
        memory: TrainingMemory | None,
        *,
        encode: InstructionEncoder,
    ) -> Decision:
        """A row for each step of each walk, (R, C)."""


@dataclass
class Demonstrations:
    """Walks that are over, step by step, and what a teacher says to each step."""

    walks: list[Trajectory]
    row: list[NDArray[np.int64]] = field(default_factory=list)
    """Per step: which walks took it."""
    viewpoint: list[NDArray[np.int64]] = field(default_factory=list)
    view: list[NDArray[np.int64]] = field(default_factory=list)
    chosen: list[NDArray[np.int64]] = field(default_factory=list)
    label: list[NDArray[np.int64]] = field(default_factory=list)

    def add(
        self, rows: NDArray[np.int64], pose: Pose, chosen: NDArray[np.int64], label: NDArray[np.int64]
    ) -> None:
        """One more step of some of the walks."""
        for name, values in zip(
            ("row", "viewpoint", "view", "chosen", "label"), (rows, *pose, chosen, label), strict=True
        ):
            getattr(self, name).append(np.asarray(values, np.int64))

    @property
    def when(self) -> StepIndex:
        """To which walk and which of its steps each row belongs."""
        step = [np.full(len(rows), number) for number, rows in enumerate(self.row)]
        return StepIndex(torch.from_numpy(np.concatenate(self.row)), torch.from_numpy(np.concatenate(step)))

    @property
    def pose(self) -> Pose:
        """Where each row stands, and what it faces."""
        return Pose(np.concatenate(self.viewpoint), np.concatenate(self.view))

    @property
    def past(self) -> NDArray[np.int64]:
        """Where each row has been before, (R, T), -1 for none."""
        standing = np.full((len(self.walks), len(self.row)), -1, dtype=np.int64)
        for step, (rows, viewpoints) in enumerate(zip(self.row, self.viewpoint, strict=True)):
            standing[rows, step] = viewpoints
        when = self.when
        before = np.arange(len(self.row)) < when.step.numpy()[:, None]
        return np.where(before, standing[when.episode.numpy()], -1)

    @property
    def labels(self) -> Tensor:
        """What the teacher says, (R,)."""
        return torch.from_numpy(np.concatenate(self.label))


def teacher_rollout(
    atlas: Atlas, episodes: Sequence[Episode], teacher: Teacher, *, max_steps: int
) -> Demonstrations:
    """The walks of who does what a teacher says; no agent is needed for that."""
    told = Demonstrations([Trajectory.begin(atlas, episode) for episode in episodes])
    rows = np.arange(len(told.walks))
    while len(rows):
        walks = [told.walks[row] for row in rows]
        pose = Pose(*np.array([walk.poses[-1] for walk in walks], dtype=np.int64).T)
        wanted = teacher_actions(atlas, teacher, walks)
        told.add(rows, pose, wanted, wanted)
        for walk, viewpoint, view in zip(walks, *atlas.step(pose, wanted), strict=True):
            walk.num_decisions += 1
            walk.stopped = int(viewpoint) == walk.viewpoint
            if not walk.stopped:
                walk.poses.append((int(viewpoint), int(view)))
        going = [not walk.stopped and walk.num_decisions < max_steps for walk in walks]
        rows = rows[going]
    return told


def dagger_rollout(
    navigator: Navigator,
    atlas: Atlas,
    episodes: Sequence[Episode],
    memory: TrainingMemory | None,
    teacher: Teacher,
    choose: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
) -> Demonstrations:
    """The walks of an agent that is not learning now, and what a teacher would have done (DAgger)."""
    source = SingleBatch(atlas, episodes)
    told = Demonstrations(list(source.trajectories))
    row_of = {walk: row for row, walk in enumerate(told.walks)}
    asked: list[NDArray[np.int64]] = []

    def ask(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        asked.append(teacher_actions(atlas, teacher, walks))
        return choose(decision, observation, walks)

    learning = navigator.training
    navigator.eval()
    with torch.no_grad():
        for step in roll_out(navigator, atlas, source, memory, ask, encode=encode, max_steps=max_steps):
            rows = np.array([row_of[walk] for walk in step.trajectories])
            pose = Pose(step.observation.viewpoint.cpu().numpy(), step.observation.facing.cpu().numpy())
            told.add(rows, pose, step.actions.cpu().numpy(), asked[-1])
    navigator.train(learning)
    if memory is not None:
        memory.finish()
    return told


def forward_all(
    navigator: Navigator,
    atlas: Atlas,
    told: Demonstrations,
    memory: TrainingMemory | None,
    *,
    encode: InstructionEncoder,
) -> Decision:
    """All decisions of walks that are known, (R, C), made at once with what the memory held at each step."""
    device, when = navigator.device, told.when
    when = StepIndex(when.episode.to(device), when.step.to(device))
    observation = Observation.of(atlas, told.pose, past=told.past, device=device)
    shown = None if memory is None else memory.foresee(observation.viewpoint, when.step)
    seen = navigator.see(observation, shown)
    state = begin_trajectories(navigator, atlas, told.walks, encode)
    chosen = torch.from_numpy(np.concatenate(told.chosen)).to(device)
    decide_all: DecideAll = navigator.agent.decide_all  # type: ignore[assignment]
    decision = decide_all(state, seen, chosen, when)
    return with_auxiliary_loss(navigator, decision, goals_of(atlas, told.walks, device)[when.episode])


def forward_stepwise(
    navigator: Navigator,
    atlas: Atlas,
    told: Demonstrations,
    memory: TrainingMemory | None,
    *,
    encode: InstructionEncoder,
) -> Decision:
    """The same decisions step by step, for agents whose history is recurrent."""
    steps, shown = iter(told.chosen), None
    if memory is not None:
        standing = torch.from_numpy(told.pose.viewpoint).to(navigator.device)
        shown = memory.foresee(standing, told.when.step.to(navigator.device), at_once=False)

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        return torch.from_numpy(next(steps)).to(decision.logits.device)

    source = SingleBatch(atlas, [walk.episode for walk in told.walks])
    lived = roll_out(navigator, atlas, source, shown, choose, encode=encode, max_steps=len(told.chosen))
    goals = goals_of(atlas, told.walks, navigator.device)
    made = [
        with_auxiliary_loss(navigator, step.decision, goals[rows])
        for step, rows in zip(lived, told.row, strict=True)
    ]
    most = max(each.logits.shape[1] for each in made)
    padded = [
        functional.pad(each.logits, (0, most - each.logits.shape[1]), value=-torch.inf) for each in made
    ]
    asides = [each.aside for each in made if each.aside is not None]
    return Decision(torch.cat(padded), aside=torch.cat(asides) if asides else None)


def with_auxiliary_loss(navigator: Navigator, decision: Decision, goals: Tensor) -> Decision:
    """A decision with the agent's own loss, where it has one, given where goals lie, (B, 3)."""
    return decision._replace(aside=navigator.agent.aside(decision, goals))


def goals_of(atlas: Atlas, walks: Sequence[Trajectory], device: torch.device) -> Tensor:
    """Where the goals of walks lie, in metres (B, 3)."""
    at = [int(atlas.locate(walk.episode.scene_id, [walk.episode.goal])[0]) for walk in walks]
    return torch.from_numpy(atlas.positions[at].astype(np.float32)).to(device)


def forward_demonstrations(
    navigator: Navigator,
    atlas: Atlas,
    told: Demonstrations,
    memory: TrainingMemory | None,
    *,
    encode: InstructionEncoder,
) -> Decision:
    """The decisions of walks that are known, (R, C): at once where the agent can, else step by step."""
    at_once = hasattr(navigator.agent, "decide_all")
    return (forward_all if at_once else forward_stepwise)(navigator, atlas, told, memory, encode=encode)


def sample_rollout(
    navigator: Navigator,
    atlas: Atlas,
    source: SingleBatch,
    memory: TrainingMemory | None,
    reward: Reward,
    choose: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
    comment: Comment | None = None,
) -> tuple[list[Transition], Tensor]:
    """The steps of walks that an agent takes as it likes, and the value of where they were cut off, (B,).

    `comment` says what should have been done at each of them.
    """
    row_of = {walk: row for row, walk in enumerate(source.trajectories)}
    device, steps, last = navigator.device, list[Transition](), None
    goals = goals_of(atlas, source.trajectories, device)
    for step in roll_out(navigator, atlas, source, memory, choose, encode=encode, max_steps=max_steps):
        if step.decision.value is None:
            raise ConfigError(
                f"{type(navigator.agent).__name__} has no critic, which learning from rewards needs; "
                "train it by imitation"
            )
        rows = torch.tensor([row_of[walk] for walk in step.trajectories], device=device)
        worth = torch.from_numpy(reward.step(step.trajectories)).to(step.decision.value)
        decision = with_auxiliary_loss(navigator, step.decision, goals[rows])
        wanted = (
            None if comment is None else comment(decision, step.observation, step.trajectories).to(device)
        )
        lived = Transition(
            rows, decision.logits, step.decision.value, step.actions, worth, decision.aside, wanted
        )
        steps.append(lived)
        last = step
    beyond = torch.zeros(len(source.trajectories), device=device)
    if last is not None:
        cut, values = _value_beyond(navigator, atlas, last, memory)
        beyond = beyond.index_put((steps[-1].rows[cut],), values.to(beyond))
    if memory is not None:
        memory.finish()
    return steps, beyond


def _value_beyond(
    navigator: Navigator, atlas: Atlas, last: RolloutStep, memory: TrainingMemory | None
) -> tuple[Tensor, Tensor]:
    """Which walks of a last step were cut off, and what their agents expect where they came to.

    Nothing is remembered there: an episode that is cut off does not keep the place it reached (spec C.3).
    """
    cut = (
        torch.tensor([not walk.stopped for walk in last.trajectories])
        .nonzero()
        .flatten()
        .to(navigator.device)
    )
    if not len(cut):
        return cut, torch.zeros(0, device=navigator.device)
    with torch.no_grad():
        state = navigator.advance(last.state.only(cut), last.observation.only(cut), last.actions[cut])
        reached = np.array([walk.poses[-1] for walk in last.trajectories if not walk.stopped], dtype=np.int64)
        past = previous_viewpoints([walk for walk in last.trajectories if not walk.stopped])
        observation = Observation.of(atlas, Pose(*reached.T), past=past, device=navigator.device)
        value = navigator.decide(state, navigator.see(observation, memory)).value
    return cut, torch.zeros(len(cut)) if value is None else value
