"""Runs that last: whatever interrupts one, it ends with the same weights, the same best, the same log."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from esceme.config import Experiment
from esceme.errors import DataError, TrainingError
from esceme.learning import TrainingCallback, TrainingRun
from esceme.learning.train_state import alone_in
from esceme.learning.training_log import read_log
from esceme.runs import load_run
from esceme.training import prepare, train
from esceme.world.features import open_features, write_features
from fixtures.process_utils import CONTEXT, die_while_writing, learn, started
from fixtures.toy_training import (
    SPLIT,
    Interrupt,
    Interrupted,
    alike,
    lesson_plan,
    products,
    states,
    write_school,
)

pytestmark = pytest.mark.long

KILLS = 20
MOMENTS = 10
"""How often a run is killed just before it touches a file."""


@pytest.fixture(scope="module")
def school(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_school(tmp_path_factory.mktemp("school"))


Uninterrupted = Callable[[Experiment], Path]


@pytest.fixture(scope="module")
def uninterrupted(school: Path, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """The folder of a run that nobody interrupts; read-only."""
    made: dict[str, Path] = {}

    def give(experiment: Experiment) -> Path:
        if (key := repr(experiment)) not in made:
            made[key] = train(experiment, school, tmp_path_factory.mktemp("whole"))
        return made[key]

    return give


def interrupt(experiment: Experiment, school: Path, out: Path, after: int, **how: Any) -> Interrupt:
    """Train until an iteration has ended."""
    watch = Interrupt(after, **how)
    with pytest.raises(Interrupted):
        train(experiment, school, out, callback=watch)
    return watch


# -- interrupted -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "method", "way", "memory"),
    [
        ("hamt", "imitation+a2c", "as-released", "leaking"),
        ("hamt", "imitation+a2c", "reset", "cold"),
        ("hamt", "imitation+a2c", "drawn", "two-pass"),
        ("hamt", "dagger", "forgetting", "episodic"),
        ("hamt", "dagger", "drawn", "leaking"),
        ("tdstp", "imitation+a2c", "drawn", "leaking"),
    ],
)
def test_a_run_interrupted_after_every_iteration_ends_as_if_it_never_was(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path, who: str, method: str, way: str, memory: str
) -> None:
    comments = {"comment_weight": 0.4} if who == "tdstp" else {}
    experiment = lesson_plan(who=who, method=method, way=way, memory=memory, decay="linear", **comments)
    for after in range(1, 7):
        watch = interrupt(experiment, school, tmp_path, after)
        kept = [done for done in (0, 2, 3, 4) if done < after - 1]  # the last iteration kept no state
        assert watch.begun == max(kept, default=0)
    train(experiment, school, tmp_path)
    whole = uninterrupted(experiment)
    assert products(tmp_path) == products(whole)
    assert states(whole).keys() == {"00000004.pt", "00000006.pt"}
    assert alike(states(tmp_path), states(whole))


def test_an_interrupt_between_the_best_weights_and_the_state_that_knows_of_them_changes_nothing(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    experiment = lesson_plan()
    for after in (3, 3, 6):
        interrupt(experiment, school, tmp_path, after, validated=True)
    assert (tmp_path / "best" / "weights.safetensors").is_file()
    train(experiment, school, tmp_path)
    assert products(tmp_path) == products(uninterrupted(experiment))


def test_a_run_goes_on_from_the_state_before_a_damaged_one_and_says_so(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    experiment = lesson_plan()
    interrupt(experiment, school, tmp_path, 5)
    latest = tmp_path / "state" / "00000004.pt"
    latest.write_bytes(latest.read_bytes()[:-1000])
    watch = Interrupt(0)
    train(experiment, school, tmp_path, callback=watch)
    assert watch.begun == 3
    assert len(watch.notes) == 1 and watch.notes[0].startswith(f"{latest}: damaged")
    assert products(tmp_path) == products(uninterrupted(experiment))


def test_a_run_that_is_over_stays_as_it_is(school: Path, tmp_path: Path) -> None:
    experiment = lesson_plan(iterations=2)
    train(experiment, school, tmp_path)
    before = products(tmp_path)
    train(experiment, school, tmp_path)
    assert products(tmp_path) == before


def test_a_run_is_validated_before_it_begins_if_wanted_and_only_where_there_is_something_to_validate_on(
    school: Path, tmp_path: Path
) -> None:
    for splits in ((SPLIT,), ()):
        plan = lesson_plan(iterations=1, splits=splits)
        experiment = replace(plan, validation=replace(plan.validation, first=True))
        folder = train(experiment, school, tmp_path / f"{len(splits)}-splits")
        validations = [line for line in read_log(folder / "log.jsonl") if line["kind"] == "validation"]
        assert [line["iteration"] for line in validations] == ([0, 1] if splits else [])
        assert (folder / "best").is_dir() == bool(splits)


# -- killed ------------------------------------------------------------------------------------------------

LONG = lesson_plan(iterations=24, batch=2, way="drawn", every=4)
"""Whose states are so frequent that many a kill hits the writing of one."""


def test_twenty_kills_at_random_moments_change_nothing(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    draw, whole, kills, run = np.random.default_rng(0), products(uninterrupted(LONG)), 0, 0
    while kills < KILLS:
        out, said = tmp_path / f"run-{run}", CONTEXT.Event()
        with started(learn, LONG, school, out, said) as process:
            if draw.random() < 0.8:  # else it may be killed before it has begun
                assert said.wait(60)
            process.join(float(draw.uniform(0, 0.5)))
            process.kill()
            process.join()
        if process.exitcode == 0:  # it was faster than we are: its end counts, and the next run begins
            assert products(out) == whole
            run += 1
        else:
            assert process.exitcode == -signal.SIGKILL
            kills += 1
    train(LONG, school, tmp_path / f"run-{run}")
    assert products(tmp_path / f"run-{run}") == whole
    assert not list(tmp_path.rglob("*.part"))


def test_kills_in_the_middle_of_writing_change_nothing(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    draw, whole = np.random.default_rng(1), uninterrupted(LONG)
    for _ in range(MOMENTS):
        moment = int(draw.integers(0, 16))
        with started(die_while_writing, LONG, school, tmp_path, moment, CONTEXT.Event()) as process:
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
    train(LONG, school, tmp_path)
    assert products(tmp_path) == products(whole)
    assert alike(states(tmp_path), states(whole))
    assert not list(tmp_path.rglob("*.part"))


# -- disks and other runs ----------------------------------------------------------------------------------


class FullDisk(TrainingCallback):
    """After an iteration no file may be larger than so many bytes."""

    def __init__(self, after: int, limit: int) -> None:
        self._after, self._limit = after, limit

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        if done == self._after:
            _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self._limit, most))


@pytest.mark.parametrize(
    ("after", "file"), [(4, "state/00000004.pt"), (3, "best/weights.safetensors"), (2, "state/00000002.pt")]
)
def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_when_there_is_room(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path, after: int, file: str
) -> None:
    experiment, before = lesson_plan(), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(DataError, match=rf"{file}: cannot be written .*(File too large|full)"):
            train(experiment, school, tmp_path, callback=FullDisk(after, 20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = [done for done in (2, 3) if done < after]
    assert [state["iteration"] for state in states(tmp_path).values()] == kept
    assert not list(tmp_path.rglob("*.part"))
    train(experiment, school, tmp_path)
    assert products(tmp_path) == products(uninterrupted(experiment))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Second(TrainingCallback):
    """Starts another training in the same folder while the first one is at work."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments
        self.tried = 0

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        before = everything_in(self._arguments[2])
        with pytest.raises(DataError, match="another training is at work there; let it finish"):
            train(*self._arguments)
        assert everything_in(self._arguments[2]) == before
        self.tried += 1


def test_a_second_training_in_the_same_folder_is_refused_and_touches_nothing(
    school: Path, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    experiment = lesson_plan(iterations=3)
    watch = Second(experiment, school, tmp_path)
    train(experiment, school, tmp_path, callback=watch)
    assert watch.tried == 3
    assert products(tmp_path) == products(uninterrupted(experiment))


def test_who_comes_second_writes_nothing_even_before_the_first_has(school: Path, tmp_path: Path) -> None:
    with alone_in(tmp_path), pytest.raises(DataError, match="another training is at work"):
        train(lesson_plan(), school, tmp_path)
    assert everything_in(tmp_path) == {".lock": b""}


# -- numbers that are none ---------------------------------------------------------------------------------


def finite(folder: Path) -> bool:
    """Whether all that was saved is."""
    tensors = [
        tensor
        for state in states(folder).values()
        for tensor in (
            *state["weights"].values(),
            *(each for kept in state["optimiser"]["state"].values() for each in kept.values()),
        )
    ]
    if (folder / "best").exists():
        tensors += load_run(folder / "best").navigator.state_dict().values()
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def with_features_times(factor: float, school: Path) -> Path:
    """The same school seen through a bright lens."""
    path = school / "features" / "street.hdf5"
    store = open_features(path)
    views = np.arange(36)[None]
    rows = zip(store.keys, store.locate(store.keys), strict=True)
    seen = {key: factor * store.gather(row[None], views)[0] for key, row in rows}
    write_features(path, seen.items())
    return school


def test_losses_that_are_no_numbers_stop_the_run_and_are_never_saved(school: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"iteration 2: 'imitation' is nan; not finite are the gradients"):
        train(lesson_plan(learning_rate=1e30, checkpoint_every=1), school, tmp_path / "fast")
    assert [state["iteration"] for state in states(tmp_path / "fast").values()] == [1]
    assert finite(tmp_path / "fast")
    bright = with_features_times(1e30, write_school(tmp_path))
    with pytest.raises(TrainingError, match=r"iteration 1: 'imitation' is nan"):
        train(lesson_plan(checkpoint_every=1), bright, tmp_path / "bright")
    assert not states(tmp_path / "bright")


class Spoil(TrainingCallback):
    """Does something to a course after an iteration."""

    def __init__(self, after: int, spoil: Callable[[TrainingRun], None]) -> None:
        self._after, self._spoil = after, spoil
        self.course: TrainingRun | None = None

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        if done == self._after and self.course is not None:
            self._spoil(self.course)


WEIGHT = "agent.sight.picture.linear.bias"


def weight_of(course: TrainingRun) -> torch.nn.Parameter:
    return course.trainer.navigator.get_parameter(WEIGHT)


def lose_a_weight(course: TrainingRun) -> None:
    weight_of(course).data[3] = torch.nan


def lose_a_gradient(course: TrainingRun) -> None:
    weight_of(course).register_hook(lambda gradient: gradient * torch.nan)


def lose_an_average(course: TrainingRun) -> None:
    course.trainer.optimiser.state[weight_of(course)]["exp_avg"][0] = torch.inf


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lose_a_weight, f"iteration 3: not finite are the weights of {WEIGHT}. "),
        (lose_an_average, f"iteration 3: not finite are the averages of {WEIGHT}. "),
        (lose_a_gradient, f"iteration 4: 'gradient' is nan; not finite are the gradients of {WEIGHT}. "),
    ],
)
def test_what_is_no_number_is_named_and_not_saved(
    school: Path, tmp_path: Path, spoil: Callable[[TrainingRun], None], said: str
) -> None:
    watch = Spoil(3, spoil)
    watch.course = course = prepare(lesson_plan(), school, tmp_path, callback=watch)
    with pytest.raises(TrainingError, match=said):
        course.run()
    assert max(state["iteration"] for state in states(tmp_path).values()) == int(said[10]) - 1
    assert finite(tmp_path)
