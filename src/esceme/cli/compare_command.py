"""The command `esceme compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tyro
from rich.table import Table

from esceme.cli.console import format_metric, metric_label, note, print_json, print_line, tables
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

    Every result is compared with the first, episode by episode. The table shows the mean difference of each
    measure with two 95 % bootstrap intervals. The first resamples paths, with all instructions of a path: it
    estimates the difference for other episodes in the same scenes. The second resamples scenes: it estimates
    the difference in other scenes, and is wider. The p-values are two-sided.

    Examples:
        esceme compare masked/evaluations/r2r-val_unseen-masked cold/evaluations/r2r-val_unseen-cold
        esceme compare first/result.json second/result.json third/result.json --measures spl sr --json

    Args:
        results: result files, or folders that `esceme evaluate` wrote; at least two.
        measures: measures to compare; by default the common ones, and those of tours (t_ndtw t_sr t_spl)
            if all results are of the same tours.
        draws: number of bootstrap samples.
        seed: seed of the bootstrap.
        json: print one json object with fractions instead of a table.
    """
    comparison = compare_results(
        [read_result(path) for path in results],
        draws=draws,
        seed=seed,
        measures=measures,
        names=[str(path) for path in results],
    )
    if json:
        print_json(_to_json(comparison))
        return 0
    for number, name in enumerate(comparison.names, 1):
        print_line(f"{number}: {name}")
    for fact, values in comparison.differing.items():
        print_line(f"   {fact}: " + ", ".join(_format_values(fact, values)))
    if not comparison.differing:
        note("note: the facts of all results are the same")
    tables().print(_comparison_table(comparison))
    scenes = comparison.scenes
    print(f"{comparison.episodes} episodes of {comparison.paths} paths in {scenes} scenes; {draws} draws")
    if scenes == 1:
        note("note: an interval over scenes needs at least two scenes")
    elif scenes < FEW_SCENES:
        note(f"note: intervals over as few as {scenes} scenes tend to be too narrow")
    return 0


def _comparison_table(comparison: Comparison) -> Table:
    table = Table()
    for heading in ("measure", "", "mean", "difference", "95 % over paths", "p", "95 % over scenes", "p"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for row in comparison.measures:
        table.add_row(metric_label(row.measure), "1", format_metric(row.measure, row.means[0]))
        for number, (mean, difference) in enumerate(zip(row.means[1:], row.differences, strict=True), 2):
            table.add_row(
                *(
                    "",
                    f"{number}",
                    format_metric(row.measure, mean),
                    _format_difference(row.measure, difference.mean),
                ),
                *_format_interval(row.measure, difference.over_paths),
                *_format_interval(row.measure, difference.over_scenes),
            )
        table.add_section()
    return table


def _format_interval(measure: str, interval: Interval | None) -> tuple[str, str]:
    if interval is None:
        return "-", "-"
    low, high = _format_difference(measure, interval.low), _format_difference(measure, interval.high)
    return f"{low} .. {high}", f"{interval.p:.4f}"


def _format_difference(measure: str, value: float) -> str:
    return f"{'+' if value > 0 else ''}{format_metric(measure, value)}"


def _format_values(fact: str, values: Sequence[Any]) -> list[str]:
    is_hash = fact.startswith("hashes.")
    texts = ["-" if value is None else f"{value}"[: HASH_SHOWN if is_hash else None] for value in values]
    return [f"{number}: {text}" for number, text in enumerate(texts, 1)]


def _to_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as a JSON object. Its key `measures` holds a dict from metric to differences."""
    values = asdict(comparison)
    values["measures"] = {row.pop("measure"): row for row in values["measures"]}
    return values
