"""Loading 90 scenes and all-pairs shortest paths, against json + networkx as the original does it.

The baseline parses each file with the standard library, builds a networkx graph edge by edge and computes
`all_pairs_dijkstra_path` and `all_pairs_dijkstra_path_length`. Ours also computes the candidates of every
viewpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import networkx

from benchmarks.measure import Ratio, both_sides
from esceme.world import read_scenes


def load_baseline(directory: Path) -> dict[str, tuple[dict, dict]]:
    scenes = {}
    for path in sorted(directory.glob("*_connectivity.json")):
        records = json.loads(path.read_text())
        graph = networkx.Graph()
        for record in records:
            if not record["included"]:
                continue
            for other, is_unobstructed in zip(records, record["unobstructed"], strict=True):
                if is_unobstructed and other["included"]:
                    length = math.dist(
                        [record["pose"][entry] for entry in (3, 7, 11)],
                        [other["pose"][entry] for entry in (3, 7, 11)],
                    )
                    graph.add_edge(record["image_id"], other["image_id"], weight=length)
        paths = dict(networkx.all_pairs_dijkstra_path(graph))
        lengths = dict(networkx.all_pairs_dijkstra_path_length(graph))
        scenes[path.name.removesuffix("_connectivity.json")] = (paths, lengths)
    return scenes


def load_ours(directory: Path) -> dict:
    graphs = read_scenes(directory)
    for graph in graphs.values():
        _ = graph.distances, graph.next_steps
    return graphs


def run(data: Path) -> Iterator[Ratio]:
    directory = data / "connectivity"
    expected, ours = load_baseline(directory), load_ours(directory)
    for scene, (_, lengths) in expected.items():
        for start in list(lengths)[:3]:
            for goal, length in lengths[start].items():
                assert math.isclose(ours[scene].distance(start, goal), length, abs_tol=1e-9)
    del expected
    times = both_sides(lambda: load_baseline(directory), lambda: load_ours(directory), 2)
    bound = "Dijkstra in compiled code, nearly half of the time; then parsing json and laying out candidates"
    yield Ratio("loading + all-pairs of 90 scenes", *times, 20, bound)
