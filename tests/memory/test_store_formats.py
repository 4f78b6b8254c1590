"""Stores as GeoJSON, Parquet and bank files: round trips."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.memory import MemoryStore, StoredMemory, load_bank, save_bank, store_settings
from esceme.memory.store_formats import from_bank, read_parquet, to_bank, write_geojson, write_parquet
from esceme.memory.store_record import StoreSettings
from fixtures.observations import SETTINGS, observation
from fixtures.toy_atlas import EDGES, POSITIONS, build

ATLAS = build(POSITIONS, EDGES)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """A store of all viewpoints of the toy atlas, but one."""
    found = MemoryStore.open(tmp_path / "site.db", store_settings(ATLAS))
    memory = StoredMemory(found, robot="r1", session="day", clock=lambda: 1e9)
    memory.bind(ATLAS)
    memory.remember_at([index for index in range(len(ATLAS)) if ATLAS.names[index] != ("cottage", "garden")])
    return found


def load_route_graph(path: Path) -> tuple[dict[int, Any], dict[int, Any]]:
    """Read nodes and edges by id as nav2's route server does, and check what it requires."""
    nodes, edges = {}, {}
    for feature in json.loads(path.read_text())["features"]:
        properties = feature["properties"]
        if feature["geometry"]["type"] == "Point":
            x, y = feature["geometry"]["coordinates"][:2]
            nodes[properties["id"]] = (float(x), float(y), properties["frame"], properties["metadata"])
        elif feature["geometry"]["type"] == "MultiLineString":
            edges[properties["id"]] = (properties["startid"], properties["endid"], properties["cost"])
    numbers = [*nodes, *edges]
    assert all(isinstance(number, int) and number >= 0 for number in numbers)
    assert len(set(numbers)) == len(json.loads(path.read_text())["features"])
    assert all(start in nodes and end in nodes for start, end, _ in edges.values())
    primitive = (bool, int, float, str)  # nav2 refuses null in metadata
    assert all(isinstance(value, primitive) for node in nodes.values() for value in node[3].values())
    return nodes, edges


def test_route_graphs_have_the_remembered_viewpoints_and_edges(store: MemoryStore, tmp_path: Path) -> None:
    assert write_geojson(store, tmp_path / "g.geojson", "cottage", frame="site") == 6
    nodes, edges = load_route_graph(tmp_path / "g.geojson")
    names = {number: node[3]["viewpoint"] for number, node in nodes.items()}
    for x, y, frame, metadata in nodes.values():
        assert (x, y, metadata["z"]) == pytest.approx(POSITIONS["cottage"][metadata["viewpoint"]])
        assert (frame, metadata["robot"], metadata["visits"]) == ("site", "r1", 1)
    kept = [pair for pair in EDGES["cottage"] if "garden" not in pair]
    directed = {(a, b) for pair in kept for a, b in (pair, pair[::-1])}
    assert {(names[start], names[end]) for start, end, _ in edges.values()} == directed
    lengths = {(names[start], names[end]): cost for start, end, cost in edges.values()}
    assert lengths["hall", "door"] == lengths["door", "hall"] == pytest.approx(3.0)


def test_route_graphs_need_a_scene_positions_and_edges(store: MemoryStore, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one of its scenes \(--scene\), found None; it has cottage, shed"):
        write_geojson(store, tmp_path / "g.geojson")
    with MemoryStore.open(tmp_path / "other.db", SETTINGS) as other:
        other.remember([observation(0, position=None), observation(1)])
        with pytest.raises(DataError, match="expected adjacent viewpoints with positions"):
            write_geojson(other, tmp_path / "g.geojson")


@pytest.mark.parametrize("precision", ["single", "half"])
def test_parquet_round_trip(tmp_path: Path, precision: str) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    settings = StoreSettings(width=3, precision=precision, source="toy.hdf5")  # type: ignore[arg-type]
    with (
        MemoryStore.open(tmp_path / "a.db", settings) as store,
        MemoryStore.open(tmp_path / "b.db", settings) as copy,
    ):
        vectors = [settings.encode(torch.tensor([n, -0.5, 1e-3])) for n in range(9)]
        store.remember([observation(n, vector=vector) for n, vector in enumerate(vectors)])
        extras = {"position": None, "covariance": tuple(map(float, range(9))), "neighbours": ()}
        store.remember(
            [observation(9, vector=vectors[0], thumbnail=b"png", features=vectors[1] * 2, **extras)]
        )
        assert write_parquet(store, tmp_path / "o.parquet") == 10
        found, rows = read_parquet(tmp_path / "o.parquet")
        assert found == settings
        assert copy.add(rows, operation="import") == 10
        assert copy.digest == store.digest
        assert list(copy.observations()) == list(store.observations())

        from pyarrow import parquet  # as other programs read it

        table = parquet.read_table(tmp_path / "o.parquet")
        assert table["vector"].to_pylist()[2] == settings.decode(vectors[2])[0].tolist()
        assert table["viewpoint"].to_pylist()[:2] == ["v0", "v1"]


def test_other_parquet_files_and_a_missing_pyarrow_are_refused(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"x": [1]}), tmp_path / "other.parquet")
    (tmp_path / "noise.parquet").write_bytes(b"noise" * 100)
    for name in ("other", "noise"):
        with pytest.raises(DataError, match="expected a Parquet file of a memory store"):
            read_parquet(tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="no such file"):
        read_parquet(tmp_path / "absent.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pip install 'esceme\\[parquet\\]'"):
        write_parquet(store, tmp_path / "o.parquet")


def test_bank_round_trip(store: MemoryStore, tmp_path: Path) -> None:
    bank = to_bank(store)
    save_bank(bank, tmp_path / "a.safetensors")
    with MemoryStore.open(tmp_path / "copy.db", store.settings) as copy:
        for _ in range(2):  # importing twice changes nothing
            memories = from_bank(
                load_bank(tmp_path / "a.safetensors"), copy.settings, robot="r9", session="bank", time=3.0
            )
            copy.add(memories, operation="import")
        assert len(copy) == len(bank) == len(ATLAS) - 1
        save_bank(to_bank(copy), tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    assert to_bank(store, scene="shed").scenes == ("shed",)
    with pytest.raises(MemoryMismatch, match="the bank width"):
        list(from_bank(bank, SETTINGS, robot="r", session="s", time=0.0))
