"""Files of maps in safetensors format: arrays of visited viewpoints, and a JSON header with their names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save

from esceme.errors import DataError, MemoryMismatch
from esceme.files import JSON_ERRORS, PrintableText, atomic_open
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank, VisitedViewpoint

FORMAT = "esceme-maps-1"
ADVICE = "remove it and build it again"
COLUMNS = ("views", "headings", "elevations", "lengths")
"""Arrays with one entry per candidate, all viewpoints joined."""


class MappedScene(msgspec.Struct, frozen=True):
    """One scene in the header of a file of maps."""

    scene_id: PrintableText
    episodes: int
    viewpoints: list[PrintableText]
    """Visited viewpoints, in alphabetical order."""
    neighbours: list[list[PrintableText]]
    """Names of the candidates of each visited viewpoint."""


class MapHeader(msgspec.Struct, frozen=True):
    """Header of a file of maps: format, properties of the features, checksum, and scenes."""

    format: str
    width: int
    source: PrintableText
    codebook: str
    """SHA-256 of the centroids whose codes the file holds; empty without codes."""
    sha256: str
    """SHA-256 of the arrays and of the other fields, in hexadecimal."""
    scenes: list[MappedScene]


def codebook_digest(codebook: Codebook | None) -> str:
    """Return the SHA-256 of the centroids of a codebook; empty without a codebook."""
    return "" if codebook is None else hashlib.sha256(codebook.centroids.tobytes()).hexdigest()


def save_maps(maps: MapBank, path: str | Path) -> None:
    """Write maps to a file atomically. Equal maps give equal bytes."""
    scenes, records = [], []
    for scene_id in maps.scenes:
        scene_map = maps[scene_id]
        names = sorted(scene_map.viewpoints)
        found = [scene_map.record(name) for name in names]
        neighbours = [list(record.neighbours) for record in found]
        scenes.append(MappedScene(scene_id, scene_map.episodes, names, neighbours))
        records += found
    arrays: dict[str, NDArray[Any]] = {
        "positions": np.array([record.position for record in records], np.float32).reshape(-1, 3),
        **{
            name: np.concatenate([np.zeros(0, kind), *(getattr(record, name) for record in records)]).astype(
                kind
            )
            for name, kind in zip(COLUMNS, (np.int8, np.float32, np.float32, np.float32), strict=True)
        },
    }
    if maps.keeps_features:
        arrays["features"] = np.array([record.features for record in records], np.float16).reshape(
            len(records), -1, maps.width
        )
    if maps.codebook is not None:
        arrays["codes"] = np.array([record.codes for record in records], np.int16).reshape(len(records), -1)
    header = MapHeader(FORMAT, maps.width, maps.source, codebook_digest(maps.codebook), "", scenes)
    header = msgspec.structs.replace(header, sha256=_checksum(header, arrays))
    with atomic_open(Path(path)) as file:
        file.write(save(arrays, {"maps": msgspec.json.encode(header).decode()}))


def load_maps(path: str | Path, *, codebook: Codebook | None = None) -> MapBank:
    """Return the maps in a file. `codebook` is the one whose codes the file must hold.

    Raise `DataError` if the file holds no maps or is damaged, and `MemoryMismatch` for other codes.
    """
    header, arrays = _read(Path(path))
    if header.codebook != codebook_digest(codebook):
        raise MemoryMismatch(f"{path}: its codes are of another codebook; build the maps with this planner")
    maps = MapBank(header.width, source=header.source, codebook=codebook, keeps_features="features" in arrays)
    row, first = 0, 0
    for scene in header.scenes:
        for viewpoint, neighbours in zip(scene.viewpoints, scene.neighbours, strict=True):
            part = slice(first, first + len(neighbours))
            record = VisitedViewpoint(
                position=arrays["positions"][row],
                neighbours=tuple(neighbours),
                views=arrays["views"][part],
                headings=arrays["headings"][part],
                elevations=arrays["elevations"][part],
                lengths=arrays["lengths"][part],
                features=arrays["features"][row] if "features" in arrays else None,
                codes=arrays["codes"][row] if "codes" in arrays else None,
            )
            maps[scene.scene_id].remember(viewpoint, record)
            row, first = row + 1, part.stop
        maps[scene.scene_id].episodes = scene.episodes
    return maps


def _checksum(header: MapHeader, arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(header, sha256="")))
    for name in sorted(arrays):
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[MapHeader, dict[str, NDArray[Any]]]:
    try:
        with safetensors.safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            if "maps" not in metadata:
                raise DataError(f"{path}: a safetensors file without a header of maps; expected maps")
            header = msgspec.json.decode(metadata["maps"], type=MapHeader)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, safetensors.SafetensorError, msgspec.ValidationError, *JSON_ERRORS) as error:
        raise DataError(f"{path}: not a complete file of maps ({error}); {ADVICE}") from None
    if header.format != FORMAT:
        raise DataError(f"{path}: format '{header.format}', expected '{FORMAT}'; {ADVICE}")
    if _checksum(header, arrays) != header.sha256:
        raise DataError(f"{path}: damaged: the content does not have the stored checksum; {ADVICE}")
    return header, arrays
