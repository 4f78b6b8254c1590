"""What tests of evaluation share: a dataset of small houses, and evaluations in it, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from esceme.evaluation import Result, evaluate
from esceme.memory import MemoryBank, load_bank
from fixtures.toy_dataset import ToyDataset, write_toy_dataset


class Evaluated(NamedTuple):
    """An evaluation that has been made; its folder is read-only."""

    result: Result
    folder: Path

    @property
    def bank(self) -> MemoryBank:
        """What was remembered in the end."""
        return load_bank(self.folder / "bank.safetensors")


Evaluate = Callable[..., Evaluated]


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ToyDataset:
    """A data folder of five scenes and a small run for it; read-only."""
    return write_toy_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="session")
def evaluated(dataset: ToyDataset, tmp_path_factory: pytest.TempPathFactory) -> Evaluate:
    """Evaluate in the dataset, with the fields of a config."""
    made: dict[str, Evaluated] = {}

    def give(memory: str = "cold", **changes: object) -> Evaluated:
        config = dataset.config(memory, **changes)
        if (key := repr(config)) not in made:
            folder = tmp_path_factory.mktemp(memory)
            made[key] = Evaluated(evaluate(config, folder), folder)
        return made[key]

    return give
