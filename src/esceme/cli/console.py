"""What the commands share in talking to people: progress and notes on standard error, results on output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from esceme.errors import DataError

T = TypeVar("T")


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
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield from bar.track(items, description=label, total=total)
