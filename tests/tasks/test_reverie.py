from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.tasks.episode import Episode, check_paths
from esceme.tasks.reverie import read_objects, read_reverie
from esceme.world import SceneGraph
from fixtures.files import save_json


def record(name: str = "3894_349", **changes: Any) -> dict[str, Any]:
    fields = {
        "id": name,
        "path": ["a", "b"],
        "objId": 349,
        "instructions": ["Go to the lounge and clean the picture", "Wipe the top picture"],
        "heading": 5.674,
        "scan": "attic",
        "path_id": 3894,
    }
    return {**fields, **changes}


def read(tmp_path: Path, *records: dict[str, Any]) -> list[Episode]:
    return read_reverie(save_json(tmp_path / "v2_REVERIE_val.json", records))


def test_every_instruction_is_an_episode_with_an_object(tmp_path: Path) -> None:
    first, second = read(tmp_path, record())
    assert (first.episode_id, second.episode_id) == ("3894_349_0", "3894_349_1")
    assert first.path_id == second.path_id == "3894"
    assert (first.object_id, first.scene_id, first.heading) == ("349", "attic", 5.674)
    assert second.instruction == "Wipe the top picture"
    assert first.reference_path == ("a", "b") and not first.goal_withheld


def test_test_record_withholds_object_and_path(tmp_path: Path) -> None:
    test_record = record("227", path=["a"], instructions=["Level the picture"])
    del test_record["objId"], test_record["path_id"]
    (episode,) = read(tmp_path, test_record)
    assert (episode.episode_id, episode.path_id, episode.object_id) == ("227_0", "227", None)
    assert episode.reference_path == ("a",) and episode.goal_withheld


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(), record("1_2", path=[])], "record '1_2': 'path' is empty"),
        ([record(), record()], "episode id '3894_349_0' occurs twice"),
        ([], "holds no records"),
    ],
)
def test_invalid_record_is_named(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=f"v2_REVERIE_val.json: {message}"):
        read(tmp_path, *records)


@pytest.mark.parametrize("name", ["objects.json", "objects.json.gz"])
def test_objects_are_sets_of_ids_per_viewpoint(tmp_path: Path, name: str) -> None:
    lamp = {"id": "7", "name": "lamp", "views": [0], "boxes": [[0, 0, 5, 5]]}
    file = save_json(tmp_path / name, {"attic_a": [lamp, {"id": 9}], "attic_b": []})
    assert read_objects(file) == {"attic_a": {"7", "9"}, "attic_b": frozenset()}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "lists no viewpoints"),
        ({"attic_a": [{"name": "lamp"}]}, "id"),
        ({"attic_a": [{"id": "7\x07"}]}, "field 'id': expected text without control characters"),
        ({"attic_a\n": []}, "a key: expected text without control characters"),
        ([record()], "expected object"),
    ],
)
def test_malformed_object_file_is_refused(tmp_path: Path, value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_objects(save_json(tmp_path / "objects.json", value))


@pytest.mark.real
def test_real_paths_end_near_their_objects(data_root: Path, real_graphs: dict[str, SceneGraph]) -> None:
    objects = read_objects(data_root / "objects" / "reverie_objects.json.gz")
    assert len(objects) == 10567 and sum(map(len, objects.values())) == 38293
    assert sum(not ids for ids in objects.values()) == 2385
    for split, num_elsewhere in {"train": 27, "val_seen": 3, "val_unseen": 0}.items():
        file = data_root / "REVERIE" / f"v2_REVERIE_{split}.json"
        episodes = read_reverie(file)
        check_paths(episodes, real_graphs, file)
        elsewhere = {
            episode.episode_id.rpartition("_")[0]
            for episode in episodes
            if episode.object_id not in objects[f"{episode.scene_id}_{episode.goal}"]
        }
        assert len(elsewhere) == num_elsewhere
