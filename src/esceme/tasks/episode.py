"""Episodes: an instruction, a start, a reference path and goals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme.errors import DataError, WorldError, prefix_errors
from esceme.world.atlas import Atlas
from esceme.world.graph import SUFFIX, SceneGraph, scene_ids

SUCCESS_WITHIN = 3.0
"""An episode succeeds if it ends at less than this distance from the goal, in metres."""
Angle = Annotated[float, msgspec.Meta(ge=-1000, le=1000)]
"""An angle in a file, in radians. Published angles lie within one turn; a larger number means that the file
is damaged."""
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
"""Token id in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """Instruction in a scene, with its start, heading (radians) and reference path; used by all tasks."""

    episode_id: str
    """Id in prediction files, unique within a split."""
    scene_id: str
    path_id: str
    """Id of the path, which several instructions can share."""
    reference_path: tuple[str, ...]
    """Viewpoint ids from start to goal; only the start if the goal is withheld (test splits)."""
    heading: float
    instruction: str
    tokens: tuple[int, ...] | None = None
    """Token ids of the instruction in a pre-encoded file, not truncated."""
    language: str = "en"
    goals: tuple[str, ...] = ()
    """End panoramas of a dialog, each of which is a goal. If empty, the reference path ends at the goal."""
    object_id: str | None = None
    """Id of the target object (REVERIE)."""
    goal_withheld: bool = False
    """Whether this is a test episode, whose goal only the leaderboard has."""

    @property
    def annotated_paths(self) -> tuple[tuple[str, ...], ...]:
        """All paths in the annotation of this episode, the reference path first."""
        return (self.reference_path,)

    @property
    def start(self) -> str:
        """First viewpoint id of the reference path."""
        return self.reference_path[0]

    @property
    def goal(self) -> str:
        """Last viewpoint id of the reference path."""
        return self.reference_path[-1]

    def expert_at(self, step: int) -> str:
        """Return the viewpoint to which the expert moves at decision `step`, counted from 0.

        This is the next viewpoint of the reference path. After the end of the path it is the goal, where the
        agent should stop (docs/spec.md A.11).
        """
        return self.reference_path[min(step + 1, len(self.reference_path) - 1)]

    def expert_from(self, viewpoint: str) -> str:
        """Return the viewpoint after `viewpoint` on the reference path; the goal is followed by itself.

        Raises `WorldError` if `viewpoint` is not on the path.
        """
        if viewpoint not in self.reference_path:
            raise WorldError(
                f"viewpoint '{viewpoint}' is not on the reference path of episode {self.episode_id}"
            )
        return self.expert_at(self.reference_path.index(viewpoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogEpisode(Episode):
    """Episode whose instruction is a dialog about a target object (CVDN)."""

    target: str = ""
    player_path: tuple[str, ...] = ()
    """Path of the human navigator after the latest answer."""
    planner_path: tuple[str, ...] = ()
    """Path that was shown to the human oracle; empty in pre-encoded files."""

    @property
    def annotated_paths(self) -> tuple[tuple[str, ...], ...]:
        """The reference path and, in a raw dialog, the paths of the human navigator and of the oracle."""
        both = (self.player_path, self.planner_path) if self.planner_path else ()
        return (self.reference_path, *both)


def locate_goals(episodes: Sequence[Episode], atlas: Atlas) -> NDArray[np.int64]:
    """Return the goals (E, G) of episodes as viewpoint indices; padding repeats an episode's last goal."""
    goals = []
    for episode in episodes:
        with prefix_errors(file=f"episode {episode.episode_id}"):
            goals.append(atlas.locate(episode.scene_id, episode.goals or [episode.goal]))
    width = max(map(len, goals))
    return np.stack([row[np.arange(width).clip(max=len(row) - 1)] for row in goals])


def require_unique_ids(episodes: Sequence[Episode], file: object) -> list[Episode]:
    """Return `episodes` as a list; raise `DataError`, which names `file`, if an episode id occurs twice."""
    seen: set[str] = set()
    for episode in episodes:
        if episode.episode_id in seen:
            raise DataError(f"{file}: episode id '{episode.episode_id}' occurs twice")
        seen.add(episode.episode_id)
    return list(episodes)


def scenes_of(episodes: Iterable[Episode], connectivity: str | Path, file: object) -> set[str]:
    """Return the scene ids of episodes; raise `DataError` if a scene has no connectivity file.

    `connectivity` is the folder of these files. The message names `file`, the source of the episodes.
    """
    present, needed = set(scene_ids(connectivity)), set()
    for episode in episodes:
        if episode.scene_id not in present:
            raise DataError(
                f"{file}: episode {episode.episode_id}: scene '{episode.scene_id}' "
                f"has no {episode.scene_id}{SUFFIX} in {connectivity}"
            )
        needed.add(episode.scene_id)
    return needed


def first_episode_per_path(episodes: Iterable[Episode]) -> Iterable[Episode]:
    """Return one episode, the first, for every different combination of paths and goals."""
    first: dict[tuple[object, ...], Episode] = {}
    for episode in episodes:
        first.setdefault((episode.scene_id, episode.annotated_paths, episode.goals), episode)
    return first.values()


def check_paths(episodes: Iterable[Episode], graphs: dict[str, SceneGraph], file: object) -> None:
    """Raise `DataError` for the first episode of which a path or goal is not in the graph of its scene.

    `file` is the annotation file that the error message names.
    """
    for episode in episodes:
        with prefix_errors(file=file, record=f"episode {episode.episode_id}"):
            for path in episode.annotated_paths:
                check_path(episode.scene_id, path, graphs)
            for goal in episode.goals:
                graphs[episode.scene_id].index(goal)


def check_path(scene_id: str, path: Sequence[str], graphs: dict[str, SceneGraph]) -> None:
    """Raise `WorldError` unless consecutive viewpoints of `path` are equal or adjacent."""
    if scene_id not in graphs:
        raise WorldError(f"scene '{scene_id}' is unknown; is its connectivity file missing?")
    graph = graphs[scene_id]
    for viewpoint in path:
        graph.index(viewpoint)
    for a, b in zip(path, path[1:], strict=False):
        if a != b and not graph.adjacent(a, b):
            raise WorldError(f"no edge leads from '{a}' to '{b}' in scene '{scene_id}'")
