"""The `esceme` command: overview, help, error messages and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from esceme import __version__
from esceme.cli import COMMANDS, main
from esceme.cli.console import print_json, progress
from esceme.errors import ConfigError, DataError

SCORED_FILES = ["--task", "r2r", "--predictions", "a", "--annotations", "b", "--connectivity", "c"]
GROUPS = sorted({name.split()[0] for name in COMMANDS if " " in name})


def run(*words: str, out: int = subprocess.PIPE, **options: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "esceme", *words],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, **options},
    )


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_overview_lists_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for name, (_, line) in COMMANDS.items():
        assert any(name in row and line in row for row in printed.out.splitlines())


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"esceme {__version__}\n"


@pytest.mark.parametrize("words", [["bogus"], ["bogus", "--help"], ["--bogus"], [""], ["check", "data"]])
def test_unknown_command_is_refused_with_the_list(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: no command '{words[0]}'\n")
    assert all(name in printed.err for name in COMMANDS)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("more", [[], ["bogus"], ["--json"], ["--help"]])
def test_group_lists_its_commands(group: str, more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    is_help = more == ["--help"]
    assert main([group, *more]) == (0 if is_help else 2)
    printed = capsys.readouterr()
    if not is_help:
        assert printed.err.startswith(f"error: no command '{' '.join([group, *more])}'")
    text, other = (printed.out, printed.err) if is_help else (printed.err, printed.out)
    assert other == ""
    shown = {name for name in COMMANDS if f"  {name} " in text}
    assert shown == {name for name in COMMANDS if name.startswith(f"{group} ")}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert printed.out.startswith(f"usage: esceme {name}")
    examples = printed.out.partition("Examples:")[2]
    assert f"esceme {name}" in examples
    assert "Args:" not in printed.out
    assert ("--json" in printed.out) == (name != "mattersim run")  # that one prints what the program prints


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_option_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*name.split(), *(["r2r-small"] if name == "train" else []), "--no-such-option"])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err and printed.err


@pytest.mark.parametrize(
    "words",
    [
        ["data", "check", "nowhere"],
        ["data", "r4r", "--r2r", "nowhere", "--connectivity", "nowhere", "--out", "out"],
        ["data", "tours", "nowhere.json", "--out", "out.json"],
        ["features", "pack", "nowhere.hdf5"],
        ["scene", "castle", "--connectivity", "nowhere"],
        ["verify", "nowhere"],
        ["score", *SCORED_FILES],
        ["submit", *SCORED_FILES, "--out", "d"],
    ],
)
def test_missing_file_is_one_line_on_standard_error(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--json"]):
        assert main([*words, *more]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        (DataError("file.json: record 3: wrong"), 2, "error: file.json: record 3: wrong\n"),
        (ConfigError("wrong option"), 2, "error: wrong option\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ZeroDivisionError(), None, ""),
    ],
)
def test_errors_are_messages_and_defects_are_raised(
    fault: BaseException,
    code: int | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(name: str, words: list[str]) -> int:
        raise fault

    monkeypatch.setattr("esceme.cli._run_command", fail)
    if code is None:
        with pytest.raises(type(fault)):
            main(["demo"])
    else:
        assert main(["demo"]) == code
    assert capsys.readouterr() == ("", message)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_that_becomes_another_error_is_an_interruption(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list of torch that is interrupted in `__len__` ends in a ValueError."""

    def fail(name: str, words: list[str]) -> int:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
        raise ValueError("could not determine the shape")

    monkeypatch.setattr("esceme.cli._run_command", fail)
    before = signal.getsignal(number)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(number) == before


# -- in a separate process -----------------------------------------------------------------------------


def test_package_runs_as_a_module() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"esceme {__version__}\n", "")
    done = run("data", "check", "nowhere", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_is_a_message(tmp_path: Path, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = run("data", "check", str(tmp_path), "--json", out=full.fileno(), PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 2
    assert done.stderr.endswith("error: [Errno 28] No space left on device\n")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_is_no_error(tmp_path: Path, unbuffered: str) -> None:
    seen, written = os.pipe()
    os.close(seen)
    try:
        done = run("data", "check", str(tmp_path), "--json", out=written, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(written)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


# -- output --------------------------------------------------------------------------------------------


def test_json_is_one_line_without_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("inf"), float("nan"), 1.5], "b": "ä\n"})
    assert capsys.readouterr().out == '{"a":[null,null,1.5],"b":"ä\\n"}\n'


def test_name_that_is_not_utf8_is_a_message() -> None:
    with pytest.raises(DataError, match=r"the name 'a\\udcffb' is not UTF-8"):
        print_json({"out": "a\udcffb"})


def test_progress_yields_all_items_and_prints_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress([1, 2, 3], "counting")) == [1, 2, 3]
    assert list(progress(iter("ab"), "spelling", total=2)) == ["a", "b"]
    assert list(progress([], "nothing")) == []
    printed = capsys.readouterr()
    assert printed.out == "" and "counting" in printed.err and "nothing" not in printed.err
