"""What the data doctor looks for in one file; whole folders are in test_doctor.py."""

from __future__ import annotations

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
    message_without,
    room_labels,
    unreadable_reason,
)
from esceme.world import SceneGraph

LINE = SceneGraph.build("line", {name: (k, 0, 0) for k, name in enumerate("abcd")}, ["ab", "bc", "cd"])


def episode(number: int, path: str, scene: str = "line") -> Episode:
    return Episode(
        episode_id=f"{number}",
        scene_id=scene,
        path_id=f"{number}",
        reference_path=tuple(path),
        heading=0.0,
        instruction="walk",
    )


def test_valid_paths_have_no_fault(tmp_path: Path) -> None:
    walks = [episode(0, "abcd"), episode(1, "dcb"), episode(2, "a"), episode(3, "aab")]
    assert find_invalid_path(walks, {"line": LINE}, tmp_path, missing=()) == ""


def test_first_invalid_path_is_described_and_others_counted(tmp_path: Path) -> None:
    walks = [
        episode(0, "abcd"),
        episode(1, "ac"),
        episode(2, "abz"),
        episode(3, "ac"),
        episode(4, "a", "barn"),
    ]
    text = find_invalid_path(walks, {"line": LINE}, tmp_path, missing=())
    assert text.startswith("episode 1: no edge leads from 'a' to 'c'")
    assert text.endswith("; and 3 more episodes")
    assert "more" not in find_invalid_path(walks[:2], {"line": LINE}, tmp_path, missing=())


def test_paths_in_missing_scenes_are_skipped(tmp_path: Path) -> None:
    walks = [episode(0, "xyz", "barn"), episode(1, "abcd")]
    assert "scene 'barn' is unknown" in find_invalid_path(walks, {"line": LINE}, tmp_path, missing=())
    assert find_invalid_path(walks, {"line": LINE}, tmp_path, missing={"barn"}) == ""
    assert find_invalid_path(walks, {}, tmp_path, missing=()) == ""


def test_player_and_planner_paths_are_checked(tmp_path: Path) -> None:
    def dialog(player: str, planner: str) -> DialogEpisode:
        return DialogEpisode(
            episode_id="7",
            scene_id="line",
            path_id="7",
            reference_path=("a", "b"),
            heading=0.0,
            instruction="walk",
            goals=("b",),
            player_path=tuple(player),
            planner_path=tuple(planner),
        )

    for walk, fault in (
        (dialog("abc", "ab"), ""),
        (dialog("ac", "ab"), "'a' to 'c'"),
        (dialog("ab", "abz"), "'z'"),
    ):
        assert fault in (text := find_invalid_path([walk], {"line": LINE}, tmp_path, missing=()))
        assert bool(text) == bool(fault)


def test_find_unusual_shapes_are_those_of_the_minority(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        for name, width in (("a", 9), ("b", 8), ("c", 8)):
            file[name] = np.zeros((36, width))
    assert list(find_unusual_shapes(tmp_path / "f.hdf5")) == ["'a' has shape (36, 9), most have (36, 8)"]
    assert list(find_unusual_shapes(tmp_path / "f.npy")) == []


def test_link_to_nowhere_has_an_odd_shape(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        file["a"] = file["b"] = np.zeros((36, 8))
        file["c"] = h5py.SoftLink("/nowhere")
    assert list(find_unusual_shapes(tmp_path / "f.hdf5")) == ["'c' has shape None, most have (36, 8)"]


def test_room_labels_are_keyed_like_features(tmp_path: Path) -> None:
    path = tmp_path / "rooms.json"
    path.write_text('{"label_name": {"k": "kitchen"}, "panos": {"house": {"a": [3, "k", "k"]}}}')
    assert room_labels(path) == {"house_a": "k"}


def test_vocabulary_must_end_where_it_ends(tmp_path: Path) -> None:
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


def test_message_without_the_file_name() -> None:
    assert message_without(Path("a/b.json"), DataError("a/b.json: record 3: wrong")) == "record 3: wrong"
    assert message_without(Path("a/b.json"), DataError("c.json: wrong")) == "c.json: wrong"
