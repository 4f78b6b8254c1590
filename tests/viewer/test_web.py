"""Tests of the page's JavaScript by node; its types and lint where npm has installed the tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
NODE = shutil.which("node")
pytestmark = pytest.mark.long
needs_node = pytest.mark.skipif(NODE is None, reason="node is absent: the page's code was not tested")


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_node
def test_logic_of_the_page() -> None:
    run(str(NODE), "--test", "tests/viewer/web/")


@needs_node
@pytest.mark.parametrize("tool", ["tsc", "eslint src/esceme/viewer/web tests/viewer/web"])
def test_types_and_lint_of_the_page(tool: str) -> None:
    name, *options = tool.split()
    program = REPOSITORY / "node_modules" / ".bin" / name
    if not program.exists():
        pytest.skip(f"{name} is absent: `npm install` in the repository installs it")
    run(str(program), *options)
