"""`esceme memory show`: table, JSON, errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from esceme.cli import main
from esceme.memory import MemoryBank, save_bank


@pytest.fixture
def file(tmp_path: Path) -> Path:
    bank = MemoryBank(3, pooling="mean", source="seen.hdf5")
    for name, neighbours in {"a": ["b", "c"], "b": ["a"], "d": ["c"]}.items():
        bank.remember("house", name, torch.ones(len(neighbours), 3), neighbours)
    bank.remember("barn", "a", torch.ones(1, 3), ["b"])
    save_bank(bank, tmp_path / "bank.safetensors")
    return tmp_path / "bank.safetensors"


def test_the_table_lists_every_scene(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "show", str(file)]) == 0
    printed = capsys.readouterr()
    facts = dict(line.split() for line in printed.out.splitlines() if len(line.split()) == 2)
    assert facts["format"] == "esceme-memory-2"
    assert (facts["width"], facts["pooling"], facts["source"]) == ("3", "mean", "seen.hdf5")
    assert (facts["viewpoints"], facts["bytes"]) == ("4", str(file.stat().st_size))
    rows = [line.replace("│", " ").split() for line in printed.out.splitlines() if "│" in line]
    assert rows == [["barn", "1", "0", "12"], ["house", "3", "1", "36"]]
    assert printed.err == ""


def test_json_output_has_the_same_values(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "show", str(file), "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out) == {
        "file": str(file),
        "format": "esceme-memory-2",
        "width": 3,
        "pooling": "mean",
        "source": "seen.hdf5",
        "viewpoints": 4,
        "bytes": file.stat().st_size,
        "scenes": [
            {"scene": "barn", "viewpoints": 1, "edges": 0, "bytes": 12},
            {"scene": "house", "viewpoints": 3, "edges": 1, "bytes": 36},
        ],
    }


def test_an_empty_bank_is_shown_without_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_bank(MemoryBank(3), tmp_path / "empty")
    assert main(["memory", "show", str(tmp_path / "empty")]) == 0
    assert "│" not in capsys.readouterr().out


def test_damaged_and_missing_files_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    for path in (file, file.with_name("missing")):
        assert main(["memory", "show", str(path), "--json"]) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and printed.err.startswith(f"error: {path}: ")
