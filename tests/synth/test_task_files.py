"""Task files of the generated world: published formats, and solvable tasks."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from benchmarks.instruction_follower import parse_instruction, world_visibility

from esceme.files import read_json, read_records
from esceme.synth.dataset import SPLITS, WorldConfig
from esceme.synth.visibility import Visibility
from esceme.tasks.catalogue import TASKS
from esceme.tasks.cvdn import read_cvdn
from esceme.tasks.episode import check_path, check_paths
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import R2RRecord, read_r2r
from esceme.tasks.r4r import join_paths
from esceme.tasks.reverie import read_objects, read_reverie
from esceme.tasks.rxr import read_rxr
from esceme.tasks.tours import check_tours, read_all_tours
from esceme.world import SceneGraph, read_scenes

pytestmark = pytest.mark.long

WITH_GOALS = ("train", "val_seen", "val_unseen")
GENERATED_TASKS = [task for task in TASKS if task != "prevalent"]


@pytest.fixture(scope="module")
def graphs(world: Path) -> dict[str, SceneGraph]:
    return read_scenes(world / "connectivity")


@pytest.fixture(scope="module")
def visibility() -> dict[str, Visibility]:
    """Scene id -> visibility of all houses but those of the test split."""
    config = WorldConfig("tiny")
    return world_visibility(config, "train") | world_visibility(config, "val_unseen")


def records(path: Path) -> list[dict[str, Any]]:
    return read_records(path, dict[str, Any])


# -- all tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", GENERATED_TASKS)
def test_every_split_is_readable_with_valid_paths_in_its_own_houses(
    task: str, world: Path, graphs: dict[str, SceneGraph]
) -> None:
    files = DataFolder(world).splits(task)
    test = set() if task == "r4r" else {"test_standard_public"} if task == "rxr" else {"test"}
    assert set(files) == set(WITH_GOALS) | test
    scenes = {}
    for split, file in files.items():
        episodes = TASKS[task].read(file)
        check_paths(episodes, graphs, file)
        assert all(episode.instruction.strip() for episode in episodes) or task == "cvdn"
        assert {episode.goal_withheld for episode in episodes} == {split.startswith("test")}
        scenes[split] = {episode.scene_id for episode in episodes}
        assert scenes[split] <= set(WorldConfig("tiny").scene_ids()[split.partition("_standard")[0]])
    assert scenes["val_seen"] <= scenes["train"] and not scenes["train"] & scenes["val_unseen"]


def test_test_split_withholds_its_goals(world: Path) -> None:
    assert {len(episode.reference_path) for episode in read_r2r(world / "R2R/R2R_test.json")} == {1}
    assert not (world / "R4R/R4R_test.json").exists()
    hidden = {"distance", "objId", "end_panos", "player_path", "planner_path", "game_idx"}
    for name in ("R2R/R2R_test.json", "REVERIE/v2_REVERIE_test.json", "CVDN/test.json"):
        for record in records(world / name):
            assert not hidden & set(record) and len(record.get("path", [1])) == 1


# -- R2R, R4R and tours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("split", WITH_GOALS)
def test_r2r_records_hold_the_length_and_r4r_joins_them(
    split: str, world: Path, graphs: dict[str, SceneGraph]
) -> None:
    r2r = read_records(world / f"R2R/R2R_{split}.json", R2RRecord)
    for record in r2r:
        length = graphs[record.scan].distance(record.path[0], record.path[-1])
        assert record.distance == pytest.approx(length, abs=0.006)
    r4r = read_records(world / f"R4R/R4R_{split}.json", R2RRecord)
    assert r4r and r4r == list(join_paths(r2r, graphs))


def test_r2r_records_have_the_published_keys(world: Path) -> None:
    keys = {"scan", "path_id", "path", "heading", "instructions", "distance"}
    for split in SPLITS:
        expected = keys - {"distance"} if split == "test" else keys
        assert {frozenset(record) for record in records(world / f"R2R/R2R_{split}.json")} == {
            frozenset(expected)
        }


@pytest.mark.real
@pytest.mark.parametrize("split", SPLITS)
def test_r2r_records_have_the_types_of_real_ones(split: str, world: Path, data_root: Path) -> None:
    ours, real = (records(root / f"R2R/R2R_{split}.json")[0] for root in (world, data_root))
    assert {k: type(v) for k, v in ours.items()} == {k: type(v) for k, v in real.items()}


def test_val_seen_and_train_have_different_paths(world: Path) -> None:
    r2r = {split: read_records(world / f"R2R/R2R_{split}.json", R2RRecord) for split in SPLITS}
    ids = [record.path_id for group in r2r.values() for record in group]
    assert len(set(ids)) == len(ids)
    ends = {split: {(r.scan, r.path[0], r.path[-1]) for r in r2r[split]} for split in WITH_GOALS}
    assert not ends["train"] & ends["val_seen"]


def test_tours_hold_every_r2r_episode_once(world: Path) -> None:
    all_tours = read_all_tours(world / "tours/tours_iVLN.json")
    assert set(all_tours) == set(WITH_GOALS)
    for split, tours in all_tours.items():
        episodes = read_r2r(world / f"R2R/R2R_{split}.json")
        check_tours(tours, episodes, "tours")
        in_tours = sorted(episode for tour in tours for episode in tour.episode_ids)
        assert in_tours == sorted(episode.episode_id for episode in episodes)


# -- RxR -------------------------------------------------------------------------------------------------


def test_rxr_has_every_path_in_two_languages(world: Path) -> None:
    for split in WITH_GOALS:
        file = world / f"RxR/rxr_{split}_guide.jsonl.gz"
        counts = Counter((episode.path_id, episode.language) for episode in read_rxr(file))
        path_ids = {episode.path_id for episode in read_r2r(world / f"R2R/R2R_{split}.json")}
        assert counts == {(path_id, language): 1 for path_id in path_ids for language in ("en-US", "hi-IN")}
        for episode in read_rxr(file, languages=["hi"]):
            assert all(ord(letter) > 0x900 or not letter.isalpha() for letter in episode.instruction)
        assert all(episode.instruction.isascii() for episode in read_rxr(file, languages=["en"]))


def test_rxr_instructions_are_longer_than_those_of_r2r(world: Path) -> None:
    rxr = read_rxr(world / "RxR/rxr_train_guide.jsonl.gz", languages=["en"])
    r2r = read_r2r(world / "R2R/R2R_train.json")
    words = [np.mean([len(episode.instruction.split()) for episode in group]) for group in (rxr, r2r)]
    assert words[0] > words[1] + 2


def test_rxr_records_have_the_published_keys(world: Path) -> None:
    keys = {"split", "instruction_id", "annotator_id", "language", "path_id", "scan", "path", "heading"}
    keys |= {"instruction", "timed_instruction", "edit_distance"}
    ids = []
    for split in (*WITH_GOALS, "test_standard_public"):
        for record in records(world / f"RxR/rxr_{split}_guide.jsonl.gz"):
            assert set(record) == (keys if split in WITH_GOALS else keys - {"path_id"})
            assert record["split"] == split
            assert [timed["word"] for timed in record["timed_instruction"]] == record["instruction"].split()
            ids.append(record["instruction_id"])
    assert len(set(ids)) == len(ids)


# -- REVERIE, objects, rooms -----------------------------------------------------------------------------


def test_reverie_target_is_near_the_goal_and_named_with_its_room(
    world: Path, visibility: dict[str, Visibility]
) -> None:
    nearby = read_objects(world / "objects/reverie_objects.json.gz")
    for split in WITH_GOALS:
        file = world / f"REVERIE/v2_REVERIE_{split}.json"
        for episode in read_reverie(file):
            assert episode.object_id in nearby[f"{episode.scene_id}_{episode.reference_path[-1]}"]
        for record in records(file):
            house = visibility[record["scan"]].house
            target = next(item for item in house.furniture if item.object_id == str(record["objId"]))
            assert record["id"] == f"{record['path_id']}_{record['objId']}"
            for text in record["instructions"]:
                assert target.name in text and house.rooms[target.room].kind in text
            assert target.surface.colour in record["instructions"][0]


def test_objects_are_listed_with_boxes_in_the_views_that_show_them(
    world: Path, visibility: dict[str, Visibility], graphs: dict[str, SceneGraph]
) -> None:
    file = world / "objects/reverie_objects.json.gz"
    objects = msgspec.json.decode(gzip.decompress(file.read_bytes()))
    assert set(objects) == {f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints}
    num_boxes = 0
    for scene, seen in visibility.items():
        index_of = {item.object_id: index for index, item in enumerate(seen.house.furniture)}
        for row, viewpoint in enumerate(seen.house.viewpoints):
            for record in objects[f"{scene}_{viewpoint.viewpoint_id}"]:
                index = index_of[record["id"]]
                item, coverage = seen.house.furniture[index], seen.coverage[row, :, index]
                assert record["name"] == item.name.replace(" ", "#")
                assert record["views"] == np.flatnonzero(coverage >= 0.01).tolist()
                for view, (x, y, width, height) in zip(record["views"], record["boxes"], strict=True):
                    assert 0 <= x < x + width <= 640 and 0 <= y < y + height <= 480
                    assert (width + 1) * (height + 1) / (640 * 480) >= coverage[view]
                    num_boxes += 1
                eye = np.array(viewpoint.position)
                outside = [
                    np.maximum(np.maximum(np.subtract(b.low, eye), eye - b.high), 0) for b in item.boxes
                ]
                assert min(np.linalg.norm(outside, axis=1)) <= 3.0
    assert num_boxes > 500


def test_rooms_have_matterport_labels(world: Path, visibility: dict[str, Visibility]) -> None:
    rooms = read_json(world / "rooms/viewpoint_rooms.json", dict[str, Any])
    for scene, seen in visibility.items():
        for viewpoint in seen.house.viewpoints:
            region, label, region_label = rooms["panos"][scene][viewpoint.viewpoint_id]
            assert region == viewpoint.room and label == region_label != "z"
            assert rooms["label_name"][label] == seen.house.rooms[region].kind


@pytest.mark.real
def test_room_labels_have_the_meaning_of_matterport(world: Path, data_root: Path) -> None:
    ours, real = (
        read_json(root / "rooms/viewpoint_rooms.json", dict[str, Any])["label_name"]
        for root in (world, data_root)
    )
    for label, kind in ours.items():
        assert real[label].startswith((kind[:5].replace(" ", "_"), kind[:5]))


# -- NDH -------------------------------------------------------------------------------------------------


def test_dialogs_guide_to_their_target(
    world: Path, graphs: dict[str, SceneGraph], visibility: dict[str, Visibility]
) -> None:
    for split in WITH_GOALS:
        for record in records(world / f"CVDN/{split}.json"):
            graph, seen = graphs[record["scan"]], visibility[record["scan"]]
            start, player, planner = (
                record["start_pano"]["pano"],
                record["player_path"],
                record["planner_path"],
            )
            assert start == player[0] == planner[0]
            for path in (player, planner, record["nav_history"]):
                check_path(record["scan"], path, graphs)
            assert len(planner) <= 6 and record["nav_history"][-1:] in ([], [start])
            ends = record["end_panos"]
            remaining = [min(graph.distance(name, end) for end in ends) for name in (start, planner[-1])]
            assert remaining[1] < remaining[0] or remaining == [0, 0]
            for end in ends:
                assert record["target"] in map(str, seen.seen_in_panorama(graph.index(end)))
            assert bool(record["dialog_history"]) == bool(record["nav_history"])
            assert 0 <= record["R2R_spl"] <= record["R2R_success"] <= record["R2R_oracle_success"] <= 1
            for turn in record["dialog_history"]:
                if turn["role"] == "oracle":
                    clauses = parse_instruction(turn["message"], seen.mentions)
                    assert sum(clause.stop is None for clause in clauses) >= len(player) - 1


@pytest.mark.parametrize("supervision", ["trusted", "player", "planner"])
@pytest.mark.parametrize("split", WITH_GOALS)
def test_every_supervision_is_readable(split: str, supervision: Any, world: Path) -> None:
    episodes = read_cvdn(world / f"CVDN/{split}.json", supervision=supervision)
    assert all(episode.goals and episode.reference_path for episode in episodes)


@pytest.mark.real
def test_dialogs_have_the_keys_and_types_of_real_ones(world: Path, data_root: Path) -> None:
    ours, real = (records(root / "CVDN/val_seen.json") for root in (world, data_root))
    types = {key: type(value) for key, value in real[-1].items()}
    for record in ours:
        assert set(record) == set(types)
        for key, value in record.items():
            assert isinstance(value, int | float) if types[key] in (int, float) else type(value) is types[key]
    for name in ("dialog_history", "nav_camera"):
        ours_keys, real_keys = (
            {key for record in group for entry in record[name] for key in entry} for group in (ours, real)
        )
        assert ours_keys == real_keys
    assert set(ours[0]["start_pano"]) == set(real[0]["start_pano"])
