"""Training iterations of this version against those of an earlier commit, by turns.

Both sides run in processes of their own, with the same data, seeds and batches. Their dropout masks differ,
which is why their weights differ; `esceme verify` compares both with the original without dropout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from benchmarks.measure import THREADS, Ratio, Result
from esceme.learning import TrainingCallback
from esceme.recipes import RECIPES
from esceme.synth import WorldConfig, embedded_world
from esceme.training import prepare

EARLIER = "e2d0fe4"
"""Commit with which this version is compared."""
REPOSITORY = Path(__file__).parents[1]
NUM_BATCHES, NUM_ROUNDS = 3, 5
"""Different batches, which are repeated in every round; the median of all ratios counts."""
AT_ONCE = "matrix products at 88 GFLOP/s, then attention"
STEPWISE = "one step after another, each with many operations on small tensors"
Settings = dict[str, Any]


class Training(NamedTuple):
    """A recipe with changed settings."""

    name: str
    recipe: str
    agent: Settings
    training: Settings
    bound: str


TARGET = 1.5
TRAININGS = {
    "candidates": Training("HAMT, candidates", "r2r-small", {}, {}, AT_ONCE),
    "views": Training("HAMT, all views, memory", "r2r-small-esceme", {"context_views": True}, {}, AT_ONCE),
    "a2c": Training(
        "HAMT, all views, memory, imitation + A2C",
        "r2r-small-esceme",
        {"context_views": True},
        {"method": "imitation+a2c"},
        AT_ONCE,
    ),
    "tdstp": Training("TD-STP, candidates", "r2r-tdstp-small", {}, {}, STEPWISE),
    "duet": Training("DUET, candidates", "r2r-duet-small", {}, {}, STEPWISE),
    "map": Training("DUET, map of the memory", "r2r-duet-small-map", {}, {}, STEPWISE),
}


def run(data: Path | None) -> Iterator[Result]:
    """Compare the iterations of all trainings on the small embedded world, or of `ESCEME_TRAININGS`."""
    world = embedded_world(WorldConfig("small"))
    with TemporaryDirectory() as folder:
        extract_sources(EARLIER, Path(folder))
        for key in os.environ.get("ESCEME_TRAININGS", " ".join(TRAININGS)).split():
            yield compare(key, world, Path(folder) / "src")


def extract_sources(commit: str, folder: Path) -> None:
    """Write the package of a commit to `folder`/src, and its benchmarks to `folder`/benchmarks."""
    archive = ["git", "-C", str(REPOSITORY), "archive", commit, "src", "benchmarks"]
    files = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], check=True, input=files)


def compare(key: str, world: Path, earlier: Path) -> Ratio:
    """Return the median times of an iteration with the sources in `earlier` and with this version."""
    training, sources = TRAININGS[key], (earlier, REPOSITORY / "src")
    with ExitStack() as stack:
        program = ["-m", "benchmarks.training_versions", key, str(world)]
        sides = [stack.enter_context(start_worker(program, (path, REPOSITORY))) for path in sources]
        for batch in range(NUM_BATCHES):  # features are read at their first use
            for side in sides:
                ask_worker(side, batch)
        times = [
            [float(ask_worker(side, batch)) for side in sides]
            for _ in range(NUM_ROUNDS)
            for batch in range(NUM_BATCHES)
        ]
        for side in sides:
            assert side.stdin is not None
            side.stdin.close()
    baseline = median(before for before, _ in times)
    ratio = median(before / now for before, now in times)
    name = f"a training iteration against commit {EARLIER}: {training.name}"
    return Ratio(name, baseline, baseline / ratio, TARGET, training.bound)


def start_worker(program: Sequence[str], path: Sequence[Path]) -> subprocess.Popen[str]:
    """Start Python with the arguments `program`, and with the package and the benchmarks found in `path`."""
    return subprocess.Popen(
        [sys.executable, *program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))} | dict.fromkeys(THREADS, "1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask_worker(worker: subprocess.Popen[str], number: int) -> str:
    """Return the line with which a worker answers a number."""
    assert worker.stdin is not None and worker.stdout is not None
    print(number, file=worker.stdin, flush=True)
    return worker.stdout.readline()


def work(key: str, world: Path) -> None:
    """Train on the batches whose numbers are read, and print the process time of each iteration."""
    torch.set_num_threads(1)
    training, recipe = TRAININGS[key], RECIPES[TRAININGS[key].recipe]
    experiment = replace(
        recipe,
        navigator=replace(recipe.navigator, agent=replace(recipe.navigator.agent, **training.agent)),
        training=replace(recipe.training, **training.training),
        validation=replace(recipe.validation, splits=()),
    )
    trainer = prepare(experiment, world, Path("unused"), callback=TrainingCallback()).trainer
    for line in sys.stdin:
        begin = time.process_time()
        trainer.training_step(int(line))
        print(time.process_time() - begin, flush=True)


if __name__ == "__main__":
    work(sys.argv[1], Path(sys.argv[2]))
