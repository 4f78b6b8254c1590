"""The graph map: against dictionaries and loops, and the map that a memory begins with (spec I.4, I.10)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from esceme.agents.graph_map import GraphMap, way
from esceme.agents.remembered_map import remembered_maps, shortest_ways
from esceme.memory import MemoryBank
from esceme.observation import RememberedPanoramas
from esceme.world import ArrayFeatures, Atlas
from esceme.world.geometry import VIEWS
from fixtures.random_observations import random_building
from fixtures.toy_atlas import build_toy_atlas

SCENE = random_building(30, seed=4)


def empty_map(batch: int = 1) -> GraphMap:
    return GraphMap(**GraphMap.empty_fields(batch, 2, torch.zeros(0)))


def visit(graph: GraphMap, atlas: Atlas, viewpoints: list[int]) -> GraphMap:
    """The maps after an observation at a viewpoint per row."""
    degrees = [int(atlas.degrees[viewpoint]) for viewpoint in viewpoints]
    seen = torch.full((len(viewpoints), 1 + max(degrees)), -1)
    for row, (viewpoint, degree) in enumerate(zip(viewpoints, degrees, strict=True)):
        seen[row, : degree + 1] = torch.tensor([viewpoint, *atlas.neighbours[viewpoint, :degree].tolist()])
    positions = torch.from_numpy(atlas.positions[seen.clamp(min=0).numpy()])
    graph = graph.insert(seen, positions)
    nodes = graph.find(seen)
    return graph.connect(nodes[:, 0], nodes[:, 1:]).relax(nodes[:, 0])


def plain_distances(atlas: Atlas, visited: list[int]) -> tuple[list[int], dict[tuple[int, int], float]]:
    """Nodes in order of entry, and shortest ways through visited nodes, by Floyd and Warshall."""
    order: list[int] = []
    edges: dict[tuple[int, int], float] = {}
    positions = atlas.positions.astype(np.float32).astype(np.float64)
    for viewpoint in visited:
        for seen in (viewpoint, *atlas.neighbours[viewpoint, : atlas.degrees[viewpoint]].tolist()):
            if seen not in order:
                order.append(seen)
            if seen != viewpoint:
                length = float(np.linalg.norm(positions[viewpoint] - positions[seen]))
                edges[viewpoint, seen] = edges[seen, viewpoint] = length
    best = {(a, b): 0.0 if a == b else edges.get((a, b), math.inf) for a in order for b in order}
    for middle in visited:
        for a in order:
            for b in order:
                best[a, b] = min(best[a, b], best[a, middle] + best[middle, b])
    return order, best


def with_features(atlas: Atlas) -> Atlas:
    """The atlas with features of one number."""
    names = [f"{scene}_{viewpoint}" for scene, viewpoint in atlas.names]
    panoramas = {name: np.zeros((VIEWS, 1), dtype=np.float32) for name in names}
    return Atlas(atlas.graphs.values(), ArrayFeatures.from_mapping(panoramas, source="zeros"))


def walk(seed: int, length: int) -> list[int]:
    """Distinct viewpoints, each adjacent to one before."""
    generator = np.random.default_rng(seed)
    visited = [int(generator.integers(len(SCENE)))]
    while len(visited) < length:
        near = SCENE.neighbours[visited].ravel()
        visited.append(int(generator.choice(np.setdiff1d(near[near >= 0], visited))))
    return visited


def test_maps_of_a_batch_equal_dictionaries() -> None:
    walks = [walk(seed, 8) for seed in range(4)]
    graph = empty_map(4)
    for step in range(8):
        graph = visit(graph, SCENE, [path[step] for path in walks])
        for row, path in enumerate(walks):
            order, best = plain_distances(SCENE, path[: step + 1])
            assert graph.node[row, : len(order)].tolist() == [viewpoint + 1 for viewpoint in order]
            assert not graph.node[row, len(order) :].any()
            expected = [[best[a, b] for b in order] for a in order]
            found = graph.distance[row, : len(order), : len(order)]
            torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_ways_follow_edges_through_visited_nodes() -> None:
    path, graph = walk(1, 9), empty_map()
    for viewpoint in path:
        graph = visit(graph, SCENE, [viewpoint])
    viewpoints = (graph.node[0] - 1).tolist()
    visited = {viewpoints.index(viewpoint) for viewpoint in path}
    for start in range(len(viewpoints)):
        for end in range(len(viewpoints)):
            if start == end:
                continue
            nodes = [start, *way(graph.middle[0], start, end)]
            assert nodes[-1] == end and set(nodes[1:-1]) <= visited
            assert len(nodes) - 1 == int(graph.hops[0, start, end])
            lengths = [
                np.linalg.norm(SCENE.positions[viewpoints[a]] - SCENE.positions[viewpoints[b]])
                for a, b in pairwise(nodes)
            ]
            assert sum(lengths) == pytest.approx(float(graph.distance[0, start, end]), abs=1e-4)
            assert all(viewpoints[b] in SCENE.neighbours[viewpoints[a]] for a, b in pairwise(nodes))


def test_features_of_the_current_node_are_minus_the_pose() -> None:
    graph = visit(empty_map(), SCENE, [3])
    view = 12 * 2 + 4  # 120 degrees, up by 30
    current = graph.position_features(torch.tensor([0]), torch.tensor([view]))[0, 0]
    heading, elevation = math.radians(120), math.radians(30)
    expected = [-math.sin(heading), math.cos(heading), -math.sin(elevation), math.cos(elevation), 0, 0, 0]
    torch.testing.assert_close(current, torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_remembered_ways_equal_those_of_visits(seed: int) -> None:
    """A map built at once from remembered panoramas has the ways of one that grew by visits."""
    path, graph = walk(seed, 7), empty_map()
    for viewpoint in path:
        graph = visit(graph, SCENE, [viewpoint])
    viewpoints = (graph.node[0] - 1).tolist()
    order = sorted(range(len(viewpoints)), key=lambda node: viewpoints[node] not in path)
    positions = SCENE.positions[[viewpoints[node] for node in order]].astype(np.float32).astype(np.float64)
    edges = [
        (index, order.index(viewpoints.index(other)))
        for index, node in enumerate(order[: len(path)])
        for other in SCENE.neighbours[viewpoints[node]].tolist()
        if other >= 0
    ]
    source, target = (np.array(ends) for ends in zip(*edges, strict=True))
    ways = shortest_ways(positions, source, target, len(path))
    expected = graph.distance[0][order][:, order]
    torch.testing.assert_close(torch.from_numpy(ways.distance), expected)
    assert torch.equal(torch.from_numpy(ways.hops), graph.hops[0][order][:, order])


@pytest.mark.parametrize("seed", range(6))
def test_a_remembered_map_that_grows_has_the_ways_of_all_passable_nodes(seed: int) -> None:
    """A random part of the scene is remembered, then the agent walks; against dictionaries."""
    generator = np.random.default_rng(seed)
    memory = sorted(generator.choice(len(SCENE), 6, replace=False).tolist())
    path = walk(seed, 7)
    bank = MemoryBank.from_atlas(with_features(SCENE))
    panoramas = bank.observe(torch.tensor(memory))
    tokens = torch.rand(len(memory), panoramas.token_type.shape[1], 2)
    known = torch.ones(1, len(memory), dtype=torch.bool)
    graph = empty_map().add_disjoint(remembered_maps(RememberedPanoramas(panoramas, known), tokens))
    for step, viewpoint in enumerate(path, 1):
        degree = int(SCENE.degrees[viewpoint])
        seen = torch.tensor([[viewpoint, *SCENE.neighbours[viewpoint, :degree].tolist()]])
        graph = graph.insert(seen, torch.from_numpy(SCENE.positions[seen.numpy()]))
        nodes = graph.find(seen)
        passable = torch.isin(seen, torch.tensor(memory + path[: step - 1]))[:, 1:]
        graph = graph.connect(nodes[:, 0], nodes[:, 1:])
        graph = graph.begin_ways(nodes[:, 0], nodes[:, 1:].masked_fill(~passable, -1)).relax(nodes[:, 0])
        viewpoints = (graph.node[0] - 1).tolist()
        _, best = plain_distances(SCENE, [*memory, *path[:step]])
        expected = torch.tensor([[best[a, b] for b in viewpoints] for a in viewpoints], dtype=torch.float64)
        torch.testing.assert_close(graph.distance[0], expected)
        for start in range(len(viewpoints)):
            for end in range(len(viewpoints)):
                if start == end or math.isinf(float(graph.distance[0, start, end])):
                    continue
                places = [viewpoints[node] for node in (start, *way(graph.middle[0], start, end))]
                assert places[-1] == viewpoints[end] and len(set(places)) == len(places)
                assert set(places[1:-1]) <= {*memory, *path[:step]}
                assert all(b in SCENE.neighbours[a] for a, b in pairwise(places))


def test_a_new_edge_links_parts_of_a_remembered_map() -> None:
    """Garden and attic are remembered; the hall links them, and ways lead through both parts at once."""
    atlas = build_toy_atlas()
    bank = MemoryBank.from_atlas(atlas)
    garden, door, attic, landing = atlas.locate("cottage", ["garden", "door", "attic", "landing"]).tolist()
    bank.remember_at([garden, door, attic, landing])
    panoramas = bank.observe(torch.tensor([garden, door, attic, landing]))
    tokens = torch.rand(4, panoramas.token_type.shape[1], 2)
    remembered = RememberedPanoramas(panoramas, torch.tensor([[True] * 4, [False] * 4]))
    graph = empty_map(2).add_disjoint(remembered_maps(remembered, tokens))
    assert int((graph.node[1] > 0).sum()) == 0
    hall = int(atlas.locate("cottage", ["hall"])[0])
    viewpoints = (graph.node[0] - 1).tolist()
    start, end = viewpoints.index(garden), viewpoints.index(attic)
    # The hall is a neighbour of door and landing, but was not visited: no way leads through it.
    assert hall in viewpoints and math.isinf(float(graph.distance[0, start, end]))
    current = torch.tensor([viewpoints.index(hall), 0])
    neighbours = graph.find(torch.tensor([[door, landing], [-1, -1]]))
    linked = graph.connect(current, neighbours).begin_ways(current, neighbours).relax(current)
    names = [atlas.name(viewpoints[node])[1] for node in way(linked.middle[0], start, end)]
    assert names == ["door", "hall", "landing", "attic"]
    assert int(linked.hops[0, start, end]) == 4
