"""Maps of scenes: what they know, what they observe, merging and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from esceme.errors import DataError, MemoryMismatch
from esceme.memory.codebook import Codebook
from esceme.memory.map_file import load_maps, save_maps
from esceme.memory.scene_map import MapBank, SceneMap, VisitedViewpoint
from esceme.observation import Observation
from esceme.world.atlas import Atlas, Pose
from fixtures.toy_atlas import WIDTH, build_toy_atlas


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return build_toy_atlas()


def maps_of(atlas: Atlas, *names: str, scene: str = "cottage", **options: object) -> MapBank:
    maps = MapBank.from_atlas(atlas, **options)
    maps.remember_at(atlas.locate(scene, names).tolist())
    return maps


def test_map_knows_visited_viewpoints_and_the_names_of_their_neighbours(atlas: Atlas) -> None:
    maps = maps_of(atlas, "hall", "door")
    cottage = maps["cottage"]
    assert cottage.viewpoints == ("hall", "door")
    assert set(cottage.frontier) == {"kitchen", "pantry", "landing", "garden"}
    assert "hall" in cottage and "garden" not in cottage and "attic" not in cottage
    assert len(maps) == len(cottage) == 2 and maps.scenes == ("cottage",)
    with pytest.raises(MemoryMismatch, match="'attic' is not in the map"):
        cottage.node("attic")


def test_revisit_changes_nothing_and_forgetting_clears_one_scene(atlas: Atlas) -> None:
    maps = maps_of(atlas, "hall", "door")
    before = maps["cottage"].record("hall")
    maps.remember_at(atlas.locate("cottage", ["hall"]).tolist())
    assert repr(maps["cottage"].record("hall")) == repr(before) and len(maps) == 2
    maps.remember_at(atlas.locate("shed", ["door"]).tolist())
    maps.begin_episode("cottage")
    maps.forget("cottage")
    assert maps.scenes == ("shed",) and maps["cottage"].episodes == 0
    assert maps["cottage"].frontier == ()


def test_remembered_observation_equals_the_observed_one_in_half_precision(atlas: Atlas) -> None:
    names, views = ["hall", "pantry", "landing"], np.array([3, 14, 30])
    maps = maps_of(atlas, "attic", *names)
    cottage = maps["cottage"]
    nodes = np.array([cottage.node(name) for name in names])
    previous = np.array([[cottage.node("attic"), -1], [-1, -1], [cottage.node("hall"), cottage.node("hall")]])
    found = cottage.observe(nodes, views, previous)
    pose = Pose(atlas.locate("cottage", names), views)
    index = atlas.locate("cottage", ["attic", "hall"])
    expected = Observation.from_atlas(
        atlas, pose, previous_viewpoints=np.array([[index[0], -1], [-1, -1], [index[1], index[1]]])
    )
    for field in (
        "token_type",
        "valid",
        "neighbour",
        "view",
        "viewpoint",
        "facing_view",
        "previous_viewpoints",
    ):
        assert torch.equal(getattr(found, field), getattr(expected, field)), field
    for field, tolerance in (("angles", 1e-5), ("positions", 1e-4), ("features", 2e-3)):
        torch.testing.assert_close(getattr(found, field), getattr(expected, field), atol=tolerance, rtol=1e-3)


def test_merging_is_commutative_associative_and_idempotent(atlas: Atlas, tmp_path: Path) -> None:
    parts = [("hall", "door"), ("door", "garden"), ("kitchen",)]

    def merged(*order: int) -> bytes:
        maps = maps_of(atlas)
        for number in order:
            maps.merge(maps_of(atlas, *parts[number]))
        save_maps(maps, tmp_path / "maps.safetensors")
        return (tmp_path / "maps.safetensors").read_bytes()

    assert merged(0, 1, 2) == merged(2, 1, 0) == merged(1, 0, 2, 1, 1)


def test_maps_of_other_features_do_not_merge(atlas: Atlas) -> None:
    other = build_toy_atlas(width=5)
    with pytest.raises(MemoryMismatch, match="width 12 from 'by-hand.hdf5' cannot merge maps of width 5"):
        maps_of(atlas).merge(maps_of(other))
    with pytest.raises(MemoryMismatch, match="the map holds features of width 12"):
        maps_of(atlas).bind(other)
    with pytest.raises(MemoryMismatch, match="the codebook is for features of width 5"):
        MapBank.from_atlas(atlas, codebook=Codebook(np.zeros((2, 5))))


@pytest.mark.parametrize("keeps_features", [True, False])
def test_saved_maps_load_equal(atlas: Atlas, tmp_path: Path, keeps_features: bool) -> None:
    codebook = Codebook(np.random.default_rng(0).normal(size=(7, WIDTH)))
    maps = maps_of(atlas, "hall", "landing", codebook=codebook, keeps_features=keeps_features)
    maps.begin_episode("cottage")
    path = tmp_path / "maps.safetensors"
    save_maps(maps, path)
    loaded = load_maps(path, codebook=codebook)
    assert loaded["cottage"].episodes == 1 and set(loaded["cottage"].viewpoints) == {"hall", "landing"}
    for name in ("hall", "landing"):
        for mine, theirs in zip(maps["cottage"].record(name), loaded["cottage"].record(name), strict=True):
            assert mine is theirs or np.array_equal(mine, theirs)
    loaded.bind(atlas)
    again = tmp_path / "again.safetensors"
    save_maps(loaded, again)
    assert again.read_bytes() == path.read_bytes()
    with pytest.raises(MemoryMismatch, match="its codes are of another codebook"):
        load_maps(path)


def test_damaged_files_are_refused(atlas: Atlas, tmp_path: Path) -> None:
    path = tmp_path / "maps.safetensors"
    save_maps(maps_of(atlas, "hall"), path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="does not have the stored checksum"):
        load_maps(path)
    path.write_bytes(content[:100])
    with pytest.raises(DataError, match="not a complete file of maps"):
        load_maps(path)
    with pytest.raises(DataError, match="no such file"):
        load_maps(tmp_path / "none.safetensors")


def test_damaged_records_are_refused_and_leave_the_map_unchanged(atlas: Atlas) -> None:
    maps = maps_of(atlas, "hall")
    record = maps["cottage"].record("hall")
    infinite = np.full((36, WIDTH), np.inf, np.float16)
    for damaged, message in (
        (record._replace(features=infinite), "finite numbers"),
        (record._replace(features=None), "features or codes of 36 views"),
        (record._replace(lengths=record.lengths[:1]), "expected 4 angles and lengths"),
        (record._replace(lengths=record.lengths + 64), "expected numbers from 0 to 64, found"),
        (record._replace(elevations=record.elevations + 2), "expected numbers from 0 to 1.5708, found"),
        (record._replace(views=record.views + 36), "expected numbers from 0 to 35, found"),
        (record._replace(codes=np.zeros(36, np.int16)), "have features or codes alike"),
    ):
        with pytest.raises(MemoryMismatch, match=message):
            maps["cottage"].remember("garden", damaged)
    assert maps["cottage"].viewpoints == ("hall",) and len(maps["cottage"].frontier) == 4


def test_maps_with_codes_only_need_at_most_100_bytes_per_viewpoint(atlas: Atlas) -> None:
    rng = np.random.default_rng(0)
    codebook = Codebook(rng.normal(size=(400, WIDTH)))
    scene = MapBank.from_atlas(atlas, codebook=codebook, keeps_features=False)["cottage"]
    codes = rng.integers(400, size=(50, 36)).astype(np.int16)
    for number in range(50):
        names = tuple(f"v{(number + step) % 50}" for step in (1, 2, 48, 49))
        values = rng.uniform(0, 1.5, size=(3, 4))
        record = VisitedViewpoint(
            rng.normal(size=3), names, np.arange(4), *values, features=None, codes=codes[number]
        )
        scene.remember(f"v{number}", record)
    assert scene.nbytes / len(scene) <= 100
    nodes = np.array([scene.node(f"v{number}") for number in range(50)])
    assert np.array_equal(scene.codes(nodes), codes)


def test_candidates_are_stored_to_thousandths_of_degrees_and_of_millimetres() -> None:
    rng = np.random.default_rng(0)
    headings, elevations = rng.uniform(-1, 7, 200), rng.uniform(-np.pi / 2, np.pi / 2, 200)
    lengths, views = rng.uniform(0, 63, 200), rng.integers(36, size=200)
    elevations[:2] = -np.pi / 2, np.pi / 2
    scene, features = SceneMap(), np.zeros((36, 1), np.float16)
    names = tuple(f"v{number}" for number in range(200))
    scene.remember(
        "here", VisitedViewpoint(np.zeros(3), names, views, headings, elevations, lengths, features)
    )
    record = scene.record("here")
    assert record.neighbours == names and np.array_equal(record.views, views)
    turned = (record.headings - headings + np.pi) % (2 * np.pi) - np.pi
    assert np.abs(turned).max() < 2.5e-5 and np.abs(record.elevations - elevations).max() < 2.5e-5
    assert np.abs(record.lengths - lengths).max() < 6e-6
    again = SceneMap()
    again.remember("here", record)
    assert repr(again.record("here")) == repr(record)  # storing what was stored loses nothing


def test_a_map_of_more_nodes_than_16_bits_can_number() -> None:
    scene, features = SceneMap(), np.zeros((36, 1), np.float16)
    zeros = np.zeros(400)
    for number in range(90):
        names = tuple(f"v{number}_{other}" for other in range(400))
        record = VisitedViewpoint(np.zeros(3), names, zeros.astype(int), zeros, zeros, zeros + 1, features)
        scene.remember(f"v{number}", record)
    assert len(scene.frontier) == 36_000
    assert scene.record("v89").neighbours == names and scene.record("v0").neighbours[399] == "v0_399"
    assert scene.name(scene.node("v89_399")) == "v89_399" and "v89_399" not in scene


def test_masked_maps_hide_features_and_keep_geometry(atlas: Atlas) -> None:
    masked = maps_of(atlas, "hall", hides_features=True)["cottage"].record("hall")
    plain = maps_of(atlas, "hall")["cottage"].record("hall")
    assert masked.features is not None and not masked.features.any()
    assert np.array_equal(masked.lengths, plain.lengths) and masked.neighbours == plain.neighbours
