"""Tables of a memory store, and the database that holds them.

All SQL of `MemoryStore` is written for SQLite and PostgreSQL: `?` marks parameters, `ON CONFLICT` resolves
repeated keys, types are filled in from `Database.types`. A subclass of `Database` holds all that differs.
"""

from __future__ import annotations

import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from esceme.errors import DataError

FORMAT = "esceme-store-1"
KEY = ("robot", "session", "sequence", "digest")
"""Columns of the primary key. With the digest in it, two observations of one key are both kept."""
COLUMNS = (
    *KEY,
    *("stamp", "time", "scene", "viewpoint", "x", "y", "z", "covariance"),
    *("vector", "neighbours", "features", "thumbnail", "checksum"),
)
SCHEMA = (
    "CREATE TABLE setting (name {text} PRIMARY KEY, value {text} NOT NULL)",
    """CREATE TABLE observation (
        id {serial}, robot {text} NOT NULL, session {text} NOT NULL, sequence BIGINT NOT NULL,
        digest {text} NOT NULL, stamp BIGINT NOT NULL, time {real} NOT NULL,
        scene {text} NOT NULL, viewpoint {text} NOT NULL, x {real}, y {real}, z {real}, covariance {text},
        vector {blob} NOT NULL, neighbours {text} NOT NULL, features {blob}, thumbnail {blob},
        checksum BIGINT NOT NULL, UNIQUE (robot, session, sequence, digest))""",
    "CREATE INDEX place ON observation (scene, viewpoint, stamp, robot, session, sequence, digest)",
    "CREATE INDEX stamps ON observation (stamp)",
    """CREATE TABLE forgotten (robot {text} NOT NULL, session {text} NOT NULL, sequence BIGINT NOT NULL,
        digest {text} NOT NULL, PRIMARY KEY (robot, session, sequence, digest))""",
    """CREATE TABLE session (robot {text} NOT NULL, name {text} NOT NULL, time {real} NOT NULL,
        arrivals BIGINT NOT NULL, PRIMARY KEY (robot, name))""",
    """CREATE TABLE audit (id {serial}, time {real} NOT NULL, operation {text} NOT NULL,
        arguments {text} NOT NULL, observations BIGINT NOT NULL)""",
    """CREATE VIEW memory_graph AS SELECT scene, viewpoint, x, y, z, neighbours, robot, session, sequence,
        time, stamp, vector FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY scene, viewpoint
        ORDER BY stamp, robot, session, sequence, digest) AS place_rank FROM observation) ranked
        WHERE place_rank = 1""",
)
"""Statements that create the tables. `id` numbers the rows by arrival; `memory_graph` is what is recalled."""
Row = tuple[Any, ...]
STORE_SUFFIXES = (".db", ".sqlite")


def is_store(location: str | Path) -> bool:
    """Return whether a location is a memory store, not a bank: an address, or by first bytes or name."""
    if "://" in str(location):
        return True
    path = Path(location)
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0" or path.suffix in STORE_SUFFIXES
    except OSError:
        return path.suffix in STORE_SUFFIXES


class StoreUnavailable(DataError):  # noqa: N818
    """The database cannot be read or written: it is unreachable, full, locked or damaged."""


class Database(ABC):
    """A connection to the tables. Threads may share it; one statement or transaction runs at a time."""

    types: ClassVar[dict[str, str]]
    """SQL types by their names in `SCHEMA`: text (compared by bytes), blob, real and serial."""
    name: str
    """File or address, for messages."""

    @abstractmethod
    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a SELECT."""

    @abstractmethod
    def execute(self, sql: str, rows: Iterable[Sequence[object]] = ((),)) -> int:
        """Run a statement once per row of parameters; return the number of changed rows."""

    @abstractmethod
    def writing(self) -> Any:
        """Context of a transaction that no other writer interrupts; durable when the context ends.

        Contexts may be nested; the outermost is the transaction. An exception undoes it.
        """

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Return whether a table exists."""

    @abstractmethod
    def checkpoint(self) -> None:
        """Remove what transactions have left in logs, such as copies of forgotten rows."""

    @abstractmethod
    def compact(self) -> None:
        """Give unused space back to the file system. No row changes."""

    @abstractmethod
    def faults(self) -> list[str]:
        """Return what the database itself finds wrong with its structure."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def create_tables(self) -> None:
        """Create the tables; call it in a transaction."""
        for statement in SCHEMA:
            self.execute(statement.format(**self.types))


class SqliteDatabase(Database):
    """An SQLite file in WAL mode.

    With `synchronous=FULL`, a commit returns when its WAL frames are on the disk: acknowledged rows survive
    a loss of power, not only the end of a process, for which `NORMAL` would do. `secure_delete` overwrites
    forgotten rows.
    """

    types: ClassVar[dict[str, str]] = {
        "text": "TEXT",
        "blob": "BLOB",
        "real": "REAL",
        "serial": "INTEGER PRIMARY KEY AUTOINCREMENT",
    }

    synchronous: ClassVar[str] = "FULL"

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open or create a file. `read_only` needs no permission to write in its folder."""
        self.name, self.path, self._lock, self._depth = str(path), path, threading.RLock(), 0
        mode = "ro" if read_only else "rwc"
        try:
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
            elif not path.exists():
                raise DataError(f"{path}: no such file")
            self._connection = self._connect(mode)
            try:
                self._connection.execute("SELECT count(*) FROM sqlite_master")
            except sqlite3.OperationalError:
                if not read_only or path.with_name(f"{path.name}-wal").exists():
                    raise
                self._connection.close()  # a folder that cannot be written has no room for the shared index
                self._connection = self._connect("ro&immutable=1")
            if not read_only:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute(f"PRAGMA synchronous={self.synchronous}")
                self._connection.execute("PRAGMA secure_delete=ON")
        except (sqlite3.Error, OSError) as error:
            raise self._error(error) from None

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=60.0,
            isolation_level=None,
            check_same_thread=False,
        )

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return all rows of a SELECT."""
        with self._lock:
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._error(error) from None

    def execute(self, sql: str, rows: Iterable[Sequence[object]] = ((),)) -> int:
        """Run a statement once per row of parameters; return the number of changed rows."""
        with self._lock:
            try:
                return sum(max(0, self._connection.execute(sql, row).rowcount) for row in rows)
            except sqlite3.Error as error:
                raise self._error(error) from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context of a transaction; see `Database.writing`."""
        with self._lock:
            if not self._depth:
                self.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self.execute("COMMIT")
            except BaseException:
                if self._depth == 1 and self._connection.in_transaction:
                    self._connection.rollback()
                raise
            finally:
                self._depth -= 1

    def has_table(self, name: str) -> bool:
        """Return whether a table exists."""
        return bool(self.query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)))

    def checkpoint(self) -> None:
        """Move the WAL into the file and empty it."""
        self.query("PRAGMA wal_checkpoint(TRUNCATE)")

    def compact(self) -> None:
        """Rewrite the file without unused pages."""
        self.execute("VACUUM")
        self.checkpoint()

    def faults(self) -> list[str]:
        """Return what `PRAGMA integrity_check` finds."""
        try:
            rows = self.query("PRAGMA integrity_check(20)")
        except DataError as error:
            return [str(error)]
        found = [line for (text,) in rows for line in text.split("\n")]
        return [] if found == ["ok"] else [f"{self.name}: {line}" for line in found]

    def close(self) -> None:
        """Close the connection. The last one moves the WAL into the file."""
        with self._lock:
            self._connection.close()

    def _error(self, error: Exception) -> StoreUnavailable:
        if isinstance(error, OSError):
            return StoreUnavailable(f"{self.name}: cannot be opened ({error.strerror or error})")
        text = str(error)
        for part, advice in (
            ("full", "the disk is full; free some space and run the command again"),
            ("disk I/O", "the disk refuses to read or write; is it full or failing?"),
            ("readonly", "the file or its folder is read-only; change its permissions, or copy it"),
            ("locked", "another process has been writing it for a minute; try again"),
            ("malformed", "the file is damaged; `esceme memory check` lists what is readable, and "
             "`esceme memory export` saves it"),
            ("not a database", "expected a memory store (SQLite)"),
            ("unable to open", "no such file, or no permission"),
        ):  # fmt: skip
            if part in text:
                return StoreUnavailable(
                    f"{self.name}: {advice} ({text}). Acknowledged observations are kept."
                )
        return StoreUnavailable(f"{self.name}: {text}")
