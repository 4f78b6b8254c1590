"""`esceme compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tyro
from rich.table import Table

from esceme.cli.console import format_metric, metric_label, note, print_json, tables
from esceme.evaluation import Comparison, read_result
from esceme.evaluation import compare as compare_results
from esceme.evaluation.compare import Interval

HASH_SHOWN = 8
FEW_SCENES = 10


def compare(
    results: tyro.conf.Positional[tuple[Path, ...]],
    /,
    measures: tuple[str, ...] | None = None,
    draws: int = 10_000,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Compare results of the same episodes, with paired intervals.

    Every result is compared with the first, episode by episode. Two 95 % bootstrap intervals of each
    difference are given: over paths (a path's instructions stay together), as for other walks through these
    buildings, and over scenes, as for other buildings, which is wider; p is two-sided.

    Examples:
        esceme compare masked/evaluations/r2r-val_unseen-masked cold/evaluations/r2r-val_unseen-cold
        esceme compare first/result.json second/result.json third/result.json --measures spl sr --json

    Args:
        results: result files, or folders that `esceme evaluate` wrote; at least two.
        measures: which measures to compare; by default the usual ones, and those of tours (t_ndtw t_sr t_spl)
            where all results are of the same tours.
        draws: of the bootstrap.
        seed: of the bootstrap.
        json: print one json object of plain fractions instead of a table.
    """
    found = compare_results(
        [read_result(path) for path in results],
        draws=draws,
        seed=seed,
        measures=measures,
        names=[str(path) for path in results],
    )
    if json:
        print_json(_plain(found))
        return 0
    for number, name in enumerate(found.names, 1):
        print(f"{number}: {name}")
    for fact, stated in found.differing.items():
        print(f"   {fact}: " + ", ".join(_stated(fact, stated)))
    if not found.differing:
        note("note: the facts of all results are the same")
    tables().print(_table(found))
    print(f"{found.episodes} episodes of {found.paths} paths in {found.scenes} scenes; {draws} draws")
    if found.scenes == 1:
        note("note: with a single scene, nothing can be said about others")
    elif found.scenes < FEW_SCENES:
        note(f"note: intervals over as few as {found.scenes} scenes tend to be too narrow")
    return 0


def _table(found: Comparison) -> Table:
    table = Table()
    for heading in ("measure", "", "mean", "difference", "95 % over paths", "p", "95 % over scenes", "p"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for row in found.measures:
        table.add_row(metric_label(row.measure), "1", format_metric(row.measure, row.means[0]))
        for number, (mean, gain) in enumerate(zip(row.means[1:], row.differences, strict=True), 2):
            intervals = (*_shown(row.measure, gain.over_paths), *_shown(row.measure, gain.over_scenes))
            means = (format_metric(row.measure, mean), _signed(row.measure, gain.mean))
            table.add_row("", f"{number}", *means, *intervals)
        table.add_section()
    return table


def _shown(measure: str, interval: Interval | None) -> tuple[str, str]:
    if interval is None:
        return "-", "-"
    edges = " .. ".join(_signed(measure, edge) for edge in (interval.low, interval.high))
    return edges, f"{interval.p:.4f}"


def _signed(measure: str, value: float) -> str:
    return f"{'+' if value > 0 else ''}{format_metric(measure, value)}"


def _stated(fact: str, stated: Sequence[Any]) -> list[str]:
    is_hash = fact.startswith("hashes.")
    return [
        f"{number}: {each[:HASH_SHOWN] if is_hash and each else '-' if each is None else each}"
        for number, each in enumerate(stated, 1)
    ]


def _plain(found: Comparison) -> dict[str, Any]:
    """A comparison for json: intervals as objects."""

    def interval(each: Interval | None) -> dict[str, float] | None:
        return None if each is None else each._asdict()

    measures = {
        row.measure: {
            "means": row.means,
            "differences": [
                {
                    "mean": gain.mean,
                    "over_paths": interval(gain.over_paths),
                    "over_scenes": interval(gain.over_scenes),
                }
                for gain in row.differences
            ],
        }
        for row in found.measures
    }
    return {**asdict(found), "measures": measures}
