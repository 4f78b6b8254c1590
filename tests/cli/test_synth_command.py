"""`esceme synth`: what it prints, how it refuses, and that nothing half-written outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from esceme.cli import main
from esceme.synth.dataset import WORLD_SHAPES, WorldConfig, WorldShape
from esceme.tasks.manifest import check_manifest

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is nobody's."""
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(tmp_path: Path, *words: str) -> int:
    return main(["synth", "--out", str(tmp_path / "out"), "--size", "tiny", *words])


def test_a_world_is_made_and_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    houses = {"train": 1, "val_unseen": 1, "test": 1}
    paths = {"train": 8, "val_seen": 4, "val_unseen": 8, "test": 4}
    monkeypatch.setitem(WORLD_SHAPES, "tiny", WorldShape(houses, paths, 2, 64))
    out = tmp_path / "out"
    assert run(tmp_path, "--processes", "1") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{out}: 3 houses, ") and printed.out.count("\n") == 1
    assert "houses" in printed.err and "% of the instructions have a decision" in printed.err
    assert list(check_manifest(out)) == []
    assert main(["data", "check", str(out)]) == 0
    assert "nothing is wrong" in capsys.readouterr().err

    # From the cache now, which takes no time; json stands alone.
    again = tmp_path / "again"
    assert main(["synth", "--out", str(again), "--size", "tiny", "--json"]) == 0
    printed = capsys.readouterr()
    said = msgspec.json.decode(printed.out)
    assert said["out"] == str(again) and said["houses"] == 3 and said["size"] == "tiny"
    assert 0 < said["instructions_needing_memory"] < 1
    assert printed.err == ""
    assert (again / "manifest.json").read_bytes() == (out / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--scenes", "0"], "0 scenes were asked for"),
        (["--scenes", "-2"], "-2 scenes were asked for"),
        (["--scenes", "100000"], "100000 scenes were asked for"),
        (["--seed", "-1"], "the seed is -1"),
        (["--processes", "0"], "--processes 0"),
        (["--processes", "-1"], "--processes -1"),
    ],
)
def test_a_bad_request_is_one_line_and_leaves_nothing(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *words) == 2
    refused_in_one_line(capsys, message)
    assert list(tmp_path.iterdir()) == []


def refused_in_one_line(capsys: pytest.CaptureFixture[str], message: str) -> None:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ") and message in printed.err and printed.err.count("\n") == 1


@pytest.mark.parametrize("words", [["--size", "huge"], ["--seed", "one"], ["--scenes", "1.5"]])
def test_a_word_that_is_no_value_is_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(tmp_path, *words)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "full folder", "file above", "cache"])
def test_a_place_that_cannot_be_had_is_refused(
    kind: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if kind == "full folder":
        out.mkdir()
        (out / "mine.txt").touch()
    else:
        (cache if kind == "cache" else out).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    place = out / "below" if kind == "file above" else out
    assert main(["synth", "--out", str(place), "--size", "tiny"]) == 2
    refused_in_one_line(capsys, str(cache) if kind == "cache" else str(out))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_the_kernel_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs /proc")
    assert main(["synth", "--out", "/proc/esceme-world", "--size", "tiny"]) == 2
    refused_in_one_line(capsys, "/proc/esceme-world: cannot be written")
    assert list(tmp_path.iterdir()) == []


# -- ended in the middle ---------------------------------------------------------------------------------


def group_of(leader: int) -> list[int]:
    """The processes that a leader has started, itself included, those that have ended left out."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name_and_more = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(name_and_more[2]) == leader and name_and_more[0] != "Z":
            found.append(int(status.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGTERM, -signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_process_ended_in_the_middle_leaves_no_world_and_no_process(
    how: signal.Signals, code: int, tmp_path: Path, cache: Path
) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "esceme", "synth", "--out", str(tmp_path / "out"), "--size", "tiny"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while not any(cache.rglob("*.jpg")):
            assert started.poll() is None
            time.sleep(0.02)
        # An interruption reaches everyone at the terminal; who ends a process ends that one.
        (os.killpg if how is signal.SIGINT else os.kill)(started.pid, how)
        out, err = started.communicate(timeout=60)
    finally:
        if started.poll() is None:
            started.kill()
    assert (started.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert how is not signal.SIGINT or err.endswith("interrupted\n")
    assert not (tmp_path / "out").exists()
    assert not (cache / "worlds" / WorldConfig("tiny").key).exists()
    if how is signal.SIGINT:
        assert list(tmp_path.rglob("*.part")) == []
    for _ in range(200):
        if not group_of(started.pid):
            break
        time.sleep(0.05)
    assert group_of(started.pid) == [], "helpers outlive it"
