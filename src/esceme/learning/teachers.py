"""Sources of training labels: teachers (next viewpoint), oracles (best action), supervisions (path)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision
from esceme.errors import WorldError
from esceme.metrics import PaddedPaths, dtw, ndtw
from esceme.observation import Observation
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.trajectory import (
    ActionSelector,
    Teacher,
    Trajectory,
    reference_path_teacher_by_step,
    teacher_actions,
)
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
    "ndtw_oracle",
    "path_oracle",
    "player_or_shortest_path",
    "shortest_path",
    "shortest_path_oracle",
    "shortest_path_teacher",
    "stopping_at_goal",
    "teacher_actions",
    "reference_path_teacher_by_location",
    "reference_path_teacher_by_step",
]

Supervision = Callable[[Episode, np.random.Generator], Episode]
"""Function that returns the episode with the reference path that imitation should teach. The function is
called each time an episode occurs in a batch, and may choose at random."""

Oracle = Callable[[Decision, Observation, Sequence[Trajectory]], Tensor]
"""Function that returns the best of all actions of B agents, including backtracking, (B,) int64. The entry is
`IGNORE_INDEX` if no action is suitable."""
IGNORE_INDEX = -100
"""Label that `torch.nn.functional.cross_entropy` ignores."""

TeacherName = Literal["time", "location", "shortest"]
OracleName = Literal["path", "goal", "shortest", "ndtw"]
SupervisionName = Literal["annotated", "shortest", "player-or-shortest"]

PLAYER_PATH_PROBABILITY = 0.5
"""Probability that the player's path of a dialog is taught (docs/spec.md A.11)."""


# -- teachers: the next viewpoint --------------------------------------------------------------------------


def reference_path_teacher_by_location(atlas: Atlas) -> Teacher:
    """Return a teacher that gives the viewpoint after the current viewpoint on the reference path.

    The teacher raises `WorldError` at a viewpoint off the path. If the path visits a viewpoint twice, the
    teacher always continues from the first visit and never leaves the loop. Use
    `reference_path_teacher_by_step` for such paths.
    """

    def teach(trajectory: Trajectory) -> int:
        scene, viewpoint = atlas.name(trajectory.viewpoint)
        return int(atlas.locate(scene, [trajectory.episode.expert_from(viewpoint)])[0])

    return teach


def shortest_path_teacher(atlas: Atlas) -> Teacher:
    """Return a teacher that follows a shortest path to the nearest goal from any viewpoint.

    At a goal, the teacher gives the current viewpoint (STOP). It raises `WorldError` if no path leads to a
    goal.
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

    STOP leads to the current viewpoint. Among actions with the same destination, backtracking is preferred.
    """

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        episode = trajectory.episode
        path = atlas.locate(episode.scene_id, episode.reference_path).tolist()
        remaining = {viewpoint: len(path) - index for index, viewpoint in enumerate(path)}  # last visit
        return np.array([remaining.get(viewpoint, np.inf) for viewpoint in destinations.tolist()])

    return _lowest_cost_oracle(cost)


def goal_oracle(atlas: Atlas) -> Oracle:
    """Return an oracle that takes the action leading nearest to the goal. Backtracking wins ties."""

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        goal = atlas.locate(trajectory.episode.scene_id, [trajectory.episode.goal])
        distances = atlas.distance(np.maximum(destinations, 0), np.repeat(goal, len(destinations)))
        return np.where(destinations >= 0, distances, np.inf)

    return _lowest_cost_oracle(cost)


def shortest_path_oracle(atlas: Atlas) -> Oracle:
    """Return an oracle that takes STOP at the goal, and elsewhere the action on the shortest way to it.

    The way leads from the current viewpoint to the action's viewpoint and on to the goal, on the whole graph.
    """

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        here, goal = trajectory.viewpoint, _goal(atlas, trajectory)
        viewpoints = np.maximum(destinations, 0)
        lengths = atlas.distance(here, viewpoints) + atlas.distance(viewpoints, goal)
        return _stop_only_at(goal, here, destinations, lengths)

    return _lowest_cost_oracle(cost, seen_in=atlas)


def ndtw_oracle(atlas: Atlas) -> Oracle:
    """Return an oracle that takes STOP at the goal, and elsewhere the action with the highest nDTW.

    This is the nDTW of the path so far, continued on a shortest way to the action's viewpoint.
    """

    def cost(trajectory: Trajectory, destinations: NDArray[np.int64]) -> NDArray[np.float64]:
        episode, here = trajectory.episode, trajectory.viewpoint
        graph, first = atlas.graph(episode.scene_id), int(atlas.first[atlas.scene_of[here]])
        walked = [viewpoint for viewpoint, _ in trajectory.poses]
        is_known = destinations >= 0
        paths = [
            walked + [first + row for row in graph.shortest_rows(here - first, viewpoint - first)[1:]]
            for viewpoint in np.where(is_known, destinations, here).tolist()
        ]
        reference = atlas.locate(episode.scene_id, episode.reference_path)
        padded = PaddedPaths.from_paths(paths)
        costs = atlas.distance(padded.viewpoints[:, None], reference[None, :, None])  # (T, S, C)
        count = np.full(len(paths), len(reference))
        fidelity = ndtw(dtw(costs, padded.count, count), count)
        return _stop_only_at(_goal(atlas, trajectory), here, destinations, -fidelity)

    return _lowest_cost_oracle(cost, seen_in=atlas)


def _goal(atlas: Atlas, trajectory: Trajectory) -> int:
    return int(atlas.locate(trajectory.episode.scene_id, [trajectory.episode.goal])[0])


def _stop_only_at(
    goal: int, here: int, destinations: NDArray[np.int64], costs: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return `costs` (C,) with -inf for STOP if `here` is the goal, and otherwise inf for STOP.

    STOP is the action that leads to `here`. Actions without a viewpoint (-1) have cost inf.
    """
    costs = np.where((destinations >= 0) & (destinations != here), costs, np.inf)
    return np.where((destinations == here) & (here == goal), -np.inf, costs)


ORACLES: dict[OracleName, Callable[[Atlas], Oracle]] = {
    "path": path_oracle,
    "goal": goal_oracle,
    "shortest": shortest_path_oracle,
    "ndtw": ndtw_oracle,
}


def _lowest_cost_oracle(
    cost: Callable[[Trajectory, NDArray[np.int64]], NDArray[np.float64]], seen_in: Atlas | None = None
) -> Oracle:
    """Return an oracle that takes the possible action with the lowest cost.

    `cost` returns the costs (C,) of a trajectory's actions, given the viewpoints (C,) to which they lead.
    Among equal costs, actions of routes are preferred. With `seen_in`, the viewpoint that the episode saw
    first, in the graph of this atlas, is preferred instead.
    """

    def oracle(decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]) -> Tensor:
        destinations = choice_viewpoints(decision, observation).cpu().numpy()  # (B, C)
        valid = decision.logits.detach().isfinite().cpu().numpy()
        num_choices = destinations.shape[1]
        first = num_choices if decision.routes is None else decision.routes.first_action
        routes_first = (np.arange(num_choices) - first) % num_choices
        actions = []
        for trajectory, row, is_valid in zip(trajectories, destinations, valid, strict=True):
            costs = np.where(is_valid, cost(trajectory, row), np.inf)
            ranks = routes_first if seen_in is None else _order_of_sight(seen_in, trajectory, row)
            best = int(np.lexsort((ranks, costs))[0])
            actions.append(best if costs[best] < np.inf else IGNORE_INDEX)
        return torch.tensor(actions)

    return oracle


def _order_of_sight(atlas: Atlas, trajectory: Trajectory, viewpoints: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank (C,) in which viewpoints (C,) were seen first; those never seen come last."""
    order: dict[int, int] = {}
    for viewpoint, _ in trajectory.poses:
        for seen in (viewpoint, *atlas.neighbours[viewpoint, : atlas.degrees[viewpoint]].tolist()):
            order.setdefault(seen, len(order))
    return np.array([order.get(viewpoint, len(order)) for viewpoint in viewpoints.tolist()])


def choice_viewpoints(decision: Decision, observation: Observation) -> Tensor:
    """Return the viewpoint index to which each action leads, (B, C); -1 for actions that do not exist."""
    rows = torch.arange(len(observation), device=observation.viewpoint.device)
    viewpoints = observation.neighbour.clone()
    viewpoints[rows, observation.num_candidates] = observation.viewpoint
    if decision.routes is None:
        return viewpoints[:, : decision.logits.shape[1]]
    # A reader may have appended tokens to the observation that the agent saw.
    missing = decision.routes.first_action - viewpoints.shape[1]
    return torch.cat([functional.pad(viewpoints, (0, missing), value=-1), decision.routes.viewpoints], 1)


def stopping_at_goal(atlas: Atlas, select: ActionSelector) -> ActionSelector:
    """Return a function that selects STOP at the goal, and the action of `select` elsewhere."""

    def select_or_stop(
        decision: Decision, observation: Observation, trajectories: Sequence[Trajectory]
    ) -> Tensor:
        actions = select(decision, observation, trajectories)
        arrived = [trajectory.viewpoint == _goal(atlas, trajectory) for trajectory in trajectories]
        return torch.where(torch.tensor(arrived).to(actions.device), observation.num_candidates, actions)

    return select_or_stop


# -- supervision: the path that is taught ------------------------------------------------------------------


def shortest_path(atlas: Atlas) -> Supervision:
    """Return a supervision that teaches the shortest path to one goal, drawn uniformly from all goals.

    If the goals of an episode are withheld, the taught path contains only the start.
    """

    def supervise(episode: Episode, rng: np.random.Generator) -> Episode:
        goals = _goals(episode)
        goal = goals[rng.integers(len(goals))]
        path = atlas.graph(episode.scene_id).shortest_path(episode.start, goal)
        return replace(episode, reference_path=tuple(path))

    return supervise


def player_or_shortest_path(atlas: Atlas) -> Supervision:
    """Return the supervision of CVDN: the player's path or the shortest path to a goal (docs/spec.md A.11).

    Each path is taught with probability 0.5. The shortest path is always taught if the player's path does not
    lead away from the start, or if the episode has no goals.
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
