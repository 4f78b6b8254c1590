"""`esceme data check` and `esceme data tours` as a person runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.tasks.catalogue import TASKS
from esceme.tasks.tours import check_tours, read_all_tours


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- check -----------------------------------------------------------------------------------------------


@pytest.fixture
def root(toy_root: Path, tmp_path: Path) -> Path:
    """The toy world without R4R, to be damaged."""
    return Path(shutil.copytree(toy_root, tmp_path / "data", ignore=shutil.ignore_patterns("R4R")))


def test_check_of_a_sound_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(root)]) == 0
    printed = capsys.readouterr()
    assert "R2R/R2R_train.json" in printed.out and "32 paths, 96 instructions, 2 scenes" in printed.out
    assert printed.err.endswith("nothing is wrong\n")


def test_command_counts_faults_and_names_a_remedy(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "R2R/R2R_train.json").write_bytes(b"{}")
    assert main(["data", "check", str(root)]) == 1
    printed = capsys.readouterr()
    assert "FAULT" in printed.out and "expected array, got object" in printed.out
    assert "Room-to-Room project page" in printed.out
    assert printed.err.endswith("\n1 fault\n")


def test_report_as_json_is_alone_on_standard_output(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "rooms/viewpoint_rooms.json").write_bytes(b"{}")
    assert main(["data", "check", str(root), "--json", "--deep", "--task", "r2r", "reverie"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["folder"] == str(root) and report["ok"] is False and report["faults"] == 1
    assert {tuple(each) for each in report["findings"]} == {("level", "file", "text", "remedy")}
    assert [each["file"] for each in report["findings"] if each["level"] == "fault"] == [
        "rooms/viewpoint_rooms.json"
    ]
    assert main(["data", "check", str(root), "--json", "--task", "rxr"]) == 1
    assert json.loads(capsys.readouterr().out)["faults"] == 2


def test_folder_that_is_not_there_ends_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([], ["--json"]):
        assert main(["data", "check", str(tmp_path / "nowhere"), *words]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("error: ") and "nowhere: cannot be read as a data folder" in printed.err


def test_empty_folder_ends_with_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(tmp_path)]) == 1
    assert "holds nothing else that ESceme knows" in capsys.readouterr().out


def test_brackets_in_names_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "[red]x" / "[bold]"
    place.mkdir(parents=True)
    assert main(["data", "check", str(place), "--json"]) == 1
    assert str(place) in capsys.readouterr().out
    assert main(["data", "check", str(place)]) == 1
    assert "[red]" in capsys.readouterr().out


# -- tours -----------------------------------------------------------------------------------------------


def test_every_file_becomes_a_split_of_sound_tours(
    toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {split: toy_root / "R2R" / f"R2R_{split}.json" for split in ("train", "val_seen", "val_unseen")}
    assert main(["data", "tours", *map(str, files.values()), "--out", "t.json", "--longest", "20"]) == 0
    made = read_all_tours("t.json")
    assert list(made) == list(files)
    for split, file in files.items():
        episodes = TASKS["r2r"].read(file)
        check_tours(made[split], episodes, "t.json")
        assert sum(map(len, made[split])) == len(episodes)
        assert max(map(len, made[split])) <= 20
    counts = ", ".join(f"{split} {len(tours)} tours" for split, tours in made.items())
    assert capsys.readouterr().out == f"t.json: {counts}\n"


def test_same_seed_makes_the_same_file(toy_root: Path) -> None:
    file = str(toy_root / "R2R" / "R2R_train.json")
    for out, seed in (("a.json", "1"), ("b.json", "1"), ("c.json", "2")):
        assert main(["data", "tours", file, "--out", out, "--seed", seed]) == 0
    first, again, other = (Path(name).read_bytes() for name in ("a.json", "b.json", "c.json"))
    assert first == again != other


def test_with_json_standard_output_holds_the_json_alone(
    toy_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(toy_root / "R2R" / "R2R_val_seen.json")
    assert main(["data", "tours", file, "--out", "t.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"val_seen": len(read_all_tours("t.json")["val_seen"])}


@pytest.mark.parametrize(
    ("task", "file", "split"),
    [
        ("r2r", "R2R/R2R_val_unseen.json", "val_unseen"),
        ("rxr", "RxR/rxr_val_seen_guide.jsonl.gz", "val_seen"),
        ("rxr", "RxR/rxr_test_standard_public_guide.jsonl.gz", "test_standard_public"),
        ("cvdn", "CVDN/val_seen.json", "val_seen"),
        ("reverie", "REVERIE/v2_REVERIE_train.json", "train"),
    ],
)
def test_split_is_named_as_its_file_says(toy_root: Path, task: str, file: str, split: str) -> None:
    assert main(["data", "tours", str(toy_root / file), "--task", task, "--out", "t.json"]) == 0
    assert list(read_all_tours("t.json")) == [split]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("my_val_seen.json", "val_seen"),
        ("R2R_val_train_seen_enc.json", "val_train_seen"),
        ("mine.json", "mine"),
        ("mine.v2.json", "mine.v2"),
    ],
)
def test_other_names_give_the_split_they_end_in_or_the_whole(toy_root: Path, name: str, split: str) -> None:
    Path(name).write_bytes((toy_root / "R2R" / "R2R_val_seen.json").read_bytes())
    assert main(["data", "tours", name, "--out", "t.json"]) == 0
    assert list(read_all_tours("t.json")) == [split]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no annotation file was given"),
        (["nowhere.json"], "nowhere.json: no such file"),
        (["R2R_train.json", "R2R_train.json"], "there is a split 'train' already"),
        (["R2R_train.json", "--longest", "0"], "a tour needs at least one episode"),
        (["R2R_train.json", "--seed", "-1"], "the seed is -1"),
        (["R2R_train.json", "--task", "cvdn"], "record 0"),
        (["R2R_train.json", "."], "cannot be read"),
    ],
)
def test_invalid_tour_options_write_no_file(
    toy_root: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    Path("R2R_train.json").write_bytes((toy_root / "R2R" / "R2R_train.json").read_bytes())
    assert main(["data", "tours", *words, "--out", "t.json"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1 and message in printed.err
    assert [path.name for path in Path().iterdir()] == ["R2R_train.json"]


def test_tours_do_not_replace_a_folder(toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.json").mkdir()
    assert main(["data", "tours", str(toy_root / "R2R" / "R2R_train.json"), "--out", "t.json"]) == 2
    assert "t.json: cannot be written" in capsys.readouterr().err
