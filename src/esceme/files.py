"""File access: validated reading with precise errors, atomic writing, JSON lines, locks."""

from __future__ import annotations

import codecs
import errno
import gc
import glob
import gzip
import hashlib
import os
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Annotated, Any, Self, TypeVar, get_args, get_origin

import filelock
import msgspec

from esceme.errors import DataError

T = TypeVar("T")
PrintableText = Annotated[
    str, msgspec.Meta(pattern=r"\A[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]*\Z")
]
"""An id or a name in a JSON file: text without control characters, line ends and marks of direction."""
JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding raises for bytes that are not JSON."""
LOCK_FILE = ".lock"
LEASE_SECONDS = 60
"""Time in seconds after which a process on another machine may take a lock that was not renewed."""
LOCK_ERRORS = (OSError, NotImplementedError, filelock.LeaseSettingsMismatch)
"""Exceptions of `filelock` where a lock cannot be taken, other than `filelock.Timeout`."""
UNSETTLED_SECONDS = 2
"""Time in seconds after a change during which another change may not change the time stamp of a file."""
CHECKSUM_FIELD = b',"crc32":'
MAX_EXPANSION = 64
MIN_EXPANSION_LIMIT = 1 << 24
"""Number of bytes to which a compressed file of any size may expand."""


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, decompressed if its name ends in `.gz`.

    Raise `DataError` if decompression exceeds `expansion_limit`.
    """
    try:
        if path.suffix != ".gz":
            return path.read_bytes()
        limit = expansion_limit(path)
        with gzip.open(path) as file:
            data = file.read(limit + 1)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if len(data) > limit:
        raise DataError(
            f"{path}: expands to more than {limit} bytes, {MAX_EXPANSION} times its size; if you trust it, "
            "decompress it"
        )
    return data


def compress_gzip(data: bytes) -> bytes:
    """Compress to a gzip file without a date: equal bytes on every Python.

    `gzip.compress` names the system in the header: unknown from Python 3.13 on, Unix before.

    >>> compress_gzip(b"")[:10].hex(" ")
    '1f 8b 08 00 00 00 00 00 02 03'
    """
    return zlib.compress(data, level=9, wbits=31)


def expansion_limit(path: Path) -> int:
    """Return how many bytes a compressed file may expand to: `MAX_EXPANSION` times its size, or a minimum."""
    return max(MIN_EXPANSION_LIMIT, MAX_EXPANSION * path.stat().st_size)


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 text file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_json(path: Path, kind: type[T]) -> T:
    """Return a JSON file as type `kind`. Raise `DataError`, with record and field, if a type differs."""
    data = read_bytes(path)
    if not data.strip():
        raise DataError(f"{path}: the file is empty; expected json")
    return _decode(data, kind, path)


def read_records(path: Path, kind: type[T]) -> list[T]:
    """Return the records of a JSON array (`.json`) or of JSON lines (`.jsonl`), optionally gzipped.

    `kind` is the type of a record. Raise `DataError` if there are no records: no published split is empty.
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
    """Return a description of a validation error that includes dict keys, which msgspec omits."""
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
    """Return msgspec's message `… - at `$[3].scan`` as `record 3: field 'scan': …`.

    >>> _rephrase_msgspec("Expected `str`, got `int` - at `$[3].scan`")
    "record 3: field 'scan': expected str, got int"
    >>> _rephrase_msgspec("Expected `str`, got `int` - at `key` in `$.files`")
    "field 'files': a key: expected str, got int"
    """
    text, _, location = message.partition(" - at `")
    location, of_key, container = location.partition("key` in `")
    location = (container if of_key else location).removeprefix("$")
    text = re.sub(r"str matching regex .*", "text without control characters", text.replace("`", ""))
    record = re.match(r"\[(\d+)\]", location)
    field = location[record.end() :] if record else location
    field = field.rstrip("`").removeprefix(".")
    parts = [f"record {record[1]}"] if record else []
    parts += [f"field '{field}'"] if field else []
    parts += ["a key"] if of_key else []
    return ": ".join([*parts, text[:1].lower() + text[1:]])


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` if the context succeeds; otherwise nothing changes.

    When the context ends, the new file is on the disk. Only regular files are replaced, never folders, pipes
    or devices. Temporary files for `path` that killed processes have left are removed.
    """
    try:
        target = path.resolve()
        if os.path.lexists(target) and not target.is_file():
            kind = "folder" if target.is_dir() else "device, pipe or broken link"
            raise DataError(f"{path}: cannot be written (there is a {kind} of that name)")
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(target.parent, target.name)
        handle, name = tempfile.mkstemp(
            dir=target.parent, prefix=partial_file_prefix(target.name), suffix=".part"
        )
    except (OSError, RuntimeError) as error:  # resolve() raises RuntimeError for circular links
        raise _write_error(path, error) from None
    part = Path(name)
    try:
        os.close(handle)
        yield part
        part.chmod(0o666 & ~_read_umask())
        _sync(part)
        part.replace(target)
        _sync(target.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise _write_error(path, error) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_open(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Yield an open file that replaces `path` if the context succeeds; see `atomic_path`."""
    with atomic_path(path) as part, part.open(mode) as file:
        yield file


def require_space(path: Path, size: int) -> None:
    """Raise `OSError` if the disk or the process's limit of file sizes has no room for `size` bytes."""
    if path.stat().st_blocks * 512 + shutil.disk_usage(path.parent).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit != resource.RLIM_INFINITY and limit < size:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def partial_file_prefix(name: str) -> str:
    """Return the prefix of temporary file names for `name`, which contains the machine and the process id."""
    return f".{name}.{_host_name()}.{os.getpid()}."


def remove_partial_files(folder: Path, name: str = "*") -> None:
    """Remove temporary files and folders for `name` whose process on this machine has ended."""
    pattern = name if name == "*" else glob.escape(name)
    for part in folder.glob(f".{pattern}.{_host_name()}.*.*.part"):
        process = part.name.split(".")[-3]
        if process.isdigit() and not _is_running(int(process)):
            if part.is_dir():
                shutil.rmtree(part, ignore_errors=True)
            else:
                part.unlink(missing_ok=True)


def _host_name() -> str:
    """Return the machine's name without dots and characters that have a meaning in file names or patterns."""
    return re.sub(r"[^\w-]", "_", socket.gethostname())


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _sync(path: Path) -> None:
    """Wait until a file, or the list of files in a folder, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():  # some file systems cannot synchronise folders
            raise
    finally:
        os.close(handle)


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
    """Writer that appends records to a JSON-lines file.

    When `write` returns, the record has been passed to the operating system. Raise `DataError` if the file
    cannot be written. Hold `folder_lock` while a writer is open.
    """

    def __init__(self, path: Path, *, keep: int | None = None, checksum_key: str | None = None) -> None:
        """Open `path` for appending. Keep only its first `keep` complete lines, or all if `keep` is None.

        With `checksum_key`, every line gets a checksum of the line and the key; see `read_checked_lines`.
        """
        self._path, self._checksum_key = path, checksum_key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = read_complete_lines(path) if path.exists() else []
            self._file = path.open("ab", buffering=0)
            self._file.truncate(sum(map(len, lines[:keep])))
        except OSError as error:
            raise _write_error(path, error) from None

    def write(self, *records: object) -> None:
        """Append one line per record."""
        lines = [msgspec.json.encode(record) for record in records]
        if self._checksum_key is not None:
            lines = [_add_checksum(line, self._checksum_key) for line in lines]
        data = b"".join(line + b"\n" for line in lines)
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
    """Return the lines of a file without an incomplete last line, whose writing was interrupted."""
    lines = read_bytes(path).splitlines(keepends=True)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def read_json_lines(path: Path, kind: type[T], *, start: int = 0, stop: int | None = None) -> list[T]:
    """Return the complete lines `start` to `stop` (exclusive) of a JSON-lines file as type `kind`.

    Raise `DataError`, with the line number, if a line has another type.
    """
    lines = read_complete_lines(path)[start:stop]
    return [_decode(line, kind, path, line=number) for number, line in enumerate(lines, start + 1)]


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the search for reference cycles while many objects are created that are all kept.

    Each search looks at all objects so far, so that the cost per object would grow with their number. Use it
    as a context or as a decorator.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@pause_garbage_collection()
def read_checked_lines(
    path: Path, kind: type[T], checksum_key: str, *, skip_lines: int = 0
) -> tuple[list[T], str]:
    """Return the records of a file written with `checksum_key`, up to the first damaged line.

    `kind` is the type of a record. The first `skip_lines` lines are left out. The second value is a message
    about the damaged line; it is empty if no line is damaged.
    """
    records: list[T] = []
    for number, line in enumerate(read_complete_lines(path)[skip_lines:], skip_lines + 1):
        content, separator, _ = line.rpartition(CHECKSUM_FIELD)
        if not separator or line != _add_checksum(content + b"}", checksum_key) + b"\n":
            return records, f"{path}: line {number} is damaged"
        try:
            records.append(_decode(line, kind, path, line=number))
        except DataError as error:
            return records, str(error)
    return records, ""


def _add_checksum(line: bytes, key: str) -> bytes:
    """Return a JSON object line with an additional field: the CRC-32 of key and line."""
    checksum = zlib.crc32(line, zlib.crc32(key.encode()))
    return line[:-1] + CHECKSUM_FIELD + b'"%08x"}' % checksum


# -- digests of unchanged files --------------------------------------------------------------------------


class StampedDigest(msgspec.Struct, frozen=True):
    """Digest of the content of files, and of their sizes and time stamps at that time."""

    digest: str
    stamp: str


class StoredDigest:
    """Digest of files that is stored in a JSON file, so that unchanged files need not be read again.

    Files are unchanged if size, inode and both time stamps are. Files that changed within the last seconds
    are not trusted, because a later change could have the same time stamp.
    """

    def __init__(
        self, store: Path | None, name: str, files: Sequence[Path], *, is_trusted: bool = True
    ) -> None:
        """Look up the digest of `files` under `name` in the file `store`. Create this before reading them.

        If `store` is None, no digest is stored.
        """
        self._store, self._name, self._files = store, name, files
        self._stamp, self._changed = _stamp_files(files)
        found = self._read().get(name) if is_trusted else None
        is_unchanged = found is not None and found.stamp == self._stamp
        self.value = found.digest if found is not None and is_unchanged else None
        """The stored digest; None if there is none, if the files have changed, or if it is not trusted."""

    def get(self, compute: Callable[[], str]) -> str:
        """Return the stored digest, or compute and store it."""
        digest = self.value or compute()
        self.save(digest)
        return digest

    def save(self, digest: str) -> None:
        """Store the digest if it is new and the files have not just changed. Ignore a folder without room."""
        is_settled = self._changed < time.time() - UNSETTLED_SECONDS
        if self._store is None or self._store.is_symlink() or self.value == digest or not is_settled:
            return
        if _stamp_files(self._files)[0] == self._stamp:
            with suppress(DataError):
                write_json(self._store, self._read() | {self._name: StampedDigest(digest, self._stamp)})

    def _read(self) -> dict[str, StampedDigest]:
        with suppress(DataError):
            return {} if self._store is None else read_json(self._store, dict[str, StampedDigest])
        return {}


def _stamp_files(files: Sequence[Path]) -> tuple[str, float]:
    """Return a digest of sizes, inodes and time stamps of files, and the time of their latest change."""
    status = [file.stat() for file in files]
    facts = [(entry.st_size, entry.st_ino, entry.st_mtime_ns, entry.st_ctime_ns) for entry in status]
    changed = max((max(entry.st_mtime, entry.st_ctime) for entry in status), default=0.0)
    return hashlib.sha256(repr(facts).encode()).hexdigest(), changed


# -- locks -----------------------------------------------------------------------------------------------


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which need not exist, in this context. Wait until other processes release it.

    Raise `DataError` if another process holds the lock for more than two minutes.
    """
    lock = filelock.SoftFileLease(
        path.with_name(f".{path.name}{LOCK_FILE}"), lease_duration=LEASE_SECONDS, timeout=2 * LEASE_SECONDS
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_empty_lock(Path(lock.lock_file))
        lock.acquire()
    except filelock.Timeout:
        raise DataError(f"{path}: another process has been writing it for long; try again") from None
    except LOCK_ERRORS as error:
        raise _write_error(path, error) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def folder_lock(folder: Path, activity: str) -> Iterator[None]:
    """Create a folder and hold its lock in this context. Raise `DataError` if another process holds it.

    The lock is a file that names its holder and is renewed while it is held. Locks therefore work on network
    file systems, and the lock of a killed process can be taken over. Temporary files that killed processes
    have left in the folder, or one level below, are removed. `activity` is the work that needs the lock, for
    messages, for example "training".
    """
    lock = filelock.SoftFileLease(
        folder / LOCK_FILE, lease_duration=LEASE_SECONDS, timeout=0, on_compromise=_interrupt_without_lock
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_links(folder)
        _remove_empty_lock(folder / LOCK_FILE)
        try:
            lock.acquire()
        except filelock.Timeout:
            if (owner := lock.owner) is not None and owner.hostname == socket.gethostname():
                raise
            # A damaged lock is taken over soon, that of a killed process on another machine after its lease.
            lock.acquire(timeout=LEASE_SECONDS + 1)
        for part in (folder, *(entry for entry in folder.iterdir() if entry.is_dir())):
            remove_partial_files(part)
    except filelock.Timeout:
        holder = f" (process {owner.pid} on {owner.hostname})" if (owner := lock.owner) else ""
        raise DataError(
            f"{folder}: another {activity} is running there{holder}; wait until it has ended"
        ) from None
    except LOCK_ERRORS as error:
        raise _write_error(folder, error) from None
    try:
        yield
    finally:
        lock.release()


def _remove_empty_lock(path: Path) -> None:
    """Remove a lock file that names no holder and stays empty for a second.

    A process that is stopped while it takes the lock leaves such a file, and `filelock` would wait forever.
    """
    for _ in range(20):
        if not path.is_file() or path.stat().st_size:
            return
        time.sleep(0.05)
    path.unlink(missing_ok=True)


def _interrupt_without_lock(event: filelock.LeaseCompromise) -> None:
    """Interrupt this process, because it has lost its lock and another process may write to the folder."""
    print(f"{event.lock_file}: the lock was lost ({event.reason})", file=sys.stderr)
    is_background = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # shells let such jobs ignore SIGINT
    os.kill(os.getpid(), signal.SIGTERM if is_background else signal.SIGINT)


def _refuse_links(folder: Path) -> None:
    """Raise `DataError` if a link in the folder, at any depth, leads out of the folder."""
    root = folder.resolve()
    walk = os.walk(folder)
    for entry in (Path(parent, name) for parent, folders, files in walk for name in (*folders, *files)):
        # Unlike `Path.resolve`, `realpath` accepts circular links.
        if entry.is_symlink() and not Path(os.path.realpath(entry)).is_relative_to(root):
            raise DataError(
                f"{entry}: a link that leads out of {folder}, where it could overwrite files; remove the link"
            )


def _write_error(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})")


def _read_umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
