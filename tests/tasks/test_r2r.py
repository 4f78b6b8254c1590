from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.tasks.episode import Episode, check_paths
from esceme.tasks.r2r import read_r2r
from esceme.world import SceneGraph
from fixtures.files import save_json, without


def record(path_id: object = 4332, **changes: Any) -> dict[str, Any]:
    """A published R2R record with `changes`."""
    fields = {
        "distance": 10.86,
        "scan": "attic",
        "path_id": path_id,
        "path": ["a", "b", "c", "d"],
        "heading": 4.055,
        "instructions": ["Go up. ", "Climb the stairs. ", "Up you go. "],
    }
    return {**fields, **changes}


def encoded(path_id: object = 4332, **changes: Any) -> dict[str, Any]:
    return record(path_id, **{"instr_encodings": [[101, 2175, 102], [101, 7, 8, 102], [101, 102]], **changes})


def read(tmp_path: Path, *records: dict[str, Any]) -> list[Episode]:
    return read_r2r(save_json(tmp_path / "R2R_val.json", records))


def test_every_instruction_is_an_episode(tmp_path: Path) -> None:
    episodes = read(tmp_path, record(), record(17, instructions=["Wait."], scan="barn"))
    assert [episode.episode_id for episode in episodes] == ["4332_0", "4332_1", "4332_2", "17_0"]
    assert [episode.path_id for episode in episodes] == ["4332"] * 3 + ["17"]
    assert [episode.instruction for episode in episodes] == [*record()["instructions"], "Wait."]
    first, *_, last = episodes
    assert (first.scene_id, first.reference_path, first.heading) == ("attic", tuple("abcd"), 4.055)
    assert (first.start, first.goal, last.scene_id) == ("a", "d", "barn")
    assert first.tokens is None and first.goals == () and not first.goal_withheld
    assert (first.language, first.object_id) == ("en", None)


def test_pre_encoded_file_adds_the_stored_ids(tmp_path: Path) -> None:
    plain, stored = read(tmp_path, record()), read(tmp_path, encoded())
    assert [episode.tokens for episode in stored] == [(101, 2175, 102), (101, 7, 8, 102), (101, 102)]
    assert [replace(episode, tokens=None) for episode in stored] == plain


@pytest.mark.parametrize(("path_id", "count"), [(4332, 1), (4332, 2), (4332, 7), ("12_3", 1)])
def test_path_may_have_any_number_of_instructions(tmp_path: Path, path_id: object, count: int) -> None:
    episodes = read(tmp_path, record(path_id, instructions=["Go."] * count))
    assert [episode.episode_id for episode in episodes] == [f"{path_id}_{k}" for k in range(count)]


def test_ids_with_line_ends_or_marks_of_direction_are_refused(tmp_path: Path) -> None:
    for name in ("4332\n", "\u202e4332", "43\x9b32"):
        with pytest.raises(DataError, match="record 0: field 'path_id': expected text without control chara"):
            read(tmp_path, record(name))
    assert read(tmp_path, record("4332 ü"))[0].episode_id == "4332 ü_0"


@pytest.mark.parametrize("token", [-1, 2**31, 2**64])
def test_impossible_token_ids_are_refused(tmp_path: Path, token: int) -> None:
    with pytest.raises(DataError, match="record 0: "):
        read(tmp_path, encoded(instr_encodings=[[101], [101, 7, token], [102]]))


def test_path_of_only_the_start_is_a_test_episode(tmp_path: Path) -> None:
    episodes = read(tmp_path, without(record(path=["a"]), "distance"), record(5))
    assert [episode.goal_withheld for episode in episodes] == [True] * 3 + [False] * 3
    assert episodes[0].start == episodes[0].goal == "a"


def test_other_keys_are_ignored_and_gzip_is_unpacked(tmp_path: Path) -> None:
    file = save_json(tmp_path / "R2R_val.json.gz", [record(annotator="x", nested={"x": [1]})])
    assert len(read_r2r(file)) == 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(), record(5, path=[])], "path 5: 'path' is empty; expected at least the start"),
        ([record(), record()], "episode id '4332_0' occurs twice"),
        ([record(4332), record("4332")], "episode id '4332_0' occurs twice"),
        ([encoded(instr_encodings=[[101, 102]])], "path 4332: 3 instructions but 1 instr_encodings"),
        ([encoded(instr_encodings=[])], "path 4332: 3 instructions but 0 instr_encodings"),
        ([encoded(instr_encodings=[["go"], [], []])], "record 0: field 'instr_encodings"),
        ([record(), without(record(5), "scan")], "record 1: object missing required field scan"),
        ([without(record(), "path")], "record 0: object missing required field path"),
        ([record(path_id=1.5)], "record 0: field 'path_id'"),
        ([record(distance="far")], "record 0: field 'distance'"),
        ([], "holds no records"),
    ],
)
def test_invalid_record_is_named(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=f"R2R_val.json: {message}"):
        read(tmp_path, *records)


@pytest.mark.real
@pytest.mark.parametrize(
    ("split", "instructions", "longer"),
    [
        ("train", {3: 4661, 4: 14}, 0),
        ("val_seen", {3: 339, 4: 1}, 0),
        ("val_unseen", {3: 783}, 8),
        ("test", {3: 1391}, 0),
    ],
)
def test_real_paths_follow_edges(
    data_root: Path, real_graphs: dict[str, SceneGraph], split: str, instructions: dict[int, int], longer: int
) -> None:
    file = data_root / "R2R" / f"R2R_{split}.json"
    episodes = read_r2r(file)
    check_paths(episodes, real_graphs, file)
    per_path = Counter(episode.path_id for episode in episodes)
    assert Counter(per_path.values()) == instructions
    assert all(episode.goal_withheld == (split == "test") for episode in episodes)
    paths = {episode.path_id: episode for episode in episodes}.values()
    assert sum(_is_longer(path.reference_path, real_graphs[path.scene_id]) for path in paths) == longer


def _is_longer(path: tuple[str, ...], graph: SceneGraph) -> bool:
    """Whether a path is longer than the shortest one between its ends."""
    metres = sum(graph.distance(a, b) for a, b in zip(path, path[1:], strict=False))
    return metres > graph.distance(path[0], path[-1]) + 1e-6
