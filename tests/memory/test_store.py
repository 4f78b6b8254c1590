"""Memory stores: durable writes, what is recalled, merging, forgetting, refused input."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.errors import ConfigError, DataError, EscemeError, MemoryMismatch
from esceme.memory.store import MemoryStore
from esceme.memory.store_database import SqliteDatabase
from esceme.memory.store_record import StoredObservation, StoreSettings
from fixtures.observations import SETTINGS, observation, values
from fixtures.process_utils import CONTEXT
from fixtures.store_writers import write_observations

Open = Callable[..., MemoryStore]
FINITE = st.floats(allow_nan=False, allow_infinity=False)
OBSERVATIONS = st.builds(
    observation,
    st.integers(0, 5),
    st.sampled_from([0.0, 1.5]),
    robot=st.sampled_from(["r1", "r2"]),
    session=st.sampled_from(["monday", "tuesday"]),
    viewpoint=st.sampled_from(["a", "b", "c"]),
)


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Open]:
    """Open stores by number; all are closed at the end."""
    stores = []

    def open_numbered(
        number: int = 0, settings: StoreSettings | None = SETTINGS, **options: Any
    ) -> MemoryStore:
        stores.append(MemoryStore.open(tmp_path / f"{number}.db", settings, **options))
        return stores[-1]

    yield open_numbered
    for store in stores:
        store.close()


def open_fast(path: Path) -> MemoryStore:
    """Open a store that does not wait for the disk, for tests with many small stores."""
    with patch.object(SqliteDatabase, "synchronous", "OFF"):
        return MemoryStore.open(path, SETTINGS)


# -- writing -----------------------------------------------------------------------------------------------


@given(
    st.tuples(FINITE, FINITE, FINITE) | st.none(),
    st.lists(FINITE, min_size=9, max_size=9).map(tuple) | st.none(),
    st.binary(max_size=9) | st.none(),
    FINITE,
    st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1),
)
def test_observations_are_read_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    position: Any,
    covariance: Any,
    thumbnail: bytes | None,
    time: float,
    name: str,
) -> None:
    written = observation(
        3,
        viewpoint=name,
        position=position,
        covariance=covariance,
        thumbnail=thumbnail,
        time=time,
        features=2 * SETTINGS.encode(SETTINGS.decode(bytes(12))),
    )
    with open_fast(tmp_path_factory.mktemp("stores") / "s.db") as store:
        assert store.remember([written]) == 1
        (found,) = store.observations()
        assert found.stamp == 1
        assert found.digest == written.checked(SETTINGS).digest
        assert (found.position, found.covariance, found.thumbnail) == (position, covariance, thumbnail)
        assert (found.time, found.viewpoint) == (time, name)


def test_what_was_acknowledged_is_there_for_other_processes_at_once(open_store: Open) -> None:
    open_store().remember([observation(0), observation(1)])
    other = open_store(settings=None)
    assert values(other) == {"v0": 0.0, "v1": 1.0}
    assert other.settings == SETTINGS


def test_writes_are_durable_by_wal_and_full_synchronisation(open_store: Open) -> None:
    store = open_store()
    assert store.database.query("PRAGMA journal_mode") == [("wal",)]
    assert store.database.query("PRAGMA synchronous") == [(2,)]  # FULL


def test_a_repeated_key_is_stored_once_and_other_content_is_refused(open_store: Open) -> None:
    store = open_store()
    assert store.remember([observation(0), observation(0), observation(1)]) == 2
    assert store.remember([observation(1, time=5.0), observation(2)]) == 1
    before = store.digest
    with pytest.raises(DataError, match="sequence 1 of session 'monday' of 'r1' holds another observation"):
        store.remember([observation(3), observation(1, 7.0)])
    assert store.digest == before
    assert len(store) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vector": b"1234"}, "expected 12 bytes per vector of width 3, found 4"),
        ({"vector": SETTINGS.encode(SETTINGS.decode(bytes(12)) / 0)}, "NaN"),
        ({"features": b"1"}, "expected 12 bytes per vector"),
        ({"robot": ""}, "an empty one"),
        ({"robot": "a\nb"}, "regex"),
        ({"session": 3}, "Expected `str`"),
        ({"sequence": -1}, "expected a sequence of at least 0, found -1"),
        ({"position": (0.0, float("nan"), 0.0)}, "NaN"),
        ({"covariance": (1.0,)}, "expected 9 numbers"),
        ({"time": float("inf")}, "infinity"),
    ],
)
def test_wrong_values_are_refused_and_nothing_is_stored(
    open_store: Open, changes: dict[str, Any], message: str
) -> None:
    store = open_store()
    with pytest.raises(DataError, match=message):
        store.remember([observation(0), observation(**{"sequence": 1} | changes)])
    assert len(store) == 0


def test_half_precision_takes_half_the_bytes(open_store: Open) -> None:
    settings = StoreSettings(width=3, precision="half")
    store = open_store(settings=settings)
    vector = settings.encode(SETTINGS.decode(SETTINGS.encode(SETTINGS.decode(bytes(12)) + 1.0009765625)))
    assert len(vector) == 6
    store.remember([observation(0, vector=vector)])
    assert values(store) == {"v0": 1.0009765625}


# -- what is recalled --------------------------------------------------------------------------------------


def test_the_first_durable_observation_is_recalled_whatever_the_clocks_say(open_store: Open) -> None:
    store = open_store()
    store.remember([observation(0, 1.0, viewpoint="hall", time=9000.0)])
    store.remember([observation(0, 2.0, viewpoint="hall", time=10.0, robot="r2")])  # its clock went back
    store.remember([observation(1, 3.0, viewpoint="hall", time=5.0)])
    assert values(store) == {"hall": 1.0}
    assert values(store, prefer="newest") == {"hall": 3.0}
    assert store.conflicts() == [("house", "hall", 3)]
    (place,) = store.places()
    assert (place.visits, place.robots, place.first_time, place.last_time) == (3, ("r1", "r2"), 5.0, 9000.0)
    rows = store.database.query("SELECT viewpoint, robot, stamp FROM memory_graph")
    assert rows == [("hall", "r1", 1)]


def test_recall_by_place_equals_the_list_of_all(open_store: Open) -> None:
    store = open_store()
    store.remember([observation(n, viewpoint=f"v{n % 4}") for n in range(12)])
    for prefer in ("first", "newest"):
        names = [f"v{n}" for n in range(4)]
        assert store.recall("house", names, prefer=prefer) == list(store.recalled(prefer=prefer))
    assert store.recall("house", ["v9"]) == [None]
    assert store.recall("barn", ["v0"]) == [None]
    assert not list(store.recalled(scene="barn"))


def test_a_session_begins_once_and_sees_what_was_there_before(open_store: Open) -> None:
    store = open_store()
    store.remember([observation(0)])
    begun = store.begin_session("r2", "tuesday")
    store.remember([observation(1)])
    assert store.begin_session("r2", "tuesday") == begun
    assert values(store, until=begun) == {"v0": 0.0}
    assert [found.viewpoint for _, found in store.arrivals(begun)] == ["v1"]
    assert store.last_sequences("r1") == {"monday": 1}


# -- merging -----------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.lists(OBSERVATIONS, max_size=6), min_size=5, max_size=5), st.randoms(), st.data())
def test_any_order_of_merging_five_stores_gives_the_same_store(
    tmp_path_factory: pytest.TempPathFactory,
    contents: list[list[StoredObservation]],
    random: Any,
    data: Any,
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    for number, content in enumerate(contents):
        with open_fast(folder / f"{number}.db") as store:
            for item in content:
                try:
                    store.remember([item])
                except DataError:  # the key has other content; in another store it may be free
                    continue
            if content and data.draw(st.booleans()):
                store.forget(viewpoint=content[0].viewpoint)
    found = set()
    for trial in range(2):
        order = random.sample(range(5), 5) + random.choices(range(5), k=2)  # some twice
        for number in range(5):
            shutil.copy(folder / f"{number}.db", folder / f"{trial}-{number}.db")
        names = [f"{trial}-{number}.db" for number in order]
        while len(names) > 1:  # merge neighbours of the order in any bracketing
            at = random.randrange(len(names) - 1)
            target, source = names[at], names.pop(at + 1)
            if target != source:
                with open_fast(folder / target) as into, open_fast(folder / source) as other:
                    into.merge(other)
        with open_fast(folder / names[0]) as store:
            rows = [(item.digest, item.stamp, item.time) for item in store.observations()]
            recalled = [tuple(store.recalled(prefer=prefer)) for prefer in ("first", "newest")]
            found.add((store.digest, tuple(sorted(rows)), tuple(recalled)))
    assert len(found) == 1


def test_merging_keeps_conflicts_and_one_rule_decides_whatever_the_order(open_store: Open) -> None:
    for number, value in ((0, 5.0), (1, 7.0)):
        open_store(number).remember([observation(0, value, robot=f"r{number}", viewpoint="hall")])
    shutil.copy(Path(open_store(0).name), Path(open_store(0).name).with_name("2.db"))
    for number in (0, 1):
        open_store(number).close()
    into, other = open_store(0), open_store(1)
    assert (into.merge(other), into.merge(other), other.merge(into)) == (1, 0, 1)
    assert values(into) == values(other) == {"hall": 5.0}  # equal stamps: the smaller key
    assert values(into, prefer="newest") == values(other, prefer="newest") == {"hall": 7.0}
    assert into.conflicts() == [("house", "hall", 2)]
    assert into.digest == other.digest


def test_two_observations_of_one_key_are_both_kept(open_store: Open) -> None:
    open_store(0).remember([observation(0, 1.0)])
    open_store(1).remember([observation(0, 2.0)])
    into = open_store(0)
    assert into.merge(open_store(1)) == 1
    assert len(into) == 2


@pytest.mark.parametrize("name", ["width", "source", "encoder", "pooling", "precision"])
def test_other_features_are_refused(open_store: Open, name: str) -> None:
    open_store()
    values = {"width": 4, "source": "clip.hdf5", "encoder": "f", "pooling": "mean", "precision": "half"}
    other = StoreSettings(**{**{f: getattr(SETTINGS, f) for f in values}, name: values[name]})
    if name == "precision":
        assert open_store(settings=other).settings == SETTINGS
    else:
        with pytest.raises(MemoryMismatch, match=f"{name} .* expected .*use the features that the store was"):
            open_store(settings=other)
    with pytest.raises(MemoryMismatch, match=name):
        open_store().merge(open_store(1, settings=other))


# -- forgetting --------------------------------------------------------------------------------------------


def test_forgetting_is_audited_and_no_merge_brings_it_back(open_store: Open) -> None:
    store, copy = open_store(0), open_store(1)
    store.remember([observation(n) for n in range(4)])
    copy.merge(store)
    assert store.forget(viewpoint="v1") == 1
    assert store.forget(before=1001.0) == 1
    assert store.num_forgettings == 2
    assert store.merge(copy) == 0
    assert values(store) == {"v2": 2.0, "v3": 3.0}
    assert store.remember([observation(1)]) == 0
    copy.merge(store)
    assert copy.digest == store.digest
    assert [(row.operation, row.arguments, row.observations) for row in store.audit()][:2] == [
        ("forget", {"viewpoint": "v1"}, 1),
        ("forget", {"before": 1001.0}, 1),
    ]
    with pytest.raises(ConfigError, match="expected a scene, viewpoint, robot, time"):
        store.forget()


def test_forgotten_vectors_leave_no_trace_in_the_files(open_store: Open, tmp_path: Path) -> None:
    secret = SETTINGS.encode(SETTINGS.decode(bytes(12)) + 1234.5678)
    store = open_store()
    store.remember([observation(0), observation(1, vector=secret), observation(2)])
    files = [path for path in tmp_path.iterdir() if path.name.startswith("0.db")]
    assert any(secret in path.read_bytes() for path in files)
    store.forget(viewpoint="v1")
    assert not any(secret in path.read_bytes() for path in files)


@given(st.lists(OBSERVATIONS, max_size=12, unique_by=lambda item: item.key))
def test_compaction_and_dropping_superseded_observations_change_nothing_that_is_recalled(
    tmp_path_factory: pytest.TempPathFactory, content: list[StoredObservation]
) -> None:
    with open_fast(tmp_path_factory.mktemp("compact") / "s.db") as store:
        store.remember(content)
        before = [values(store, prefer=prefer) for prefer in ("first", "newest")]
        digest = store.digest
        store.compact()
        assert store.digest == digest
        dropped = store.forget(superseded=True)
        store.compact()
        assert [values(store, prefer=prefer) for prefer in ("first", "newest")] == before
        assert len(store) == len(content) - dropped
        assert all(place.visits <= 2 for place in store.places())


# -- bad files ---------------------------------------------------------------------------------------------


def test_files_that_are_no_stores_are_refused(tmp_path: Path, open_store: Open) -> None:
    (tmp_path / "1.db").write_bytes(b"no database" * 100)
    sqlite3.connect(tmp_path / "2.db").execute("CREATE TABLE other (x)").connection.close()
    (tmp_path / "4.db").mkdir()
    for number, message in (
        (1, "expected a memory store"),
        (2, "without its tables"),
        (3, "no such file"),
        (4, "is a folder; expected the file of a memory store"),
    ):
        with pytest.raises(DataError, match=message):
            open_store(number, settings=None)
    store = open_store()
    store.database.execute("UPDATE setting SET value = 'esceme-store-9' WHERE name = 'format'")
    with pytest.raises(DataError, match="format 'esceme-store-9', expected 'esceme-store-1'; update"):
        open_store()


def test_a_full_disk_is_an_error_and_nothing_acknowledged_is_lost(open_store: Open) -> None:
    store = open_store()
    store.remember([observation(0)])
    pages = store.database.query("PRAGMA page_count")[0][0]
    store.database.query(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(DataError, match="disk is full; free some space"):
        for n in count(1):
            store.remember([observation(n, thumbnail=bytes(3000))])
    acknowledged = len(store)
    store.database.query("PRAGMA max_page_count = 100000")
    assert store.remember([observation(n, thumbnail=bytes(3000)) for n in range(acknowledged, 9)])
    assert values(open_store()) == {f"v{n}": float(n) for n in range(9)}


def test_a_read_only_file_can_be_read_and_not_written(open_store: Open, tmp_path: Path) -> None:
    with open_store() as store:
        store.remember([observation(0)])
    reader = open_store(settings=None, read_only=True)
    assert values(reader) == {"v0": 0.0}
    with pytest.raises(DataError, match="read-only; change its permissions"):
        reader.remember([observation(1)])


def test_a_truncated_wal_loses_only_what_was_cut(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    for n in range(8):
        store.remember([observation(n)])
    copy = tmp_path / "1.db"
    shutil.copy(tmp_path / "0.db", copy)
    wal = (tmp_path / "0.db-wal").read_bytes()
    kept = set()
    for size in range(0, len(wal), 3001):
        copy.with_name("1.db-wal").write_bytes(wal[:size])
        copy.with_name("1.db-shm").unlink(missing_ok=True)
        try:
            with MemoryStore.open(copy) as cut:
                found = values(cut)
        except EscemeError:  # the tables themselves were cut off
            continue
        assert found == {f"v{n}": float(n) for n in range(len(found))}
        kept.add(len(found))
        shutil.copy(tmp_path / "0.db", copy)  # closing moved the WAL into the file
    assert len(kept) > 4
    with MemoryStore.open(copy, SETTINGS) as cut:
        cut.remember([observation(n) for n in range(8)])  # the robot sends again what it has
        assert cut.digest == store.digest


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    workers = [CONTEXT.Process(target=write_observations, args=(path, f"r{n}", 40)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with MemoryStore.open(path) as store:
        assert len(store) == 120
        stamps = [found.stamp for found in store.observations()]
        assert sorted(stamps) == list(range(1, 121))
