"""Studies of learning: the same recipes with several seeds, and tables with paired intervals.

    python -m benchmarks.studies demo          the demo's claim, on the embedded world
    python -m benchmarks.studies memory-dropout how complete memory is in training, on the embedded world
    python -m benchmarks.studies r2r           real R2R by objects and rooms (needs the datasets)
    python -m benchmarks.studies r2r-memory-dropout
    python -m benchmarks.studies agents        other agents and other modes to read a memory, embedded world
    python -m benchmarks.studies tours         the demo's agents on tours (IVLN), embedded world

A study that was interrupted goes on where it was; what is done is not done again. Differences are between
means over the seeds, episode by episode; intervals are 95 %, by drawing paths anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from esceme.config import Experiment
from esceme.evaluation import EvaluationConfig, Result, compare, evaluate, read_result
from esceme.learning import MemoryDropout
from esceme.learning.memory_dropout import Mode
from esceme.metrics import TOUR_METRICS
from esceme.recipes import RECIPES
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder, default_data
from esceme.tasks.tours import make_tours, write_tours
from esceme.training import train

WITH_MEMORY = ("cold", "two-pass", "episodic", "masked", "oracle")
FURTHER = (("cold", "two-pass"), ("masked", "cold"))
"""What is compared besides."""
LED = " led"
"""After a protocol: modes between the episodes of tours are remembered."""
LONGEST = 20
"""Episodes of a tour."""
SPLIT = "val_unseen"


@dataclass(frozen=True)
class Job:
    """One agent to be trained, after another where it starts with that one's weights, and evaluated."""

    name: str
    recipe: str
    training: dict[str, Any] = field(default_factory=dict)
    """Values of its training that differ from the recipe's; there is no validation."""
    protocols: tuple[str, ...] = ("none",)
    after: str = ""
    seeds: int = 100
    """At most so many."""
    toured: bool = False
    """Whether it is evaluated on tours."""

    def experiment(self, seed: int, folder: Path) -> Experiment:
        """What is trained."""
        recipe = RECIPES[self.recipe]
        return replace(
            recipe,
            training=replace(recipe.training, **self.training),
            validation=replace(recipe.validation, splits=()),
            start=str(folder / f"{self.after}-{seed}") if self.after else recipe.start,
            seed=seed,
        )


@dataclass(frozen=True)
class Study:
    """Agents to compare, the first protocol of the second job being the one compared with."""

    jobs: tuple[Job, ...]
    data: Callable[[], Path]
    baseline: str
    pairs: tuple[tuple[str, str], ...] = ()
    """Further rows that are compared with each other."""


def _world() -> Path:
    return embedded_world(WorldConfig("small"))


def _memory_dropout(recipe: str, training: dict[str, Any], after: str = "") -> tuple[Job, ...]:
    modes: tuple[Mode, ...] = ("as-released", "reset", "forgetting", "sampled")
    return tuple(
        Job(mode, recipe, {**training, "memory_dropout": MemoryDropout(mode=mode)}, SHOWN, after)
        for mode in modes
    )


SHOWN = ("cold", "two-pass", "episodic")
PRETRAINING = {"iterations": 450, "learning_rate": 1e-3}
FINE_TUNING = {"iterations": 200, "learning_rate": 5e-4}
STUDIES = {
    "demo": Study(
        (
            Job("none", "r2r-small"),
            Job("memory", "r2r-small-esceme", {}, WITH_MEMORY),
            Job("blind", "r2r-small-blind", seeds=2),
        ),
        _world,
        "none none",
    ),
    "memory-dropout": Study(
        (Job("none", "r2r-small"), *_memory_dropout("r2r-small-esceme", {})), _world, "none none"
    ),
    "r2r-memory-dropout": Study(
        (
            Job("shared", "r2r-semantic-small", PRETRAINING, ()),
            Job("none", "r2r-semantic-small", FINE_TUNING, after="shared"),
            *_memory_dropout("r2r-semantic-small-esceme", FINE_TUNING, after="shared"),
        ),
        default_data,
        "none none",
    ),
    "agents": Study(
        (
            Job("none", "r2r-small"),
            Job("max", "r2r-small-esceme", {}, ("cold", "two-pass")),
            Job("mean", "r2r-small-esceme-mean", {}, ("cold", "two-pass")),
            Job("graph", "r2r-small-ge", {}, ("cold", "two-pass")),
            Job("both", "r2r-small-both", {}, ("cold", "two-pass")),
            Job("tdstp", "r2r-tdstp-small"),
            Job("tdstp-memory", "r2r-tdstp-small-esceme", {}, ("cold", "two-pass")),
        ),
        _world,
        "none none",
        (("tdstp none", "tdstp-memory cold"), ("max cold", "both cold"), ("mean cold", "max cold")),
    ),
    "tours": Study(
        (
            Job("none", "ir2r-small", toured=True),
            Job("memory", "ir2r-small-esceme", {}, ("tour", "tour" + LED, "episodic"), toured=True),
        ),
        _world,
        "none none",
    ),
    "r2r": Study(
        (
            Job("shared", "r2r-semantic-small", PRETRAINING, ()),
            Job("none", "r2r-semantic-small", FINE_TUNING, after="shared"),
            Job("memory", "r2r-semantic-small-esceme", FINE_TUNING, WITH_MEMORY, after="shared"),
        ),
        default_data,
        "none none",
    ),
}


def main(arguments: Sequence[str]) -> None:
    """Carry out a study and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--only", type=int, help="live this seed alone, and print no table")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--features", default="", help="the feature file, where the data folder has none")
    given = parser.parse_args(arguments)
    study, folder = STUDIES[given.study], given.out / given.study
    data = study.data()
    if given.only is not None:
        live(given.study, given.only, folder, data, given.features)
        return
    if given.processes > 1:
        with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
            seeds = [
                pool.submit(live, given.study, seed, folder, data, given.features)
                for seed in range(given.seeds)
            ]
            for each in seeds:
                each.result()
    else:
        for seed in range(given.seeds):
            live(given.study, seed, folder, data, given.features)
    print(table(study, folder, given.seeds))


def live(name: str, seed: int, folder: Path, data: Path, features: str) -> None:
    """Train and evaluate all agents of a study with one seed, as far as that has not been done."""
    torch.set_num_threads(1)
    for job in (job for job in STUDIES[name].jobs if seed < job.seeds):
        run = folder / f"{job.name}-{seed}"
        experiment = job.experiment(seed, folder)
        if features:
            experiment = replace(experiment, features=features)
        if not (run / "finished").exists():
            train(experiment, data, run)
            (run / "finished").touch()
            print(f"{run}: trained", file=sys.stderr, flush=True)
        for protocol in job.protocols:
            out = run / protocol
            if (out / "result.json").exists():
                continue
            plan = EvaluationConfig(
                run=str(run),
                data=str(data),
                split=SPLIT,
                memory=protocol.removesuffix(LED),  # type: ignore[arg-type]  # one of the protocols
                batch=16,
                features=features or None,
                tours=str(tours_of(folder, data)) if job.toured else None,
                oracle_phases=protocol.endswith(LED),
            )
            means = evaluate(plan, out).means
            print(f"{out}: SPL {100 * means['spl']:.1f}", file=sys.stderr, flush=True)


def tours_of(folder: Path, data: Path) -> Path:
    """A file of tours of the world's unseen houses, made once."""
    path = folder / "tours.json"
    if not path.exists():
        episodes = list(TASKS["r2r"].read(DataFolder(data).require("r2r", SPLIT)))
        write_tours(path, {SPLIT: make_tours(episodes, longest=LONGEST)})
    return path


def table(study: Study, folder: Path, seeds: int) -> str:
    """What was found, as markdown: means over seeds, their spread, and differences to the baseline."""
    rows = {
        f"{job.name} {protocol}": [
            read_result(folder / f"{job.name}-{seed}" / protocol) for seed in range(min(seeds, job.seeds))
        ]
        for job in study.jobs
        for protocol in job.protocols
    }
    toured = TOUR_METRICS if any(job.toured for job in study.jobs) else ()
    base = joined(rows[study.baseline])
    lines = [
        f"| agent, memory | TL | NE | SR | {''.join(f'{each} | ' for each in toured)}"
        "SPL (± over seeds) | difference of SPL [95 %] |",
        "|---" * (6 + len(toured)) + "|",
    ]
    for name, results in rows.items():
        mean = joined(results)
        spl = [100 * each.means["spl"] for each in results]
        scores = mean.means
        lines.append(
            f"| {name} | {scores['tl']:.1f} | {scores['ne']:.2f} | {100 * scores['sr']:.1f} | "
            f"{''.join(f'{100 * scores[each]:.1f} | ' for each in toured)}"
            f"{np.mean(spl):.1f} ± {np.std(spl, ddof=min(1, len(spl) - 1)):.1f} | "
            f"{'' if name == study.baseline else difference(base, mean)} |"
        )
    means = {name: joined(results) for name, results in rows.items()}
    pairs = [(f"{job.name} {a}", f"{job.name} {b}") for job in study.jobs for a, b in FURTHER]
    pairs += study.pairs
    further = [
        f"{b} against {a}: {difference(means[a], means[b])}" for a, b in pairs if a in means and b in means
    ]
    return "\n".join([*lines, "", *further])


def difference(base: Result, other: Result) -> str:
    """By how much the SPL of one is higher, with its interval."""
    found = compare([base, other], measures=("spl",)).measures[0].differences[0]
    interval = found.over_paths
    assert interval is not None
    return f"{100 * found.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def joined(results: Sequence[Result]) -> Result:
    """One result whose scores are the means over seeds, episode by episode."""
    found = [{each.id: each for each in result.episodes} for result in results]
    episodes = []
    for each in results[0].episodes:
        scores = [seed[each.id].scores for seed in found]
        mean = {name: float(np.mean([one[name] for one in scores])) for name in each.scores}
        episodes.append(
            type(each)(**{**{f: getattr(each, f) for f in each.__struct_fields__}, "scores": mean})
        )
    means = {name: float(np.mean([result.means[name] for result in results])) for name in results[0].means}
    return Result(facts=results[0].facts, means=means, episodes=episodes)


if __name__ == "__main__":
    main(sys.argv[1:])
