"""Baseline implementations of the benchmarks give the same results as the package; timings add up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from esceme.agents import AGENTS
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig
from esceme.navigator import Navigator
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.r2r import read_r2r
from fixtures.toy_dataset import SMALL, SPLIT, WIDTH, write_toy_dataset

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def _benchmarks_importable() -> Iterator[None]:
    """Make the `benchmarks` folder importable; it is not part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY)
        yield
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


@pytest.mark.parametrize("file", sorted(REPOSITORY.glob("benchmarks/*.py")), ids=lambda file: file.stem)
def test_benchmark_can_be_imported(file: Path) -> None:
    assert import_module(f"benchmarks.{file.stem}")


@pytest.mark.parametrize("name", ["scene_loading", "mattersim", "scoring", "observation"])
def test_results_equal_those_of_the_baseline(
    name: str, toy_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = import_module(f"benchmarks.{name}")
    monkeypatch.setattr(benchmark, "both_sides", lambda *_: (1.0, 1.0))
    assert list(benchmark.run(toy_root))  # asserts that both are equal


def test_page_of_results_is_measured(toy_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = import_module("benchmarks.result_page")
    monkeypatch.setattr(
        benchmark, "time_in_chromium", lambda file: benchmark.ChromiumTimes(1.0, 0.5, [20.0] * 20, 9.0)
    )
    results = list(benchmark.run(toy_root, split="val_seen"))
    assert [result.value for result in results][2:] == [1.0, 20.0, 20.0]
    assert "50 frames a second" in results[3].bound


@pytest.fixture(scope="module")
def training(_benchmarks_importable: None) -> ModuleType:
    return import_module("benchmarks.training")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy_dataset(tmp_path_factory.mktemp("dataset")).root


@pytest.fixture(scope="module")
def world() -> Path:
    return embedded_world(WorldConfig("tiny"))


def test_baseline_training_equals_the_trainer(training: ModuleType, world: Path) -> None:
    experiment = training.small_experiment(training.NO_DROPOUT, **training.FIXED_WEIGHTS, batch=4)
    run = training.prepare_run(experiment, world)
    ours, baseline = run.trainer, training.build_baseline(run, experiment)
    for iteration in range(4):  # the memory grows, the weights stay
        assert training.compare_iteration(ours, baseline, iteration).difference < 1e-5
        gradients = {name: parameter.grad for name, parameter in baseline.navigator.named_parameters()}
        for name, parameter in ours.navigator.named_parameters():
            assert (parameter.grad is None) == (gradients[name] is None), name
            if parameter.grad is not None:
                atol = 1e-5 * max(1.0, float(parameter.grad.abs().max()))
                np.testing.assert_allclose(gradients[name], parameter.grad, rtol=0, atol=atol, err_msg=name)
    visited = ours.memory.bank.visited.nonzero().flatten().tolist()
    assert set(baseline.memory) == {run.atlas.name(viewpoint) for viewpoint in visited}


def test_forward_at_once_equals_forward_stepwise(training: ModuleType, world: Path) -> None:
    run = training.prepare_run(training.small_experiment(training.NO_DROPOUT), world)
    assert training.imitation_of(run, 6).compare().difference < 1e-5


def test_two_processes_measure_waiting_and_communication(training: ModuleType, world: Path) -> None:
    experiment = training.small_experiment(batch=4)
    (alone,) = training.measure_training(1, [experiment], world, num_warmup=0, num_measured=2)
    (both,) = training.measure_training(2, [experiment], world, num_warmup=0, num_measured=2)
    assert len(alone) == len(both) == 2
    # The quieter iteration counts: wall-clock times depend on what else the machine does.
    assert min((times.waiting + times.exchanging) / times.total for times in alone) < 0.01
    assert all(0 < times.exchanging < times.waiting + times.exchanging < times.total for times in both)


def test_both_graph_encodings_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    benchmark = import_module("benchmarks.graph_encoding")
    reader = benchmark.random_reader()
    slow, fast = benchmark.measure_size(25, reader)  # asserts that both are equal
    assert slow is not None and slow > 0 and fast > 0
    monkeypatch.setattr(benchmark, "MAX_BYTES", 0)
    assert benchmark.measure_size(25, reader)[0] is None
    monkeypatch.setattr(benchmark, "all_pairs", lambda *_: torch.ones(1, benchmark.WIDTH))
    monkeypatch.setattr(benchmark, "MAX_BYTES", 1e9)
    with pytest.raises(AssertionError):
        benchmark.measure_size(25, reader)


def test_operations_of_linear_layers_are_counted() -> None:
    benchmark = import_module("benchmarks.duet_evaluation")
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.inference_mode():
        counted = benchmark.count_operations(lambda: layer(torch.ones(2, 3, 8)))
    assert counted == pytest.approx(2 * 2 * 3 * (4 * 8 * 8 + 2 * 8 * 16) / 1e9)


@pytest.mark.parametrize("agent", ["hamt", "tdstp", "duet"])
def test_lock_step_decisions_equal_those_of_lanes(
    agent: str, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = import_module("benchmarks.tdstp_evaluation")  # holds the loop of HAMT, too
    is_jump = []

    class RecordingPlanner(benchmark.LockStepPlanner):  # type: ignore[misc, name-defined]
        def move(self, item, choice):  # type: ignore[no-untyped-def]
            is_jump.append(choice >= item.width)
            super().move(item, choice)

    torch.manual_seed(3)
    kind = AGENTS[agent].Config
    sizes = {name: size for name, size in SMALL.items() if name in kind.__dataclass_fields__}
    config = kind(**sizes, feature_width=WIDTH, vocabulary=100)
    navigator = Navigator(AGENTS[agent](config), CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH)))
    explorer = import_module("benchmarks.lockstep_duet").LockStepExplorer
    loops = {"tdstp": {"loop": RecordingPlanner}, "duet": {"loop": explorer}}
    loop = loops.get(agent, {})
    work = benchmark.EvaluationWorkload(dataset, navigator, **loop, per_scene=2)
    episodes = read_r2r(dataset / "R2R" / f"R2R_{SPLIT}.json")
    for paths in ({episode.episode_id: episode.reference_path for episode in episodes}, None):
        *ratios, _ = benchmark.throughput(work, paths, rounds=1, packed=True)  # asserts equal decisions
        assert len(ratios) == 2 and all(ratio.baseline > 0 and ratio.ours > 0 for ratio in ratios)
    if agent == "tdstp":
        assert any(is_jump) and not all(is_jump)
        monkeypatch.setattr(benchmark.LockStepPlanner, "restrict", lambda *_: None)
        with pytest.raises(AssertionError):
            list(benchmark.throughput(work, None, rounds=1))
