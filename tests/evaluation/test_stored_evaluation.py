"""Evaluation in a memory store: the walks and scores of a bank, also after kills and in several processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from esceme.errors import ConfigError, MemoryMismatch
from esceme.evaluation import evaluate
from esceme.evaluation.context import EvaluationConfig
from esceme.memory import MemoryStore, load_bank
from esceme.world.features import open_features, write_features
from fixtures.toy_dataset import ToyDataset

pytestmark = pytest.mark.long

Evaluate = Callable[..., Any]

PROGRAM = """
import os, signal, sys
import msgspec
from esceme.evaluation import EvaluationConfig, evaluate
from esceme.memory import MemoryStore

remember, calls = MemoryStore.remember, 0

def remember_and_die(store, observations):
    global calls
    calls += 1
    done = remember(store, observations) if calls <= int(sys.argv[3]) or sys.argv[4] == "after" else 0
    if calls > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    return done

MemoryStore.remember = remember_and_die
evaluate(msgspec.json.decode(sys.argv[1], type=EvaluationConfig), sys.argv[2])
"""


def evaluate_and_kill(config: EvaluationConfig, folder: Path, calls: int, moment: str) -> None:
    """Evaluate in a process that is killed at a write to the store, before or after it."""
    arguments = [msgspec.json.encode(config).decode(), str(folder), str(calls), moment]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=False)
    assert done.returncode == -9


def predictions(folder: Path) -> tuple[bytes, bytes]:
    """Return trajectories and the final memory, as bytes."""
    return (folder / "predictions.json").read_bytes(), (folder / "bank.safetensors").read_bytes()


def store_digest(path: Path) -> str:
    with MemoryStore.open(path) as store:
        return store.digest


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"memory": "two-pass"},
        {"memory": "episodic"},
        {"memory": "masked"},
        {"memory": "tour", "tours": True, "oracle_phases": True},
        {"schedule": "interleaved", "batch": 5},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "cold",
)
def test_walks_scores_and_memory_are_those_of_a_bank(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path, changes: dict[str, Any]
) -> None:
    if "tours" in changes:
        changes |= {"tours": dataset.tours}
    plain, path = evaluated(**changes), tmp_path / "site.db"
    result = evaluate(dataset.config(**changes, store=str(path), robot="r1"), tmp_path / "out")
    assert predictions(tmp_path / "out") == predictions(plain.folder)
    assert result.episodes == plain.result.episodes
    added = {name: value for name, value in result.facts.items() if plain.result.facts.get(name) != value}
    assert added == {"robot": "r1", "prefer": "first"}
    with MemoryStore.open(path) as store:
        names = {(found.scene, found.viewpoint) for found in store.recalled()}
        if changes.get("memory") not in ("episodic", "tour"):  # their banks forget
            bank = load_bank(tmp_path / "out" / "bank.safetensors")
            assert names == {(scene, name) for scene in bank.scenes for name in bank[scene].viewpoints}
        assert len(names) == len(store)
        assert {found.robot for found in store.observations()} == {"r1"}


@pytest.mark.parametrize(
    ("changes", "calls", "moment"),
    [
        ({}, 0, "before"),
        ({}, 9, "after"),
        ({"memory": "two-pass"}, 14, "before"),
        ({"schedule": "interleaved", "batch": 5}, 6, "after"),
        ({"memory": "warm"}, 8, "before"),
    ],
)
def test_killed_evaluations_continue_and_the_store_is_that_of_an_undisturbed_one(
    dataset: ToyDataset, tmp_path: Path, changes: dict[str, Any], calls: int, moment: str
) -> None:
    if changes.get("memory") == "warm":
        for name in ("whole.db", "killed.db"):  # what another robot remembered before
            evaluate(
                dataset.config(limit=3, store=str(tmp_path / name), robot="r0"),
                tmp_path / Path(name).stem / "before",
            )
    folders = [tmp_path / "a" / "day", tmp_path / "b" / "day"]
    whole = evaluate(dataset.config(**changes, store=str(tmp_path / "whole.db")), folders[0])
    config = dataset.config(**changes, store=str(tmp_path / "killed.db"))
    evaluate_and_kill(config, folders[1], calls, moment)
    if changes.get("memory") == "warm":  # others go on while this robot is off
        evaluate(dataset.config(store=str(tmp_path / "killed.db"), robot="r2"), tmp_path / "other")
        with MemoryStore.open(tmp_path / "killed.db") as store:
            others = [found for found in store.observations() if found.robot == "r2"]
    else:
        others = []
    assert evaluate(config, folders[1]) == whole
    assert predictions(folders[1]) == predictions(folders[0])
    with MemoryStore.open(tmp_path / "whole.db") as store:
        store.add(others, operation="import")
    assert store_digest(tmp_path / "whole.db") == store_digest(tmp_path / "killed.db")


def test_two_processes_store_the_same(dataset: ToyDataset, tmp_path: Path) -> None:
    for processes in (1, 2):
        config = dataset.config(store=str(tmp_path / f"{processes}.db"))
        evaluate(config, tmp_path / f"{processes}" / "out", processes=processes)
    assert predictions(tmp_path / "1" / "out") == predictions(tmp_path / "2" / "out")
    assert store_digest(tmp_path / "1.db") == store_digest(tmp_path / "2.db")


def test_the_next_session_starts_as_with_the_bank_of_the_first(
    dataset: ToyDataset, evaluated: Evaluate, tmp_path: Path
) -> None:
    store = str(tmp_path / "site.db")
    for day in ("monday", "tuesday"):
        evaluate(dataset.config("warm", store=store), tmp_path / day / "r1")
    first = evaluated("cold")
    assert predictions(tmp_path / "monday" / "r1") == predictions(first.folder)
    bank = str(first.folder / "bank.safetensors")
    evaluate(dataset.config("warm", bank=bank), tmp_path / "bank")
    assert predictions(tmp_path / "tuesday" / "r1") == predictions(tmp_path / "bank")
    facts = [
        evaluate(dataset.config("warm", store=store), tmp_path / day / "r1").facts
        for day in ("monday", "tuesday")
    ]
    assert facts[0]["hashes"]["store"] != facts[1]["hashes"]["store"]
    with MemoryStore.open(store) as found:
        assert {place.visits for place in found.places()} == {1, 2}
        assert found.conflicts() == []


def test_another_encoder_is_refused(dataset: ToyDataset, tmp_path: Path) -> None:
    config = dataset.config(limit=1, store=str(tmp_path / "site.db"))
    evaluate(config, tmp_path / "out")
    features = open_features(dataset.root / "features" / "street.hdf5")
    panoramas = [(key, features.panorama(key) + 1) for key in features.keys]
    (tmp_path / "other").mkdir()
    write_features(tmp_path / "other" / "street.hdf5", panoramas)
    other = dataset.config(limit=1, store=config.store, features=str(tmp_path / "other" / "street.hdf5"))
    with pytest.raises(MemoryMismatch, match="site.db: holds features of encoder .* or a new store"):
        evaluate(other, tmp_path / "other-out")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "oracle"}, "excludes planners, --bank, and the protocols"),
        ({"memory": "warm", "bank": "bank.safetensors"}, "excludes planners, --bank"),
        ({"store": "ftp://site"}, "expected a path such as site.db"),
    ],
)
def test_settings_that_a_store_excludes_are_refused(
    dataset: ToyDataset, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(dataset.config(**{"store": str(tmp_path / "site.db")} | changes), tmp_path / "out")
