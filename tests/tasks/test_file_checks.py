"""Checks of single files; whole folders are in test_doctor.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import h5py
import numpy as np
import pytest

from esceme.errors import DataError
from esceme.tasks.episode import DialogEpisode, Episode
from esceme.tasks.file_checks import (
    describe_vocabulary,
    find_invalid_path,
    find_unusual_shapes,
    message_without_path,
    room_labels,
    unreadable_reason,
)
from esceme.world import SceneGraph
from fixtures.toy_atlas import toy_episode

LINE = SceneGraph.build("line", {name: (k, 0, 0) for k, name in enumerate("abcd")}, ["ab", "bc", "cd"])


def invalid_path(*episodes: Episode, missing: Collection[str] = ()) -> str:
    return find_invalid_path(episodes, {"line": LINE}, Path("file.json"), missing=missing)


def test_first_invalid_path_is_described_and_others_are_counted() -> None:
    valid = [
        toy_episode(str(number), "line", path) for number, path in enumerate(("abcd", "dcb", "a", "aab"))
    ]
    assert invalid_path(*valid) == ""
    scene_paths = [("line", "ac"), ("line", "abz"), ("line", "ac"), ("barn", "a")]
    invalid = [toy_episode(f"{number}", scene, path) for number, (scene, path) in enumerate(scene_paths, 4)]
    text = invalid_path(*valid, *invalid)
    assert text.startswith("episode 4: no edge leads from 'a' to 'c'")
    assert text.endswith("; and 3 more episodes")
    assert "more" not in invalid_path(*valid, invalid[0])


def test_paths_in_missing_scenes_are_skipped() -> None:
    episodes = [toy_episode("0", "barn", "xyz"), toy_episode("1", "line", "abcd")]
    assert "scene 'barn' is unknown" in invalid_path(*episodes)
    assert invalid_path(*episodes, missing={"barn"}) == ""
    assert find_invalid_path(episodes, {}, Path("file.json"), missing=()) == ""


@pytest.mark.parametrize(
    ("player", "planner", "fault"), [("abc", "ab", ""), ("ac", "ab", "'a' to 'c'"), ("ab", "abz", "'z'")]
)
def test_player_and_planner_paths_are_checked(player: str, planner: str, fault: str) -> None:
    fields = dataclasses.asdict(toy_episode("7", "line", "ab", goals=("b",)))
    text = invalid_path(DialogEpisode(**fields, player_path=tuple(player), planner_path=tuple(planner)))
    assert fault in text and bool(text) == bool(fault)


def test_shapes_of_the_minority_are_unusual(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        for name, width in (("a", 9), ("b", 8), ("c", 8), ("d", 8)):
            file[name] = np.zeros((36, width))
        file["e"] = h5py.SoftLink("/nowhere")
        file.create_group("f")
    assert list(find_unusual_shapes(tmp_path / "f.hdf5")) == [
        f"'{key}' has shape {shape}, most have (36, 8)"
        for key, shape in (("a", (36, 9)), ("e", None), ("f", None))
    ]
    assert list(find_unusual_shapes(tmp_path / "f.npy")) == []


def test_room_labels_are_keyed_like_features(tmp_path: Path) -> None:
    path = tmp_path / "rooms.json"
    path.write_text('{"label_name": {"k": "kitchen"}, "panos": {"house": {"a": [3, "k", "k"]}}}')
    assert room_labels(path) == {"house_a": "k"}
    path.write_text('{"label_name": {}, "panos": {"house": {"a\\u009b": [3, "k", "k"]}}}')
    with pytest.raises(DataError, match="a key: expected text without control characters"):
        room_labels(path)


def test_vocabulary_without_a_final_line_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    pieces = "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nchair"
    path.write_text(pieces + "\n")
    assert describe_vocabulary(path) == "6 word pieces, where BERT has 30,522"
    path.write_text(pieces)
    with pytest.raises(DataError, match="6 word pieces, the last one cut off"):
        describe_vocabulary(path)


def test_missing_folder_and_file_have_a_reason(tmp_path: Path) -> None:
    assert unreadable_reason(tmp_path) is None
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert unreadable_reason(tmp_path) is None
    assert unreadable_reason(tmp_path / "file") == "Not a directory"
    assert unreadable_reason(tmp_path / "nowhere") == "No such file or directory"


def test_file_name_is_removed_from_a_message() -> None:
    assert message_without_path(Path("a/b.json"), DataError("a/b.json: record 3: wrong")) == "record 3: wrong"
    assert message_without_path(Path("a/b.json"), DataError("c.json: wrong")) == "c.json: wrong"
