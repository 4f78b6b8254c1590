"""The log of a training run: a file of JSON lines, and the same numbers as TensorBoard events."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import msgspec

from esceme.errors import DataError
from esceme.files import JsonLinesWriter, read_json_lines

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

LineKind = Literal["train", "validation"]
LogValues: TypeAlias = "Mapping[str, float | LogValues]"
"""Numbers by name. A value may also be a nested mapping, such as the scores of one split."""
LOG_FILE, EVENTS_FOLDER = "log.jsonl", "tensorboard"
"""Names of the log file and of the folder of TensorBoard events in a run folder."""


class TrainingLog:
    """Writer of a training log: one line of `log.jsonl` per call, one TensorBoard event per number.

    A line is a JSON object with `kind`, `iteration` and the values. When `write` returns, lines and events
    have been passed to the operating system. `after` is the iteration of the checkpoint from which a run
    resumes; 0 starts an empty log. The run repeats later iterations. Their lines are therefore removed, and
    TensorBoard hides their events.
    """

    def __init__(
        self, folder: Path, *, after: int = 0, note: Callable[[str], None] = lambda message: None
    ) -> None:
        """Open the log of a run folder, whose lock must be held.

        `note` receives a message if TensorBoard is not installed. Raise `DataError` if the log cannot be
        written or has lines of another structure.
        """
        path = folder / LOG_FILE
        heads = read_json_lines(path, _LineHead) if after and path.exists() else []
        first_repeated = (index for index, head in enumerate(heads) if head.iteration > after)
        self._lines = JsonLinesWriter(path, keep=next(first_repeated, len(heads)))
        self._events_folder = folder / EVENTS_FOLDER
        self._events: SummaryWriter | None = None
        try:
            self._events = _open_events(self._events_folder, after, note)
        except OSError as error:
            self._lines.close()
            raise self._events_not_writable_error(error) from None

    def write(self, kind: LineKind, iteration: int, values: LogValues) -> None:
        """Append the values of an iteration. In `log.jsonl`, inf and nan become strings, as JSON requires.

        The TensorBoard tag of a number is `kind/name`, or `kind/table/name` in a nested mapping.
        """
        self._lines.write({"kind": kind, "iteration": iteration, **_json_values(values)})
        if self._events is not None:
            try:
                for tag, number in _tagged_numbers(kind, values):
                    self._events.add_scalar(tag, number, iteration)
                self._events.flush()
            except OSError as error:
                raise self._events_not_writable_error(error) from None

    def close(self) -> None:
        """Close the log and the TensorBoard file."""
        self._lines.close()
        if self._events is not None:
            with suppress(OSError):  # `write` has raised it
                self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _events_not_writable_error(self, error: OSError) -> DataError:
        return DataError(f"{self._events_folder}: cannot be written ({error.strerror or error})")


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log as dicts, each with `kind` and `iteration`. Skip an unfinished last line.

    Raise `DataError` if the file does not exist, or if a line is not such a dict.
    """
    read_json_lines(path, _LineHead)
    return read_json_lines(path, dict[str, Any])


class _LineHead(msgspec.Struct):
    """Fields that every line of a log has."""

    kind: str
    iteration: Annotated[int, msgspec.Meta(ge=0)]


def _open_events(folder: Path, after: int, note: Callable[[str], None]) -> SummaryWriter | None:
    """Open a new event file that hides events after iteration `after`; return None without TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        note(f"no TensorBoard events are written ({error}); pip install 'esceme[tensorboard]' for them")
        return None
    return SummaryWriter(folder, purge_step=after + 1 if after else 0)


def _json_values(values: LogValues) -> dict[str, Any]:
    """Return the values with inf and nan replaced by strings.

    >>> _json_values({"loss": math.inf, "val_unseen": {"spl": 0.5, "gp": math.nan}})
    {'loss': 'inf', 'val_unseen': {'spl': 0.5, 'gp': 'nan'}}
    """
    return {
        name: _json_values(value)
        if isinstance(value, Mapping)
        else (value if math.isfinite(value) else str(value))
        for name, value in values.items()
    }


def _tagged_numbers(prefix: str, values: LogValues) -> Iterator[tuple[str, float]]:
    """Yield the TensorBoard tag and the value of every number.

    >>> list(_tagged_numbers("validation", {"val_unseen": {"spl": 0.5}, "rate": 1e-5}))
    [('validation/val_unseen/spl', 0.5), ('validation/rate', 1e-05)]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _tagged_numbers(f"{prefix}/{name}", value)
        else:
            yield f"{prefix}/{name}", value
