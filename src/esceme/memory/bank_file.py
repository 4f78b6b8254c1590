"""Memory banks as files in safetensors format: a tensor of vectors, and a JSON header with the scenes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

import msgspec
import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from esceme.errors import DataError, MemoryMismatch, prefix_errors
from esceme.files import JSON_ERRORS, PrintableText, atomic_open, file_lock, pause_garbage_collection
from esceme.memory.bank import MemoryBank
from esceme.memory.scene import Pooling

FORMAT = "esceme-memory-"
VERSION = 2
ADVICE = "remove it and build it again"


class StoredScene(msgspec.Struct, frozen=True):
    """One scene in the header of a bank file. In `names`, visited viewpoints precede unvisited ones."""

    scene_id: PrintableText
    names: list[PrintableText]
    neighbours: list[list[int]]
    """For each visited viewpoint, the indices of its neighbours in `names`."""

    @property
    def viewpoints(self) -> list[str]:
        """Names of the visited viewpoints, in alphabetical order."""
        return self.names[: len(self.neighbours)]

    @property
    def edges(self) -> set[tuple[int, int]]:
        """Pairs of adjacent visited viewpoints, as indices into `names`."""
        visited = range(len(self.neighbours))
        return {(min(a, b), max(a, b)) for a in visited for b in self.neighbours[a] if b in visited}


class BankHeader(msgspec.Struct, frozen=True):
    """Header of a bank file: format, properties of the features, checksum, and scenes."""

    format: str
    width: int
    pooling: Pooling
    source: PrintableText
    sha256: str
    """SHA-256 of the vectors and of the other fields, in hexadecimal."""
    scenes: list[StoredScene]


@pause_garbage_collection()
def save_bank(bank: MemoryBank, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a bank to a file atomically. Equal memories give equal bytes.

    If another process has changed the file since `bank` was loaded from it or saved to it, the file receives
    the memories of both; `bank` does not change. If the file exists but `bank` was neither loaded from it nor
    saved to it, raise `DataError`, or overwrite the file with `overwrite`.
    """
    path, file = Path(path), Path(os.path.realpath(path))
    with file_lock(file):
        stored = _open(path) if file.is_file() and not overwrite else None
        known, content = bank.stored_checksums.get(file), _encode(bank)
        if stored is not None and stored.header.sha256 not in (known, content.header.sha256):
            if known is None:
                raise DataError(
                    f"{path}: holds another bank; load and extend it, remove it, or take another name"
                )
            union = _build(stored)
            with prefix_errors(file=path):
                union.merge(bank)
            _write(_encode(union), path)
        elif stored is None or stored.header.sha256 != content.header.sha256:
            _write(content, path)
            bank.stored_checksums[file] = content.header.sha256


@pause_garbage_collection()
def load_bank(
    path: str | Path,
    *,
    width: int | None = None,
    source: str | None = None,
    device: torch.device | str | None = None,
) -> MemoryBank:
    """Return the bank in a file; raise `MemoryMismatch` if the bank has another `width` or `source`.

    Raise `DataError` if the file is not a bank, or if any byte of it has changed.
    """
    content = _open(Path(path))
    header = content.header
    for name, expected, found in (("width", width, header.width), ("source", source, header.source)):
        if expected is not None and expected != found:
            raise MemoryMismatch(
                f"{path}: expected features of {name} {expected!r}, found {found!r}; "
                "build the bank from the features it is used with"
            )
    bank = _build(content, device=device)
    bank.stored_checksums[Path(os.path.realpath(path))] = content.header.sha256
    return bank


def bank_checksum(bank: MemoryBank) -> str:
    """Return the SHA-256 in the file of a bank. Equal memories have equal checksums."""
    return _encode(bank).header.sha256


def read_header(path: str | Path) -> BankHeader:
    """Return the header of a bank file after checking the whole file."""
    return _open(Path(path)).header


class _Content(NamedTuple):
    """Content of a bank file: the header, and the vectors of the viewpoints in the header."""

    header: BankHeader
    rows: Tensor
    """(M, D) float32: the vectors of all scenes, in the order of the header."""


def _encode(bank: MemoryBank) -> _Content:
    """Return the content of the file that stores a bank."""
    header = BankHeader(
        format=f"{FORMAT}{VERSION}",
        width=bank.width,
        pooling=bank.pooling,
        source=bank.source,
        sha256="",
        scenes=[_stored(bank, scene_id) for scene_id in bank.scenes],
    )
    vectors = [bank[scene.scene_id].recall(scene.viewpoints) for scene in header.scenes]
    rows = torch.cat([torch.empty(0, bank.width), *(scene_vectors.cpu() for scene_vectors in vectors)])
    return _Content(msgspec.structs.replace(header, sha256=_checksum(header, rows)), rows)


def _checksum(header: BankHeader, rows: Tensor) -> str:
    """Return the SHA-256 of the vectors and the header, in which the field `sha256` counts as empty."""
    digest = hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(header, sha256="")))
    digest.update(rows.numpy().tobytes())
    return digest.hexdigest()


def _build(content: _Content, *, device: torch.device | str | None = None) -> MemoryBank:
    """Return the bank that the content of a file describes."""
    header = content.header
    bank = MemoryBank(header.width, pooling=header.pooling, source=header.source, device=device)
    sizes = [len(scene.neighbours) for scene in header.scenes]
    for scene, vectors in zip(header.scenes, torch.split(content.rows, sizes), strict=True):
        neighbours = [tuple(scene.names[index] for index in indices) for indices in scene.neighbours]
        bank[scene.scene_id]._insert(scene.viewpoints, vectors, neighbours)
    return bank


def _write(content: _Content, path: Path) -> None:
    """Write a bank file. Raise `DataError` if a name in the bank could not be read again."""
    header = msgspec.json.encode(content.header)
    try:
        msgspec.json.decode(header, type=BankHeader)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not written ({error}); rename the scene or viewpoint") from None
    with atomic_open(path) as file:
        file.write(to_bytes({"rows": content.rows}, {"memory": header.decode()}))


def _stored(bank: MemoryBank, scene_id: str) -> StoredScene:
    """Return one scene of a bank in the format of the header."""
    memory = bank[scene_id]
    visited = sorted(memory.viewpoints)
    index = {viewpoint: position for position, viewpoint in enumerate(visited)}
    neighbours = [
        [index.setdefault(neighbour, len(index)) for neighbour in memory.neighbours_of(viewpoint)]
        for viewpoint in visited
    ]
    return StoredScene(scene_id=scene_id, names=list(index), neighbours=neighbours)


def _open(path: Path) -> _Content:
    """Return the content of a bank file. Raise `DataError` if the file is not a bank or is damaged.

    safetensors opens a file twice. If another process replaces the file in between, the file is read again.
    """
    while True:
        version = _file_version(path)
        try:
            return _read(path)
        except DataError:
            if _file_version(path) == version:
                raise


def _file_version(path: Path) -> tuple[int, int]:
    """Return two numbers that change when the file is replaced; zeros if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _read(path: Path) -> _Content:
    try:
        with safetensors.safe_open(path, "pt") as file:
            if "memory" not in (file.metadata() or {}):
                raise DataError(f"{path}: a safetensors file without a memory header; expected a bank")
            header = _decoded(file.metadata()["memory"], path)
            _check(header, tuple(file.get_slice("rows").get_shape()), path)
            rows = file.get_tensor("rows")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, safetensors.SafetensorError) as error:
        fault = "it is a folder" if path.is_dir() else error
        advice = "expected the bank.safetensors of an evaluation"
        raise DataError(f"{path}: not a complete bank file ({fault}); {advice}") from None
    if rows.dtype != torch.float32 or not rows.isfinite().all():
        raise DataError(f"{path}: expected finite float32 numbers, found {rows.dtype} or NaN; {ADVICE}")
    if _checksum(header, rows) != header.sha256:
        raise DataError(f"{path}: damaged: the content does not have the stored checksum; {ADVICE}")
    return _Content(header, rows)


def _decoded(text: str, path: Path) -> BankHeader:
    """Return the decoded header. Raise `DataError` if it has another format or is malformed.

    The format is checked before the other fields, because other formats may have other fields.
    """
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != f"{FORMAT}{VERSION}":
            version = found.removeprefix(FORMAT) if found.startswith(FORMAT) else ""
            is_newer = version.isdecimal() and int(version) > VERSION
            advice = "; a newer esceme wrote it, update yours" if is_newer else ""
            advice = advice or (f"; an older esceme wrote it, {ADVICE}" if version else "")
            raise DataError(f"{path}: format '{found}', expected '{FORMAT}{VERSION}'{advice}")
        return msgspec.json.decode(text, type=BankHeader)
    except JSON_ERRORS as error:
        raise DataError(f"{path}: the header is malformed ({error}); {ADVICE}") from None


class _Format(msgspec.Struct):
    """The field of a header that names its format."""

    format: str


def _check(header: BankHeader, shape: tuple[int, ...], path: Path) -> None:
    """Raise `DataError` if the header contradicts itself or the shape of the vectors."""
    visited = sum(len(scene.neighbours) for scene in header.scenes)
    if shape != (visited, header.width):
        raise DataError(
            f"{path}: expected vectors of shape {(visited, header.width)}, found {shape}; {ADVICE}"
        )
    if len({scene.scene_id for scene in header.scenes}) < len(header.scenes):
        raise DataError(f"{path}: a scene occurs twice; {ADVICE}")
    for scene in header.scenes:
        known = range(len(scene.names))
        if len(scene.neighbours) > len(known) or len(set(scene.names)) < len(known):
            raise DataError(f"{path}: scene '{scene.scene_id}': its viewpoints are inconsistent; {ADVICE}")
        if any(index not in known for indices in scene.neighbours for index in indices):
            raise DataError(f"{path}: scene '{scene.scene_id}': a neighbour has no name; {ADVICE}")
