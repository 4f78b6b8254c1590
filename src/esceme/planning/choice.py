"""Choice of a route: the one with the greatest expected utility under the belief (minimum Bayes risk)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esceme.planning.routes import RouteSet
from esceme.tasks.episode import SUCCESS_WITHIN

UNSEEN_METRES = 3.0
"""Assumed length of a route beyond a frontier viewpoint, in metres."""
FRONTIER_SHARE = 0.3
"""Share of success if an agent stops near a frontier viewpoint on the way to an unknown goal."""


@dataclass(frozen=True)
class Exploration:
    """Weights of walking to a frontier viewpoint, relative to stopping at a visited viewpoint."""

    early: float = 10.0
    """Weight in the first episodes in a building."""
    late: float = 4.0
    """Weight in all later episodes."""
    num_early: int = 15
    """Number of episodes in a building that count as first."""

    def weight(self, episodes: int) -> float:
        """Return the weight after `episodes` episodes have begun in a building."""
        return self.early if episodes <= self.num_early else self.late


DEFAULT_EXPLORATION = Exploration()


def spl_utilities(
    routes: RouteSet, belief: NDArray[np.float64], current: int, walked: float, exploration: float
) -> NDArray[np.float64]:
    """Return the expected SPL of ending the episode at the end of each route, (R,).

    The agent is at place `current` after `walked` metres. The utility of a frontier viewpoint is
    `exploration` times its probability times the share of the shortest path in the way there. Ends that
    cannot be reached have utility -1.
    """
    area, ends, visited = routes.area, routes.ends, routes.is_visited
    total = walked + area.distances[current, ends]
    near = (area.distances[ends][:, ends] < SUCCESS_WITHIN) & visited[:, None]  # (stop here, right end)
    length = routes.metres
    share = length / np.maximum(np.maximum(length, total[:, None]), 1e-6)
    right = belief * np.where(visited, 1.0, FRONTIER_SHARE)
    utilities: NDArray[np.float64] = (near * share) @ right
    beyond = length + UNSEEN_METRES
    explore = exploration * belief * beyond / np.maximum(beyond, total + UNSEEN_METRES)
    utilities = np.where(visited, utilities, explore)
    return np.where(np.isfinite(total), utilities, -1.0)


def argmax_utilities(
    routes: RouteSet, belief: NDArray[np.float64], current: int, walked: float, exploration: float
) -> NDArray[np.float64]:
    """Return the probability of each route; that of a frontier viewpoint is multiplied by `exploration`."""
    reachable = np.isfinite(routes.area.distances[current, routes.ends])
    weighted = belief * np.where(routes.is_visited, 1.0, exploration)
    return np.where(reachable, weighted, -1.0)


UTILITIES = {"spl": spl_utilities}
"""Expected utilities of routes by name; see `RouteSet.utility`."""
