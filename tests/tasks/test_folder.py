"""Paths of the files of a data folder, in both layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder, default_data


def touch(root: Path, *names: str) -> DataFolder:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return DataFolder(root)


def names(root: Path, paths: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in paths]


@pytest.mark.parametrize("name", ["connectivity", "R2R/connectivity"])
def test_connectivity_is_found_in_both_layouts(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    assert DataFolder(str(tmp_path)).connectivity == tmp_path / name


def test_plain_layout_precedes_that_of_hamt(tmp_path: Path) -> None:
    touch(tmp_path, "R2R/connectivity/scans.txt", "connectivity/scans.txt")
    folder = touch(tmp_path, "R2R/annotations/R2R_train_enc.json", "R2R/R2R_train.json")
    assert folder.connectivity == tmp_path / "connectivity"
    assert folder.annotations("r2r", "train") == tmp_path / "R2R" / "R2R_train.json"
    assert list(folder.splits("r2r").values()) == [tmp_path / "R2R" / "R2R_train.json"]


def test_missing_connectivity_lists_the_searched_folders(tmp_path: Path) -> None:
    (tmp_path / "connectivity").touch()
    message = "no connectivity folder; looked for connectivity and R2R/connectivity"
    with pytest.raises(DataError, match=message):
        _ = DataFolder(tmp_path).connectivity


def test_published_splits_precede_others(tmp_path: Path) -> None:
    folder = touch(
        tmp_path,
        "R2R/R2R_aaa.json",
        "R2R/R2R_val_unseen.json",
        "R2R/annotations/R2R_train_enc.json",
        "R2R/annotations/R2R_zzz_enc.json",
        "R2R/R4R_train.json",
        "R2R/R2R_notes.txt",
    )
    (tmp_path / "R2R" / "R2R_folder.json").mkdir()
    assert list(folder.splits("r2r")) == ["train", "val_unseen", "aaa", "zzz"]
    assert folder.annotations("r2r", "test") is None


@pytest.mark.parametrize("task", TASKS)
def test_every_layout_of_every_task_is_found(tmp_path: Path, task: str) -> None:
    for number, pattern in enumerate(TASKS[task].files):
        folder = touch(tmp_path / str(number), pattern.format(split="val_seen"))
        assert list(folder.splits(task)) == ["val_seen"]
        others = {name: folder.splits(name) for name in TASKS if name != task}
        assert not any(others.values()), others


def test_feature_files_are_found_once_and_by_their_ending(tmp_path: Path) -> None:
    folder = touch(
        tmp_path,
        "features/b.hdf5",
        "features/a.npy",
        "features/a.json",
        "R2R/features/c.h5",
        "deeper/R2R/features/d.hdf5",
        "features/notes.txt",
    )
    assert names(tmp_path, folder.features) == ["R2R/features/c.h5", "features/a.npy", "features/b.hdf5"]


def test_other_files_are_found_or_absent(tmp_path: Path) -> None:
    empty = DataFolder(tmp_path / "nowhere")
    assert empty.objects is empty.rooms is empty.tours is None
    assert empty.tokenizers == empty.features == []
    folder = touch(
        tmp_path,
        "objects/reverie_objects.json",
        "rooms/viewpoint_rooms.json",
        "tours_iVLN.json",
        "tokenizer/vocab.txt",
        "tokenizer/tokenizer.json",
    )
    assert folder.objects == tmp_path / "objects" / "reverie_objects.json"
    assert folder.rooms == tmp_path / "rooms" / "viewpoint_rooms.json"
    assert folder.tours == tmp_path / "tours_iVLN.json"
    assert names(tmp_path, folder.tokenizers) == ["tokenizer/vocab.txt", "tokenizer/tokenizer.json"]


def test_known_folders_are_those_that_can_have_data_files(tmp_path: Path) -> None:
    folder = touch(
        tmp_path, "CVDN/annotations/ndh/train_enc.json", "R2R/features/c.h5", "connectivity/scans.txt", "file"
    )
    assert {"CVDN", "CVDN/annotations", "CVDN/annotations/ndh", "R2R", "R2R/features", "connectivity"} == set(
        names(tmp_path, folder.known_folders)
    )


def test_brackets_in_the_name_of_the_folder_are_no_pattern(tmp_path: Path) -> None:
    folder = touch(tmp_path / "data [v1]*", "R2R/R2R_own.json", "features/a.npy")
    assert list(folder.splits("r2r")) == ["own"]
    assert len(folder.features) == 1


@pytest.mark.parametrize(
    ("value", "expected"), [("/somewhere/data", "/somewhere/data"), ("", "datasets"), (None, "datasets")]
)
def test_default_data_folder(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: str) -> None:
    monkeypatch.delenv("ESCEME_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("ESCEME_DATA", value)
    assert default_data() == Path(expected)
