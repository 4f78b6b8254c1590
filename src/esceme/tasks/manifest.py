"""A manifest: the list of a folder's files with their fingerprints, so that damage to any of them shows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from esceme.errors import DataError
from esceme.files import read_json, write_json

NAME = "manifest.json"
COMPANION = "world.json"
"""Says how a folder was made; a folder that has it has a manifest, too."""
FORMAT = "esceme-manifest-1"


class Manifest(msgspec.Struct):
    """What the file says: each path below the folder, and the SHA-256 of its content."""

    format: str
    files: dict[str, str]


class Damage(NamedTuple):
    """A file that is not as it was when the manifest was written."""

    file: str
    text: str


def write_manifest(root: Path) -> None:
    """List everything below `root` as it is now."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != NAME)
    listed = {path.relative_to(root).as_posix(): _fingerprint(path) for path in files}
    write_json(root / NAME, Manifest(FORMAT, listed), indent=1)


def check_manifest(root: Path) -> Iterator[Damage]:
    """Every listed file that is missing or has changed since; what came later is not looked at."""
    manifest = read_json(root / NAME, Manifest)
    if manifest.format != FORMAT:
        raise DataError(f"{root / NAME}: format '{manifest.format}', expected '{FORMAT}'")
    for name, fingerprint in manifest.files.items():
        path = root / name
        if not path.is_file():
            yield Damage(name, f"listed in {NAME}, but missing")
        elif _fingerprint(path) != fingerprint:
            yield Damage(name, f"has changed since {NAME} was written")


def _fingerprint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
