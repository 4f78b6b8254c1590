"""`esceme data r4r`: written files, output and refused input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.tasks.manifest import check_manifest
from esceme.tasks.r2r import read_r2r
from esceme.tasks.r4r import R4R_MANIFEST

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]
SPLITS = ("train", "val_seen", "val_unseen")


def command(toy_root: Path, *more: str, r2r: Path | str | None = None) -> list[str]:
    words = ["data", "r4r", "--r2r", str(r2r or toy_root / "R2R")]
    return [*words, "--connectivity", str(toy_root / "connectivity"), "--out", "R4R", *more]


def test_r4r_is_built_from_every_split_with_goals(toy_root: Path, capsys: Capture) -> None:
    assert main(command(toy_root, "--json")) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    sizes = json.loads(out)
    assert tuple(sizes) == SPLITS
    files = [Path("R4R") / f"R4R_{split}.json" for split in SPLITS]
    assert sorted(Path("R4R").iterdir()) == [*files, Path("R4R") / R4R_MANIFEST]
    assert list(check_manifest(Path("R4R"), R4R_MANIFEST)) == []
    for split, file in zip(SPLITS, files, strict=True):
        records = json.loads(file.read_text())
        count = sum(len(record["instructions"]) for record in records)
        assert sizes[split] == {"paths": len(records), "instructions": count}
        assert len(read_r2r(file)) == count > 0
        assert file.read_bytes() == (toy_root / "R4R" / file.name).read_bytes()
        assert f"R4R {split}" in err  # the progress bar
    assert main(command(toy_root)) == 0
    lines = [
        f"{file}: {paths} paths, {count} instructions"
        for file, (paths, count) in zip(files, (size.values() for size in sizes.values()), strict=True)
    ]
    assert capsys.readouterr().out.splitlines() == lines


def test_link_out_of_the_folder_is_refused(toy_root: Path, error_of: ErrorOf) -> None:
    Path("R4R").mkdir()
    Path("precious").write_text("old")
    Path("R4R/R4R_train.json").symlink_to(Path("precious").resolve())
    assert "R4R/R4R_train.json: a link that leads out of R4R" in error_of(command(toy_root))
    assert Path("precious").read_text() == "old"


def test_missing_split_is_skipped_with_a_note(toy_root: Path, capsys: Capture) -> None:
    Path("R2R").mkdir()
    shutil.copy(toy_root / "R2R" / "R2R_val_seen.json", "R2R")
    assert main(command(toy_root, "--json", r2r="R2R")) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["val_seen"]
    assert "R2R/R2R_train.json: no such file, so no R4R_train.json" in err
    assert sorted(path.name for path in Path("R4R").iterdir()) == ["R4R_val_seen.json", R4R_MANIFEST]


def test_splits_that_were_not_written_together_are_noticed(toy_root: Path, capsys: Capture) -> None:
    assert main(command(toy_root)) == 0
    shutil.copytree(toy_root / "connectivity", "connectivity")
    assert main(["data", "check", "."]) == 0
    records = json.loads(Path("R4R/R4R_val_seen.json").read_text())
    Path("R4R/R4R_val_seen.json").write_text(json.dumps(records[:-1]))
    Path("R4R/R4R_train.json").unlink()
    capsys.readouterr()
    assert main(["data", "check", ".", "--json"]) == 1
    found = {
        (finding["file"], finding["text"])
        for finding in json.loads(capsys.readouterr().out)["findings"]
        if finding["level"] == "fault"
    }
    assert found == {
        ("R4R/R4R_train.json", "listed in r4r_manifest.json, but missing"),
        ("R4R/R4R_val_seen.json", "differs from the file that r4r_manifest.json lists"),
    }


@pytest.mark.parametrize("folder", ["none", "empty", "file"])
def test_folder_without_r2r_is_refused(toy_root: Path, error_of: ErrorOf, folder: str) -> None:
    Path("empty").mkdir()
    Path("file").write_text("[]")
    error = error_of(command(toy_root, r2r=folder))
    missing = f"{folder}: no R2R_train.json, R2R_val_seen.json or R2R_val_unseen.json"
    assert error in (missing, f"{folder}: no such folder; expected the one with R2R_train.json")
    assert (error == missing) == (folder == "empty")
    assert not Path("R4R").exists()


def test_old_file_remains_if_a_path_is_invalid(toy_root: Path, error_of: ErrorOf) -> None:
    records = json.loads((toy_root / "R2R" / "R2R_val_seen.json").read_text())
    records[2]["path"] = []
    for file, text in (("R2R/R2R_val_seen.json", json.dumps(records)), ("R4R/R4R_val_seen.json", "earlier")):
        Path(file).parent.mkdir()
        Path(file).write_text(text)
    message = f"path {records[2]['path_id']}: 'path' or 'instructions' is empty"
    assert error_of(command(toy_root, r2r="R2R")).startswith(f"R2R/R2R_val_seen.json: {message}")
    assert Path("R4R/R4R_val_seen.json").read_text() == "earlier"


def test_output_folder_that_is_a_file_is_refused(toy_root: Path, error_of: ErrorOf) -> None:
    Path("taken").write_text("a file, not a folder")
    assert error_of(command(toy_root, "--out", "taken")).startswith(
        "taken: is a file; give a folder to write to"
    )
