"""Sources of labels: teachers of the next viewpoint, oracles over all choices, and taught paths."""

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
    "IGNORE_INDEX",
    "ORACLES",
    "SUPERVISIONS",
    "TEACHERS",
    "Oracle",
    "Supervision",
    "Teacher",
    "choice_viewpoints",
    "goal_oracle",
    "path_oracle",
    "player_or_shortest_path",
    "shortest_path",
    "shortest_path_teacher",
    "teacher_actions",
    "teacher_by_location",
    "teacher_by_step",
]

Supervision = Callable[[Episode, np.random.Generator], Episode]
"""Sets the reference path that is taught; called anew for every mini-batch."""

Oracle = Callable[[Decision, Observation, Sequence[Trajectory]], Tensor]
"""Returns the best of all choices, backtracking included, (B,); `IGNORE_INDEX` where it knows none."""
IGNORE_INDEX = -100
"""Label that `cross_entropy` ignores."""

PLAYER_PATH_PROBABILITY = 0.5
"""How often the player's path of a dialog is taught (spec A.11)."""


# -- teachers: the next viewpoint --------------------------------------------------------------------------


def teacher_by_location(atlas: Atlas) -> Teacher:
    """Return the viewpoint that follows the current one on the reference path; `WorldError` off the path.

    The path continues after the first occurrence of the current viewpoint. On a path that visits a viewpoint
    twice, this teacher never leaves the loop; use `teacher_by_step` there.
    """

    def teach(trajectory: Trajectory) -> int:
        scene, viewpoint = atlas.name(trajectory.viewpoint)
        return int(atlas.locate(scene, [trajectory.episode.expert_from(viewpoint)])[0])

    return teach


def shortest_path_teacher(atlas: Atlas) -> Teacher:
    """Return the next viewpoint on a shortest path to the nearest goal, from anywhere; STOP at a goal.

    Raises `WorldError` where no goal can be reached.
    """

    def teach(trajectory: Trajectory) -> int:
        episode, viewpoint = trajectory.episode, trajectory.viewpoint
        goals = atlas.locate(episode.scene_id, _goals(episode))
        if viewpoint in goals:
            return viewpoint
        distances = atlas.distance(viewpoint, goals)
        if not np.isfinite(distances.min()):
            raise WorldError(
                f"episode {episode.episode_id}: no path leads from '{atlas.name(viewpoint)[1]}' to a goal"
            )
        goal, first = goals[distances.argmin()], int(atlas.first[atlas.scene_of[viewpoint]])
        return first + int(atlas.graph(episode.scene_id).next_steps[viewpoint - first, goal - first])

    return teach


TEACHERS: dict[str, Callable[[Atlas], Teacher]] = {
    "time": teacher_by_step,
    "location": teacher_by_location,
    "shortest": shortest_path_teacher,
}


# -- oracles: the best of all choices ----------------------------------------------------------------------


def path_oracle(atlas: Atlas) -> Oracle:
    """Prefer the choice that leads furthest along the reference path (spec D.7).

    STOP leads to the current viewpoint. Of choices with the same destination, backtracking comes first.
    """

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        episode = trajectory.episode
        path = atlas.locate(episode.scene_id, episode.reference_path).tolist()
        remaining = {viewpoint: len(path) - index for index, viewpoint in enumerate(path)}  # last visit
        return np.array([remaining.get(viewpoint, np.inf) for viewpoint in destinations.tolist()])

    return _lowest_cost(cost)


def goal_oracle(atlas: Atlas) -> Oracle:
    """Prefer the choice that leads nearest to the goal; of equal ones, backtracking comes first."""

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        goal = atlas.locate(trajectory.episode.scene_id, [trajectory.episode.goal])
        distances = atlas.distance(np.maximum(destinations, 0), np.repeat(goal, len(destinations)))
        return np.where(destinations >= 0, distances, np.inf)

    return _lowest_cost(cost)


ORACLES: dict[str, Callable[[Atlas], Oracle]] = {"path": path_oracle, "goal": goal_oracle}


def _lowest_cost(cost: Callable[[Trajectory, NDArray[np.int64]], NDArray[np.float64]]) -> Oracle:
    """Return the oracle that takes the valid choice of lowest cost, given destinations (C,)."""

    def oracle(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        destinations = choice_viewpoints(decision, observation).cpu().numpy()  # (B, C)
        valid = decision.logits.detach().isfinite().cpu().numpy()
        num_choices = destinations.shape[1]
        first = num_choices if decision.routes is None else decision.routes.first_action
        order = np.concatenate([np.arange(first, num_choices), np.arange(first)])  # backtracking first
        actions = []
        for trajectory, row, is_valid in zip(trajectories, destinations, valid, strict=True):
            costs = np.where(is_valid, cost(trajectory, row), np.inf)[order]
            actions.append(int(order[costs.argmin()]) if np.isfinite(costs.min()) else IGNORE_INDEX)
        return torch.tensor(actions)

    return oracle


def choice_viewpoints(decision: Decision, observation: Observation) -> Tensor:
    """Return the viewpoint that each choice leads to, (B, C); -1 for padding."""
    rows = torch.arange(len(observation), device=observation.viewpoint.device)
    viewpoints = observation.neighbour.clone()
    viewpoints[rows, observation.num_candidates] = observation.viewpoint
    if decision.routes is not None:
        return torch.cat([viewpoints, decision.routes.viewpoints], 1)
    return viewpoints[:, : decision.logits.shape[1]]


# -- supervision: the path that is taught ------------------------------------------------------------------


def shortest_path(atlas: Atlas) -> Supervision:
    """Teach the shortest path from the start to one of the goals, drawn uniformly.

    An episode whose goal is withheld keeps only its start.
    """

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        goals = _goals(episode)
        goal = goals[rng.integers(len(goals))]
        path = atlas.graph(episode.scene_id).shortest_path(episode.start, goal)
        return replace(episode, reference_path=tuple(path))

    return supervise


def player_or_shortest_path(atlas: Atlas) -> Supervision:
    """Teach the player's path half of the time, otherwise the shortest path to a goal: CVDN (spec A.11).

    The player's path is not used if it does not lead on from the start, or if the episode has no goals.
    """
    to_goal = shortest_path(atlas)

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        uses_player_path = rng.random() < PLAYER_PATH_PROBABILITY
        if uses_player_path and isinstance(episode, DialogEpisode) and _has_usable_player_path(episode):
            return replace(episode, reference_path=episode.player_path)
        return to_goal(episode, rng)

    return supervise


SUPERVISIONS: dict[str, Callable[[Atlas], Supervision]] = {
    "annotated": lambda atlas: lambda episode, rng: episode,
    "shortest": shortest_path,
    "player-or-shortest": player_or_shortest_path,
}


def _goals(episode: Episode) -> tuple[str, ...]:
    return episode.goals or (episode.goal,)


def _has_usable_player_path(episode: DialogEpisode) -> bool:
    path = episode.player_path
    return bool(episode.goals) and path[:1] == (episode.start,) and len(path) > 1
