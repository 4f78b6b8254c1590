"""Who knows the way: teachers that say where to go next, and the paths that they teach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.trajectory import Teacher, Trajectory, teacher_actions, teacher_by_step
from esceme.world.atlas import Atlas

__all__ = [
    "COMMENTS",
    "NOBODY",
    "SUPERVISIONS",
    "TEACHERS",
    "Comment",
    "Supervision",
    "Teacher",
    "as_annotated",
    "back_to_the_path",
    "by_location",
    "teacher_by_step",
    "teacher_actions",
    "leads_of",
    "nearest_to_the_goal",
    "player_or_shortest",
    "shortest",
    "shortest_to_a_goal",
]

Supervision = Callable[[Episode, np.random.Generator], Episode]
"""The episode with the reference path to be taught this time; drawn anew for every mini-batch."""

Comment = Callable[[Decision, Observation, Sequence[Trajectory]], Tensor]
"""What agents should have done, of all that they can do, (B,); `NOBODY` where nobody can say."""
NOBODY = -100

PLAYER_SHARE = 0.5
"""How often a dialog is taught along the human's path (spec A.11)."""


# -- where to go next --------------------------------------------------------------------------------------


def by_location(atlas: Atlas) -> Teacher:
    """The reference path after the present viewpoint; off the path: `WorldError`.

    Where the path comes by the present viewpoint more than once, it goes on from the first time, so that who
    follows this teacher walks the loop between the two for ever: teach such paths by time.
    """

    def teach(walk: Trajectory) -> int:
        scene, here = atlas.name(walk.viewpoint)
        return int(atlas.locate(scene, [walk.episode.expert_from(here)])[0])

    return teach


def shortest(atlas: Atlas) -> Teacher:
    """The next viewpoint on a shortest path to the nearest goal, from anywhere; STOP at a goal.

    Raises `WorldError` where no way leads to any goal.
    """

    def teach(walk: Trajectory) -> int:
        scene, here = walk.episode.scene_id, walk.viewpoint
        goals = atlas.locate(scene, _goals(walk.episode))
        if here in goals:
            return here
        metres = atlas.distance(here, goals)
        goal, first = goals[metres.argmin()], int(atlas.first[atlas.scene_of[here]])
        if not np.isfinite(metres.min()):
            raise WorldError(
                f"episode {walk.episode.episode_id}: no way leads from '{atlas.name(here)[1]}' to a goal"
            )
        return first + int(atlas.graph(scene).next_steps[here - first, goal - first])

    return teach


TEACHERS: dict[str, Callable[[Atlas], Teacher]] = {
    "time": teacher_by_step,
    "location": by_location,
    "shortest": shortest,
}


# -- what should have been done, among all that can be ----------------------------------------------------


def back_to_the_path(atlas: Atlas) -> Comment:
    """Of all choices that lead onto the reference path, that which leads furthest along it (spec D.7).

    STOP leads to where an agent stands. Of choices that lead to the same place, going back comes first.
    """

    def worth(walk: Trajectory, leads: NDArray[np.int64]) -> NDArray[np.float64]:
        path = atlas.locate(walk.episode.scene_id, walk.episode.reference_path).tolist()
        left = {viewpoint: len(path) - number for number, viewpoint in enumerate(path)}  # the last counts
        return np.array([left.get(each, np.inf) for each in leads.tolist()])

    return _comment(worth)


def nearest_to_the_goal(atlas: Atlas) -> Comment:
    """Of all choices, that which leads nearest to the goal; of equals, going back comes first."""

    def worth(walk: Trajectory, leads: NDArray[np.int64]) -> NDArray[np.float64]:
        goal = atlas.locate(walk.episode.scene_id, [walk.episode.goal])
        metres = atlas.distance(np.maximum(leads, 0), np.repeat(goal, len(leads)))
        return np.where(leads >= 0, metres, np.inf)

    return _comment(worth)


COMMENTS: dict[str, Callable[[Atlas], Comment]] = {"path": back_to_the_path, "goal": nearest_to_the_goal}


def _comment(worth: Callable[[Trajectory, NDArray[np.int64]], NDArray[np.float64]]) -> Comment:
    """Whoever says of each of (B, C) choices that can be made which is best: the one of least `worth`."""

    def comment(decision: Decision, seen: Observation, walks: Sequence[Trajectory]) -> Tensor:
        leads = leads_of(decision, seen).cpu().numpy()
        possible = decision.logits.detach().isfinite().cpu().numpy()
        first = leads.shape[1] if decision.routes is None else decision.routes.first
        back_first = np.concatenate([np.arange(first, leads.shape[1]), np.arange(first)])
        wanted = []
        for walk, row, can in zip(walks, leads, possible, strict=True):
            least = np.where(can, worth(walk, row), np.inf)[back_first]
            wanted.append(int(back_first[least.argmin()]) if np.isfinite(least.min()) else NOBODY)
        return torch.tensor(wanted)

    return comment


def leads_of(decision: Decision, seen: Observation) -> Tensor:
    """The viewpoint that each choice leads to, (B, C); -1 for what is none."""
    rows = torch.arange(len(seen), device=seen.viewpoint.device)
    leads = seen.neighbour.clone()
    leads[rows, seen.candidate_count] = seen.viewpoint
    if decision.routes is not None:
        return torch.cat([leads, decision.routes.viewpoint], 1)
    return leads[:, : decision.logits.shape[1]]


# -- which path is taught ----------------------------------------------------------------------------------


def as_annotated(episode: Episode, rng: np.random.Generator) -> Episode:
    """The episode as it is: R2R, R4R and RxR."""
    return episode


def shortest_to_a_goal(atlas: Atlas) -> Supervision:
    """The shortest path from the start to one of the goals, each as likely as the others.

    An episode whose goal is withheld is left with its start.
    """

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        goals = _goals(episode)
        goal = goals[rng.integers(len(goals))]
        path = atlas.graph(episode.scene_id).shortest_path(episode.start, goal)
        return replace(episode, reference_path=tuple(path))

    return supervise


def player_or_shortest(atlas: Atlas) -> Supervision:
    """CVDN's: as often as not the human's path, otherwise the shortest to a goal (spec A.11).

    A human's path that does not lead on from the start, and one of an episode without goals, is not used.
    """
    to_a_goal = shortest_to_a_goal(atlas)

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        as_walked = rng.random() < PLAYER_SHARE
        if as_walked and isinstance(episode, DialogEpisode) and _leads_on(episode):
            return replace(episode, reference_path=episode.player_path)
        return to_a_goal(episode, rng)

    return supervise


SUPERVISIONS: dict[str, Callable[[Atlas], Supervision]] = {
    "annotated": lambda atlas: as_annotated,
    "shortest": shortest_to_a_goal,
    "player-or-shortest": player_or_shortest,
}


def _goals(episode: Episode) -> tuple[str, ...]:
    return episode.goals or (episode.goal,)


def _leads_on(episode: DialogEpisode) -> bool:
    path = episode.player_path
    return bool(episode.goals) and path[:1] == (episode.start,) and len(path) > 1
