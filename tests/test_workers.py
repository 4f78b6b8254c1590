"""Worker processes: results in order, messages delivered, errors raised, no worker left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError, EscemeError
from esceme.workers import Job, iterate_jobs, run_jobs
from fixtures.jobs import (
    count_to,
    is_alive,
    kill_worker,
    kill_worker_while_sending,
    raise_bug,
    raise_data_error,
    run_forever,
    wait_for_file,
    write_file,
)

pytestmark = pytest.mark.long


def wait_for_pid(file: Path) -> int:
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(file.read_text())


def wait_until_dead(*pids: int) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_results_are_in_order_and_all_messages_are_delivered() -> None:
    received: dict[str, list[object]] = {name: [] for name in "abc"}
    results = run_jobs(
        [Job(name, partial(count_to, total)) for name, total in zip("abc", (300, 3, 0), strict=True)],
        processes=2,
        threads=3,
        on_message=lambda name, message: received[name].append(message),
    )
    assert received == {"a": list(range(301)), "b": [0, 1, 2, 3], "c": [0]}
    assert [total for total, _, _ in results] == [300, 3, 0]
    assert {threads for _, _, threads in results} == {"3"} and os.environ.get("OMP_NUM_THREADS") != "3"
    pids = {pid for _, pid, _ in results}
    assert len(pids) <= 2 and os.getpid() not in pids and not any(map(is_alive, pids))


def test_no_jobs_give_no_results() -> None:
    assert run_jobs([], processes=2) == []


def test_jobs_wait_for_the_job_that_they_name(tmp_path: Path) -> None:
    """One that waits starts although a job before it, which waits for none, is still running."""
    ended: list[str] = []
    jobs: list[Job[object, object]] = [
        Job("first", partial(count_to, 1)),
        Job("long", partial(wait_for_file, tmp_path / "end")),
        Job("second", partial(count_to, 2), after="first"),
        Job("third", partial(write_file, tmp_path / "end"), after="second"),
    ]
    results = run_jobs(jobs, processes=2, on_end=ended.append)
    assert ended == ["first", "second", "third", "long"] or ended == ["first", "second", "long", "third"]
    assert [result[0] for result in results if isinstance(result, tuple)] == [1, 2]


def test_a_job_cannot_wait_for_a_later_one() -> None:
    with pytest.raises(AssertionError):
        run_jobs([Job("a", partial(count_to, 1), after="b"), Job("b", partial(count_to, 1))], processes=1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (raise_data_error, DataError, "^no such split; expected another$"),
        (raise_bug, ZeroDivisionError, "a bug"),
        (kill_worker, EscemeError, "a worker process was killed.*run the same command again"),
        (kill_worker_while_sending, EscemeError, "a worker process was killed"),
    ],
)
def test_failing_job_raises_at_once_and_ends_the_others(
    function: object, error: type[Exception], message: str, tmp_path: Path
) -> None:
    received: list[object] = []
    jobs: list[Job[object, None]] = [
        Job("endless", partial(run_forever, tmp_path / "pid")),
        Job("failing", function),  # type: ignore[arg-type]
    ]

    def time_out(*_: object) -> None:
        raise TimeoutError("the failing job did not end the others")

    before = signal.signal(signal.SIGALRM, time_out)
    signal.alarm(60)
    try:
        with pytest.raises(error, match=message):
            run_jobs(jobs, processes=2, on_message=lambda name, message: received.append(message))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert received == (["before the error"] if error is DataError else [])
    if (file := tmp_path / "pid").exists():
        assert not is_alive(int(file.read_text()))


def test_abandoned_iteration_ends_its_workers(tmp_path: Path) -> None:
    jobs: list[Job[object, object]] = [
        Job("short", partial(count_to, 1)),
        Job("endless", partial(run_forever, tmp_path / "pid")),
    ]
    results = iterate_jobs(jobs, processes=2)
    next(results)
    pid = wait_for_pid(tmp_path / "pid")
    results.close()  # type: ignore[attr-defined]
    assert not is_alive(pid)


def test_termination_waits_until_the_workers_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception between the start of a process and its first message would make it print a traceback."""
    started = []

    def submit(pool: ProcessPoolExecutor, *arguments: Any) -> Future[Any]:
        signal.raise_signal(signal.SIGTERM)
        started.append(arguments)
        return original(pool, *arguments)

    original = ProcessPoolExecutor.submit
    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs([Job("a", partial(count_to, 1)), Job("b", partial(count_to, 1))], processes=2)
        assert len(started) == 3 and signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


PARENT = """
import sys
sys.path.insert(0, {tests!r})
from functools import partial
from pathlib import Path
from esceme.workers import Job, run_jobs
from fixtures.jobs import run_forever
if __name__ == "__main__":
    try:
        run_jobs([Job(name, partial(run_forever, Path(name))) for name in "ab"], processes=2)
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_without_a_traceback(sent: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT.format(tests=str(Path(__file__).parent)))
    parent = subprocess.Popen(
        [sys.executable, "parent.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        pids = [wait_for_pid(tmp_path / name) for name in "ab"]
        if sent == signal.SIGINT:  # a terminal sends it to the whole process group
            os.killpg(parent.pid, sent)
        else:
            parent.kill()
        _, errors = parent.communicate(timeout=60)
    finally:
        parent.kill()
    assert parent.returncode == (130 if sent == signal.SIGINT else -9)
    assert "Traceback" not in errors
    wait_until_dead(*pids)


UNGUARDED = """
import sys
print(type(sys).__name__)
sys.path.insert(0, {tests!r})
from functools import partial
from esceme.workers import Job, run_jobs
from fixtures.jobs import count_to
print(sum(total for total, _, _ in run_jobs([Job(name, partial(count_to, 2)) for name in "ab"], processes=2)))
"""


def test_program_without_a_main_guard_can_use_workers(tmp_path: Path) -> None:
    """As a first program of a user, which calls `esceme.embedded_world()` at its top level."""
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED.format(tests=str(Path(__file__).parent)))
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr, result.returncode) == ("module\n4\n", "", 0)
