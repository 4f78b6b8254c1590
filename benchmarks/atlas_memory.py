"""Memory of an atlas of all 90 scenes with memory-mapped 768-d features, before any feature is read."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Amount
from esceme.files import write_json
from esceme.world import Atlas, read_scenes

WIDTH = 768


def run(data: Path) -> Iterator[Amount]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        keys = [
            f"{s}_{v}" for s, graph in read_scenes(data / "connectivity").items() for v in graph.viewpoints
        ]
        # A sparse file of the true size: its pages are zeros and take no space until read.
        np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(len(keys), 36, WIDTH)).flush()
        index = {"format": "esceme-features-2", "width": WIDTH, "source": "zeros", "keys": keys}
        index["crc32"] = [zlib.crc32(bytes(36 * WIDTH * 2))] * len(keys)
        write_json(path.with_suffix(".json"), index)
        program = [sys.executable, "-m", "benchmarks.atlas_memory", str(data), str(path)]
        added = float(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
    bound = "the tables of tokens; distances add about 20 MB when they are first used"
    yield Amount("atlas of 90 scenes, 768-d features mapped", added, "MB", 300, bound)


def resident() -> float:
    """Return the resident memory of this process in megabytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def added_by_atlas(data: str, features: str) -> float:
    before = resident()
    atlas = Atlas.read(Path(data) / "connectivity", features=features)
    assert len(atlas) > 0
    return resident() - before


if __name__ == "__main__":
    print(added_by_atlas(*sys.argv[1:]))
