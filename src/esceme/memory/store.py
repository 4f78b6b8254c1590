"""`MemoryStore`: a durable, shared memory of many robots, as observations in one SQLite file per site.

    store = MemoryStore.open("site.db", StoreSettings(width=768, source="features.hdf5", encoder="3f2a..."))
    store.remember([StoredObservation(...)])        # returns when the observations are durable
    memory = StoredMemory(store, robot="r1")        # what agents use: a MemoryBank whose writes go through

Observations are never changed. Their key is `(robot, session, sequence)`; one writer numbers a session.
`remember` is idempotent: a key that is stored with the same content is skipped, with other content refused.

**What is recalled** of a place, `(scene, viewpoint)`: its first durable observation (`prefer="first"`), or
its newest. "First" is by `stamp`, a logical clock (Lamport): one more than the largest stamp in the store at
the time of writing. Equal stamps, which only merging brings together, are ordered by key and digest.

**Merging** is the union of two sets, that of observations and that of forgotten keys, minus the forgotten. Of
two copies of an observation the smaller (stamp, time) stays. Merging is therefore commutative, associative
and idempotent. `digest` (of settings, keys and contents, without stamps and times) is the same for any order.

**Interface for `StoredMemory`**: `ObservationStore`, which clients of remote stores offer too.

    settings                              StoreSettings of all vectors
    begin_session(robot, session) -> int  number of the last arrival before the session began; the same for
                                          every later call, so that a resumed session sees the same memory
    remember(observations) -> int         durable when it returns; number of observations that were new
    recalled(prefer, until, scene)        what is recalled, one observation per place, by scene and viewpoint;
                                          `until` leaves out later arrivals
    recall(scene, viewpoints, prefer)     the same for some places; None where nothing is remembered
    arrivals(after, limit)                (number, observation) by arrival, to follow what others remember
    num_forgettings                       changes when something was forgotten; caches then load again
    close()

Another database needs a subclass of `store_database.Database`, which `MemoryStore(database, settings)` uses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, Self

import msgspec

from esceme.errors import ConfigError, DataError
from esceme.memory.store_database import COLUMNS, FORMAT, KEY, Database, Row, SqliteDatabase
from esceme.memory.store_record import StoredObservation, StoreSettings

Prefer = Literal["first", "newest"]
"""Which observation of a place is recalled."""
PAGE = 500
"""Number of rows that are read at a time."""
_COLUMNS = ", ".join(COLUMNS)
ORDER = {
    "first": "stamp, robot, session, sequence, digest",
    "newest": "stamp DESC, robot DESC, session DESC, sequence DESC, digest DESC",
}
"""SQL order of the observations of a place; the first one is recalled."""
_INSERT = f"INSERT INTO observation ({_COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS))})"
_UNION = (
    f"{_INSERT} ON CONFLICT ({', '.join(KEY)}) DO UPDATE SET stamp = excluded.stamp, time = excluded.time, "
    "checksum = excluded.checksum "
    "WHERE (excluded.stamp, excluded.time) < (observation.stamp, observation.time)"
)
_FORGET = f"INSERT INTO forgotten ({', '.join(KEY)}) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
_DROP_FORGOTTEN = (
    "DELETE FROM observation WHERE EXISTS (SELECT 1 FROM forgotten f WHERE f.robot = observation.robot "
    "AND f.session = observation.session AND f.sequence = observation.sequence "
    "AND f.digest = observation.digest)"
)


class ObservationStore(Protocol):
    """Interface of stores for `StoredMemory`; see the documentation of this module."""

    @property
    def settings(self) -> StoreSettings:
        """Properties of all vectors."""

    @property
    def num_forgettings(self) -> int:
        """Number of times that something was forgotten."""

    def begin_session(self, robot: str, session: str) -> int:
        """Return the number of the last arrival before a session began; the first call begins it."""

    def remember(self, observations: Sequence[StoredObservation]) -> int:
        """Store observations durably; return how many were new."""

    def recalled(
        self, *, prefer: Prefer = "first", until: int | None = None, scene: str | None = None
    ) -> Iterable[StoredObservation]:
        """Yield what is recalled, by scene and viewpoint."""

    def recall(
        self, scene: str, viewpoints: Sequence[str], *, prefer: Prefer = "first"
    ) -> list[StoredObservation | None]:
        """Return what is recalled of viewpoints of a scene."""

    def arrivals(self, after: int = 0, limit: int = PAGE) -> list[tuple[int, StoredObservation]]:
        """Return at most `limit` observations that arrived after number `after`, with their numbers."""

    def close(self) -> None:
        """Close the store."""


class Place(NamedTuple):
    """A remembered viewpoint, with statistics of its observations."""

    recalled: StoredObservation
    visits: int
    """Number of observations."""
    robots: tuple[str, ...]
    first_time: float
    last_time: float
    num_vectors: int
    """Number of different vectors; more than one is a conflict."""


class SceneSize(NamedTuple):
    """Size of the memory of a scene."""

    scene: str
    viewpoints: int
    edges: int
    observations: int
    robots: int
    first_time: float
    last_time: float


class AuditRow(NamedTuple):
    """An operation that changed the store as a whole."""

    time: float
    operation: str
    arguments: dict[str, object]
    observations: int
    """Number of observations that were added or removed."""


class MemoryStore:
    """A store in a database; see the documentation of this module."""

    def __init__(
        self, database: Database, settings: StoreSettings | None = None, *, read_only: bool = False
    ) -> None:
        """Use the tables of `database`; create them for `settings` if there are none.

        Raise `MemoryMismatch` if the store has other settings. Without `settings`, any store is accepted.
        The precision is that of the first settings.
        """
        self.database, self.name = database, database.name
        try:
            self.settings = self._open(settings, read_only)
            if settings is not None:
                self.settings.check(settings, self.name, same_precision=False)
        except BaseException:
            database.close()
            raise

    @classmethod
    def open(
        cls, path: str | Path, settings: StoreSettings | None = None, *, read_only: bool = False
    ) -> MemoryStore:
        """Open the store in a file, or create it for `settings` if the file does not exist."""
        path = Path(path)
        if path.is_dir():
            raise DataError(f"{path}: is a folder; expected the file of a memory store, such as site.db")
        if settings is None and not path.is_file():
            raise DataError(f"{path}: no such file")
        return cls(SqliteDatabase(path, read_only=read_only), settings, read_only=read_only)

    def _open(self, settings: StoreSettings | None, read_only: bool) -> StoreSettings:
        if not self.database.has_table("setting") and settings is not None and not read_only:
            with self.database.writing():
                if not self.database.has_table("setting"):  # another process may have been faster
                    self.database.create_tables()
                    values = {"format": FORMAT, "settings": msgspec.json.encode(settings).decode()}
                    self.database.execute("INSERT INTO setting VALUES (?, ?)", values.items())
        if not self.database.has_table("setting"):
            raise DataError(f"{self.name}: expected a memory store, found a database without its tables")
        stored: dict[str, str] = dict(self.database.query("SELECT name, value FROM setting"))
        if stored.get("format") != FORMAT:
            raise DataError(
                f"{self.name}: format {stored.get('format')!r}, expected '{FORMAT}'; "
                "update esceme if the store is newer"
            )
        try:
            return msgspec.json.decode(stored["settings"], type=StoreSettings)
        except (KeyError, msgspec.DecodeError) as error:
            raise DataError(f"{self.name}: its settings are damaged ({error})") from None

    # -- writing -----------------------------------------------------------------------------------------

    def begin_session(self, robot: str, session: str) -> int:
        """Return the number of the last arrival before a session began; the first call begins it."""
        query = "SELECT arrivals FROM session WHERE robot = ? AND name = ?"
        if not (found := self.database.query(query, (robot, session))):
            with self.database.writing():
                self.database.execute(
                    "INSERT INTO session (robot, name, time, arrivals) VALUES (?, ?, ?, ?) "
                    "ON CONFLICT DO NOTHING",
                    [(robot, session, time.time(), self.last_arrival)],
                )
                found = self.database.query(query, (robot, session))
        return int(found[0][0])

    def remember(self, observations: Sequence[StoredObservation]) -> int:
        """Store observations in one transaction, durable when this returns; return how many were new.

        Keys that are stored with the same content, or forgotten, are skipped. Raise `DataError`, and store
        nothing, if a key is stored with other content or a value is wrong.
        """
        checked = [observation.checked(self.settings) for observation in observations]
        if not checked or not any(self._is_new(observation) for observation in checked):
            return 0
        with self.database.writing():
            stamp, num_new = self._last_stamp(), 0
            for observation in checked:
                if self._is_new(observation):
                    num_new += 1
                    stamped = msgspec.structs.replace(observation, stamp=stamp + num_new)
                    self.database.execute(_INSERT, [_to_row(stamped)])
        return num_new

    def _is_new(self, observation: StoredObservation) -> bool:
        """Return whether a key is free; raise `DataError` if it is taken by another observation."""
        where = "WHERE robot = ? AND session = ? AND sequence = ?"
        found = self.database.query(
            f"SELECT digest FROM observation {where} UNION SELECT digest FROM forgotten {where}",
            (*observation.key, *observation.key),
        )
        if found and (observation.digest,) not in found:
            raise DataError(
                f"{self.name}: sequence {observation.sequence} of session '{observation.session}' of "
                f"'{observation.robot}' holds another observation; give each robot a name of its own, and "
                "each run a new session"
            )
        return not found

    def _last_stamp(self) -> int:
        return int(self.database.query("SELECT coalesce(max(stamp), 0) FROM observation")[0][0])

    def merge(self, other: MemoryStore) -> int:
        """Add the observations and forgotten keys of another store; return how many observations are new."""
        other.settings.check(self.settings, other.name)
        before = len(self)
        with self.database.writing():
            for page in other.pages():
                self.database.execute(_UNION, [_to_row(observation) for _, observation in page])
            self.database.execute(_FORGET, other.database.query(f"SELECT {', '.join(KEY)} FROM forgotten"))
            self._drop_forgotten({"store": Path(other.name).name})
            num_new = max(0, len(self) - before)
            self._audit("merge", {"store": Path(other.name).name}, num_new)
        return num_new

    def add(
        self, observations: Iterable[StoredObservation], forgotten: Iterable[Row] = (), *, operation: str
    ) -> int:
        """Add observations of a file, with their stamps, and forgotten keys, as `merge` does.

        Return how many are new. The audit names the `operation`.
        """
        before = len(self)
        with self.database.writing():
            first = self._last_stamp() + 1
            for observation in observations:
                checked = observation.checked(self.settings)
                stamped = msgspec.structs.replace(checked, stamp=checked.stamp or first)
                self.database.execute(_UNION, [_to_row(stamped)])
            self.database.execute(_FORGET, forgotten)
            self._drop_forgotten({"by": operation})
            num_new = max(0, len(self) - before)
            self._audit(operation, {}, num_new)
        return num_new

    def forget(
        self,
        *,
        scene: str | None = None,
        viewpoint: str | None = None,
        robot: str | None = None,
        before: float | None = None,
        superseded: bool = False,
    ) -> int:
        """Remove the observations that match all given conditions; return their number.

        `before` is a time in seconds since 1970. `superseded` are observations that neither `prefer="first"`
        nor `prefer="newest"` recalls: removing them changes nothing that is recalled. Keys stay as forgotten,
        so that no merge brings the observations back. The audit names the operation.
        """
        conditions = {"scene = ?": scene, "viewpoint = ?": viewpoint, "robot = ?": robot, "time < ?": before}
        given = {sql: value for sql, value in conditions.items() if value is not None}
        if superseded:
            ranks = ", ".join(
                f"ROW_NUMBER() OVER (PARTITION BY scene, viewpoint ORDER BY {order}) AS {name}_rank"
                for name, order in ORDER.items()
            )
            given[
                f"id IN (SELECT id FROM (SELECT id, {ranks} FROM observation) ranked "
                "WHERE first_rank > 1 AND newest_rank > 1 AND ? = 1)"
            ] = 1
        if not given:
            raise ConfigError("expected a scene, viewpoint, robot, time or superseded to forget")
        where = " AND ".join(given)
        with self.database.writing():
            keys = self.database.query(
                f"SELECT {', '.join(KEY)} FROM observation WHERE {where}", tuple(given.values())
            )
            self.database.execute(_FORGET, keys)
            arguments = {"scene": scene, "viewpoint": viewpoint, "robot": robot, "before": before}
            arguments |= {"superseded": superseded or None}
            self._drop_forgotten({name: value for name, value in arguments.items() if value is not None})
        self.database.checkpoint()
        return len(keys)

    def _drop_forgotten(self, arguments: dict[str, object]) -> None:
        """Remove observations whose keys are forgotten; the audit names the operation if there are any."""
        if num_dropped := self.database.execute(_DROP_FORGOTTEN):
            self._audit("forget", arguments, num_dropped)

    def compact(self) -> None:
        """Give unused space back to the file system. Nothing that is remembered changes."""
        self.database.compact()
        self._audit("compact", {}, 0)

    def _audit(self, operation: str, arguments: dict[str, object], observations: int) -> None:
        row = (time.time(), operation, msgspec.json.encode(arguments).decode(), observations)
        with self.database.writing():
            self.database.execute(
                "INSERT INTO audit (time, operation, arguments, observations) VALUES (?, ?, ?, ?)", [row]
            )

    # -- reading -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.database.query("SELECT count(*) FROM observation")[0][0])

    @property
    def last_arrival(self) -> int:
        """Number of the last arrival; 0 if there is none."""
        return int(self.database.query("SELECT coalesce(max(id), 0) FROM observation")[0][0])

    @property
    def num_forgettings(self) -> int:
        """Number of operations that removed observations."""
        query = "SELECT count(*) FROM audit WHERE operation = 'forget'"
        return int(self.database.query(query)[0][0])

    @property
    def digest(self) -> str:
        """SHA-256 of settings, keys and contents. Stores of the same observations have the same digest."""
        digest = hashlib.sha256(msgspec.json.encode((FORMAT, self.settings)))
        for table in ("observation", "forgotten"):
            query = f"SELECT {', '.join(KEY)} FROM {table} ORDER BY {', '.join(KEY)}"
            for row in self.database.query(query):
                digest.update(msgspec.json.encode((table, row)))
        return digest.hexdigest()

    def recalled(
        self, *, prefer: Prefer = "first", until: int | None = None, scene: str | None = None
    ) -> Iterator[StoredObservation]:
        """Yield what is recalled, by scene and viewpoint; `until` leaves out later arrivals."""
        conditions = {"id <= ?": until, "scene = ?": scene}
        given = {sql: value for sql, value in conditions.items() if value is not None}
        ids = self.database.query(
            "SELECT id FROM (SELECT id, scene, viewpoint, ROW_NUMBER() OVER (PARTITION BY scene, viewpoint "
            f"ORDER BY {ORDER[prefer]}) AS place_rank FROM observation {_where(given)}) ranked "
            "WHERE place_rank = 1 ORDER BY scene, viewpoint",
            tuple(given.values()),
        )
        for start in range(0, len(ids), PAGE):
            page = [number for (number,) in ids[start : start + PAGE]]
            marks = ", ".join("?" * len(page))
            rows = self.database.query(f"SELECT id, {_COLUMNS} FROM observation WHERE id IN ({marks})", page)
            by_id = {row[0]: row[1:] for row in rows}  # without rows that were forgotten meanwhile
            yield from (_from_row(by_id[number]) for number in page if number in by_id)

    def recall(
        self, scene: str, viewpoints: Sequence[str], *, prefer: Prefer = "first"
    ) -> list[StoredObservation | None]:
        """Return what is recalled of viewpoints of a scene; None where nothing is remembered."""
        query = (
            f"SELECT {_COLUMNS} FROM observation WHERE scene = ? AND viewpoint = ? "
            f"ORDER BY {ORDER[prefer]} LIMIT 1"
        )
        found = [self.database.query(query, (scene, viewpoint)) for viewpoint in viewpoints]
        return [_from_row(rows[0]) if rows else None for rows in found]

    def arrivals(self, after: int = 0, limit: int = PAGE) -> list[tuple[int, StoredObservation]]:
        """Return at most `limit` observations that arrived after number `after`, with their numbers."""
        query = f"SELECT id, {_COLUMNS} FROM observation WHERE id > ? ORDER BY id LIMIT ?"
        return [(row[0], _from_row(row[1:])) for row in self.database.query(query, (after, limit))]

    def pages(self) -> Iterator[list[tuple[int, StoredObservation]]]:
        """Yield all observations with their arrival numbers, in pages."""
        last = 0
        while page := self.arrivals(last):
            yield page
            last = page[-1][0]

    def observations(self) -> Iterator[StoredObservation]:
        """Yield all observations by arrival."""
        return (observation for page in self.pages() for _, observation in page)

    def last_sequences(self, robot: str) -> dict[str, int]:
        """Return the largest sequence of each session of a robot, by session."""
        query = (
            "SELECT session, max(sequence) FROM observation WHERE robot = ? GROUP BY session ORDER BY session"
        )
        return dict(self.database.query(query, (robot,)))

    def places(self, *, prefer: Prefer = "first", scene: str | None = None) -> Iterator[Place]:
        """Yield the remembered viewpoints with statistics, by scene and viewpoint."""
        query = (
            "SELECT count(*), min(time), max(time), count(DISTINCT vector) FROM observation "
            "WHERE scene = ? AND viewpoint = ?"
        )
        robots = "SELECT DISTINCT robot FROM observation WHERE scene = ? AND viewpoint = ? ORDER BY robot"
        for observation in self.recalled(prefer=prefer, scene=scene):
            place = (observation.scene, observation.viewpoint)
            visits, first, last, vectors = self.database.query(query, place)[0]
            names = tuple(name for (name,) in self.database.query(robots, place))
            yield Place(observation, visits, names, first, last, vectors)

    def scene_sizes(self) -> list[SceneSize]:
        """Return the sizes of all scenes, by name."""
        places: dict[str, dict[str, list[str]]] = {}
        for scene, viewpoint, names in self.database.query(
            "SELECT scene, viewpoint, neighbours FROM memory_graph"
        ):
            places.setdefault(scene, {})[viewpoint] = msgspec.json.decode(names)
        edges = {
            scene: {frozenset((a, b)) for a, names in graph.items() for b in names if b in graph}
            for scene, graph in places.items()
        }
        totals = self.database.query(
            "SELECT scene, count(*), count(DISTINCT robot), min(time), max(time) FROM observation "
            "GROUP BY scene ORDER BY scene"
        )
        return [SceneSize(row[0], len(places[row[0]]), len(edges[row[0]]), *row[1:]) for row in totals]

    def scenes(self) -> list[str]:
        """Return the names of the scenes with observations."""
        return [
            name for (name,) in self.database.query("SELECT DISTINCT scene FROM observation ORDER BY scene")
        ]

    def conflicts(self) -> list[tuple[str, str, int]]:
        """Return (scene, viewpoint, number of vectors) of places with different vectors."""
        return [
            (scene, viewpoint, number)
            for scene, viewpoint, number in self.database.query(
                "SELECT scene, viewpoint, count(DISTINCT vector) FROM observation GROUP BY scene, viewpoint "
                "HAVING count(DISTINCT vector) > 1 ORDER BY scene, viewpoint"
            )
        ]

    def audit(self) -> list[AuditRow]:
        """Return the operations on the whole store, oldest first."""
        rows = self.database.query("SELECT time, operation, arguments, observations FROM audit ORDER BY id")
        return [AuditRow(when, name, msgspec.json.decode(text), number) for when, name, text, number in rows]

    def close(self) -> None:
        """Close the store."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _where(conditions: Iterable[str]) -> str:
    joined = " AND ".join(conditions)
    return f"WHERE {joined}" if joined else ""


def _to_row(observation: StoredObservation) -> Row:
    """Return the values of `COLUMNS`."""
    numbers, names = observation.covariance, observation.neighbours
    return (
        *(*observation.key, observation.digest, observation.stamp, observation.time),
        *(observation.scene, observation.viewpoint, *(observation.position or (None, None, None))),
        None if numbers is None else msgspec.json.encode(numbers).decode(),
        *(observation.vector, msgspec.json.encode(names).decode(), observation.features),
        *(observation.thumbnail, observation.checksum),
    )


def _from_row(row: Row) -> StoredObservation:
    """Return the observation in the values of `COLUMNS`; raise `DataError` if they are damaged."""
    named = dict(zip(COLUMNS, row, strict=True))
    digest, checksum = named.pop("digest"), named.pop("checksum")
    position = tuple(named.pop(axis) for axis in "xyz")
    try:
        named |= {name: msgspec.json.decode(named[name] or "null") for name in ("covariance", "neighbours")}
        for name in ("vector", "features", "thumbnail"):
            named[name] = None if named[name] is None else bytes(named[name])
        found = msgspec.convert(
            named | {"position": None if None in position else position}, StoredObservation
        )
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise DataError(f"a row is damaged ({error})") from None
    if (found.digest, found.checksum) != (digest, checksum):
        raise DataError(f"sequence {found.sequence} of '{found.robot}' does not have its stored checksum")
    return found
