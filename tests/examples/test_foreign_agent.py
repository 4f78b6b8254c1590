from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "foreign_agent.py"


def test_the_example_remembers_more_and_more(toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](str(toy_root), "val_seen")
    printed = capsys.readouterr().out
    shares = [[float(each) for each in re.findall(r"([\d.]+)%", line)] for line in printed.splitlines()[1:6]]
    remembered, moved = zip(*shares, strict=True)
    assert 0 < remembered[0] < remembered[-1] <= 100
    assert all(0 < each < 100 for each in moved)
    assert int(printed.splitlines()[-1].split()[0]) > 10


def test_the_example_gains_its_memory_in_three_lines() -> None:
    lines = EXAMPLE.read_text().splitlines()
    marked = [line for line in lines if "# <- memory" in line]
    unmarked = [line for line in lines if line not in marked]
    assert len(marked) == 3
    assert not any(re.search(r"bank\.(recall|remember)\(|MemoryBank\(", line) for line in unmarked)
    assert "esceme.agents" not in EXAMPLE.read_text()


def test_the_agent_walks_without_the_three_lines(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = [line for line in EXAMPLE.read_text().splitlines() if "# <- memory" not in line]
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(line for line in kept if "bank." not in line))
    runpy.run_path(str(bare))["main"](str(toy_root), "val_seen")
    assert capsys.readouterr().out.count(" 0.0%") == 10
