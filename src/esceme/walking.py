"""One episode lived, who hands episodes out, and how a choice is made: what `roll_out` is given."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from esceme.agents.base import Decision
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.tasks.episode import Episode
from esceme.world.atlas import Atlas


@dataclass(eq=False)
class Walk:
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
    def begin(cls, atlas: Atlas, episode: Episode, *, visit: int = 1) -> Walk:
        """A walk that stands where its episode starts."""
        pose = atlas.begin(atlas.locate(episode.scene_id, [episode.start]), [episode.heading])
        return cls(episode, [(int(pose.viewpoint[0]), int(pose.view[0]))], visit=visit)

    @property
    def viewpoint(self) -> int:
        """Where it stands."""
        return self.poses[-1][0]

    @property
    def remembered(self) -> list[int]:
        """The viewpoints at which something was decided: what a memory holds of this walk (spec C.3)."""
        return [viewpoint for viewpoint, _ in self.poses[: self.decisions]]


class Source(Protocol):
    """Who hands out episodes."""

    def next(self, finished: Sequence[Walk], living: Sequence[Walk]) -> Sequence[Walk]:
        """Walks to begin now, given those that just ended and those that go on; with none of both it is over.

        It is asked before every step.
        """


class Once:
    """A source that hands out its episodes all at once: a batch of training."""

    def __init__(self, atlas: Atlas, episodes: Sequence[Episode]) -> None:
        """Begin all `episodes` together."""
        self._walks = [Walk.begin(atlas, episode) for episode in episodes]

    def next(self, finished: Sequence[Walk], living: Sequence[Walk]) -> Sequence[Walk]:
        """All of them, then none."""
        begun, self._walks = self._walks, []
        return begun


Encode = Callable[[Episode], Sequence[int]]
"""The ids of an episode's instruction."""
Choose = Callable[[Decision, Observation, Sequence[Walk]], Tensor]
"""Which of its choices each agent takes, (B,)."""


def greedy(decision: Decision, observation: Observation, walks: Sequence[Walk]) -> Tensor:
    """The choice with the highest score."""
    return decision.logits.argmax(1)


def sampling(seed: int | Sequence[int]) -> Choose:
    """Choices drawn by their probabilities.

    What is drawn depends on the seed, the episode and the step alone, not on who else is in the batch.
    """
    seeds = [seed] if isinstance(seed, int) else list(seed)

    def choose(decision: Decision, observation: Observation, walks: Sequence[Walk]) -> Tensor:
        draws = [
            np.random.default_rng([*seeds, zlib.crc32(walk.episode.episode_id.encode()), walk.decisions])
            for walk in walks
        ]
        points = torch.tensor([draw.random() for draw in draws], dtype=torch.float64)[:, None]
        below = decision.logits.detach().cpu().double().softmax(1).cumsum(1)  # (B, C)
        drawn = (below < points * below[:, -1:]).sum(1)
        return drawn.to(decision.logits.device)

    return choose


def following(atlas: Atlas, expert: Callable[[Walk], int]) -> Choose:
    """What a teacher says: the viewpoint to go to next, the present one meaning STOP."""

    def choose(decision: Decision, observation: Observation, walks: Sequence[Walk]) -> Tensor:
        taken = []
        for walk in walks:
            wanted = expert(walk)
            neighbours = atlas.neighbours[walk.viewpoint, : atlas.degrees[walk.viewpoint]].tolist()
            if wanted != walk.viewpoint and wanted not in neighbours:
                here, there = (atlas.name(viewpoint)[1] for viewpoint in (walk.viewpoint, wanted))
                raise WorldError(
                    f"episode {walk.episode.episode_id}: the teacher wants to go from '{here}' to '{there}', "
                    "which no edge joins"
                )
            taken.append(len(neighbours) if wanted == walk.viewpoint else neighbours.index(wanted))
        return torch.tensor(taken, device=decision.logits.device)

    return choose


def by_time(atlas: Atlas) -> Callable[[Walk], int]:
    """The teacher of imitation: the reference path by the number of decisions made (spec A.11)."""
    return lambda walk: int(atlas.locate(walk.episode.scene_id, [walk.episode.expert_at(walk.decisions)])[0])
