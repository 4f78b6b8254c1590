"""THE loop: look, recall, read, decide, remember, move; everything that walks goes through it.

It knows neither the agent nor the memory, nor why anybody walks. Agents in a batch are independent: one that
ends leaves at once, and whatever `source` hands out next takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision, PrivilegedInfo, State, TokenBatch
from esceme.memory.bank import Memory
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.tasks.episode import Episode, locate_goals
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.text import pad
from esceme.trajectory import (
    ActionSelector,
    EpisodeSource,
    Trajectory,
    next_poses,
    previous_viewpoints,
)
from esceme.world.atlas import Atlas, Pose


class RolloutStep(NamedTuple):
    """One step of a batch, as it was lived."""

    walks: list[Trajectory]
    """Whose step it was; their poses already hold the move."""
    state: State
    """What they carried when they had decided."""
    seen: Observation
    decision: Decision
    chosen: Tensor
    """(B,)"""
    finished: list[Trajectory]
    """Those of the walks that ended with this step."""


@dataclass
class _Batch:
    """The walks that are going on, and what moves them; all in the same order."""

    walks: list[Trajectory] = field(default_factory=list)
    state: State | None = None

    def pose(self) -> Pose:
        now: NDArray[np.int64] = np.array([walk.poses[-1] for walk in self.walks], dtype=np.int64)
        return Pose(now[:, 0], now[:, 1])

    def add(self, walks: Sequence[Trajectory], state: State) -> None:
        self.walks += walks
        self.state = state if self.state is None else self.state.joined(state)


def roll_out(
    navigator: Navigator,
    atlas: Atlas,
    source: EpisodeSource,
    memory: Memory | None,
    choose: ActionSelector,
    *,
    encode: InstructionEncoder,
    max_steps: int,
) -> Iterator[RolloutStep]:
    """Live the episodes of `source`, at most `max_steps` decisions each, and tell every step.

    The order of a step is the paper's: decide with what was remembered before, remember where one stands,
    move (spec C.3). Where an episode ends by its last allowed move, the place it reached is not remembered.
    """
    batch, finished, device = _Batch(), list[Trajectory](), navigator.device
    while True:
        if begun := source.next(finished, batch.walks):
            batch.add(begun, begin_trajectories(navigator, atlas, begun, encode))
        if not batch.walks or batch.state is None:
            return
        # Look, recall and read, decide, remember.
        pose = batch.pose()
        observation = Observation.of(atlas, pose, past=previous_viewpoints(batch.walks), device=device)
        seen = navigator.see(observation, memory)
        decision = navigator.decide(batch.state, seen)
        chosen = choose(decision, observation, batch.walks)
        if memory is not None:
            memory.remember_seen(observation)
        # Move.
        for walk, way in zip(batch.walks, next_poses(atlas, pose, decision, chosen), strict=True):
            walk.decisions += 1
            walk.stopped = not way
            walk.poses += way
        ended = [walk.stopped or walk.decisions >= max_steps for walk in batch.walks]
        finished = [walk for walk, over in zip(batch.walks, ended, strict=True) if over]
        thought = batch.state if decision.state is None else decision.state
        yield RolloutStep(list(batch.walks), thought, seen, decision, chosen, finished)
        # Who goes on takes along what happened.
        rows = [row for row, over in enumerate(ended) if not over]
        lives = torch.tensor(rows, dtype=torch.int64, device=device)
        batch.walks = [walk for walk, over in zip(batch.walks, ended, strict=True) if not over]
        batch.state = thought.only(lives)
        if batch.walks:
            batch.state = navigator.advance(batch.state, seen.only(lives), chosen[lives])


def begin_trajectories(
    navigator: Navigator, atlas: Atlas, walks: Sequence[Trajectory], encode: InstructionEncoder
) -> State:
    """Read the instructions of walks that begin."""
    device = navigator.device
    ids, valid = pad([encode(walk.episode) for walk in walks])
    words = TokenBatch(torch.from_numpy(ids).to(device), torch.from_numpy(valid).to(device))
    start = torch.tensor([walk.poses[0][0] for walk in walks], device=device)
    return navigator.begin(words, start, _privileged(atlas, [walk.episode for walk in walks]))


def _privileged(atlas: Atlas, episodes: Sequence[Episode]) -> PrivilegedInfo | None:
    """What scripted agents may know; nothing where a goal is withheld."""
    if any(episode.goal_withheld for episode in episodes):
        return None
    return PrivilegedInfo(atlas, locate_goals(episodes, atlas))
