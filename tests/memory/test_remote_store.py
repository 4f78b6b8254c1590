"""`RemoteStore`: the memory of a service, an outbox while it is away, and the recall of a local store."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.memory import MemoryStore, StoredMemory, remote_store
from esceme.memory.remote_store import RemoteStore
from esceme.memory.store_record import StoreSettings
from esceme.memory.stored_memory import open_store
from fixtures.observations import SETTINGS, observation, values
from fixtures.services import TOKEN, RunningService, serving

pytestmark = pytest.mark.long


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    monkeypatch.setenv("ESCEME_TOKEN", TOKEN)
    monkeypatch.setenv("ESCEME_OUTBOX", str(tmp_path / "outbox"))
    monkeypatch.setattr(remote_store, "RETRY_SECONDS", 0.1)
    with serving(tmp_path / "site.db") as found:
        yield found


def test_a_remote_store_answers_as_a_local_one(service: RunningService, tmp_path: Path) -> None:
    store = open_store(service.address, SETTINGS)
    local = MemoryStore.open(tmp_path / "local.db", SETTINGS)
    for found in (store, local):
        assert found.remember([observation(n) for n in range(1200)]) == 1200
        assert found.remember([observation(3), observation(1200)]) == 1
        assert found.begin_session("r2", "tuesday") == found.begin_session("r2", "tuesday") == 1201
        found.remember(
            [observation(0, 70.0, robot="r2", viewpoint="v5", features=SETTINGS.encode(torch.ones(6)))]
        )
    for options in ({}, {"prefer": "newest"}, {"until": 4}, {"scene": "house"}, {"scene": "nowhere"}):
        assert list(store.recalled(**options)) == list(local.recalled(**options))  # type: ignore[arg-type]
    for prefer in ("first", "newest"):
        names = ["v5", "unknown", "v1200"]
        assert store.recall("house", names, prefer=prefer) == local.recall("house", names, prefer=prefer)  # type: ignore[arg-type]
    assert store.arrivals(1195) == local.arrivals(1195)
    assert len(store.arrivals()) == len(local.arrivals()) == 500
    assert store.num_forgettings == 0
    store.close()
    assert (tmp_path / "outbox").is_dir()


def test_two_robots_share_what_they_remember(service: RunningService) -> None:
    first = StoredMemory(open_store(service.address, SETTINGS), robot="r1")
    second = StoredMemory(open_store(service.address, SETTINGS), robot="r2")
    first.remember("house", "hall", torch.tensor([[1.0, 2.0, 3.0]]), ["door"])
    assert not second.recall("house", ["hall"]).any()
    assert second.refresh() == 1
    assert second.recall("house", ["hall"]).tolist() == [[1.0, 2.0, 3.0]]
    later = StoredMemory(open_store(service.address, SETTINGS), robot="r3")
    assert later.recall("house", ["hall"]).tolist() == [[1.0, 2.0, 3.0]]
    for memory in (first, second, later):
        memory.store.close()


def test_observations_wait_on_disk_while_the_service_is_away(service: RunningService, tmp_path: Path) -> None:
    store = RemoteStore(service.address, SETTINGS)
    store.remember([observation(0)])
    service.stop(signal.SIGKILL)
    assert store.remember([observation(1), observation(2)]) == 2
    assert store.is_away and store.num_waiting == 2
    assert [item and item.viewpoint for item in store.recall("house", ["v0", "v1"])] == [None, "v1"]
    assert [item.viewpoint for item in store.recalled()] == ["v1", "v2"]
    assert store.arrivals() == [] and store.begin_session("r1", "late") == 0 and store.num_forgettings == 0
    store.close()
    offline = RemoteStore(service.address)  # a new process, still without the service
    offline.remember([observation(3)])
    assert offline.num_waiting == 3
    with serving(tmp_path / "site.db", port=service.port):
        offline._away_until = 0.0
        assert offline.sync() and offline.num_waiting == 0
        assert offline.remember([observation(n) for n in range(5)]) == 1
        offline.close()
    with MemoryStore.open(tmp_path / "site.db") as stored:
        assert values(stored) == {f"v{n}": float(n) for n in range(5)}


def test_what_the_service_refuses_stays_in_the_outbox(service: RunningService, tmp_path: Path) -> None:
    store = RemoteStore(service.address, SETTINGS)
    store.remember([observation(0)])
    service.stop(signal.SIGKILL)
    store.remember([observation(0, 9.0)])
    with serving(tmp_path / "site.db", port=service.port):
        store._away_until = 0.0
        with pytest.raises(DataError, match=r"holds another observation.*are kept in .*outbox"):
            store.sync()
        assert store.num_waiting == 1
    store._outbox.close()
    store._connection.close()


def test_wrong_addresses_tokens_and_features(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(service.address, SETTINGS).close()
    other = StoreSettings(width=3, source="other.hdf5")
    with pytest.raises((DataError, MemoryMismatch), match="holds features of source 'toy.hdf5'"):
        open_store(service.address, other)
    with (
        closing(RemoteStore(service.address)) as store,
        pytest.raises(DataError, match="expected 12 bytes per vector"),
    ):
        store.remember([observation(5, vector=b"1234")])
    for address in ("http://", "http://host/path", "ftp://host"):
        with pytest.raises(ConfigError, match="expected"):
            open_store(address, SETTINGS)
    monkeypatch.setenv("ESCEME_TOKEN", "another-token-that-is-wrong")
    with pytest.raises(ConfigError, match="is ESCEME_TOKEN the one"):
        open_store(service.address, SETTINGS)
    monkeypatch.delenv("ESCEME_TOKEN")
    with pytest.raises(ConfigError, match="set ESCEME_TOKEN"):
        open_store(service.address, SETTINGS)
