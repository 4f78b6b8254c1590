"""Stores in formats that other programs read: route graphs (GeoJSON), tables (Parquet), and bank files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.files import atomic_path, write_json
from esceme.memory.bank import MemoryBank
from esceme.memory.store import MemoryStore, Place, Prefer
from esceme.memory.store_record import StoredObservation, StoreSettings

SETTINGS_KEY = b"esceme-store"
"""Key of the settings of a store in the metadata of a Parquet file."""


def remembered_edges(observations: Iterable[StoredObservation]) -> list[tuple[str, str]]:
    """Return the pairs of adjacent viewpoints among the observations of a scene; each pair once, sorted."""
    neighbours = {item.viewpoint: item.neighbours for item in observations}
    pairs = ((name, other) for name, others in neighbours.items() for other in others if other in neighbours)
    return sorted({(min(pair), max(pair)) for pair in pairs})


def write_geojson(
    store: MemoryStore,
    path: str | Path,
    scene: str | None = None,
    *,
    frame: str = "map",
    prefer: Prefer = "first",
) -> int:
    """Write the remembered graph of a scene as a route graph of nav2; return the number of its nodes.

    Nodes are points with the properties `id` and `frame`; edges are lines with `id`, `startid`, `endid` and
    their length as `cost`, one per direction. Ids are unique over nodes and edges. `metadata` has what
    else is known. Viewpoints without a position are left out.
    """
    places = [
        place
        for place in store.places(prefer=prefer, scene=_only_scene(store, scene))
        if place.recalled.position is not None
    ]
    ids = {place.recalled.viewpoint: number for number, place in enumerate(places)}
    positions = {place.recalled.viewpoint: place.recalled.position or (0.0, 0.0, 0.0) for place in places}
    edges = remembered_edges(place.recalled for place in places)
    if not edges:
        raise DataError(f"{store.name}: expected adjacent viewpoints with positions, found none")
    directed = [pair for start, end in edges for pair in ((start, end), (end, start))]
    features: list[dict[str, object]] = [
        _node(place, ids[place.recalled.viewpoint], frame) for place in places
    ]
    features += [
        {
            "type": "Feature",
            "geometry": {"type": "MultiLineString", "coordinates": [[positions[start], positions[end]]]},
            "properties": {
                "id": number,
                "startid": ids[start],
                "endid": ids[end],
                "cost": math.dist(positions[start], positions[end]),
            },
        }
        for number, (start, end) in enumerate(directed, len(ids))
    ]
    graph = {"type": "FeatureCollection", "name": places[0].recalled.scene, "features": features}
    write_json(Path(path), graph)
    return len(places)


def _node(place: Place, number: int, frame: str) -> dict[str, object]:
    found = place.recalled
    metadata = {
        "viewpoint": found.viewpoint,
        "scene": found.scene,
        "robot": found.robot,
        "time": found.time,
        "visits": place.visits,
        "z": (found.position or (0.0, 0.0, 0.0))[2],
    }
    return {
        "type": "Feature",
        "geometry": {"type": "Point", "coordinates": found.position},
        "properties": {"id": number, "frame": frame, "metadata": metadata},
    }


def _only_scene(store: MemoryStore, scene: str | None) -> str:
    """Return the given scene, or the only scene of a store."""
    scenes = store.scenes()
    if scene in scenes or (scene is None and len(scenes) == 1):
        return scene or scenes[0]
    found = f"it has {', '.join(scenes)}" if scenes else "it is empty"
    raise ConfigError(f"{store.name}: expected one of its scenes (--scene), found {scene}; {found}")


# -- Parquet -----------------------------------------------------------------------------------------------


def write_parquet(store: MemoryStore, path: str | Path) -> int:
    """Write all observations as a Parquet table, one row each; return their number."""
    pa, parquet = _import_pyarrow()
    settings, number = store.settings, 0
    floats = pa.float16() if settings.precision == "half" else pa.float32()
    schema = pa.schema(
        {
            **dict.fromkeys(("robot", "session"), pa.string()),
            **dict.fromkeys(("sequence", "stamp"), pa.int64()),
            "time": pa.float64(),
            **dict.fromkeys(("scene", "viewpoint"), pa.string()),
            **dict.fromkeys(("position", "covariance"), pa.list_(pa.float64())),
            "neighbours": pa.list_(pa.string()),
            "vector": pa.list_(floats, settings.width),
            **dict.fromkeys(("features", "thumbnail"), pa.binary()),
        },
        metadata={SETTINGS_KEY: msgspec.json.encode(settings)},
    )
    dtype = np.dtype("<f2" if settings.precision == "half" else "<f4")
    with atomic_path(Path(path)) as part, parquet.ParquetWriter(part, schema) as writer:
        for page in store.pages():
            rows = [observation for _, observation in page]
            columns = {
                name: [getattr(row, name) for row in rows] for name in schema.names if name != "vector"
            }
            values = pa.array(np.frombuffer(b"".join(row.vector for row in rows), dtype=dtype), type=floats)
            columns["vector"] = pa.FixedSizeListArray.from_arrays(values, settings.width)
            writer.write_table(pa.table([columns[name] for name in schema.names], schema=schema))
            number += len(rows)
    return number


def read_parquet(path: str | Path) -> tuple[StoreSettings, Iterator[StoredObservation]]:
    """Return the settings and the observations of a file of `write_parquet`."""
    pa, parquet = _import_pyarrow()
    try:
        file = parquet.ParquetFile(path)
        settings = msgspec.json.decode((file.schema_arrow.metadata or {})[SETTINGS_KEY], type=StoreSettings)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (KeyError, OSError, msgspec.MsgspecError, pa.ArrowException) as error:
        raise DataError(f"{path}: expected a Parquet file of a memory store ({error})") from None
    dtype = np.dtype("<f2" if settings.precision == "half" else "<f4")

    def rows() -> Iterator[StoredObservation]:
        try:
            for batch in file.iter_batches(500):
                vectors = batch.column("vector").flatten().to_numpy(zero_copy_only=False)
                vectors = vectors.astype(dtype).reshape(-1, settings.width)
                for row, vector in zip(batch.drop_columns(["vector"]).to_pylist(), vectors, strict=True):
                    yield msgspec.convert(row | {"vector": vector.tobytes()}, StoredObservation)
        except (KeyError, OSError, ValueError, msgspec.MsgspecError, pa.ArrowException) as error:
            raise DataError(f"{path}: damaged, or not of a memory store ({error})") from None

    return settings, rows()


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("Parquet files need pyarrow: pip install 'esceme[parquet]'") from None
    return pyarrow, parquet


# -- bank files --------------------------------------------------------------------------------------------


def to_bank(store: MemoryStore, *, prefer: Prefer = "first", scene: str | None = None) -> MemoryBank:
    """Return a bank of what a store recalls."""
    settings = store.settings
    bank = MemoryBank(settings.width, pooling=settings.pooling, source=settings.source)
    for found in store.recalled(prefer=prefer, scene=scene):
        bank[found.scene]._insert([found.viewpoint], settings.decode(found.vector), [found.neighbours])
    return bank


def from_bank(
    bank: MemoryBank, settings: StoreSettings, *, robot: str, session: str, time: float
) -> Iterator[StoredObservation]:
    """Yield the memories of a bank as observations of one robot; sequences follow the alphabet."""
    found = (bank.width, bank.pooling, bank.source)
    if found != (settings.width, settings.pooling, settings.source):
        raise MemoryMismatch(
            f"the store holds features of width {settings.width}, {settings.pooling} pooling, from "
            f"'{settings.source}', the bank width {found[0]}, {found[1]} pooling, from '{found[2]}'"
        )
    for scene in bank.scenes:
        memory = bank[scene]
        for sequence, viewpoint in enumerate(sorted(memory.viewpoints)):
            yield StoredObservation(
                robot=robot,
                session=f"{session}/{scene}",
                sequence=sequence,
                scene=scene,
                viewpoint=viewpoint,
                vector=settings.encode(memory.recall([viewpoint])[0]),
                neighbours=memory.neighbours_of(viewpoint),
                time=time,
            )
