"""Studies: recipes trained with several seeds, and tables with paired intervals.

    python -m benchmarks.studies demo          the demo's claim, on the embedded world
    python -m benchmarks.studies memory-dropout  the modes of memory dropout, on the embedded world
    python -m benchmarks.studies r2r           real R2R by objects and rooms (needs the datasets)
    python -m benchmarks.studies r2r-memory-dropout
    python -m benchmarks.studies agents        other agents and readers, on the embedded world
    python -m benchmarks.studies tours         the demo's agents on tours (IVLN), on the embedded world

An interrupted study resumes; finished runs and evaluations are not repeated. Differences are between means
over the seeds, per episode; intervals are 95 %, by a bootstrap over paths.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from esceme.config import Experiment
from esceme.evaluation import EvaluationConfig, Result, average_results, compare, evaluate, read_result
from esceme.learning import MemoryDropout
from esceme.learning.memory_dropout import MemoryDropoutMode
from esceme.metrics import TOUR_METRICS
from esceme.recipes import RECIPES
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder, default_data
from esceme.tasks.tours import make_tours, write_tours
from esceme.training import train
from esceme.workers import Job, run_jobs

WITH_MEMORY = ("cold", "two-pass", "episodic", "masked", "oracle")
PROTOCOL_PAIRS = (("cold", "two-pass"), ("masked", "cold"))
"""Protocols of the same agent that are compared."""
ORACLE_PHASES = " led"
"""Suffix of a protocol: memory includes the oracle's paths between the episodes of a tour."""
TOUR_LENGTH = 20
"""Maximum number of episodes of a tour."""
SPLIT = "val_unseen"


@dataclass(frozen=True)
class AgentRun:
    """One agent to train and evaluate."""

    name: str
    recipe: str
    training: dict[str, Any] = field(default_factory=dict)
    """Settings of training that differ from the recipe's; there is no validation."""
    protocols: tuple[str, ...] = ("none",)
    after: str = ""
    """Name of the agent whose weights it starts from."""
    max_seeds: int = 100
    uses_tours: bool = False
    """Whether it is evaluated on tours."""

    def experiment(self, seed: int, folder: Path) -> Experiment:
        """Return the experiment of a seed."""
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
    """Agents to compare; `baseline` is the agent and the protocol of the row to compare with."""

    agents: tuple[AgentRun, ...]
    data: Callable[[], Path]
    baseline: str
    pairs: tuple[tuple[str, str], ...] = ()
    """Other rows to compare with each other."""


def _world() -> Path:
    return embedded_world(WorldConfig("small"))


def _memory_dropout(recipe: str, training: dict[str, Any], after: str = "") -> tuple[AgentRun, ...]:
    return tuple(
        AgentRun(mode, recipe, {**training, "memory_dropout": MemoryDropout(mode=mode)}, SHOWN, after)
        for mode in get_args(MemoryDropoutMode)
    )


SHOWN = ("cold", "two-pass", "episodic")
PRETRAINING = {"iterations": 450, "learning_rate": 1e-3}
FINE_TUNING = {"iterations": 200, "learning_rate": 5e-4}
STUDIES = {
    "demo": Study(
        (
            AgentRun("none", "r2r-small"),
            AgentRun("memory", "r2r-small-esceme", {}, WITH_MEMORY),
            AgentRun("blind", "r2r-small-blind", max_seeds=2),
        ),
        _world,
        "none none",
    ),
    "memory-dropout": Study(
        (AgentRun("none", "r2r-small"), *_memory_dropout("r2r-small-esceme", {})), _world, "none none"
    ),
    "r2r-memory-dropout": Study(
        (
            AgentRun("shared", "r2r-semantic-small", PRETRAINING, ()),
            AgentRun("none", "r2r-semantic-small", FINE_TUNING, after="shared"),
            *_memory_dropout("r2r-semantic-small-esceme", FINE_TUNING, after="shared"),
        ),
        default_data,
        "none none",
    ),
    "agents": Study(
        (
            AgentRun("none", "r2r-small"),
            AgentRun("max", "r2r-small-esceme", {}, ("cold", "two-pass")),
            AgentRun("mean", "r2r-small-esceme-mean", {}, ("cold", "two-pass")),
            AgentRun("graph", "r2r-small-ge", {}, ("cold", "two-pass")),
            AgentRun("both", "r2r-small-both", {}, ("cold", "two-pass")),
            AgentRun("tdstp", "r2r-tdstp-small"),
            AgentRun("tdstp-memory", "r2r-tdstp-small-esceme", {}, ("cold", "two-pass")),
        ),
        _world,
        "none none",
        (("tdstp none", "tdstp-memory cold"), ("max cold", "both cold"), ("mean cold", "max cold")),
    ),
    "tours": Study(
        (
            AgentRun("none", "ir2r-small", uses_tours=True),
            AgentRun(
                "memory",
                "ir2r-small-esceme",
                {},
                ("tour", "tour" + ORACLE_PHASES, "episodic"),
                uses_tours=True,
            ),
        ),
        _world,
        "none none",
    ),
    "r2r": Study(
        (
            AgentRun("shared", "r2r-semantic-small", PRETRAINING, ()),
            AgentRun("none", "r2r-semantic-small", FINE_TUNING, after="shared"),
            AgentRun("memory", "r2r-semantic-small-esceme", FINE_TUNING, WITH_MEMORY, after="shared"),
        ),
        default_data,
        "none none",
    ),
}


def main(arguments: Sequence[str]) -> None:
    """Run a study and print its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("studies"))
    parser.add_argument("--only", type=int, help="run only this seed, and print no table")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--features", default="", help="the feature file, where the data folder has none")
    options = parser.parse_args(arguments)
    study, folder = STUDIES[options.study], options.out / options.study
    data = study.data()
    if options.only is not None:
        run_seed(options.study, options.only, folder, data, options.features, log)
        return
    jobs = [
        Job(f"seed {seed}", partial(run_seed, options.study, seed, folder, data, options.features))
        for seed in range(options.seeds)
    ]
    run_jobs(jobs, processes=options.processes, on_message=lambda name, message: log(message))
    print(table(study, folder, options.seeds))


def log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def run_seed(
    name: str, seed: int, folder: Path, data: Path, features: str, send: Callable[[str], None]
) -> None:
    """Train and evaluate all agents of a study with one seed, except those that are finished.

    `send` receives a message after each training and each evaluation.
    """
    torch.set_num_threads(1)
    for agent in (agent for agent in STUDIES[name].agents if seed < agent.max_seeds):
        run = folder / f"{agent.name}-{seed}"
        experiment = agent.experiment(seed, folder)
        if features:
            experiment = replace(experiment, features=features)
        if not (run / "finished").exists():
            train(experiment, data, run)
            (run / "finished").touch()
            send(f"{run}: trained")
        for protocol in agent.protocols:
            out = run / protocol
            if (out / "result.json").exists():
                continue
            config = EvaluationConfig(
                run=str(run),
                data=str(data),
                split=SPLIT,
                memory=protocol.removesuffix(ORACLE_PHASES),  # type: ignore[arg-type]  # one of the protocols
                batch=16,
                features=features or None,
                tours=str(find_tours(folder, data)) if agent.uses_tours else None,
                oracle_phases=protocol.endswith(ORACLE_PHASES),
            )
            means = evaluate(config, out).means
            send(f"{out}: SPL {100 * means['spl']:.1f}")


def find_tours(folder: Path, data: Path) -> Path:
    """Return the file of tours of unseen scenes; write it if there is none."""
    path = folder / "tours.json"
    if not path.exists():
        episodes = list(TASKS["r2r"].read(DataFolder(data).require("r2r", SPLIT)))
        write_tours(path, {SPLIT: make_tours(episodes, longest=TOUR_LENGTH)})
    return path


def table(study: Study, folder: Path, seeds: int) -> str:
    """Return a markdown table: means over seeds, their spread, and differences to the baseline."""
    rows = {
        f"{agent.name} {protocol}": [
            read_result(folder / f"{agent.name}-{seed}" / protocol)
            for seed in range(min(seeds, agent.max_seeds))
        ]
        for agent in study.agents
        for protocol in agent.protocols
    }
    tour_metrics = TOUR_METRICS if any(agent.uses_tours for agent in study.agents) else ()
    base = average_results(rows[study.baseline])
    lines = [
        f"| agent, memory | TL | NE | SR | {''.join(f'{metric} | ' for metric in tour_metrics)}"
        "SPL (± over seeds) | difference of SPL [95 %] |",
        "|---" * (6 + len(tour_metrics)) + "|",
    ]
    for name, results in rows.items():
        mean = average_results(results)
        spl = [100 * result.means["spl"] for result in results]
        scores = mean.means
        lines.append(
            f"| {name} | {scores['tl']:.1f} | {scores['ne']:.2f} | {100 * scores['sr']:.1f} | "
            f"{''.join(f'{100 * scores[metric]:.1f} | ' for metric in tour_metrics)}"
            f"{np.mean(spl):.1f} ± {np.std(spl, ddof=min(1, len(spl) - 1)):.1f} | "
            f"{'' if name == study.baseline else difference(base, mean)} |"
        )
    means = {name: average_results(results) for name, results in rows.items()}
    pairs = [(f"{agent.name} {a}", f"{agent.name} {b}") for agent in study.agents for a, b in PROTOCOL_PAIRS]
    pairs += study.pairs
    comparisons = [
        f"{b} against {a}: {difference(means[a], means[b])}" for a, b in pairs if a in means and b in means
    ]
    return "\n".join([*lines, "", *comparisons])


def difference(base: Result, other: Result) -> str:
    """Return the difference of SPL and its interval."""
    result = compare([base, other], measures=("spl",)).measures[0].differences[0]
    interval = result.over_paths
    assert interval is not None
    return f"{100 * result.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


if __name__ == "__main__":
    main(sys.argv[1:])
