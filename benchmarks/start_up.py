"""`esceme evaluate` from its start to the first decision at the paper's size, against an earlier commit.

The command runs one episode of R2R val_unseen with one decision, by a network of random weights and random
features in an HDF5 file. Its whole process time is measured, scores and files included. Both versions run by
turns, after a first time that stores compiled sources and, now, digests of the files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measure import THREADS, Amount, Measurement, Ratio, Result
from benchmarks.training_versions import REPOSITORY, extract_sources
from esceme.recipes import RECIPES
from esceme.runs import save_run
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import load_split
from esceme.world.features import write_features

EARLIER, NUM_ROUNDS, LIMIT = "0afd897", 5, 3.0
"""Commit with which this version is compared, rounds, and limit in seconds."""
RECIPE, SPLIT = "r2r-hamt-esceme", "val_unseen"


def run(data: Path) -> Iterator[Result]:
    """Compare the median process times, and measure reading all files again."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        extract_sources(EARLIER, folder)
        config = RECIPES[RECIPE].navigator
        save_run(folder / "run", config.build(), config)
        write_random_features(data, folder / "drawn.hdf5", config.agent.feature_width)
        sides = {"earlier": folder / "src", "now": REPOSITORY / "src"}
        times: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(NUM_ROUNDS + 1):
            for side, source in sides.items():
                seconds = first_decision(data, folder, source, f"{side} {number}")
                times[side] += [seconds] if number else []
        paranoid = first_decision(data, folder, sides["now"], "paranoid", "--paranoid")
    earlier, now = (median(times[side]) for side in sides)
    note = f"importing torch, about 1.2 s; all: {min(times['now']):.2f} to {max(times['now']):.2f} s"
    yield Ratio(f"start to first decision against commit {EARLIER}, paper's size", earlier, now, 2, note)
    yield Amount("start to first decision", now, "s", LIMIT, note)
    yield Measurement("the same with --paranoid", f"{paranoid:.2f} s", "hashing and checking all weights")


def write_random_features(data: Path, file: Path, width: int) -> None:
    """Write random features for the scenes of the split."""
    generator, graphs = np.random.default_rng(0), load_split(DataFolder(data), "r2r", SPLIT).graphs
    keys = (f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints)
    write_features(file, ((key, generator.random((36, width), dtype=np.float32)) for key in keys))


def first_decision(data: Path, folder: Path, source: Path, name: str, *options: str) -> float:
    """Return the process time of `esceme evaluate` for one decision, with the package in `source`."""
    command = [sys.executable, "-m", "esceme", "evaluate", str(folder / "run")]
    command += ["--split", SPLIT, "--memory", "cold", "--limit", "1", "--max-steps", "1", "--bootstrap", "0"]
    command += ["--data", str(data), "--features", str(folder / "drawn.hdf5"), "--out", str(folder / name)]
    variables = {"PYTHONPATH": str(source), "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment = os.environ | variables | dict.fromkeys(THREADS, "1")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{' '.join(command)} failed"
    return usage.ru_utime + usage.ru_stime
