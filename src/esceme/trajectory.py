"""Inputs of `roll_out`: trajectories, sources that start trajectories, functions that select actions."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import FACE_FORWARD, KEEP_VIEW, Decision
from esceme.errors import EvaluationError, WorldError
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world.atlas import Atlas, Pose


@dataclass(eq=False)
class Trajectory:
    """Path of an agent through one episode, finished or not."""

    episode: Episode
    poses: list[tuple[int, int]]
    """(viewpoint index in the atlas, faced view from 0 to 35) at the start and after every move."""
    num_decisions: int = 0
    """Number of decisions so far, including STOP."""
    stopped: bool = False
    """Whether the agent chose STOP."""
    visit: int = 1
    """Number of this episode among the episodes in its scene (or tour), counted from 1."""
    actions: list[int] = field(default_factory=list)
    """Number of each selected action among the actions that existed at its step; see `action_numbers`."""
    num_recomputed: int = 0
    """Number of decisions that were computed again in full precision; see `Decision.recomputed`."""

    @classmethod
    def begin(cls, atlas: Atlas, episode: Episode, *, visit: int = 1) -> Trajectory:
        """Return a new trajectory at the start of its episode."""
        pose = atlas.begin(atlas.locate(episode.scene_id, [episode.start]), [episode.heading])
        return cls(episode, [(int(pose.viewpoint[0]), int(pose.view[0]))], visit=visit)

    @property
    def viewpoint(self) -> int:
        """Viewpoint index of the agent's current position."""
        return self.poses[-1][0]

    @property
    def decision_viewpoints(self) -> list[int]:
        """Viewpoints at which the agent decided, and which a memory therefore stores (docs/spec.md C.3).

        They include viewpoints that the agent passed on a route or after its last decision. The agent knew
        these viewpoints before, so that they do not change a memory.
        """
        poses = self.poses if self.stopped else self.poses[:-1]
        return [viewpoint for viewpoint, _ in poses]


class EpisodeSource(Protocol):
    """Source of new trajectories for a rollout. `roll_out` calls `next` before every step."""

    def next(self, finished: Sequence[Trajectory], active: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return the trajectories that start now, which may be none.

        `finished` are the trajectories that ended with the last step, `active` those that continue. The
        rollout ends when no trajectory is active and none starts.
        """


class SingleBatch:
    """Episode source that starts all episodes at once, as in a training batch."""

    def __init__(self, atlas: Atlas, episodes: Sequence[Episode]) -> None:
        self.trajectories = [Trajectory.begin(atlas, episode) for episode in episodes]
        self._has_started = False

    def next(self, finished: Sequence[Trajectory], active: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Return all trajectories at the first call and none at later calls."""
        started = [] if self._has_started else self.trajectories
        self._has_started = True
        return started


def action_numbers(decision: Decision, num_candidates: NDArray[np.integer], actions: Tensor) -> list[int]:
    """Return the number of each action among the actions that exist for its agent, counted from 0.

    The actions of an agent are its candidates, STOP, then the actions of `decision.routes`. `num_candidates`
    (B,) are the agents' numbers of candidates. Unlike the index of an action in the logits, its number does
    not depend on the padding of a batch.
    """
    choices = actions.cpu().numpy()
    if decision.routes is not None:
        first = decision.routes.first_action
        choices = np.where(choices >= first, choices - first + num_candidates + 1, choices)
    return [int(number) for number in choices]


def previous_viewpoints(trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
    """Return the viewpoints that each trajectory visited before its current one, (B, P), padded with -1."""
    longest = max(len(trajectory.poses) for trajectory in trajectories) - 1
    previous = np.full((len(trajectories), longest), -1, dtype=np.int64)
    for row, trajectory in zip(previous, trajectories, strict=True):
        row[: len(trajectory.poses) - 1] = [viewpoint for viewpoint, _ in trajectory.poses[:-1]]
    return previous


def next_poses(atlas: Atlas, pose: Pose, decision: Decision, actions: Tensor) -> list[list[tuple[int, int]]]:
    """Return, for each agent, the poses to which its action leads; an empty list for STOP.

    `actions` is (B,). An action is the index of a candidate, the number of candidates (STOP), or an action of
    `decision.routes`, which may lead through several poses.
    """
    choices, stops = actions.cpu().numpy(), atlas.degrees[pose.viewpoint]
    jumps = np.zeros_like(stops, dtype=bool)
    if decision.routes is not None:
        jumps = choices >= decision.routes.first_action
    stepped = atlas.step(pose, np.where(jumps, stops, choices))
    paths = [
        [] if choice == stop else [(int(viewpoint), int(view))]
        for choice, stop, viewpoint, view in zip(choices, stops, *stepped, strict=True)
    ]
    for row in np.flatnonzero(jumps).tolist():
        assert decision.routes is not None
        route = decision.routes.shortest_path(row, int(choices[row]))
        paths[row] = resolve_views(atlas, (int(pose.viewpoint[row]), int(pose.view[row])), route)
    return paths


def resolve_views(
    atlas: Atlas, start: tuple[int, int], route: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the poses of a route from the pose `start`, with a view of 0 to 35 for `KEEP_VIEW` and others.

    Raise `WorldError` if a view is `FACE_FORWARD` and the pose is not adjacent to the one before.
    """
    poses = [start]
    for viewpoint, view in route:
        if view == FACE_FORWARD:
            slots = np.flatnonzero(atlas.neighbours[poses[-1][0]] == viewpoint)
            if not slots.size:
                names = (atlas.name(poses[-1][0])[1], atlas.name(viewpoint)[1])
                raise WorldError(f"the route from '{names[0]}' to '{names[1]}' is not an edge of the graph")
            view = int(atlas.views[poses[-1][0], slots[0]])
        poses.append((viewpoint, start[1] if view == KEEP_VIEW else view))
    return poses[1:]


ActionSelector = Callable[[Decision, Observation, Sequence[Trajectory]], Tensor]
"""Function that returns the action of each agent, (B,) int64: an index into axis 1 of the logits."""
Teacher = Callable[[Trajectory], int]
"""Function that returns the index of the viewpoint to go to next. The current viewpoint means STOP."""


def greedy(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
    """Return the actions with the highest logits, (B,). Raise `EvaluationError` if one is not finite.

    NaN and infinity count as highest. Actions that do not exist have logit -inf and are never selected.
    """
    actions = decision.logits.argmax(1)
    is_finite = decision.logits.gather(1, actions[:, None])[:, 0].isfinite()
    if not is_finite.all():
        trajectory = trajectories[int(is_finite.long().argmin())]
        raise EvaluationError(
            f"episode {trajectory.episode.episode_id}, decision {trajectory.num_decisions + 1}: the scores "
            "of the actions are not finite; the weights are damaged or training has diverged, use others"
        )
    return actions


def replaying(recorded: Callable[[Trajectory], Sequence[int]]) -> ActionSelector:
    """Return a function that selects recorded actions.

    `recorded` returns the numbers of a trajectory's recorded actions; see `action_numbers`. Where nothing is
    recorded for a step, the action with the highest logit is selected.
    """

    def select(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        actions = decision.logits.argmax(1)
        stops = observation.num_candidates.tolist()
        for row, (trajectory, stop) in enumerate(zip(trajectories, stops, strict=True)):
            numbers = recorded(trajectory)
            if trajectory.num_decisions < len(numbers):
                number = numbers[trajectory.num_decisions]
                if number > stop and decision.routes is not None:
                    number += decision.routes.first_action - stop - 1
                actions[row] = number
        return actions

    return select


def sampling(seed: int | Sequence[int]) -> ActionSelector:
    """Return a function that samples actions from the softmax of the logits.

    A sample depends only on the seed, the episode and the step, not on the rest of the batch.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)

    def select(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        generators = [
            np.random.default_rng(
                [*seeds, zlib.crc32(trajectory.episode.episode_id.encode()), trajectory.num_decisions]
            )
            for trajectory in trajectories
        ]
        points = torch.tensor([generator.random() for generator in generators], dtype=torch.float64)[:, None]
        cumulative = decision.logits.detach().cpu().double().softmax(1).cumsum(1)  # (B, C)
        actions = (cumulative < points * cumulative[:, -1:]).sum(1)
        return actions.to(decision.logits.device)

    return select


def teacher_forcing(atlas: Atlas, teacher: Teacher) -> ActionSelector:
    """Return a function that selects the teacher's actions; see `teacher_actions`."""

    def select(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        return torch.from_numpy(teacher_actions(atlas, teacher, trajectories)).to(decision.logits.device)

    return select


def teacher_actions(atlas: Atlas, teacher: Teacher, trajectories: Sequence[Trajectory]) -> NDArray[np.int64]:
    """Return the teacher's actions, (B,): the index of a candidate, or the number of candidates for STOP.

    Raise `WorldError` if the viewpoint that the teacher returns is not adjacent.
    """
    targets = np.array([teacher(trajectory) for trajectory in trajectories], dtype=np.int64)
    current = np.array([trajectory.viewpoint for trajectory in trajectories], dtype=np.int64)
    is_target = atlas.neighbours[current] == targets[:, None]  # (B, K)
    stops = targets == current
    if (unreachable := ~stops & ~is_target.any(axis=1)).any():
        row = int(np.flatnonzero(unreachable)[0])
        start, end = (atlas.name(viewpoint)[1] for viewpoint in (current[row], targets[row]))
        raise WorldError(
            f"episode {trajectories[row].episode.episode_id}: the teacher's move from '{start}' to '{end}' "
            "is not an edge of the graph"
        )
    return np.where(stops, atlas.degrees[current], is_target.argmax(axis=1))


def reference_path_teacher_by_step(atlas: Atlas) -> Teacher:
    """Return a teacher that follows the reference path by the number of decisions (docs/spec.md A.11).

    After n decisions, the teacher returns viewpoint n + 1 of the path, wherever the agent is. After the end
    of the path, it returns the current viewpoint, which means STOP.
    """

    def teach(trajectory: Trajectory) -> int:
        episode, step = trajectory.episode, trajectory.num_decisions
        if step >= len(episode.reference_path) - 1:
            return trajectory.viewpoint
        return int(atlas.locate(episode.scene_id, [episode.expert_at(step)])[0])

    return teach
