"""The steps of the demo: generate the world, train both agents, evaluate them, write the report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from esceme.config import Experiment
from esceme.demo.demo_config import SPLITS, UNSEEN, DemoConfig, result_folder
from esceme.demo.demo_report import (
    AGENT_NAMES,
    PATH_LABELS,
    DemoResult,
    SplitScores,
    select_trajectories,
    write_report,
)
from esceme.evaluation import EvaluationConfig, Result, read_result
from esceme.files import folder_lock
from esceme.jobs import JobProgress, OnProgress, run_evaluation_job, run_training_job
from esceme.synth.dataset import ProgressBar, WorldConfig, embedded_world
from esceme.training import require_same_experiment
from esceme.workers import Job, run_jobs

PROCESSES = 2
"""Number of trainings or evaluations that run in parallel."""


def run_demo(
    config: DemoConfig,
    *,
    world_progress: ProgressBar = lambda numbers, label: numbers,
    on_progress: OnProgress = lambda name, progress: None,
) -> DemoResult:
    """Run the demo and write its report. An interrupted demo in the same folder is resumed.

    The result does not depend on interruptions. Raises `ConfigError` before anything is written if the folder
    holds a demo with other settings.
    """
    experiments = config.experiments()
    for agent, experiment in experiments.items():
        require_same_experiment(experiment, config.run_folder(agent))
    with folder_lock(config.out, "demo"):
        return _run_steps(config, experiments, world_progress, on_progress)


def _run_steps(
    config: DemoConfig,
    experiments: Mapping[str, Experiment],
    world_progress: ProgressBar,
    on_progress: OnProgress,
) -> DemoResult:
    seconds: dict[str, float] = {}
    with _record_duration("world", seconds):
        world = embedded_world(WorldConfig(config.size), progress=world_progress)
    with _record_duration("training", seconds):
        resumed_after = _train_agents(config, experiments, world, on_progress)
    with _record_duration("evaluation", seconds):
        results = _evaluate_agents(config.evaluations(world), on_progress)
    result = DemoResult(
        config=config,
        world=world,
        resumed_after=resumed_after,
        seconds=seconds,
        scores={split: SplitScores.of(split, results[split]) for split in SPLITS},
        episodes=tuple(select_trajectories(results[UNSEEN])),
    )
    write_report(result, results[UNSEEN])
    return result


@contextmanager
def _record_duration(name: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[name] = time.monotonic() - start


def _train_agents(
    config: DemoConfig, experiments: Mapping[str, Experiment], world: Path, on_progress: OnProgress
) -> dict[str, int]:
    """Train the agents in parallel.

    Returns a dict from agent to the number of iterations that an earlier, interrupted demo had completed.
    """
    agents = {AGENT_NAMES[agent]: agent for agent in experiments}
    resumed_after: dict[str, int] = {}
    jobs = [
        Job(name, partial(run_training_job, name, experiments[agent], world, config.run_folder(agent)))
        for name, agent in agents.items()
    ]

    def on_message(name: str, progress: JobProgress) -> None:
        if not progress.note:
            resumed_after.setdefault(agents[name], progress.done)
        on_progress(name, progress)

    run_jobs(jobs, processes=PROCESSES, on_message=on_message)
    return {agent: resumed_after[agent] for agent in experiments}


def _evaluate_agents(
    evaluations: Sequence[EvaluationConfig], on_progress: OnProgress
) -> dict[str, dict[str, Result]]:
    """Run all evaluations; return a dict from split to a dict from memory protocol to result."""
    longest_first = sorted(evaluations, key=lambda config: config.num_passes, reverse=True)
    names = [f"{config.split}, {config.memory}" for config in longest_first]
    jobs = [
        Job(name, partial(run_evaluation_job, name, config, result_folder(config), trace=_is_on_page(config)))
        for name, config in zip(names, longest_first, strict=True)
    ]
    run_jobs(jobs, processes=PROCESSES, on_message=on_progress)
    results: dict[str, dict[str, Result]] = {split: {} for split in SPLITS}
    for config in evaluations:
        results[config.split][config.memory] = read_result(result_folder(config))
    return results


def _is_on_page(config: EvaluationConfig) -> bool:
    """Return whether the page shows this evaluation, which is then traced."""
    return config.split == UNSEEN and config.memory in PATH_LABELS
