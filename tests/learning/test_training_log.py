"""The log of a run: resuming after a kill repeats no line, and TensorBoard shows the same numbers."""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from esceme.errors import DataError
from esceme.learning.training_log import TrainingLog, read_log


@pytest.fixture(autouse=True)
def _every_file_begins_in_another_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass between event files; those of one second have no certain order for TensorBoard."""
    seconds = itertools.count(1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: next(seconds))


def write_log(folder: Path, iterations: range, *, after: int = 0) -> Path:
    """Log the losses of some iterations, and a validation at every second one."""
    with TrainingLog(folder, after=after) as log:
        for iteration in iterations:
            log.write("train", iteration, {"loss": 1 / iteration})
            if iteration % 2 == 0:
                log.write("validation", iteration, {"val_unseen": {"spl": iteration / 100}})
    return folder / "log.jsonl"


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values that TensorBoard shows, by tag."""
    shown = EventAccumulator(str(folder / "tensorboard")).Reload()
    tags = shown.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in shown.Scalars(tag)] for tag in tags}


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_and_events_can_be_read_before_the_log_is_closed(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "new" / "run")
    log.write("train", 10, {"loss": 0.5, "reward": math.nan, "critic": -math.inf})
    log.write("validation", 10, {"val_unseen": {"spl": 0.25, "sr": 0.5}})
    first, second = read_log(tmp_path / "new" / "run" / "log.jsonl")
    assert first == {"kind": "train", "iteration": 10, "loss": 0.5, "reward": "nan", "critic": "-inf"}
    assert second == {"kind": "validation", "iteration": 10, "val_unseen": {"spl": 0.25, "sr": 0.5}}
    shown = events(tmp_path / "new" / "run")
    assert math.isnan(shown.pop("train/reward")[0][1])
    assert shown == {
        "train/loss": [(10, 0.5)],
        "train/critic": [(10, -math.inf)],
        "validation/val_unseen/spl": [(10, 0.25)],
        "validation/val_unseen/sr": [(10, 0.5)],
    }
    log.close()


@pytest.mark.parametrize("after", [1, 2, 5, 9])
def test_resumed_log_equals_the_log_of_an_uninterrupted_run(tmp_path: Path, after: int) -> None:
    whole = write_log(tmp_path / "whole", range(1, 11)).read_bytes()
    write_log(tmp_path / "killed", range(1, 10))
    assert write_log(tmp_path / "killed", range(after + 1, 11), after=after).read_bytes() == whole
    assert events(tmp_path / "killed") == {
        "train/loss": [(iteration, pytest.approx(1 / iteration)) for iteration in range(1, 11)],
        "validation/val_unseen/spl": [(at, pytest.approx(at / 100)) for at in (2, 4, 6, 8, 10)],
    }


def test_log_that_is_cut_at_any_byte_can_be_read_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_log(tmp_path, range(1, 6)).read_bytes()
    path = tmp_path / "cut" / "log.jsonl"
    path.parent.mkdir()
    monkeypatch.setattr("esceme.learning.training_log._open_events", lambda *arguments: None)
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        num_lines = data[:size].count(b"\n")
        assert len(read_log(path)) == num_lines
        TrainingLog(path.parent, after=3).close()
        lines = data.splitlines(keepends=True)[:num_lines]
        assert path.read_bytes() == b"".join(line for line in lines if json.loads(line)["iteration"] <= 3)


def test_run_that_starts_over_starts_an_empty_log(tmp_path: Path) -> None:
    write_log(tmp_path, range(1, 3))
    with TrainingLog(tmp_path) as log:
        log.write("validation", 0, {"spl": 0.5})
    assert read_log(tmp_path / "log.jsonl") == [{"kind": "validation", "iteration": 0, "spl": 0.5}]
    shown = {tag: values for tag, values in events(tmp_path).items() if values}
    assert shown == {"validation/spl": [(0, 0.5)]}


KILLED = """
import os, pathlib, signal, sys
from esceme.learning.training_log import TrainingLog

log = TrainingLog(pathlib.Path(sys.argv[1]))
for iteration in range(1, 6):
    log.write("train", iteration, {"loss": 0.5})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_process_leaves_all_lines_and_events(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == -9
    assert [line["iteration"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2, 3, 4, 5]
    assert events(tmp_path) == {"train/loss": [(iteration, 0.5) for iteration in range(1, 6)]}


def test_missing_tensorboard_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"tensorboard", *(name for name in sys.modules if "tensorboard" in name)}:
        monkeypatch.setitem(sys.modules, name, None)
    notes: list[str] = []
    with TrainingLog(tmp_path, note=notes.append) as log:
        log.write("train", 1, {"loss": 0.5})
        log.write("train", 2, {"loss": 0.25})
    assert len(notes) == 1 and "pip install 'esceme[tensorboard]'" in notes[0]
    assert len(read_log(tmp_path / "log.jsonl")) == 2
    assert not (tmp_path / "tensorboard").exists()


def test_closed_log_closes_again_and_does_not_hide_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), TrainingLog(tmp_path) as log:
        log.close()
        raise KeyError


@pytest.mark.parametrize(
    "text",
    [
        "not json\n",
        '{"loss": 3}\n',
        "[1, 2]\n",
        '{"kind": "train", "iteration": "1"}\n',
        '{"kind": "train", "iteration": -1}\n',
    ],
)
def test_line_of_another_file_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    path = write_log(tmp_path, range(1, 2))
    path.write_text(path.read_text() + text + "{}\n")
    before = path.read_bytes()
    for use in (lambda: TrainingLog(tmp_path, after=5), lambda: read_log(path)):
        with pytest.raises(DataError, match=r"log.jsonl: line 2: "):
            use()
    assert path.read_bytes() == before


def test_files_that_cannot_be_read_or_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"log.jsonl: no such file"):
        read_log(tmp_path / "log.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/log.jsonl: cannot be written"):
        TrainingLog(tmp_path / "file")
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(DataError, match=r"tensorboard: cannot be written"):
        TrainingLog(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("full", ["log.jsonl", "tensorboard"])
def test_full_disk_is_an_error_and_earlier_lines_remain(tmp_path: Path, full: str) -> None:
    threads = set(threading.enumerate())
    log = TrainingLog(tmp_path)
    for iteration in range(1, 6):  # lines are longer than events
        log.write("train", iteration, {"a": 0.0})
    lines = (tmp_path / "log.jsonl").stat().st_size
    (event_file,) = (tmp_path / "tensorboard").iterdir()
    limit = lines + 10 if full == "log.jsonl" else event_file.stat().st_size + 10
    with file_size_limit(limit), pytest.raises(DataError, match=rf"{full}: cannot be written"), log:
        log.write("train", 6, {"a": 0.0})
    for thread in set(threading.enumerate()) - threads:  # TensorBoard's; pytest must see it fail in this test
        thread.join(timeout=10)
    assert len(read_log(tmp_path / "log.jsonl")) >= 5
    with TrainingLog(tmp_path, after=5) as log:
        log.write("train", 6, {"a": 0.0})
    assert [line["iteration"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert events(tmp_path) == {"train/a": [(iteration, 0) for iteration in range(1, 7)]}
