"""Run manager: carries out a plan in worker processes, reuses what is finished, and resumes the rest."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from esceme import __version__
from esceme.agents import AGENTS
from esceme.errors import CheckpointError, EscemeError
from esceme.evaluation import evaluate, read_result
from esceme.evaluation.journal import OtherJournalError
from esceme.files import read_json, write_json
from esceme.jobs import JobProgress, OnProgress, ProgressSender, SendProgress, prefix_errors_with_job
from esceme.planner_training import train_planner
from esceme.planning.planner_file import FOLDER, PLANNER_FILE, load_planner
from esceme.reproduction.planned_runs import Plan, PlannedEvaluation, PlannedFit, PlannedTraining
from esceme.runs import load_run
from esceme.source_digest import PLANNER_MODULES, source_digest
from esceme.training import require_same_experiment, train
from esceme.workers import Job, iterate_jobs

FINISHED_FILE = "finished.json"
SECONDS_PER_EPISODE = 0.01
"""Rough duration of training on one episode; only ratios between jobs matter."""
A2C_FACTOR, ALL_VIEWS_FACTOR, STEPWISE_FACTOR = 2.0, 2.0, 3.0
"""Ratios of durations: imitation and A2C to imitation alone, all views to candidates alone, and step after
step to all steps at once."""
EVALUATION_SECONDS, EPISODES = 25.0, 720
"""Rough duration of one pass of an evaluation, and its number of episodes."""
PLANNER_FACTOR, FIT_SECONDS = 4.0, 300.0
"""Ratio of the durations of an evaluation with and without a planner, and rough duration of a fit."""


class FinishedTraining(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `finished.json`: what determined the weights, and how long the training took."""

    key: str
    weights: str
    """SHA-256 of the weights."""
    facts: dict[str, Any]
    """Digests of code and data, and the seed."""
    version: str
    seconds: float


class JobEvent(NamedTuple):
    """A job that has ended: its name, how many of all jobs have ended, and the time left."""

    name: str
    done: int
    total: int
    seconds_left: float


PlannedJob = PlannedTraining | PlannedFit | PlannedEvaluation


def run_plan(
    plan: Plan,
    *,
    processes: int,
    on_progress: OnProgress = lambda name, progress: None,
    on_job_end: Callable[[JobEvent], None] = lambda event: None,
    note: Callable[[str], None] = lambda message: None,
) -> None:
    """Carry out all trainings and evaluations of a plan that are not finished.

    The caller must hold the lock of the output folder. A damaged run or evaluation is set aside and made
    again, and `note` receives a message.
    """
    finished = {key for key, training in plan.trainings.items() if _is_trained(training, note)}
    trainings = [training for key, training in plan.trainings.items() if key not in finished]
    fits = [fit for key, fit in plan.fits.items() if key not in finished or not _is_fitted(fit)]
    again = {fit.name for fit in fits}
    evaluations = [
        evaluation
        for evaluation in plan.evaluations.values()
        if evaluation.training.key not in finished
        or (evaluation.fit is not None and evaluation.fit.name in again)
        or not _is_evaluated(evaluation, note)
    ]
    jobs = _longest_first([*trainings, *fits, *evaluations])
    clock = _Clock(jobs.values(), on_job_end)
    work = [
        Job(name, partial(_run_planned_job, plan.config.data, job), after=_find_prerequisite(job, jobs))
        for name, job in jobs.items()
    ]
    for _ in iterate_jobs(
        work, processes=processes, on_message=on_progress, on_end=lambda name: clock.end(jobs[name])
    ):
        pass


def _find_prerequisite(job: PlannedJob, unfinished: Mapping[str, PlannedJob]) -> str:
    """Return the name of the unfinished job that must end before `job` starts; empty for none."""
    return job.prerequisite.name if job.prerequisite and job.prerequisite.name in unfinished else ""


def _longest_first(jobs: Sequence[PlannedJob]) -> dict[str, PlannedJob]:
    """Return a dict from name to job. A job with the jobs that wait for it comes before shorter ones.

    In `jobs` every job stands behind its prerequisite, as in the result. Cores then are idle for a short time
    only, at the end.
    """
    by_name = {job.name: job for job in jobs}
    seconds: dict[str, float] = {job.name: _rough_seconds(job) for job in jobs}  # to the end of all that wait
    for job in reversed(jobs):
        if before := _find_prerequisite(job, by_name):
            seconds[before] = max(seconds[before], _rough_seconds(by_name[before]) + seconds[job.name])
    return dict(sorted(by_name.items(), key=lambda item: -seconds[item[0]]))


class _Clock:
    """Counts jobs and estimates the time left from the durations of the jobs that have ended."""

    def __init__(self, jobs: Collection[PlannedJob], on_job_end: Callable[[JobEvent], None]) -> None:
        self._total, self._done, self._start = len(jobs), 0, time.monotonic()
        self._left, self._ended = sum(map(_rough_seconds, jobs)), 0.0
        self._on_job_end = on_job_end

    def end(self, job: PlannedJob) -> None:
        rough = _rough_seconds(job)
        self._done, self._left, self._ended = self._done + 1, self._left - rough, self._ended + rough
        seconds = max(0.0, (time.monotonic() - self._start) * self._left / self._ended)
        self._on_job_end(JobEvent(job.name, self._done, self._total, seconds))


def _rough_seconds(job: PlannedJob) -> float:
    if isinstance(job, PlannedFit):
        return FIT_SECONDS
    if isinstance(job, PlannedEvaluation):
        share = 1.0 if job.config.limit is None else min(1.0, 0.05 + job.config.limit / EPISODES)
        share *= PLANNER_FACTOR if job.fit else 1.0
        return EVALUATION_SECONDS * job.config.num_passes * share
    training = job.experiment.training
    seconds = SECONDS_PER_EPISODE * training.iterations * training.batch
    seconds *= A2C_FACTOR if training.method == "imitation+a2c" else 1.0
    agent = AGENTS[job.experiment.navigator.agent_name]
    seconds *= 1.0 if agent.supports_decide_all else STEPWISE_FACTOR
    sees_all_views = getattr(job.experiment.navigator.agent, "context_views", False)
    return seconds * (ALL_VIEWS_FACTOR if sees_all_views else 1.0)


# -- finished work ----------------------------------------------------------------------------------------


def _is_trained(training: PlannedTraining, note: Callable[[str], None]) -> bool:
    """Return whether a training is finished. If its folder is damaged, rename the folder."""
    path = training.folder / FINISHED_FILE
    try:
        if not path.exists():
            require_same_experiment(training.experiment, training.folder)
            return False
        stored = read_json(path, FinishedTraining)
        if stored.weights == load_run(training.folder).weights_hash and stored.key == training.key:
            return True
        _set_aside(training.folder, "its weights are not those that were trained", note)
    except EscemeError as error:
        _set_aside(training.folder, str(error), note)
    return False


def _is_fitted(fit: PlannedFit) -> bool:
    """Return whether the planner of a training is fitted to its weights by this code and with these settings.

    A planner that is not is fitted again, over the old one.
    """
    if not (fit.training.folder / FOLDER / PLANNER_FILE).is_file():
        return False
    try:
        weights = read_json(fit.training.folder / FINISHED_FILE, FinishedTraining).weights
        stored, _ = load_planner(fit.training.folder)
    except EscemeError:
        return False
    expected = {"weights": weights, "code": source_digest(PLANNER_MODULES)}
    is_same = stored.fit.get("settings") == msgspec.json.decode(msgspec.json.encode(fit.config))
    return is_same and expected.items() <= stored.digests.items()


def _is_evaluated(evaluation: PlannedEvaluation, note: Callable[[str], None]) -> bool:
    """Return whether an evaluation is finished. If its folder is damaged, rename the folder."""
    if not (evaluation.folder / "result.json").exists():
        return False
    try:
        weights = read_json(evaluation.training.folder / FINISHED_FILE, FinishedTraining).weights
        facts = read_result(evaluation.folder).facts
        planner = None
        if evaluation.fit is not None:
            planner = msgspec.to_builtins(load_planner(evaluation.training.folder)[0])
        if facts.get("hashes", {}).get("weights") == weights and facts.get("planner") == planner:
            return True
        _set_aside(evaluation.folder, "a result of other weights or of another planner", note)
    except EscemeError as error:
        _set_aside(evaluation.folder, str(error), note)
    return False


def _set_aside(folder: Path, reason: str, note: Callable[[str], None]) -> None:
    """Rename a damaged folder; only an earlier folder of the new name is deleted."""
    aside = folder.with_name(f"{folder.name}.damaged")
    note(f"{folder}: damaged, and made again ({reason}); the old files are in {aside.name}")
    if aside.exists():
        shutil.rmtree(aside)
    folder.rename(aside)


# -- in a worker process ----------------------------------------------------------------------------------


def _run_planned_job(data: Path, job: PlannedJob, send: SendProgress) -> None:
    with prefix_errors_with_job(job.name):
        if isinstance(job, PlannedTraining):
            _train_planned(data, job, send)
        elif isinstance(job, PlannedFit):
            train_planner(
                job.training.folder,
                data,
                job.config,
                features=job.training.experiment.features,
                note=lambda message: send(JobProgress(note=message)),
            )
        else:
            _evaluate_planned(job, send)


def _train_planned(data: Path, job: PlannedTraining, send: SendProgress) -> None:
    start = time.monotonic()
    try:
        train(job.experiment, data, job.folder, callback=ProgressSender(send))
    except CheckpointError as error:  # no state can be resumed from
        if not (job.folder / "state").exists():
            raise
        _set_aside(job.folder, str(error), lambda message: send(JobProgress(note=message)))
        train(job.experiment, data, job.folder, callback=ProgressSender(send))
    finished = FinishedTraining(
        key=job.key,
        weights=load_run(job.folder).weights_hash,
        facts=dict(job.facts),
        version=__version__,
        seconds=time.monotonic() - start,
    )
    write_json(job.folder / FINISHED_FILE, finished)


def _evaluate_planned(job: PlannedEvaluation, send: SendProgress) -> None:
    def note(message: str) -> None:
        send(JobProgress(note=message))

    def on_progress(done: int, total: int) -> None:
        send(JobProgress(done, total))

    try:
        evaluate(job.config, job.folder, on_progress=on_progress, note=note)
    except OtherJournalError as error:
        _set_aside(job.folder, str(error), note)
        evaluate(job.config, job.folder, on_progress=on_progress, note=note)
