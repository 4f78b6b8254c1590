"""Evaluation in the store of a service: the walks and scores of a bank, also if the service is killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from esceme.evaluation import evaluate
from esceme.memory import MemoryStore, StoredObservation
from esceme.memory.remote_store import RemoteStore
from fixtures.services import TOKEN, RunningService, serving
from fixtures.toy_dataset import ToyDataset

pytestmark = pytest.mark.long


def predictions(folder: Path) -> tuple[bytes, bytes]:
    """Return trajectories and the final memory, as bytes."""
    return (folder / "predictions.json").read_bytes(), (folder / "bank.safetensors").read_bytes()


def killing(service: RunningService, call: int) -> Callable[..., int]:
    """Return `RemoteStore.remember` that kills the service before its n-th call."""
    remember, calls = RemoteStore.remember, count()

    def remember_without(store: RemoteStore, observations: Sequence[StoredObservation]) -> int:
        if next(calls) == call:
            service.stop(signal.SIGKILL)
        return remember(store, observations)

    return remember_without


def test_walks_and_memory_are_those_of_a_bank_while_the_service_is_there_or_not(
    dataset: ToyDataset, evaluated: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESCEME_TOKEN", TOKEN)
    plain, digests = evaluated(), []
    for name in ("steady", "killed"):
        monkeypatch.setenv("ESCEME_OUTBOX", str(tmp_path / f"{name}-outbox"))
        path, folder = tmp_path / f"{name}.db", tmp_path / name / "day"
        with serving(path) as service, monkeypatch.context() as patch:
            if name == "killed":
                patch.setattr(RemoteStore, "remember", killing(service, 4))
            result = evaluate(dataset.config(store=service.address, robot="r1"), folder)
        assert result.episodes == plain.result.episodes
        assert predictions(folder) == predictions(plain.folder)
        if name == "killed":
            with serving(path, port=service.port), closing(RemoteStore(service.address)) as client:
                assert client.num_waiting > 0 and client.sync()
        with MemoryStore.open(path) as store:
            digests.append(store.digest)
    assert digests[0] == digests[1]
