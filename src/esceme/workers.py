"""Worker processes: run jobs in parallel, receive their messages, and end every worker with the parent."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Generic, NamedTuple, TypeVar

from esceme.errors import EscemeError

Message = TypeVar("Message")
Result = TypeVar("Result")
POLL_SECONDS = 0.1
"""Interval in seconds at which the parent process delivers messages."""
MAIN_GUARD = re.compile(r"^if\b.*(?<!\.)\b__name__\b", re.MULTILINE)
"""`if __name__ == "__main__":` at the top level of a program."""
_sender: tuple[Connection, Lock]
"""In a worker process: the pipe to the parent process and the lock of the pipe, set by `_start_worker`."""


class Job(NamedTuple, Generic[Message, Result]):
    """A call of `function(send)` in a worker process. Function, messages and result must be picklable."""

    name: str
    function: Callable[[Callable[[Message], None]], Result]
    after: str = ""
    """Name of the job that must end before this one starts; empty for none."""


def run_jobs(
    jobs: Sequence[Job[Message, Result]],
    *,
    processes: int,
    threads: int = 1,
    on_message: Callable[[str, Message], None] = lambda name, message: None,
    on_end: Callable[[str], None] = lambda name: None,
) -> list[Result]:
    """Run jobs in worker processes and return the results in the order of the jobs; see `iterate_jobs`."""
    return list(
        iterate_jobs(jobs, processes=processes, threads=threads, on_message=on_message, on_end=on_end)
    )


def iterate_jobs(
    jobs: Sequence[Job[Message, Result]],
    *,
    processes: int,
    threads: int = 1,
    on_message: Callable[[str, Message], None] = lambda name, message: None,
    on_end: Callable[[str], None] = lambda name: None,
) -> Iterator[Result]:
    """Yield the results of jobs in order, each as soon as it is available.

    No job starts before the first `next`. Jobs that wait for no other job start in order, at most `processes`
    at a time, in spawned processes with `threads` threads for linear algebra. Others start when the job that
    they wait for has ended. In this process, `on_message(job name, message)` is called for every message that
    a job sends, and `on_end(job name)` when it has ended.

    An exception in a job is raised here as soon as it occurs. If a worker dies, `EscemeError` is raised. No
    worker outlives the iteration, whether it ends by an error, by Ctrl-C, or because this process is killed.
    """
    names = [job.name for job in jobs]
    assert all(not job.after or job.after in names[:number] for number, job in enumerate(jobs))
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    ended, alive = context.Pipe(duplex=False)  # workers exit when `alive` is closed
    workers = (sender, context.Lock(), ended)
    pool = ProcessPoolExecutor(min(processes, len(jobs)) or 1, context, _start_worker, workers)
    # A worker killed while it sends leaves half a message: only this thread waits for the other half.
    received: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_queue_messages, args=(receiver, received), daemon=True).start()
    complete: set[int] = set()  # jobs whose messages have all been delivered
    waiting: dict[str, list[int]] = {}  # name of a job, or "" -> the jobs that wait for it, or for none
    for number, job in enumerate(jobs):
        waiting.setdefault(job.after, []).append(number)
    running: dict[Future[Result], int] = {}
    results: dict[int, Result] = {}  # those that were yielded are not kept in memory

    def deliver(job: int | None = None) -> None:
        """Deliver the messages received so far and, if a finished job is given, all messages of this job."""
        while not received.empty() or (job is not None and job not in complete):
            sent_by, is_end, message = pickle.loads(received.get())
            if is_end:
                complete.add(sent_by)
            else:
                on_message(jobs[sent_by].name, message)

    def submit(after: str = "") -> None:
        """Submit the jobs that wait for the given one, or for none."""
        if not (ready := waiting.pop(after, [])):
            return
        environment = _environment_variables(OMP_NUM_THREADS=str(threads))
        with environment, _ignoring_interrupts(), _importing_no_unguarded_program():
            for number in ready:
                running[pool.submit(_run_job, number, pickle.dumps(jobs[number].function))] = number
            # The pool watches a worker from the submission after the one that started it: submit once more.
            pool.submit(os.getpid)

    def end(number: int, future: Future[Result]) -> None:
        """Deliver all messages of a finished job, raise its error, and submit the jobs that wait for it."""
        if not isinstance(future.exception(), BrokenProcessPool):
            deliver(number)
        results[number] = future.result()
        on_end(jobs[number].name)
        submit(after=jobs[number].name)

    try:
        submit()
        for number in range(len(jobs)):
            while number not in results:
                finished, _ = wait(running, POLL_SECONDS, FIRST_COMPLETED)
                deliver()
                for future in finished:
                    end(running.pop(future), future)
            yield results.pop(number)
    except BrokenProcessPool:
        raise EscemeError(
            "a worker process was killed, perhaps for lack of memory; run the same command again, "
            "if possible with fewer processes"
        ) from None
    finally:
        alive.close()
        pool.shutdown(cancel_futures=True)
        ended.close()
        sender.close()  # no sender is left: `_queue_messages` ends


def _queue_messages(receiver: Connection, received: SimpleQueue[bytes]) -> None:
    """Put the messages of all workers into a queue until every worker has closed its end of the pipe."""
    with receiver, suppress(EOFError, OSError):
        while True:
            received.put(receiver.recv_bytes())


@contextmanager
def _environment_variables(**variables: str) -> Iterator[None]:
    """Set environment variables for processes that are started inside this context."""
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
def _importing_no_unguarded_program() -> Iterator[None]:
    """Keep processes that are started inside this context from running the program of this process again.

    A spawned process imports it, which runs it again if it has no `if __name__ == "__main__":`. Programs
    that have it are imported as usual, because they may define agents or readers.
    """
    program = sys.modules["__main__"]
    file = Path(getattr(program, "__file__", None) or "")
    is_script = program.__spec__ is None and file.is_file()
    if is_script and not MAIN_GUARD.search(file.read_text(errors="replace")):
        sys.modules["__main__"] = ModuleType("__main__")  # without a file
    try:
        yield
    finally:
        sys.modules["__main__"] = program


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Make processes that are started inside this context ignore Ctrl-C. The parent ends them.

    SIGTERM takes effect at the end of the context, because inside it would leave half-started processes.
    """
    if threading.current_thread() is not threading.main_thread():  # signal handlers belong to the main thread
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    terminate = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, terminate)
        if received:
            signal.raise_signal(signal.SIGTERM)


# -- in a worker process ---------------------------------------------------------------------------------


def _start_worker(connection: Connection, lock: Lock, ended: Connection) -> None:
    """Initialise a worker; `connection` sends messages, `ended` is closed when the parent ends."""
    global _sender
    _sender = connection, lock
    threading.Thread(target=_exit_with_parent, args=(ended,), daemon=True).start()


def _exit_with_parent(ended: Connection) -> None:
    """End this process when the parent closes the other end of `ended`, or dies."""
    ended.poll(None)  # returns at end of file: the parent has closed its end, or is dead
    os._exit(1)


def _run_job(number: int, function: bytes) -> Any:
    """Call the pickled `function` with a function that sends messages of job `number`."""
    try:
        return pickle.loads(function)(lambda message: _send_to_parent(number, False, message))
    finally:
        _send_to_parent(number, True, None)


def _send_to_parent(job: int, is_end: bool, message: Any) -> None:
    """Send a message of a job, or with `is_end` the mark that its messages are complete."""
    data = pickle.dumps((job, is_end, message))
    connection, lock = _sender
    with lock:
        connection.send_bytes(data)
