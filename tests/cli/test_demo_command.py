"""`esceme demo`: its output, its report, and resuming after an interruption."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path

import pytest

from esceme import __version__
from esceme.cli import main
from esceme.evaluation import read_result
from esceme.synth import WorldConfig, embedded_world
from esceme.viewer.walk_server import WalkServer
from fixtures.jobs import is_alive, run_here

pytestmark = pytest.mark.long

Capture = pytest.CaptureFixture[str]
ErrorOf = Callable[[Sequence[str]], str]
ITERATIONS = 3
WEIGHTS = ("none/weights.safetensors", "memory/weights.safetensors")
FIGURES = ("loss", "validation", "visits")
"""Figures beside those of the selected episodes."""


def arguments(out: Path, *more: str) -> list[str]:
    return ["demo", "--out", str(out), "--size", "tiny", "--iterations", f"{ITERATIONS}", *more]


def program(out: Path) -> list[str]:
    return [sys.executable, "-m", "esceme", *arguments(out)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder and standard output of a demo that was not interrupted; its jobs run in this process."""
    embedded_world(WorldConfig("tiny"))
    out, printed, errors = tmp_path_factory.mktemp("demo") / "with a space", StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(errors):
        patch.setattr(import_module("esceme.demo.run_demo"), "run_jobs", run_here)  # a function, too
        assert main(arguments(out)) == 0, errors.getvalue()
    assert f"{ITERATIONS}/{ITERATIONS}" in errors.getvalue() and "loss" in errors.getvalue()
    return out, printed.getvalue()


def test_table_has_every_protocol_on_both_splits_with_intervals(finished: tuple[Path, str]) -> None:
    out, printed = finished
    table = printed.partition("SPL by visit")[0]
    assert all(heading in table for heading in ("TL (m)", "NE (m)", "SR (%)", "SPL (%)", "SPL - none"))
    names = [line.split()[0] for line in table.splitlines() if re.match(r" *[a-z]", line)]
    rows = ["none", "cold", "two-pass", "episodic"]
    assert names == ["val_seen", *rows, "val_unseen", *rows]
    assert len(re.findall(r"-?[\d.]+\.\.\+?-?[\d.]+", table)) == 2 * (4 + 3 * 5)
    assert max(map(len, printed.partition("report: ")[0].splitlines())) <= 80
    for run, split, memory in (("none", "val_seen", "none"), ("memory", "val_unseen", "cold")):
        result = read_result(out / run / "evaluations" / f"r2r-{split}-{memory}")
        block = table.partition(split)[2]
        (line,) = (line for line in block.splitlines()[:9] if line.split()[:1] == [memory])
        assert f" {result.means['tl']:.2f} " in line and f" {100 * result.means['spl']:.1f} " in f"{line} "


def test_visit_table_counts_every_episode(finished: tuple[Path, str]) -> None:
    table = finished[1].partition("SPL by visit")[2].partition("report:")[0]
    assert re.search(r"none +cold", table)
    assert sum(map(int, re.findall(r"\(n (\d+)\)", table))) == 36


def test_output_ends_with_the_verdict_and_commands_that_work(
    finished: tuple[Path, str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WalkServer, "serve_forever", lambda *_, **__: None)
    monkeypatch.setattr("webbrowser.open", lambda address: None)
    text, *commands = re.split(r"\n  (?=esceme )", finished[1].partition("report: ")[2].rstrip("\n"))
    assert re.search(r"\npage: .*page.html; open file:///", text)
    sentences = " ".join(text.splitlines()[2:]).strip()
    assert re.fullmatch(r"On 36 episodes .*\. Next, .*:", sentences) and sentences.count(". ") == 1
    assert [shlex.split(command)[1] for command in commands] == ["evaluate", "compare", "walk", "train"]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert "+" in capsys.readouterr().out


def test_report_names_its_origin_and_all_its_figures_exist(finished: tuple[Path, str]) -> None:
    out = finished[0]
    page = (out / "report.md").read_text()
    shown = re.findall(r"!\[[^]]+\]\((figures/[\w-]+\.svg)\)", page)
    assert {*shown} == {f"figures/{path.name}" for path in (out / "figures").iterdir()}
    assert {*shown} > {f"figures/{name}.svg" for name in FIGURES}
    assert {path.name for path in out.iterdir()} >= {"none", "memory", "figures", "report.md", "page.html"}
    for figure in shown:
        assert ET.parse(out / figure).getroot().tag.endswith("svg")
    command = shlex.join(
        ["esceme", "demo", "--out", str(out), *arguments(out)[3:5], "--seed", "0", *arguments(out)[5:]]
    )
    for text in (f"`{command}`", f"esceme {__version__}", "seed 0", f"{ITERATIONS} iterations", "training "):
        assert text in page
    for row in ("none", "cold", "two-pass", "episodic"):
        assert page.count(f"\n| {row} | ") == 2
    assert "Resumed" not in page
    assert "remembered before" in "".join(
        path.read_text() for path in (out / "figures").glob("episode-*.svg")
    )


# -- interruptions ---------------------------------------------------------------------------------------


def start_and_stop(out: Path, is_time: Callable[[], bool], sent: signal.Signals) -> tuple[int, str]:
    """Start the demo and send a signal when `is_time`; return its exit code and standard error."""
    demo = subprocess.Popen(
        program(out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not is_time():
            assert demo.poll() is None, demo.communicate()[1]
            time.sleep(0.02)
        workers = [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
        if sent == signal.SIGINT:  # like a terminal: to all processes of the group
            os.killpg(demo.pid, sent)
        else:
            demo.send_signal(sent)
        errors = demo.communicate(timeout=120)[1]
        while any(map(is_alive, workers)):
            time.sleep(0.02)
    finally:
        demo.kill()
    return demo.returncode, errors


@pytest.mark.slow
def test_interrupted_and_killed_demo_resumes_to_the_same_result(tmp_path: Path, capsys: Capture) -> None:
    out, whole = tmp_path / "demo", tmp_path / "whole"
    subprocess.run(program(whole), check=True, capture_output=True)

    def both_have_a_state() -> bool:
        return all(any((out / agent / "state").glob("*.pt")) for agent in ("none", "memory"))

    code, errors = start_and_stop(out, both_have_a_state, signal.SIGINT)
    assert code == 130 and "Traceback" not in errors
    assert errors.endswith(
        "interrupted; the same command continues the demo:\n"
        f"esceme demo --out {out} --size tiny --seed 0 --iterations {ITERATIONS}\n"
    )
    code, errors = start_and_stop(out, lambda: any(out.glob("*/evaluations/*/journal.jsonl")), signal.SIGKILL)
    assert code == -9 and "Traceback" not in errors
    assert not (out / "report.md").exists()

    capsys.readouterr()
    assert main(arguments(out, "--json")) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["resumed_after"] == {"none": ITERATIONS, "memory": ITERATIONS}
    assert (
        "Resumed trainings: without memory after 3, with memory after 3 iterations."
        in Path(summary["report"]).read_text()
    )
    drawn = [f"episode-{number}" for number, _ in enumerate(summary["episodes"], 1)]
    assert [Path(figure).stem for figure in summary["figures"]] == [*drawn, *FIGURES]
    assert Path(summary["page"]).read_text().startswith("<!doctype html>")
    for weights in WEIGHTS:
        assert (out / weights).read_bytes() == (whole / weights).read_bytes()
    for split, scores in summary["splits"].items():
        assert list(scores["rows"]) == ["none", "cold", "two-pass", "episodic"]
        for memory, row in scores["rows"].items():
            folder = Path("none" if memory == "none" else "memory", "evaluations", f"r2r-{split}-{memory}")
            result = read_result(out / folder)
            assert result == read_result(whole / folder)
            assert row["means"]["spl"] == result.means["spl"]
            assert (row["spl_gain"] is None) == (memory == "none")
    assert summary["verdict"].startswith("On 36 episodes ") and len(summary["next"]) == 4


# -- refused input --------------------------------------------------------------------------------------


def test_failed_training_ends_with_its_message(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "memory").write_text("in the way")
    assert main(arguments(tmp_path)) == 2
    out, err = capfd.readouterr()
    assert out == "" and "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"error: with memory: {tmp_path / 'memory'}") and "cannot be written" in last
    assert not (tmp_path / "report.md").exists()


def test_demo_with_other_settings_is_refused(finished: tuple[Path, str], capsys: Capture) -> None:
    capsys.readouterr()
    assert main([*arguments(finished[0]), "--seed", "5"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "holds a run of another experiment, which differs in seed; give another --out" in err


def test_folder_that_cannot_be_written_is_refused(empty_folder: Path, error_of: ErrorOf) -> None:
    Path("file").write_text("in the way")
    assert error_of(arguments(Path("file"))).startswith("file: cannot be written")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seed", "-1"], "seed: expected at least 0, found -1"),
        (["--seed", "many"], "seed"),
        (["--iterations", "0"], "iterations: expected at least 1, found 0"),
    ],
)
def test_settings_out_of_range_are_refused_before_anything_is_written(
    more: list[str], message: str, empty_folder: Path, error_of: ErrorOf
) -> None:
    assert message in error_of(["demo", *more])


def test_link_out_of_the_folder_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/report.md").symlink_to(tmp_path / "precious")
    assert main(["demo", "--out", str(tmp_path / "demo"), "--iterations", "1"]) == 2
    assert "report.md: a link that leads out of" in capsys.readouterr().err
    assert not (tmp_path / "precious").exists()
