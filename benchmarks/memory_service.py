"""Memory service: 100 robots at once, and recall from stores of 10^2 to 10^6 viewpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.measure import Amount, Measurement, Result
from esceme.memory.remote_store import RemoteStore
from esceme.memory.store import _INSERT, MemoryStore, _to_row
from esceme.memory.store_record import StoredObservation, StoreSettings
from esceme.memory.store_wire import encode_observations

SETTINGS = StoreSettings(width=256, precision="half", source="benchmark", encoder="0" * 64)
SIZES = (100, 10_000, 1_000_000)
BATCH, REPEATS, ROBOTS, ROUNDS = 8, 2000, 100, 20
VIEWPOINTS_PER_SCENE = 1000
TOKEN = "benchmark-on-loopback"


def run(data: object) -> Iterator[Result]:
    """Yield the results; no data folder is needed."""
    with tempfile.TemporaryDirectory(prefix="memory-service-") as folder:
        medians = {}
        for size in SIZES:
            p50, p99 = recall_times(Path(folder) / f"{size}.db", size)
            medians[size] = p50
            bound = f"median {1e3 * p50:.2f} ms; lookups by index, checksums, encoding"
            yield Amount(
                f"recall of {BATCH} among {size:,} viewpoints, p99 process time", 1e3 * p99, "ms", 5.0, bound
            )
        ratio = medians[SIZES[-1]] / medians[SIZES[0]]
        name = f"median recall among {SIZES[-1]:,} viewpoints over {SIZES[0]:,}"
        yield Amount(name, ratio, "x", 3.0, "depth of the index, cache of pages")
        yield served_recall(Path(folder), SIZES[-1])
        yield from robots_at_once(Path(folder))


def viewpoint(number: int, robot: str = "r") -> StoredObservation:
    """Return an observation of one of many viewpoints."""
    vector = np.full(SETTINGS.width, number % 997, "<f2").tobytes()
    scene, name = f"scene{number // VIEWPOINTS_PER_SCENE:04}", f"viewpoint{number:07}"
    neighbours = tuple(f"viewpoint{number + step:07}" for step in (1, 2, 3))
    return StoredObservation(
        robot=robot, session="s", sequence=number, scene=scene, viewpoint=name, vector=vector,
        neighbours=neighbours, time=float(number), position=(float(number), 0.0, 0.0), stamp=number + 1,
    )  # fmt: skip


def recall_times(path: Path, size: int) -> tuple[float, float]:
    """Return median and 99th percentile of the process time of a recall in the service, in seconds."""
    with MemoryStore.open(path, SETTINGS) as store:
        with store.database.writing():
            store.database.execute(_INSERT, (_to_row(viewpoint(number)) for number in range(size)))
        store.database.checkpoint()
        rng, times = Random(0), []
        for _ in range(REPEATS):
            first = rng.randrange(size - BATCH)
            places = [viewpoint(first + step) for step in range(BATCH)]
            scene, names = places[0].scene, [place.viewpoint for place in places]
            begin = time.thread_time()
            encode_observations(store.recall(scene, names), SETTINGS)
            times.append(time.thread_time() - begin)
        return float(np.median(times)), float(np.quantile(times, 0.99))


@contextmanager
def service(path: Path) -> Iterator[tuple[str, int]]:
    """Run `esceme serve`; yield its address and process id."""
    command = [sys.executable, "-m", "esceme", "serve", str(path), "--port", "0", "--json"]
    environment = os.environ | {"ESCEME_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["address"], process.pid
        finally:
            process.kill()


def served_recall(folder: Path, size: int) -> Result:
    """Return the mean process time of the service per recall of one robot."""
    with service(folder / f"{size}.db") as (address, pid):
        store = RemoteStore(address, token=TOKEN, outbox=folder / "single.db")
        before = process_seconds(pid)
        for number in range(REPEATS):
            first = number * (size // REPEATS)
            places = [viewpoint(first + step) for step in range(BATCH)]
            found = store.recall(places[0].scene, [place.viewpoint for place in places])
            assert found[0] is not None and found[0].sequence == first
        milliseconds = 1e3 * (process_seconds(pid) - before) / REPEATS
        store.close()
    name = f"recall of {BATCH} among {size:,} viewpoints over HTTP, mean process time of the service"
    return Amount(name, milliseconds, "ms", 5.0, "HTTP in Python")


def process_seconds(pid: int) -> float:
    """Return the process time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def robots_at_once(folder: Path) -> Iterator[Result]:
    """Let robots remember and recall by turns; check that nothing is lost and all recalled is stored."""
    path, times, recalled = folder / "site.db", {"remember": [], "recall": []}, set[str]()
    MemoryStore.open(path, SETTINGS).close()

    def act(name: str, address: str) -> None:
        store = RemoteStore(address, SETTINGS, token=TOKEN, robot=name, outbox=folder / f"{name}.db")
        rng = Random(name)
        for number in range(ROUNDS):
            begin = time.perf_counter()
            store.remember([viewpoint(number, name)])
            middle = time.perf_counter()
            names = [f"viewpoint{rng.randrange(ROUNDS):07}" for _ in range(BATCH)]
            found = store.recall("scene0000", names)
            times["recall"].append(time.perf_counter() - middle)
            times["remember"].append(middle - begin)
            recalled.update(item.digest for item in found if item is not None)
        assert store.num_waiting == 0, "the service did not keep up"
        store.close()

    with service(path) as (address, pid):
        robots = [threading.Thread(target=act, args=(f"r{n}", address)) for n in range(ROBOTS)]
        begin, before = time.perf_counter(), process_seconds(pid)
        for robot in robots:
            robot.start()
        for robot in robots:
            robot.join()
        seconds, spent = time.perf_counter() - begin, process_seconds(pid) - before
    with MemoryStore.open(path) as store:
        digests = {digest for (digest,) in store.database.query("SELECT digest FROM observation")}
    lost = ROBOTS * ROUNDS - len(digests)
    yield Amount("observations of 100 robots that are lost", lost, "", 0.5, "")
    yield Amount("recalled observations that are not stored", len(recalled - digests), "", 0.5, "")
    for name, values in times.items():
        p50, p99 = (1e3 * float(np.quantile(values, q)) for q in (0.5, 0.99))
        text = f"{len(values) / seconds:.0f}/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms"
        yield Measurement(f"100 robots: {name}, wall time", text, "clients and service share two busy cores")
    per_request = 1e3 * spent / (2 * ROBOTS * ROUNDS)
    yield Measurement(
        "100 robots: process time of the service per request", f"{per_request:.2f} ms", "HTTP in Python"
    )
