"""Maps and routes of real buildings: bytes, lengths, and how many paths of real dialogs the routes hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank
from esceme.planner_training import described_route, route_shape
from esceme.planning.routes import RouteLimits, Start, get_routes, shortest_routes
from esceme.tasks.cvdn import read_cvdn
from esceme.world import ArrayFeatures, Atlas, SceneGraph
from esceme.world.geometry import VIEWS, nearest_view

pytestmark = [pytest.mark.real, pytest.mark.long]


def blank_maps(atlas: Atlas, codebook: Codebook) -> MapBank:
    """Complete maps of codes."""
    maps = MapBank.from_atlas(atlas, codebook=codebook, keeps_features=False)
    maps.remember_all()
    return maps


def blank_atlas(graphs: dict[str, SceneGraph]) -> Atlas:
    """An atlas in which all views look alike."""
    blank = np.zeros((VIEWS, 1), np.float32)
    panoramas = {f"{scene}_{name}": blank for scene, graph in graphs.items() for name in graph.viewpoints}
    return Atlas([*graphs.values()], ArrayFeatures.from_mapping(panoramas, source="blank.hdf5"))


def test_maps_need_100_bytes_per_viewpoint_and_hold_the_shortest_routes(
    data_root: Path, real_graphs: dict[str, SceneGraph]
) -> None:
    scenes = {episode.scene_id for episode in read_cvdn(data_root / "CVDN/val_unseen.json")}
    atlas = blank_atlas({scene: real_graphs[scene] for scene in scenes})
    maps = blank_maps(atlas, Codebook(np.arange(400.0)[:, None]))
    assert maps.nbytes / len(maps) <= 100
    for scene in scenes:
        scene_map = maps[scene]
        for node in range(0, len(scene_map), 10):
            routes = shortest_routes(scene_map, Start(node, 12), RouteLimits())
            ends = np.array(scene_map.indices(routes.area.nodes[routes.ends].tolist()))
            assert routes.metres == pytest.approx(atlas.distance(np.full_like(ends, ends[0]), ends), abs=1e-4)


def test_best_routes_hold_more_paths_of_real_dialogs_than_shortest_ones(
    data_root: Path, real_graphs: dict[str, SceneGraph]
) -> None:
    """The prior is fitted to the paths of val_seen, in other buildings."""
    seen, unseen = (read_cvdn(data_root / f"CVDN/{split}.json") for split in ("val_seen", "val_unseen"))
    scenes = {episode.scene_id for episode in (*seen, *unseen)}
    atlas = blank_atlas({scene: real_graphs[scene] for scene in scenes})
    codebook = Codebook(np.zeros((2, 1)))
    shape = route_shape(atlas, seen, "sdtw", codebook)
    assert shape.routes == "k-best" and shape.shares["two"] < 0.9
    maps, shares = blank_maps(atlas, codebook), {}
    for name, prior in (("k-best", shape.prior), ("two-leg", None), ("shortest", None)):
        found = []
        for episode in unseen[::8]:
            scene_map = maps[episode.scene_id]
            start = Start(scene_map.node(episode.start), int(nearest_view(episode.heading)))
            routes = get_routes(name, prior)(scene_map, start, RouteLimits(0, 15))
            path = atlas.locate(episode.scene_id, episode.reference_path)
            row = described_route(scene_map, routes, episode)
            found.append(
                row is not None and routes.metres[row] == pytest.approx(length(atlas, path), abs=1e-3)
            )
        shares[name] = np.mean(found)
    assert shares["k-best"] > max(shares["two-leg"], shares["shortest"]) + 0.1, shares


def length(atlas: Atlas, path: np.ndarray) -> float:
    return float(atlas.distance(path[:-1], path[1:]).sum())
