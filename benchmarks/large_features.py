"""Reading and training from a mapped feature file ten times as large as the memory for it.

After every batch, all pages of the file but those of the latest viewpoints leave the page cache, as if the
machine had no more memory. Times are CPU time, which includes the kernel's part of reading.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

from benchmarks.measure import Amount, Measurement, Ratio, Result
from esceme.learning import TrainingCallback
from esceme.recipes import RECIPES
from esceme.tasks.folder import DataFolder
from esceme.training import prepare
from esceme.world import ArrayFeatures, pack, read_scenes
from esceme.world.features import FeatureStore, PackedFeatures
from esceme.world.geometry import VIEWS

WIDTH, SHARE = 768, 10
BATCH, NUM_BATCHES, NUM_ITERATIONS, NUM_ROUNDS = 64, 6, 2, 5
PAGE = os.sysconf("SC_PAGE_SIZE")
MADV_DONTNEED = 4


class LimitedCache:
    """The page cache of a feature file, which `shrink` limits to a number of viewpoints."""

    def __init__(self, store: PackedFeatures, path: Path, num_rows: int) -> None:
        """Record which viewpoints of `store`, the file `path`, are used."""
        self._values, self._num_rows = store._values, num_rows
        self._file = os.open(path, os.O_RDONLY)
        self._offset = os.fstat(self._file).st_size - self._values.nbytes
        self._recent: dict[int, None] = {}
        prepare_rows = store._prepare

        def recording(rows: np.ndarray) -> None:
            for row in rows.tolist():
                self._recent.pop(row, None)
                self._recent[row] = None
            prepare_rows(rows)

        store._prepare = recording  # type: ignore[method-assign]

    def shrink(self, num_rows: int | None = None) -> None:
        """Remove all but the latest viewpoints from the page cache."""
        num_rows = self._num_rows if num_rows is None else num_rows
        self._recent = dict.fromkeys(list(reversed(self._recent))[:num_rows][::-1])
        edges = sorted({-1, *self._recent, len(self._values)})
        for first, end in zip((edge + 1 for edge in edges), edges[1:], strict=False):
            if first < end:
                self._drop(self._values[first:end])

    def _drop(self, part: np.ndarray) -> None:
        begin = part.ctypes.data - part.ctypes.data % PAGE
        size = part.ctypes.data + part.nbytes - begin
        assert ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_DONTNEED) == 0
        offset = self._offset + part.ctypes.data - self._values.ctypes.data
        os.posix_fadvise(self._file, offset, part.nbytes, os.POSIX_FADV_DONTNEED)

    def fill(self) -> None:
        """Read the whole file."""
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        os.lseek(self._file, 0, os.SEEK_SET)
        while os.read(self._file, 1 << 22):
            pass

    @property
    def megabytes(self) -> float:
        """Size of the part of the file that is in memory."""
        begin = self._values.ctypes.data - self._values.ctypes.data % PAGE
        size = self._values.ctypes.data + self._values.nbytes - begin
        pages = (ctypes.c_ubyte * -(-size // PAGE))()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), pages) == 0
        return float(np.frombuffer(pages, np.uint8).sum(dtype=np.int64)) * PAGE / 2**20


def run(data: Path) -> Iterator[Result]:
    """Compare reads with and without reading ahead, and both with a file in memory; then training."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        for entry in data.iterdir():
            if entry.name != "features":
                (Path(name) / entry.name).symlink_to(entry.resolve())
        file = write_features(data, Path(name) / "features")
        yield from compare_reads(file)
        yield from compare_training(Path(name), file)


def write_features(data: Path, folder: Path) -> Path:
    """Write random features of all scenes."""
    graphs = read_scenes(DataFolder(data).connectivity)
    keys = [f"{scene}_{viewpoint}" for scene, graph in graphs.items() for viewpoint in graph.viewpoints]
    values = np.random.default_rng(0).standard_normal((256, VIEWS, WIDTH), np.float32).astype(np.float16)
    folder.mkdir()
    rows = np.resize(np.arange(len(values)), len(keys))
    return pack(ArrayFeatures(keys, values[rows], source="random"), folder / "random.npy")


class Usage:
    """CPU time, wall time and megabytes read from the disk of several calls."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []
        self.read: list[float] = []
        self.resident: list[float] = []

    def add(self, work: Callable[[], object], cache: LimitedCache, *, limited: bool) -> None:
        """Call `work` and record what it uses; then shrink the cache if it is limited."""
        before, wall, cpu = bytes_read(), time.perf_counter(), time.process_time()
        work()
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        self.read.append((bytes_read() - before) / 2**20)
        self.resident.append(cache.megabytes)
        if limited:
            cache.shrink()


def bytes_read() -> int:
    """Return the number of bytes that this process has read from disks."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def compare_reads(file: Path) -> Iterator[Result]:
    """Read the panoramas of random viewpoints."""
    store, faulting = PackedFeatures(file), PackedFeatures(file)
    faulting._prepare = lambda rows: FeatureStore._prepare(faulting, rows)  # type: ignore[method-assign]
    num_rows = len(store) // SHARE
    caches = [LimitedCache(side, file, num_rows) for side in (store, faulting)]
    generator, views = np.random.default_rng(1), np.arange(VIEWS)[None].repeat(BATCH, 0)
    for side in (store, faulting):  # checksums are verified at the first use
        for row in range(len(side)):
            side.gather(np.array([row]), views[:1])
    ahead, faults, memory = Usage(), Usage(), Usage()
    for _ in range(NUM_ROUNDS):
        batches = [generator.choice(len(store), BATCH, replace=False) for _ in range(NUM_BATCHES)]
        for usage, side, cache in ((ahead, store, caches[0]), (faults, faulting, caches[1])):
            for other in caches:
                other.shrink(0)
            for rows in batches:
                usage.add(lambda rows=rows: side.gather(rows, views), cache, limited=True)  # noqa: B023
        caches[0].fill()
        for rows in batches:
            memory.add(lambda rows=rows: store.gather(rows, views), caches[0], limited=False)
    size, limit = file.stat().st_size / 2**20, num_rows * VIEWS * WIDTH * 2 / 2**20
    what = f"{BATCH} random panoramas of a file of {size:.0f} MB, {limit:.0f} MB of it in memory"
    note = f"{median(ahead.read):.1f} against {median(faults.read):.0f} MB read; the disk"
    yield Ratio(f"{what}: read ahead against page faults", median(faults.cpu), median(ahead.cpu), 3, note)
    wall = f"{median(faults.wall) / median(ahead.wall):.1f}x"
    yield Measurement("the same in wall time", wall, "other processes on the machine")
    slower = median(ahead.cpu) / median(memory.cpu)
    yield Amount("the same against a file in memory", slower, "x", 2, "copies from the disk to the cache")
    most = f"{max(ahead.resident):.0f} MB, with page faults {max(faults.resident):.0f} MB"
    yield Measurement("the same: most of the file in memory", most, "one batch beyond the limit")


def compare_training(data: Path, file: Path) -> Iterator[Result]:
    """Train on batches of all scenes, with all views."""
    recipe = RECIPES["r2r-small-esceme"]
    experiment = replace(
        recipe,
        features=str(file),
        navigator=replace(recipe.navigator, agent=replace(recipe.navigator.agent, context_views=True)),
        training=replace(recipe.training, augmentation=""),  # R2R alone
        validation=replace(recipe.validation, splits=()),
    )
    training = prepare(experiment, data, Path("unused"), callback=TrainingCallback())
    store = training.atlas.features
    assert isinstance(store, PackedFeatures)
    cache = LimitedCache(store, file, len(store) // SHARE)
    limited, memory = Usage(), Usage()
    for number in range(NUM_ROUNDS):
        batches = range(number * NUM_ITERATIONS, (number + 1) * NUM_ITERATIONS)
        for usage in (limited, memory):
            cache.shrink(0) if usage is limited else cache.fill()
            for batch in batches:
                step = training.trainer.training_step
                usage.add(lambda batch=batch: step(batch), cache, limited=usage is limited)  # noqa: B023
    slower = median(limited.cpu) / median(memory.cpu)
    note = f"{median(limited.read):.0f} MB read, {max(limited.resident):.0f} MB of the file in memory"
    yield Amount("training iteration from this file, against one in memory", slower, "x", 1.2, note)
    wall = f"{median(limited.wall) / median(memory.wall):.2f}x"
    yield Measurement("the same in wall time", wall, "other processes on the machine")
