"""Training runs: interrupted, killed or out of disk space, a run ends with the same files."""

from __future__ import annotations

import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esceme.config import Experiment
from esceme.errors import CheckpointError, DataError, TrainingError
from esceme.files import folder_lock
from esceme.learning import TrainingCallback, TrainingRun
from esceme.learning.run import load_state, save_state
from esceme.learning.training_log import read_log
from esceme.runs import load_run
from esceme.training import prepare, train
from esceme.world.features import open_features, write_features
from fixtures.files import file_contents
from fixtures.process_utils import CONTEXT, kill_at_file_access, started, train_in_process
from fixtures.toy_dataset import (
    SPLIT,
    Interrupt,
    Interrupted,
    bit_equal,
    run_files,
    small_experiment,
    states,
    write_training_data,
)

NUM_KILLS = 20
NUM_ACCESS_KILLS = 10


ReferenceRun = Callable[[Experiment], Path]


@pytest.fixture(scope="module")
def reference_run(training_data: Path, tmp_path_factory: pytest.TempPathFactory) -> ReferenceRun:
    """A function that returns the folder of an uninterrupted run; do not write to it."""
    trained: dict[str, Path] = {}

    def reference_folder(experiment: Experiment) -> Path:
        if (key := repr(experiment)) not in trained:
            trained[key] = train(experiment, training_data, tmp_path_factory.mktemp("reference"))
        return trained[key]

    return reference_folder


def train_until(
    experiment: Experiment, training_data: Path, out: Path, after: int, *, at_validation: bool = False
) -> Interrupt:
    """Train until an iteration, or its validation, has ended."""
    callback = Interrupt(after, at_validation=at_validation)
    with pytest.raises(Interrupted):
        train(experiment, training_data, out, callback=callback)
    return callback


# -- interrupted -------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("agent", "method", "mode", "memory"),
    [
        ("hamt", "imitation+a2c", "as-released", "leaking"),
        ("hamt", "imitation+a2c", "reset", "cold"),
        ("hamt", "imitation+a2c", "sampled", "two-pass"),
        ("hamt", "dagger", "forgetting", "episodic"),
        ("hamt", "dagger", "sampled", "leaking"),
        ("tdstp", "imitation+a2c", "sampled", "leaking"),
    ],
)
def test_interrupted_run_ends_with_the_files_of_an_uninterrupted_one(
    training_data: Path,
    reference_run: ReferenceRun,
    tmp_path: Path,
    agent: str,
    method: str,
    mode: str,
    memory: str,
) -> None:
    oracle_weight = 0.4 if agent == "tdstp" else 0.0
    experiment = small_experiment(
        agent=agent,
        method=method,
        mode=mode,
        memory=memory,
        lr_schedule="linear",
        oracle_weight=oracle_weight,
    )
    for after in range(1, 7):
        callback = train_until(experiment, training_data, tmp_path, after)
        saved = (iteration for iteration in (0, 2, 3, 4) if iteration < after - 1)
        assert callback.start == max(saved, default=0)  # iteration `after` ended without a checkpoint
    train(experiment, training_data, tmp_path)
    expected = reference_run(experiment)
    assert run_files(tmp_path) == run_files(expected)
    assert states(expected).keys() == {"00000004.pt", "00000006.pt"}
    assert bit_equal(states(tmp_path), states(expected))


@pytest.mark.long
def test_interrupt_between_best_weights_and_checkpoint_changes_nothing(
    training_data: Path, reference_run: ReferenceRun, tmp_path: Path
) -> None:
    experiment = small_experiment()
    for after in (3, 3, 6):
        train_until(experiment, training_data, tmp_path, after, at_validation=True)
    assert (tmp_path / "best" / "weights.safetensors").is_file()
    train(experiment, training_data, tmp_path)
    assert run_files(tmp_path) == run_files(reference_run(experiment))


@pytest.mark.long
def test_run_resumes_from_the_state_before_a_damaged_one(
    training_data: Path, reference_run: ReferenceRun, tmp_path: Path
) -> None:
    experiment = small_experiment()
    train_until(experiment, training_data, tmp_path, 5)
    latest = tmp_path / "state" / "00000004.pt"
    latest.write_bytes(latest.read_bytes()[:-1000])
    callback = Interrupt(0)
    train(experiment, training_data, tmp_path, callback=callback)
    assert callback.start == 3
    assert len(callback.notes) == 1 and callback.notes[0].startswith(f"{latest}: skipped (not a complete")
    assert run_files(tmp_path) == run_files(reference_run(experiment))


@pytest.mark.long
def test_finished_run_is_left_unchanged(training_data: Path, tmp_path: Path) -> None:
    experiment = small_experiment(iterations=2)
    train(experiment, training_data, tmp_path)
    before = run_files(tmp_path)
    train(experiment, training_data, tmp_path)
    assert run_files(tmp_path) == before


@pytest.mark.long
def test_validation_before_training_needs_splits(training_data: Path, tmp_path: Path) -> None:
    for splits in ((SPLIT,), ()):
        experiment = small_experiment(iterations=1, splits=splits)
        experiment = replace(experiment, validation=replace(experiment.validation, before_training=True))
        folder = train(experiment, training_data, tmp_path / f"{len(splits)}-splits")
        validations = [line for line in read_log(folder / "log.jsonl") if line["kind"] == "validation"]
        assert [line["iteration"] for line in validations] == ([0, 1] if splits else [])
        assert (folder / "best").is_dir() == bool(splits)


# -- killed ------------------------------------------------------------------------------------------------

LONG_EXPERIMENT = small_experiment(iterations=24, batch=2, mode="sampled", every=4)
"""Writes states so often that many kills hit the writing of one."""


@pytest.mark.long
def test_kills_at_random_times_change_nothing(
    training_data: Path, reference_run: ReferenceRun, tmp_path: Path
) -> None:
    rng, expected, num_kills, run = (
        np.random.default_rng(0),
        run_files(reference_run(LONG_EXPERIMENT)),
        0,
        0,
    )
    while num_kills < NUM_KILLS:
        out, has_started = tmp_path / f"run-{run}", CONTEXT.Event()
        with started(train_in_process, LONG_EXPERIMENT, training_data, out, has_started) as process:
            if rng.random() < 0.8:  # otherwise it may be killed before training starts
                assert has_started.wait(60)
            process.join(float(rng.uniform(0, 0.5)))
            process.kill()
            process.join()
        if process.exitcode == 0:  # it ended before the kill
            assert run_files(out) == expected
            run += 1
        else:
            assert process.exitcode == -signal.SIGKILL
            num_kills += 1
    train(LONG_EXPERIMENT, training_data, tmp_path / f"run-{run}")
    assert run_files(tmp_path / f"run-{run}") == expected
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.long
def test_kills_at_file_accesses_change_nothing(
    training_data: Path, reference_run: ReferenceRun, tmp_path: Path
) -> None:
    rng, expected = np.random.default_rng(1), reference_run(LONG_EXPERIMENT)
    for _ in range(NUM_ACCESS_KILLS):
        access = int(rng.integers(0, 16))
        with started(
            kill_at_file_access, LONG_EXPERIMENT, training_data, tmp_path, access, CONTEXT.Event()
        ) as process:
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
    train(LONG_EXPERIMENT, training_data, tmp_path)
    assert run_files(tmp_path) == run_files(expected)
    assert bit_equal(states(tmp_path), states(expected))
    assert not list(tmp_path.rglob("*.part"))


# -- full disks and concurrent runs ------------------------------------------------------------------------


class FileSizeLimit(TrainingCallback):
    """Limits the size of files after an iteration, in bytes."""

    def __init__(self, after: int, limit: int) -> None:
        self._after, self._limit = after, limit

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if iteration == self._after:
            _, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit, hard_limit))


@contextmanager
def file_size_limit_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.long
@pytest.mark.parametrize(
    ("after", "file"), [(4, "state/00000004.pt"), (3, "best/weights.safetensors"), (2, "state/00000002.pt")]
)
def test_run_resumes_after_a_full_disk(
    training_data: Path, reference_run: ReferenceRun, tmp_path: Path, after: int, file: str
) -> None:
    experiment, message = small_experiment(), rf"{file}: cannot be written .*(File too large|full)"
    with file_size_limit_restored(), pytest.raises(DataError, match=message):
        train(experiment, training_data, tmp_path, callback=FileSizeLimit(after, 20_000))
    saved = [iteration for iteration in (2, 3) if iteration < after]
    assert [state["iteration"] for state in states(tmp_path).values()] == saved
    assert not list(tmp_path.rglob("*.part"))
    train(experiment, training_data, tmp_path)
    assert run_files(tmp_path) == run_files(reference_run(experiment))


class ConcurrentRun(TrainingCallback):
    """Starts another run in the same folder after every iteration."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self.num_attempts = 0

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        before = file_contents(self._arguments[2])
        with pytest.raises(DataError, match="another training is running there"):
            train(*self._arguments)
        assert file_contents(self._arguments[2]) == before
        self.num_attempts += 1


@pytest.mark.long
def test_second_run_in_the_same_folder_is_refused_and_changes_nothing(
    training_data: Path, reference_run: ReferenceRun, tmp_path: Path
) -> None:
    experiment = small_experiment(iterations=3)
    callback = ConcurrentRun(experiment, training_data, tmp_path)
    train(experiment, training_data, tmp_path, callback=callback)
    assert callback.num_attempts == 3
    assert run_files(tmp_path) == run_files(reference_run(experiment))


def test_locked_folder_is_left_empty(training_data: Path, tmp_path: Path) -> None:
    with folder_lock(tmp_path, "training"), pytest.raises(DataError, match="another training is running"):
        train(small_experiment(), training_data, tmp_path)
    assert file_contents(tmp_path) == {}


# -- non-finite values ------------------------------------------------------------------------------------


def saved_values_are_finite(folder: Path) -> bool:
    tensors: list[torch.Tensor] = []
    for state in states(folder).values():
        tensors += state["weights"].values()
        tensors += [value for values in state["optimizer"]["state"].values() for value in values.values()]
    if (folder / "best").exists():
        tensors += load_run(folder / "best").navigator.state_dict().values()
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def scale_features(factor: float, data: Path) -> Path:
    path = data / "features" / "street.hdf5"
    store = open_features(path)
    rows = zip(store.keys, store.locate(store.keys), strict=True)
    scaled = {key: factor * store.gather(row[None], np.arange(36)[None])[0] for key, row in rows}
    write_features(path, scaled.items())
    return data


@pytest.mark.long
def test_non_finite_loss_stops_the_run_and_is_not_saved(training_data: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"iteration 2: 'imitation' is nan; not finite are the gradients"):
        train(small_experiment(learning_rate=1e30, checkpoint_every=1), training_data, tmp_path / "high-rate")
    assert [state["iteration"] for state in states(tmp_path / "high-rate").values()] == [1]
    assert saved_values_are_finite(tmp_path / "high-rate")
    data = scale_features(1e30, write_training_data(tmp_path))
    with pytest.raises(TrainingError, match=r"iteration 1: 'imitation' is nan"):
        train(small_experiment(checkpoint_every=1), data, tmp_path / "large-features")
    assert not states(tmp_path / "large-features")


WEIGHT = "agent.sight.picture.linear.bias"


class CorruptingCallback(TrainingCallback):
    """Makes a weight, its gradient or its optimizer average non-finite after iteration 3."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.run: TrainingRun

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        weight = self.run.trainer.navigator.get_parameter(WEIGHT)
        if iteration == 3 and self._kind == "weights":
            weight.data[3] = torch.nan
        elif iteration == 3 and self._kind == "averages":
            self.run.trainer.optimizer.state[weight]["exp_avg"][0] = torch.inf
        elif iteration == 3:
            weight.register_hook(lambda gradient: gradient * torch.nan)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "iteration", "message"),
    [
        ("weights", 3, "not finite are the weights"),
        ("averages", 3, "not finite are the averages"),
        ("gradients", 4, "'gradient_norm' is nan; not finite are the gradients"),
    ],
)
def test_non_finite_values_are_named_and_not_saved(
    training_data: Path, tmp_path: Path, kind: str, iteration: int, message: str
) -> None:
    callback = CorruptingCallback(kind)
    callback.run = prepare(small_experiment(), training_data, tmp_path, callback=callback)
    with pytest.raises(TrainingError, match=f"iteration {iteration}: {message} of {WEIGHT}. "):
        callback.run.run()
    assert max(state["iteration"] for state in states(tmp_path).values()) == iteration - 1
    assert saved_values_are_finite(tmp_path)


# -- states on disk ----------------------------------------------------------------------------------------

FINGERPRINT = "of this run"
STATE = {"weights": {"a": torch.arange(300.0).reshape(20, 15)}, "metrics": [{"loss": 0.5}]}


def save_states(folder: Path, *iterations: int) -> list[Path]:
    """Save states; return the files that exist, the latest first."""
    for iteration in iterations:
        save_state(folder, iteration, {"experiment": FINGERPRINT, **STATE, "best": float(iteration)})
    return sorted((folder / "state").iterdir(), reverse=True)


def load_iteration(folder: Path) -> tuple[int | None, list[str]]:
    notes: list[str] = []
    state = load_state(folder, (FINGERPRINT,), note=notes.append)
    return state and state["iteration"], notes


def test_latest_state_is_loaded_and_two_are_kept(tmp_path: Path) -> None:
    assert load_iteration(tmp_path) == (None, [])
    assert [path.name for path in save_states(tmp_path, 5)] == ["00000005.pt"]
    assert [path.name for path in save_states(tmp_path, 10, 15)] == ["00000015.pt", "00000010.pt"]
    state = load_state(tmp_path, (FINGERPRINT,))
    facts = {"format": "esceme-state-3", "iteration": 15, "experiment": FINGERPRINT, "best": 15.0}
    assert bit_equal(state, {**facts, **STATE})
    assert [path.name for path in save_states(tmp_path, 7)] == ["00000007.pt"]  # later ones are obsolete


def flip_bit(data: bytes) -> bytes:
    """Damage one bit of a tensor, which torch.load does not detect."""
    offset = data.index(torch.arange(16.0).numpy().tobytes()) + 40
    return data[:offset] + bytes([data[offset] ^ 4]) + data[offset + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        flip_bit,
        lambda data: b"",
        lambda data: b"not a state",
        lambda data: data.replace(b"esceme-state-3", b"esceme-state-9"),
        lambda data: None,
    ],
    ids=["cut", "bit", "empty", "text", "version", "other iteration"],
)
def test_damaged_state_is_noted_and_the_one_before_is_loaded(tmp_path: Path, damage: Any) -> None:
    latest, before = save_states(tmp_path, 5, 10)
    data = damage(latest.read_bytes())
    latest.write_bytes(before.read_bytes() if data is None else data)
    iteration, (note,) = load_iteration(tmp_path)
    assert iteration == 5
    assert note.startswith(f"{latest}: skipped (") and note.endswith("; trying the one before")
    assert [path.name for path in save_states(tmp_path, 10)] == ["00000010.pt", "00000005.pt"]
    assert load_iteration(tmp_path) == (10, [])


def test_state_that_does_not_fit_is_noted_and_the_one_before_is_used(tmp_path: Path) -> None:
    save_states(tmp_path, 5, 10)
    used, notes = list[int](), list[str]()

    def use(state: dict[str, Any]) -> None:
        if state["iteration"] == 10:
            raise RuntimeError("Missing key(s) in state_dict")
        used.append(state["iteration"])

    state = load_state(tmp_path, (FINGERPRINT,), use=use, note=notes.append)
    assert state is not None and used == [state["iteration"]] == [5]
    assert len(notes) == 1 and "00000010.pt: skipped (does not fit this run (RuntimeError))" in notes[0]


@pytest.mark.parametrize("change", [{"best": "x"}, {"metrics": [{"loss": "x"}]}, {"weights": {}}])
def test_run_resumes_before_a_state_with_other_content(
    training_data: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    experiment = small_experiment()
    train(experiment, training_data, tmp_path)
    before = file_contents(tmp_path)
    latest = max((tmp_path / "state").iterdir())
    torch.save({**torch.load(latest, weights_only=True), **change}, latest)
    (tmp_path / "navigator.json").unlink()
    train(experiment, training_data, tmp_path, callback=(callback := Interrupt(0)))
    assert any("does not fit this run" in note for note in callback.notes)
    assert (tmp_path / "weights.safetensors").read_bytes() == before["weights.safetensors"]


def test_run_with_only_damaged_states_does_not_start_over(tmp_path: Path) -> None:
    for path in save_states(tmp_path, 5, 10):
        path.write_bytes(path.read_bytes()[:100])
    notes: list[str] = []
    with pytest.raises(CheckpointError, match="none of its 2 states can be resumed from; restore one"):
        load_state(tmp_path, (FINGERPRINT,), note=notes.append)
    assert len(notes) == 2


def test_state_of_another_run_is_named_and_the_one_before_is_loaded(tmp_path: Path) -> None:
    save_states(tmp_path, 5)
    save_state(tmp_path, 10, {"experiment": "of another run", **STATE})
    assert load_iteration(tmp_path) == (
        5,
        [
            f"{tmp_path / 'state' / '00000010.pt'}: skipped (a state of another run; it differs in "
            "experiment); trying the one before"
        ],
    )
    save_state(tmp_path, 5, {"experiment": "of another run", **STATE})
    with pytest.raises(CheckpointError, match="none of its 1 states can be resumed from"):
        load_iteration(tmp_path)


def test_state_with_non_finite_weights_is_skipped(tmp_path: Path) -> None:
    save_states(tmp_path, 5)
    weights = {"weights": {"a": torch.tensor([0.5, torch.nan])}}
    save_state(tmp_path, 10, {"experiment": FINGERPRINT, **STATE, **weights})
    iteration, (note,) = load_iteration(tmp_path)
    assert iteration == 5 and "skipped (non-finite weights" in note


@pytest.mark.long
def test_states_of_two_seeds_are_not_mixed(training_data: Path, tmp_path: Path) -> None:
    experiment = small_experiment(iterations=2)
    train(replace(experiment, seed=1), training_data, tmp_path / "other")
    train_until(experiment, training_data, tmp_path / "run", 2)
    shutil.copytree(tmp_path / "other" / "state", tmp_path / "run" / "state", dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match="state: none of its . states can be resumed from"):
        train(experiment, training_data, tmp_path / "run")


@pytest.mark.long
def test_run_whose_states_are_lost_does_not_start_over(training_data: Path, tmp_path: Path) -> None:
    experiment = small_experiment()
    train_until(experiment, training_data, tmp_path, 6, at_validation=True)
    (tmp_path / "state").rename(tmp_path / "renamed")
    before = file_contents(tmp_path)
    message = (
        r"holds results of training \(its log ends at iteration 6\), but no state to resume from; restore"
    )
    with pytest.raises(CheckpointError, match=message):
        train(experiment, training_data, tmp_path)
    assert file_contents(tmp_path) == before
    (tmp_path / "log.jsonl").unlink()
    with pytest.raises(CheckpointError, match="ends at iteration 0.*, but no state to resume from"):
        train(experiment, training_data, tmp_path)
    (tmp_path / "renamed").rename(tmp_path / "state")
    train(experiment, training_data, tmp_path)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(CheckpointError, match="but no state to resume from"):
        train(experiment, training_data, tmp_path)


@pytest.mark.long
def test_run_interrupted_before_its_first_state_starts_over_with_a_note(
    training_data: Path, tmp_path: Path
) -> None:
    experiment = small_experiment(iterations=1)
    train_until(experiment, training_data, tmp_path, 1, at_validation=True)
    callback = Interrupt(0)
    train(experiment, training_data, tmp_path, callback=callback)
    assert callback.notes == [f"{tmp_path}: interrupted before its first state, so training starts over"]


def test_state_that_does_not_fit_the_disk_leaves_the_others(tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in save_states(tmp_path, 5, 10)}
    with file_size_limit_restored(), pytest.raises(DataError, match=r"cannot be written \(File too large\)"):
        FileSizeLimit(0, 1000).on_iteration_end(0, {})
        save_states(tmp_path, 15)
    assert {path: path.read_bytes() for path in (tmp_path / "state").iterdir()} == before
