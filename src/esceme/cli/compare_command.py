"""The command `esceme compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from esceme.cli.console import format_metric, metric_label, note, print_json, print_line, tables
from esceme.evaluation import Comparison, Result, read_result
from esceme.evaluation import compare as compare_results
from esceme.evaluation.compare import Interval
from esceme.report.seeded_results import (
    check_seeds_and_data,
    group_by_settings,
    is_training_unknown,
    read_seeded_result,
)
from esceme.training import EXPERIMENT_FILE

HASH_SHOWN = 8
FEW_SCENES = 10


def compare(
    results: Annotated[
        tuple[Path, ...], tyro.conf.arg(metavar="RESULT RESULT...", help_behavior_hint="(required)")
    ],
    /,
    measures: tuple[str, ...] | None = None,
    group_seeds: bool = False,
    first_told: bool = False,
    draws: int = 10_000,
    seed: int = 0,
    json: bool = False,
) -> int:
    """Compare results of the same episodes, with paired intervals.

    Every result is compared with the first, episode by episode. The table shows the mean difference of each
    measure with two 95 % bootstrap intervals. The first resamples paths, with all instructions of a path: it
    estimates the difference for other episodes in the same scenes. The second resamples scenes: it estimates
    the difference in other scenes, and is wider. The p-values are two-sided.

    With --group-seeds, results that differ only in the seeds of training and evaluation form a group. Groups
    are compared like results, by the mean of each episode over the group; the table also shows the standard
    deviation over seeds.

    Examples:
        esceme compare masked/evaluations/r2r-val_unseen-masked cold/evaluations/r2r-val_unseen-cold
        esceme compare first/result.json second/result.json third/result.json --measures spl sr --json
        esceme compare none-*/evaluations/r2r-val_unseen-none cold-*/evaluations/*-cold --group-seeds

    Args:
        results: result files, or folders that `esceme evaluate` wrote; at least two.
        measures: measures to compare; by default sr spl osr ne tl cls ndtw sdtw gp, and t_ndtw
            t_sr t_spl if all results are of the same tours.
        group_seeds: average results that differ only in their seeds, which also covers shuffled orders.
        first_told: count only the first instruction of each path, in the order in which the episodes were
            run. Later instructions repeat a path that an agent with memory may know.
        draws: number of bootstrap samples.
        seed: seed of the bootstrap.
        json: print one json object with fractions instead of a table.
    """
    names, groups = _read_groups(results, group_seeds=group_seeds)
    comparison = compare_results(
        groups,
        draws=draws,
        seed=seed,
        measures=measures,
        names=names,
        first_told=first_told,
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
    episodes = "first-told episodes" if first_told else f"episodes of {comparison.paths} paths"
    print(f"{comparison.episodes} {episodes} in {scenes} scenes; {draws} draws")
    if scenes == 1:
        note("note: an interval over scenes needs at least two scenes")
    elif scenes < FEW_SCENES:
        note(f"note: intervals over as few as {scenes} scenes tend to be too narrow")
    return 0


def _read_groups(
    paths: Sequence[Path], *, group_seeds: bool
) -> tuple[list[str], list[Result | Sequence[Result]]]:
    """Return names and results, or names and groups of results; the name of a group lists its paths."""
    if not group_seeds:
        return [str(path) for path in paths], [read_result(path) for path in paths]
    groups = group_by_settings(map(read_seeded_result, paths))
    names = [", ".join(str(member.path) for member in group) for group in groups]
    for name, group in zip(names, groups, strict=True):
        check_seeds_and_data(group)
        if is_training_unknown(group):
            note(f"note: {name}: averaged without knowing how they were trained (no {EXPERIMENT_FILE} found)")
    if len(sizes := {len(group) for group in groups}) > 1:
        note(f"note: the groups have {' and '.join(map(str, sorted(sizes)))} results")
    return names, [[member.result for member in group] for group in groups]


def _comparison_table(comparison: Comparison) -> Table:
    table = Table()
    for heading in ("measure", "", "mean", "difference", "95 % over paths", "p", "95 % over scenes", "p"):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for row in comparison.measures:
        means = [_format_mean(row.measure, *pair) for pair in zip(row.means, row.stds, strict=True)]
        table.add_row(metric_label(row.measure), "1", means[0])
        for number, (mean, difference) in enumerate(zip(means[1:], row.differences, strict=True), 2):
            table.add_row(
                *("", f"{number}", mean, _format_difference(row.measure, difference.mean)),
                *_format_interval(row.measure, difference.over_paths),
                *_format_interval(row.measure, difference.over_scenes),
            )
        table.add_section()
    return table


def _format_mean(measure: str, mean: float, std: float | None) -> str:
    return format_metric(measure, mean) + ("" if std is None else f" ± {format_metric(measure, std)}")


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
