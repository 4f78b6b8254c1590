from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_agent.py"


def test_the_example_prints_scores_of_a_split(toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](str(toy_root), "val_seen")
    printed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(printed["n"]) > 10
    assert 0 < float(printed["tl"]) < 40
