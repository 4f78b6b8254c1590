"""Candidate routes in the map of a building.

Routes use only edges from visited viewpoints. They end at visited viewpoints or at frontier viewpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory.scene_map import SceneMap, slots_of
from esceme.settings import Count, check_settings

MIN_LEG, MAX_LEG = 2, 8
"""Least and greatest number of edges of each leg of a two-leg route."""
MAX_MOVES = 60
"""Greatest number of edges that limits of routes may have."""
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
        lengths = np.zeros(self.slot.shape)
        visited = self.nodes[self.visited]
        counts, candidates = scene_map.num_candidates(visited), scene_map.candidates(visited)
        here = np.repeat(np.flatnonzero(self.visited), counts)
        there = np.array([self._place_of.get(node, -1) for node in candidates.neighbours.tolist()], np.int64)
        within = there >= 0
        edges = (here[within], there[within])
        self.slot[edges] = slots_of(counts)[within]
        self.view[edges], lengths[edges] = candidates.views[within], candidates.lengths[within]
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


RouteGenerator = Callable[[SceneMap, Start, RouteLimits], RouteSet]
ROUTES: dict[str, RouteGenerator] = {"shortest": shortest_routes, "two-leg": two_leg_routes}
"""Functions that return candidate routes, by name."""


def get_routes(name: str) -> RouteGenerator:
    """Return the route generator of a name; raise `ConfigError` for an unknown name."""
    if name not in ROUTES:
        raise ConfigError(f"routes '{name}': expected one of {', '.join(ROUTES)}")
    return ROUTES[name]
