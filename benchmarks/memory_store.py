"""A durable memory store against a bank in memory: evaluation, recall among many viewpoints, writes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.hamt_evaluation import (
    CANDIDATES,
    FEW,
    MANY,
    SLOTS,
    EvaluationWorkload,
    NumberedViewpoints,
    published_paths,
)
from benchmarks.measure import Amount, Measurement, Result, seconds
from esceme.memory import MemoryStore, StoredMemory, StoredObservation, StoreSettings, store_settings

ROUNDS, EPISODES_PER_SCENE, RECALLS, BATCH, WRITES = 2, 2, 200, 10_000, 200
SETTINGS = StoreSettings(width=64, precision="half", source="drawn")
"""Settings of the store of a million viewpoints."""
FIRST_DAY = "HAMT with an empty store, the first 2 episodes of 8 scenes: process time over that of a bank"


def run(data: Path) -> Iterator[Result]:
    """Measure the cost of an evaluation in a store, of recall and of durable writes."""
    torch.set_num_threads(1)
    yield from evaluation(data)
    yield from recall_growth()
    yield durable_writes()


def evaluation(data: Path) -> Iterator[Result]:
    """Evaluate the same trajectories with a bank and with a new store, by turns; compare all logits."""
    work, paths = EvaluationWorkload(data, per_scene=EPISODES_PER_SCENE), published_paths(data)
    plain, stored, waits = list[float](), list[float](), list[float]()
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            with MemoryStore.open(Path(folder) / "site.db", store_settings(work.atlas)) as store:
                memory = StoredMemory(store, session=f"{number}", starts_empty=True)
                memory.bind(work.atlas)
                wall, used = time.perf_counter(), time.process_time()
                in_store = work.run_lanes(paths, bank=memory)
                waits.append(time.perf_counter() - wall - (time.process_time() - used))
                observations = len(store)
            stored.append(time.process_time() - begin)
        begin = time.process_time()
        in_memory = work.run_lanes(paths)
        plain.append(time.process_time() - begin)
        assert in_store == in_memory
    percent = 100 * (min(stored) / min(plain) - 1)
    bound = f"{observations} observations: rows, digests and commits; logits are equal"
    yield Amount(FIRST_DAY, percent, "% more", 5, bound)
    note = "the disk, and other processes on this machine; one commit per step of a batch"
    yield Measurement("the same, time not computing", f"{min(waits):.2f} s of wall time", note)


def recall_growth() -> Iterator[Result]:
    """Ratio of recall times among a million and among 100 remembered viewpoints, both read from stores."""
    times = {count: recall_seconds(count) for count in (FEW, MANY)}
    note = f"the number of rows, here of {SETTINGS.width} numbers, that fit into the processor's caches"
    name = f"recall from a store of {MANY:,} against {FEW} viewpoints"
    yield Amount(name, times[MANY][0] / times[FEW][0], "x", 3, note)
    yield Measurement(
        f"one recall of {SLOTS} panoramas of {CANDIDATES} candidates among {MANY:,}",
        f"{1e6 * times[MANY][0] / RECALLS:.0f} µs",
        "one gather",
    )
    yield Measurement(f"loading a store of {MANY:,} viewpoints", f"{times[MANY][1]:.0f} s", "rows in Python")


def recall_seconds(count: int) -> tuple[float, float]:
    """Return the times of `RECALLS` recalls among `count` viewpoints of a store, and of loading the store."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, MemoryStore.open(Path(folder) / "s.db", SETTINGS) as store:
        for start in range(0, count, BATCH):
            store.remember(
                [observation(number, generator) for number in range(start, min(start + BATCH, count))]
            )
        begin = time.process_time()
        memory = StoredMemory(store)
        loading = time.process_time() - begin
    memory.bind(NumberedViewpoints(count))  # type: ignore[arg-type]
    requested = torch.full((RECALLS, SLOTS, 42), -1)
    requested[:, :, :CANDIDATES] = torch.randint(count, (RECALLS, SLOTS, CANDIDATES), generator=generator)
    times = [seconds(lambda: [memory.recall_at(viewpoints) for viewpoints in requested]) for _ in range(5)]
    return min(times), loading


def observation(number: int, generator: torch.Generator) -> StoredObservation:
    vector = SETTINGS.encode(torch.randn(SETTINGS.width, generator=generator))
    return StoredObservation(
        robot="r", session="s", sequence=number, scene="scene", viewpoint=f"{number}", vector=vector
    )


def durable_writes() -> Result:
    """Process time of one acknowledged observation of width 768, each in a transaction of its own."""
    settings = StoreSettings(width=768, source="drawn")
    with tempfile.TemporaryDirectory() as folder, MemoryStore.open(Path(folder) / "s.db", settings) as store:
        memory = StoredMemory(store)
        views = torch.randn(5, 768)
        names = [f"{number}" for number in range(WRITES)]
        wall = time.perf_counter()
        used = seconds(lambda: [memory.remember("scene", name, views, ["a"] * 5) for name in names])
        wall = time.perf_counter() - wall
    value = f"{1e3 * used / WRITES:.2f} ms of process time, {1e3 * wall / WRITES:.1f} ms of wall time"
    return Measurement("a durable observation", value, "the disk: one synchronisation per transaction")
