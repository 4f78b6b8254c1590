"""Tables of the paper as data (`paper.json`), with results of evaluations as further rows."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

import msgspec

from esceme.errors import ConfigError, DataError, escape_control_characters
from esceme.files import read_json
from esceme.metrics import COUNTS, METRES
from esceme.report.seeded_results import (
    SeededResult,
    check_seeds_and_data,
    group_by_settings,
    is_training_unknown,
    read_seeded_result,
)
from esceme.training import EXPERIMENT_FILE

DATA_FILE = Path(__file__).with_name("paper.json")
LABELS = {
    "ndtw": "nDTW",
    "t_ndtw": "t-nDTW",
    "parameters_mb": "parameters (MB)",
    "gpu_gb": "GPU (GB)",
    "ms_per_step": "time (ms)",
}
"""Measure -> its heading, if that is not the name in capitals."""


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """Scores of one system."""

    system: str
    source: Literal["paper", "ours"] = "paper"
    values: dict[str, Decimal]
    """Column, such as `val_unseen.spl`, -> value in metres or per cent; in the paper's rows, the value as
    printed."""
    spread: dict[str, Decimal] = {}
    """Column -> standard deviation over seeds."""


class PaperTable(msgspec.Struct, frozen=True, kw_only=True):
    """One table of the paper."""

    title: str
    columns: dict[str, list[str]]
    """Task -> columns of its scores. Columns of costs, such as `parameters_mb`, have no split."""
    added_costs: list[str] = []
    """Systems whose costs are printed as the difference from the system above."""
    rows: list[TableRow]

    @property
    def shown_columns(self) -> list[str]:
        """Columns in which a row has a value."""
        columns = dict.fromkeys(column for names in self.columns.values() for column in names)
        return [column for column in columns if any(column in row.values for row in self.rows)]


def read_paper_tables() -> dict[str, PaperTable]:
    """Return all tables of the paper by label."""
    return read_json(DATA_FILE, dict[str, PaperTable])


def find_table(target: str) -> PaperTable:
    """Return the table with a label such as `tab:r2r`. Raise `ConfigError`, with similar labels, if none."""
    tables = read_paper_tables()
    if target not in tables:
        similar = get_close_matches(f"tab:{target.removeprefix('tab:')}".lower(), tables, n=3, cutoff=0.75)
        hint = f"did you mean {' or '.join(similar)}?" if similar else f"expected one of {', '.join(tables)}"
        raise ConfigError(f"no table '{target}' in the paper; {hint}")
    return tables[target]


# -- rows of results --------------------------------------------------------------------------------------


def add_results(target: str, paths: Sequence[Path]) -> tuple[PaperTable, list[str]]:
    """Return a table of the paper with the rows of results, and notes for the user.

    Results of the same settings form one row. The values of a row are means over seeds on each split. Raise
    `DataError` if a result is of another task or split than the table, or if two results of one row and split
    have the same seed or different data.
    """
    table = find_table(target)
    groups = group_by_settings([_read_evaluation(path, table, target) for path in paths])
    rows, notes = list(table.rows), []
    names = [_system_name(group, table) for group in groups]
    for name, group in zip(names, groups, strict=True):
        system = name if names.count(name) == 1 else f"{name} [{group[0].path}]"
        system = escape_control_characters(system)
        rows.append(_make_row(system, group, table))
        notes += [
            f"{evaluation.path}: no scores, because the goals of '{evaluation.split}' are withheld"
            for evaluation in group
            if not evaluation.means
        ]
        notes += [
            f"{evaluation.path}: {evaluation.facts['episodes']} episodes only, a part of {evaluation.split}"
            for evaluation in group
            if evaluation.facts.get("left_out") and "hashes.tours" not in evaluation.facts
        ]
        if is_training_unknown(group):
            notes.append(f"{system}: averaged over results of unknown training (no {EXPERIMENT_FILE} found)")
    return msgspec.structs.replace(table, rows=rows), notes


def _read_evaluation(path: Path, table: PaperTable, target: str) -> SeededResult:
    result = read_seeded_result(path)
    facts = result.facts
    task, split = str(facts.get("task")), str(facts.get("split"))
    if task not in table.columns:
        raise DataError(
            f"{path}: a result of task '{task}', but {target} is a table of {' and '.join(table.columns)}"
        )
    splits = dict.fromkeys(column.partition(".")[0] for column in table.columns[task] if "." in column)
    if split not in splits:
        raise DataError(
            f"{path}: a result of split '{split}', and {target} has {task} on {', '.join(splits)}"
        )
    return result


def _system_name(group: Sequence[SeededResult], table: PaperTable) -> str:
    """Return a name such as `hamt + candidate-enhancing, cold, 3 seeds`, with the task if needed."""
    facts = group[0].facts
    reader, memory, order = (str(facts.get(name, "none")) for name in ("reader", "memory", "order"))
    seeds = len({evaluation.seeds for evaluation in group})
    parts = [
        str(facts.get("agent", "agent")) + (f" + {reader}" if reader != "none" else ""),
        *([memory] if memory != "none" else []),
        *([order] if order not in ("file", "none") else []),
        *([f"{seeds} seeds"] if seeds > 1 else []),
    ]
    return ", ".join(parts) + (f" ({str(facts['task']).upper()})" if len(table.columns) > 1 else "")


def _make_row(system: str, group: Sequence[SeededResult], table: PaperTable) -> TableRow:
    values, spread = {}, {}
    for split in dict.fromkeys(evaluation.split for evaluation in group):
        evaluations = [evaluation for evaluation in group if evaluation.split == split]
        check_seeds_and_data(evaluations)
        for column in table.columns[group[0].facts["task"]]:
            of_split, _, measure = column.partition(".")
            means = [evaluation.means for evaluation in evaluations]
            if of_split != split or not all(measure in scores for scores in means):
                continue
            scale = 1 if measure in METRES | COUNTS else 100
            scaled = [scale * scores[measure] for scores in means]
            values[column] = Decimal(str(fmean(scaled)))
            if len(scaled) > 1:
                spread[column] = Decimal(str(stdev(scaled)))
    return TableRow(system=system, source="ours", values=values, spread=spread)


# -- formats ----------------------------------------------------------------------------------------------


def format_json(target: str, table: PaperTable) -> str:
    """Return the table as a JSON object with the keys `target` and `rows`."""
    encoder = msgspec.json.Encoder(decimal_format="number")
    return encoder.encode({"target": target, "rows": table.rows}).decode()


def format_markdown(target: str, table: PaperTable) -> str:
    """Return the table in Markdown, with one heading line and its title above."""
    columns = table.shown_columns
    headings = [
        "system",
        "source",
        *(f"{_split_label(name)} {measure_label(name)}".strip() for name in columns),
    ]
    lines = [headings, ["---", "---", *("---:" for _ in columns)]]
    lines += [
        [row.system.replace("|", "\\|"), row.source, *_format_cells(row, table, "{} ± {}")]
        for row in table.rows
    ]
    return "\n".join([f"{table.title} ({target})", "", *(f"| {' | '.join(cells)} |" for cells in lines)])


def format_latex(target: str, table: PaperTable) -> str:
    r"""Return the table as a LaTeX `tabular` that needs the package booktabs; a line precedes our rows."""
    columns = table.shown_columns
    groups = [(split, len(list(names))) for split, names in groupby(columns, _split_label)]
    lines = [
        f"% {target}: {table.title}",
        f"\\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "\\toprule",
        " & ".join(["", *(f"\\multicolumn{{{size}}}{{c}}{{{split}}}" for split, size in groups)]) + r" \\",
        " & ".join(["system", *map(measure_label, columns)]) + r" \\",
    ]
    source = None
    for row in table.rows:
        lines += ["\\midrule"] if row.source != source else []
        source = row.source
        lines.append(
            " & ".join([_escape_latex(row.system), *_format_cells(row, table, "{} $\\pm$ {}")]) + r" \\"
        )
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"])


FORMATS = {"markdown": format_markdown, "latex": format_latex, "json": format_json}
"""Name of a format -> function of target and table."""


def _format_cells(row: TableRow, table: PaperTable, pattern: str) -> list[str]:
    cells = []
    for column in table.shown_columns:
        value, spread = (
            _format_value(row, numbers.get(column), column) for numbers in (row.values, row.spread)
        )
        cell = pattern.format(value, spread) if column in row.spread else value
        is_added = row.system in table.added_costs and "." not in column and not cell.startswith("-")
        cells.append(f"+{cell}" if is_added else cell)
    return cells


def _format_value(row: TableRow, value: Decimal | None, column: str) -> str:
    if value is None or row.source == "paper":
        return "-" if value is None else str(value)
    return f"{value:.2f}" if column.partition(".")[2] in METRES else f"{value:.1f}"


def _split_label(column: str) -> str:
    return column.rpartition(".")[0].replace("_", " ")


def measure_label(column: str) -> str:
    """Return the heading of a measure, such as `nDTW`, given `ndtw` or `val_unseen.ndtw`."""
    measure = column.rpartition(".")[2]
    return LABELS.get(measure, measure.upper())


def _escape_latex(text: str) -> str:
    escaped = {character: f"\\{character}" for character in "{}&%$#_"}
    escaped |= {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
    return "".join(escaped.get(character, character) for character in text)
