"""A time budget: measure the speed of every kind of training, then shorten trainings and evaluations."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from esceme.config import Experiment
from esceme.errors import ConfigError, EscemeError
from esceme.files import read_json, write_json
from esceme.jobs import SendProgress
from esceme.learning import TrainingCallback, ValidationConfig
from esceme.learning.validation import subsample_episodes, validate
from esceme.reproduction.manager import FIT_SECONDS, PLANNER_FACTOR
from esceme.reproduction.planned_runs import (
    MIN_ITERATIONS,
    Plan,
    PlannedEvaluation,
    ReproductionConfig,
    make_plan,
)
from esceme.reproduction.targets import Target
from esceme.tasks.catalogue import TASKS
from esceme.training import prepare
from esceme.workers import Job, run_jobs

BUDGET_FILE = "budget.json"
USED_SHARE = 0.75
"""Share of the budget that is planned for trainings and evaluations. The rest is for measuring, for reports,
for cores that are idle at the end, and for speeds that differ from those measured."""
EVALUATION_SHARE = 0.35
"""Maximum share of the planned time for evaluations, if limiting them can achieve it."""
LIMITS = (480, 360, 240, 120, 60, 30)
"""Limits of episodes per evaluation that are tried if whole splits take too long."""
SHORT_FIT_SECONDS = 60.0
"""Rough duration of the fit of a planner if evaluations are limited."""
MEASURED_STEPS = 3
MEASURED_EPISODES = 12


class Speed(msgspec.Struct, frozen=True):
    """Measured durations in seconds of one kind of agent, in one process."""

    load: float
    """Loading the data, once per training and per evaluation."""
    iteration: float
    episode: float
    """Evaluation of one episode with random weights, which take longer paths than trained ones."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `budget.json`: the request, the measured speeds, and the resulting scale and limit."""

    request: str
    """Digest of the targets, the data, the code and the settings."""
    minutes: float
    scale: float
    limit: int | None
    planned_minutes: float
    """Planned duration of all trainings and evaluations."""
    speeds: dict[str, Speed]


class _Work(NamedTuple):
    """Kinds and sizes of the jobs of a plan."""

    iterations: list[tuple[str, int]]
    evaluations: list[tuple[str, float, int, bool]]
    """Kind of agent, number of passes (planned ones count several times), number of episodes, and whether
    episodes can be limited."""
    fits: int
    """Number of planners to fit."""


def plan_within_budget(
    targets: Sequence[Target],
    config: ReproductionConfig,
    minutes: float,
    *,
    processes: int,
    note: Callable[[str], None] = lambda message: None,
) -> Plan:
    """Return a plan whose trainings and evaluations are shortened to take about `minutes` minutes.

    Speeds are measured once; an interrupted reproduction resumes with the stored numbers. The caller must
    hold the lock of the output folder.
    """
    if not minutes > 0:
        raise ConfigError(f"--budget {minutes:g}: expected a positive number of minutes")
    full = make_plan(targets, config)
    path = config.out / BUDGET_FILE
    request = _digest_request(full, minutes, processes)
    budget = _read_budget(path, request)
    if budget is None:
        note("measuring the speed of every kind of training")
        speeds = _measure_speeds(full, processes)
        budget = fit_budget(_list_work(full), speeds, request=request, minutes=minutes, processes=processes)
        write_json(path, budget, indent=1)
    limit = "all episodes" if budget.limit is None else f"at most {budget.limit} episodes per split"
    note(
        f"budget of {minutes:g} minutes: {budget.scale:.3f} times the iterations of the recipes, {limit}; "
        f"planned: {budget.planned_minutes:.0f} minutes"
    )
    if budget.planned_minutes > minutes:
        note("the budget is too small: even the shortest trainings and evaluations take longer")
    return make_plan(targets, replace(config, scale=budget.scale, limit=budget.limit))


def _digest_request(plan: Plan, minutes: float, processes: int) -> str:
    content = [sorted(plan.trainings), sorted(path.name for path in plan.evaluations), minutes, processes]
    return hashlib.sha256(msgspec.json.encode(content)).hexdigest()


def _read_budget(path: Path, request: str) -> Budget | None:
    """Return the stored budget of this request; None if there is none or it cannot be read."""
    try:
        budget = read_json(path, Budget) if path.is_file() else None
    except EscemeError:
        return None
    return budget if budget is not None and budget.request == request else None


def fit_budget(
    work: _Work, speeds: Mapping[str, Speed], *, request: str, minutes: float, processes: int
) -> Budget:
    """Return the longest trainings, and the most episodes per evaluation, that fit into a budget."""
    available = 60 * minutes * processes * USED_SHARE

    def evaluation_seconds(limit: int | None) -> float:
        return sum(
            speeds[kind].load
            + speeds[kind].episode * passes * (min(episodes, limit) if limit and can_limit else episodes)
            for kind, passes, episodes, can_limit in work.evaluations
        )

    limits = (None, *LIMITS)
    fitting = (limit for limit in limits if evaluation_seconds(limit) <= EVALUATION_SHARE * available)
    limit = next(fitting, limits[-1])
    fixed = evaluation_seconds(limit) + sum(speeds[kind].load for kind, _ in work.iterations)
    fixed += work.fits * (FIT_SECONDS if limit is None else SHORT_FIT_SECONDS)
    variable = sum(speeds[kind].iteration * count for kind, count in work.iterations)
    scale = min(1.0, max(0.0, (available - fixed) / variable)) if variable else 1.0
    seconds = fixed + sum(
        speeds[kind].iteration * max(min(count, MIN_ITERATIONS), count * scale)
        for kind, count in work.iterations
    )
    return Budget(
        request=request,
        minutes=minutes,
        scale=scale,
        limit=limit,
        planned_minutes=seconds / 60 / processes,
        speeds=dict(speeds),
    )


# -- measurement -------------------------------------------------------------------------------------------


def _kind(experiment: Experiment) -> str:
    """Return a name of all experiments whose iterations take about the same time."""
    navigator, training = experiment.navigator, experiment.training
    views = "all views" if getattr(navigator.agent, "context_views", True) else "candidates"
    parts = (navigator.task, navigator.agent_name, views, navigator.reader_name, training.method)
    return ", ".join((*parts, f"batch {training.batch}"))


def _list_work(plan: Plan) -> _Work:
    sizes: dict[tuple[str, str], int] = {}

    def num_episodes(evaluation: PlannedEvaluation) -> int:
        key = (evaluation.training.experiment.navigator.task, evaluation.config.split)
        if key not in sizes:
            sizes[key] = len(TASKS[key[0]].read(plan.config.folder.require(*key)))
        return sizes[key]

    return _Work(
        [(_kind(t.experiment), t.experiment.training.iterations) for t in plan.trainings.values()],
        [
            (
                _kind(e.training.experiment),
                e.config.num_passes * (PLANNER_FACTOR if e.fit else 1.0),
                num_episodes(e),
                e.config.tours is None,
            )
            for e in plan.evaluations.values()
        ],
        len(plan.fits),
    )


def _measure_speeds(plan: Plan, processes: int) -> dict[str, Speed]:
    kinds = {_kind(training.experiment): training.experiment for training in plan.trainings.values()}
    jobs = [
        Job(kind, partial(_measure_speed, replace(experiment, start=""), plan.config.data))
        for kind, experiment in kinds.items()
    ]
    return dict(zip(kinds, run_jobs(jobs, processes=processes), strict=True))


def _measure_speed(experiment: Experiment, data: Path, send: SendProgress) -> Speed:
    """Train for a few iterations and evaluate a few episodes in a worker process, without writing a run."""
    split = "val_unseen"
    start = time.monotonic()
    experiment = replace(experiment, validation=ValidationConfig(splits=(split,), best_split=split))
    with TemporaryDirectory() as folder:
        run = prepare(experiment, data, Path(folder) / "run", callback=TrainingCallback())
    loaded = time.monotonic()
    run.trainer.training_step(0)  # the first one also fills caches
    begun = time.monotonic()
    for iteration in range(1, 1 + MEASURED_STEPS):
        run.trainer.training_step(iteration)
    trained = time.monotonic()
    validate(
        run.trainer.navigator,
        run.atlas,
        episodes := subsample_episodes(run.validation_sets[split], MEASURED_EPISODES),
        "cold",
        task=run.navigator_config.task,
        encode=run.encode,
        max_steps=run.navigator_config.max_steps,
    )
    evaluated = time.monotonic()
    return Speed(loaded - start, (trained - begun) / MEASURED_STEPS, (evaluated - trained) / len(episodes))
