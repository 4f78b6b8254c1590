"""Fixtures of command tests: an empty working folder, and commands that succeed or fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.cli import main
from fixtures.files import file_contents


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def json_of(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], dict[str, Any]]:
    """Run a command that succeeds; return the JSON object that it prints as one line."""

    def run(command: Sequence[str]) -> dict[str, Any]:
        assert main([*command, "--json"]) == 0
        out = capsys.readouterr().out
        assert out.endswith("}\n") and out.count("\n") == 1
        found: dict[str, Any] = json.loads(out)
        return found

    return run


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], str]:
    """Run a command that fails with exit code 2 and changes no file; return its error message."""

    def run(command: Sequence[str]) -> str:
        before = file_contents(Path())
        capsys.readouterr()
        try:
            code: object = main(command)
        except SystemExit as error:  # by tyro, which frames its messages
            code = error.code
        out, err = capsys.readouterr()
        assert code == 2 and out == "" and "Traceback" not in err
        assert file_contents(Path()) == before
        messages = [line.removeprefix("error: ") for line in err.splitlines() if line.startswith("error: ")]
        assert len(messages) <= 1
        return messages[0] if messages else " ".join(err.replace("│", " ").replace("|", " ").split())

    return run
