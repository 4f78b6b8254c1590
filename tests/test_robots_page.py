"""The commands of docs/robots.md, in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import tyro  # noqa: F401  # before any doctest: the value that it leaves in `builtins._` breaks this import

from esceme.cli import main
from esceme.memory import MemoryStore

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[1] / "docs" / "robots.md"


def commands() -> list[str]:
    block = re.search(r"## Two robots in ten commands.*?```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines()]


def test_two_robots_share_a_building(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands()
    assert len(lines) == 10
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "esceme"
        if arguments[-1].endswith(".parquet"):
            pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        assert main(arguments) == 0, line
    facts = json.loads(Path("tuesday/r1/result.json").read_text())["facts"]
    assert facts["robot"] == "r1"
    with MemoryStore.open("site.db") as store:
        assert {found.robot for found in store.observations()} == {"r1"}
        assert "forget" in [row.operation for row in store.audit()]
    assert Path("memory.svg").stat().st_size
