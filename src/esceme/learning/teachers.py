"""Sources of labels: teachers name the next viewpoint, oracles an action, supervisions the taught path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Decision
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.trajectory import Teacher, Trajectory, reference_path_teacher_by_step, teacher_actions
from esceme.world.atlas import Atlas

__all__ = [
    "IGNORE_INDEX",
    "ORACLES",
    "SUPERVISIONS",
    "TEACHERS",
    "Oracle",
    "OracleName",
    "Supervision",
    "SupervisionName",
    "Teacher",
    "TeacherName",
    "choice_viewpoints",
    "goal_oracle",
    "path_oracle",
    "player_or_shortest_path",
    "shortest_path",
    "shortest_path_teacher",
    "teacher_actions",
    "reference_path_teacher_by_location",
    "reference_path_teacher_by_step",
]

Supervision = Callable[[Episode, np.random.Generator], Episode]
"""Returns the episode with the reference path to teach; called anew for every mini-batch."""

Oracle = Callable[[Decision, Observation, Sequence[Trajectory]], Tensor]
"""Returns the best of all actions, backtracking included, (B,); `IGNORE_INDEX` where none is good."""
IGNORE_INDEX = -100
"""Label that `cross_entropy` ignores."""

TeacherName = Literal["time", "location", "shortest"]
OracleName = Literal["path", "goal"]
SupervisionName = Literal["annotated", "shortest", "player-or-shortest"]

PLAYER_PATH_PROBABILITY = 0.5
"""How often the player's path of a dialog is taught (docs/spec.md A.11)."""


# -- teachers: the next viewpoint --------------------------------------------------------------------------


def reference_path_teacher_by_location(atlas: Atlas) -> Teacher:
    """Return a teacher that names the viewpoint after the current one on the reference path.

    It raises `WorldError` off the path. The path continues after the first occurrence of the current
    viewpoint. On a path that visits a viewpoint twice, this teacher never leaves the loop; use
    `reference_path_teacher_by_step` there.
    """

    def teach(trajectory: Trajectory) -> int:
        scene, viewpoint = atlas.name(trajectory.viewpoint)
        return int(atlas.locate(scene, [trajectory.episode.expert_from(viewpoint)])[0])

    return teach


def shortest_path_teacher(atlas: Atlas) -> Teacher:
    """Return a teacher that follows a shortest path to the nearest goal from any viewpoint.

    At a goal it names the current viewpoint, which means STOP. It raises `WorldError` where no goal can be
    reached.
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


TEACHERS: dict[TeacherName, Callable[[Atlas], Teacher]] = {
    "time": reference_path_teacher_by_step,
    "location": reference_path_teacher_by_location,
    "shortest": shortest_path_teacher,
}


# -- oracles: the best of all actions ----------------------------------------------------------------------


def path_oracle(atlas: Atlas) -> Oracle:
    """Return an oracle that takes the action leading furthest along the reference path (docs/spec.md D.7).

    STOP leads to the current viewpoint. Of actions with the same destination it prefers backtracking.
    """

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        episode = trajectory.episode
        path = atlas.locate(episode.scene_id, episode.reference_path).tolist()
        remaining = {viewpoint: len(path) - index for index, viewpoint in enumerate(path)}  # last visit
        return np.array([remaining.get(viewpoint, np.inf) for viewpoint in destinations.tolist()])

    return _lowest_cost_oracle(cost)


def goal_oracle(atlas: Atlas) -> Oracle:
    """Return an oracle that takes the action leading nearest to the goal; in a tie, backtracking."""

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        goal = atlas.locate(trajectory.episode.scene_id, [trajectory.episode.goal])
        distances = atlas.distance(np.maximum(destinations, 0), np.repeat(goal, len(destinations)))
        return np.where(destinations >= 0, distances, np.inf)

    return _lowest_cost_oracle(cost)


ORACLES: dict[OracleName, Callable[[Atlas], Oracle]] = {"path": path_oracle, "goal": goal_oracle}


def _lowest_cost_oracle(cost: Callable[[Trajectory, NDArray[np.int64]], NDArray[np.float64]]) -> Oracle:
    """Return an oracle that takes the possible action of lowest cost.

    `cost` returns the costs (C,) of a trajectory's actions, given the viewpoints (C,) that they lead to.
    """

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
    """Return the viewpoint that each action leads to, (B, C); -1 for padding."""
    rows = torch.arange(len(observation), device=observation.viewpoint.device)
    viewpoints = observation.neighbour.clone()
    viewpoints[rows, observation.num_candidates] = observation.viewpoint
    if decision.routes is not None:
        return torch.cat([viewpoints, decision.routes.viewpoints], 1)
    return viewpoints[:, : decision.logits.shape[1]]


# -- supervision: the path that is taught ------------------------------------------------------------------


def shortest_path(atlas: Atlas) -> Supervision:
    """Return a supervision that teaches the shortest path to a goal, drawn uniformly from all goals.

    An episode whose goal is withheld keeps only its start.
    """

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        goals = _goals(episode)
        goal = goals[rng.integers(len(goals))]
        path = atlas.graph(episode.scene_id).shortest_path(episode.start, goal)
        return replace(episode, reference_path=tuple(path))

    return supervise


def player_or_shortest_path(atlas: Atlas) -> Supervision:
    """Return the supervision of CVDN: the player's path or the shortest path to a goal (docs/spec.md A.11).

    Each is taught with probability 0.5. The shortest path is always taught if the player's path does not
    continue from the start, or if the episode has no goals.
    """
    to_goal = shortest_path(atlas)

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        uses_player_path = rng.random() < PLAYER_PATH_PROBABILITY
        if uses_player_path and isinstance(episode, DialogEpisode) and _has_usable_player_path(episode):
            return replace(episode, reference_path=episode.player_path)
        return to_goal(episode, rng)

    return supervise


SUPERVISIONS: dict[SupervisionName, Callable[[Atlas], Supervision]] = {
    "annotated": lambda atlas: lambda episode, rng: episode,
    "shortest": shortest_path,
    "player-or-shortest": player_or_shortest_path,
}


def _goals(episode: Episode) -> tuple[str, ...]:
    return episode.goals or (episode.goal,)


def _has_usable_player_path(episode: DialogEpisode) -> bool:
    path = episode.player_path
    return bool(episode.goals) and path[:1] == (episode.start,) and len(path) > 1
