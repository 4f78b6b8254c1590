"""`StoredMemory`: the same recall as a `MemoryBank`, durable writes, sessions, refreshing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import ConfigError, DataError, MemoryMismatch
from esceme.memory import MemoryBank, MemoryStore, StoredMemory, StoredObservation, store_settings
from esceme.memory.store_record import StoreSettings
from esceme.observation import Observation
from esceme.world import Atlas
from fixtures.toy_atlas import EDGES, POSITIONS, build

ATLAS = build(POSITIONS, EDGES)
EVERYWHERE = torch.arange(-1, len(ATLAS))


def memory(store: MemoryStore, robot: str = "r1", **options: object) -> StoredMemory:
    found = StoredMemory(store, robot=robot, **options)  # type: ignore[arg-type]
    found.bind(ATLAS)
    return found


def observe(viewpoints: Sequence[int], atlas: Atlas = ATLAS) -> Observation:
    return Observation.from_atlas(atlas, atlas.begin(list(viewpoints), heading=[0.0] * len(viewpoints)))


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore.open(tmp_path / "site.db", store_settings(ATLAS))


@given(steps=st.lists(st.lists(st.integers(0, len(ATLAS) - 1), min_size=1, max_size=3), max_size=5))
def test_recall_equals_that_of_a_bank_now_and_in_the_next_session(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]]
) -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    with MemoryStore.open(tmp_path_factory.mktemp("memory") / "site.db", store_settings(ATLAS)) as store:
        stored = memory(store)
        for viewpoints in steps:
            for found in (bank, stored):
                found.remember_observation(observe(viewpoints))
        for found in (stored, memory(store, "r2")):
            assert torch.equal(found.recall_at(EVERYWHERE), bank.recall_at(EVERYWHERE))
            assert found.scenes == bank.scenes
            assert all(found[scene].edges == bank[scene].edges for scene in bank.scenes)
            graphs = [each.scene_subgraph(torch.tensor([0, 8])) for each in (found, bank)]
            assert all(torch.equal(a, b) for a, b in zip(*graphs, strict=True))
        assert len(store) == len(bank)


def test_a_batch_is_one_transaction_and_positions_are_stored(store: MemoryStore) -> None:
    calls = []
    remember = store.remember
    store.remember = lambda items: calls.append(len(items)) or remember(items)  # type: ignore[method-assign]
    memory(store, clock=lambda: 7.0).remember_observation(observe([0, 8, 0, 3]))
    assert calls == [3]
    found = {item.viewpoint: item for item in store.observations() if item.scene == "cottage"}
    assert found["hall"].position == (0.0, 0.0, 0.0)
    assert found["kitchen"].position == (3.0, 0.0, 0.0)
    assert set(found["hall"].neighbours) == {"door", "kitchen", "pantry", "landing"}
    assert found["hall"].time == 7.0


def test_nothing_is_recalled_that_was_not_acknowledged(store: MemoryStore) -> None:
    found = memory(store)

    def refuse(items: Sequence[StoredObservation]) -> int:
        raise DataError("the disk is full")

    remember, store.remember = store.remember, refuse  # type: ignore[method-assign]
    with pytest.raises(DataError, match="disk is full"):
        found.remember_observation(observe([0]))
    assert len(found) == 0
    store.remember = remember  # type: ignore[method-assign]
    found.remember_observation(observe([0]))
    assert (len(found), len(store)) == (1, 1)


def test_a_resumed_session_stores_nothing_twice_and_goes_on_numbering(store: MemoryStore) -> None:
    for steps in ([[0], [8]], [[8, 0]], [[0], [8], [3]], [[3, 5]]):
        found = memory(store, session="evaluation", starts_empty=True)
        for step in steps:
            found.remember_observation(observe(step))
    stored = sorted((item.session, item.sequence, item.viewpoint) for item in store.observations())
    names = [ATLAS.names[index][1] for index in (0, 3, 5, 8)]
    assert stored == [
        *[("evaluation/cottage", sequence, name) for sequence, name in enumerate(names[:3])],
        ("evaluation/shed", 0, names[3]),
    ]


def test_a_resumed_session_starts_with_the_memory_of_its_first_start(store: MemoryStore) -> None:
    memory(store, "r2").remember_at([0])
    memory(store, session="day")
    memory(store, "r2").remember_at([3])
    resumed = memory(store, session="day")
    assert resumed.visited.nonzero().flatten().tolist() == [0]
    assert resumed.refresh() == 1
    assert resumed.visited.nonzero().flatten().tolist() == [0, 3]


def test_forgetting_a_scene_keeps_the_store(store: MemoryStore) -> None:
    found = memory(store)
    found.remember_at([0, 8])
    found.forget("cottage")
    assert found.recall_at(torch.tensor([0, 8])).any(-1).tolist() == [False, True]
    assert len(store) == 2
    found.remember_observation(observe([0]))
    assert found.recall_at(torch.tensor([0])).any()
    assert len(store) == 2


def test_robots_see_what_others_remember_and_forget(store: MemoryStore) -> None:
    first, second = memory(store), memory(store, "r2")
    first.remember_at([0, 3])
    second.remember_at([3, 5])
    assert (first.refresh(), second.refresh()) == (4, 4)
    assert torch.equal(first.recall_at(EVERYWHERE), second.recall_at(EVERYWHERE))
    assert len(first) == 3
    store.forget(viewpoint=ATLAS.names[3][1])
    for found in (first, second):
        found.refresh()
        assert found.visited.nonzero().flatten().tolist() == [0, 5]


def test_the_newest_visit_is_recalled_if_preferred(store: MemoryStore) -> None:
    old, new = (torch.full((1, store.settings.width), value, dtype=torch.float32) for value in (1.0, 2.0))
    memory(store).remember("cottage", "hall", old, ["door"])
    for prefer, value in (("first", 1.0), ("newest", 2.0)):
        found = memory(store, "r2", prefer=prefer)
        assert not found.remember("cottage", "hall", new, ["door"], thumbnail=b"jpeg", keep_views=True)
        assert found.recall("cottage", ["hall"]).unique().tolist() == [value]
    assert memory(store, prefer="newest").recall("cottage", ["hall"]).unique().tolist() == [2.0]
    *_, last = store.observations()
    assert (last.thumbnail, last.features) == (b"jpeg", store.settings.encode(new[0]))


def test_other_encoders_and_bank_merges_are_refused(tmp_path: Path, store: MemoryStore) -> None:
    settings = store.settings
    other = StoreSettings(width=settings.width, source=settings.source, encoder="another")
    with (
        MemoryStore.open(tmp_path / "other.db", other) as found,
        pytest.raises(MemoryMismatch, match="encoder 'another'.*or a new store"),
    ):
        memory(found)
    with pytest.raises(ConfigError, match="import them into its store"):
        memory(store).merge(MemoryBank.from_atlas(ATLAS))
