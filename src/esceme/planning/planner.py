"""`Planner`: chooses a route in the map of a building, given only the map and the instruction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.memory.scene_map import SceneMap
from esceme.planning.belief import SHAPES, Belief, route_columns, route_table
from esceme.planning.choice import (
    DEFAULT_EXPLORATION,
    UTILITIES,
    Exploration,
    argmax_utilities,
    lookahead_utilities,
)
from esceme.planning.route_prior import RoutePrior
from esceme.planning.routes import RouteLimits, RouteSet, Start, get_routes
from esceme.planning.scoring import Scorer

DEFAULT_LIMITS = RouteLimits()
SELECTED = 300
"""Number of routes to visited viewpoints, and to the frontier, that the first of several scorers selects."""
CHOICES = {"bayes": None, "argmax": argmax_utilities, "lookahead": lookahead_utilities}
"""Ways to choose a route -> utilities; None for those of the planner."""


@dataclass(frozen=True)
class PlanRequest:
    """Input of a planner besides the map: the instruction, and the trajectory so far as nodes."""

    words: NDArray[np.int64]
    """(L,): token ids of the instruction."""
    trajectory: Sequence[int]
    """Nodes from the start of the episode to the current node, all visited."""
    start_view: int
    """View (0 to 35) that the agent faced at the start."""


class RoutePlan(NamedTuple):
    """A chosen route, and the routes with which it was compared."""

    path: list[tuple[int, int]]
    """(node, view) after each move from the current node; empty if the agent stops here."""
    stops: bool
    """Whether the episode ends at the end of the path. Otherwise the agent plans again there."""
    chosen: int
    """Row of the chosen route in `routes`."""
    routes: RouteSet
    table: NDArray[np.float64]
    """(R, F): columns of the belief."""
    belief: NDArray[np.float64]
    """(R,): probability of each route."""
    utilities: NDArray[np.float64]
    """(R,): utility of each route."""


class Planner:
    """Compares routes from the start of an episode and chooses one; see `planning.choice`."""

    def __init__(
        self,
        scorers: Sequence[Scorer],
        belief: Belief,
        *,
        exploration: Exploration = DEFAULT_EXPLORATION,
        routes: str = "shortest",
        limits: RouteLimits = DEFAULT_LIMITS,
        prior: RoutePrior | None = None,
        utility: str = "spl",
        choice: str = "bayes",
        max_moves: int = 15,
    ) -> None:
        """Combine the parts of a planner. An episode has at most `max_moves` moves.

        `routes` names the route generator, which may need a `prior`. `utility` names the metric whose
        expectation the choice maximises.
        """
        if choice not in CHOICES:
            raise ConfigError(f"choice '{choice}': expected one of {', '.join(CHOICES)}")
        if choice == "lookahead" and utility != "spl":
            raise ConfigError(f"choice 'lookahead' is for planners by expected SPL, this one is by {utility}")
        if utility not in UTILITIES:
            raise ConfigError(f"utility '{utility}': expected one of {', '.join(UTILITIES)}")
        self.scorers, self.belief, self.exploration = scorers, belief, exploration
        self.generate, self.limits, self.utility = get_routes(routes, prior), limits, utility
        self.choice, self.max_moves = choice, max_moves
        self.shape = SHAPES[routes]
        self.columns = route_columns([scorer.columns for scorer in scorers], limits.max_moves, self.shape)
        self.score_columns = tuple(name for scorer in scorers for name in scorer.columns)

    def plan(self, scene_map: SceneMap, request: PlanRequest) -> RoutePlan:
        """Return the route with the greatest utility. The current node must have been visited."""
        routes, table = self.compare(scene_map, request)
        belief = self.belief.probabilities(table, self.columns)
        walked = [routes.area.place(node) for node in request.trajectory]
        weight = self.exploration.weight(scene_map.episodes)
        utility = CHOICES[self.choice] or UTILITIES[self.utility]
        utilities = utility(routes, belief, walked, weight)
        chosen, path = self._best(routes, utilities, walked)
        return RoutePlan(path, bool(routes.is_visited[chosen]), chosen, routes, table, belief, utilities)

    def compare(self, scene_map: SceneMap, request: PlanRequest) -> tuple[RouteSet, NDArray[np.float64]]:
        """Return the candidate routes of an episode, and the columns of the belief for each, (R, F).

        Of routes that form no tree, which are many, the first scorer selects those that others score.
        """
        routes = self.generate(scene_map, Start(request.trajectory[0], request.start_view), self.limits)
        scores = [scorer.score(routes, request.words) for scorer in self.scorers[:1]]
        if routes.parents is None and len(self.scorers) > 1:
            rows = _most_probable(routes, scores[0][:, 0])
            routes, scores = routes.select(rows), [scores[0][rows]]
        scores += [scorer.score(routes, request.words) for scorer in self.scorers[1:]]
        return routes, route_table(routes, scores, self.limits.max_moves, self.shape)

    def _best(
        self, routes: RouteSet, utilities: NDArray[np.float64], walked: Sequence[int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Return the best route that the limit of moves allows, and the poses from the current place."""
        area, current = routes.area, walked[-1]
        for row in np.argsort(-utilities, kind="stable").tolist():
            if self.utility == "sdtw":
                places = (routes.walk(row, walked) or [])[len(walked) - 1 :]
            elif np.isfinite(area.distances[current, routes.ends[row]]):
                places = area.path(current, int(routes.ends[row]))
            else:
                places = []
            if places and len(walked) + len(places) - 2 <= self.max_moves:
                break
        else:
            row, places = int(np.argmax(routes.ends == current)), [current]  # no route is left: stop here
        return row, [
            (int(area.nodes[there]), int(area.view[here, there])) for here, there in pairwise(places)
        ]


def _most_probable(routes: RouteSet, score: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the rows of the `SELECTED` best routes to visited viewpoints, and to the frontier, in order."""
    order = np.argsort(-score, kind="stable")
    visited = routes.is_visited[order]
    return np.sort(np.concatenate([order[visited][:SELECTED], order[~visited][:SELECTED]]))
