"""Output of the commands: progress and notes on standard error, tables and JSON on standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from esceme.errors import DataError, escape_control_characters
from esceme.metrics import COUNTS, METRES
from esceme.tasks.catalogue import TASKS

T = TypeVar("T")
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASKS)]  # tyro lists and checks the names


def note(message: str) -> None:
    """Print a message to standard error. Control characters are escaped."""
    print(escape_control_characters(message, keep="\n"), file=sys.stderr)


def print_line(text: str) -> None:
    """Print a line to standard output. Control characters are escaped."""
    print(escape_control_characters(text))


def print_json(value: object) -> None:
    """Print one JSON object to standard output. Infinity and NaN become null."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name {error.object!r} is not UTF-8, which JSON requires; rename it") from None
    print(text)


def print_facts(facts: object, *lines: str, json: bool) -> None:
    """Print the result of a command: `facts` as one JSON object if `json`, else `lines` of text."""
    if json:
        print_json(facts)
    else:
        for line in lines:
            print_line(line)


class _EscapingConsole(Console):
    """Console that escapes control characters in printed text, because the text may come from files."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(escape_control_characters(text, keep="\n"), **options)


def tables() -> Console:
    """Return the console that prints tables to standard output, 120 columns wide if it is not a terminal."""
    return _EscapingConsole(width=None if sys.stdout.isatty() else 120, highlight=False)


def progress(items: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """Yield `items` and show a progress bar on standard error. `total` is the number of items, if known."""
    if isinstance(items, Sized) and not len(items):
        return
    with _bar() as bar:
        yield from bar.track(items, description=label, total=total)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; yield a function `update(done, total)` that sets the bar's numbers of items.

    The bar appears at the first call of `update`. The estimate of the remaining time ignores items that were
    done before that call.
    """
    bar = _bar()
    with ExitStack() as stack:

        def update(done: int, total: int) -> None:
            if not bar.task_ids:
                stack.enter_context(bar)
                bar.add_task(label, total=total, completed=done)
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield update


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


# -- scores ----------------------------------------------------------------------------------------------


def score_table(
    title: str,
    means: Mapping[str, float | int],
    intervals: Mapping[str, tuple[float, float]],
    columns: Mapping[str, Mapping[str, float | int]] | None = None,
    *,
    stds: Mapping[str, float] | None = None,
) -> Table:
    """Return a table of metrics with units, mean values and, if there are any, confidence intervals.

    `stds` are standard deviations of the means. `columns` maps the headings of further columns to values by
    metric.
    """
    table, columns, stds = Table(title=title), columns or {}, stds or {}
    for heading in ("metric", "value", *(["95 % interval"] if intervals else []), *columns):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for name, value in means.items():
        row = [metric_label(name), format_metric(name, value)]
        if name in stds and name != "n":
            row[1] += f" ± {format_metric(name, stds[name])}"
        if intervals:
            row.append(" .. ".join(format_metric(name, edge) for edge in intervals.get(name, ())))
        row += [format_metric(name, values[name]) if name in values else "-" for values in columns.values()]
        table.add_row(*row)
    return table


def metric_label(metric: str) -> str:
    """Return the name of a metric with its unit."""
    unit = " (m)" if metric in METRES else "" if metric in COUNTS else " (%)"
    return f"{metric}{unit}"


def format_metric(metric: str, value: float) -> str:
    """Return the value of a metric as text, in per cent, in metres or as a count."""
    if metric == "n":
        return f"{value:.0f}"
    return f"{value if metric in METRES | COUNTS else 100 * value:.2f}"
