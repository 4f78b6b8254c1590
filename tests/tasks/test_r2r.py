from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.tasks.episode import check_paths
from esceme.tasks.r2r import read_r2r
from esceme.world import SceneGraph


def walk(path_id: object = 4332, **changes: Any) -> dict[str, Any]:
    """An R2R record as published, some fields changed."""
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
    return walk(path_id, **{"instr_encodings": [[101, 2175, 102], [101, 7, 8, 102], [101, 102]], **changes})


def without(fields: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in keys}


def write(tmp_path: Path, *records: dict[str, Any]) -> Path:
    path = tmp_path / "R2R_val.json"
    path.write_text(json.dumps(records))
    return path


def test_every_instruction_is_an_episode(tmp_path: Path) -> None:
    episodes = read_r2r(write(tmp_path, walk(), walk(17, instructions=["Wait."], scan="barn")))
    assert [episode.episode_id for episode in episodes] == ["4332_0", "4332_1", "4332_2", "17_0"]
    assert [episode.path_id for episode in episodes] == ["4332"] * 3 + ["17"]
    assert [episode.instruction for episode in episodes] == [
        "Go up. ",
        "Climb the stairs. ",
        "Up you go. ",
        "Wait.",
    ]
    first, *_, last = episodes
    assert (first.scene_id, first.reference_path, first.heading) == ("attic", tuple("abcd"), 4.055)
    assert (first.start, first.goal, last.scene_id) == ("a", "d", "barn")
    assert first.tokens is None and first.goals == () and not first.goal_withheld
    assert (first.language, first.object_id) == ("en", None)


def test_pre_encoded_file_adds_the_stored_ids(tmp_path: Path) -> None:
    plain, stored = read_r2r(write(tmp_path, walk())), read_r2r(write(tmp_path, encoded()))
    assert [each.tokens for each in stored] == [(101, 2175, 102), (101, 7, 8, 102), (101, 102)]
    assert [each.instruction for each in stored] == [each.instruction for each in plain]
    assert [each.episode_id for each in stored] == [each.episode_id for each in plain]


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_path_may_have_any_number_of_instructions(tmp_path: Path, count: int) -> None:
    record = walk(instructions=[f"Go {k}." for k in range(count)])
    assert [each.episode_id for each in read_r2r(write(tmp_path, record))] == [
        f"4332_{k}" for k in range(count)
    ]


def test_path_ids_may_be_text(tmp_path: Path) -> None:
    assert [each.episode_id for each in read_r2r(write(tmp_path, walk("12_3", instructions=["Go."])))] == [
        "12_3_0"
    ]


def test_start_alone_is_a_test_episode(tmp_path: Path) -> None:
    episodes = read_r2r(write(tmp_path, without(walk(path=["a"]), "distance"), walk(5)))
    assert [episode.goal_withheld for episode in episodes] == [True] * 3 + [False] * 3
    assert episodes[0].start == episodes[0].goal == "a"


def test_other_keys_are_ignored_and_gzip_is_unpacked(tmp_path: Path) -> None:
    file = tmp_path / "R2R_val.json.gz"
    file.write_bytes(gzip.compress(json.dumps([walk(annotator="me", nested={"x": [1]})]).encode()))
    assert len(read_r2r(file)) == 3


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([walk(), walk(5, path=[])], "path 5: 'path' is empty; expected at least the start"),
        ([walk(), walk()], "episode id '4332_0' occurs twice"),
        ([walk(4332), walk("4332")], "episode id '4332_0' occurs twice"),
        ([encoded(instr_encodings=[[101, 102]])], "path 4332: 3 instructions but 1 instr_encodings"),
        ([encoded(instr_encodings=[])], "path 4332: 3 instructions but 0 instr_encodings"),
        ([encoded(instr_encodings=[["go"], [], []])], "record 0: field 'instr_encodings"),
        ([walk(), without(walk(5), "scan")], "record 1: object missing required field scan"),
        ([without(walk(), "path")], "record 0: object missing required field path"),
        ([walk(), walk(5, scan=None)], "record 1: field 'scan': expected str, got null"),
        ([walk(path="abc")], "record 0: field 'path': expected array, got str"),
        ([walk(path=["a", 7])], "record 0: field 'path"),
        ([walk(heading="north")], "record 0: field 'heading'"),
        ([walk(instructions="Go.")], "record 0: field 'instructions'"),
        ([walk(instructions=[None])], "record 0: field 'instructions"),
        ([walk(path_id=1.5)], "record 0: field 'path_id'"),
        ([walk(distance="far")], "record 0: field 'distance'"),
        ([], "holds no records"),
    ],
)
def test_bad_record_is_named(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=f"R2R_val.json: {message}"):
        read_r2r(write(tmp_path, *records))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is empty"), (b'[{"scan": "at', "not valid json"), (b"{}", "expected array, got object")],
)
def test_incomplete_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "R2R_val.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"R2R_val.json: .*{message}"):
        read_r2r(file)


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
    per_path = Counter(each.path_id for each in episodes)
    assert Counter(per_path.values()) == instructions
    assert all(each.goal_withheld == (split == "test") for each in episodes)
    walks = {each.path_id: each for each in episodes}.values()
    assert sum(_is_longer(each.reference_path, real_graphs[each.scene_id]) for each in walks) == longer


def _is_longer(path: tuple[str, ...], graph: SceneGraph) -> bool:
    """Whether a path is longer than the shortest one between its ends."""
    metres = sum(graph.distance(a, b) for a, b in zip(path, path[1:], strict=False))
    return metres > graph.distance(path[0], path[-1]) + 1e-6
