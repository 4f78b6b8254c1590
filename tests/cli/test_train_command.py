"""`esceme train` and `esceme recipes`: output, files, resuming and refusals."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import pytest

from esceme.agents import AGENTS, BaseAgentConfig, Seq2Seq, Seq2SeqConfig
from esceme.cli import main
from esceme.config import Experiment, from_json
from esceme.errors import DataError
from esceme.learning import MemoryDropout, TrainingCallback
from esceme.learning.training_log import read_log
from esceme.memory import GraphEncodingConfig
from esceme.recipes import PAPER, RECIPES
from esceme.runs import load_run
from esceme.synth import WorldConfig, embedded_world
from esceme.training import train

pytestmark = pytest.mark.long

Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]
SHORT_RUN = {
    "method": "dagger",
    "iterations": "8",
    "imitation-warmup-iterations": "6",
    "batch": "4",
    "every": "4",
    "limit": "6",
    "checkpoint-every": "4",
}
"""A run of seconds: imitation, DAgger, validations and states."""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def world() -> Path:
    """The tiny embedded world; read-only, copy before damaging."""
    return embedded_world(WorldConfig("tiny"))


@pytest.fixture(scope="module")
def first_run(world: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The folder of a finished run, and what the command printed to standard output and error."""
    folder, out, err = tmp_path_factory.mktemp("runs") / "run", StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert main(train_command("r2r-small-esceme", folder, "--threads", "1")) == 0
    return folder, out.getvalue(), err.getvalue()


@pytest.fixture
def finished_run(first_run: tuple[Path, str, str]) -> Path:
    """A finished run; copy it before resuming."""
    return first_run[0]


def as_arguments(values: Mapping[str, str]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def train_command(recipe: str, out: object, *extra: str, data: str = "embedded:tiny") -> list[str]:
    command = ["train", recipe, "--out", str(out), "--data", data, "--device", "cpu"]
    return [*command, *as_arguments(SHORT_RUN), *extra]


# -- a run -----------------------------------------------------------------------------------------------


def test_run_writes_a_folder_and_prints_a_table_and_the_next_command(
    first_run: tuple[Path, str, str], world: Path
) -> None:
    run, out, err = first_run
    assert "last, iteration 8" in out and "val_unseen" in out and "spl (%)" in out
    command = f"evaluate {run}/best --split val_unseen --memory cold --data {world}"
    assert f"esceme {command}" in out
    assert [f"iteration {number}: val_seen TL " in err for number in (4, 8)] == [True, True]
    assert "8/8" in err and "(best so far)" in err
    for folder in (run, run / "best"):
        assert load_run(folder).config.reader_name == "candidate-enhancing"
    log = read_log(run / "log.jsonl")
    assert [entry["iteration"] for entry in log if entry["kind"] == "validation"] == [4, 8]
    assert main([*command.split(), "--max-steps", "2", "--out", "scores"]) == 0


@pytest.mark.parametrize(("recipe", "memory"), [("ir2r-small", "none"), ("ir2r-small-esceme", "tour")])
def test_run_on_tours_is_validated_on_them_and_prints_the_next_command(
    recipe: str, memory: str, world: Path, capsys: Capture
) -> None:
    assert main(train_command(recipe, "run", "--method", "imitation", "--iterations", "4")) == 0
    out, err = capsys.readouterr()
    assert "iteration 4: val_seen TL " in err and "T_NDTW " in err and "t_spl (%)" in out
    (line,) = (line for line in out.splitlines() if line.startswith("  esceme evaluate "))
    tours = world / "tours" / "tours_iVLN.json"
    arguments = f"run/best --split val_unseen --memory {memory} --data {world} --tours {tours}"
    assert line == f"  esceme evaluate {arguments}"
    assert main([*shlex.split(line)[1:], "--max-steps", "2"]) == 0
    assert "t_ndtw (%)" in capsys.readouterr().out


def test_printed_command_works_with_features_elsewhere_and_a_leaking_memory(
    world: Path, tmp_path: Path, capsys: Capture
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for folder in world.iterdir():
        if folder.name != "features":
            (data / folder.name).symlink_to(folder)
    (features,) = (world / "features").iterdir()
    (tmp_path / "my features.hdf5").symlink_to(features)
    options = ["--features", "my features.hdf5", "--validation.memory", "leaking", "--iterations", "1"]
    options += ["--method", "imitation", "--imitation-warmup-iterations", "0"]
    assert main(train_command("r2r-small-esceme", "run", *options, data=str(data))) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("  esceme evaluate "))
    assert "--features 'my features.hdf5'" in line and "--memory cold" in line
    assert main([*shlex.split(line)[1:], "--max-steps", "1", "--limit", "2"]) == 0


def test_json_is_the_only_output(finished_run: Path, capsys: Capture) -> None:
    assert main(train_command("cvdn-small", "run", "--json")) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["recipe"] == "cvdn-small" and output["out"] == "run" and output["begun_after"] == 0
    assert output["last"]["iteration"] == 8 and output["losses"]["values"]["imitation"] > 0
    scores = output["best"]["values"]["val_seen"]["gp"], output["last"]["values"]["val_seen"]["gp"]
    assert scores[0] >= scores[1]


def test_options_set_fields_of_the_recipe(capsys: Capture) -> None:
    names = "--seed=3 --agent.hidden=64 --training.max-grad-norm 3 --heads 8 --memory-dropout reset"
    flags = "--no-encode-panorama --agent.freeze-text --splits val_seen --attention-dropout None"
    assert main(train_command("r2r-small", "run", *names.split(), *flags.split())) == 0
    stored = from_json(json.loads(Path("run/experiment.json").read_text())["experiment"], Experiment)
    recipe = RECIPES["r2r-small"]
    agent = replace(recipe.navigator.agent, hidden=64, heads=8, attention_dropout=None, freeze_text=True)
    assert stored.navigator == replace(recipe.navigator, agent=agent)
    assert stored.seed == 3 and stored.validation.splits == ("val_seen",)
    assert (stored.training.max_grad_norm, stored.training.batch) == (3.0, 4)
    assert stored.training.memory_dropout == MemoryDropout(mode="reset")
    assert "--memory none" in capsys.readouterr().out


def test_another_agent_or_reader_has_its_default_settings(capsys: Capture) -> None:
    other = "--agent seq2seq --word-width 32 --agent.hidden 64 --reader graph-encoding --method imitation"
    assert main(train_command("r2r-small-esceme", "run", *other.split(), "--iterations", "1")) == 0
    config = load_run("run").config
    assert isinstance(config.agent, Seq2SeqConfig) and isinstance(config.reader, GraphEncodingConfig)
    assert (config.agent.word_width, config.agent.hidden, config.reader.hidden) == (32, 64, None)
    same = ["--agent", "hamt", "--reader", "candidate-enhancing"]
    assert main(train_command("r2r-small-esceme", "same", *same, "--iterations", "1")) == 0
    stored = from_json(json.loads(Path("same/experiment.json").read_text())["experiment"], Experiment)
    assert stored.navigator == RECIPES["r2r-small-esceme"].navigator


def test_agent_that_was_only_added_to_the_table_has_options(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class AddedConfig(BaseAgentConfig):
        hidden: int = 8

    monkeypatch.setitem(AGENTS, "seq2seq", type("Added", (Seq2Seq,), {"Config": AddedConfig}))
    with patch("esceme.cli.train_command.run_training", side_effect=DataError("read")) as run_training:
        assert main(train_command("r2r-small", "run", "--agent", "seq2seq", "--hidden", "9")) == 2
    assert run_training.call_args.args[0].navigator.agent == AddedConfig(hidden=9)


def test_data_folder_defaults_to_the_environment_variable(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESCEME_DATA", str(world))
    values = as_arguments({**SHORT_RUN, "iterations": "1", "splits": "val_seen"})
    assert main(["train", "r2r-small", "--out", "run", *values]) == 0


# -- resuming --------------------------------------------------------------------------------------------


def test_finished_run_is_unchanged(finished_run: Path, world: Path, capsys: Capture) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")}
    assert main(train_command("r2r-small-esceme", finished_run, "--json", data=str(world))) == 0
    out, err = capsys.readouterr()
    assert err == f"{finished_run}: all 8 iterations are done already, so nothing is trained\n"
    output = json.loads(out)
    assert output["begun_after"] == 8 and output["last"]["iteration"] == 8
    assert {path: path.stat().st_mtime_ns for path in finished_run.rglob("*")} == before


@pytest.mark.parametrize("passes_data", [True, False])
def test_finished_run_prints_the_command_that_evaluates_it(
    passes_data: bool, finished_run: Path, world: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    command = train_command("r2r-small-esceme", finished_run)
    if not passes_data:
        index = command.index("--data")
        del command[index : index + 2]
        monkeypatch.setenv("ESCEME_DATA", str(world))
    assert main(command) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    options = f"--split val_unseen --memory cold --data {world}"
    assert line == f"  esceme evaluate {finished_run / 'best'} {options}"
    assert main([*shlex.split(line)[1:], "--out", "scores", "--max-steps", "1", "--limit", "2"]) == 0


def test_unfinished_run_resumes_to_the_same_weights(finished_run: Path, world: Path, capsys: Capture) -> None:
    shutil.copytree(finished_run, "run")
    for name in ("state/00000008.pt", "navigator.json", "weights.safetensors"):
        Path("run", name).unlink()
    assert main(train_command("r2r-small-esceme", "run", "--json", data=str(world))) == 0
    out, err = capsys.readouterr()
    assert "resumes after iteration 4\n" in err
    assert "iteration 8: " in err and "iteration 4: " not in err
    assert json.loads(out)["begun_after"] == 4
    for name in ("weights.safetensors", "best/weights.safetensors", "log.jsonl", "experiment.json"):
        assert Path("run", name).read_bytes() == (finished_run / name).read_bytes(), name


def test_folder_of_another_experiment_is_refused_with_the_differences(
    finished_run: Path, world: Path, error_of: ErrorOf
) -> None:
    message = error_of(
        train_command("r2r-small-esceme", finished_run, "--max-grad-norm", "3", "--dropout", "0.3")
    )
    assert message.startswith(f"{finished_run}: holds a run of another experiment, which differs in ")
    assert "navigator.agent.dropout, training.max_grad_norm; give another --out" in message
    message = error_of(train_command("r2r-small", finished_run))
    assert "navigator.reader.context, navigator.reader.epsilon" in message
    shutil.copytree(finished_run / "best", "imported")
    assert "imported: holds something else than training" in error_of(train_command("r2r-small", "imported"))


def test_interrupted_run_can_be_resumed(world: Path) -> None:
    fields = {**SHORT_RUN, "iterations": "100000", "every": "100000"}
    command = ["train", "r2r-small", "--out", "my run", "--data", str(world), "--device", "cpu"]
    command += as_arguments(fields)
    process = subprocess.Popen(
        [sys.executable, "-m", "esceme", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while not any(Path("my run").glob("state/*.pt")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    iteration = max(int(path.stem) for path in Path("my run").glob("state/*.pt"))
    message = f"interrupted after iteration {iteration}; the same command resumes the run"
    assert err.splitlines()[-1] == message


@pytest.mark.slow
def test_only_the_first_of_several_processes_prints(world: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = train_command("r2r-small-esceme", "run", "--json", data=str(world))
    result = subprocess.run(
        [*launcher, "-m", "esceme", *command], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["last"]["iteration"] == 8
    assert result.stderr.count("iteration 8: val_seen") == 1


# -- losses ----------------------------------------------------------------------------------------------


class LossRecorder(TrainingCallback):
    """Records the losses of imitation."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.losses.append(metrics["imitation"])


@pytest.mark.parametrize(
    "recipe", ["r2r-small-esceme", "r4r-small-esceme", "cvdn-small-esceme", "rxr-small-esceme"]
)
def test_short_run_lowers_the_loss(recipe: str, world: Path) -> None:
    experiment, callback = RECIPES[recipe], LossRecorder()
    experiment = replace(
        experiment,
        training=replace(
            experiment.training,
            method="dagger",
            iterations=22,
            imitation_warmup_iterations=20,
            batch=8,
            warmup_iterations=0,
        ),
        validation=replace(experiment.validation, every=22, limit=3),
    )
    train(experiment, world, "run", callback=callback)
    assert len(callback.losses) == 22
    first, last = fmean(callback.losses[:4]), fmean(callback.losses[16:20])
    assert last < 0.9 * first


# -- warnings ------------------------------------------------------------------------


def test_row_of_the_paper_without_pretraining_is_noted(world: Path, capsys: Capture) -> None:
    # The command fails after the note: a split is missing.
    capsys.readouterr()
    assert main(train_command("r4r-hamt", "run")) == 2
    err = capsys.readouterr().err
    assert "starts from random weights; the paper's start from HAMT's pre-training: --start RUN" in err
    assert "has no pth_vit_base_patch16_224_imagenet_r2r.e2e.ft.22k.hdf5: small.hdf5 is used instead" in err
    assert main(train_command("r4r-hamt", "run", "--start", "pretrained")) == 2
    assert "random weights" not in capsys.readouterr().err


# -- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("r2r-smal", "no recipe 'r2r-smal'; did you mean r2r-small"),
        ("r2r-small --bacth 3", "Unrecognized options: --bacth, 3"),
        ("r2r-small --batch", "Missing value for argument '--batch/--training.batch'"),
        ("r2r-small --batch many", "Error parsing --batch/--training.batch: "),
        ("r2r-small --method dager", "invalid choice 'dager' for argument '--method/--training.method'"),
        ("r2r-small-esceme --hidden 64", "--agent.hidden INT"),
        ("r2r-small --agent random", "invalid choice 'random' for argument '--agent'"),
        ("r2r-small --agent.vocabulary 3", "Unrecognized options: --agent.vocabulary, 3"),
        ("r2r-small r4r-small", "Unrecognized options: r4r-small"),
        ("--seed 3", "expected a recipe first: esceme train RECIPE [OPTIONS]"),
        ("r2r-small --batch -3", "batch: expected at least 1, found -3"),
        ("r2r-small --threads 0", "--threads 0: expected at least 1"),
        ("r2r-small --oracle-phases", "oracle_phases: there are no tours; expected memory 'tour'"),
        ("r2r-small --best t_sr+t_spl", "best 't_sr+t_spl': there are no tours; expected memory 'tour'"),
        ("ir2r-small --validation.tours gone.json", "gone.json: no such file"),
        ("r2r-small --task r3r", "task 'r3r' is unknown; expected one of r2r, "),
        ("r2r-small --splits val_seen test", "split 'test': its goals are withheld"),
        ("r2r-small --start nowhere", "nowhere: is not a folder; expected a run folder"),
        ("r2r-small --features typo.hdf5", "--features typo.hdf5: no such file, and "),
        ("r2r-small --data nowhere", "nowhere: no such folder; say where the data is with --data"),
    ],
)
def test_faulty_command_is_refused_and_writes_nothing(
    arguments: str, message: str, world: Path, error_of: ErrorOf
) -> None:
    recipe, *extra = arguments.split()
    assert message in error_of(train_command(recipe, "run", *extra))


def test_start_from_another_agent_is_refused(finished_run: Path, world: Path, error_of: ErrorOf) -> None:
    command = train_command("r2r-duet-small", "run", "--start", str(finished_run), data=str(world))
    assert ": HAMT does not fit the experiment that starts from it, which trains DUET: " in error_of(command)


def test_missing_gpu_is_refused(world: Path, error_of: ErrorOf) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    message = error_of(train_command("r2r-small", "run", "--device", "cuda"))
    assert message == "--device cuda: torch finds no GPU here; give --device cpu"


@pytest.mark.parametrize(
    ("recipe", "removed", "message"),
    [
        ("r2r-hamt", "R2R/prevalent_aug_train_enc.json", "no split 'train' of prevalent"),
        (
            "r4r-hamt-esceme",
            "",
            "no split 'val_unseen_sampled' of r4r; splits that are here: train, val_seen, ",
        ),
        (
            "cvdn-small",
            "CVDN/train.json",
            "no split 'train' of cvdn; splits that are here: val_seen, val_unseen",
        ),
        ("rxr-small-esceme", "RxR/rxr_val_seen_guide.jsonl.gz", "no split 'val_seen' of rxr"),
        ("r2r-small", "features/small.hdf5", "expected one feature file, found none"),
        ("r2r-semantic-small", "", "R2R_trainval"),
    ],
)
def test_missing_data_is_named(
    recipe: str, removed: str, message: str, world: Path, tmp_path: Path, error_of: ErrorOf
) -> None:
    shutil.copytree(world, tmp_path / "data", ignore=shutil.ignore_patterns("panoramas"))
    if removed:
        path = tmp_path / "data" / removed
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    error = error_of(train_command(recipe, "run", data="data"))
    assert error.startswith("data") and message in error


def test_features_of_another_width_are_refused(world: Path, error_of: ErrorOf) -> None:
    extra = ["--augmentation", "", "--agent.text-layers", "1", "--agent.cross-layers", "1"]
    message = error_of(train_command("r2r-hamt", "run", *extra))
    assert "small.hdf5: features of width " in message and "and this network reads 768" in message


def test_command_without_a_folder_is_refused(error_of: ErrorOf) -> None:
    assert "Missing from esceme train: --out PATH" in error_of(["train", "r2r-small"])


# -- help and recipes ------------------------------------------------------------------------------------


def test_help_lists_the_options_with_the_values_of_the_recipe(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["train", "cvdn-small-esceme", "--help"])
    assert exit_info.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: esceme train") and "--out" in printed
    text = " ".join(printed.replace("│", " ").split())
    keep = "--keep {first,last} Which end of a longer instruction is kept. (default: last)"
    assert keep in text
    assert "--batch INT, --training.batch INT" in text and "--best {" in text and "(default: gp)" in text
    assert "--agent.vocabulary" not in text


def test_recipes_are_listed(capsys: Capture) -> None:
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in RECIPES)
    assert main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert listed == [{"name": name, "about": recipe.about} for name, recipe in RECIPES.items()]


@pytest.mark.parametrize("name", ["r2r-hamt-esceme", "rxr-small", "r2r-semantic-small-esceme"])
def test_recipe_is_described_with_fields_differences_and_command(name: str, capsys: Capture) -> None:
    recipe = RECIPES[name]
    assert main(["recipes", name]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}: {recipe.about}\n")
    assert f"--training.learning-rate {recipe.training.learning_rate}" in " ".join(printed.split())
    assert all(difference[:40] in printed for difference in recipe.differences)
    assert main(["recipes", name, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["command"] in printed and output["command"].startswith(f"esceme train {name} ")
    assert ("--start PRETRAINED" in output["command"]) == (name in PAPER)
    assert output["differences"] == list(recipe.differences)
    assert output["fields"]["max_tokens"] == recipe.navigator.max_tokens
    assert output["fields"]["reader"] == recipe.navigator.reader_name
    assert output["fields"]["vocabulary_size"] is None and "agent.vocabulary" not in output["fields"]


def test_unknown_recipe_is_refused(capsys: Capture) -> None:
    assert main(["recipes", "rxr-smal"]) == 2
    assert capsys.readouterr().err.startswith("error: no recipe 'rxr-smal'; did you mean rxr-small")
