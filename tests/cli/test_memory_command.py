"""`esceme memory show` and `esceme memory merge`: table, JSON, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from esceme.cli import main
from esceme.memory import MemoryBank, load_bank, save_bank


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


def test_merged_banks_hold_the_viewpoints_of_all(empty_folder: Path, json_of: Any, error_of: Any) -> None:
    for number, (scene, pooling) in enumerate([("a", "max"), ("b", "max"), ("a", "max"), ("a", "mean")]):
        bank = MemoryBank(2, source="f", pooling=pooling)  # type: ignore[arg-type]
        bank.remember(scene, f"v{number}", torch.full((1, 2), float(number)), [f"v{number + 1}"])
        save_bank(bank, f"{number}.bank")
    merge = ["memory", "merge"]
    found = json_of([*merge, "0.bank", "1.bank", "2.bank", "--out", "all.bank"])
    assert found == {"out": "all.bank", "files": 3, "scenes": 2, "viewpoints": 3}
    merged = load_bank("all.bank")
    viewpoints = {scene: set(merged[scene].viewpoints) for scene in merged.scenes}
    assert viewpoints == {"a": {"v0", "v2"}, "b": {"v1"}}
    json_of([*merge, "2.bank", "1.bank", "0.bank", "--out", "again.bank"])
    assert load_bank("again.bank").recall("a", ["v2"]).tolist() == [[2.0, 2.0]]
    for files, out, message in (
        (["0.bank", "3.bank"], "x", "3.bank: a bank of max "),
        (["0.bank"], "x", "expected at least two memory files"),
        (["0.bank", "gone"], "x", "gone: no such file"),
        (["0.bank", "2.bank"], "1.bank", "1.bank: holds another bank"),
    ):
        assert error_of([*merge, *files, "--out", out]).startswith(message)
