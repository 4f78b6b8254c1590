"""`esceme mattersim run`: programs as users have them, their arguments, exit codes and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from esceme.cli import main

REPOSITORY = Path(__file__).parents[2]


def run(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "esceme", "mattersim", "run", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
    )


@pytest.mark.parametrize(
    ("client", "printed"),
    [
        ("mattersim_batched.py", "4 of 4 episodes reached their goals\n"),
        ("mattersim_scalar.py", "10 of 10 episodes reached their goals, "),
    ],
)
def test_clients_of_both_generations_run_on_generated_houses(
    client: str, printed: str, toy_root: Path
) -> None:
    done = run("--data", str(toy_root), str(REPOSITORY / "examples" / client), str(toy_root))
    assert done.returncode == 0 and done.stderr.startswith("MatterSim is esceme.mattersim\n")
    assert done.stdout.startswith(printed)
    assert ("scan ZMojNkEp431 is not in" in done.stderr) == (client == "mattersim_batched.py")


def test_program_runs_as_with_python(tmp_path: Path, toy_root: Path) -> None:
    """In its own folder, with its own modules, arguments and exit code, and the default path of graphs."""
    (tmp_path / "helper.py").write_text("VALUE = 5\n")
    (tmp_path / "connectivity").symlink_to(toy_root / "connectivity")
    (tmp_path / "program.py").write_text(
        "import sys\n"
        "sys.path.append('build')\n"
        "import MatterSim, helper\n"
        "simulator = MatterSim.Simulator()\n"
        "simulator.newRandomEpisode([open('connectivity/scans.txt').readline().strip()])\n"
        "print(__name__, sys.argv, helper.VALUE, len(simulator.getState()))\n"
        "sys.exit(7)\n"
    )
    done = run("program.py", "--data", "x", "-m", cwd=tmp_path)
    expected = f"__main__ {['program.py', '--data', 'x', '-m']} 5 1\n"
    assert (done.returncode, done.stdout, done.stderr) == (7, expected, "MatterSim is esceme.mattersim\n")
    done = run("-m", "program", "--help", cwd=tmp_path)
    assert done.returncode == 7 and "'--help'" in done.stdout


def test_errors_of_the_program_are_shown_in_full(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("open('nowhere')\n")
    done = run(str(tmp_path / "program.py"))
    assert done.returncode == 1
    assert "Traceback" in done.stderr and "FileNotFoundError" in done.stderr and "line 1" in done.stderr


def test_compiled_module_on_the_path_is_named_and_can_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "MatterSim.py").write_text("compiled = True\n")
    (tmp_path / "program.py").write_text("import MatterSim\nprint(hasattr(MatterSim, 'compiled'))\n")
    done = run("program.py", cwd=tmp_path)
    assert done.stdout == "True\n"
    assert (
        done.stderr == f"MatterSim is {tmp_path}/MatterSim.py; --replace imports esceme.mattersim instead\n"
    )
    done = run("--replace", "program.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("False\n", "MatterSim is esceme.mattersim\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a program: esceme mattersim run SCRIPT"),
        (["-m"], "expected a program"),
        (["nowhere.py"], "nowhere.py: no such script"),
        (["--data", "nowhere", "nowhere.py"], "nowhere: no connectivity folder"),
        (["--panoramas", "nowhere", __file__], "panoramas: nowhere is not a folder"),
    ],
)
def test_wrong_use_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sys.meta_path[:]
    assert main(["mattersim", "run", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("error: ")
    assert message in printed.err and printed.err.count("\n") == 1
    assert sys.meta_path == before
