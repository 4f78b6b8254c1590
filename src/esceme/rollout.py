"""The rollout loop of training and evaluation: observe, recall, read, decide, remember, move.

The loop works with any agent and any memory. Trajectories of a batch are independent. A trajectory that ends
leaves the batch at once, and new trajectories join the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import FACE_FORWARD, Decision, PrivilegedInfo, State, TokenBatch
from esceme.memory.bank import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode, locate_goals
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.text import pad_tokens
from esceme.trajectory import (
    ActionSelector,
    EpisodeSource,
    Trajectory,
    action_numbers,
    next_poses,
    previous_viewpoints,
    resolve_views,
)
from esceme.world.atlas import Atlas, Pose


class RolloutStep(NamedTuple):
    """One step of a batch of B trajectories."""

    trajectories: list[Trajectory]
    """Trajectories of the batch. Their poses already include the move of this step."""
    state: State
    """State of the agents after `decide`."""
    observation: Observation
    """Observation before the move, after the reader has added what it recalled from memory."""
    decision: Decision
    actions: Tensor
    """(B,) int64: selected actions."""
    finished: list[Trajectory]
    """Trajectories that ended with this step."""


def roll_out(
    navigator: Navigator,
    atlas: Atlas,
    source: EpisodeSource,
    memory: Memory | None,
    select: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
) -> Iterator[RolloutStep]:
    """Run the episodes of `source`, with at most `max_steps` decisions each, and yield every step.

    Each step follows the paper (docs/spec.md C.3): decide with the memory so far, remember the current
    viewpoint, move. If the last allowed decision is a move, the viewpoint that the agent reaches is not
    remembered. For agents with `stops_at_limit`, the last allowed decision is STOP. When an episode has
    ended, the path of `Agent.final_paths` is appended to its trajectory.
    """
    active, finished = list[Trajectory](), list[Trajectory]()
    state: State | None = None
    device = navigator.device
    while True:
        if started := source.next(finished, active):
            new = begin_trajectories(navigator, atlas, started, encode)
            active, state = [*active, *started], new if state is None else state.concat(new)
        if not active or state is None:
            return
        # Observe, recall and read, decide, remember.
        poses: NDArray[np.int64] = np.array([trajectory.poses[-1] for trajectory in active], dtype=np.int64)
        pose = Pose(poses[:, 0], poses[:, 1])
        plain = Observation.from_atlas(
            atlas, pose, previous_viewpoints=previous_viewpoints(active), device=device
        )
        observation = navigator.observe(plain, memory)
        decision = navigator.decide(state, observation)
        actions = select(decision, plain, active)
        if navigator.agent.stops_at_limit:
            is_last = [trajectory.num_decisions + 1 >= max_steps for trajectory in active]
            actions = torch.where(torch.tensor(is_last, device=device), plain.num_candidates, actions)
        if memory is not None:
            memory.remember_observation(plain)
        # Move.
        numbers = action_numbers(decision, atlas.degrees[pose.viewpoint], actions)
        paths = next_poses(atlas, pose, decision, actions)
        if decision.recomputed is not None:
            for trajectory, again in zip(active, decision.recomputed.tolist(), strict=True):
                trajectory.num_recomputed += again
        for trajectory, number, moves in zip(active, numbers, paths, strict=True):
            trajectory.actions.append(number)
            trajectory.num_decisions += 1
            trajectory.stopped = not moves
            trajectory.poses += moves
        ended = [trajectory.stopped or trajectory.num_decisions >= max_steps for trajectory in active]
        finished = [trajectory for trajectory, over in zip(active, ended, strict=True) if over]
        state = state if decision.state is None else decision.state
        if finished:
            rows = torch.tensor(ended).nonzero().flatten().to(device)
            final_paths = navigator.final_paths(state.select(rows)) or []
            for trajectory, viewpoints in zip(finished, final_paths, strict=False):
                route = [(viewpoint, FACE_FORWARD) for viewpoint in viewpoints]
                trajectory.poses += resolve_views(atlas, trajectory.poses[-1], route)
        yield RolloutStep(list(active), state, observation, decision, actions, finished)
        # Keep the trajectories that continue, and update their state by the move.
        if finished:
            remaining = [row for row, over in enumerate(ended) if not over]
            active = [active[row] for row in remaining]
            rows = torch.tensor(remaining, dtype=torch.int64).to(device)
            state, observation, actions = state.select(rows), observation.select(rows), actions[rows]
        if active:
            state = navigator.advance(state, observation, actions)


def begin_trajectories(
    navigator: Navigator, atlas: Atlas, trajectories: Sequence[Trajectory], encode: InstructionEncoder
) -> State:
    """Return the agents' initial state, which contains the encoded instructions of new trajectories."""
    device, episodes = navigator.device, [trajectory.episode for trajectory in trajectories]
    ids, valid = pad_tokens([encode(episode) for episode in episodes])
    tokens = TokenBatch(torch.from_numpy(ids).to(device), torch.from_numpy(valid).to(device))
    start = torch.tensor([trajectory.poses[0][0] for trajectory in trajectories], device=device)
    return navigator.begin(tokens, start, _privileged_info(atlas, episodes))


def _privileged_info(atlas: Atlas, episodes: Sequence[Episode]) -> PrivilegedInfo | None:
    """Return the goals of all episodes, for scripted agents; None if any goal is withheld."""
    if any(episode.goal_withheld for episode in episodes):
        return None
    return PrivilegedInfo(atlas, locate_goals(episodes, atlas))
