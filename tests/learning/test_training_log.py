"""The log of a run: each line counts once, however often the run was killed; TensorBoard says the same."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from esceme.errors import DataError
from esceme.learning.training_log import TrainingLog, read_log

NUMBERS = st.floats() | st.integers(-(2**53), 2**53)
VALUES = st.recursive(
    NUMBERS | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def written(folder: Path, iterations: range, *, after: int = 0, tensorboard: bool = False) -> Path:
    """The log of a run that reports its losses, and validates every second iteration."""
    with TrainingLog(folder, after=after, tensorboard=tensorboard) as log:
        for iteration in iterations:
            log.write("train", iteration, loss=1 / iteration)
            if iteration % 2 == 0:
                log.write("validation", iteration, val_unseen={"spl": iteration / 100})
    return folder / "log.jsonl"


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: steps and values under every name."""
    shown = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        name: [(each.step, each.value) for each in shown.Scalars(name)] for name in shown.Tags()["scalars"]
    }


def test_lines_say_what_was_reported_when_it_was_reported(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "new" / "run", tensorboard=False)
    log.write("train", 10, loss=0.5, rate=1e-5, rollouts=3)
    first = {"kind": "train", "iteration": 10, "loss": 0.5, "rate": 1e-5, "rollouts": 3}
    assert read_log(tmp_path / "new" / "run" / "log.jsonl") == [first]  # before the log is closed
    log.write("validation", 10, val_unseen={"spl": 0.25, "sr": 0.5}, protocol="cold", best=True)
    log.close()
    assert read_log(tmp_path / "new" / "run" / "log.jsonl")[1:] == [
        {
            "kind": "validation",
            "iteration": 10,
            "val_unseen": {"spl": 0.25, "sr": 0.5},
            "protocol": "cold",
            "best": True,
        }
    ]


@given(
    values=st.dictionaries(st.text().filter(lambda name: name not in ("self", "kind", "iteration")), VALUES)
)
def test_whatever_is_reported_the_line_is_strict_json(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with TrainingLog(folder, tensorboard=False) as log:
        log.write("note", 1, **values)  # type: ignore[arg-type]

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no json")

    (line,) = (folder / "log.jsonl").read_text().split("\n")[:-1]
    assert json.loads(line, parse_constant=refuse).keys() == {"kind", "iteration", *values}


def test_numbers_that_json_cannot_hold_are_words_that_read_as_numbers(tmp_path: Path) -> None:
    with TrainingLog(tmp_path, tensorboard=False) as log:
        log.write("train", 1, a=math.nan, b=math.inf, c=-math.inf, d=[np.float32(math.nan)])
    (line,) = read_log(tmp_path / "log.jsonl")
    assert (line["a"], line["b"], line["c"], line["d"]) == ("nan", "inf", "-inf", ["nan"])
    assert math.isnan(float(line["a"])) and float(line["c"]) == -math.inf


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path: Path) -> None:
    with TrainingLog(tmp_path, tensorboard=False) as log:
        log.write("train", 1, a=np.float32(0.5), b=np.int64(3), c=torch.tensor(0.25))  # type: ignore[arg-type]
    (line,) = read_log(tmp_path / "log.jsonl")
    assert (line["a"], line["b"], line["c"]) == (0.5, 3, 0.25)


@pytest.mark.parametrize("after", [1, 2, 3, 4, 5, 6, 9])
def test_a_resumed_log_is_the_log_of_a_run_that_was_never_killed(tmp_path: Path, after: int) -> None:
    whole = written(tmp_path / "whole", range(1, 11)).read_bytes()
    killed = written(tmp_path / "killed", range(1, 10))
    resumed = written(tmp_path / "killed", range(after + 1, 11), after=after)
    assert resumed == killed
    assert resumed.read_bytes() == whole


def test_wherever_a_log_is_torn_it_reads_and_resumes(tmp_path: Path) -> None:
    data = written(tmp_path, range(1, 6)).read_bytes()
    path = tmp_path / "torn" / "log.jsonl"
    path.parent.mkdir()
    for at in range(len(data) + 1):
        path.write_bytes(data[:at])
        whole = data[:at].count(b"\n")
        assert len(read_log(path)) == whole
        TrainingLog(path.parent, after=3, tensorboard=False).close()
        lasting = [
            line for line in data.splitlines(keepends=True)[:whole] if json.loads(line)["iteration"] <= 3
        ]
        assert path.read_bytes() == b"".join(lasting)


def test_a_run_that_begins_anew_begins_its_log_anew(tmp_path: Path) -> None:
    with TrainingLog(tmp_path) as log:
        log.write("validation", 0, spl=0.1)
        log.write("train", 1, loss=2.0)
    with TrainingLog(tmp_path) as log:
        log.write("validation", 0, spl=0.2)
    assert read_log(tmp_path / "log.jsonl") == [{"kind": "validation", "iteration": 0, "spl": 0.2}]
    assert events(tmp_path) == {"train/loss": [], "validation/spl": [(0, pytest.approx(0.2))]}


def test_tensorboard_shows_each_iteration_once_under_kind_and_name(tmp_path: Path) -> None:
    written(tmp_path, range(1, 6), tensorboard=True)
    written(tmp_path, range(4, 8), after=3, tensorboard=True)
    assert events(tmp_path) == {
        "train/loss": [(iteration, pytest.approx(1 / iteration)) for iteration in range(1, 8)],
        "validation/val_unseen/spl": [(at, pytest.approx(at / 100)) for at in (2, 4, 6)],
    }


def test_tensorboard_gets_numbers_only_and_gets_them_at_once(tmp_path: Path) -> None:
    with TrainingLog(tmp_path) as log:
        log.write("train", 1, loss=math.nan, words="many", best=True, none=None, losses=[1.0])
        shown = events(tmp_path)
        assert shown.keys() == {"train/loss"}
        assert math.isnan(shown["train/loss"][0][1])


KILLED = """
import os, pathlib, signal, sys
from esceme.learning.training_log import TrainingLog

log = TrainingLog(pathlib.Path(sys.argv[1]))
for iteration in range(1, 6):
    log.write("train", iteration, loss=0.5)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_all_its_lines_and_events(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False).returncode == -9
    assert [line["iteration"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2, 3, 4, 5]
    assert events(tmp_path) == {"train/loss": [(iteration, 0.5) for iteration in range(1, 6)]}


def test_without_tensorboard_the_log_says_so_once_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in {"tensorboard", *(name for name in sys.modules if name.startswith("tensorboard."))}:
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    said: list[str] = []
    with TrainingLog(tmp_path, note=said.append) as log:
        log.write("train", 1, loss=0.5)
        log.write("train", 2, loss=0.25)
    assert len(said) == 1 and "pip install 'esceme[tensorboard]'" in said[0]
    assert len(read_log(tmp_path / "log.jsonl")) == 2
    assert not (tmp_path / "tensorboard").exists()


def test_tensorboard_can_be_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    TrainingLog(tmp_path, tensorboard=False, note=said.append).close()
    assert os.listdir(tmp_path) == ["log.jsonl"] and not said


def test_two_runs_do_not_write_one_log(tmp_path: Path) -> None:
    path = written(tmp_path, range(1, 4))
    before = path.read_bytes()
    with TrainingLog(tmp_path, after=3, tensorboard=False):
        with pytest.raises(DataError, match="another training is writing it"):
            TrainingLog(tmp_path, tensorboard=False)
        assert path.read_bytes() == before
    written(tmp_path, range(4, 5), after=3)


def test_a_log_closes_twice_and_does_not_hide_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), TrainingLog(tmp_path) as log:
        log.close()
        raise KeyError


@pytest.mark.parametrize(
    "text", ["not json\n", '{"loss": 3}\n', "[1, 2]\n", '{"kind": "train", "iteration": "1"}\n']
)
def test_a_file_that_is_no_log_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, range(1, 2))
    path.write_text(path.read_text() + text + "{}\n")
    before = path.read_bytes()
    for use in (lambda: TrainingLog(tmp_path, after=5, tensorboard=False), lambda: read_log(path)):
        with pytest.raises(DataError, match=r"log.jsonl: line 2: not of the log of a training"):
            use()
    assert path.read_bytes() == before


def test_a_log_that_is_not_there_or_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"log.jsonl: no such file"):
        read_log(tmp_path / "log.jsonl")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/log.jsonl: cannot be written"):
        TrainingLog(tmp_path / "file")
    (tmp_path / "tensorboard").write_text("")
    with pytest.raises(DataError, match=r"tensorboard: cannot be written"):
        TrainingLog(tmp_path)


def test_a_full_disk_is_an_error_and_what_was_written_counts(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path, tensorboard=False)
    log.write("train", 1, loss=0.5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "log.jsonl").stat().st_size + 10, before[1]))
    try:
        with pytest.raises(DataError, match=r"log.jsonl: cannot be written"):
            log.write("train", 2, loss=0.25)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        log.close()
    assert [line["iteration"] for line in read_log(tmp_path / "log.jsonl")] == [1]
    path = written(tmp_path, range(2, 4), after=1)
    assert [line["iteration"] for line in read_log(path) if line["kind"] == "train"] == [1, 2, 3]


def test_a_disk_too_full_for_tensorboard_is_the_same_error(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path)
    for iteration in range(1, 6):
        log.write("train", iteration, a=0)
    (file,) = (tmp_path / "tensorboard").iterdir()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, before[1]))
    try:
        with pytest.raises(DataError, match=r"tensorboard: cannot be written"), log:
            log.write("train", 6, a=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(read_log(tmp_path / "log.jsonl")) == 6
    with TrainingLog(tmp_path, after=5) as log:
        log.write("train", 6, a=0)
    assert events(tmp_path) == {"train/a": [(iteration, 0) for iteration in range(1, 7)]}
