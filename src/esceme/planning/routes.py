"""Candidate routes in the map of a building.

Routes use only edges from visited viewpoints. They end at visited viewpoints or at frontier viewpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from esceme.errors import ConfigError
from esceme.memory.scene_map import SceneMap

MAX_HOPS = 7
"""Maximum number of edges of a shortest route."""
MARGIN = 2
"""Distances are computed within this number of edges beyond the longest route."""


class Start(NamedTuple):
    """Start of a route: a visited node, and the view (0 to 35) that the agent faces there."""

    node: int
    view: int


class Neighbourhood:
    """Part of a map within a number of edges of a node, with its shortest paths.

    Places are the nodes of the neighbourhood, numbered from 0. Only edges from visited nodes are known, so
    that a frontier viewpoint can only be the last place of a path. The size does not depend on that of the
    map.
    """

    def __init__(self, scene_map: SceneMap, center: int, hops: int) -> None:
        """Collect all nodes within `hops` edges of the visited node `center`."""
        self.scene_map = scene_map
        tables, row_of = scene_map.tables, scene_map.row_of
        found: dict[int, None] = {center: None}
        level = [center]
        for _ in range(hops):
            rows = row_of[level]
            seen = tables["neighbours"][rows[rows >= 0]]
            level = [node for node in dict.fromkeys(seen[seen >= 0].tolist()) if node not in found]
            found.update(dict.fromkeys(level))
        # The numbering of places must not depend on the order of exploration.
        self.nodes: NDArray[np.int64] = np.array(sorted(found, key=scene_map.name), dtype=np.int64)
        """(n,): node of each place."""
        self.visited: NDArray[np.bool_] = scene_map.is_visited(self.nodes)
        place_of = {node: place for place, node in enumerate(self.nodes.tolist())}
        self.slot: NDArray[np.int64] = np.full((len(self.nodes),) * 2, -1)
        """(n, n): number of the candidate that leads from one place to another; -1 without an edge."""
        self.view: NDArray[np.int64] = np.full_like(self.slot, -1)
        """(n, n): view that shows this candidate, which the agent faces on arrival; -1 without an edge."""
        lengths = np.zeros(self.slot.shape)
        for place in np.flatnonzero(self.visited).tolist():
            row = row_of[self.nodes[place]]
            for slot, node in enumerate(tables["neighbours"][row].tolist()):
                if (other := place_of.get(node, -1)) >= 0 and node >= 0:
                    self.slot[place, other], self.view[place, other] = slot, tables["views"][row, slot]
                    lengths[place, other] = tables["lengths"][row, slot]
        self.lengths = lengths
        self._graph = csr_array(lengths)
        self._place_of = place_of

    def place(self, node: int) -> int:
        """Return the place of a node."""
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
    utility: str
    """Name of the utility of these routes in `choice.UTILITIES`."""

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

    def _per_edge(self, table: NDArray[Any], fill: float) -> NDArray[Any]:
        here, there = self.places[:, :-1], self.places[:, 1:]
        return np.where(there >= 0, table[here, there], fill)


def shortest_routes(scene_map: SceneMap, start: Start, *, max_hops: int = MAX_HOPS) -> RouteSet:
    """Return the shortest route to every known viewpoint that it reaches with at most `max_hops` edges.

    The routes form a tree. They are ordered by length, so that a route follows its prefixes.
    """
    area = Neighbourhood(scene_map, start.node, max_hops + MARGIN)
    origin = area.place(start.node)
    distance, before = area.distances[origin], area.predecessors[origin]
    row_of: dict[int, int] = {origin: 0}
    rows, parents = [[origin]], [-1]
    for place in np.argsort(distance, kind="stable").tolist():
        parent = row_of.get(int(before[place]))
        if parent is None or place == origin or len(rows[parent]) > max_hops:
            continue
        row_of[place] = len(rows)
        parents.append(parent)
        rows.append([*rows[parent], place])
    return _route_set(area, rows, start, "spl", parents)


def _route_set(
    area: Neighbourhood, rows: Sequence[Sequence[int]], start: Start, utility: str, parents: list[int] | None
) -> RouteSet:
    num_moves = np.array([len(row) - 1 for row in rows])
    places = np.full((len(rows), int(num_moves.max()) + 1), -1, dtype=np.int64)
    for target, row in zip(places, rows, strict=True):
        target[: len(row)] = row
    as_array = None if parents is None else np.array(parents, dtype=np.int64)
    return RouteSet(area, places, num_moves, as_array, start.view, utility)


RouteGenerator = Callable[[SceneMap, Start], RouteSet]
ROUTES: dict[str, RouteGenerator] = {"shortest": shortest_routes}
"""Functions that return candidate routes, by name."""


def get_routes(name: str) -> RouteGenerator:
    """Return the route generator of a name; raise `ConfigError` for an unknown name."""
    if name not in ROUTES:
        raise ConfigError(f"routes '{name}': expected one of {', '.join(ROUTES)}")
    return ROUTES[name]
