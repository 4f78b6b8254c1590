"""The command `esceme reproduce`: the list of targets and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.files import folder_lock
from esceme.report.paper import read_paper_tables
from esceme.reproduction import TARGETS

Refused = Callable[[Sequence[str]], str]


def test_the_list_says_what_each_target_needs_and_whether_it_can_run(
    training_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "list", "--data", str(training_data), "--json"]) == 0
    entries = {entry["target"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert [*entries] == [*TARGETS] and set(read_paper_tables()) < set(entries)
    dialogs, headline = entries["tab:cvdn"], entries["headline"]
    assert dialogs["kind"] == "table" and "cvdn train, val_seen, val_unseen" in dialogs["needs"]
    assert not headline["runnable"] and "R2R/prevalent_aug_train_enc.json" in headline["missing"][0]
    assert main(["reproduce", "list", "--data", str(training_data)]) == 0
    assert "tab:r2r_abl_supp" in capsys.readouterr().out


def test_unknown_targets_and_unsuitable_data_are_refused(
    training_data: Path, empty_folder: Path, error_of: Refused
) -> None:
    data = ["--data", str(training_data)]
    assert error_of(["reproduce", "tab:r2", *data]).startswith("no target 'tab:r2'; did you mean tab:r2r")
    assert "expected a target" in error_of(["reproduce", *data])
    assert "stands alone" in error_of(["reproduce", "list", "all", *data])
    assert "--seeds 0: expected at least 1" in error_of(["reproduce", "tab:r2r", "--seeds", "0", *data])
    assert "--scale 2: expected" in error_of(["reproduce", "tab:r2r", "--scale", "2", *data])
    assert "give one" in error_of(["reproduce", "tab:r2r", "--scale", "0.5", "--budget", "9", *data])
    assert "cannot serve tab:rxr: no RxR/rxr_train_guide.jsonl" in error_of(["reproduce", "tab:rxr", *data])
    assert "nowhere: cannot serve tab:rxr: no such folder" in error_of(
        ["reproduce", "tab:rxr", "--data", "nowhere"]
    )


def test_one_manager_works_in_a_folder(training_data: Path, empty_folder: Path, error_of: Refused) -> None:
    with folder_lock(Path("busy"), "reproduction"):
        message = error_of(["reproduce", "fig:memory", "--data", str(training_data), "--out", "busy"])
    assert message.startswith("busy: another reproduction is running there (process")


def test_the_list_does_not_generate_the_world(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESCEME_CACHE", "cache")
    assert main(["reproduce", "list", "--json"]) == 0
    runnable = {entry["target"]: entry["runnable"] for entry in json.loads(capsys.readouterr().out)}
    assert all(runnable[name] != name.endswith(("-r2r", "-r4r")) for name in TARGETS)
    assert not Path("cache").exists()


@pytest.mark.slow
def test_a_target_is_reproduced_within_a_budget_and_not_repeated(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "fig:memory", "--data", "embedded:tiny", "--seeds", "1", "--budget", "0.5"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "Shortened trainings" in out and "2 trainings and 2 evaluations in all" in err
    assert err.count("about 0 min left") >= 1
    folder = Path("reproduction", "fig-memory")
    files = {
        "report.md",
        "results.json",
        "table.tex",
        "steps.svg",
        "steps.pdf",
        "episodes.svg",
        "episodes.pdf",
    }
    assert {path.name for path in folder.iterdir()} == files
    assert main([*command, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"fig:memory": str(folder)}
    assert "min left" not in err and "measuring" not in err
