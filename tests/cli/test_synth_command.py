"""`esceme synth`: output, refusals, and no partial world after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from esceme.cli import main
from esceme.synth.dataset import WORLD_PRESETS, WorldConfig, WorldPreset
from esceme.tasks.manifest import check_manifest

pytestmark = pytest.mark.long
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESCEME_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(out: Path | str, *options: str) -> int:
    return main(["synth", "--out", str(out), "--size", "tiny", *options])


def test_world_is_written_and_described(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    houses = {"train": 1, "val_unseen": 1, "test": 1}
    paths = {"train": 8, "val_seen": 4, "val_unseen": 8, "test": 4}
    monkeypatch.setitem(WORLD_PRESETS, "tiny", WorldPreset(houses, paths, 2, 64))
    out, again = tmp_path / "out", tmp_path / "again"
    assert run(out, "--processes", "1") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{out}: 3 houses, ") and printed.out.count("\n") == 1
    assert "houses" in printed.err and "% of the instructions have a decision" in printed.err
    assert list(check_manifest(out)) == []
    assert main(["data", "check", str(out)]) == 0
    assert "nothing is wrong" in capsys.readouterr().err

    assert run(again, "--json") == 0  # from the cache
    printed = capsys.readouterr()
    summary = msgspec.json.decode(printed.out)
    assert summary["out"] == str(again) and summary["houses"] == 3 and summary["size"] == "tiny"
    assert 0 < summary["instructions_needing_memory"] < 1
    assert printed.err == ""
    assert (again / "manifest.json").read_bytes() == (out / "manifest.json").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scenes", "0"], "0 scenes; expected 1 to 1000"),
        (["--scenes", "1.5"], "--scenes"),
        (["--processes", "0"], "--processes 0"),
        (["--size", "huge"], "invalid choice 'huge'"),
        (["--seed", "one"], "--seed"),
        pytest.param(["--out", "/proc/esceme-world"], "/proc/esceme-world", marks=NEEDS_PROC),
    ],
)
def test_faulty_option_is_refused(
    options: list[str], message: str, empty_folder: Path, error_of: Callable[[list[str]], str]
) -> None:
    assert message in error_of(["synth", "--out", "out", "--size", "tiny", *options])


# -- ended in the middle ---------------------------------------------------------------------------------


def processes_of_group(leader: int) -> list[int]:
    """The running processes of a process group."""
    running = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, *_ = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            running.append(int(status.parent.name))
    return running


@NEEDS_PROC
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGKILL, -signal.SIGKILL),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
    ],
)
def test_killed_command_leaves_no_world_and_no_process(
    sent: signal.Signals, code: int, tmp_path: Path, cache: Path
) -> None:
    command = [sys.executable, "-m", "esceme", "synth", "--out", str(tmp_path / "out"), "--size", "tiny"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not any(cache.rglob("*.jpg")):
            assert started.poll() is None
            time.sleep(0.02)
        # Ctrl-C reaches all processes of the terminal; other signals are sent to one process.
        (os.killpg if sent is signal.SIGINT else os.kill)(started.pid, sent)
        out, err = started.communicate(timeout=60)
    finally:
        if started.poll() is None:
            started.kill()
    assert (started.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert sent is signal.SIGKILL or err.endswith("interrupted\n")
    assert not (tmp_path / "out").exists()
    assert not (cache / "worlds" / WorldConfig("tiny").key).exists()
    if sent is not signal.SIGKILL:
        assert list(tmp_path.rglob("*.part")) == []
    deadline = time.monotonic() + 10
    while processes_of_group(started.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_of_group(started.pid) == [], "workers outlive the command"
