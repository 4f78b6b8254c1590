"""What is asked of an agent once: an instruction, where it starts, and the way it should go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from esceme.errors import DataError, WorldError, prefix_errors
from esceme.world.atlas import Atlas
from esceme.world.graph import SUFFIX, SceneGraph, scene_ids

SUCCESS_WITHIN = 3.0
"""Stopping nearer to the goal than this many metres is success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One instruction to follow; every task's files become these."""

    episode_id: str
    """Unique within a split: the id that prediction files use."""
    scene_id: str
    path_id: str
    """Shared by the instructions that describe the same walk."""
    reference_path: tuple[str, ...]
    """Viewpoints from start to goal; only the start where the goal is withheld (test splits)."""
    heading: float
    instruction: str
    tokens: tuple[int, ...] | None = None
    """Ids of a pre-encoded instruction, as stored in the file (untruncated)."""
    language: str = "en"
    goals: tuple[str, ...] = ()
    """Where stopping counts: the end panoramas of a dialog, otherwise the end of the reference path."""
    object_id: str | None = None
    """The object to find (REVERIE)."""
    goal_withheld: bool = False
    """Whether this is a test episode, whose goal only a leaderboard knows."""

    @property
    def start(self) -> str:
        """Where the episode begins."""
        return self.reference_path[0]

    @property
    def goal(self) -> str:
        """Where the reference path ends."""
        return self.reference_path[-1]

    def expert_at(self, step: int) -> str:
        """Where the reference path goes at time `step`; its end means stop (spec A.11)."""
        return self.reference_path[min(step + 1, len(self.reference_path) - 1)]

    def expert_from(self, viewpoint: str) -> str:
        """Where the reference path goes after `viewpoint`; its end means stop. Off the path: `WorldError`."""
        if viewpoint not in self.reference_path:
            raise WorldError(
                f"viewpoint '{viewpoint}' is not on the reference path of episode {self.episode_id}"
            )
        return self.expert_at(self.reference_path.index(viewpoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogEpisode(Episode):
    """An episode whose instruction is a dialog about a target object (CVDN)."""

    target: str = ""
    player_path: tuple[str, ...] = ()
    """What the human walked after the latest answer."""
    planner_path: tuple[str, ...] = ()
    """What the human oracle was shown."""


def locate_goals(episodes: Sequence[Episode], atlas: Atlas) -> NDArray[np.int64]:
    """Where stopping counts, as integers, (E, G): filled up with the last goal, which changes no nearest."""
    goals = []
    for episode in episodes:
        with prefix_errors(file=f"episode {episode.episode_id}"):
            goals.append(atlas.locate(episode.scene_id, episode.goals or [episode.goal]))
    most = max(map(len, goals))
    return np.stack([each[np.arange(most).clip(max=len(each) - 1)] for each in goals])


def require_unique(episodes: Sequence[Episode], file: object) -> list[Episode]:
    """The episodes, or a `DataError` naming the id that occurs twice."""
    seen: set[str] = set()
    for episode in episodes:
        if episode.episode_id in seen:
            raise DataError(f"{file}: episode id '{episode.episode_id}' occurs twice")
        seen.add(episode.episode_id)
    return list(episodes)


def scenes_of(episodes: Iterable[Episode], connectivity: str | Path, file: object) -> set[str]:
    """The scenes that episodes take place in; a `DataError` names the episode of one that has no graph."""
    present, needed = set(scene_ids(connectivity)), set()
    for episode in episodes:
        if episode.scene_id not in present:
            raise DataError(
                f"{file}: episode {episode.episode_id}: scene '{episode.scene_id}' "
                f"has no {episode.scene_id}{SUFFIX} in {connectivity}"
            )
        needed.add(episode.scene_id)
    return needed


def one_per_path(episodes: Iterable[Episode]) -> Iterable[Episode]:
    """The first episode of each different walk: instructions of one path share it."""
    first: dict[tuple[object, ...], Episode] = {}
    for each in episodes:
        first.setdefault((each.scene_id, each.reference_path, each.goals), each)
    return first.values()


def check_paths(episodes: Iterable[Episode], graphs: dict[str, SceneGraph], file: object) -> None:
    """Raise `DataError` naming the first episode whose path does not exist in its scene."""
    for episode in episodes:
        with prefix_errors(file=file, record=f"episode {episode.episode_id}"):
            check_path(episode.scene_id, episode.reference_path, graphs)
            for goal in episode.goals:
                graphs[episode.scene_id].index(goal)


def check_path(scene_id: str, path: Sequence[str], graphs: dict[str, SceneGraph]) -> None:
    """Raise `WorldError` unless `path` can be walked edge by edge (standing still is allowed)."""
    if scene_id not in graphs:
        raise WorldError(f"scene '{scene_id}' is unknown; is its connectivity file missing?")
    graph = graphs[scene_id]
    for viewpoint in path:
        graph.index(viewpoint)
    for a, b in zip(path, path[1:], strict=False):
        if a != b and not graph.adjacent(a, b):
            raise WorldError(f"no edge leads from '{a}' to '{b}' in scene '{scene_id}'")
