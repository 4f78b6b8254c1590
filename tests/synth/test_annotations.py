"""The tasks of the generated world: every published form is kept, and what is asked can be done."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from esceme.files import read_json, read_records
from esceme.synth.dataset import SPLITS, WorldConfig, sights_of_world
from esceme.synth.reader import parse
from esceme.synth.sights import Sights
from esceme.tasks.catalogue import TASKS
from esceme.tasks.cvdn import read_cvdn
from esceme.tasks.episode import Episode, check_path, check_paths
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import R2RRecord, read_r2r
from esceme.tasks.r4r import join_paths
from esceme.tasks.reverie import read_objects, read_reverie
from esceme.tasks.rxr import read_rxr
from esceme.tasks.tours import check_tours, read_all_tours
from esceme.world import SceneGraph, read_scenes

pytestmark = pytest.mark.long

WALKED = ("train", "val_seen", "val_unseen")
MADE = [task for task in TASKS if task != "prevalent"]

Json = dict[str, Any]


@pytest.fixture(scope="module")
def graphs(world: Path) -> dict[str, SceneGraph]:
    return read_scenes(world / "connectivity")


@pytest.fixture(scope="module")
def seen() -> dict[str, Sights]:
    return {name: each for split in ("train", "val_unseen") for name, each in look(split).items()}


def look(split: str) -> dict[str, Sights]:
    return sights_of_world(WorldConfig("tiny"), split)


def records(path: Path) -> list[Json]:
    return read_records(path, dict[str, Any])


# -- all tasks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", MADE)
def test_every_reader_reads_every_split_and_every_walk_exists(
    task: str, world: Path, graphs: dict[str, SceneGraph]
) -> None:
    found = DataFolder(world).splits(task)
    wanted = set(WALKED) | ({"test_standard_public"} if task == "rxr" else {"test"})
    assert set(found) == (set(WALKED) if task == "r4r" else wanted)
    for split, file in found.items():
        episodes = TASKS[task].read(file)
        check_paths(episodes, graphs, file)
        assert all(episode.instruction.strip() for episode in episodes) or task == "cvdn"
        assert {episode.goal_withheld for episode in episodes} == {split.startswith("test")}


@pytest.mark.parametrize("task", MADE)
def test_splits_live_in_houses_of_their_own(task: str, world: Path) -> None:
    houses = {
        split: {episode.scene_id for episode in TASKS[task].read(file)}
        for split, file in DataFolder(world).splits(task).items()
    }
    order = WorldConfig("tiny").houses()
    for split, names in houses.items():
        assert names <= set(order["test" if split.startswith("test") else split])
    assert houses["val_seen"] <= houses["train"]
    assert not houses["train"] & houses["val_unseen"]


# -- R2R and R4R -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", WALKED)
def test_r2r_walks_are_shortest_and_long_enough(
    split: str, world: Path, graphs: dict[str, SceneGraph]
) -> None:
    for record in read_records(world / f"R2R/R2R_{split}.json", R2RRecord):
        graph = graphs[record.scan]
        length = sum(graph.distance(a, b) for a, b in zip(record.path, record.path[1:], strict=False))
        assert 4 <= len(record.path) - 1 <= 6
        assert length == pytest.approx(graph.distance(record.path[0], record.path[-1]))
        assert record.distance == pytest.approx(length, abs=0.006)
        assert len(record.instructions) == 3 == len(set(record.instructions))


def test_r2r_records_have_the_keys_of_the_published_ones(world: Path) -> None:
    full = {"scan", "path_id", "path", "heading", "instructions", "distance"}
    for split in SPLITS:
        wanted = full - {"distance"} if split == "test" else full
        assert {frozenset(each) for each in records(world / f"R2R/R2R_{split}.json")} == {frozenset(wanted)}


@pytest.mark.real
@pytest.mark.parametrize("split", SPLITS)
def test_r2r_records_look_like_real_ones(split: str, world: Path, data_root: Path) -> None:
    ours, real = (records(root / f"R2R/R2R_{split}.json")[0] for root in (world, data_root))
    assert {key: type(value) for key, value in ours.items()} == {
        key: type(value) for key, value in real.items()
    }


def test_walks_of_val_seen_are_none_of_train(world: Path) -> None:
    walks = {split: read_records(world / f"R2R/R2R_{split}.json", R2RRecord) for split in SPLITS}
    ids = [record.path_id for each in walks.values() for record in each]
    assert len(set(ids)) == len(ids)
    ends = {split: {(r.scan, r.path[0], r.path[-1]) for r in walks[split]} for split in WALKED}
    assert not ends["train"] & ends["val_seen"]


def test_the_test_split_keeps_its_goals_to_itself(world: Path) -> None:
    assert {len(each.reference_path) for each in read_r2r(world / "R2R/R2R_test.json")} == {1}
    assert not (world / "R4R/R4R_test.json").exists()
    for name in ("R2R/R2R_test.json", "REVERIE/v2_REVERIE_test.json", "CVDN/test.json"):
        for record in records(world / name):
            hidden = {"distance", "objId", "end_panos", "player_path", "planner_path", "game_idx"}
            assert not hidden & set(record)
            assert len(record.get("path", [1])) == 1


@pytest.mark.parametrize("split", WALKED)
def test_r4r_is_what_our_maker_makes_of_r2r(split: str, world: Path, graphs: dict[str, SceneGraph]) -> None:
    made = list(join_paths(read_records(world / f"R2R/R2R_{split}.json", R2RRecord), graphs))
    assert made == read_records(world / f"R4R/R4R_{split}.json", R2RRecord)
    assert made


# -- RxR -------------------------------------------------------------------------------------------------


def test_rxr_tells_each_walk_in_two_languages(world: Path) -> None:
    for split in WALKED:
        file = world / f"RxR/rxr_{split}_guide.jsonl.gz"
        episodes = read_rxr(file)
        told = Counter((each.path_id, each.language) for each in episodes)
        assert set(told.values()) == {1}
        walks = {each.path_id for each in read_r2r(world / f"R2R/R2R_{split}.json")}
        assert set(told) == {(walk, language) for walk in walks for language in ("en-US", "hi-IN")}
        for each in read_rxr(file, languages=["hi"]):
            assert all(ord(letter) > 0x900 or not letter.isalpha() for letter in each.instruction)
        for each in read_rxr(file, languages=["en"]):
            assert each.instruction.isascii()


def test_rxr_instructions_say_more_than_those_of_r2r(world: Path) -> None:
    rxr = read_rxr(world / "RxR/rxr_train_guide.jsonl.gz", languages=["en"])
    r2r = read_r2r(world / "R2R/R2R_train.json")
    words = [np.mean([len(each.instruction.split()) for each in told]) for told in (rxr, r2r)]
    assert words[0] > words[1] + 2


def test_rxr_records_have_every_published_key(world: Path) -> None:
    wanted = {"split", "instruction_id", "annotator_id", "language", "path_id", "scan", "path", "heading"}
    wanted |= {"instruction", "timed_instruction", "edit_distance"}
    ids = []
    for split in (*WALKED, "test_standard_public"):
        for record in records(world / f"RxR/rxr_{split}_guide.jsonl.gz"):
            assert set(record) == (wanted if split in WALKED else wanted - {"path_id"})
            assert record["split"] == split
            assert [each["word"] for each in record["timed_instruction"]] == record["instruction"].split()
            ids.append(record["instruction_id"])
    assert len(set(ids)) == len(ids)


# -- REVERIE, objects, rooms -----------------------------------------------------------------------------


def test_the_object_is_within_reach_of_where_the_walk_ends(world: Path) -> None:
    near = read_objects(world / "objects/reverie_objects.json.gz")
    for split in WALKED:
        episodes = read_reverie(world / f"REVERIE/v2_REVERIE_{split}.json")
        assert episodes
        for each in episodes:
            assert each.object_id in near[f"{each.scene_id}_{each.reference_path[-1]}"]


def test_the_object_is_named_as_it_is_and_where_it_stands(world: Path, seen: dict[str, Sights]) -> None:
    for split in WALKED:
        for record in records(world / f"REVERIE/v2_REVERIE_{split}.json"):
            house = seen[record["scan"]].house
            thing = next(each for each in house.furniture if each.object_id == str(record["objId"]))
            assert record["id"] == f"{record['path_id']}_{record['objId']}"
            for text in record["instructions"]:
                assert thing.name in text and house.rooms[thing.room].kind in text
            assert thing.surface.colour in record["instructions"][0]


def test_objects_are_listed_in_the_views_that_show_them(world: Path, seen: dict[str, Sights]) -> None:
    listed = msgspec.json.decode(gzip.decompress((world / "objects/reverie_objects.json.gz").read_bytes()))
    graphs = read_scenes(world / "connectivity")
    viewpoints = {f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints}
    assert set(listed) == viewpoints
    boxed = 0
    for scene, sights in seen.items():
        index = {thing.object_id: at for at, thing in enumerate(sights.house.furniture)}
        for place, name in enumerate(sights.graph.viewpoints):
            for thing in listed[f"{scene}_{name}"]:
                at = index[thing["id"]]
                assert thing["name"] == sights.house.furniture[at].name.replace(" ", "#")
                assert thing["views"] == np.flatnonzero(sights.share[place, :, at] >= 0.01).tolist()
                assert len(thing["boxes"]) == len(thing["views"])
                for view, (x, y, width, height) in zip(thing["views"], thing["boxes"], strict=True):
                    assert 0 <= x < x + width <= 640 and 0 <= y < y + height <= 480
                    assert (width + 1) * (height + 1) / (640 * 480) >= sights.share[place, view, at]
                    boxed += 1
    assert boxed > 500


def test_listed_objects_stand_within_three_metres(world: Path, seen: dict[str, Sights]) -> None:
    near = read_objects(world / "objects/reverie_objects.json.gz")
    for scene, sights in seen.items():
        for place in sights.house.places:
            eye = np.array(place.position)
            for thing in sights.house.furniture:
                gaps = [
                    np.linalg.norm(np.maximum(np.maximum(np.subtract(box.low, eye), eye - box.high), 0))
                    for box in thing.boxes
                ]
                if thing.object_id in near[f"{scene}_{place.viewpoint}"]:
                    assert min(gaps) <= 3.0


def test_rooms_are_labelled_as_matterport_labels_them(world: Path, seen: dict[str, Sights]) -> None:
    rooms = read_json(world / "rooms/viewpoint_rooms.json", dict[str, Any])
    for scene, sights in seen.items():
        for place in sights.house.places:
            region, label, of_region = rooms["panos"][scene][place.viewpoint]
            assert region == place.room and label == of_region != "z"
            assert rooms["label_name"][label] == sights.house.rooms[region].kind


@pytest.mark.real
def test_room_letters_mean_what_they_mean_in_matterport(world: Path, data_root: Path) -> None:
    ours, real = (
        read_json(root / "rooms/viewpoint_rooms.json", dict[str, Any])["label_name"]
        for root in (world, data_root)
    )
    for letter, kind in ours.items():
        assert real[letter].startswith((kind[:5].replace(" ", "_"), kind[:5]))


# -- NDH -------------------------------------------------------------------------------------------------


def test_dialogs_lead_towards_their_target(
    world: Path, graphs: dict[str, SceneGraph], seen: dict[str, Sights]
) -> None:
    for split in WALKED:
        for record in records(world / f"CVDN/{split}.json"):
            graph, sights = graphs[record["scan"]], seen[record["scan"]]
            start, player, planner = (
                record["start_pano"]["pano"],
                record["player_path"],
                record["planner_path"],
            )
            assert start == player[0] == planner[0]
            for walk in (player, planner, record["nav_history"]):
                check_path(record["scan"], walk, graphs)
            assert len(planner) <= 6 and record["nav_history"][-1:] in ([], [start])
            left = [
                min(graph.distance(at, end) for end in record["end_panos"]) for at in (start, planner[-1])
            ]
            assert left[1] < left[0] or left == [0, 0]
            for end in record["end_panos"]:
                shown = {str(mention) for mention in sights.around(graph.index(end))}
                assert record["target"] in shown
            assert bool(record["dialog_history"]) == bool(record["nav_history"])
            assert 0 <= record["R2R_spl"] <= record["R2R_success"] <= record["R2R_oracle_success"] <= 1


def test_what_the_oracle_says_leads_where_the_player_went(world: Path, seen: dict[str, Sights]) -> None:
    for record in records(world / "CVDN/train.json"):
        for turn in record["dialog_history"]:
            if turn["role"] == "oracle":
                clauses = parse(turn["message"], seen[record["scan"]].mentions)
                assert len([each for each in clauses if each.stop is None]) >= len(record["player_path"]) - 1


@pytest.mark.parametrize("supervision", ["trusted", "player", "planner"])
@pytest.mark.parametrize("split", WALKED)
def test_every_kind_of_supervision_can_be_read(split: str, supervision: Any, world: Path) -> None:
    episodes = read_cvdn(world / f"CVDN/{split}.json", supervision=supervision)
    assert all(each.goals and each.reference_path for each in episodes)


@pytest.mark.real
def test_dialogs_have_all_keys_of_real_ones(world: Path, data_root: Path) -> None:
    real = records(data_root / "CVDN/val_seen.json")
    kinds = {key: type(value) for key, value in real[-1].items()}
    ours = records(world / "CVDN/val_seen.json")
    for record in ours:
        assert set(record) == set(kinds)
        for key, value in record.items():
            assert isinstance(value, int | float) if kinds[key] in (int, float) else type(value) is kinds[key]
    shapes = [
        {key for each in found for entry in each[field] for key in entry}
        for field in ("dialog_history", "nav_camera")
        for found in (ours, real)
    ]
    assert shapes[0] == shapes[1] and shapes[2] == shapes[3]
    assert set(ours[0]["start_pano"]) == set(real[0]["start_pano"])


# -- tours -----------------------------------------------------------------------------------------------


def test_tours_hold_every_episode_of_r2r_once(world: Path) -> None:
    tours = read_all_tours(world / "tours/tours_iVLN.json")
    assert set(tours) == set(WALKED)
    for split, listed in tours.items():
        episodes: list[Episode] = read_r2r(world / f"R2R/R2R_{split}.json")
        check_tours(listed, episodes, "tours")
        toured = sorted(episode for tour in listed for episode in tour.episode_ids)
        assert toured == sorted(each.episode_id for each in episodes)
