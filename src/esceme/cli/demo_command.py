"""The command `esceme demo`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from textwrap import fill
from typing import Any

from rich import box
from rich.bar import Bar
from rich.table import Table

from esceme import __version__
from esceme.cli.console import note, print_json, progress, tables
from esceme.cli.job_bars import job_bars
from esceme.demo import DemoConfig, DemoResult, SplitScores, run_demo
from esceme.demo.demo_config import UNSEEN
from esceme.demo.demo_report import GAIN_HEADING, HEADINGS, format_cells, summary_sentence, visit_curves
from esceme.synth.dataset import WorldSize

WIDTH = 78
"""Number of letters per line of text."""
BAR_WIDTH = 20
NEXT = (
    "Next, evaluate the same weights with a masked memory, compare both agents in detail, give the agent "
    "instructions of your own, or train longer:"
)


def demo(
    out: Path = Path("demo"),
    size: WorldSize = "small",
    seed: int = 0,
    iterations: int | None = None,
    json: bool = False,
) -> int:
    """Train an agent without memory and one with memory, and compare them in unseen houses.

    Generates the embedded world (two minutes on two cores; later runs reuse it), trains both agents in
    parallel with the same budget, evaluates them in houses of the training split and in unseen houses under
    four memory protocols, and writes a report with figures and an HTML page that shows every episode. On two
    idle cores the demo takes about seven minutes. After an interruption the same command continues. Needs no
    data and no GPU.

    Examples:
        esceme demo
        esceme demo --seed 1 --out demo-1
        esceme demo --size tiny --iterations 40 --out trial --json

    Args:
        out: folder of both runs, their evaluations and the report; an interrupted demo in it is continued.
        size: size of the world; tiny is for trials, too small for learning.
        seed: random seed of both trainings; the world is always the same.
        iterations: length of each training; by default as in the recipes r2r-small and r2r-small-esceme.
        json: print one json object of plain fractions instead of a table.
    """
    config = DemoConfig(out=out, size=size, seed=seed, iterations=iterations)
    try:
        with job_bars() as on_progress:
            result = run_demo(config, world_progress=progress, on_progress=on_progress)
    except KeyboardInterrupt:
        note(f"interrupted; the same command continues the demo:\n{config.command}")
        return 130
    if json:
        print_json(_as_json(result))
        return 0
    scores, console = result.scores[UNSEEN], tables()
    console.print(_score_table(result))
    print(f"SPL by visit to an unseen house ({UNSEEN}):\n")
    console.print(_visit_table(scores))
    print(f"\nreport: {result.report}")
    print(f"page: {result.page}; open {result.page.resolve().as_uri()} in a browser\n")
    print(fill(summary_sentence(scores), WIDTH, break_on_hyphens=False))
    print(fill(NEXT, WIDTH))
    for command in config.next_commands(result.world):
        print(f"  {command}")
    return 0


def _score_table(result: DemoResult) -> Table:
    """Return a table of the scores of both splits, with a confidence interval below every value."""
    iterations, seed = result.config.num_iterations, result.config.seed
    title = f"{iterations:,} iterations each, seed {seed}; 95 % intervals over paths"
    table = Table("", *HEADINGS.values(), GAIN_HEADING, title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for scores in result.scores.values():
        table.add_row(f"[bold]{scores.split}[/bold]")
        for row in scores.rows:
            table.add_row(row.memory, *("\n".join(filter(None, cell)) for cell in format_cells(row)))
        table.add_section()
    return table


def _visit_table(scores: SplitScores) -> Table:
    """Return a table of bars: SPL by number of the visit to a scene, without memory and with cold memory."""
    curves = visit_curves(scores, ("none", "cold"))
    highest = max(y for curve in curves for y in curve.ys) or 1.0
    table = Table.grid(padding=(0, 2))
    table.add_row("", *(text for curve in curves for text in (curve.name, "")))
    for label, *values in zip(curves[0].xs, *(curve.ys for curve in curves), strict=True):
        bars = [(Bar(highest, 0, value, width=BAR_WIDTH), f"{value:5.1f}") for value in values]
        table.add_row(str(label), *(cell for bar in bars for cell in bar))
    return table


def _as_json(result: DemoResult) -> dict[str, Any]:
    config = result.config
    return {
        "command": config.command,
        "version": __version__,
        "size": config.size,
        "seed": config.seed,
        "iterations": config.num_iterations,
        "resumed_after": result.resumed_after,
        "seconds": result.seconds,
        "world": str(result.world),
        "report": str(result.report),
        "page": str(result.page),
        "figures": [str(path) for path in sorted(result.report.parent.glob("figures/*.svg"))],
        "episodes": result.episodes,
        "splits": {split: _scores_as_json(scores) for split, scores in result.scores.items()},
        "verdict": summary_sentence(result.scores[UNSEEN]),
        "next": config.next_commands(result.world),
    }


def _scores_as_json(scores: SplitScores) -> dict[str, Any]:
    rows = {}
    for row in scores.rows:
        gain = row.gain and asdict(row.gain)
        visits = [group._asdict() for group in row.visits]
        rows[row.memory] = {"means": row.means, "ci95": row.intervals, "spl_gain": gain, "by_visit": visits}
    return {"episodes": scores.episodes, "paths": scores.paths, "scenes": scores.scenes, "rows": rows}
