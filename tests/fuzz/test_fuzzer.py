"""Damaged files of every kind are refused in one line, or read with a valid meaning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
KNOWN_FAILURES: set[tuple[str, str]] = {
    ("bank", "message"),
    ("cvdn", "message"),
    ("cvdn", "silent"),
    ("data folder", "memory"),
    ("evaluated run", "hang"),
    ("experiment", "message"),
    ("hdf5 features", "memory"),
    ("hdf5 features", "message"),
    ("hdf5 features", "traceback"),
    ("journal", "silent"),
    ("manifest", "message"),
    ("objects", "memory"),
    ("packed features", "silent"),
    ("packed index", "message"),
    ("panorama", "memory"),
    ("predictions", "message"),
    ("prevalent", "message"),
    ("prevalent", "silent"),
    ("r2r", "message"),
    ("r2r", "silent"),
    ("r4r", "silent"),
    ("result", "message"),
    ("result", "silent"),
    ("reverie", "message"),
    ("reverie", "silent"),
    ("run", "hang"),
    ("run", "message"),
    ("rxr", "memory"),
    ("rxr", "silent"),
    ("tours", "message"),
    ("training log", "silent"),
    ("word vectors", "memory"),
    ("word vectors", "traceback"),
}
"""Pairs of kind and class that still have to be mended."""


def run_fuzzer(*options: str) -> list[dict[str, str]]:
    """Run the fuzzer in a process of its own, because it forks; return the outcomes."""
    paths = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "fuzz.fuzzer", "--json", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    outcomes: list[dict[str, str]] = json.loads(done.stdout)
    return outcomes


def test_damaged_files_are_refused_in_one_line_or_read_with_a_valid_meaning() -> None:
    outcomes = run_fuzzer("--cases", "300")
    assert len(outcomes) == 300
    failed = [outcome for outcome in outcomes if outcome["name"] not in ("refused", "same", "other")]
    assert [outcome for outcome in failed if (outcome["kind"], outcome["name"]) not in KNOWN_FAILURES] == []
