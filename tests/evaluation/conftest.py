"""Shared fixtures: a toy dataset and cached evaluations of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from esceme.evaluation import Result, evaluate
from esceme.memory import MemoryBank, load_bank
from fixtures.process_utils import CONTEXT
from fixtures.toy_dataset import ToyDataset, write_toy_dataset


class Evaluated(NamedTuple):
    """A finished evaluation; its folder is read-only."""

    result: Result
    folder: Path

    @property
    def bank(self) -> MemoryBank:
        """The memory after the last episode."""
        return load_bank(self.folder / "bank.safetensors")


Evaluate = Callable[..., Evaluated]


@pytest.fixture(autouse=True)
def _forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork workers from a server that has imported torch; spawned ones, as in use, import it for seconds."""
    monkeypatch.setattr("esceme.workers.get_context", lambda method: CONTEXT)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ToyDataset:
    """A data folder of five scenes and a small run for it; read-only."""
    return write_toy_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="session")
def evaluated(dataset: ToyDataset, tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    """Evaluate the dataset with fields of a config; results are cached."""
    cache: dict[str, Evaluated] = {}

    def evaluate_once(memory: str = "cold", **changes: object) -> Evaluated:
        config = dataset.config(memory, **changes)
        if (key := repr(config)) not in cache:
            folder = tmp_path_factory.mktemp(memory)
            cache[key] = Evaluated(evaluate(config, folder), folder)
        return cache[key]

    return evaluate_once
