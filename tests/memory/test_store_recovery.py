"""Checks of stores, and recovery from damaged pages, WALs and headers."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from esceme.errors import DataError
from esceme.memory.store import MemoryStore
from esceme.memory.store_recovery import check_store, open_readable, recover
from fixtures.observations import SETTINGS, observation, values

PAGE = 4096


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 120 observations, some of which need overflow pages; one more is forgotten."""
    path = tmp_path_factory.mktemp("written") / "site.db"
    with MemoryStore.open(path, SETTINGS) as store:
        for start in range(0, 121, 11):
            store.remember(
                [observation(n, thumbnail=bytes([n]) * (n * 97)) for n in range(start, start + 11)]
            )
        store.forget(viewpoint="v7")
    return path


@pytest.fixture
def damaged(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(written, tmp_path / "site.db"))


def readable(path: Path) -> dict[str, float]:
    with open_readable(path, lambda message: None) as store:
        return values(store)


def expected() -> dict[str, float]:
    return {f"v{n}": float(n) for n in range(121) if n != 7}


def test_a_whole_store_is_clean(written: Path) -> None:
    report = check_store(written)
    assert (report.observations, report.faults, report.notes) == (120, [], [])
    assert readable(written) == expected()


def test_the_scan_of_pages_finds_everything_that_sql_finds(written: Path, damaged: Path) -> None:
    """A damaged first page makes the file unreadable for SQLite; all rows are on other pages."""
    data = bytearray(damaged.read_bytes())
    data[:100] = bytes(100)
    damaged.write_bytes(data)
    report = check_store(damaged)
    assert report.faults
    assert report.observations == 120
    found = recover(damaged)
    with MemoryStore.open(written) as store:
        assert found.settings == SETTINGS
        assert found.observations == list(store.observations())
        assert [row[2] for row in found.forgotten] == [7]


@pytest.mark.parametrize("seed", range(8))
def test_damaged_pages_are_named_and_all_other_rows_are_recovered(damaged: Path, seed: int) -> None:
    rng, data = Random(seed), bytearray(damaged.read_bytes())
    for page in rng.sample(range(1, len(data) // PAGE), 3):
        data[page * PAGE : (page + 1) * PAGE] = rng.randbytes(PAGE)
    damaged.write_bytes(data)
    report = check_store(damaged)
    assert report.faults
    found = readable(damaged)
    assert found.items() <= expected().items()
    assert len(found) >= report.observations
    # A page of this store holds at most 28 rows; rows of up to three pages may be lost.
    assert len(found) >= 120 - 3 * 28


def test_a_flipped_bit_in_any_value_is_noticed(damaged: Path) -> None:
    with MemoryStore.open(damaged) as store:
        for statement, row in (
            ("vector = zeroblob(12)", 30),
            ("stamp = stamp + 1", 31),
            ("time = time + 1", 32),
            ("viewpoint = 'elsewhere'", 33),
            ("neighbours = '[]'", 34),
            ("x = x + 0.5", 35),
            ("neighbours = '['", 36),
            ("digest = 'd'", 37),
        ):
            store.database.execute(f"UPDATE observation SET {statement} WHERE id = {row}")
    report = check_store(damaged)
    assert [fault.split(":")[1].strip() for fault in report.faults] == [f"row {n}" for n in range(30, 38)]
    assert report.observations == 112
    assert len(readable(damaged)) == 112


def test_rows_in_the_wal_are_recovered_too(tmp_path: Path) -> None:
    path = tmp_path / "site.db"
    store = MemoryStore.open(path, SETTINGS)
    store.remember([observation(n) for n in range(5)])
    copy = Path(shutil.copy(path, tmp_path / "copy.db"))
    shutil.copy(tmp_path / "site.db-wal", tmp_path / "copy.db-wal")
    store.close()
    copy.write_bytes(bytes(copy.stat().st_size))
    assert values_of(copy) == {f"v{n}": float(n) for n in range(5)}


def values_of(path: Path) -> dict[str, float]:
    return {item.viewpoint: float(SETTINGS.decode(item.vector)[0, 0]) for item in recover(path).observations}


def test_double_keys_and_conflicts_are_notes(tmp_path: Path) -> None:
    for number in (0, 1):
        with MemoryStore.open(tmp_path / f"{number}.db", SETTINGS) as store:
            store.remember([observation(0, float(number))])
    with MemoryStore.open(tmp_path / "0.db") as store, MemoryStore.open(tmp_path / "1.db") as other:
        store.merge(other)
    report = check_store(tmp_path / "0.db")
    assert report.faults == []
    assert [note.split(";")[0] for note in report.notes] == [
        "sequence 0 of session 'monday' of 'r1' has several observations",
        "v0 in house: 2 different vectors",
    ]


def test_files_without_a_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        check_store(tmp_path / "absent.db")
    (tmp_path / "noise.db").write_bytes(Random(0).randbytes(20_000))
    assert check_store(tmp_path / "noise.db").faults
    with pytest.raises(DataError, match="found neither its settings nor its tables"):
        recover(tmp_path / "noise.db")
