"""The log of a training run: json lines and TensorBoard events, cut back to where the run resumes."""

from __future__ import annotations

import fcntl
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsFloat, TypeAlias

import msgspec

from esceme.errors import DataError
from esceme.evaluation.journal import whole_lines
from esceme.files import read_bytes

Kind = Literal["train", "validation", "note"]
Value: TypeAlias = "float | str | None | Sequence[Value] | Mapping[str, Value]"
"""What a line can hold: numbers and words, and lists and tables of them."""
FILE, EVENTS = "log.jsonl", "tensorboard"
"""What is written to the folder of a run: a file and a folder."""


def _say_nothing(message: str) -> None:
    """For those who do not listen."""


class TrainingLog:
    """A file that grows by a line per report of a run, and the same numbers as TensorBoard events.

    Every line is a json object with its `kind`, its `iteration` and the values reported, and is on its way to
    the disk before `write` returns. A run that resumes repeats the iterations after its last checkpoint:
    `after` is the iteration of that checkpoint, and the log goes on as if those after it had never been; what
    belongs to an iteration is therefore written before its checkpoint is. With `after=0` the log begins anew.
    """

    def __init__(
        self,
        folder: Path,
        *,
        after: int = 0,
        tensorboard: bool = True,
        note: Callable[[str], None] = _say_nothing,
    ) -> None:
        """Begin the log of a run, or go on with it; `note` is told where TensorBoard is not installed.

        Raises `DataError` where the log cannot be written, is not a log, or another run is writing it.
        """
        self._path = folder / FILE
        self._events: _Events | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
        except OSError as error:
            raise _fault(self._path, error) from None
        try:
            self._cut(after)
            if tensorboard:
                self._events = _Events.open(folder / EVENTS, after, note)
        except BaseException:
            self._file.close()
            raise

    def _cut(self, after: int) -> None:
        """Remove what was reported after an iteration, and a line that a kill has torn."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = 0
            for line, entry in _entries(self._path) if after else ():
                if entry["iteration"] > after:
                    break
                kept += len(line)
            self._file.truncate(kept)
        except BlockingIOError:
            raise DataError(f"{self._path}: another training is writing it just now; let it finish") from None
        except OSError as error:
            raise _fault(self._path, error) from None

    def write(self, kind: Kind, iteration: int, **values: Value) -> None:
        """Report values of an iteration; in the file, numbers that json cannot hold (inf, nan) are words.

        TensorBoard gets the numbers as `kind/name`, those of a table as `kind/table/name`.
        """
        entry = {
            "kind": kind,
            "iteration": iteration,
            **{name: _plain(each) for name, each in values.items()},
        }
        try:
            data = msgspec.json.encode(entry) + b"\n"
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise _fault(self._path, error) from None
        if self._events is not None:
            self._events.write(iteration, dict(_numbers(kind, values)))

    def close(self) -> None:
        """End writing."""
        self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, each with its `kind` and `iteration`; one that a kill has torn does not count.

    Raises `DataError` where there is no such file, or it is not a log.
    """
    read_bytes(path)
    return [entry for _, entry in _entries(path)]


class _Head(msgspec.Struct):
    """What every line has."""

    kind: str
    iteration: int


def _entries(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The whole lines of a log, as they are in the file and as they read."""
    for count, line in enumerate(whole_lines(path), 1):
        try:
            msgspec.json.decode(line, type=_Head)
            yield line, msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}: line {count}: not of the log of a training ({error}); move it away"
            ) from None


def _plain(value: object) -> object:
    """A value as json can hold it.

    >>> _plain({"loss": math.inf, "steps": 3, "losses": (0.5, math.nan)})
    {'loss': 'inf', 'steps': 3, 'losses': [0.5, 'nan']}
    """
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, SupportsFloat):
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def _numbers(place: str, values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """The numbers among values, and in tables among them, with the names TensorBoard groups them by.

    >>> list(_numbers("validation", {"best": True, "house": {"spl": 0.5, "steps": [4, 6]}, "rate": 1e-5}))
    [('validation/house/spl', 0.5), ('validation/rate', 1e-05)]
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{place}/{name}", value)
        elif isinstance(value, SupportsFloat) and not isinstance(value, bool):
            yield f"{place}/{name}", float(value)


class _Events:
    """A file of TensorBoard events.

    Torch's own writer leaves writing to a thread, where a full disk is a traceback; here it is an error.
    """

    def __init__(self, folder: Path, after: int) -> None:
        """A new file beside those of earlier beginnings, whose events after an iteration it hides.

        Raises `ImportError` where TensorBoard is not installed.
        """
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder = folder
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        try:
            folder.mkdir(exist_ok=True)
            self._file = (folder / f"events.out.tfevents.{time.time_ns()}").open("xb")
        except OSError as error:
            raise _fault(folder, error) from None
        self._records = RecordWriter(self._file)
        begun = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(file_version="brain.Event:2")
        self._add(step=after + 1 if after else 0, session_log=begun)

    @classmethod
    def open(cls, folder: Path, after: int, note: Callable[[str], None]) -> _Events | None:
        """The events of a run; None, and a note, where TensorBoard is not installed."""
        try:
            return cls(folder, after)
        except ImportError as error:
            note(f"no TensorBoard events are written ({error}); pip install 'esceme[tensorboard]' for them")
            return None

    def write(self, iteration: int, numbers: Mapping[str, float]) -> None:
        """Numbers of an iteration, by name."""
        values = [self._summary.Value(tag=name, simple_value=each) for name, each in numbers.items()]
        if values:
            self._add(step=iteration, summary=self._summary(value=values))

    def _add(self, **content: Any) -> None:
        try:
            self._records.write(self._event(wall_time=time.time(), **content).SerializeToString())
            self._file.flush()
        except OSError as error:
            self.close()
            raise _fault(self._folder, error) from None

    def close(self) -> None:
        """End writing; what could not be written has been reported already."""
        with suppress(OSError):
            self._file.close()


def _fault(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be written ({error.strerror or error})")
