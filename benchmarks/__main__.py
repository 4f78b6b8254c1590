"""`make bench`: run the benchmarks, print their tables and write them to benchmarks/results.md.

`python -m benchmarks scoring rendering` runs these two and keeps the other tables.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path

from benchmarks.measure import THREADS, Result, data_root, line

RESULTS = Path(__file__).parent / "results.md"
ON_REAL_DATA = (
    "scene-loading",
    "mattersim",
    "scoring",
    "observation",
    "atlas-memory",
    "hamt-evaluation",
    "tdstp-evaluation",
    "result-page",
    "duet-evaluation",
    "memory-store",
    "engines",
    "start-up",
    "growth",
    "large-features",
)
ON_GENERATED = (
    "rendering",
    "world-generation",
    "world-statistics",
    "feature-probes",
    "instruction-following",
    "next-hop-probes",
    "training",
    "training-versions",
    "graph-encoding",
    "planning",
    "memory-service",
)
GROUPS = (*ON_REAL_DATA, *ON_GENERATED)
ORIGINAL = """\
## Anchor: the original implementation

Measured once beside ESceme's released code, which is not part of this repository: unedited, with the C++
simulator, networks of the paper's size with the same random weights on both sides, one thread, CPU time,
engine `eager`. 64 of 64 walks and 183 of 183 decisions were identical.

| what | original | ours | ratio |
|---|---|---|---|
| evaluation, per decision, walks of a published agent's length | 165 ms | 84 ms | 1.9x |
| the same if the original runs without gradients | | | 1.6 to 1.7x |
| evaluation, walks of random weights, which stop early or never | | | 4.2x |
| training iteration, imitation + A2C | | | 2.4x |
| peak memory of evaluation | 3.8 to 6.0 GB | 1.2 GB | |
| start to first decision | 34.7 s | 6.4 s | |
| environment, without and with its cache | | | 40x, 13x |
| memory: look-up and update | | 0.1 % of a step | 2.7x |
"""
"""Figures that `make bench` does not measure again."""


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in GROUPS]:
        print(f"no benchmark '{unknown[0]}'; there are {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    if any(os.environ.get(name) != "1" for name in THREADS):
        # Thread counts are read when numpy is loaded, so the process restarts with them set.
        command = [sys.executable, "-m", "benchmarks", *names]
        os.execve(sys.executable, command, os.environ | dict.fromkeys(THREADS, "1"))
    data, tables, met = data_root(), read_tables(), True
    for name in names or GROUPS:
        if name in ON_REAL_DATA and data is None:
            print(f"{name}: left out, needs the public graphs and R2R; set ESCEME_DATA", file=sys.stderr)
            continue
        results = list(import_module(f"benchmarks.{name.replace('-', '_')}").run(data))
        tables[name] = table(results)
        met &= all(result.met for result in results)
        print(f"## {name}\n\n{tables[name]}\n", flush=True)
        RESULTS.write_text(page(tables))
    return 0 if met else 1


def table(results: Sequence[Result]) -> str:
    """Format the results of one group, one table per kind of result."""
    parts = []
    for head, rows in groupby(results, key=lambda result: result.head):
        parts.append("\n".join([line(head), "|---" * len(head) + "|", *(line(row.row()) for row in rows)]))
    return "\n\n".join(parts)


def read_tables() -> dict[str, str]:
    """Read the existing tables by group."""
    text = RESULTS.read_text() if RESULTS.is_file() else ""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)[1:]
    tables = {name: part.strip() for name, part in zip(parts[::2], parts[1::2], strict=True)}
    return {name: part for name, part in tables.items() if name in GROUPS}


def page(tables: dict[str, str]) -> str:
    import numpy
    import scipy

    machine = f"Python {platform.python_version()}, numpy {numpy.__version__}, scipy {scipy.__version__}"
    text = (
        "Written by `make bench` (`python -m benchmarks GROUP ...` runs some of the groups). Times are\n"
        "process time of one thread, baseline and ours in one run, best of several rounds: only ratios mean\n"
        "anything. ± is the standard deviation over seeds, [low, high] one seed's 95 % interval over paths.\n"
    )
    shown = "\n".join(f"## {name}\n\n{tables[name]}\n" for name in GROUPS if name in tables)
    return f"# Benchmarks\n\n{text}{machine}, {platform.machine()}.\n\n{ORIGINAL}\n{shown}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
