"""File access: validated reading with precise errors, atomic writing, JSON lines, locks."""

from __future__ import annotations

import codecs
import gzip
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, TypeVar, get_args, get_origin

import filelock
import msgspec

from esceme.errors import DataError

T = TypeVar("T")
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of decoding bytes that are not JSON."""
LOCK_FILE = ".lock"


def read_bytes(path: Path) -> bytes:
    """Read a file; decompress it if its name ends in `.gz`."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_text(path: Path) -> str:
    """Read a UTF-8 text file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file as type `kind`; raises `DataError` that names a record and field of another type."""
    data = read_bytes(path)
    if not data.strip():
        raise DataError(f"{path}: the file is empty; expected json")
    return _decode(data, kind, path)


def read_records(path: Path, kind: type[T]) -> list[T]:
    """Read the records of a JSON array (`.json`) or of JSON lines (`.jsonl`), optionally gzipped.

    Raises `DataError` if there are no records, because no published split is empty.
    """
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        lines = enumerate(read_bytes(path).splitlines(), 1)
        records = [_decode(line, kind, path, line=number) for number, line in lines if line.strip()]
    else:
        records = read_json(path, list[kind])  # type: ignore[valid-type]
    if not records:
        raise DataError(f"{path}: holds no records")
    return records


def _decode(data: bytes, kind: type[T], path: Path, *, line: int | None = None) -> T:
    location = f"{path}" if line is None else f"{path}: line {line}"
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{location}: {_describe_validation_error(error, data, kind)}") from None
    except JSON_ERRORS as error:
        raise DataError(f"{location}: not valid json ({error}); is the file complete?") from None


def _describe_validation_error(error: msgspec.ValidationError, data: bytes | msgspec.Raw, kind: Any) -> str:
    """Describe a validation error with the names of dict entries, which msgspec omits."""
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        with suppress(*JSON_ERRORS):
            for name, entry in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items():
                try:
                    msgspec.json.decode(entry, type=inner)
                except msgspec.ValidationError as fault:
                    return f"entry '{name}': {_describe_validation_error(fault, entry, inner)}"
    return _rephrase_msgspec(str(error))


def _rephrase_msgspec(message: str) -> str:
    """Rephrase msgspec's `… - at `$[3].scan`` as `record 3: field 'scan': …`.

    >>> _rephrase_msgspec("Expected `str`, got `int` - at `$[3].scan`")
    "record 3: field 'scan': expected str, got int"
    """
    text, _, location = message.partition(" - at `$")
    text = text.replace("`", "")
    record = re.match(r"\[(\d+)\]", location)
    field = location[record.end() :] if record else location
    field = field.rstrip("`").removeprefix(".")
    parts = [f"record {record[1]}"] if record else []
    parts += [f"field '{field}'"] if field else []
    return ": ".join([*parts, text[:1].lower() + text[1:]])


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the block succeeds; otherwise nothing changes.

    Only regular files are replaced, never folders, pipes or devices.
    """
    try:
        target = path.resolve()
        if os.path.lexists(target) and not target.is_file():
            kind = "folder" if target.is_dir() else "device, pipe or broken link"
            raise DataError(f"{path}: cannot be written (there is a {kind} of that name)")
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except (OSError, RuntimeError) as error:  # resolve() raises RuntimeError for circular links
        raise _write_error(path, error) from None
    part = Path(name)
    try:
        os.close(handle)
        yield part
        part.chmod(0o666 & ~_read_umask())
        part.replace(target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _write_error(path, error) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_open(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file that replaces `path` if the block succeeds; see `atomic_path`."""
    with atomic_path(path) as part, part.open(mode) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: object, *, indent: int | None = None) -> None:
    """Write `value` as JSON atomically."""
    data = msgspec.json.encode(value)
    if indent is not None:
        data = msgspec.json.format(data, indent=indent)
    with atomic_open(path) as file:
        file.write(data + b"\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 atomically."""
    with atomic_open(path) as file:
        file.write(text.encode())


# -- JSON lines that grow --------------------------------------------------------------------------------


class JsonLinesWriter:
    """Append records to a JSON-lines file; a record has reached the operating system when `write` returns.

    Raises `DataError` where the file cannot be written. Hold `folder_lock` while a writer is open.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        """Open `path` for appending. Only its first `keep` complete lines remain; by default all of them."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = read_complete_lines(path) if path.exists() else []
            self._file = path.open("ab", buffering=0)
            self._file.truncate(sum(map(len, lines[:keep])))
        except OSError as error:
            raise _write_error(path, error) from None

    def write(self, *records: object) -> None:
        """Append one line per record."""
        data = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _write_error(self._path, error) from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_complete_lines(path: Path) -> list[bytes]:
    """Read the lines of a file. A last line without line end is left out: its writing was interrupted."""
    lines = read_bytes(path).splitlines(keepends=True)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def read_json_lines(path: Path, kind: type[T], *, start: int = 0, stop: int | None = None) -> list[T]:
    """Decode the complete lines `start` to `stop` (exclusive) of a JSON-lines file as type `kind`.

    Raises `DataError` that names a line of another type.
    """
    lines = read_complete_lines(path)[start:stop]
    return [_decode(line, kind, path, line=number) for number, line in enumerate(lines, start + 1)]


# -- locks -----------------------------------------------------------------------------------------------


@contextmanager
def folder_lock(folder: Path, activity: str) -> Iterator[None]:
    """Create a folder and hold its lock in the block; raises `DataError` if another process holds it.

    Partial files that a killed process has left in the folder, or one level below, are removed. `activity`
    names the work that needs the lock in messages, for example "training".
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / LOCK_FILE, timeout=0)
        lock.acquire()
        for part in (*folder.glob(".*.part"), *folder.glob("*/.*.part")):
            if part.is_file():  # folders are generated worlds in progress
                part.unlink(missing_ok=True)
    except filelock.Timeout:
        raise DataError(f"{folder}: another {activity} is running there; wait until it has ended") from None
    except (OSError, NotImplementedError) as error:
        raise _write_error(folder, error) from None
    try:
        yield
    finally:
        lock.release()


def _write_error(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})")


def _read_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
