"""Processes of torchrun evaluate like one: the same files, no trajectory twice, and clear errors."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from esceme.errors import ConfigError
from esceme.files import folder_lock, read_complete_lines
from esceme.learning import ProcessGroup
from esceme.sharded_evaluation import run_trajectories
from fixtures.process_utils import evaluate_in_group, run_in_group
from fixtures.random_runs import random_run
from fixtures.toy_dataset import EPISODES, SPLIT, ToyDataset

pytestmark = pytest.mark.long

Evaluate = Callable[..., Any]
FILES = ("result.json", "predictions.json", "bank.safetensors", "journal.jsonl")


def assert_same_files(folder: Path, expected: Path) -> None:
    """Both folders hold the same result, and journals with the same lines, in any order."""
    assert {path.name for path in folder.iterdir()} == {*FILES}
    for name in FILES[:-1]:
        assert (folder / name).read_bytes() == (expected / name).read_bytes()
    one, other = (sorted(read_complete_lines(path / "journal.jsonl")) for path in (folder, expected))
    assert one == other


@pytest.mark.parametrize(
    ("memory", "size", "processes"),
    [("two-pass", 2, 1), ("cold", 7, 1), pytest.param("cold", 2, 2, marks=pytest.mark.slow)],
)
def test_ranks_give_the_files_of_one_process(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, memory: str, size: int, processes: int
) -> None:
    """There are five scenes: of seven ranks, two have nothing to run."""
    run = partial(evaluate_in_group, processes=processes)
    assert run_in_group(run, size, [dataset.config(memory)] * size, [tmp_path] * size) == [None] * size
    assert_same_files(tmp_path, evaluated(memory).folder)


@pytest.mark.parametrize("size", [2, 3])
def test_evaluation_continues_after_a_rank_died(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, size: int
) -> None:
    configs, out = [dataset.config("two-pass", batch=1)] * 3, [tmp_path] * 3
    rank_0, rank_1 = run_in_group(partial(evaluate_in_group, dies_after=4), 2, configs, out)
    assert rank_1 is None
    assert rank_0.startswith("EvaluationError: process 0 of 2 lost the connection")
    assert rank_0.endswith("finished trajectories are kept, and the same command continues")
    parts = {path.parent.name: read_complete_lines(path) for path in tmp_path.glob("*/journal.jsonl")}
    assert len(parts["rank1"]) == 1 + 4 and len(parts["rank0"]) > 1
    assert run_in_group(evaluate_in_group, size, configs, out) == [None] * size
    assert_same_files(tmp_path, evaluated("two-pass", batch=1).folder)
    journal = set(read_complete_lines(tmp_path / "journal.jsonl"))
    assert journal.issuperset(line for lines in parts.values() for line in lines)  # not run again


def test_finished_evaluation_is_not_repeated(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    journal = (evaluated("cold").folder / "journal.jsonl").read_bytes()
    (tmp_path / "journal.jsonl").write_bytes(journal)
    assert run_in_group(evaluate_in_group, 2, [dataset.config()] * 2, [tmp_path] * 2) == [None, None]
    assert_same_files(tmp_path, evaluated("cold").folder)
    assert (tmp_path / "journal.jsonl").read_bytes() == journal


def test_ranks_with_other_weights_or_data_are_refused(dataset: ToyDataset, tmp_path: Path) -> None:
    other = ToyDataset(
        copytree(dataset.root, tmp_path / "data"), random_run(tmp_path / "run", dataset.root, seed=1)
    )
    path = other.root / "R2R" / f"R2R_{SPLIT}.json"
    path.write_text(path.read_text().replace("the", "a", 1))
    configs = [dataset.config(), other.config(max_steps=9)]
    errors = run_in_group(evaluate_in_group, 2, configs, [tmp_path / "out"] * 2)
    assert errors[0] == errors[1] and errors[0].startswith("ConfigError: process 1 has other data, weights")
    for name in ("hashes.weights", "hashes.data", "max_steps"):
        assert name in errors[0]
    assert "hashes.features" not in errors[0]
    assert not (tmp_path / "out").exists()


def test_folder_that_is_not_shared_is_refused(dataset: ToyDataset, tmp_path: Path) -> None:
    errors = run_in_group(evaluate_in_group, 2, [dataset.config()] * 2, [tmp_path / "a", tmp_path / "b"])
    for rank, error in enumerate(errors):
        assert f"process {rank} does not see the folder of process {1 - rank}" in error


def test_rank_that_still_runs_is_named(dataset: ToyDataset, tmp_path: Path) -> None:
    with folder_lock(tmp_path / "rank1", "evaluation"):
        rank_0, rank_1 = run_in_group(evaluate_in_group, 2, [dataset.config()] * 2, [tmp_path] * 2)
    assert "rank1: another evaluation is running there (process" in rank_0
    assert rank_1.startswith("EvaluationError: process 1 of 2 lost the connection")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": "interleaved"}, "use one process"),
        ({"precision": "bf16"}, "use one process"),
        ({"store": "site.db", "memory": "cold"}, "runs on one machine"),
    ],
)
def test_evaluations_that_cannot_be_divided_are_refused(
    dataset: ToyDataset, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_trajectories(dataset.config(**changes), tmp_path, ProcessGroup(0, 2))


@pytest.mark.slow
def test_two_nodes_of_torchrun_print_one_result(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    launcher += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
    command = ["evaluate", str(dataset.run), "--split", SPLIT, "--memory", "cold", "--json"]
    command += ["--data", str(dataset.root), "--out", str(tmp_path)]
    nodes = [
        subprocess.Popen(
            [*launcher, "--node-rank", str(rank), "-m", "esceme", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [node.communicate(timeout=600) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert f'"episodes":{EPISODES}' in outputs[0][0].replace(" ", "") and outputs[1][0] == ""
    assert_same_files(tmp_path, evaluated("cold").folder)
