"""`esceme memory` on stores: show, merge, export, import, forget, check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from esceme.cli import main
from esceme.memory import MemoryBank, MemoryStore, StoredMemory, load_bank, save_bank, store_settings
from esceme.world.features import write_features
from fixtures.toy_atlas import EDGES, POSITIONS, build

ATLAS = build(POSITIONS, EDGES)


def write_store(path: Path, robot: str, viewpoints: list[int], time: float = 1e9) -> Path:
    with MemoryStore.open(path, store_settings(ATLAS)) as store:
        memory = StoredMemory(store, robot=robot, session="day", clock=lambda: time)
        memory.bind(ATLAS)
        memory.remember_at(viewpoints)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_store(tmp_path / "site.db", "r1", [0, 1, 3])


def run(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> Any:
    assert main([*map(str, args), "--json"]) == code
    return msgspec.json.decode(capsys.readouterr().out)


def test_show_lists_scenes_and_audit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", "forget", str(file), "--viewpoint", "door"]) == 0
    assert main(["memory", "show", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "esceme-store-1" in printed
    rows = [line.replace("│", " ").split() for line in printed.splitlines() if "│" in line]
    assert rows == [["cottage", "2", "1", "2", "1", "2001-09-09", "01:46", "2001-09-09", "01:46"]]
    assert "forget viewpoint=door: 1 observations" in printed
    found = run(capsys, "memory", "show", file)
    assert (found["observations"], found["viewpoints"], found["conflicts"]) == (2, 2, 0)
    assert [row["operation"] for row in found["audit"]] == ["forget", "compact"]


@pytest.mark.parametrize("colour", ["age", "robot", "visits"])
def test_show_draws_the_graph(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], colour: str
) -> None:
    write_store(file, "r2", [3, 5], time=1e9 + 9e5)
    out = tmp_path / "memory.svg"
    run(capsys, "memory", "show", file, "--out", out, "--colour", colour)
    drawing = out.read_text()
    assert f"4 remembered viewpoints of cottage, coloured by {colour}." in drawing
    labels = {"age": ("under 30 days", "under an hour"), "robot": ("r1", "r2"), "visits": ("1 visit", "2")}
    assert all(f">{label}<" in drawing for label in labels[colour])
    first = out.read_bytes()
    run(capsys, "memory", "show", file, "--out", out, "--colour", colour)
    assert out.read_bytes() == first


def test_merge_in_any_order(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_store(tmp_path / "r2.db", "r2", [3, 8])
    one = run(capsys, "memory", "merge", file, other, "--out", tmp_path / "one.db")
    two = run(capsys, "memory", "merge", other, file, "--out", tmp_path / "two.db")
    assert one["digest"] == two["digest"]
    assert (one["observations"], one["conflicts"]) == (5, 0)
    again = run(capsys, "memory", "merge", file, tmp_path / "one.db", "--out", file)
    assert again["digest"] == one["digest"]


def test_exports_and_imports_give_the_store_again(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = run(capsys, "memory", "check", file)["digest"]
    for name in ("copy.db", "table.parquet"):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        assert run(capsys, "memory", "export", file, "--out", tmp_path / name)["observations"] == 3
        target = tmp_path / f"from-{name}.db"
        assert run(capsys, "memory", "import", tmp_path / name, "--store", target)["new"] == 3
        assert run(capsys, "memory", "import", tmp_path / name, "--store", target)["new"] == 0
        assert run(capsys, "memory", "check", target)["digest"] == digest
    found = run(capsys, "memory", "export", file, "--out", tmp_path / "graph.geojson")
    assert found["viewpoints"] == 3


def test_a_bank_is_imported_with_the_features_that_it_was_built_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at([0, 1, 8])
    save_bank(bank, tmp_path / "bank.safetensors")
    features = tmp_path / "toy.hdf5"
    assert ATLAS.features is not None
    write_features(features, ((key, ATLAS.features.panorama(key)) for key in ATLAS.features.keys))
    args = ["memory", "import", str(tmp_path / "bank.safetensors"), "--store", str(tmp_path / "new.db")]
    assert main(args) == 2
    assert "needs the feature file (--features)" in capsys.readouterr().err
    assert run(capsys, *args, "--features", features)["new"] == 3
    assert run(capsys, *args)["new"] == 0
    with MemoryStore.open(tmp_path / "new.db", store_settings(ATLAS)) as store:
        memory = StoredMemory(store)
        memory.bind(ATLAS)
        assert np.array_equal(memory.visited.numpy(), bank.visited.numpy())
    run(capsys, "memory", "export", tmp_path / "new.db", "--out", tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "bank.safetensors").read_bytes()


def test_a_damaged_store_is_reported_and_rescued(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(capsys, "memory", "check", file)["digest"]
    data = bytearray(file.read_bytes())
    data[:100] = bytes(100)
    file.write_bytes(data)
    assert main(["memory", "check", str(file)]) == 1
    printed = capsys.readouterr().out
    assert "3 observations are readable" in printed
    assert "esceme memory export" in printed
    assert main(["memory", "show", str(file)]) == 2
    run(capsys, "memory", "export", file, "--out", tmp_path / "rescued.db")
    assert run(capsys, "memory", "check", tmp_path / "rescued.db")["digest"] == whole


def test_forget_on_stores_and_banks(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "memory", "forget", file, "--before", "2001-01-01")["forgotten"] == 0
    assert (
        run(capsys, "memory", "forget", file, "--before", "2002-01-01", "--viewpoint", "hall")["forgotten"]
        == 1
    )
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_all()
    save_bank(bank, tmp_path / "bank.safetensors")
    assert run(capsys, "memory", "forget", tmp_path / "bank.safetensors", "--scene", "shed")["forgotten"] == 2
    assert load_bank(tmp_path / "bank.safetensors").scenes == ("cottage",)
    assert run(capsys, "memory", "check", tmp_path / "bank.safetensors")["viewpoints"] == 7


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["forget", "site.db"], "expected a scene, viewpoint, robot, time"),
        (["forget", "site.db", "--before", "yesterday"], "expected a day or time"),
        (["forget", "bank", "--robot", "r1"], "forgets whole scenes only"),
        (["export", "site.db", "--out", "x.txt"], "expected a name ending in .geojson"),
        (["export", "site.db", "--out", "site.db"], "exists already"),
        (["merge", "site.db", "bank", "--out", "x.db"], "stores only, or bank files only"),
        (["merge", "site.db", "site.db", "--out", "other.db"], "exists already"),
        (["show", "site.db", "--scene", "barn", "--out", "x.svg"], "no scene 'barn'; there are: cottage"),
        (["show", "bank", "--out", "x.svg"], "a bank file has no positions"),
        (["show", "site.db", "--scene", "barn"], "no scene 'barn'; there are: cottage"),
        (["check", "absent.db"], "no such file"),
        (["check", "http://127.0.0.1:8765"], "found a service; GET /v1/export returns a copy of its store"),
    ],
)
def test_wrong_arguments_are_refused(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(file.parent)
    save_bank(MemoryBank(3), "bank")
    Path("other.db").write_bytes(file.read_bytes())
    assert main(["memory", *args]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
