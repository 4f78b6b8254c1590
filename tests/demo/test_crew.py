"""Jobs side by side: all of them are heard, and no process outlives the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from esceme.demo.crew import Job, News, side_by_side
from esceme.errors import EscemeError
from fixtures.worker_jobs import be_killed, complain, count_to, is_alive, linger, stumble

pytestmark = pytest.mark.long


def test_all_jobs_are_heard_and_those_of_a_team_share_a_process(tmp_path: Path) -> None:
    names = [["a", "b"], ["c"], []]
    heard: list[News] = []
    side_by_side(
        [[Job(name, partial(count_to, 3, tmp_path / name)) for name in team] for team in names], heard.append
    )
    for name in "abc":
        told = [news for news in heard if news.job == name]
        assert [(news.done, news.total) for news in told[:-1]] == [(0, 3), (1, 3), (2, 3), (3, 3)]
        assert told[3].said == {"half": 1.5} and told[-1].note == "counted"
    a, b, c = ((tmp_path / name).read_text().split(" in ")[1] for name in "abc")
    assert a == b != c and str(os.getpid()) not in (a, c)
    assert [news.job for news in heard if news.job != "c"] == ["a"] * 5 + ["b"] * 5


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (complain, "faulty: no such split; expected another"),
        (stumble, "faulty: its process ended early (code 1); what was done is kept"),
        (be_killed, "faulty: its process ended early (code -9); what was done is kept"),
    ],
)
def test_a_job_that_fails_is_told_by_its_message_and_ends_the_others(
    work: object, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "pid"
    teams = [
        [Job("lingers", partial(linger, other))],
        [Job("faulty", work), Job("after it", partial(linger, tmp_path / "never"))],  # type: ignore[arg-type]
    ]
    with pytest.raises(EscemeError) as raised:
        side_by_side(teams, lambda news: None)
    assert str(raised.value).startswith(message)
    assert not (tmp_path / "never").exists()
    assert not other.exists() or not is_alive(int(other.read_text()))
    assert ("ZeroDivisionError: a bug" in capfd.readouterr().err) == (work is stumble)


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_processes_end_with_whoever_started_them_and_without_a_word(
    by: signal.Signals, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parents[1])]!r}\n"
        "from functools import partial\n"
        "from pathlib import Path\n"
        "from fixtures.worker_jobs import linger\n"
        "from esceme.demo.crew import Job, side_by_side\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        side_by_side([[Job(n, partial(linger, Path(n)))] for n in 'ab'], lambda news: None)\n"
        "    except KeyboardInterrupt:\n"
        "        sys.exit(130)\n"
    )
    (tmp_path / "starts.py").write_text(program)
    started = subprocess.Popen(
        [sys.executable, "starts.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    files = [tmp_path / name for name in "ab"]
    try:
        while not all(file.exists() and file.read_text() for file in files):
            assert started.poll() is None
            time.sleep(0.05)
        if by == signal.SIGINT:  # as a terminal does: everybody hears it
            os.killpg(started.pid, by)
        else:
            started.kill()
        _, said = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode == (130 if by == signal.SIGINT else -9)
    assert "Traceback" not in said
    deadline = time.monotonic() + 60
    while any(is_alive(int(file.read_text())) for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
