"""One episode lived, who hands episodes out, and how a choice is made: what `roll_out` is given."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world.atlas import Atlas, Pose


@dataclass(eq=False)
class Trajectory:
    """One episode, lived as far as it goes."""

    episode: Episode
    poses: list[tuple[int, int]]
    """Viewpoint and faced view at the start and after every move."""
    decisions: int = 0
    """How many were made, STOP included."""
    stopped: bool = False
    """Whether the agent chose to end."""
    visit: int = 1
    """Which of the episodes lived in its scene this is, counted by whoever hands them out."""

    @classmethod
    def begin(cls, atlas: Atlas, episode: Episode, *, visit: int = 1) -> Trajectory:
        """A walk that stands where its episode starts."""
        pose = atlas.begin(atlas.locate(episode.scene_id, [episode.start]), [episode.heading])
        return cls(episode, [(int(pose.viewpoint[0]), int(pose.view[0]))], visit=visit)

    @property
    def viewpoint(self) -> int:
        """Where it stands."""
        return self.poses[-1][0]

    @property
    def remembered(self) -> list[int]:
        """The viewpoints at which something was decided: what a memory holds of this walk (spec C.3).

        Places that are only passed through lie on the way back to others, and were decided at before.
        """
        poses = self.poses if self.stopped else self.poses[:-1]
        return [viewpoint for viewpoint, _ in poses]


class EpisodeSource(Protocol):
    """Who hands out episodes."""

    def next(self, finished: Sequence[Trajectory], living: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """Walks to begin now, given those that just ended and those that go on; with none of both it is over.

        It is asked before every step.
        """


class SingleBatch:
    """A source that hands out its episodes all at once: a batch of training."""

    def __init__(self, atlas: Atlas, episodes: Sequence[Episode]) -> None:
        """Begin all `episodes` together."""
        self.walks = [Trajectory.begin(atlas, episode) for episode in episodes]
        self._begun = False

    def next(self, finished: Sequence[Trajectory], living: Sequence[Trajectory]) -> Sequence[Trajectory]:
        """All of them, then none."""
        begun = [] if self._begun else self.walks
        self._begun = True
        return begun


def previous_viewpoints(walks: Sequence[Trajectory]) -> NDArray[np.int64]:
    """Where walks that stand somewhere have been before, (B, P), -1 for none."""
    longest = max(len(walk.poses) for walk in walks) - 1
    past = np.full((len(walks), longest), -1, dtype=np.int64)
    for row, walk in zip(past, walks, strict=True):
        row[: len(walk.poses) - 1] = [viewpoint for viewpoint, _ in walk.poses[:-1]]
    return past


def next_poses(atlas: Atlas, pose: Pose, decision: Decision, chosen: Tensor) -> list[list[tuple[int, int]]]:
    """The poses that each agent comes to by its choice, in order; none for who stops."""
    choices, stops = chosen.cpu().numpy(), atlas.degrees[pose.viewpoint]
    jumps = np.zeros_like(stops, dtype=bool)
    if decision.routes is not None:
        jumps = choices >= decision.routes.first
    stepped = atlas.step(pose, np.where(jumps, stops, choices))
    ways = [
        [] if choice == stop else [(int(viewpoint), int(view))]
        for choice, stop, viewpoint, view in zip(choices, stops, *stepped, strict=True)
    ]
    for row in np.flatnonzero(jumps).tolist():
        assert decision.routes is not None
        way, faced = decision.routes.way(row, int(choices[row])), int(pose.view[row])
        ways[row] = [(viewpoint, faced if view < 0 else view) for viewpoint, view in way]
    return ways


ActionSelector = Callable[[Decision, Observation, Sequence[Trajectory]], Tensor]
"""Which of its choices each agent takes, (B,)."""
Teacher = Callable[[Trajectory], int]
"""The viewpoint to go to next, the present one meaning STOP."""


def greedy(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
    """The choice with the highest score."""
    return decision.logits.argmax(1)


def sampling(seed: int | Sequence[int]) -> ActionSelector:
    """Choices drawn by their probabilities.

    What is drawn depends on the seed, the episode and the step alone, not on who else is in the batch.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        draws = [
            np.random.default_rng([*seeds, zlib.crc32(walk.episode.episode_id.encode()), walk.decisions])
            for walk in walks
        ]
        points = torch.tensor([draw.random() for draw in draws], dtype=torch.float64)[:, None]
        below = decision.logits.detach().cpu().double().softmax(1).cumsum(1)  # (B, C)
        drawn = (below < points * below[:, -1:]).sum(1)
        return drawn.to(decision.logits.device)

    return choose


def teacher_forcing(atlas: Atlas, teacher: Teacher) -> ActionSelector:
    """What a teacher says; see `teacher_actions`."""

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        return torch.from_numpy(teacher_actions(atlas, teacher, walks)).to(decision.logits.device)

    return choose


def teacher_actions(atlas: Atlas, teacher: Teacher, walks: Sequence[Trajectory]) -> NDArray[np.int64]:
    """Which of its candidates each walk should take, (B,); the number of candidates means STOP.

    Raises `WorldError` where no edge leads to the viewpoint that the teacher says.
    """
    wanted = np.array([teacher(walk) for walk in walks], dtype=np.int64)
    here = np.array([walk.viewpoint for walk in walks], dtype=np.int64)
    leads = atlas.neighbours[here] == wanted[:, None]  # (B, K)
    stays = wanted == here
    if (astray := ~stays & ~leads.any(axis=1)).any():
        row = int(np.flatnonzero(astray)[0])
        start, end = (atlas.name(each[row])[1] for each in (here, wanted))
        raise WorldError(
            f"episode {walks[row].episode.episode_id}: the teacher wants to go from '{start}' to '{end}', "
            "which no edge joins"
        )
    return np.where(stays, atlas.degrees[here], leads.argmax(axis=1))


def teacher_by_step(atlas: Atlas) -> Teacher:
    """The teacher of imitation: the reference path by the number of decisions made (spec A.11).

    Once the path is over it says STOP, wherever the walk stands.
    """

    def teach(walk: Trajectory) -> int:
        if walk.decisions >= len(walk.episode.reference_path) - 1:
            return walk.viewpoint
        return int(atlas.locate(walk.episode.scene_id, [walk.episode.expert_at(walk.decisions)])[0])

    return teach
