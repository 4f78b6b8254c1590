"""The steps of the demo: generate the world, train both agents, evaluate them, write the report."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from esceme.config import Experiment
from esceme.demo.demo_config import SPLITS, UNSEEN, DemoConfig, result_folder
from esceme.demo.demo_report import (
    AGENT_NAMES,
    DemoResult,
    SplitScores,
    format_score,
    select_trajectories,
    write_report,
)
from esceme.errors import DataError, EscemeError
from esceme.evaluation import EvaluationConfig, Result, evaluate, read_result
from esceme.learning import TrainingCallback
from esceme.synth.dataset import ProgressBar, WorldConfig, embedded_world
from esceme.training import require_same_experiment, train
from esceme.workers import Job, run_jobs

PROCESSES = 2
"""Number of trainings or evaluations that run in parallel."""
LOSS_WINDOW = 20
"""Number of last iterations whose mean loss is reported."""


class JobProgress(NamedTuple):
    """Progress of a training or evaluation: number of completed units, total and loss; or a note."""

    done: int = 0
    total: int = 0
    loss: float | None = None
    note: str = ""
    """A line of text. If it is not empty, the other fields have no meaning."""


SendProgress = Callable[[JobProgress], None]
"""Sends progress from a worker process to the parent process."""
OnProgress = Callable[[str, JobProgress], None]
"""Callback that gets the name of a job and its progress."""


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
    experiments, seconds = config.experiments(), dict[str, float]()
    _check_folders(config, experiments)
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


def _check_folders(config: DemoConfig, experiments: Mapping[str, Experiment]) -> None:
    """Raise an error if a run folder holds another experiment or the folder of the demo cannot be created."""
    for agent, experiment in experiments.items():
        require_same_experiment(experiment, config.run_folder(agent))
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{config.out}: cannot be written ({error.strerror or error})") from None


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
        Job(name, partial(_run_training_job, name, experiments[agent], world, config.run_folder(agent)))
        for name, agent in agents.items()
    ]

    def on_message(name: str, progress: JobProgress) -> None:
        if not progress.note:
            resumed_after.setdefault(agents[name], progress.done)
        on_progress(name, progress)

    run_jobs(jobs, processes=PROCESSES, on_message=on_message)
    return {agent: resumed_after[agent] for agent in experiments}


@contextmanager
def _prefix_errors_with_job(name: str) -> Iterator[None]:
    try:
        yield
    except EscemeError as error:
        raise EscemeError(f"{name}: {error}") from None


def _run_training_job(
    name: str, experiment: Experiment, world: Path, folder: Path, send: SendProgress
) -> None:
    with _prefix_errors_with_job(name):
        train(experiment, world, folder, callback=_ProgressSender(send))


class _ProgressSender(TrainingCallback):
    """Training callback that sends progress to the parent process."""

    def __init__(self, send: SendProgress) -> None:
        self._send, self._total = send, 0
        self._losses: deque[float] = deque(maxlen=LOSS_WINDOW)

    def on_train_begin(self, iteration: int, num_iterations: int) -> None:
        self._total = num_iterations
        self._send(JobProgress(iteration, num_iterations))

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._losses.append(metrics["imitation"])
        self._send(JobProgress(iteration, self._total, fmean(self._losses)))

    def on_validation_end(
        self, iteration: int, scores: Mapping[str, Mapping[str, float]], *, is_best: bool
    ) -> None:
        values = ", ".join(f"{split} {format_score('spl', means['spl'])}" for split, means in scores.items())
        self.on_note(f"iteration {iteration}: SPL {values}")

    def on_note(self, message: str) -> None:
        self._send(JobProgress(note=message))


def _evaluate_agents(
    evaluations: Sequence[EvaluationConfig], on_progress: OnProgress
) -> dict[str, dict[str, Result]]:
    """Run all evaluations; return a dict from split to a dict from memory protocol to result."""
    longest_first = sorted(evaluations, key=lambda config: config.num_passes, reverse=True)
    names = [f"{config.split}, {config.memory}" for config in longest_first]
    jobs = [
        Job(name, partial(_run_evaluation_job, name, config))
        for name, config in zip(names, longest_first, strict=True)
    ]
    run_jobs(jobs, processes=PROCESSES, on_message=on_progress)
    results: dict[str, dict[str, Result]] = {split: {} for split in SPLITS}
    for config in evaluations:
        results[config.split][config.memory] = read_result(result_folder(config))
    return results


def _run_evaluation_job(name: str, config: EvaluationConfig, send: SendProgress) -> None:
    with _prefix_errors_with_job(name):
        evaluate(
            config,
            result_folder(config),
            on_progress=lambda done, total: send(JobProgress(done, total)),
        )
