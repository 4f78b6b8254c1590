"""Tables of README.md and docs/results.md, made from the kept results of `esceme reproduce`.

    python docs/result_tables.py                        rewrite all tables
    python docs/result_tables.py OUT/TARGET/results.json   keep results in docs/results, then rewrite

A table stands between two comments, of which the first names the kept files and the kind of table:

    <!-- results headline: differences -->
    <!-- end of results -->
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from esceme.errors import DataError
from esceme.files import write_json, write_text
from esceme.report.paper import format_markdown
from esceme.reproduction.costs import format_costs
from esceme.reproduction.target_report import (
    as_table,
    describe,
    format_difference,
    format_differences,
    format_directions,
    format_subsets,
)
from esceme.reproduction.target_results import TargetResults, read_target_results

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results"
PAGES = ("README.md", "docs/results.md", "docs/planning.md")
BLOCK = re.compile(r"(<!-- results ([\w :,-]+): ([\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
SUMMARY = ("none", "memory, cold", "memory, episodic", "memory, masked")
SUMMARY_HEAD = (
    "| data | SPL without memory | SPL with memory (`cold`) | difference [95 %] | difference on the first "
    "instruction of each path | SPL, memory cleared per episode | SPL, memory masked |\n"
    "|---|---|---|---|---|---|---|"
)


def summarise(results: Sequence[TargetResults]) -> str:
    """Return a line per headline comparison."""
    lines = [SUMMARY_HEAD]
    for result in results:
        rows, column = {row.name: row for row in result.rows}, "val_unseen.spl"
        none, cold, episodic, masked = (f"{rows[name].values[column]:.1f}" for name in SUMMARY)
        memory = rows["memory, cold"]
        difference = format_difference(memory.differences[column])
        first_told = format_difference(memory.first_told_differences[column])
        seeds = f"{result.title.partition(', ')[2]}, {memory.evaluations} seeds"
        cells = (seeds, none, cold, difference, first_told, episodic, masked)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


PLAN_ROWS = {
    "greedy": "greedy",
    "candidate enhancing": "candidate enhancing, cold",
    "**planner, cold start**": "planner, cold",
    "complete map": "planner, oracle",
    "map cleared per episode": "planner, episodic",
    "without instruction": "planner, blind, cold",
    "another path's instruction": "planner, cold, another path's instruction",
}
"""Columns of the summary of planning -> rows of a study."""


def summarise_plans(results: Sequence[TargetResults]) -> str:
    """Return a line per study of planning."""
    lines = [f"| SPL, val_unseen | {' | '.join(PLAN_ROWS)} |", "|---" * (len(PLAN_ROWS) + 1) + "|"]
    for result in results:
        rows, column = {row.name: row for row in result.rows}, "val_unseen.spl"
        found = [rows[name] for name in PLAN_ROWS.values()]
        cells = [f"{row.values[column]:.1f} ± {row.spread[column]:.1f}" for row in found]
        title = f"{result.title.partition(', ')[2]}, {found[0].evaluations} seeds"
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


SUBSET_ROWS = (
    "none",
    "memory, cold",
    "memory, episodic",
    "greedy",
    "planner, cold",
    "planner, cold, one-step lookahead",
    "planner, episodic",
    "planner, oracle",
    "planner, blind, cold",
)
"""Rows that are shown on subsets of episodes."""


def show_subsets(results: TargetResults) -> str:
    """Return the scores of the main rows on subsets of episodes."""
    rows = [row for row in results.rows if row.name in SUBSET_ROWS]
    rows.sort(key=lambda row: SUBSET_ROWS.index(row.name))
    return format_subsets(msgspec.structs.replace(results, rows=rows))


SUMMARIES = {"summary": summarise, "plans": summarise_plans}
"""Kind of a table -> function of several kept results."""
TABLES: dict[str, Callable[[TargetResults], str]] = {
    "differences": format_differences,
    "first-told": lambda results: format_differences(results, first_told=True),
    "paper": lambda results: format_markdown(results.target, as_table(results)),
    "subsets": show_subsets,
    "directions": format_directions,
    "costs": lambda results: format_costs(results.costs),
    "origin": describe,
}
"""Kind of a table -> function of kept results."""


def make_table(names: Sequence[str], kind: str, kept: Path = KEPT) -> str:
    """Return a table of kept results, given the names of their files without suffix."""
    results = [read_target_results(kept / f"{name}.json") for name in names]
    if kind in SUMMARIES:
        return SUMMARIES[kind](results)
    if kind not in TABLES or len(results) != 1:
        raise DataError(
            f"table '{kind}' of {len(results)} results: expected {', '.join((*SUMMARIES, *TABLES))}"
        )
    return TABLES[kind](results[0])


def rewrite(page: str, kept: Path = KEPT) -> str:
    """Return the text of a page with all tables made anew."""
    return BLOCK.sub(
        lambda block: f"{block[1]}\n{make_table(block[2].split(), block[3], kept)}\n\n{block[4]}", page
    )


def main(arguments: Sequence[str]) -> None:
    """Keep the given results, and rewrite the tables of all pages."""
    for argument in arguments:
        results = read_target_results(Path(argument))
        write_json(KEPT / f"{results.target.replace(':', '-')}.json", results)
    for page in PAGES:
        write_text(ROOT / page, rewrite((ROOT / page).read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
