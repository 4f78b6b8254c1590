"""Candidate routes in the map of a building.

Routes use only edges from visited viewpoints. They end at visited viewpoints or at frontier viewpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory.scene_map import SceneMap, slots_of
from esceme.planning.route_prior import RoutePrior, step_columns
from esceme.settings import Count, check_settings
from esceme.world.geometry import VIEW_HEADINGS

MIN_LEG, MAX_LEG = 2, 8
"""Least and greatest number of edges of each leg of a two-leg route."""
MAX_MOVES = 60
"""Greatest number of edges that limits of routes may have."""
PER_LENGTH = 100
"""Number of routes of each number of edges that `best_routes` returns, to visited viewpoints and others."""
MOST_PARTIAL = 50_000
"""Greatest number of partial routes that `best_routes` extends at a time."""
TOLERANCE = 1e-9
"""Differences of logarithms that may be rounding errors."""
MARGIN = 2
"""Distances are computed within this number of edges beyond the longest route."""


class Start(NamedTuple):
    """Start of a route: a visited node, and the view (0 to 35) that the agent faces there."""

    node: int
    view: int


@dataclass(frozen=True)
class RouteLimits:
    """Least and greatest number of edges of routes. Routes to the frontier may have fewer."""

    min_moves: Count = 0
    max_moves: Annotated[int, Meta(ge=1, le=MAX_MOVES)] = 7

    def __post_init__(self) -> None:
        check_settings(self)


class Neighbourhood:
    """Part of a map within a number of edges of a node, with its shortest paths.

    Places are the nodes of the neighbourhood, numbered from 0. Only edges from visited nodes are known, so
    that a frontier viewpoint can only be the last place of a path. The size does not depend on that of the
    map.
    """

    def __init__(self, scene_map: SceneMap, center: int, hops: int) -> None:
        """Collect all nodes within `hops` edges of the visited node `center`."""
        self.scene_map = scene_map
        found: dict[int, None] = {center: None}
        level = np.array([center])
        for _ in range(hops):
            seen = scene_map.candidates(level[scene_map.is_visited(level)]).neighbours.tolist()
            level = np.array([node for node in dict.fromkeys(seen) if node not in found], dtype=np.int64)
            found.update(dict.fromkeys(level.tolist()))
        # The numbering of places must not depend on the order of exploration.
        self.nodes: NDArray[np.int64] = np.array(sorted(found, key=scene_map.name), dtype=np.int64)
        """(n,): node of each place."""
        self.visited: NDArray[np.bool_] = scene_map.is_visited(self.nodes)
        self._place_of = {node: place for place, node in enumerate(self.nodes.tolist())}
        self.slot: NDArray[np.int64] = np.full((len(self.nodes),) * 2, -1)
        """(n, n): number of the candidate that leads from one place to another; -1 without an edge."""
        self.view: NDArray[np.int64] = np.full_like(self.slot, -1)
        """(n, n): view that shows this candidate, which the agent faces on arrival; -1 without an edge."""
        self.heading: NDArray[np.float64] = np.zeros(self.slot.shape)
        """(n, n): absolute heading of this candidate in radians; 0 without an edge."""
        lengths = np.zeros(self.slot.shape)
        visited = self.nodes[self.visited]
        counts, candidates = scene_map.num_candidates(visited), scene_map.candidates(visited)
        here = np.repeat(np.flatnonzero(self.visited), counts)
        there = np.array([self._place_of.get(node, -1) for node in candidates.neighbours.tolist()], np.int64)
        within = there >= 0
        edges = (here[within], there[within])
        self.slot[edges] = slots_of(counts)[within]
        self.view[edges], lengths[edges] = candidates.views[within], candidates.lengths[within]
        self.heading[edges] = candidates.headings[within]
        self.lengths = lengths
        self._graph = csr_array(lengths)

    def place(self, node: int) -> int:
        """Return the place of a node; raise `MemoryMismatch` if no known edges lead there."""
        if node not in self._place_of:
            raise MemoryMismatch(
                f"viewpoint '{self.scene_map.name(node)}' was visited in this episode, and no edge "
                "of the map leads there; the map is of other graphs: build it again"
            )
        return self._place_of[node]

    @cached_property
    def _paths(self) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        return dijkstra(self._graph, return_predecessors=True)

    @property
    def distances(self) -> NDArray[np.float64]:
        """(n, n): metres from one place to another over known edges; inf from a frontier viewpoint."""
        return self._paths[0]

    @property
    def predecessors(self) -> NDArray[np.int32]:
        """(n, n): place before the second place on the shortest path from the first; negative if none."""
        return self._paths[1]

    def length(self, places: Sequence[int]) -> float:
        """Return the length in metres of a path over known edges."""
        return math.fsum(self.lengths[here, there] for here, there in pairwise(places))

    def legs(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return all shortest paths from a place with at most `MAX_LEG` edges, and their numbers of edges.

        Paths (J, MAX_LEG) are without `start` and padded with -1.
        """
        before = self.predecessors[start]
        ends = np.flatnonzero(before >= 0)
        backwards = [ends]
        while len(backwards) <= MAX_LEG:
            here = backwards[-1]
            backwards.append(np.where(here == start, start, before[here]))
        steps = np.stack(backwards, 1)  # (J, MAX_LEG + 1)
        moves = (steps != start).sum(1)
        is_leg = moves <= MAX_LEG
        steps, moves = steps[is_leg], moves[is_leg]
        column = moves[:, None] - 1 - np.arange(MAX_LEG)
        paths = np.take_along_axis(steps, np.maximum(column, 0), 1)
        return np.where(column >= 0, paths, -1), moves

    def path(self, start: int, end: int) -> list[int]:
        """Return the places of the shortest path from `start` to `end`, both included."""
        path = [end]
        while path[-1] != start:
            path.append(int(self.predecessors[start, path[-1]]))
        return path[::-1]


@dataclass(frozen=True)
class RouteSet:
    """R candidate routes from one start, of at most T edges; shorter routes are padded with -1."""

    area: Neighbourhood
    places: NDArray[np.int64]
    """(R, T + 1): places from the start to the end of each route."""
    num_moves: NDArray[np.int64]
    """(R,): number of edges."""
    parents: NDArray[np.int64] | None
    """(R,): row of the route without its last edge, -1 for the route of no edge; None without a tree."""
    start_view: int
    log_prior: NDArray[np.float64] | None = None
    """(R,): logarithm of the prior of each route; None without a prior."""

    def __len__(self) -> int:
        return len(self.places)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(R,): last place of each route."""
        return self.places[np.arange(len(self)), self.num_moves]

    @property
    def is_visited(self) -> NDArray[np.bool_]:
        """(R,): whether the end of each route was visited."""
        return self.area.visited[self.ends]

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """(R, T): number of the candidate that is taken at each place; -1 for padding."""
        return self._per_edge(self.area.slot, -1)

    @cached_property
    def views(self) -> NDArray[np.int64]:
        """(R, T + 1): view that the agent faces on arrival at each place; -1 for padding."""
        arrival = self._per_edge(self.area.view, -1)
        return np.concatenate([np.full((len(self), 1), self.start_view), arrival], 1)

    @cached_property
    def metres(self) -> NDArray[np.float64]:
        """(R,): length of each route."""
        metres: NDArray[np.float64] = self._per_edge(self.area.lengths, 0).sum(1)
        return metres

    def select(self, rows: NDArray[np.int64]) -> RouteSet:
        """Return the routes of some rows, which form no tree."""
        prior = None if self.log_prior is None else self.log_prior[rows]
        return RouteSet(self.area, self.places[rows], self.num_moves[rows], None, self.start_view, prior)

    def walk(self, row: int, walked: Sequence[int]) -> list[int] | None:
        """Return the places of a trajectory that begins with `walked` and continues along a route.

        The trajectory returns to the place at which the route leaves it; None if no known edges lead there.
        """
        route = self.places[row, : self.num_moves[row] + 1].tolist()
        shared = 0
        for here, there in zip(walked, route, strict=False):
            if here != there:
                break
            shared += 1
        if shared == len(walked):
            return [*walked, *route[shared:]]
        if not np.isfinite(self.area.distances[walked[-1], route[shared - 1]]):
            return None
        return [*walked, *self.area.path(walked[-1], route[shared - 1])[1:], *route[shared:]]

    def _per_edge(self, table: NDArray[Any], fill: float) -> NDArray[Any]:
        here, there = self.places[:, :-1], self.places[:, 1:]
        return np.where(there >= 0, table[here, there], fill)


def shortest_routes(scene_map: SceneMap, start: Start, limits: RouteLimits) -> RouteSet:
    """Return the shortest route to every known viewpoint that it reaches with at most `max_moves` edges.

    The routes form a tree. They are ordered by length, so that a route follows its prefixes.
    """
    area = Neighbourhood(scene_map, start.node, limits.max_moves + MARGIN)
    origin = area.place(start.node)
    distance, before = area.distances[origin], area.predecessors[origin]
    row_of: dict[int, int] = {origin: 0}
    rows, parents = [[origin]], [-1]
    for place in np.argsort(distance, kind="stable").tolist():
        parent = row_of.get(int(before[place]))
        if parent is None or place == origin or len(rows[parent]) > limits.max_moves:
            continue
        row_of[place] = len(rows)
        parents.append(parent)
        rows.append([*rows[parent], place])
    num_moves = np.array([len(row) - 1 for row in rows])
    places = np.full((len(rows), int(num_moves.max()) + 1), -1, dtype=np.int64)
    for target, row in zip(places, rows, strict=True):
        target[: len(row)] = row
    return RouteSet(area, places, num_moves, np.array(parents, dtype=np.int64), start.view)


def two_leg_routes(scene_map: SceneMap, start: Start, limits: RouteLimits) -> RouteSet:
    """Return all routes of two shortest paths, such as the paths of R4R, and the route of no edge.

    Routes to the frontier end on the first or on the second leg, and may be shorter than `limits` say.
    """
    area = Neighbourhood(scene_map, start.node, limits.max_moves)
    origin, longest = area.place(start.node), limits.max_moves
    legs, moves = area.legs(origin)
    ends = legs[np.arange(len(legs)), moves - 1]
    width = longest + MAX_LEG
    direct = np.full((len(legs), width), -1)
    direct[:, :MAX_LEG] = legs
    blocks = [np.full((1, width), -1), direct[~area.visited[ends]]]
    for row in np.flatnonzero(area.visited[ends] & (moves >= MIN_LEG)).tolist():
        leg, middle = legs[row, : moves[row]], int(ends[row])
        onward, more = area.legs(middle)
        visited = area.visited[onward[np.arange(len(onward)), more - 1]]
        # Of equal routes, keep the one with the longest first leg.
        extends = (area.predecessors[origin, onward[:, 0]] == middle) & (len(leg) < MAX_LEG)
        least = np.where(visited, MIN_LEG, 1)
        is_kept = (more >= least) & ~(extends & ((more > least) | ~visited))
        is_kept &= (len(leg) + more <= longest) & ((len(leg) + more >= limits.min_moves) | ~visited)
        block = np.full((int(is_kept.sum()), width), -1)
        block[:, : len(leg)] = leg
        block[:, len(leg) : len(leg) + MAX_LEG] = onward[is_kept]
        blocks.append(block)
    joined = np.concatenate(blocks)
    places = np.concatenate([np.full((len(joined), 1), origin), joined], 1)[:, : longest + 1]
    places = places[(joined[:, longest:] < 0).all(1)]
    return RouteSet(area, places, (places >= 0).sum(1) - 1, None, start.view)


class _Steps:
    """All steps of routes in a neighbourhood. The state of a route is its last edge, or the start.

    State 0 is the start, state e + 1 is edge e. Steps are ordered by the state from which they are taken.
    """

    def __init__(self, area: Neighbourhood, start: Start, prior: RoutePrior) -> None:
        origin = area.place(start.node)
        here, there = np.nonzero(area.slot >= 0)
        ends, faced = np.append(origin, there), np.append(start.view, area.view[here, there])
        before = np.append(-1, here)
        counts = np.bincount(here, minlength=len(area.nodes))[ends]
        first = np.searchsorted(here, ends)
        states = np.repeat(np.arange(len(ends)), counts)
        edges = np.repeat(first, counts) + slots_of(counts)
        turns = area.heading[here, there][edges] - VIEW_HEADINGS[faced[states]]
        away = area.distances[origin, there[edges]] - area.distances[origin, here[edges]]
        columns = step_columns(turns, area.lengths[here, there][edges], away)
        scores = columns @ np.array(prior.steps)
        if prior.revisit is None:  # paths that turn back or return to the start are never extended
            allowed = (there[edges] != before[states]) & (there[edges] != origin)
            states, edges, scores = states[allowed], edges[allowed], scores[allowed]
        self.ends = ends
        """(S,): place of each state."""
        self.counts = np.bincount(states, minlength=len(ends))
        """(S,): number of steps from each state."""
        self.first = np.cumsum(self.counts) - self.counts
        """(S,): number of the first step from each state."""
        self.targets = edges + 1
        """State to which each step leads."""
        has_steps = np.flatnonzero(self.counts)
        top, total = np.zeros(len(ends)), np.ones(len(ends))
        if len(scores):
            top[has_steps] = np.maximum.reduceat(scores, self.first[has_steps])
            total[has_steps] = np.add.reduceat(np.exp(scores - top[states]), self.first[has_steps])
        self.scores = scores - top[states] - np.log(total)[states]
        """Logarithm of the prior of each step, without that of visiting a viewpoint again."""
        self._has_steps = has_steps

    def best(self, is_end: NDArray[np.bool_], longest: int) -> NDArray[np.float64]:
        """Return the greatest score of 0 to `longest` further steps to an end, (longest + 1, S), by state."""
        values = np.full((longest + 1, len(self.ends)), -np.inf)
        values[0, is_end[self.ends]] = 0.0
        for number in range(1, longest + 1 if len(self.scores) else 1):
            onward = self.scores + values[number - 1, self.targets]
            values[number, self._has_steps] = np.maximum.reduceat(onward, self.first[self._has_steps])
        return values


class _Partial(NamedTuple):
    """P routes of equally many edges, which may be extended."""

    places: NDArray[np.int64]
    """(P, edges + 1): places of each route."""
    states: NDArray[np.int64]
    scores: NDArray[np.float64]
    """(P,): logarithm of the prior."""

    def select(self, rows: NDArray[Any]) -> _Partial:
        return _Partial(self.places[rows], self.states[rows], self.scores[rows])


def best_routes(
    scene_map: SceneMap, start: Start, limits: RouteLimits, prior: RoutePrior, count: int = PER_LENGTH
) -> RouteSet:
    """Return the most probable routes under a prior, and the route of no edge.

    For every number of edges, these are exactly the `count` best routes to visited viewpoints, and as many to
    the frontier: a first search, which keeps the best partial routes only, gives the least prior that a route
    must have. A second search extends every partial route whose best completion has at least this prior.
    (Only if more than `MOST_PARTIAL` partial routes of equally many edges are left, it keeps the best.)
    """
    area = Neighbourhood(scene_map, start.node, limits.max_moves)
    steps, longest = _Steps(area, start, prior), limits.max_moves
    kinds = [area.visited, ~area.visited]
    values = np.stack([steps.best(is_end, longest) for is_end in kinds], 1)  # (edges, kinds, S)
    least = np.full((longest + 1, 2), -np.inf)
    least[: limits.min_moves, 0] = least[0] = np.inf  # such routes are not looked for
    found: list[_Partial] = []
    for is_exact in (False, True):
        part = _Partial(np.array([[area.place(start.node)]]), np.zeros(1, np.int64), np.zeros(1))
        found = [part]
        for number in range(1, longest + 1):
            part = _extended(part, steps, prior)
            # (edges in all, kinds, P): greatest prior that routes of so many edges can have
            bounds = values[: longest + 1 - number, :, part.states] + part.scores
            hopeful = np.isfinite(bounds) & (bounds + TOLERANCE >= least[number:, :, None])
            if not is_exact:
                order = np.argsort(-np.where(hopeful, bounds, -np.inf), axis=2, kind="stable")[..., :count]
                chosen = np.zeros_like(hopeful)
                np.put_along_axis(chosen, order, True, axis=2)
                hopeful &= chosen
            rows = np.flatnonzero(hopeful.any((0, 1)))
            if len(rows) > MOST_PARTIAL:
                best = np.where(hopeful, bounds - np.nan_to_num(least)[number:, :, None], -np.inf).max((0, 1))
                rows = np.sort(rows[np.argsort(-best[rows], kind="stable")[:MOST_PARTIAL]])
            part = part.select(rows)
            found.append(part)
            for kind, is_end in enumerate(kinds):
                scores = part.scores[is_end[steps.ends[part.states]]]
                if len(scores) >= count and not is_exact:
                    least[number, kind] = max(
                        least[number, kind], -np.partition(-scores, count - 1)[count - 1]
                    )
    return _collect(found, area, limits, count, start.view)


def _extended(part: _Partial, steps: _Steps, prior: RoutePrior) -> _Partial:
    """Return all routes of one edge more."""
    counts = steps.counts[part.states]
    parents = np.repeat(np.arange(len(counts)), counts)
    index = np.repeat(steps.first[part.states], counts) + slots_of(counts)
    states = steps.targets[index]
    places = steps.ends[states]
    scores = part.scores[parents] + steps.scores[index]
    again = (part.places[parents] == places[:, None]).any(1)
    extended = _Partial(np.concatenate([part.places[parents], places[:, None]], 1), states, scores)
    if prior.revisit is None:
        return extended.select(~again)
    return extended._replace(scores=scores + prior.revisit * again)


def _collect(
    found: Sequence[_Partial], area: Neighbourhood, limits: RouteLimits, count: int, start_view: int
) -> RouteSet:
    """Return the best routes among those that were found; they have 0, 1, ... edges."""
    places, scores = [np.full((1, limits.max_moves + 1), -1)], [np.zeros(1)]
    places[0][0, 0] = found[0].places[0, 0]
    for number, part in enumerate(found[1:], 1):
        ends = area.visited[part.places[:, -1]]
        for is_end in (ends, ~ends) if number >= limits.min_moves else (~ends,):
            rows = np.flatnonzero(is_end)
            rows = rows[np.argsort(-part.scores[rows], kind="stable")[:count]]
            block = np.full((len(rows), limits.max_moves + 1), -1)
            block[:, : number + 1] = part.places[rows]
            places.append(block)
            scores.append(part.scores[rows])
    joined = np.concatenate(places)
    num_moves = (joined >= 0).sum(1) - 1
    joined = joined[:, : int(num_moves.max()) + 1]
    return RouteSet(area, joined, num_moves, None, start_view, np.concatenate(scores))


RouteGenerator = Callable[[SceneMap, Start, RouteLimits], RouteSet]
ROUTES: dict[str, Callable[..., RouteSet]] = {
    "shortest": shortest_routes,
    "two-leg": two_leg_routes,
    "k-best": best_routes,
}
"""Functions that return candidate routes, by name; `k-best` also needs a prior."""


def get_routes(name: str, prior: RoutePrior | None = None) -> RouteGenerator:
    """Return the route generator of a name; raise `ConfigError` for an unknown name or without its prior."""
    if name not in ROUTES:
        raise ConfigError(f"routes '{name}': expected one of {', '.join(ROUTES)}")
    if (name == "k-best") != (prior is not None):
        raise ConfigError(f"routes '{name}': expected {'a' if name == 'k-best' else 'no'} prior of routes")
    return ROUTES[name] if prior is None else partial(ROUTES[name], prior=prior)
