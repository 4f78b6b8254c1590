"""Checks of stores, and recovery of everything that is readable in a damaged one.

Every row has a digest and a checksum, so that it can be verified without its neighbours. Where SQLite cannot
read a damaged file, its pages and those of the WAL are searched for rows
(format: https://www.sqlite.org/fileformat.html).
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from esceme.errors import DataError
from esceme.memory.store import MemoryStore, _from_row
from esceme.memory.store_database import COLUMNS, KEY, Row
from esceme.memory.store_record import StoredObservation, StoreSettings
from esceme.memory.stored_memory import connect_store

LEAF = 0x0D
"""First byte of a page that holds rows of a table."""
PAGE_SIZES = [2**power for power in range(9, 17)]
INTEGER_SIZES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
DIGEST_LENGTH = 64


class StoreReport(NamedTuple):
    """Result of a check."""

    observations: int
    """Number of undamaged observations."""
    faults: list[str]
    """What is damaged; empty if nothing is."""
    notes: list[str]
    """What is unusual and no damage: keys with several observations, places with several vectors."""


class Recovered(NamedTuple):
    """What is readable in a store."""

    settings: StoreSettings
    observations: list[StoredObservation]
    forgotten: list[Row]
    """Forgotten keys: robot, session, sequence, digest."""


def check_store(path: str | Path) -> StoreReport:
    """Verify the structure of a store, a file or postgresql://..., and every row."""
    if "://" in str(path):
        with connect_store(str(path), read_only=True) as store:
            return check_rows(store)
    path = Path(path)
    try:
        with MemoryStore.open(path, read_only=True) as store:
            return check_rows(store)
    except DataError as error:
        if not path.is_file():
            raise
        with suppress(DataError):
            return StoreReport(len(recover(path).observations), [str(error)], [])
        return StoreReport(0, [str(error)], [])


@contextmanager
def open_readable(path: str | Path, note: Callable[[str], None]) -> Iterator[MemoryStore]:
    """Yield a store for reading; if it is damaged, a temporary one of everything readable, after a `note`."""
    if not (faults := check_store(path).faults):
        with connect_store(str(path), read_only=True) as store:
            yield store
        return
    found = recover(Path(path))
    note(f"{path} is damaged ({len(faults)} faults): {len(found.observations):,} observations are readable")
    with (
        tempfile.TemporaryDirectory() as folder,
        MemoryStore.open(Path(folder) / Path(path).name, found.settings) as store,
    ):
        store.add(found.observations, found.forgotten, operation="recover")
        yield store


def check_rows(store: MemoryStore) -> StoreReport:
    """Verify the structure of an open store and every row; the database may be of any kind."""
    faults, whole = store.database.faults(), 0
    query = f"SELECT id, {', '.join(COLUMNS)} FROM observation WHERE id"
    last, end = 0, int(store.database.query("SELECT coalesce(max(id), 0) FROM observation")[0][0])
    while last < end:
        try:
            rows = store.database.query(f"{query} > ? ORDER BY id LIMIT 500", (last,))
            step = rows[-1][0] if rows else end
        except DataError:  # a damaged page among them
            step = min(last + 500, end)
            rows = [
                row for number in range(last + 1, step + 1) for row in _read_one(store, query, number, faults)
            ]
        for row in rows:
            try:
                fault = _from_row(row[1:]).fault(store.settings)
            except DataError as error:
                fault = str(error)
            faults += [f"{store.name}: row {row[0]}: {fault}"] if fault else []
            whole += not fault
        last = step
    notes = []
    with suppress(DataError):
        repeated = store.database.query(
            "SELECT robot, session, sequence FROM observation GROUP BY robot, session, sequence "
            "HAVING count(*) > 1"
        )
        notes += [
            f"sequence {sequence} of session '{session}' of '{robot}' has several observations; do two "
            "robots have this name?"
            for robot, session, sequence in repeated
        ]
        notes += [
            f"{viewpoint} in {scene}: {number} different vectors"
            for scene, viewpoint, number in store.conflicts()
        ]
    return StoreReport(whole, faults, notes)


def _read_one(store: MemoryStore, query: str, number: int, faults: list[str]) -> list[Row]:
    try:
        return store.database.query(f"{query} = ?", (number,))
    except DataError:
        faults.append(f"{store.name}: row {number} cannot be read")
        return []


def recover(path: str | Path) -> Recovered:
    """Return everything readable in a store, damaged or not; raise `DataError` if its settings are lost."""
    path = Path(path)
    settings: list[StoreSettings] = []
    found: dict[str, StoredObservation] = {}
    forgotten: set[Row] = set()
    with suppress(DataError), MemoryStore.open(path, read_only=True) as store:
        settings.append(store.settings)
        if not check_rows(store).faults:
            return Recovered(
                store.settings,
                list(store.observations()),
                store.database.query(f"SELECT {', '.join(KEY)} FROM forgotten"),
            )
    for row in _scan(path):
        if len(row) == len(COLUMNS) + 1:
            with suppress(DataError):
                observation = _from_row(_with_floats(row[1:]))
                found.setdefault(observation.digest, observation)
        elif len(row) == len(KEY) and isinstance(row[3], str) and len(row[3]) == DIGEST_LENGTH:
            forgotten.add(row)
        elif len(row) == 2 and row[0] == "settings":
            with suppress(msgspec.MsgspecError, TypeError):
                settings.append(msgspec.json.decode(row[1], type=StoreSettings))
    if not settings:
        raise DataError(f"{path}: expected a memory store, found neither its settings nor its tables")
    remaining = [item for item in found.values() if (*item.key, item.digest) not in forgotten]
    whole = [item for item in remaining if not item.fault(settings[0])]
    return Recovered(settings[0], sorted(whole, key=lambda item: item.order), sorted(forgotten))


def _with_floats(row: Row) -> Row:
    """Return a row as SQLite would: it stores floating-point numbers without a fraction as integers."""
    return tuple(
        float(value) if isinstance(value, int) and name in ("time", "x", "y", "z") else value
        for name, value in zip(COLUMNS, row, strict=True)
    )


# -- pages -------------------------------------------------------------------------------------------------


def _scan(path: Path) -> Iterator[Row]:
    """Yield the rows on all pages of a file, with and without its WAL; damaged ones may be among them."""
    data = path.read_bytes()
    declared = int.from_bytes(data[16:18], "big")
    size = 65536 if declared == 1 else declared if declared in PAGE_SIZES else 4096
    pages = {number: data[start : start + size] for number, start in enumerate(range(0, len(data), size), 1)}
    versions = [pages]
    wal = path.with_name(f"{path.name}-wal")
    if wal.is_file():
        frames, latest = wal.read_bytes(), dict(pages)
        for start in range(32, len(frames) - size - 23, size + 24):
            latest[int.from_bytes(frames[start : start + 4], "big")] = frames[start + 24 : start + 24 + size]
        versions.insert(0, latest)
    for version in versions:
        for number, page in version.items():
            yield from _page_rows(page, 100 if number == 1 else 0, version)


def _page_rows(page: bytes, start: int, pages: dict[int, bytes]) -> Iterator[Row]:
    """Yield the rows on a page whose header is at `start`."""
    if len(page) < start + 8 or page[start] != LEAF:
        return
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    for cell in range(start + 8, min(start + 8 + 2 * count, len(page) - 1), 2):
        with suppress(IndexError, KeyError, ValueError, struct.error):
            yield _decode(_payload(page, int.from_bytes(page[cell : cell + 2], "big"), pages))


def _payload(page: bytes, at: int, pages: dict[int, bytes]) -> bytes:
    """Return the bytes of a row, part of which may be on overflow pages."""
    length, at = _varint(page, at)
    _, at = _varint(page, at)
    usable = len(page)
    local = length
    if length > usable - 35:
        least = (usable - 12) * 32 // 255 - 23
        local = least + (length - least) % (usable - 4)
        local = local if local <= usable - 35 else least
    payload, following = page[at : at + local], int.from_bytes(page[at + local : at + local + 4], "big")
    while len(payload) < length:
        overflow = pages[following]  # KeyError where the chain is broken
        payload += overflow[4 : 4 + length - len(payload)]
        following = int.from_bytes(overflow[:4], "big")
    return payload


def _varint(data: Sequence[int], at: int) -> tuple[int, int]:
    """Return a number of variable length, and the position behind it."""
    value = 0
    for _ in range(8):
        value, byte, at = value << 7 | data[at] & 0x7F, data[at], at + 1
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def _decode(record: bytes) -> Row:
    """Return the values of a row."""
    end, at = _varint(record, 0)
    kinds, values = [], list[object]()
    while at < end:
        kind, at = _varint(record, at)
        kinds.append(kind)
    for kind in kinds:
        size = INTEGER_SIZES.get(kind, 8 if kind == 7 else max(0, kind - 12) // 2)
        part, at = record[at : at + size], at + size
        if kind in INTEGER_SIZES:
            values.append(int.from_bytes(part, "big", signed=True))
        elif kind == 7:
            values.append(struct.unpack(">d", part)[0])
        elif kind in (8, 9):
            values.append(kind - 8)
        else:
            values.append(None if kind == 0 else part.decode() if kind % 2 else part)
    return tuple(values)
