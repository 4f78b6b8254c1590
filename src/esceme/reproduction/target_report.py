"""Reports of targets: our rows beside the rows of the paper, in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import msgspec

from esceme.files import write_json, write_text
from esceme.metrics import METRES, TOUR_METRICS
from esceme.report.paper import (
    PaperTable,
    TableRow,
    format_latex,
    format_markdown,
    measure_label,
    read_paper_tables,
)
from esceme.reproduction.costs import added_costs, format_costs
from esceme.reproduction.planned_runs import MIN_ITERATIONS, Plan
from esceme.reproduction.subsets import SubsetScore
from esceme.reproduction.target_results import (
    RESULTS_FILE,
    ReportRow,
    RowDifference,
    TargetResults,
    collect_results,
)
from esceme.reproduction.targets import Target, main_measure

REPORT_FILE = "report.md"
LATEX_FILE = "table.tex"
MEASURES = ("tl", "ne", "sr", "spl")
"""Measures of studies."""
SHOWN_DIGITS = 12


def write_target_report(plan: Plan, target: Target) -> Path:
    """Write `results.json`, `report.md`, `table.tex` and the figures of a target, and return the folder."""
    folder = plan.config.out / target.name.replace(":", "-")
    results = collect_results(plan, target)
    write_json(folder / RESULTS_FILE, results, indent=1)
    report = format_report(results, target.about)
    if target.draw is not None:
        folders = {
            row.name: [evaluation.folder for evaluation in plan.rows[target.name, row.name, row.splits[0]]]
            for row in target.rows(plan.config.data_kind)
        }
        titles = target.draw(folders, plan.config.data, folder)
        report += "".join(f"\n![{title}]({name}.svg)\n\n{title}\n" for name, title in titles.items())
    write_text(folder / REPORT_FILE, report)
    write_text(folder / LATEX_FILE, format_latex(results.target, as_table(results)) + "\n")
    return folder


def format_report(results: TargetResults, about: str) -> str:
    """Return a report in Markdown."""
    parts = [f"# {results.title} ({results.target})", about, describe(results)]
    if results.target in read_paper_tables():
        parts += [format_markdown(results.target, as_table(results)), format_directions(results)]
    if results.costs:
        parts.append(format_costs(results.costs))
    parts += [format_differences(results), format_differences(results, first_told=True)]
    parts.append(format_subsets(results))
    return "\n\n".join(filter(None, parts)) + "\n"


def describe(results: TargetResults) -> str:
    """Return a paragraph about seeds, data, code and budget."""
    code = ", ".join(digest[:SHOWN_DIGITS] for digest in results.code)
    sizes = ", ".join(f"{split} {count:,}" for split, count in results.episodes.items())
    text = (
        f"{results.seeds} seed{'s' if results.seeds > 1 else ''}. Episodes: {sizes}. esceme "
        f"{results.version}, code {code}, data {results.data[:SHOWN_DIGITS]}. Values are means over seeds ± "
        "standard deviation. Differences are paired by episode, with 95 % intervals over paths "
        "and over buildings."
    )
    if results.scale != 1:
        text += (
            f" **Shortened trainings: {results.scale:.3g} times the iterations of the recipes (at least "
            f"{MIN_ITERATIONS}), the same factor for every row.**"
        )
    if results.limit is not None:
        text += f" **Shortened evaluations: at most {results.limit} episodes per split.**"
    return text


def as_table(results: TargetResults) -> PaperTable:
    """Return the table of the paper, if the target is one, with our rows below."""
    paper = read_paper_tables().get(results.target)
    columns = paper.columns if paper is not None else {"": _study_columns(results)}
    rows = [_table_row(row, results, columns.get(row.task, columns.get("", []))) for row in results.rows]
    if paper is None:
        return PaperTable(title=results.title, columns=columns, rows=rows)
    return msgspec.structs.replace(paper, rows=[*paper.rows, *rows])


def _table_row(row: ReportRow, results: TargetResults, columns: Sequence[str]) -> TableRow:
    costs = added_costs(results.costs, row.paper) if row.paper in results.costs else {}
    values, spread = (
        {name: Decimal(str(value)) for name, value in numbers.items() if name in columns}
        for numbers in ({**row.values, **costs}, row.spread)
    )
    return TableRow(system=row.name, source="ours", values=values, spread=spread)


def _study_columns(results: TargetResults) -> list[str]:
    names = [name for row in results.rows for name in row.values]
    return [name for name in dict.fromkeys(names) if name.partition(".")[2] in (*MEASURES, *TOUR_METRICS)]


# -- differences -------------------------------------------------------------------------------------------


def format_differences(results: TargetResults, *, first_told: bool = False) -> str:
    """Return a Markdown table of all rows on each split with the difference of the main measure.

    With `first_told`, only the first instruction of every path counts.
    """
    parts = []
    for task_and_split in results.episodes:
        task, split = task_and_split.split(" ")
        rows = [row for row in results.rows if row.task == task and f"{split}.sr" in row.values]
        main = main_measure(task)
        if not any(f"{split}.{main}" in row.differences for row in rows):
            main = "spl"
        more = ["ndtw"] if any(row.subsets for row in rows) else []
        measures = [
            name
            for name in dict.fromkeys((*MEASURES, *more, main, *TOUR_METRICS))
            if f"{split}.{name}" in (rows[0].first_told if first_told else rows[0].values)
        ]
        heading = f"{task} {split}{', first-told instructions only' if first_told else ''}"
        lines = [
            [
                heading,
                "runs",
                *map(measure_label, measures),
                f"difference of {measure_label(main)}",
                "over buildings",
            ],
            ["---", *["---:"] * (len(measures) + 1), "---", "---"],
        ]
        for row in rows:
            cells = [_format_cell(row, f"{split}.{name}", first_told=first_told) for name in measures]
            differences = row.first_told_differences if first_told else row.differences
            difference = differences.get(f"{split}.{main}")
            shown = "" if difference is None else format_difference(difference)
            scenes = None if difference is None else difference.over_scenes
            over_scenes = "" if scenes is None else f"[{scenes[0]:+.1f}, {scenes[1]:+.1f}]"
            lines.append([row.name, f"{row.evaluations}", *cells, shown, over_scenes])
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    return "\n\n".join(parts)


def _format_cell(row: ReportRow, column: str, *, first_told: bool) -> str:
    digits = 2 if column.rpartition(".")[2] in METRES else 1
    if first_told:
        return f"{row.first_told[column]:.{digits}f}"
    text = f"{row.values[column]:.{digits}f}"
    return f"{text} ± {row.spread[column]:.{digits}f}" if column in row.spread else text


def format_difference(difference: RowDifference) -> str:
    """Return a difference with its interval, such as `+10.5 [+6.8, +14.2] to HAMT`."""
    text = f"{difference.mean:+.1f}"
    if difference.over_paths is not None:
        low, high = difference.over_paths
        text += f" [{low:+.1f}, {high:+.1f}]"
    return text if difference.against == "none" else f"{text} to {difference.against}"


def format_subsets(results: TargetResults) -> str:
    """Return a Markdown table of the main measure on subsets of episodes; empty if there are none."""
    rows = [row for row in results.rows if row.subsets]
    if not rows:
        return ""
    title = f"{measure_label(main_measure(rows[0].task))} by what was visited before"
    lines = [[title, "episodes", *(row.name for row in rows)], ["---", *["---:"] * (len(rows) + 1)]]
    for label, first in rows[0].subsets.items():
        scores = [row.subsets[label] for row in rows]
        lines.append([label, f"{first.episodes}", *map(_format_subset, scores)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _format_subset(score: SubsetScore) -> str:
    text = f"{score.mean:.1f}"
    if score.difference is None or score.over_paths is None:
        return text
    return f"{text} ({score.difference:+.1f} [{score.over_paths[0]:+.1f}, {score.over_paths[1]:+.1f}])"


# -- directions --------------------------------------------------------------------------------------------


def direction(paper: float, ours: RowDifference) -> str:
    """Return whether our difference and the paper's have the same sign: `yes`, `no`, or `within noise`.

    The answer is `within noise` if our interval contains 0.
    """
    if not ours.excludes_zero:
        return "within noise"
    return "yes" if paper * ours.mean > 0 else "no"


def format_directions(results: TargetResults) -> str:
    """Return a Markdown table that compares our differences with the paper's; empty if there are none."""
    table = read_paper_tables()[results.target]
    published = {row.system: row.values for row in table.rows}
    names = {row.name: row.paper for row in results.rows}
    lines = [
        ["row", "against", "column", "paper", "ours", "same direction?"],
        ["---", "---", "---", "---:", "---:", "---"],
    ]
    for row in results.rows:
        for column, difference in row.differences.items():
            values = [
                published.get(name, {}).get(column) for name in (row.paper, names.get(difference.against, ""))
            ]
            if values[0] is None or values[1] is None:
                continue
            change = float(values[0] - values[1])
            ours = format_difference(difference).partition(" to ")[0]
            answer = direction(change, difference)
            lines.append([row.name, difference.against, column, f"{change:+.4g}", ours, answer])
    if len(lines) == 2:
        return ""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
