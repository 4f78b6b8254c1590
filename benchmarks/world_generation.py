"""`esceme synth --size small` end to end on two processes: houses, pictures, features and instructions."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.measure import Amount

PROCESSES, MAX_SECONDS = 2, 150


class WorldSummary(msgspec.Struct):
    """A part of the JSON object that the command prints."""

    houses: int
    viewpoints: int
    instructions: int


def run(_data: Path | None = None) -> Iterator[Amount]:
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "esceme", "synth", "--out", f"{folder}/world", "--size", "small"]
        program += ["--processes", f"{PROCESSES}", "--no-cache", "--json"]
        begin = time.perf_counter()
        output = subprocess.run(program, check=True, stdout=subprocess.PIPE).stdout
        elapsed = time.perf_counter() - begin
    world = msgspec.json.decode(output, type=WorldSummary)
    parts = f"{world.houses} houses, {world.viewpoints:,} pictures, {world.instructions:,} R2R instructions"
    speed = f"{world.viewpoints / elapsed:.1f} pictures per second, including features and instructions"
    bound = f"rendering and encoding; {speed}"
    yield Amount(
        f"the small world ({parts}), wall clock of {PROCESSES} processes", elapsed, "s", MAX_SECONDS, bound
    )
