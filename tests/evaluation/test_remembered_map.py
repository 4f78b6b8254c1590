"""Evaluations of DUET whose maps begin with the memory, under every memory protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from esceme.agents import DuetConfig
from esceme.evaluation import Result, evaluate
from esceme.memory import MapReaderConfig, NoMemoryConfig, ReaderConfig
from esceme.runs import NavigatorConfig, load_run, save_run
from fixtures.toy_dataset import SMALL, WIDTH, ToyDataset

Paths = dict[str, list[str]]


def write_run(folder: Path, dataset: ToyDataset, reader: ReaderConfig) -> Path:
    """A run of a small DUET with random weights; the same weights for every reader."""
    sizes = {name: size for name, size in SMALL.items() if name in DuetConfig.__dataclass_fields__}
    known = load_run(dataset.run).config
    agent = DuetConfig(**sizes, feature_width=WIDTH, vocabulary=known.agent.limits.vocabulary)  # type: ignore[arg-type]
    config = NavigatorConfig(agent=agent, reader=reader, max_steps=6, feature_source=known.feature_source)
    return save_run(folder, config.build(seed=1), config)


def paths_of(result: Result) -> Paths:
    return {episode.id: [name for name, *_ in episode.trajectory] for episode in result.episodes}


@pytest.fixture(scope="module")
def runs(dataset: ToyDataset, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        name: write_run(folder / name, dataset, reader)
        for name, reader in (("none", NoMemoryConfig()), ("map", MapReaderConfig()))
    }


def evaluated(dataset: ToyDataset, run: Path, out: Path, memory: str, **changes: object) -> Result:
    return evaluate(dataset.config(memory, run=str(run), **changes), out)


def test_memory_changes_trajectories_and_its_absence_does_not(
    dataset: ToyDataset, runs: dict[str, Path], tmp_path: Path
) -> None:
    plain = paths_of(evaluated(dataset, runs["none"], tmp_path / "none", "none"))
    for protocol in ("episodic", "masked"):
        result = evaluated(dataset, runs["map"], tmp_path / protocol, protocol)
        assert paths_of(result) == plain, protocol
    cold = paths_of(evaluated(dataset, runs["map"], tmp_path / "cold", "cold"))
    oracle = paths_of(evaluated(dataset, runs["map"], tmp_path / "oracle", "oracle"))
    assert cold != plain and oracle not in (plain, cold)


@pytest.mark.parametrize("protocol", ["cold", "two-pass", "tour", "warm"])
def test_results_do_not_depend_on_the_batch(
    dataset: ToyDataset, runs: dict[str, Path], tmp_path: Path, protocol: str
) -> None:
    changes: dict[str, object] = {"tours": dataset.tours} if protocol == "tour" else {}
    if protocol == "warm":
        evaluated(dataset, runs["map"], tmp_path / "first", "cold")
        changes["bank"] = str(tmp_path / "first" / "bank.safetensors")
    results = [
        paths_of(evaluated(dataset, runs["map"], tmp_path / str(batch), protocol, batch=batch, **changes))
        for batch in (1, 4)
    ]
    assert results[0] == results[1]
