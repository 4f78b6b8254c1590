"""Worker processes: run jobs in parallel, receive their messages, and end every worker with the parent."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from esceme.errors import EscemeError

Message = TypeVar("Message")
Result = TypeVar("Result")
POLL_SECONDS = 0.1
"""Interval at which the parent reads messages."""
_messages: SimpleQueue[Any]
"""In a worker process: the queue to the parent, set by `_start_worker`."""


class Job(NamedTuple, Generic[Message, Result]):
    """One call of `function(send)` in a worker process; function, messages and result must pickle."""

    name: str
    function: Callable[[Callable[[Message], None]], Result]


def run_jobs(
    jobs: Sequence[Job[Message, Result]],
    *,
    processes: int,
    threads: int = 1,
    on_message: Callable[[str, Message], None] = lambda name, message: None,
) -> list[Result]:
    """Run jobs in worker processes and return their results in the order of the jobs; see `iterate_jobs`."""
    return list(iterate_jobs(jobs, processes=processes, threads=threads, on_message=on_message))


def iterate_jobs(
    jobs: Sequence[Job[Message, Result]],
    *,
    processes: int,
    threads: int = 1,
    on_message: Callable[[str, Message], None] = lambda name, message: None,
) -> Iterator[Result]:
    """Yield the results of jobs in order, as soon as they are available; jobs start with the first `next`.

    Jobs start in order, at most `processes` at a time, in spawned processes with `threads` threads for linear
    algebra. `on_message(job name, message)` is called in this process for every message a job sends.

    An exception of a job is raised here as soon as it occurs. A worker that dies raises `EscemeError`. No
    worker outlives the iteration, whether it ends by an error, by Ctrl-C, or because this process is killed.
    """
    context = get_context("spawn")
    messages: SimpleQueue[tuple[str, Message]] = context.SimpleQueue()
    ended, alive = context.Pipe(duplex=False)  # workers exit when `alive` is closed
    pool = ProcessPoolExecutor(min(processes, len(jobs)) or 1, context, _start_worker, (messages, ended))

    def deliver() -> None:
        while not messages.empty():
            on_message(*messages.get())

    try:
        with _environment(OMP_NUM_THREADS=str(threads)), _ignoring_interrupts():
            futures = deque(pool.submit(_run, job) for job in jobs)
        pending = set(futures)
        while futures:
            while not futures[0].done():
                finished, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
                deliver()
                for future in finished:
                    future.result()
            deliver()
            yield futures.popleft().result()  # results that were yielded are not kept in memory
    except BrokenProcessPool:
        raise EscemeError(
            "a worker process was killed, perhaps for lack of memory; what was finished is kept: "
            "run the same command again to continue"
        ) from None
    finally:
        alive.close()
        pool.shutdown(cancel_futures=True)
        ended.close()
        messages.close()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables for processes that are started inside the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Let processes started inside the block ignore Ctrl-C: the parent ends them."""
    if threading.current_thread() is not threading.main_thread():  # signal handlers belong to the main thread
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# -- in a worker process ---------------------------------------------------------------------------------


def _start_worker(messages: SimpleQueue[Any], ended: Connection) -> None:
    global _messages
    _messages = messages
    threading.Thread(target=_exit_when_closed, args=(ended,), daemon=True).start()


def _exit_when_closed(ended: Connection) -> None:
    ended.poll(None)  # returns at end of file: the parent has closed its end, or is dead
    os._exit(1)


def _run(job: Job[Message, Result]) -> Result:
    return job.function(lambda message: _messages.put((job.name, message)))
