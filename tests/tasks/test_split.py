"""Loading of splits, features and instruction encoders (`esceme.tasks.split`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from esceme.errors import DataError
from esceme.files import read_json
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import (
    blank_features,
    load_features,
    load_split,
    load_wordpiece,
    make_instruction_encoder,
    read_split,
)
from esceme.tasks.text import Vocabulary
from esceme.world import ArrayFeatures
from esceme.world.features import pack
from fixtures.files import save_json
from fixtures.toy_atlas import toy_episode

EPISODE = toy_episode("1_0", "s", instruction="turn left")
ENCODED = replace(EPISODE, tokens=(101, 7, 8, 102))


def test_split_has_checked_episodes_and_the_graphs_of_their_scenes(toy_root: Path) -> None:
    split = load_split(DataFolder(toy_root), "r2r", "val_unseen")
    assert split.task.name == "r2r" and split.annotations == toy_root / "R2R" / "R2R_val_unseen.json"
    assert list(split.graphs) == sorted({episode.scene_id for episode in split.episodes})
    again = load_split(DataFolder(toy_root), "reverie", "val_unseen", graphs=split.graphs)
    assert all(graph is split.graphs[scene] for scene, graph in again.graphs.items())


def test_missing_folder_or_split_is_named(toy_root: Path) -> None:
    with pytest.raises(DataError, match="nowhere: no such folder; say where the data is with --data"):
        load_split(DataFolder("nowhere"), "r2r", "train")
    message = "no split 'dev' of r2r; splits that are here: train, .*; looked for R2R/R2R_dev.json or "
    with pytest.raises(DataError, match=message):
        load_split(DataFolder(toy_root), "r2r", "dev")


def test_classifier_scores_after_the_features_are_cut_off(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "features" / "f.hdf5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        file["s_a"] = np.zeros((36, 1004), np.float32)
    data = DataFolder(tmp_path)
    assert load_features(data, width=4).width == 4
    assert load_features(data, path).width == 1004
    with pytest.raises(DataError, match="features of width 1004, and this network reads 5"):
        load_features(data, width=5)
    pack(ArrayFeatures(["s_a"], np.zeros((1, 36, 2), np.float32), source="x"), path.with_name("g.npy"))
    assert load_features(data, name="g.npy").width == 2
    with pytest.raises(DataError, match="found f.hdf5, g.npy; say which with --features"):
        load_features(data)


@pytest.mark.parametrize("key", ["player_path", "planner_path"])
def test_every_path_of_a_dialog_is_checked(toy_root: Path, tmp_path: Path, key: str) -> None:
    """Only one of the two paths is the reference path."""
    records = read_json(toy_root / "CVDN/val_seen.json", list[dict[str, Any]])
    for record in records:
        damaged = record | {key: [record[key][0], "nowhere", *record[key][2:]]}
        file = save_json(tmp_path / "val_seen.json", [damaged])
        with pytest.raises(DataError, match="viewpoint 'nowhere' is not in scene"):
            read_split(TASKS["cvdn"], file, toy_root / "connectivity")


def test_blank_features_cover_every_viewpoint(toy_root: Path) -> None:
    graphs = load_split(DataFolder(toy_root), "r2r", "val_seen").graphs
    store = blank_features(graphs)
    assert store.width == 1 and len(store) == sum(map(len, graphs.values()))


def test_vocabulary_precedes_stored_ids_and_these_precede_the_tokenizer(toy_root: Path) -> None:
    data, limits = DataFolder(toy_root), {"max_tokens": 3, "keep": "last"}
    wordpiece = load_wordpiece(data)
    assert wordpiece is not None
    assert make_instruction_encoder(data, "r2r", **limits)(ENCODED) == [7, 8, 102]
    assert make_instruction_encoder(data, "r2r", **limits)(EPISODE) == wordpiece.encode("turn left")[-3:]
    own = Vocabulary.build(["turn left"])
    assert (
        make_instruction_encoder(data, "r2r", vocabulary=own, **limits)(ENCODED)
        == own.encode("turn left")[-3:]
    )


@pytest.mark.parametrize("has_tokenizer", [False, True])
def test_text_without_a_tokenizer_of_the_right_size_is_refused(
    toy_root: Path, tmp_path: Path, has_tokenizer: bool
) -> None:
    """The tokenizer of the toy world has another size than the network; without text, bytes are the ids."""
    data, limits = DataFolder(toy_root if has_tokenizer else tmp_path), {"max_tokens": 4, "keep": "first"}
    encode = make_instruction_encoder(data, "r2r", vocabulary_size=256, needs_text=False, **limits)
    assert bytes(encode(EPISODE)) == b"turn"
    with pytest.raises(DataError, match="episode 1_0 of r2r has text but no ids, and there is no vocabulary"):
        make_instruction_encoder(data, "r2r", vocabulary_size=9, **limits)(EPISODE)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ((), "episode 1_0 of r2r: its instruction holds no ids"),
        ((3, 9), "episode 1_0: token id 9 is not one of the 9 that this network knows"),
        ((3, -1), "episode 1_0: token id -1 is not one of the 9 that this network knows"),
    ],
)
def test_unusable_ids_are_refused(tmp_path: Path, tokens: tuple[int, ...], message: str) -> None:
    encode = make_instruction_encoder(
        DataFolder(tmp_path), "r2r", max_tokens=4, keep="first", vocabulary_size=9
    )
    with pytest.raises(DataError, match=message):
        encode(replace(EPISODE, tokens=tokens))
