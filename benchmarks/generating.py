"""`esceme synth --size small` end to end on two processes: houses, pictures, features and every text."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.measure import Amount

PROCESSES, MOST = 2, 150


class Made(msgspec.Struct):
    """What the command says about the world, in part."""

    houses: int
    viewpoints: int
    instructions: int


def run(_data: Path | None = None) -> Iterator[Amount]:
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "esceme", "synth", "--out", f"{folder}/world", "--size", "small"]
        program += ["--processes", f"{PROCESSES}", "--no-cache", "--json"]
        begin = time.perf_counter()
        said = subprocess.run(program, check=True, stdout=subprocess.PIPE).stdout
        taken = time.perf_counter() - begin
    made = msgspec.json.decode(said, type=Made)
    parts = f"{made.houses} houses, {made.viewpoints:,} pictures, {made.instructions:,} R2R instructions"
    speed = f"{made.viewpoints / taken:.1f} pictures per second, all that follows from them included"
    bound = f"rendering and encoding; {speed}"
    yield Amount(f"the small world ({parts}), wall clock of {PROCESSES} processes", taken, "s", MOST, bound)
