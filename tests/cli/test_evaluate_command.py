"""`esceme evaluate`: what it prints and writes, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from esceme.cli.evaluate_command import default_folder
from esceme.evaluation import EvaluationConfig, read_result
from esceme.memory import MemoryBank, save_bank
from esceme.memory.bank_file import read_header
from esceme.tasks.submission import read_predictions
from fixtures.random_runs import random_run

Capture = pytest.CaptureFixture[str]
STEPS = ["--max-steps", "3"]
"""Short walks, for short tests."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESCEME_DATA", str(toy_root))


@pytest.fixture(scope="module")
def run(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small agent with a reader; tests give their evaluations a folder elsewhere."""
    return random_run(tmp_path_factory.mktemp("runs") / "reader", toy_root)


@pytest.fixture(scope="module")
def cold(run: Path, toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation that is finished; read-only."""
    folder = tmp_path_factory.mktemp("cold")
    command = ["evaluate", str(run), "--split", "val_seen", "--memory", "cold", "--data", str(toy_root)]
    assert main([*command, "--out", str(folder), *STEPS]) == 0
    return folder


def words(run: object, memory: str = "cold", *more: str, split: str = "val_seen") -> list[str]:
    return ["evaluate", str(run), "--split", split, "--memory", memory, *STEPS, *more]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def copied(folder: Path, to: str) -> Path:
    Path(to).mkdir()
    for name, data in files(folder).items():
        (Path(to) / name).write_bytes(data)
    return Path(to)


def refusal(capsys: Capture, command: Sequence[str]) -> str:
    """The message of a command that is refused before anything is written."""
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(command) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return err.removeprefix("error: ").rstrip("\n")


def test_a_table_facts_and_files(toy_root: Path, capsys: Capture) -> None:
    run = random_run(Path("run"), toy_root)
    assert main(words(run)) == 0
    out, err = capsys.readouterr()
    folder = Path("run/evaluations/r2r-val_seen-cold-steps3")
    result = read_result(folder)
    assert len(result.episodes) == 36 and result.means["n"] == 36
    for name in ("tl (m)", "sr (%)", "spl (%)", "95 % interval"):
        assert name in out
    assert f"{result.means['tl']:.2f}" in out
    hashes = [f"{name} {result.facts['hashes'][name][:8]}" for name in ("weights", "data")]
    stated = ["memory cold", "schedule lanes", "order file", "seed 0", "precision fp32", "max_steps 3"]
    assert ", ".join([*stated, *hashes]) in out
    (visits,) = (line for line in out.splitlines() if line.startswith("spl by visit: 1: "))
    counts = [int(part.split(")")[0]) for part in visits.split("(n ")[1:]]
    assert sum(counts) == 36
    for name in ("result.json", "predictions.json", "bank.safetensors"):
        assert f": {folder / name}" in out and (folder / name).is_file()
    assert "36/36" in err


def test_json_is_alone_on_standard_output(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copied(cold, "again")
    assert main(words(run, "cold", "--out", "again", "--bootstrap", "50", "--json")) == 0
    out = capsys.readouterr().out
    told: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1
    result = read_result(folder)
    assert told["facts"] == result.facts and told["means"] == result.means
    assert told["draws"] == 50
    assert all(low <= told["means"][name] <= high for name, (low, high) in told["ci95"].items())
    assert sum(each["episodes"] for each in told["by_visit"]) == 36
    assert [told[name] for name in ("result", "predictions")] == [
        "again/result.json",
        "again/predictions.json",
    ]
    assert "submit" not in told


def test_without_a_bootstrap_there_are_no_intervals(cold: Path, run: Path, capsys: Capture) -> None:
    copied(cold, "again")
    assert main(words(run, "cold", "--out", "again", "--bootstrap", "0")) == 0
    assert "95 %" not in capsys.readouterr().out


def test_a_finished_evaluation_is_printed_again_and_not_lived_again(
    cold: Path, run: Path, capsys: Capture
) -> None:
    folder = copied(cold, "again")
    assert main(words(run, "cold", "--out", "again", "--batch", "3")) == 0  # lanes do not depend on batches
    assert "all 36 trajectories are finished already" in capsys.readouterr().err
    assert files(folder) == files(cold)


def test_an_interrupted_evaluation_goes_on_to_the_same_result(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copied(cold, "again")
    journal = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("result.json", "predictions.json", "bank.safetensors"):
        (folder / name).unlink()
    (folder / "journal.jsonl").write_bytes(b"".join(journal[:11]) + journal[11][:20])  # killed while writing
    assert main(words(run, "cold", "--out", "again")) == 0
    assert "continuing an interrupted evaluation: 10 of 36 trajectories" in capsys.readouterr().err
    for name in ("result.json", "predictions.json"):
        assert (folder / name).read_bytes() == (cold / name).read_bytes()


def test_another_evaluation_in_the_same_folder_is_refused(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copied(cold, "again")
    for command in (
        words(run, "masked", "--out", "again"),
        words(run, "cold", "--out", "again", "--seed", "1"),
    ):
        assert refusal(capsys, command).startswith("again: holds another evaluation, with other ")
    assert files(folder) == files(cold)


def test_a_warm_evaluation_begins_with_the_bank_of_another(cold: Path, run: Path) -> None:
    bank = cold / "bank.safetensors"
    assert main(words(run, "warm", "--bank", str(bank), "--out", "warm")) == 0
    known = {scene.scene_id: set(scene.viewpoints) for scene in read_header(bank).scenes}
    later = {scene.scene_id: set(scene.viewpoints) for scene in read_header("warm/bank.safetensors").scenes}
    assert all(viewpoints <= later[scene] for scene, viewpoints in known.items())
    assert read_result("warm").facts["hashes"].keys() == read_result(cold).facts["hashes"].keys() | {"bank"}


def test_scripted_agents_need_no_run_folder(capsys: Capture) -> None:
    assert main(["evaluate", "shortest", "--split", "val_unseen", "--memory", "none"]) == 0
    result = read_result("evaluations/shortest-r2r-val_unseen-none")
    assert result.means["sr"] == 1.0 and result.facts["agent"] == "shortest"
    assert "bank: " not in capsys.readouterr().out


def test_other_tasks_may_be_asked_of_a_run(run: Path) -> None:
    assert main(words(run, "cold", "--task", "cvdn", "--max-tokens", "50", "--out", "dialogs")) == 0
    assert read_result("dialogs").facts["task"] == "cvdn"


# -- splits without goals --------------------------------------------------------------------------------


def test_a_test_split_leaves_predictions_that_can_be_submitted(
    run: Path, toy_root: Path, capsys: Capture
) -> None:
    assert main(words(run, "cold", "--out", "test out", split="test")) == 0
    out, err = capsys.readouterr()
    assert "the goals of 'test' are withheld, so nothing is scored; the predictions are ready" in err
    assert "┃" not in out and "spl by visit" not in out
    (line,) = (line for line in err.splitlines() if line.startswith("to submit them: esceme submit "))
    command = shlex.split(line.removeprefix("to submit them: esceme "))
    assert main(command) == 0
    assert "18 episodes, ready for the R2R leaderboard" in capsys.readouterr().out
    assert read_predictions("test out/submission.json") == read_predictions("test out/predictions.json")

    annotations, graphs = toy_root / "R2R/R2R_test.json", toy_root / "connectivity"
    score = ["score", "--task", "r2r", "--predictions", "test out/predictions.json"]
    score += ["--annotations", str(annotations), "--connectivity", str(graphs)]
    assert "only the leaderboard knows its goal" in refusal(capsys, score)
    assert "only the leaderboard knows the goals" in refusal(capsys, ["compare", "test out", "test out"])


def test_json_of_a_test_split_names_the_command(run: Path, capsys: Capture) -> None:
    assert main(words(run, "cold", "--out", "test", "--json", split="test")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["means"] == {} and told["by_visit"] == [] and "ci95" not in told
    assert shlex.split(told["submit"])[:4] == ["esceme", "submit", "--task", "r2r"]


def test_predictions_of_any_result_are_a_submission(cold: Path, toy_root: Path, capsys: Capture) -> None:
    command = ["submit", "--task", "r2r", "--predictions", str(cold / "predictions.json"), "--out", "s.json"]
    command += ["--annotations", str(toy_root / "R2R/R2R_val_seen.json")]
    assert main([*command, "--connectivity", str(toy_root / "connectivity"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 36


# -- refusals --------------------------------------------------------------------------------------------


def test_unknown_split_is_refused_with_the_splits_and_files_found(
    run: Path, toy_root: Path, capsys: Capture
) -> None:
    splits = "splits that are here: train, val_seen, val_unseen, test; looked for R2R/R2R_val_unsaid.json"
    message = refusal(capsys, words(run, split="val_unsaid", memory="cold"))
    assert message.startswith(f"{toy_root}: no split 'val_unsaid' of r2r; {splits}")


def test_a_run_folder_without_its_experiment_is_refused(capsys: Capture) -> None:
    Path("bare").mkdir()
    assert refusal(capsys, words("bare")).startswith("bare: has no navigator.json; expected a run folder")
    assert refusal(capsys, words("gone")).startswith("gone: is not a folder; expected a run folder")


def test_none_of_an_agent_with_a_reader_points_to_masked(run: Path, capsys: Capture) -> None:
    told = refusal(capsys, words(run, "none"))
    assert told.startswith("memory 'none' is for agents trained without a reader") and "'masked'" in told


def test_memory_means_nothing_to_an_agent_without_a_reader(toy_root: Path, capsys: Capture) -> None:
    run = random_run(Path("plain"), toy_root, has_memory=False)
    assert "reads no memory, so 'cold' has no effect; use 'none'" in refusal(capsys, words(run))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["warm"], "memory 'warm' and a bank file (--bank) belong together"),
        (["cold", "--bank", "bank"], "memory 'warm' and a bank file (--bank) belong together"),
        (["warm", "--bank", "gone"], "gone: no such file"),
        (["tour"], "memory 'tour' is cleared at the start of every tour: give the tours with "),
        (["cold", "--oracle-phases"], "oracle phases connect the episodes of a tour"),
        (["episodic", "--schedule", "interleaved"], "memory 'episodic' needs one episode at a time"),
        (
            ["cold", "--schedule", "interleaved", "--order", "shuffled"],
            "the schedule 'interleaved' always shuffles",
        ),
        (
            ["cold", "--schedule", "interleaved", "--processes", "2"],
            "the schedule 'interleaved' mixes scenes",
        ),
        (["cold", "--processes", "0"], "processes: expected at least 1, found 0"),
        (["cold", "--batch", "0"], "batch: expected at least 1, found 0"),
        (["cold", "--bootstrap", "-1"], "--bootstrap -1: expected the number of samples, 0 for none"),
        (["cold", "--data", "nowhere"], "nowhere: no such folder; say where the data is with --data"),
        (["cold", "--features", "gone.hdf5"], "gone.hdf5: "),
    ],
)
def test_a_choice_without_sense_is_refused(
    run: Path, capsys: Capture, command: list[str], message: str
) -> None:
    assert refusal(capsys, words(run, command[0], "--out", "o", *command[1:])).startswith(message)


def test_a_folder_cannot_be_where_a_file_is(run: Path, capsys: Capture) -> None:
    Path("taken").write_text("in the way")
    assert refusal(capsys, words(run, "cold", "--out", "taken")).startswith("taken: cannot be ")


@pytest.mark.parametrize("fault", ["width", "source", "pooling", "cut"])
def test_a_bank_that_does_not_fit_is_refused(cold: Path, run: Path, capsys: Capture, fault: str) -> None:
    header = read_header(cold / "bank.safetensors")
    if fault == "cut":
        Path("bank").write_bytes((cold / "bank.safetensors").read_bytes()[:-100])
    else:
        source = "other.hdf5" if fault == "source" else header.source
        width = 3 if fault == "width" else header.width
        save_bank(MemoryBank(width, pooling="mean" if fault == "pooling" else "max", source=source), "bank")
    told = refusal(capsys, words(run, "warm", "--bank", "bank", "--out", "warm"))
    expected = {
        "width": f"bank: expected features of width {header.width}, found 3",
        "source": f"bank: expected features of source '{header.source}', found 'other.hdf5'",
        "pooling": "",
        "cut": "bank: not a complete bank file",
    }
    assert told.startswith(expected[fault]) and (fault != "pooling" or "mean" in told and "max" in told)


def test_an_unknown_protocol_is_refused_by_name(run: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words(run, "warmest"))
    assert ended.value.code == 2 and "two-pass" in capsys.readouterr().err


def test_help_shows_examples(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "--help"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "esceme evaluate runs/esceme-r2r --split val_unseen --memory cold" in printed
    assert "--oracle-phases" in printed and "Args:" not in printed


# -- folders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "r/evaluations/r2r-val_seen-cold"),
        ({"batch": 4}, "r/evaluations/r2r-val_seen-cold"),
        ({"run": "random", "memory": "none", "seed": 2}, "evaluations/random-r2r-val_seen-none-seed2"),
        (
            {"schedule": "interleaved", "batch": 4, "seed": 1},
            "r/evaluations/r2r-val_seen-cold-interleaved-batch4-seed1",
        ),
        ({"memory": "warm", "bank": "b/bank.st"}, "r/evaluations/r2r-val_seen-warm-bank"),
        ({"order": "shuffled", "precision": "bf16"}, "r/evaluations/r2r-val_seen-cold-batch8-shuffled-bf16"),
    ],
)
def test_a_folder_is_named_by_what_was_chosen(changes: dict[str, Any], folder: str) -> None:
    chosen: dict[str, Any] = {"run": "r", "data": "d", "split": "val_seen", "memory": "cold", "task": "r2r"}
    assert default_folder(EvaluationConfig(**{**chosen, **changes})) == Path(folder)
