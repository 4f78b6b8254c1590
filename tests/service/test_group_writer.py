"""The thread that writes: shared transactions, refused requests, cancelled ones, and a store that is away."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.memory import MemoryStore
from esceme.memory.store_database import StoreUnavailable
from esceme.service import group_writer
from esceme.service.group_writer import GroupWriter
from fixtures.observations import SETTINGS, observation


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore.open(tmp_path / "site.db", SETTINGS)


def test_waiting_requests_share_a_transaction_and_refused_ones_harm_no_other(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, gate = GroupWriter(store), threading.Event()
    commits = []
    checked = store.database.execute

    def count(sql: str, *rows: object) -> int:
        commits.append(sql == "COMMIT")
        return checked(sql, *rows)  # type: ignore[arg-type]

    monkeypatch.setattr(store.database, "execute", count)
    first = writer.submit(lambda store: int(gate.wait(60)))
    futures = [writer.submit(lambda s, n=n: s.remember([observation(n)])) for n in range(20)]
    cancelled = writer.submit(lambda s: s.remember([observation(99)]))
    assert cancelled.cancel()
    gate.set()
    assert first.result(60) == 1 and [future.result(60) for future in futures] == [1] * 20
    assert sum(commits) <= 2  # the first request, then all others together
    gate.clear()
    writer.submit(lambda store: int(gate.wait(60)))
    good = writer.submit(lambda s: s.remember([observation(30)]))
    bad = writer.submit(lambda s: s.remember([observation(0, 7.0)]))
    later = writer.submit(lambda s: s.remember([observation(31)]))
    gate.set()
    assert good.result(60) == later.result(60) == 1
    with pytest.raises(DataError, match="holds another observation"):
        bad.result(60)
    assert len(store) == 22 and writer.is_running
    writer.close()
    assert not writer.is_running


def test_more_requests_than_may_wait_are_refused(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_writer, "MAX_WAITING", 2)
    writer, gate = GroupWriter(store), threading.Event()
    with pytest.raises(StoreUnavailable, match="too many requests wait"):
        for _ in range(4):
            writer.submit(lambda store: int(gate.wait(60)))
    gate.set()
    writer.close()
