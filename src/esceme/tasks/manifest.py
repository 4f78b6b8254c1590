"""Manifests: SHA-256 hashes of all files of a folder, to detect missing and changed files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from esceme.errors import DataError
from esceme.files import PrintableText, atomic_path, read_json, write_json

NAME = "manifest.json"
COMPANION = "world.json"
"""File that describes how a folder was generated. A folder with this file must have a manifest."""
FORMAT = "esceme-manifest-1"


class Manifest(msgspec.Struct):
    """Content of a manifest: path relative to the folder -> SHA-256 hash."""

    format: str
    files: dict[PrintableText, str]


class ManifestMismatch(NamedTuple):
    """File that is missing, or whose hash differs from the hash in the manifest."""

    file: str
    text: str


def write_manifest(root: Path) -> None:
    """Write a manifest of all files below the folder `root`."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != NAME)
    hashes = {path.relative_to(root).as_posix(): hash_file(path) for path in files}
    write_json(root / NAME, Manifest(FORMAT, hashes), indent=1)


def write_json_set(root: Path, values: Mapping[str, object], *, manifest_name: str) -> None:
    """Write `values`, a dict from file name to JSON value, to files of the folder `root`, with a manifest.

    All new files are on the disk before the first old file is replaced. The manifest is replaced first. If
    the process is killed before the last file is replaced, `check_manifest` therefore reports the others.
    """
    hashes: dict[str, str] = {}
    with ExitStack() as stack:  # ends in reverse order

        def add(name: str, data: bytes) -> None:
            with stack.enter_context(atomic_path(root / name)).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())

        for name, value in values.items():
            data = msgspec.json.encode(value) + b"\n"
            hashes[name] = hashlib.sha256(data).hexdigest()
            add(name, data)
        manifest = msgspec.json.encode(Manifest(FORMAT, hashes))
        add(manifest_name, msgspec.json.format(manifest, indent=1) + b"\n")


def check_manifest(root: Path, manifest_name: str = NAME) -> Iterator[ManifestMismatch]:
    """Yield the files of a folder's manifest that are missing or changed; files without entry are ignored."""
    manifest = read_json(root / manifest_name, Manifest)
    if manifest.format != FORMAT:
        raise DataError(f"{root / manifest_name}: format '{manifest.format}', expected '{FORMAT}'")
    for name, digest in manifest.files.items():
        path = root / name
        if not os.path.isfile(path):  # also accepts names that are too long for a file
            yield ManifestMismatch(name, f"listed in {manifest_name}, but missing")
        elif hash_file(path) != digest:
            yield ManifestMismatch(name, f"differs from the file that {manifest_name} lists")


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file. Raise `DataError` if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
