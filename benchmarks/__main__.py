"""`make bench`: run every benchmark, print the table and write it to benchmarks/results.md."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from benchmarks.measure import THREADS, Amount, Ratio, data_root

RESULTS = Path(__file__).parent / "results.md"


def main() -> int:
    if any(os.environ.get(name) != "1" for name in THREADS):
        # Thread counts are read when numpy is loaded, so the process starts anew with them set.
        os.execve(
            sys.executable, [sys.executable, "-m", "benchmarks"], os.environ | dict.fromkeys(THREADS, "1")
        )
    data = data_root()
    if data is None:
        print("the benchmarks need the public graphs and R2R: set ESCEME_DATA", file=sys.stderr)
        return 2
    from benchmarks import loading, memory, observing, scoring

    rows = []
    for module in (loading, scoring, observing, memory):
        for result in module.run(data):
            rows.append(line(result))
            print(rows[-1], flush=True)
    RESULTS.write_text(page(rows))
    return 0 if all("| yes |" in row for row in rows) else 1


def line(result: Ratio | Amount) -> str:
    if isinstance(result, Ratio):
        cells = (
            f"{result.obvious:.3f} s",
            f"{result.ours:.4f} s",
            f"{result.value:.0f}x",
            f">= {result.wanted}x",
        )
        good = result.value >= result.wanted
    else:
        cells = ("", f"{result.value:.0f} {result.unit}", "", f"< {result.most} {result.unit}")
        good = result.value < result.most
    return f"| {result.name} | {' | '.join(cells)} | {'yes' if good else 'NO'} | {result.bound} |"


def page(rows: list[str]) -> str:
    import numpy
    import scipy

    head = f"| what | obvious | ours | ratio | wanted | met | what bounds ours next |\n|{'---|' * 7}"
    machine = f"Python {platform.python_version()}, numpy {numpy.__version__}, scipy {scipy.__version__}"
    said = "Written by `make bench`. Process time, one thread, both sides in one run, best of several rounds."
    rest = "Only the ratios mean anything."
    return (
        f"# Benchmarks\n\n{said}\n{rest} {machine}, {platform.machine()}.\n\n{head}\n"
        + "\n".join(rows)
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
