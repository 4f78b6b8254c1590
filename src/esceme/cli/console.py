"""What the commands share in talking to people: progress and notes on standard error, results on output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from esceme.errors import DataError
from esceme.tasks.catalogue import TASKS

T = TypeVar("T")
METRES = {"tl", "ne", "gp"}
COUNTS = {"steps", "n"}
if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[tuple(TASKS)]  # so that commands list and check them


def note(message: str) -> None:
    """Tell the person at the terminal something, on standard error."""
    print(message, file=sys.stderr)


def print_json(value: object) -> None:
    """One json object, alone on standard output; numbers that json cannot hold (inf, nan) become null."""
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise DataError(f"the name {error.object!r} is not UTF-8, as json has to be; rename it") from None
    print(text)


def tables() -> Console:
    """Where result tables go: standard output, wide enough for a file when it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def progress(items: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """Iterate with a bar, a count and the time left on standard error."""
    if isinstance(items, Sized) and not len(items):
        return
    with _bar() as bar:
        yield from bar.track(items, description=label, total=total)


@contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """Someone to tell how much is done, and of how much: the same bar, for work that counts itself.

    The bar begins when first told; what is done by then does not go into the estimate of the time left.
    """
    bar = _bar()
    with ExitStack() as stack:

        def tell(done: int, total: int) -> None:
            if not bar.task_ids:
                stack.enter_context(bar)
                bar.add_task(label, total=total, completed=done)
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield tell


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
    title: str, means: Mapping[str, float | int], intervals: Mapping[str, tuple[float, float]]
) -> Table:
    """Measures with their units, and with intervals where there are some."""
    table = Table(title=title)
    for heading in ("measure", "value", *(["95 % interval"] if intervals else [])):
        table.add_column(heading, justify="left" if heading == "measure" else "right")
    for name, value in means.items():
        row = [label_of(name), shown(name, value)]
        if name in intervals:
            row.append(" .. ".join(shown(name, edge) for edge in intervals[name]))
        table.add_row(*row)
    return table


def label_of(measure: str) -> str:
    """A measure with its unit."""
    unit = " (m)" if measure in METRES else "" if measure in COUNTS else " (%)"
    return f"{measure}{unit}"


def shown(measure: str, value: float) -> str:
    """The value of a measure: per cent, metres or a count."""
    if measure == "n":
        return f"{value:.0f}"
    return f"{value if measure in METRES | COUNTS else 100 * value:.2f}"
