"""`esceme data check` and `esceme data tours`: output, exit codes and refused input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.tasks.catalogue import TASKS
from esceme.tasks.tours import check_tours, read_all_tours

pytestmark = pytest.mark.usefixtures("empty_folder")
Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]


# -- check -----------------------------------------------------------------------------------------------


@pytest.fixture
def root(toy_root: Path, tmp_path: Path) -> Path:
    """A writable copy of the toy world without R4R."""
    return Path(shutil.copytree(toy_root, tmp_path / "data", ignore=shutil.ignore_patterns("R4R")))


def test_check_of_a_complete_folder(root: Path, capsys: Capture) -> None:
    assert main(["data", "check", str(root)]) == 0
    printed = capsys.readouterr()
    assert "R2R/R2R_train.json" in printed.out and "32 paths, 96 instructions, 2 scenes" in printed.out
    assert printed.err.endswith("nothing is wrong\n")


def test_command_counts_faults_and_names_a_remedy(root: Path, capsys: Capture) -> None:
    (root / "R2R/R2R_train.json").write_bytes(b"{}")
    assert main(["data", "check", str(root)]) == 1
    printed = capsys.readouterr()
    assert "FAULT" in printed.out and "expected array, got object" in printed.out
    assert "Room-to-Room project page" in printed.out
    assert printed.err.endswith("\n1 fault\n")


def test_report_as_json_is_alone_on_standard_output(root: Path, capsys: Capture) -> None:
    (root / "rooms/viewpoint_rooms.json").write_bytes(b"{}")
    assert main(["data", "check", str(root), "--json", "--deep", "--task", "r2r", "reverie"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["folder"] == str(root) and report["ok"] is False and report["faults"] == 1
    assert {tuple(finding) for finding in report["findings"]} == {("level", "file", "text", "remedy")}
    faulty = [finding["file"] for finding in report["findings"] if finding["level"] == "fault"]
    assert faulty == ["rooms/viewpoint_rooms.json"]
    assert main(["data", "check", str(root), "--json", "--task", "rxr"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == 2


def test_empty_folder_ends_with_code_1_and_is_named_literally(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "[red]x" / "[bold]"  # must not be read as markup
    folder.mkdir(parents=True)
    assert main(["data", "check", str(folder), "--json"]) == 1
    assert str(folder) in capsys.readouterr().out
    assert main(["data", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "[red]" in out and "holds nothing else that ESceme knows" in out


# -- tours -----------------------------------------------------------------------------------------------


def test_every_file_becomes_a_split_of_valid_tours(toy_root: Path, capsys: Capture) -> None:
    files = {split: toy_root / "R2R" / f"R2R_{split}.json" for split in ("train", "val_seen", "val_unseen")}
    assert main(["data", "tours", *map(str, files.values()), "--out", "t.json", "--longest", "20"]) == 0
    tours = read_all_tours("t.json")
    assert list(tours) == list(files)
    for split, file in files.items():
        episodes = TASKS["r2r"].read(file)
        check_tours(tours[split], episodes, "t.json")
        assert sum(map(len, tours[split])) == len(episodes)
        assert max(map(len, tours[split])) <= 20
    counts = ", ".join(f"{split} {len(tours[split])} tours" for split in tours)
    assert capsys.readouterr().out == f"t.json: {counts}\n"


def test_same_seed_makes_the_same_file(toy_root: Path) -> None:
    file = str(toy_root / "R2R" / "R2R_train.json")
    for out, seed in (("a.json", "1"), ("b.json", "1"), ("c.json", "2")):
        assert main(["data", "tours", file, "--out", out, "--seed", seed]) == 0
    first, again, other = (Path(name).read_bytes() for name in ("a.json", "b.json", "c.json"))
    assert first == again != other


def test_json_holds_the_number_of_tours(toy_root: Path, capsys: Capture) -> None:
    file = str(toy_root / "R2R" / "R2R_val_seen.json")
    assert main(["data", "tours", file, "--out", "t.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"val_seen": len(read_all_tours("t.json")["val_seen"])}


@pytest.mark.parametrize(
    ("task", "file", "name", "split"),
    [
        ("r2r", "R2R/R2R_val_unseen.json", "", "val_unseen"),
        ("rxr", "RxR/rxr_val_seen_guide.jsonl.gz", "", "val_seen"),
        ("rxr", "RxR/rxr_test_standard_public_guide.jsonl.gz", "", "test_standard_public"),
        ("cvdn", "CVDN/val_seen.json", "", "val_seen"),
        ("reverie", "REVERIE/v2_REVERIE_train.json", "", "train"),
        ("r2r", "R2R/R2R_val_seen.json", "my_val_seen.json", "val_seen"),
        ("r2r", "R2R/R2R_val_seen.json", "R2R_val_train_seen_enc.json", "val_train_seen"),
        ("r2r", "R2R/R2R_val_seen.json", "mine.json", "mine"),
        ("r2r", "R2R/R2R_val_seen.json", "mine.v2.json", "mine.v2"),
    ],
)
def test_split_is_named_after_its_file(toy_root: Path, task: str, file: str, name: str, split: str) -> None:
    path = shutil.copy(toy_root / file, name or ".")
    assert main(["data", "tours", path, "--task", task, "--out", "t.json"]) == 0
    assert list(read_all_tours("t.json")) == [split]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no annotation file was given"),
        (["R2R_train.json", "R2R_train.json"], "there is a split 'train' already"),
        (["R2R_train.json", "--longest", "0"], "a tour needs at least one episode"),
        (["R2R_train.json", "--seed", "-1"], "the seed is -1"),
        (["R2R_train.json", "--task", "cvdn"], "record 0"),
    ],
)
def test_invalid_tour_options_write_no_file(
    toy_root: Path, error_of: ErrorOf, words: list[str], message: str
) -> None:
    shutil.copy(toy_root / "R2R" / "R2R_train.json", ".")
    assert message in error_of(["data", "tours", *words, "--out", "t.json"])


def test_tours_do_not_replace_a_folder(toy_root: Path, error_of: ErrorOf) -> None:
    Path("t.json").mkdir()
    words = ["data", "tours", str(toy_root / "R2R" / "R2R_train.json"), "--out", "t.json"]
    assert "t.json: cannot be written" in error_of(words)
