"""`esceme demo` as a person runs it: what it prints and writes, and how it goes on after an interruption."""

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
from collections.abc import Callable
from pathlib import Path

import pytest

from esceme import __version__
from esceme.cli import main
from esceme.evaluation import read_result
from esceme.synth import WorldConfig, embedded_world
from fixtures.worker_jobs import is_alive

pytestmark = pytest.mark.long

Capture = pytest.CaptureFixture[str]
ITERATIONS = 3
WEIGHTS = ("none/weights.safetensors", "memory/weights.safetensors")
FIGURES = ("loss", "panorama", "validation", "visits", "walk-1", "walk-2", "walk-3")


def words(out: Path, *more: str) -> list[str]:
    return ["demo", "--out", str(out), "--size", "tiny", "--iterations", f"{ITERATIONS}", *more]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A demo that was never interrupted: its folder, and what it printed."""
    embedded_world(WorldConfig("tiny"))
    out = tmp_path_factory.mktemp("demo") / "look around"
    program = [sys.executable, "-m", "esceme", *words(out)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{ITERATIONS}/{ITERATIONS}" in done.stderr and "loss" in done.stderr
    return out, done.stdout


def test_one_table_has_every_protocol_on_both_splits_with_intervals(seen: tuple[Path, str]) -> None:
    out, printed = seen
    table = printed.partition("SPL by the number")[0]
    assert all(heading in table for heading in ("TL (m)", "NE (m)", "SR (%)", "SPL (%)", "SPL - none"))
    named = [line.split()[0] for line in table.splitlines() if re.match(r" *[a-z]", line)]
    rows = ["none", "cold", "two-pass", "episodic"]
    assert named == ["val_seen", *rows, "val_unseen", *rows]
    assert len(re.findall(r"-?[\d.]+\.\.\+?-?[\d.]+", table)) == 2 * (4 + 3 * 5)
    assert max(map(len, printed.partition("report: ")[0].splitlines())) <= 80
    for run, split, memory in (("none", "val_seen", "none"), ("memory", "val_unseen", "cold")):
        result = read_result(out / run / "evaluations" / f"r2r-{split}-{memory}")
        block = table.partition(split)[2]
        (line,) = (line for line in block.splitlines()[:9] if line.split()[:1] == [memory])
        assert f" {result.means['tl']:.2f} " in line and f" {100 * result.means['spl']:.1f} " in f"{line} "


def test_the_curve_by_visit_counts_every_walk(seen: tuple[Path, str]) -> None:
    curve = seen[1].partition("SPL by the number")[2].partition("report:")[0]
    assert re.search(r"none +cold", curve)
    assert sum(map(int, re.findall(r"\(n (\d+)\)", curve))) == 36


def test_it_ends_with_two_sentences_and_commands_that_work(seen: tuple[Path, str], capsys: Capture) -> None:
    told, *commands = re.split(r"\n  (?=esceme )", seen[1].partition("report: ")[2].rstrip("\n"))
    sentences = " ".join(told.splitlines()[1:]).strip()
    assert re.fullmatch(r"On 36 walks .*\. Try next .*:", sentences) and sentences.count(". ") == 1
    assert [shlex.split(command)[1] for command in commands] == ["evaluate", "compare", "train"]
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0, command
    assert "+" in capsys.readouterr().out


def test_the_report_says_how_it_was_made_and_all_it_shows_is_there(seen: tuple[Path, str]) -> None:
    out, printed = seen
    page = (out / "report.md").read_text()
    shown = re.findall(r"!\[[^]]+\]\((figures/[\w-]+\.svg)\)", page)
    assert sorted(shown) == [f"figures/{name}.svg" for name in FIGURES]
    assert {path.name for path in out.iterdir()} >= {"none", "memory", "figures", "report.md"}
    for figure in shown:
        assert ET.parse(out / figure).getroot().tag.endswith("svg")
    command = shlex.join(
        ["esceme", "demo", "--out", str(out), *words(out)[3:5], "--seed", "0", *words(out)[5:]]
    )
    for said in (f"`{command}`", f"esceme {__version__}", "seed 0", f"{ITERATIONS} iterations", "training "):
        assert said in page
    for row in ("none", "cold", "two-pass", "episodic"):
        assert page.count(f"\n| {row} | ") == 2
    assert "went on" not in page
    assert "remembered before" in "".join((out / f"figures/walk-{n}.svg").read_text() for n in (1, 2, 3))


# -- interrupted ------------------------------------------------------------------------------------------


def start_and_stop(out: Path, is_time: Callable[[], bool], by: signal.Signals) -> tuple[int, str]:
    """Start the demo and end it by a signal when it is time; its code, and what it said."""
    program = [sys.executable, "-m", "esceme", *words(out)]
    demo = subprocess.Popen(
        program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not is_time():
            assert demo.poll() is None, demo.communicate()[1]
            time.sleep(0.02)
        helpers = [int(pid) for pid in Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()]
        if by == signal.SIGINT:  # as a terminal does: everybody hears it
            os.killpg(demo.pid, by)
        else:
            demo.send_signal(by)
        said = demo.communicate(timeout=120)[1]
        while any(map(is_alive, helpers)):
            time.sleep(0.02)
    finally:
        demo.kill()
    return demo.returncode, said


def test_interrupted_and_killed_it_goes_on_to_the_same_end(
    seen: tuple[Path, str], tmp_path: Path, capsys: Capture
) -> None:
    out, whole = tmp_path / "demo", seen[0]

    def both_have_a_state() -> bool:
        return all(any((out / agent / "state").glob("*.pt")) for agent in ("none", "memory"))

    code, said = start_and_stop(out, both_have_a_state, signal.SIGINT)
    assert code == 130 and "Traceback" not in said
    assert said.endswith(
        "interrupted; the same command goes on with it:\n"
        f"esceme demo --out {out} --size tiny --seed 0 --iterations {ITERATIONS}\n"
    )
    code, said = start_and_stop(out, lambda: any(out.glob("*/evaluations/*/journal.jsonl")), signal.SIGKILL)
    assert code == -9 and "Traceback" not in said
    assert not (out / "report.md").exists()

    capsys.readouterr()
    assert main(words(out, "--json")) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["begun_after"] == {"none": ITERATIONS, "memory": ITERATIONS}
    assert "went on with trainings begun before" in Path(told["report"]).read_text()
    assert [Path(figure).stem for figure in told["figures"]] == list(FIGURES)
    for weights in WEIGHTS:
        assert (out / weights).read_bytes() == (whole / weights).read_bytes()
    for split, scored in told["splits"].items():
        assert list(scored["rows"]) == ["none", "cold", "two-pass", "episodic"]
        for memory, row in scored["rows"].items():
            place = Path("none" if memory == "none" else "memory", "evaluations", f"r2r-{split}-{memory}")
            again = read_result(out / place)
            assert again == read_result(whole / place)
            assert row["means"]["spl"] == again.means["spl"]
            assert (row["spl_gain"] is None) == (memory == "none")
    assert told["seen"].startswith("On 36 walks ") and len(told["next"]) == 3


# -- what cannot be done ----------------------------------------------------------------------------------


def test_a_training_that_fails_is_told_by_its_message(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "memory").write_text("in the way")
    assert main(words(tmp_path)) == 2
    out, err = capfd.readouterr()
    assert out == "" and "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"error: with memory: {tmp_path / 'memory'}") and "cannot be written" in last
    assert not (tmp_path / "report.md").exists()


def test_a_demo_with_other_settings_is_not_continued(seen: tuple[Path, str], capsys: Capture) -> None:
    capsys.readouterr()
    assert main([*words(seen[0]), "--seed", "5"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "holds a run of another experiment, which differs in seed; give another --out" in err


def test_a_folder_that_cannot_be_written_is_a_message_not_a_crash(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(words(tmp_path / "file")) == 2
    assert f"error: {tmp_path / 'file'}: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--seed", "-1"], "seed: expected 0 or more, found -1"),
        (["--seed", "many"], "seed"),
        (["--iterations", "0"], "iterations: expected at least 1, found 0"),
    ],
)
def test_a_wish_without_sense_is_refused_and_leaves_nothing(
    more: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    try:
        code = main(["demo", "--out", str(tmp_path / "demo"), *more])
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    assert code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
