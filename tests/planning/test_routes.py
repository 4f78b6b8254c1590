"""Candidate routes: shortest routes over visited viewpoints, bounded by the number of edges."""

from __future__ import annotations

import numpy as np
import pytest

from esceme.errors import MemoryMismatch
from esceme.memory.scene_map import MapBank, SceneMap
from esceme.planning.routes import (
    Neighbourhood,
    RouteLimits,
    RouteSet,
    Start,
    shortest_routes,
    two_leg_routes,
)
from esceme.world.atlas import Atlas
from fixtures.toy_atlas import build, build_toy_atlas


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return build_toy_atlas()


def map_of(atlas: Atlas, *names: str) -> SceneMap:
    maps = MapBank.from_atlas(atlas)
    maps.remember_at(atlas.locate("cottage", names).tolist())
    return maps["cottage"]


def names_of(scene_map: SceneMap, routes: RouteSet) -> list[list[str]]:
    nodes = routes.area.nodes
    return [[scene_map.name(int(nodes[place])) for place in row if place >= 0] for row in routes.places]


def test_routes_in_a_complete_map_are_the_shortest_paths_of_the_graph(atlas: Atlas) -> None:
    graph = atlas.graph("cottage")
    scene_map = map_of(atlas, *graph.viewpoints)
    routes = shortest_routes(scene_map, Start(scene_map.node("garden"), 12), RouteLimits())
    found = names_of(scene_map, routes)
    assert sorted(route[-1] for route in found) == sorted(graph.viewpoints)
    for route, metres in zip(found, routes.metres, strict=True):
        assert route == graph.shortest_path("garden", route[-1])
        expected = atlas.distance(*atlas.locate("cottage", [route[0], route[-1]]))
        assert metres == pytest.approx(expected, abs=1e-5)
    assert routes.is_visited.all()


def test_routes_end_at_the_frontier_and_never_pass_it(atlas: Atlas) -> None:
    scene_map = map_of(atlas, "hall", "door")
    routes = shortest_routes(scene_map, Start(scene_map.node("hall"), 12), RouteLimits())
    found = {route[-1]: route for route in names_of(scene_map, routes)}
    assert set(found) == {"hall", "door", "kitchen", "pantry", "landing", "garden"}
    assert found["garden"] == ["hall", "door", "garden"]
    ends = [route[-1] for route in names_of(scene_map, routes)]
    assert {end for end, visited in zip(ends, routes.is_visited, strict=True) if visited} == {"hall", "door"}


def test_parents_slots_and_views_describe_the_moves(atlas: Atlas) -> None:
    scene_map = map_of(atlas, *atlas.graph("cottage").viewpoints)
    routes = shortest_routes(scene_map, Start(scene_map.node("attic"), 7), RouteLimits())
    assert routes.parents is not None and routes.parents[0] == -1 and (routes.views[:, 0] == 7).all()
    for row, parent in enumerate(routes.parents.tolist()):
        if row:
            moves = int(routes.num_moves[row])
            assert routes.num_moves[parent] == moves - 1 and parent < row
            assert routes.places[row, :moves].tolist() == routes.places[parent, :moves].tolist()
    names = names_of(scene_map, routes)
    for row, route in enumerate(names):
        for step, (here, there) in enumerate(zip(route, route[1:], strict=False)):
            (index,), slot = atlas.locate("cottage", [here]), routes.slots[row, step]
            assert atlas.names[atlas.neighbours[index, slot]][1] == there
            assert atlas.views[index, slot] == routes.views[row, step + 1]


def test_number_of_edges_is_bounded() -> None:
    size = 30
    names = [f"v{number:02}" for number in range(size)]
    corridor = build(
        {"cottage": {name: (2 * number, 0, 0) for number, name in enumerate(names)}},
        {"cottage": list(zip(names, names[1:], strict=False))},
    )
    scene_map = map_of(corridor, *names)
    routes = shortest_routes(scene_map, Start(scene_map.node("v15"), 12), RouteLimits(max_moves=4))
    assert routes.num_moves.max() == 4 and len(routes) == 9
    assert len(Neighbourhood(scene_map, scene_map.node("v15"), 6).nodes) == 13


def test_routes_do_not_depend_on_the_order_of_exploration(atlas: Atlas) -> None:
    names = list(atlas.graph("cottage").viewpoints)
    found = []
    for order in (names, names[::-1]):
        scene_map = map_of(atlas, *order)
        routes = shortest_routes(scene_map, Start(scene_map.node("door"), 3), RouteLimits())
        found.append((names_of(scene_map, routes), routes.slots.tolist(), routes.metres.tolist()))
    assert found[0] == found[1]
    assert np.isfinite(found[0][2]).all()


def test_two_leg_routes_are_pairs_of_shortest_paths(atlas: Atlas) -> None:
    scene_map = map_of(atlas, *atlas.graph("cottage").viewpoints)
    limits = RouteLimits(3, 6)
    routes = two_leg_routes(scene_map, Start(scene_map.node("garden"), 12), limits)
    area = routes.area
    assert len(np.unique(routes.places, axis=0)) == len(routes)
    for row, moves in zip(routes.places.tolist(), routes.num_moves.tolist(), strict=True):
        assert moves == 0 or limits.min_moves <= moves <= limits.max_moves
        path = row[: moves + 1]
        assert any(area.path(path[0], middle) + area.path(middle, path[-1])[1:] == path for middle in path)
    assert any(len(set(row)) < len(row) for row in (r[r >= 0].tolist() for r in routes.places))


def test_two_leg_routes_reach_the_frontier_with_fewer_edges(atlas: Atlas) -> None:
    scene_map = map_of(atlas, "garden", "door")
    routes = two_leg_routes(scene_map, Start(scene_map.node("garden"), 12), RouteLimits(8, 15))
    assert (routes.num_moves[routes.is_visited] == 0).all()
    ends = routes.area.nodes[routes.ends][~routes.is_visited]
    assert {scene_map.name(int(node)) for node in ends} == set(scene_map.frontier)


def test_walks_return_to_where_the_route_leaves_the_trajectory(atlas: Atlas) -> None:
    scene_map = map_of(atlas, *atlas.graph("cottage").viewpoints)
    routes = two_leg_routes(scene_map, Start(scene_map.node("hall"), 12), RouteLimits(3, 6))
    row = int(routes.num_moves.argmax())
    route = routes.places[row][: routes.num_moves[row] + 1].tolist()
    assert routes.walk(row, route[:1]) == routes.walk(row, route[:2]) == route
    neighbours = np.flatnonzero(routes.area.slot[route[0]] >= 0).tolist()
    walked = [route[0], next(place for place in neighbours if place != route[1])]
    assert routes.walk(row, walked) == [*walked, *route]


def test_a_viewpoint_that_no_edge_leads_to_is_an_error(atlas: Atlas) -> None:
    scene_map = map_of(atlas, "garden", "attic")
    area = Neighbourhood(scene_map, scene_map.node("garden"), 9)
    with pytest.raises(MemoryMismatch, match="'attic' was visited in this episode, and no edge"):
        area.place(scene_map.node("attic"))
