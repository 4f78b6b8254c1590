"""Short runs of the fuzzer, and of the harness that stops commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """The environment of a process that imports from the folder of the tests."""
    paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def run_fuzzer(*options: str) -> list[dict[str, str]]:
    """Run the fuzzer in a process of its own, because it forks; return the outcomes."""
    command = [sys.executable, "-m", "fuzz.fuzzer", "--json", *options]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    outcomes: list[dict[str, str]] = json.loads(done.stdout)
    return outcomes


def test_damaged_files_are_refused_in_one_line_or_read_with_a_valid_meaning() -> None:
    outcomes = run_fuzzer("--cases", "300")
    assert len(outcomes) == 300
    assert [outcome for outcome in outcomes if outcome["name"] not in ("refused", "same", "other")] == []


def test_stopped_commands_and_full_disks_leave_whole_files_and_can_be_run_again() -> None:
    scenarios = ("evaluate", "evaluate in store", "pack", "bank", "import")
    command = [
        sys.executable,
        "-m",
        "fuzz.kills",
        "--kills",
        "20",
        "--full-disks",
        "10",
        "--only",
        *scenarios,
    ]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "30 runs of seed 0" in done.stdout


SELF_CHECK = """
import os, signal, time
from pathlib import Path
from unittest.mock import patch

from esceme.cli.console import note
from fuzz import fuzzer
from fuzz.inputs import InputKind
from fuzz.mutations import Mutation

def react(function):
    return lambda file: function() if file.read_bytes() != b"whole" else None

FAULTS = {
    "silent": lambda: "another meaning",
    "message": lambda: print(chr(27)),
    "traceback": lambda: [][0],
    "hang": lambda: time.sleep(100),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "memory": lambda: bytearray(100 << 20) and None,
}
kinds = [InputKind(name, ("file",), (react(fault),), has_checksum=True) for name, fault in FAULTS.items()]
with (
    patch.multiple(fuzzer, KINDS=kinds, TIMEOUT=2.0, write_inputs=lambda: Path("file").write_text("whole")),
    patch("fuzz.fuzzer._replace_file", lambda rng, path: Mutation("none", path.read_bytes())),
):
    for outcome in fuzzer.run_cases(0, range(18)):
        assert outcome.name in (outcome.kind, "same"), outcome
        print(outcome.name)
"""


def test_every_class_of_failure_is_noticed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SELF_CHECK], env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} >= {"silent", "message", "traceback", "hang", "crash", "memory"}


# -- writers of memory stores --------------------------------------------------------------------------------


def test_killed_writers_lose_no_acknowledged_observation() -> None:
    command = [sys.executable, "-m", "fuzz.store_kills", "--kills", "24"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 faults" in done.stdout


@pytest.mark.slow
def test_many_killed_writers_lose_no_acknowledged_observation() -> None:
    command = [sys.executable, "-m", "fuzz.store_kills", "--kills", "150", "--seed", "1"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


EARLY_ACKNOWLEDGEMENT = """
import tempfile
from pathlib import Path
from random import Random

from esceme.memory.store import MemoryStore
from fuzz import store_kills

remember, waiting = MemoryStore.remember, []

def remember_later(store, observations):
    waiting.extend(observations)
    return remember(store, [waiting.pop(0) for _ in waiting[3:]])

MemoryStore.remember = remember_later
with tempfile.TemporaryDirectory() as folder:
    print(store_kills.run_round(Path(folder), Random(0), 12).faults)
"""


def test_a_store_that_acknowledges_too_early_is_noticed() -> None:
    command = [sys.executable, "-c", EARLY_ACKNOWLEDGEMENT]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert "was acknowledged and is lost" in done.stdout, done.stderr
