"""Memory stores in PostgreSQL, against a real server: the behaviour of SQLite stores, shared by services."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from esceme.cli import main
from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.memory import MemoryStore
from esceme.memory.store_database import StoreUnavailable
from esceme.memory.store_query import PlaceQuery, find_places
from esceme.memory.store_record import StoreSettings
from esceme.memory.store_recovery import check_rows
from esceme.memory.stored_memory import connect_store, open_store
from fixtures.observations import SETTINGS, observation, values
from fixtures.postgresql import REASON, PostgresqlServer, has_postgresql, postgresql_server
from fixtures.process_utils import CONTEXT
from fixtures.services import TOKEN, serving
from fixtures.store_writers import write_to_location

pytestmark = [pytest.mark.long, pytest.mark.skipif(not has_postgresql(), reason=REASON)]
NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    with postgresql_server() as found:
        yield found


@pytest.fixture
def address(server: PostgresqlServer) -> str:
    return server.create_database(f"site{next(NUMBERS)}")


@pytest.fixture
def store(address: str) -> Iterator[MemoryStore]:
    with connect_store(address, SETTINGS) as found:
        yield found


def fill(store: MemoryStore) -> None:
    store.remember([observation(n, features=SETTINGS.encode(_vector(n))) for n in range(30)])
    store.remember([observation(0, 90.0, robot="r\u00e9", viewpoint="v3", covariance=(0.1,) * 9, time=9e3)])
    store.remember(
        [observation(1, 91.0, robot="r\u00e9", viewpoint="v3", position=None, thumbnail=b"\0\xff")]
    )


def _vector(value: int) -> object:
    import torch

    return torch.full((6,), float(value))


def test_a_store_answers_as_sqlite_does(store: MemoryStore, tmp_path: Path) -> None:
    local = MemoryStore.open(tmp_path / "site.db", SETTINGS)
    answers: list[Callable[[MemoryStore], object]] = [
        lambda s: s.begin_session("r1", "late"),
        lambda s: list(s.recalled()),
        lambda s: list(s.recalled(prefer="newest", until=31)),
        lambda s: s.recall("house", ["v3", "nowhere"], prefer="newest"),
        lambda s: s.arrivals(28),
        lambda s: list(s.places()),
        lambda s: (s.conflicts(), s.scenes(), s.last_sequences("r\u00e9"), len(s), s.digest),
        lambda s: find_places(s, PlaceQuery(scene="house", near=(4.0, 0.0, 0.0), after=1001.0)),
        lambda s: find_places(s, PlaceQuery(scene="house"), SETTINGS.encode(_vector(1))[:12]),
        lambda s: check_rows(s).faults,
        lambda s: s.forget(superseded=True),
        lambda s: s.forget(before=1010.0),
        lambda s: (s.num_forgettings, len(s), s.digest, list(s.recalled())),
    ]
    for found in (store, local):
        fill(found)
    for number, answer in enumerate(answers):
        assert answer(store) == answer(local), number
    store.compact()
    local.compact()
    assert store.digest == local.digest
    assert [row.operation for row in store.audit()] == [row.operation for row in local.audit()]
    local.close()


def test_merging_between_sqlite_and_postgresql(store: MemoryStore, tmp_path: Path) -> None:
    with MemoryStore.open(tmp_path / "site.db", SETTINGS) as local:
        local.remember([observation(n, robot="r9") for n in range(700)])
        fill(store)
        assert store.merge(local) == 700 and local.merge(store) == 32
        assert store.digest == local.digest and values(store) == values(local)
        assert store.merge(local) == 0


def test_other_features_and_other_contents_are_refused(store: MemoryStore, address: str) -> None:
    store.remember([observation(0)])
    with pytest.raises(DataError, match="holds another observation"):
        store.remember([observation(1), observation(0, 5.0)])
    assert len(store) == 1
    with pytest.raises(MemoryMismatch, match="holds features of width 3") as error:
        open_store(address, StoreSettings(width=4, source="toy.hdf5", encoder="e" * 64))
    assert "user=" not in str(error.value)
    with pytest.raises(DataError, match="cannot connect"):
        open_store("postgresql://name:secret@127.0.0.1:1/none", SETTINGS)
    with pytest.raises(ConfigError, match="expected a path"):
        open_store("mysql://host/db", SETTINGS)


def test_processes_that_write_at_once_lose_nothing(address: str) -> None:
    workers = [CONTEXT.Process(target=write_to_location, args=(address, f"r{n}", 40)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    with connect_store(address) as store:
        assert sorted(found.stamp for found in store.observations()) == list(range(1, 121))
        assert [number for number, _ in store.arrivals()] == sorted(number for number, _ in store.arrivals())


def test_connections_recover_after_the_server_was_killed(
    server: PostgresqlServer, store: MemoryStore
) -> None:
    store.remember([observation(0)])
    server.kill()
    with pytest.raises(StoreUnavailable):
        store.remember([observation(1)])
    server.start()
    assert store.remember([observation(0), observation(1)]) == 1
    assert values(store) == {"v0": 0.0, "v1": 1.0}
    with pytest.raises(StoreUnavailable), store.database.writing():
        store.remember([observation(2)])
        server.kill()
        server.start()
        store.remember([observation(3)])
    assert values(store) == {"v0": 0.0, "v1": 1.0}


def test_services_share_one_database(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESCEME_TOKEN", TOKEN)
    monkeypatch.setenv("ESCEME_OUTBOX", str(tmp_path))
    with connect_store(address, SETTINGS):
        pass
    with serving(address) as one, serving(address) as two:
        first, second = open_store(one.address, SETTINGS), open_store(two.address, SETTINGS)
        assert first.remember([observation(0)]) == 1
        assert second.remember([observation(0), observation(1)]) == 1
        assert [item.viewpoint for item in first.recalled()] == ["v0", "v1"]
        bad = json.dumps({"scene": "a\x00b", "viewpoints": ["v"]})
        assert one.request("POST", "/v1/recall", bad)[0] == 422
        (tmp_path / "copy.db").write_bytes(two.request("GET", "/v1/export")[1])
        first.close()
        second.close()
    with MemoryStore.open(tmp_path / "copy.db") as copy, connect_store(address) as stored:
        assert copy.digest == stored.digest


def test_commands_check_export_and_forget(
    address: str, store: MemoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.remember([observation(n, robot=f"r{n % 2}") for n in range(6)])
    assert main(["memory", "check", address]) == 0 and "6 observations, undamaged" in capsys.readouterr().out
    assert main(["memory", "export", address, "--out", str(tmp_path / "copy.db")]) == 0
    with MemoryStore.open(tmp_path / "copy.db") as copy:
        assert copy.digest == store.digest
    assert main(["memory", "forget", address, "--robot", "r1"]) == 0
    assert len(store) == 3 and [row.operation for row in store.audit()] == ["forget", "compact"]
    store.database.execute("UPDATE observation SET viewpoint = 'other' WHERE sequence = 2")
    assert main(["memory", "check", address]) == 1
