"""`esceme demo`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from esceme import __version__
from esceme.cli.console import note, print_json, progress, tables
from esceme.demo import News, Outcome, Scoring, Wish, show
from esceme.demo.crew import Hear
from esceme.demo.report import UNSEEN
from esceme.demo.scoring import GAIN, HEADINGS, cells, verdict, visit_curves
from esceme.report import text_curve
from esceme.synth.dataset import Size

WIDTH = 78
"""Letters of a line of words."""
NEXT = (
    "Try next what is left where the same weights recall nothing (masked), how sure all differences are, "
    "or what longer training gives:"
)


def demo(
    out: Path = Path("demo"),
    size: Size = "small",
    seed: int = 0,
    iterations: int | None = None,
    json: bool = False,
) -> int:
    """Train an agent without memory and one with it, and see what remembering gives in unseen houses.

    Makes the embedded world (two minutes on two cores the first time, then kept in the cache), trains both
    agents side by side with the same budget, lets them walk houses of their training and unseen ones under
    four memory protocols, and writes a report with figures. All of it takes two cores ten minutes at most;
    interrupted, it goes on by the same command. Needs no data and no GPU.

    Examples:
        esceme demo
        esceme demo --seed 1 --out demo-1
        esceme demo --size tiny --iterations 40 --out look --json

    Args:
        out: the folder to write to, or to go on with: both runs, their evaluations and the report.
        size: how large a world; tiny is for trying out, and too little to learn from.
        seed: of both trainings; the world stays the same.
        iterations: how long to train, by default as the recipes r2r-small and r2r-small-esceme say.
        json: print one json object of plain fractions instead of a table.
    """
    wish = Wish(out=out, size=size, seed=seed, iterations=iterations)
    try:
        seen = show(wish, houses=progress, watching=_bars)
    except KeyboardInterrupt:
        note(f"interrupted; the same command goes on with it:\n{wish.command}")
        return 130
    if json:
        print_json(_plain(seen))
        return 0
    tables().print(_table(seen))
    print(f"SPL by the number of the walk in an unseen house ({UNSEEN}):\n")
    print(text_curve(visit_curves(seen.scorings[UNSEEN], ("none", "cold")), width=WIDTH))
    print(f"\nreport: {seen.report}\n")
    print(fill(verdict(seen.scorings[UNSEEN]), WIDTH))
    print(fill(NEXT, WIDTH))
    for command in wish.advice(seen.world):
        print(f"  {command}")
    return 0


@contextmanager
def _bars() -> Iterator[Hear]:
    """A bar for each job on standard error, with its loss and the time left."""
    tasks: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[said]}"),
        console=Console(stderr=True, highlight=False),
        speed_estimate_period=60,
        refresh_per_second=2,
    ) as bars:

        def hear(news: News) -> None:
            if news.note:
                bars.console.print(f"{news.job}, {news.note}", markup=False, soft_wrap=True)
                return
            if news.job not in tasks:
                tasks[news.job] = bars.add_task(news.job, completed=news.done, total=news.total, said="")
            said = " ".join(f"{name} {value:.3g}" for name, value in (news.said or {}).items())
            bars.update(tasks[news.job], completed=news.done, total=news.total, said=said)

        yield hear


def _table(seen: Outcome) -> Table:
    """Both splits below each other; under every value its interval."""
    title = f"{seen.iterations:,} iterations each, seed {seen.wish.seed}; 95 % intervals over paths"
    table = Table("", *HEADINGS.values(), GAIN, title=title, box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for scoring in seen.scorings.values():
        table.add_row(f"[bold]{scoring.split}[/bold]")
        for row in scoring.rows:
            table.add_row(row.memory, *("\n".join(filter(None, cell)) for cell in cells(row)))
        table.add_section()
    return table


def _plain(seen: Outcome) -> dict[str, Any]:
    """The outcome for json."""
    figures = sorted(seen.report.parent.glob("figures/*.svg"))
    return {
        "command": seen.wish.command,
        "version": __version__,
        "size": seen.wish.size,
        "seed": seen.wish.seed,
        "iterations": seen.iterations,
        "begun_after": seen.begun_after,
        "seconds": seen.seconds,
        "world": str(seen.world),
        "report": str(seen.report),
        "figures": [str(each) for each in figures],
        "walks": seen.walks,
        "splits": {split: _scores(scoring) for split, scoring in seen.scorings.items()},
        "seen": verdict(seen.scorings[UNSEEN]),
        "next": seen.wish.advice(seen.world),
    }


def _scores(scoring: Scoring) -> dict[str, Any]:
    """A split for json."""
    rows = {}
    for row in scoring.rows:
        gain = row.gain and {
            "mean": row.gain.mean,
            "over_paths": row.gain.over_paths and row.gain.over_paths._asdict(),
            "over_scenes": row.gain.over_scenes and row.gain.over_scenes._asdict(),
        }
        visits = [each._asdict() for each in row.visits]
        rows[row.memory] = {"means": row.means, "ci95": row.intervals, "spl_gain": gain, "by_visit": visits}
    return {"episodes": scoring.episodes, "paths": scoring.paths, "scenes": scoring.scenes, "rows": rows}
