"""The toy world as files: reproducible, complete, in the published forms, and free of faults."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from esceme.files import read_records
from esceme.tasks.catalogue import TASKS
from esceme.tasks.doctor import examine
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import Record
from esceme.tasks.r4r import join_paths
from esceme.tasks.text import WordPiece
from esceme.world import Atlas, read_scenes
from toyworld.world import write_toy_world


def content(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def load(path: Path) -> Any:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    lines = path.name.removesuffix(".gz").endswith(".jsonl")
    return [json.loads(line) for line in data.splitlines()] if lines else json.loads(data)


def test_the_same_seed_writes_the_same_bytes(toy_root: Path, tmp_path: Path) -> None:
    assert content(write_toy_world(tmp_path, seed=0)) == content(toy_root)


def test_another_seed_writes_other_houses_under_the_same_names(toy_root: Path, tmp_path: Path) -> None:
    ours, theirs = content(toy_root), content(write_toy_world(tmp_path, seed=1))
    assert set(ours) == set(theirs)
    same = {name for name in ours if ours[name] == theirs[name]}
    assert same == {"connectivity/scans.txt"}


@pytest.mark.parametrize("seed", range(3))
def test_the_doctor_finds_no_fault(tmp_path: Path, seed: int) -> None:
    findings = examine(write_toy_world(tmp_path, seed=seed), deep=True)
    assert [finding for finding in findings if finding.level == "fault"] == []
    checked = {finding.file for finding in findings if finding.level == "ok"}
    assert {"features/toy.hdf5", "tours/tours_iVLN.json", "tokenizer/vocab.txt"} <= checked


def test_every_task_can_be_read(toy_root: Path) -> None:
    folder = DataFolder(toy_root)
    expected = {
        "r2r": ["train", "val_seen", "val_unseen", "test"],
        "r4r": ["train", "val_seen", "val_unseen"],
        "rxr": ["train", "val_seen", "val_unseen", "test_standard_public"],
        "cvdn": ["val_seen", "val_unseen"],
        "reverie": ["train", "val_seen", "val_unseen", "test"],
        "prevalent": [],
    }
    assert {name: list(folder.splits(name)) for name in expected} == expected
    for name, task in TASKS.items():
        for split, file in folder.splits(name).items():
            withheld = {episode.goal_withheld for episode in task.read(file)}
            assert withheld == {split.startswith("test")}


@pytest.mark.parametrize("seed", range(4))
def test_scenes_look_like_scanned_buildings(tmp_path: Path, seed: int) -> None:
    write_toy_world(tmp_path, seed=seed)
    graphs = read_scenes(tmp_path / "connectivity")
    assert len(graphs) == 3
    for graph in graphs.values():
        assert 12 <= len(graph) <= 32
        assert graph.is_connected
        assert 3.4 < graph.degrees.mean() < 5.2
        lengths = graph.lengths[graph.neighbours >= 0]
        assert lengths.min() >= 1.0 and lengths.max() <= 5.0
        assert sorted(graph.left_out.values()) == ["excluded", "isolated"]
    climbs = {scene: float(np.ptp(graph.positions[:, 2])) > 2 for scene, graph in graphs.items()}
    assert climbs == {"toy-cottage": False, "toy-house": False, "toy-villa": True}


def test_unseen_houses_are_not_trained_in(toy_root: Path) -> None:
    def scenes(split: str) -> set[str]:
        return {record["scan"] for record in load(toy_root / f"R2R/R2R_{split}.json")}

    assert scenes("val_seen") <= scenes("train")
    assert not scenes("val_unseen") & scenes("train")


def test_r2r_paths_are_different_shortest_paths_of_three_to_six_edges(toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    paths = []
    for split in ("train", "val_seen", "val_unseen"):
        for record in load(toy_root / f"R2R/R2R_{split}.json"):
            graph, path = graphs[record["scan"]], record["path"]
            walked = sum(graph.distance(a, b) for a, b in zip(path, path[1:], strict=False))
            assert 4 <= len(path) <= 7
            assert walked == pytest.approx(graph.distance(path[0], path[-1]))
            assert record["distance"] == pytest.approx(walked, abs=0.005)
            assert 0 <= record["heading"] < 6.284 and len(record["instructions"]) == 3
            paths.append(tuple(path))
    assert len(set(paths)) == len(paths)


def test_r4r_is_what_our_own_maker_makes(toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    made = list(join_paths(read_records(toy_root / "R2R/R2R_val_unseen.json", Record), graphs))
    assert read_records(toy_root / "R4R/R4R_val_unseen.json", Record) == made
    assert len(made) >= 7  # every second walk begins where another ends


def test_the_vocabulary_knows_every_word_and_spells_the_rest(toy_root: Path) -> None:
    file = toy_root / "tokenizer/vocab.txt"
    pieces = file.read_text().split()
    tokenizer = WordPiece.read(file)
    for name, task in TASKS.items():
        for path in DataFolder(toy_root).splits(name).values():
            for episode in task.read(path):
                spelled = [pieces[token] for token in tokenizer.encode(episode.instruction)]
                assert "[UNK]" not in spelled
                assert not any(piece.startswith("##") for piece in spelled)
    assert "[UNK]" not in [pieces[token] for token in tokenizer.encode("zebra crossing")]


def test_features_are_stored_as_published_files_store_them(toy_root: Path) -> None:
    included = [
        f"{scene}_{record['image_id']}"
        for scene in ("toy-cottage", "toy-house", "toy-villa")
        for record in load(toy_root / f"connectivity/{scene}_connectivity.json")
        if record["included"]
    ]
    with h5py.File(toy_root / "features/toy.hdf5") as file:
        assert sorted(file) == sorted(included)
        stored = file[included[0]]
        assert (stored.shape, stored.dtype, stored.compression) == ((36, 36), np.float64, "gzip")
        scene, viewpoint = included[0].split("_")
        assert dict(stored.attrs) == {
            "scanId": scene,
            "viewpointId": viewpoint,
            "image_w": 640,
            "image_h": 480,
            "vfov": 60,
        }


def test_views_of_one_kind_of_room_look_more_alike_than_others(toy_root: Path) -> None:
    """A classifier by nearest mean, taught in two houses, tells the rooms of the third."""
    atlas = Atlas.read(toy_root / "connectivity", features=toy_root / "features/toy.hdf5", width=32)
    rooms = load(toy_root / "rooms/viewpoint_rooms.json")["panos"]
    looks = atlas.panorama_features(np.arange(len(atlas))).mean(axis=1)
    labels = np.array([rooms[scene][name][1] for scene, name in atlas.names])
    unseen = np.array([scene == "toy-house" for scene, _ in atlas.names])
    kinds = sorted(set(labels[~unseen]))
    means = np.stack([looks[~unseen & (labels == kind)].mean(axis=0) for kind in kinds])
    nearest = np.linalg.norm(looks[unseen][:, None] - means, axis=-1).argmin(axis=1)
    hits = np.array(kinds)[nearest] == labels[unseen]
    assert hits.mean() > 0.6


def test_targets_can_be_seen_where_the_walk_ends(toy_root: Path) -> None:
    objects = load(toy_root / "objects/reverie_objects.json.gz")
    for split in ("train", "val_seen", "val_unseen"):
        for record in load(toy_root / f"REVERIE/v2_REVERIE_{split}.json"):
            seen = objects[f"{record['scan']}_{record['path'][-1]}"]
            (target,) = [each for each in seen if each["id"] == str(record["objId"])]
            assert len(target["views"]) == len(target["boxes"]) > 0
            assert record["id"] == f"{record['path_id']}_{record['objId']}"


PAIRS = [
    ("connectivity/toy-villa_connectivity.json", "connectivity/17DRP5sb8fy_connectivity.json"),
    *[(f"R2R/R2R_{split}.json",) * 2 for split in ("train", "val_seen", "val_unseen", "test")],
    *[(f"CVDN/{split}.json",) * 2 for split in ("val_seen", "val_unseen")],
    *[(f"REVERIE/v2_REVERIE_{split}.json",) * 2 for split in ("train", "val_seen", "val_unseen", "test")],
]


def kinds(value: object) -> object:
    """The types of a json value, keys sorted; of a list, those of its first member."""
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in sorted(value.items())}
    if isinstance(value, list):
        return [kinds(value[0])] if value else []
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


@pytest.mark.real
@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_records_have_the_keys_and_types_of_the_real_files(
    toy_root: Path, data_root: Path, ours: str, theirs: str
) -> None:
    def fullest(records: list[dict[str, Any]]) -> dict[str, Any]:
        return max(records, key=lambda record: len(record.get("dialog_history", ())) > 0)

    assert kinds(fullest(load(toy_root / ours))) == kinds(fullest(load(data_root / theirs)))


@pytest.mark.real
def test_objects_and_rooms_have_the_form_of_the_real_files(toy_root: Path, data_root: Path) -> None:
    for name in ("objects/reverie_objects.json.gz", "rooms/viewpoint_rooms.json"):
        ours, theirs = load(toy_root / name), load(data_root / name)
        if "panos" in ours:
            assert set(ours) == set(theirs)
            assert set(ours["label_name"]) <= set(theirs["label_name"])
            ours, theirs = ({k: [*v.values()] for k, v in each["panos"].items()} for each in (ours, theirs))
        first = [next(value for value in each.values() if value) for each in (ours, theirs)]
        assert kinds(first[0]) == kinds(first[1])
