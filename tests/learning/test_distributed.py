"""Several processes train like one: the same gradients, memory and validation scores, and no hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from shutil import copytree

import msgspec
import numpy as np
import pytest
import torch

from esceme.config import as_json
from esceme.errors import ConfigError
from esceme.learning import ProcessGroup
from esceme.learning.distributed import local_device
from esceme.learning.training_log import read_log
from esceme.training import train
from fixtures.process_utils import (
    IterationResult,
    remember_different_steps,
    run_in_group,
    run_iterations,
    train_and_return_weights,
    train_in_group,
    train_until_rank_1_dies,
    validate_in_group,
)
from fixtures.toy_dataset import NO_DROPOUT, run_files, small_experiment, states

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("agent", "method", "mode", "reader"),
    [
        pytest.param("hamt", "imitation", "as-released", "candidate-enhancing", marks=pytest.mark.slow),
        pytest.param("hamt", "imitation", "sampled", "candidate-enhancing", marks=pytest.mark.slow),
        pytest.param("hamt", "dagger", "forgetting", "candidate-enhancing", marks=pytest.mark.slow),
        ("hamt", "dagger", "sampled", "candidate-enhancing"),
        ("hamt", "imitation+a2c", "reset", "candidate-enhancing"),
        pytest.param("hamt", "imitation+a2c", "sampled", "candidate-enhancing", marks=pytest.mark.slow),
        ("hamt", "imitation", "sampled", "graph-encoding"),
        ("hamt", "imitation+a2c", "as-released", "both"),
        ("hamt", "imitation+a2c", "as-released", "none"),
        ("tdstp", "dagger", "forgetting", "both"),
        ("tdstp", "imitation+a2c", "sampled", "candidate-enhancing"),
    ],
)
def test_gradients_equal_those_of_one_process(
    training_data: Path, agent: str, method: str, mode: str, reader: str
) -> None:
    experiment = small_experiment(
        agent=agent,
        oracle_weight=0.4 if agent == "tdstp" else 0.0,
        method=method,
        mode=mode,
        reader=reader,
        agent_settings=NO_DROPOUT,
        feature_dropout=0.0,
        max_grad_norm=1e9,
        learning_rate=1e-12,  # the same weights in every iteration, but another memory
    )
    single = run_iterations(experiment, training_data, 4)
    ranks = run_in_group(run_iterations, 2, experiment, training_data, 4)
    for expected, rank_0, rank_1 in zip(single, *ranks, strict=True):
        assert_same_gradients(rank_0, rank_1, tolerance=0.0)
        assert_same_gradients(rank_0, expected, tolerance=1e-5)
        assert expected.remembered == rank_0.remembered == rank_1.remembered
        assert rank_0.metrics == rank_1.metrics == pytest.approx(expected.metrics, rel=1e-4, abs=1e-6)


def assert_same_gradients(one: IterationResult, other: IterationResult, *, tolerance: float) -> None:
    assert one.gradients.keys() == other.gradients.keys()
    for name, gradient in one.gradients.items():
        expected = other.gradients[name]
        assert (gradient is None) == (expected is None), name
        if gradient is not None:
            within = tolerance * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=within, err_msg=name)


def test_ranks_share_their_memory_at_every_step(training_data: Path) -> None:
    (rank_0, sums), (rank_1, same_sums) = run_in_group(remember_different_steps, 2, training_data)
    after_step_1 = [True, True, False, False, False, False]
    after_step_2 = [True, True, False, True, False, False]
    assert rank_0 == [after_step_1, after_step_2]
    assert rank_1 == [after_step_1, after_step_2, after_step_2]
    assert sums == same_sums == [2.0, 10.0]


def test_all_ranks_end_with_the_same_weights_and_one_writes(training_data: Path, tmp_path: Path) -> None:
    experiment = small_experiment(mode="sampled")
    rank_0, rank_1 = run_in_group(train_and_return_weights, 2, experiment, training_data, tmp_path)
    assert rank_0.keys() == rank_1.keys()
    assert all(np.array_equal(weights, rank_1[name]) for name, weights in rank_0.items())
    assert run_files(tmp_path)["log.jsonl"].count(b"\n") == 3
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1


def test_run_resumes_after_a_rank_died(training_data: Path, tmp_path: Path) -> None:
    experiment, killed = small_experiment(mode="sampled"), tmp_path / "killed"
    run_in_group(train_in_group, 2, experiment, training_data, tmp_path / "whole")
    rank_0, rank_1 = run_in_group(train_until_rank_1_dies, 2, experiment, training_data, killed, 5)
    assert rank_1 is None
    assert rank_0.startswith("TrainingError: process 0 of 2 lost the connection")
    assert rank_0.endswith("start all processes again to resume from the last checkpoint")
    assert max(state["iteration"] for state in states(killed).values()) == 4
    single = train(experiment, training_data, copytree(killed, tmp_path / "single"))
    assert len(read_log(single / "log.jsonl")) == 3
    assert run_in_group(train_in_group, 2, experiment, training_data, killed) == [None, None]
    assert run_files(killed) == run_files(tmp_path / "whole")


def test_error_of_the_main_process_ends_the_others(training_data: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    rank_0, rank_1 = run_in_group(train_in_group, 2, small_experiment(), training_data, tmp_path / "run")
    assert rank_0.startswith("DataError") and "cannot be written" in rank_0
    assert rank_1.startswith("TrainingError: process 1 of 2 lost the connection")


def test_batch_must_be_divisible_by_the_number_of_processes(training_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch 5 cannot be divided evenly among 2 processes"):
        ProcessGroup(0, 2).shard(range(5))
    assert [ProcessGroup(rank, 2).shard("abcd") for rank in range(2)] == [["a", "b"], ["c", "d"]]
    errors = run_in_group(train_in_group, 2, small_experiment(batch=3), training_data, tmp_path / "run")
    assert all("give --batch a multiple of 2" in error for error in errors)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("memory", ["cold", "two-pass", "episodic", "leaking"])
def test_validation_scores_equal_those_of_one_process(training_data: Path, memory: str) -> None:
    experiment = small_experiment()
    expected = validate_in_group(experiment, training_data, memory)
    assert run_in_group(validate_in_group, 2, experiment, training_data, memory) == [expected, expected]
    assert bool(expected[1]) == (memory == "leaking")


PROGRAM = """
import sys
from pathlib import Path
from esceme.config import Experiment, from_json
from esceme.files import read_json
from esceme.training import train

if __name__ == "__main__":
    train(from_json(read_json(Path(sys.argv[1]), dict), Experiment), sys.argv[2], sys.argv[3])
"""


@pytest.mark.slow
def test_torchrun_starts_one_run(training_data: Path, tmp_path: Path) -> None:
    experiment = small_experiment(iterations=2)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "experiment.json").write_bytes(msgspec.json.encode(as_json(experiment)))
    program = [tmp_path / "program.py", tmp_path / "experiment.json", training_data, tmp_path / "run"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*torchrun, *map(str, program)], check=True, capture_output=True)
    run_in_group(train_in_group, 2, experiment, training_data, tmp_path / "same")
    assert run_files(tmp_path / "run") == run_files(tmp_path / "same")


def test_single_process_needs_no_exchange() -> None:
    group = ProcessGroup.from_environment()
    assert group == ProcessGroup() and group.is_main and not ProcessGroup(1, 2).is_main
    assert group.all_reduce_sum([1.5, 2.0]) == [1.5, 2.0]
    assert group.all_gather("value") == ["value"] and group.assert_equal(3) == 3
    weight = torch.nn.Parameter(torch.zeros(2))
    group.all_reduce_gradients([weight])
    assert weight.grad is None


def test_local_rank_selects_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_device("cuda") == torch.device("cuda") and local_device("cpu") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert local_device("cuda") == torch.device("cuda", 3)
    assert local_device("cuda:1") == torch.device("cuda", 1)  # an explicit device is kept
    assert local_device("cpu") == torch.device("cpu")


def test_missing_torchrun_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ConfigError, match=r"the 2 processes did not find each other .*with torchrun"):
        ProcessGroup.from_environment()
