"""Jobs in processes of their own, side by side: heard while they work, and ended together."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

import torch

from esceme.errors import EscemeError
from esceme.evaluation.shards import end_with_parent


class News(NamedTuple):
    """What a job tells of itself."""

    job: str
    done: int = 0
    total: int = 0
    said: Mapping[str, float] | None = None
    """Numbers to show beside the bar: losses."""
    note: str = ""
    """Something to know; then nothing else is told."""


Hear = Callable[[News], None]


class Fault(NamedTuple):
    """What went wrong with a job."""

    job: str
    message: str


class Voice:
    """How a job tells of itself."""

    def __init__(self, job: str, mouth: Connection) -> None:
        """Tell about `job`."""
        self._job, self._mouth = job, mouth

    def count(self, done: int, total: int, said: Mapping[str, float] | None = None) -> None:
        """Tell how much is done, and of how much."""
        self._mouth.send(News(self._job, done, total, said))

    def note(self, message: str) -> None:
        """Tell something to know."""
        self._mouth.send(News(self._job, note=message))


class Job(NamedTuple):
    """Something to do; it has to pickle."""

    name: str
    work: Callable[[Voice], object]


@dataclass
class _Worker:
    """A process at work, where it is heard, and at which job it was when it was last heard."""

    process: SpawnProcess
    ear: Connection
    job: str


def side_by_side(teams: Sequence[Sequence[Job]], hear: Hear) -> None:
    """Let every team do its jobs one after the other, in a process of one thread, and tell how they go.

    Raises `EscemeError` with the message of the first job that fails. No process outlives the call: not when
    another one fails, not when it is interrupted.
    """
    workers: list[_Worker] = []
    try:
        with _ignoring_interrupts():
            for jobs in filter(None, teams):
                workers.append(_start(jobs))
        _listen(workers, hear)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()
            worker.ear.close()


def _start(jobs: Sequence[Job]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ear, mouth = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(jobs, mouth), daemon=True)
    process.start()
    mouth.close()  # the process has its own; when that is closed, it has ended
    return _Worker(process, ear, jobs[0].name)


def _listen(workers: Sequence[_Worker], hear: Hear) -> None:
    """Tell on what is heard until all have ended."""
    by_ear = {worker.ear: worker for worker in workers}
    while by_ear:
        for ear in wait(list(by_ear)):
            assert isinstance(ear, Connection)
            try:
                news = ear.recv()
            except (EOFError, OSError):  # the end, or in the middle of a word
                _require_success(by_ear.pop(ear))
                continue
            by_ear[ear].job = news.job
            if isinstance(news, Fault):
                raise EscemeError(f"{news.job}: {news.message}")
            hear(news)


def _require_success(worker: _Worker) -> None:
    worker.process.join()
    if code := worker.process.exitcode:
        raise EscemeError(
            f"{worker.job}: its process ended early (code {code}); "
            "what was done is kept: start again to go on"
        )


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C: whoever started them ends them."""
    if threading.current_thread() is not threading.main_thread():  # nobody interrupts another thread
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# -- in the process --------------------------------------------------------------------------------------


def _work(jobs: Sequence[Job], mouth: Connection) -> None:
    """Do the jobs, as long as whoever started the process lives."""
    torch.set_num_threads(1)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with suppress(BrokenPipeError):  # nobody listens any more
        for job in jobs:
            try:
                job.work(Voice(job.name, mouth))
            except EscemeError as error:
                mouth.send(Fault(job.name, str(error)))
                return
