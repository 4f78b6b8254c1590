from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "foreign_agent.py"


def test_the_share_of_remembered_candidates_grows(toy_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))["main"](str(toy_root), "val_seen")
    printed = capsys.readouterr().out
    shares = [
        [float(share) for share in re.findall(r"([\d.]+)%", line)] for line in printed.splitlines()[1:6]
    ]
    remembered, changes = zip(*shares, strict=True)
    assert 0 < remembered[0] < remembered[-1] <= 100
    assert all(0 < change < 100 for change in changes)
    assert int(printed.splitlines()[-1].split()[0]) > 10


def test_three_marked_lines_use_memory() -> None:
    lines = EXAMPLE.read_text().splitlines()
    marked = [line for line in lines if "# <- memory" in line]
    unmarked = [line for line in lines if line not in marked]
    assert len(marked) == 3
    assert not any(re.search(r"bank\.(recall|remember)\(|MemoryBank\(", line) for line in unmarked)
    assert "esceme.agents" not in EXAMPLE.read_text()


def test_the_agent_runs_without_the_marked_lines(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unmarked = [line for line in EXAMPLE.read_text().splitlines() if "# <- memory" not in line]
    bare = tmp_path / "bare.py"
    bare.write_text("\n".join(line for line in unmarked if "bank." not in line))
    runpy.run_path(str(bare))["main"](str(toy_root), "val_seen")
    assert capsys.readouterr().out.count(" 0.0%") == 10
