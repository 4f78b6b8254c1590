"""`esceme evaluate`: output, files, resuming, tours and errors."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esceme.cli import main
from esceme.cli.evaluate_command import default_folder
from esceme.evaluation import EvaluationConfig, read_result, read_trace
from esceme.memory import MemoryBank, save_bank
from esceme.memory.bank_file import read_header
from esceme.metrics import TOUR_METRICS
from esceme.tasks.r2r import read_r2r
from esceme.tasks.submission import read_predictions
from esceme.tasks.tours import read_tours
from fixtures.files import file_contents
from fixtures.random_runs import random_run

Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]
STEPS = ["--max-steps", "3"]
"""Short trajectories keep the tests fast."""
SPLIT = "val_seen"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toy_root: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESCEME_DATA", str(toy_root))


@pytest.fixture(scope="module")
def run(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small agent with a reader; read-only."""
    return random_run(tmp_path_factory.mktemp("runs") / "reader", toy_root)


@pytest.fixture(scope="module")
def plain_run(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small agent without a reader; read-only."""
    return random_run(tmp_path_factory.mktemp("runs") / "none", toy_root, has_memory=False)


@pytest.fixture
def tours(toy_root: Path) -> str:
    return str(toy_root / "tours" / "tours_iVLN.json")


@pytest.fixture(scope="module")
def cold(run: Path, toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a finished evaluation; read-only."""
    folder = tmp_path_factory.mktemp("cold")
    assert main(command(run, "cold", "--data", str(toy_root), "--out", str(folder))) == 0
    return folder


def command(run: object, memory: str = "cold", *options: str, split: str = SPLIT) -> list[str]:
    return ["evaluate", str(run), "--split", split, "--memory", memory, *STEPS, *options]


def copy_folder(folder: Path, to: str) -> Path:
    Path(to).mkdir()
    for name, data in file_contents(folder).items():
        (Path(to) / name).write_bytes(data)
    return Path(to)


def test_evaluate_prints_metrics_and_facts_and_writes_files(toy_root: Path, capsys: Capture) -> None:
    run = random_run(Path("run"), toy_root)
    assert main(command(run)) == 0
    out, err = capsys.readouterr()
    folder = Path("run/evaluations/r2r-val_seen-cold-steps3")
    result = read_result(folder)
    assert len(result.episodes) == 36 and result.means["n"] == 36
    for name in ("tl (m)", "sr (%)", "spl (%)", "95 % interval"):
        assert name in out
    assert f"{result.means['tl']:.2f}" in out
    hashes = [f"{name} {result.facts['hashes'][name][:8]}" for name in ("weights", "data")]
    stated = ["memory cold", "schedule lanes", "order file", "seed 0", "precision fp32", "engine eager"]
    stated.append("max_steps 3")
    assert ", ".join([*stated, *hashes]) in out
    (visits,) = (line for line in out.splitlines() if line.startswith("spl by visit: 1: "))
    counts = [int(part.split(")")[0]) for part in visits.split("(n ")[1:]]
    assert sum(counts) == 36
    for name in ("result.json", "predictions.json", "bank.safetensors"):
        assert f": {folder / name}" in out and (folder / name).is_file()
    assert "36/36" in err


def test_json_is_the_only_output(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copy_folder(cold, "again")
    assert main(command(run, "cold", "--out", "again", "--bootstrap", "50", "--json")) == 0
    out = capsys.readouterr().out
    printed: dict[str, Any] = json.loads(out)
    assert out.count("\n") == 1
    result = read_result(folder)
    assert printed["facts"] == result.facts and printed["means"] == result.means
    assert printed["draws"] == 50
    assert all(low <= printed["means"][name] <= high for name, (low, high) in printed["ci95"].items())
    assert sum(group["episodes"] for group in printed["by_visit"]) == 36
    assert (printed["result"], printed["predictions"]) == ("again/result.json", "again/predictions.json")
    assert "submit" not in printed


def test_finished_evaluation_is_printed_and_not_repeated(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copy_folder(cold, "again")  # results of lanes do not depend on the batch size
    assert main(command(run, "cold", "--out", "again", "--batch", "3", "--bootstrap", "0")) == 0
    out, err = capsys.readouterr()
    assert "all 36 trajectories are finished already" in err and "95 %" not in out
    assert file_contents(folder) == file_contents(cold)


def test_interrupted_evaluation_continues_to_the_same_result(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copy_folder(cold, "again")
    journal = (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("result.json", "predictions.json", "bank.safetensors"):
        (folder / name).unlink()
    (folder / "journal.jsonl").write_bytes(b"".join(journal[:11]) + journal[11][:20])  # killed while writing
    assert main(command(run, "cold", "--out", "again")) == 0
    assert "continuing an interrupted evaluation: 10 of 36 trajectories" in capsys.readouterr().err
    for name in ("result.json", "predictions.json"):
        assert (folder / name).read_bytes() == (cold / name).read_bytes()


def test_trace_of_a_finished_evaluation_is_added(cold: Path, run: Path, capsys: Capture) -> None:
    folder = copy_folder(cold, "again")
    assert main(command(run, "cold", "--out", "again", "--trace")) == 0
    assert f"trace: {folder / 'trace.jsonl'}" in capsys.readouterr().out
    trace = read_trace(folder)
    assert [episode.id for episode in trace.episodes] == [e.id for e in read_result(cold).episodes]


def test_scripted_agents_need_no_run_folder(capsys: Capture) -> None:
    assert main(["evaluate", "shortest", "--split", "val_unseen", "--memory", "none"]) == 0
    result = read_result("evaluations/shortest-r2r-val_unseen-none")
    assert result.means["sr"] == 1.0 and result.facts["agent"] == "shortest"
    assert "bank: " not in capsys.readouterr().out


def test_task_may_differ_from_that_of_the_run(run: Path) -> None:
    assert main(command(run, "cold", "--task", "cvdn", "--max-tokens", "50", "--out", "dialogs")) == 0
    assert read_result("dialogs").facts["task"] == "cvdn"


# -- splits without goals --------------------------------------------------------------------------------


def test_predictions_of_a_test_split_can_be_submitted(
    run: Path, toy_root: Path, capsys: Capture, error_of: ErrorOf
) -> None:
    assert main(command(run, "cold", "--out", "test out", split="test")) == 0
    out, err = capsys.readouterr()
    assert "the goals of 'test' are withheld, so nothing is scored; the predictions are ready" in err
    assert "┃" not in out and "spl by visit" not in out
    (line,) = (line for line in err.splitlines() if line.startswith("to submit them: esceme submit "))
    assert main(shlex.split(line.removeprefix("to submit them: esceme "))) == 0
    assert "18 episodes, ready for the R2R leaderboard" in capsys.readouterr().out
    assert read_predictions("test out/submission.json") == read_predictions("test out/predictions.json")

    annotations, graphs = toy_root / "R2R/R2R_test.json", toy_root / "connectivity"
    score = ["score", "--task", "r2r", "--predictions", "test out/predictions.json"]
    score += ["--annotations", str(annotations), "--connectivity", str(graphs)]
    assert "only the leaderboard knows its goal" in error_of(score)
    assert "only the leaderboard knows the goals" in error_of(["compare", "test out", "test out"])


def test_json_of_a_test_split_contains_the_submit_command(run: Path, capsys: Capture) -> None:
    assert main(command(run, "cold", "--out", "test", "--json", split="test")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["means"] == {} and printed["by_visit"] == [] and "ci95" not in printed
    assert shlex.split(printed["submit"])[:4] == ["esceme", "submit", "--task", "r2r"]


# -- refusals --------------------------------------------------------------------------------------------


def test_unknown_split_is_refused_with_the_splits_and_files_found(
    run: Path, toy_root: Path, error_of: ErrorOf
) -> None:
    splits = "splits that are here: train, val_seen, val_unseen, test; looked for R2R/R2R_val_unsaid.json"
    message = error_of(command(run, split="val_unsaid", memory="cold"))
    assert message.startswith(f"{toy_root}: no split 'val_unsaid' of r2r; {splits}")


def test_folder_that_is_no_run_folder_is_refused(error_of: ErrorOf) -> None:
    Path("bare").mkdir()
    assert error_of(command("bare")).startswith("bare: has no navigator.json; expected a run folder")
    assert error_of(command("gone")).startswith("gone: is not a folder; expected a run folder")


def test_memory_must_fit_the_reader(run: Path, plain_run: Path, error_of: ErrorOf) -> None:
    message = error_of(command(run, "none"))
    assert (
        message.startswith("memory 'none' is for agents trained without a reader") and "'masked'" in message
    )
    assert "reads no memory, so 'cold' has no effect; use 'none'" in error_of(command(plain_run))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["warm"], "memory 'warm' and a bank file (--bank) belong together"),
        (["warm", "--bank", "gone"], "gone: no such file"),
        (["tour"], "memory 'tour' is cleared at the start of every tour: give the tours with "),
        (["cold", "--oracle-phases"], "oracle phases connect the episodes of a tour"),
        (["episodic", "--schedule", "interleaved"], "memory 'episodic' needs one episode at a time"),
        (["cold", "--processes", "0"], "processes: expected at least 1, found 0"),
        (["cold", "--bootstrap", "-1"], "--bootstrap -1: expected the number of samples, 0 for none"),
        (["cold", "--data", "nowhere"], "nowhere: no such folder; say where the data is with --data"),
        (["cold", "--features", "gone.hdf5"], "gone.hdf5: "),
    ],
)
def test_invalid_options_are_refused(run: Path, error_of: ErrorOf, options: list[str], message: str) -> None:
    assert error_of(command(run, options[0], "--out", "o", *options[1:])).startswith(message)


def test_output_folder_that_is_a_file_is_refused(run: Path, error_of: ErrorOf) -> None:
    Path("taken").write_text("a file")
    assert error_of(command(run, "cold", "--out", "taken")).startswith("taken: cannot be ")


@pytest.mark.parametrize("fault", ["width", "source", "pooling", "cut"])
def test_bank_that_does_not_fit_is_refused(cold: Path, run: Path, error_of: ErrorOf, fault: str) -> None:
    header = read_header(cold / "bank.safetensors")
    if fault == "cut":
        Path("bank").write_bytes((cold / "bank.safetensors").read_bytes()[:-100])
    else:
        source = "other.hdf5" if fault == "source" else header.source
        width = 3 if fault == "width" else header.width
        save_bank(MemoryBank(width, pooling="mean" if fault == "pooling" else "max", source=source), "bank")
    message = error_of(command(run, "warm", "--bank", "bank", "--out", "warm"))
    expected = {
        "width": f"bank: expected features of width {header.width}, found 3",
        "source": f"bank: expected features of source '{header.source}', found 'other.hdf5'",
        "pooling": "",
        "cut": "bank: not a complete bank file",
    }
    assert message.startswith(expected[fault])
    assert fault != "pooling" or ("mean" in message and "max" in message)


def test_bank_of_other_scenes_is_refused_unless_allowed(
    cold: Path, run: Path, capsys: Capture, error_of: ErrorOf
) -> None:
    header = read_header(cold / "bank.safetensors")
    bank = MemoryBank(header.width, source=header.source)
    bank.remember("elsewhere", "hall", torch.ones(1, header.width), ["door"])
    save_bank(bank, "other")
    warm = command(run, "warm", "--bank", "other", "--out", "warm", "--limit", "2")
    message = error_of(warm)
    assert message.startswith("other: holds 1 other scenes, such as 'elsewhere', and none of the ")
    assert message.endswith("give a bank of these scenes, or --allow-other-scenes")
    assert main([*warm, "--allow-other-scenes", "--json"]) == 0
    assert "allow_other_scenes" not in json.loads(capsys.readouterr().out)["facts"]


def test_generated_world_is_a_data_folder(monkeypatch: pytest.MonkeyPatch, toy_root: Path) -> None:
    monkeypatch.setattr("esceme.synth.dataset.embedded_world", lambda config, **_: Path(config.size))
    Path("tiny").symlink_to(toy_root)
    options = ["--memory", "none", "--data", "embedded:tiny", "--limit", "2", "--out", "o", "--json"]
    assert main(["evaluate", "stop", "--split", "val_seen", *options]) == 0
    assert read_result("o").means["n"] == 2


def test_unknown_protocol_is_refused_with_the_known_ones(run: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(command(run, "warmest"))
    assert exit_info.value.code == 2 and "two-pass" in capsys.readouterr().err


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
        ({"store": "http://host:87", "robot": "r/../1"}, "r/evaluations/r2r-val_seen-cold-host-87-r-..-1"),
        (
            {"store": "postgresql://me:secret@db.example.org/site", "robot": "r1"},
            "r/evaluations/r2r-val_seen-cold-db.example.org-site-r1",
        ),
        ({"store": "stores/site.db", "robot": "r1"}, "r/evaluations/r2r-val_seen-cold-site-r1"),
        ({"order": "shuffled", "precision": "bf16"}, "r/evaluations/r2r-val_seen-cold-batch8-shuffled-bf16"),
    ],
)
def test_default_folder_is_named_after_the_config(changes: dict[str, Any], folder: str) -> None:
    defaults: dict[str, Any] = {"run": "r", "data": "d", "split": "val_seen", "memory": "cold", "task": "r2r"}
    assert default_folder(EvaluationConfig(**{**defaults, **changes})) == Path(folder)


def test_folders_of_different_banks_and_lists_differ(tmp_path: Path) -> None:
    """Most banks are called bank.safetensors, and lists of episodes are edited."""
    names = set()
    for number, content in enumerate(("1", "2", "1")):
        path = tmp_path / f"{number}" / "file.x"
        path.parent.mkdir()
        path.write_text(content)
        for memory, option in (("warm", "bank"), ("cold", "episode_file")):
            settings: dict[str, Any] = {"run": "r", "data": "d", "split": "val_seen", "memory": memory}
            names.add(default_folder(EvaluationConfig(**settings, task="r2r", **{option: str(path)})).name)
    assert len(names) == 4
    assert {name.rpartition("-")[0] for name in names} == {"r2r-val_seen-warm-file", "r2r-val_seen-cold-file"}


# -- orders and selected episodes ------------------------------------------------------------------------


def test_orders_are_printed_with_mean_and_deviation(run: Path, capsys: Capture) -> None:
    options = ["--orders", "2", "--seed", "1", "--limit", "9", "--first-told", "--out", "orders"]
    assert main(command(run, "cold", *options)) == 0
    out = capsys.readouterr().out
    lengths = [read_result(f"orders/seed{seed}").means["tl"] for seed in (1, 2)]
    lines = [line for line in out.splitlines() if "tl (m)" in line]
    shown = [f"{value:.2f}" for value in (np.mean(lengths), np.std(lengths, ddof=1), *lengths)]
    assert [cell.strip() for cell in lines[0].split("│")[2:5]] == [f"{shown[0]} ± {shown[1]}", *shown[2:]]
    assert (
        len(lines) == 2 and "first told only" in " ".join(out.split()) and "orders: orders/orders.json" in out
    )
    assert main(command(run, "cold", *options, "--json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["means"]["tl"] == pytest.approx(np.mean(lengths)) and printed["means"]["n"] == 9
    assert [order["seed"] for order in printed["orders"]] == [1, 2] and printed["folder"] == "orders"
    assert printed["first_told"]["means"]["n"] == 3 and "spl" in printed["first_told"]["stds"]


def test_orders_have_a_folder_of_their_own(toy_root: Path) -> None:
    run = random_run(Path("run"), toy_root)
    assert main(command(run, "cold", "--orders", "1", "--limit", "3", "--json")) == 0
    assert read_result("run/evaluations/r2r-val_seen-cold-limit3-steps3-orders/seed0").means["n"] == 3


def test_selected_episodes_are_run_and_the_others_counted(run: Path, capsys: Capture) -> None:
    ids = [
        episode.episode_id for episode in read_r2r(Path(os.environ["ESCEME_DATA"]) / "R2R/R2R_val_seen.json")
    ]
    Path("ids.txt").write_text("\n".join(ids[5:2:-1]))
    assert main(command(run, "cold", "--episodes", "ids.txt", "--first-told", "--out", "o")) == 0
    out, err = capsys.readouterr()
    assert [episode.id for episode in read_result("o").episodes] == ids[5:2:-1]
    assert "note: 33 episodes of val_seen are not selected and were not run" in err
    (header,) = (line for line in out.splitlines() if "metric" in line)
    assert "first told" in header


def test_part_of_a_test_split_cannot_be_submitted(run: Path, capsys: Capture) -> None:
    assert main(command(run, "cold", "--limit", "2", "--out", "test", "--json", split="test")) == 0
    assert "submit" not in json.loads(capsys.readouterr().out)


# -- tours -----------------------------------------------------------------------------------------------


def test_agents_with_and_without_memory_are_compared_on_the_same_tours(
    run: Path, plain_run: Path, tours: str, capsys: Capture
) -> None:
    for memory, folder in (("tour", run), ("none", plain_run)):
        assert main(command(folder, memory, "--tours", tours, "--out", memory)) == 0
        out, err = capsys.readouterr()
        means = read_result(memory).means
        assert all(f"{name} (%)" in out and f"{100 * means[name]:.2f}" in out for name in TOUR_METRICS)
        assert "order tours" in out and "on no tour" not in err
    ids = [[episode.id for episode in read_result(memory).episodes] for memory in ("none", "tour")]
    assert ids[0] == ids[1]
    assert main(["compare", "none", "tour", "--draws", "20", "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["measures"]
    assert {*TOUR_METRICS} < {*compared} and compared["t_sr"]["differences"][0]["over_paths"] is None


def test_oracle_phases_are_recorded_and_need_a_memory(
    run: Path, plain_run: Path, tours: str, capsys: Capture, error_of: ErrorOf
) -> None:
    options = ["--tours", tours, "--oracle-phases", "--out", "tour"]
    assert main(command(run, "tour", *options)) == 0
    assert "with oracle phases" in capsys.readouterr().out
    assert read_result("tour").facts["oracle_phases"] is True
    message = error_of(command(plain_run, "none", *options))
    assert message.startswith("oracle phases only fill the memory, which has no effect with 'none'")


def test_tours_of_the_data_command_are_evaluated(toy_root: Path, run: Path) -> None:
    annotations = toy_root / f"R2R/R2R_{SPLIT}.json"
    assert main(["data", "tours", str(annotations), "--out", "own.json", "--longest", "5"]) == 0
    assert main(command(run, "tour", "--tours", "own.json", "--out", "tour")) == 0
    result = read_result("tour")
    assert max(episode.visit for episode in result.episodes) <= 5
    assert len(result.episodes) == len(read_r2r(annotations))


def test_episodes_on_no_tour_are_left_out_with_a_note(plain_run: Path, tours: str, capsys: Capture) -> None:
    tour, *_ = read_tours(tours, SPLIT)
    Path("some.json").write_text(json.dumps({SPLIT: {tour.scene_id: [tour.episode_ids]}}))
    assert main(command(plain_run, "none", "--tours", "some.json", "--json")) == 0
    out, err = capsys.readouterr()
    printed, left_out = json.loads(out), 36 - len(tour)
    assert printed["means"]["n"] == len(tour) and printed["facts"]["left_out"] == left_out
    assert f"note: {left_out} episodes of {SPLIT} are on no tour and were not run" in err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a, b, _: {a: [["9999_0"]]}, "scene '{a}', tour 0: episode '9999_0' is unknown"),
        (
            lambda a, b, ids: {a: [[ids[a][0]], [ids[a][0]]]},
            "tour 1: episode '{first}' is in two tours",
        ),
        (lambda a, b, ids: {a: [[ids[a][0], ids[b][0]]]}, "tour 0: episode '{other}' is in scene '{b}'"),
        (lambda a, b, ids: {a: [[ids[a][0]], []]}, "scene '{a}', tour 1: is empty"),
        (lambda a, b, ids: {}, "split 'val_seen' holds no tours"),
    ],
    ids=["unknown", "twice", "mixed", "empty", "none"],
)
def test_tours_that_contradict_the_episodes_are_refused(
    plain_run: Path, tours: str, error_of: ErrorOf, damage: Any, message: str
) -> None:
    ids = {tour.scene_id: tour.episode_ids for tour in read_tours(tours, SPLIT)}
    a, b, *_ = ids
    Path("t.json").write_text(json.dumps({SPLIT: damage(a, b, ids)}))
    found = error_of(command(plain_run, "none", "--tours", "t.json"))
    assert found.startswith("t.json: ")
    assert message.format(a=a, b=b, first=ids[a][0], other=ids[b][0]) in found


# -- real data -------------------------------------------------------------------------------------------


@pytest.mark.real
def test_tours_of_r2r_are_made_and_evaluated(data_root: Path, capsys: Capture) -> None:
    annotations = data_root / "R2R" / "R2R_val_seen.json"
    assert main(["data", "tours", str(annotations), "--out", "tours.json"]) == 0
    assert "val_seen 56 tours" in capsys.readouterr().out
    arguments = ["evaluate", "shortest", "--split", SPLIT, "--memory", "none", "--tours", "tours.json"]
    assert main([*arguments, "--data", str(data_root), "--out", "out", "--bootstrap", "0", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["means"]["n"] == 1021 and printed["facts"]["left_out"] == 0
    assert printed["means"]["t_sr"] == pytest.approx(1.0) and printed["means"]["t_ndtw"] > 0.99
