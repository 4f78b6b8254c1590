"""The command `esceme serve`: options, and what it says where libraries or stores are missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from esceme.cli import serve_command
from esceme.memory import MemoryStore
from fixtures.observations import SETTINGS

ErrorOf = Callable[[Sequence[str]], str]
pytestmark = pytest.mark.usefixtures("empty_folder")


def test_absent_libraries_are_named_with_the_extra(
    error_of: ErrorOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        serve_command, "find_spec", lambda name: None if name == "uvicorn" else find_spec(name)
    )
    assert error_of(["serve", "site.db"]) == ("'uvicorn' is not installed; run pip install 'esceme[serve]'")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "run pip install 'esceme[postgresql]'" in error_of(["serve", "postgresql:///site"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--port", "99999"], "--port 99999: expected a port of 0 to 65535"),
        (["--rate", "0"], "--rate 0.0: expected a limit above 0"),
        (["--host", "203.0.113.7", "--port", "0"], "--host 203.0.113.7"),
    ],
)
def test_options_out_of_range_are_refused(
    error_of: ErrorOf, monkeypatch: pytest.MonkeyPatch, options: list[str], message: str
) -> None:
    monkeypatch.setenv("ESCEME_TOKEN", "a-token-for-tests-only")
    assert message in error_of(["serve", "site.db", *options])


def test_short_tokens_and_files_that_are_no_stores_are_refused(
    error_of: ErrorOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESCEME_TOKEN", "short")
    assert "at least 16 ASCII characters" in error_of(["serve", "site.db"])
    Path("text.db").write_text("no store" * 100)
    assert "expected a memory store" in error_of(["serve", "text.db"])
    with MemoryStore.open("site.db", SETTINGS):
        pass
    assert "expected a path such as site.db" in error_of(["serve", "mysql://host/site"])
