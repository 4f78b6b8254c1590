"""Choice of a route: the one with the greatest expected utility under the belief (minimum Bayes risk)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esceme.metrics import PaddedPaths, dtw, ndtw
from esceme.planning.routes import RouteSet
from esceme.settings import Count, NonNegative, check_settings
from esceme.tasks.episode import SUCCESS_WITHIN

UNSEEN_METRES = 3.0
"""Assumed length of a route beyond a frontier viewpoint, in metres."""
FRONTIER_SHARE = 0.3
"""Share of success if an agent stops near a frontier viewpoint on the way to an unknown goal."""
LOOKAHEAD = 1.2
"""Weight of a frontier viewpoint's own probability in `lookahead_utilities`, chosen before it was tested."""
COMPARED = 120
"""Number of routes that are compared with each other by expected SDTW."""


@dataclass(frozen=True)
class Exploration:
    """Weights of walking to a frontier viewpoint, relative to stopping at a visited viewpoint."""

    early: NonNegative = 10.0
    """Weight in the first episodes in a building."""
    late: NonNegative = 4.0
    """Weight in all later episodes."""
    num_early: Count = 15
    """Number of episodes in a building that count as first."""

    def __post_init__(self) -> None:
        check_settings(self)

    def weight(self, episodes: int) -> float:
        """Return the weight after `episodes` episodes have begun in a building."""
        return self.early if episodes <= self.num_early else self.late


DEFAULT_EXPLORATION = Exploration()


def spl_utilities(
    routes: RouteSet, belief: NDArray[np.float64], walked: Sequence[int], exploration: float
) -> NDArray[np.float64]:
    """Return the expected SPL of walking to the end of each route on the shortest path, (R,).

    `walked` are the places of the trajectory so far. The utility of a frontier viewpoint is `exploration`
    times its probability times the share of the shortest path in the way there. Ends that cannot be reached
    have utility -1.
    """
    area, ends, visited = routes.area, routes.ends, routes.is_visited
    total = area.length(walked) + area.distances[walked[-1], ends]
    near = (area.distances[ends][:, ends] < SUCCESS_WITHIN) & visited[:, None]  # (stop here, right end)
    length = routes.metres
    share = length / np.maximum(np.maximum(length, total[:, None]), 1e-6)
    right = belief * np.where(visited, 1.0, FRONTIER_SHARE)
    utilities: NDArray[np.float64] = (near * share) @ right
    beyond = length + UNSEEN_METRES
    explore = exploration * belief * beyond / np.maximum(beyond, total + UNSEEN_METRES)
    utilities = np.where(visited, utilities, explore)
    return np.where(np.isfinite(total), utilities, -1.0)


def lookahead_utilities(
    routes: RouteSet, belief: NDArray[np.float64], walked: Sequence[int], exploration: float
) -> NDArray[np.float64]:
    """Return the expected SPL of each route, (R,), where a walk to the frontier may continue.

    The utility of a frontier viewpoint is `LOOKAHEAD` times its probability times its share of the way,
    plus the best expected SPL of continuing to a visited viewpoint if the goal is not beyond it.
    `exploration` has no effect.
    """
    area, ends, visited = routes.area, routes.ends, routes.is_visited
    utilities = spl_utilities(routes, belief, walked, LOOKAHEAD)
    there = area.length(walked) + area.distances[walked[-1], ends]
    known = np.flatnonzero(visited)
    near = area.distances[ends[known]][:, ends] < SUCCESS_WITHIN  # (V, R)
    right = belief * np.where(visited, 1.0, FRONTIER_SHARE)
    for row in np.flatnonzero(~visited & np.isfinite(there)).tolist():
        total = there[row] + area.distances[ends[known], ends[row]]  # the way back is as long
        share = routes.metres / np.maximum(np.maximum(routes.metres, total[:, None]), 1e-6)
        others = np.where(np.arange(len(ends)) == row, 0.0, right)
        utilities[row] += float(((near * share) @ others).max())
    return utilities


def sdtw_utilities(
    routes: RouteSet, belief: NDArray[np.float64], walked: Sequence[int], exploration: float
) -> NDArray[np.float64]:
    """Return the expected SDTW of walking along each route, (R,).

    Only the `COMPARED` most probable routes to visited viewpoints are compared. The utility of a route to
    the frontier is `exploration` times its probability times its share in the trajectory. All other routes
    have utility -1.
    """
    area, utilities = routes.area, np.full(len(routes), -1.0)
    order = np.argsort(-belief, kind="stable")
    found = {row: routes.walk(row, walked) for row in order[routes.is_visited[order]][:COMPARED].tolist()}
    reachable = {row: path for row, path in found.items() if path is not None}
    if reachable:
        visited = np.array(list(reachable))
        similar = _similarities(routes, visited, [*reachable.values()])
        near = area.distances[routes.ends[visited]][:, routes.ends[visited]] < SUCCESS_WITHIN
        utilities[visited] = (similar * near) @ belief[visited]
    for row in order[~routes.is_visited[order]][:COMPARED].tolist():
        if (path := routes.walk(row, walked)) is not None:
            share = routes.metres[row] / max(area.length(path), 1e-6)
            utilities[row] = exploration * belief[row] * min(share, 1.0)
    return utilities


def _similarities(
    routes: RouteSet, rows: NDArray[np.int64], walks: Sequence[Sequence[int]]
) -> NDArray[np.float64]:
    """Return the nDTW of every walk to every route, (walks, rows)."""
    size = len(rows)
    first, second = np.repeat(np.arange(len(walks)), size), np.tile(np.arange(size), len(walks))
    paths = [routes.places[row, : routes.num_moves[row] + 1].tolist() for row in rows.tolist()]
    right, own = PaddedPaths.from_paths(paths), PaddedPaths.from_paths(walks)
    costs = routes.area.distances[own.viewpoints[:, None, first], right.viewpoints[None, :, second]]
    similar = ndtw(dtw(costs, own.count[first], right.count[second]), right.count[second])
    return similar.reshape(len(walks), size)


def progress_utilities(
    routes: RouteSet, belief: NDArray[np.float64], walked: Sequence[int], exploration: float
) -> NDArray[np.float64]:
    """Return the expected progress towards the goal in metres at the end of each route, (R,).

    A frontier viewpoint has the progress of its neighbourhood, and `exploration` times its probability times
    the assumed metres beyond it.
    """
    area, ends, visited = routes.area, routes.ends, routes.is_visited
    apart = area.distances[ends][:, ends]  # (from, to); the way back from a frontier viewpoint is as long
    apart = np.minimum(apart, apart.T)
    both = ~visited[:, None] & ~visited & ~np.eye(len(ends), dtype=bool)
    apart = np.where(both, 2 * UNSEEN_METRES + np.abs(routes.metres[:, None] - routes.metres), apart)
    np.fill_diagonal(apart, 0.0)
    progress = (area.distances[walked[0], ends] - apart) @ belief
    progress = progress + np.where(visited, 0.0, exploration * belief * UNSEEN_METRES)
    reachable = np.isfinite(area.distances[walked[-1], ends])
    return np.where(reachable, progress, -np.inf)


def argmax_utilities(
    routes: RouteSet, belief: NDArray[np.float64], walked: Sequence[int], exploration: float
) -> NDArray[np.float64]:
    """Return the probability of each route; that of a frontier viewpoint is multiplied by `exploration`."""
    reachable = np.isfinite(routes.area.distances[walked[-1], routes.ends])
    weighted = belief * np.where(routes.is_visited, 1.0, exploration)
    return np.where(reachable, weighted, -1.0)


UTILITIES = {"spl": spl_utilities, "sdtw": sdtw_utilities, "gp": progress_utilities}
"""Expected scores of routes by name of the metric."""
