"""Memory banks as files: vectors in safetensors format, scenes and viewpoints as JSON in the header."""

from __future__ import annotations

from pathlib import Path

import msgspec
import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from esceme.errors import DataError, MemoryMismatch
from esceme.files import atomic_open
from esceme.memory.bank import MemoryBank
from esceme.memory.scene import Pooling

FORMAT = "esceme-memory-"
VERSION = 1


class StoredScene(msgspec.Struct, frozen=True):
    """One scene of a file; visited viewpoints come first in `names`."""

    scene_id: str
    names: list[str]
    neighbours: list[list[int]]
    """Per visited viewpoint: indices of its neighbours in `names`."""

    @property
    def viewpoints(self) -> list[str]:
        """Visited viewpoints in alphabetical order."""
        return self.names[: len(self.neighbours)]

    @property
    def edges(self) -> set[tuple[int, int]]:
        """Pairs of visited neighbours as indices into `names`."""
        visited = range(len(self.neighbours))
        return {(min(a, b), max(a, b)) for a in visited for b in self.neighbours[a] if b in visited}


class BankHeader(msgspec.Struct, frozen=True):
    """Header of a bank file."""

    format: str
    width: int
    pooling: Pooling
    source: str
    scenes: list[StoredScene]


def save_bank(bank: MemoryBank, path: str | Path) -> None:
    """Write a bank atomically; equal memories give equal bytes."""
    header = BankHeader(
        format=f"{FORMAT}{VERSION}",
        width=bank.width,
        pooling=bank.pooling,
        source=bank.source,
        scenes=[_stored(bank, scene_id) for scene_id in bank.scenes],
    )
    vectors = [bank[scene.scene_id].recall(scene.viewpoints) for scene in header.scenes]
    rows = torch.cat([torch.empty(0, bank.width), *(scene_vectors.cpu() for scene_vectors in vectors)])
    data = to_bytes({"rows": rows}, {"memory": msgspec.json.encode(header).decode()})
    with atomic_open(Path(path)) as file:
        file.write(data)


def load_bank(
    path: str | Path,
    *,
    width: int | None = None,
    source: str | None = None,
    device: torch.device | str | None = None,
) -> MemoryBank:
    """Read a bank; raise `MemoryMismatch` if its width or source differs from the expected one."""
    header, rows = _open(Path(path), vectors=True)
    for name, expected, found in (("width", width, header.width), ("source", source, header.source)):
        if expected is not None and expected != found:
            raise MemoryMismatch(
                f"{path}: expected features of {name} {expected!r}, found {found!r}; "
                "build the bank from the features it is used with"
            )
    bank = MemoryBank(header.width, pooling=header.pooling, source=header.source, device=device)
    sizes = [len(scene.neighbours) for scene in header.scenes]
    for scene, vectors in zip(header.scenes, torch.split(rows, sizes), strict=True):
        neighbours = [tuple(scene.names[index] for index in indices) for indices in scene.neighbours]
        bank[scene.scene_id]._insert(scene.viewpoints, vectors, neighbours)
    return bank


def read_header(path: str | Path) -> BankHeader:
    """Read the header without the vectors."""
    return _open(Path(path), vectors=False)[0]


def _stored(bank: MemoryBank, scene_id: str) -> StoredScene:
    memory = bank[scene_id]
    visited = sorted(memory.viewpoints)
    index = {viewpoint: position for position, viewpoint in enumerate(visited)}
    neighbours = [
        [index.setdefault(neighbour, len(index)) for neighbour in memory.neighbours_of(viewpoint)]
        for viewpoint in visited
    ]
    return StoredScene(scene_id=scene_id, names=list(index), neighbours=neighbours)


def _open(path: Path, *, vectors: bool) -> tuple[BankHeader, Tensor]:
    """Read the header and, if `vectors`, the rows; raise `DataError` if the file is not a bank."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            if "memory" not in (file.metadata() or {}):
                raise DataError(f"{path}: a safetensors file without a memory header; expected a bank")
            header = _decoded(file.metadata()["memory"], path)
            _check(header, tuple(file.get_slice("rows").get_shape()), path)
            rows = file.get_tensor("rows") if vectors else torch.empty(0)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a complete bank file ({error}); save it again") from None
    if rows.dtype != torch.float32 or not rows.isfinite().all():
        raise DataError(f"{path}: expected finite float32 numbers, found {rows.dtype} or NaN; save it again")
    return header, rows


def _decoded(text: str, path: Path) -> BankHeader:
    """Decode the header; check the format first, so that newer formats are reported as such."""
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != f"{FORMAT}{VERSION}":
            newer = "; a newer esceme wrote it, update yours" if found.startswith(FORMAT) else ""
            raise DataError(f"{path}: format '{found}', expected '{FORMAT}{VERSION}'{newer}")
        return msgspec.json.decode(text, type=BankHeader)
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: the header is malformed ({error}); save it again") from None


class _Format(msgspec.Struct):
    format: str


def _check(header: BankHeader, shape: tuple[int, ...], path: Path) -> None:
    """Raise `DataError` if header and vectors contradict each other."""
    visited = sum(len(scene.neighbours) for scene in header.scenes)
    if shape != (visited, header.width):
        raise DataError(
            f"{path}: expected vectors of shape {(visited, header.width)}, found {shape}; save it again"
        )
    if len({scene.scene_id for scene in header.scenes}) < len(header.scenes):
        raise DataError(f"{path}: a scene occurs twice; save it again")
    for scene in header.scenes:
        known = range(len(scene.names))
        if len(scene.neighbours) > len(known) or len(set(scene.names)) < len(known):
            raise DataError(
                f"{path}: scene '{scene.scene_id}': its viewpoints are inconsistent; save it again"
            )
        if any(index not in known for indices in scene.neighbours for index in indices):
            raise DataError(f"{path}: scene '{scene.scene_id}': a neighbour has no name; save it again")
