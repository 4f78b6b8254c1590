"""`esceme data r4r`: the files it writes, what it prints, and how it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.tasks.r2r import read_r2r

Capture = pytest.CaptureFixture[str]
SPLITS = ("train", "val_seen", "val_unseen")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def words(toy_root: Path, *more: str, r2r: Path | str | None = None) -> list[str]:
    command = ["data", "r4r", "--r2r", str(r2r or toy_root / "R2R")]
    return [*command, "--connectivity", str(toy_root / "connectivity"), "--out", "R4R", *more]


def refusal(capsys: Capture, command: list[str]) -> str:
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    (message,) = [line for line in err.splitlines() if line.startswith("error: ")]
    return message.removeprefix("error: ")


def test_r4r_is_made_from_every_split_with_goals(toy_root: Path, capsys: Capture) -> None:
    assert main(words(toy_root, "--json")) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    sizes = json.loads(out)
    assert tuple(sizes) == SPLITS
    assert sorted(path.name for path in Path("R4R").iterdir()) == [f"R4R_{split}.json" for split in SPLITS]
    for split in SPLITS:
        made = Path("R4R") / f"R4R_{split}.json"
        records = json.loads(made.read_text())
        told = sum(len(record["instructions"]) for record in records)
        assert sizes[split] == {"paths": len(records), "instructions": told}
        assert len(read_r2r(made)) == told > 0
        assert made.read_bytes() == (toy_root / "R4R" / made.name).read_bytes()
        assert f"R4R {split}" in err  # the progress bar


def test_sizes_are_printed_without_json(toy_root: Path, capsys: Capture) -> None:
    assert main(words(toy_root)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [f"R4R/R4R_{split}.json" for split in SPLITS]
    assert all(" paths, " in line and line.endswith(" instructions") for line in lines)


def test_missing_split_is_noted_and_left_out(toy_root: Path, capsys: Capture) -> None:
    Path("R2R").mkdir()
    shutil.copy(toy_root / "R2R" / "R2R_val_seen.json", "R2R")
    assert main(words(toy_root, "--json", r2r="R2R")) == 0
    out, err = capsys.readouterr()
    assert list(json.loads(out)) == ["val_seen"]
    assert "R2R/R2R_train.json: no such file, so no R4R_train.json" in err
    assert [path.name for path in Path("R4R").iterdir()] == ["R4R_val_seen.json"]


@pytest.mark.parametrize("folder", ["none", "empty", "file"])
def test_folder_without_r2r_is_refused(toy_root: Path, capsys: Capture, folder: str) -> None:
    Path("empty").mkdir()
    Path("file").write_text("[]")
    told = refusal(capsys, words(toy_root, r2r=folder))
    missing = f"{folder}: no R2R_train.json, R2R_val_seen.json or R2R_val_unseen.json"
    assert told in (missing, f"{folder}: no such folder; expected the one with R2R_train.json")
    assert (told == missing) == (folder == "empty")
    assert not Path("R4R").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scan": "nowhere"}, "scene 'nowhere' is unknown; is its connectivity file missing?"),
        ({"path": []}, "'path' or 'instructions' is empty"),
        ({"instructions": []}, "'path' or 'instructions' is empty"),
        ({"path": ["x", "y"]}, "viewpoint 'x' is not in scene"),
    ],
)
def test_invalid_path_is_named_and_the_old_file_remains(
    toy_root: Path, capsys: Capture, change: dict[str, object], message: str
) -> None:
    records = json.loads((toy_root / "R2R" / "R2R_val_seen.json").read_text())
    records[2] |= change
    Path("R2R").mkdir()
    Path("R2R/R2R_val_seen.json").write_text(json.dumps(records))
    Path("R4R").mkdir()
    Path("R4R/R4R_val_seen.json").write_text("of an earlier run")
    told = refusal(capsys, words(toy_root, r2r="R2R"))
    assert told.startswith(f"R2R/R2R_val_seen.json: path {records[2]['path_id']}: {message}")
    assert Path("R4R/R4R_val_seen.json").read_text() == "of an earlier run"
    assert len(list(Path("R4R").iterdir())) == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--connectivity", "none"], "none: cannot be read as a connectivity folder"),
        (["--out", "taken"], "taken: is a file; give a folder to write to"),
    ],
)
def test_invalid_options_are_refused(toy_root: Path, capsys: Capture, more: list[str], message: str) -> None:
    Path("taken").write_text("a file, not a folder")
    assert refusal(capsys, words(toy_root, *more)).startswith(message)


@pytest.mark.real
def test_real_r4r_has_its_sizes(data_root: Path, capsys: Capture) -> None:
    command = [
        "data",
        "r4r",
        "--r2r",
        str(data_root / "R2R"),
        "--connectivity",
        str(data_root / "connectivity"),
    ]
    assert main([*command, "--out", "R4R", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "train": {"paths": 25_921, "instructions": 233_532},
        "val_seen": {"paths": 115, "instructions": 1_035},
        "val_unseen": {"paths": 5_026, "instructions": 45_234},
    }
