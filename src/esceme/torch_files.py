"""Tensor files: safetensors and `torch.save`; reading executes no code, writing is atomic."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from esceme.errors import CheckpointError
from esceme.files import atomic_open

ZIP_START = b"PK\x03\x04"
"""First bytes of files that `torch.load` reads as zip archives."""
TORCHSCRIPT_MEMBER = re.compile(r"[^/]+/(constants\.pkl|code/.*)|.*\.py")
"""Matches names of files in a zip archive that only TorchScript programs contain."""


def load_tensors(path: Path, *, mmap: bool = False) -> Any:
    """Load tensors, in dicts and lists, from a safetensors file or a file that `torch.save` wrote.

    Tensors are on the CPU. A zip archive is checked before torch reads it: its checksums and sizes must be
    correct, and it must not be a TorchScript program. With `mmap`, tensors of an archive are read from the
    disk when they are used. Raises `CheckpointError` for any other file.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with path.open("rb") as file:
            is_zip = file.read(len(ZIP_START)) == ZIP_START
        if is_zip:
            _check_zip(path)
        with warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap and is_zip)
    except CheckpointError:
        raise
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path}: expected only tensors in plain containers; the file is truncated, or its pickle could "
            "run code, so it was not read. If you trust it, load it and save its state dicts with torch.save"
        ) from None
    except Exception as error:  # damaged bytes cause many exception types
        is_described = isinstance(error, OSError | ValueError | zipfile.BadZipFile | SafetensorError)
        reason = str(error).partition("\n")[0] if is_described else type(error).__name__  # torch gives advice
        raise CheckpointError(
            f"{path}: not a complete file of tensors ({reason}); replace it with an undamaged copy"
        ) from None


def save_tensors(value: object, path: Path) -> None:
    """Write tensors, in dicts and lists, to a file atomically with `torch.save`.

    Raises `DataError` if the file cannot be written.
    """
    with atomic_open(path) as file:

        def write(data: memoryview) -> int:
            """Write to the open file; ignore data after the file is closed.

            If `torch.save` is interrupted, it ends the archive when the file is already closed. That must not
            fail.
            """
            return len(data) if file.closed else file.write(data)

        try:
            torch.save(value, SimpleNamespace(write=write, flush=file.flush))
        except RuntimeError as error:  # torch wraps errors of the disk
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _check_zip(path: Path) -> None:
    """Raise an error if the archive is a TorchScript program, or has a damaged or compressed file."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(TORCHSCRIPT_MEMBER.fullmatch(member.filename) for member in members):
            raise CheckpointError(
                f"{path}: a TorchScript program, which could run code, so it was not read; expected a file "
                "of tensors: save the module's state_dict() with torch.save"
            )
        if len({member.filename for member in members}) < len(members):
            raise ValueError("two members of one name; torch might read the other one")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("compressed members; torch.save writes none")
        if sum(member.file_size for member in members) > path.stat().st_size:
            raise ValueError("members larger than the file")
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"wrong checksum of {damaged}")
