"""Comparing stored values with our own, leaf by leaf, and the report of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from esceme.errors import EscemeError

Json = Any
"""Whatever a json file may hold."""
T = TypeVar("T")
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""What computing from a record raises that has not got the structure it should have."""


class Row(NamedTuple):
    """One quantity of one file, compared."""

    file: str
    quantity: str
    compared: int
    max_abs_diff: float
    """The largest difference; 1 where ids, counts or orders differ, inf where a number is missing."""
    tolerance: float
    ok: bool


class Skipped(NamedTuple):
    """Something that was not compared, and why."""

    file: str
    reason: str


@dataclass
class Report:
    """What a verification found."""

    rows: list[Row] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Files that others were compared with the help of: weights, inputs, settings."""

    @property
    def exit_code(self) -> int:
        """0 all compared and alike, 1 beyond tolerance, 3 something skipped or nothing compared."""
        if not all(row.ok for row in self.rows):
            return 1
        return 3 if self.skipped or not self.rows else 0


class Comparison:
    """Differences between stored and own values of one file, gathered by quantity."""

    def __init__(self, file: str) -> None:
        """Begin with nothing compared."""
        self.file = file
        self._found: dict[str, tuple[int, float, float]] = {}
        self.unknown: set[str] = set()
        self._lacking: list[str] = []

    def section(self, stored: Mapping[str, Json], key: str, kind: type[T]) -> T:
        """What a file holds under `key`; where that is nothing, or nothing of this kind, it is said."""
        if not stored.get(key):
            self._lacking.append(key)
            return kind()
        try:
            return msgspec.convert(stored[key], kind)
        except msgspec.ValidationError:
            self._note(key, math.inf, 0.0)
            return kind()

    def add_distinct(self, quantity: str, values: Sequence[Json]) -> None:
        """Compare how many different values there are with how many there should be: none occurs twice."""
        self.add(f"{quantity} (distinct)", len({repr(value) for value in values}), len(values), 0.0)

    def add(self, quantity: str, stored: Json, ours: Json, tolerance: float) -> None:
        """Compare two values of the same structure; our type decides how."""
        if isinstance(ours, Mapping):
            stored = stored if isinstance(stored, Mapping) else {}
            self.unknown |= {f"{quantity}.{key}".lstrip(".") for key in stored if key not in ours}
            for key, value in ours.items():
                self.add(f"{quantity}.{key}".lstrip("."), stored.get(key), value, tolerance)
        elif isinstance(ours, Sequence) and not isinstance(ours, str):
            if not isinstance(stored, list) or len(stored) != len(ours):
                self._note(f"{quantity} (how many)", 1.0, 0.0)
            stored = stored if isinstance(stored, list) else []
            for theirs, value in zip(stored, ours, strict=False):
                self.add(quantity, theirs, value, tolerance)
        elif isinstance(ours, float):
            self._note(quantity, _difference(stored, ours), tolerance)
        else:
            self._note(quantity, float(stored != ours or type(stored) is not type(ours)), 0.0)

    def add_array(self, quantity: str, stored: ArrayLike, ours: ArrayLike, tolerance: float) -> None:
        """Compare two arrays number by number; the same infinity is no difference, NaN always is."""
        theirs, own = np.asarray(stored, dtype=np.float64), np.asarray(ours, dtype=np.float64)
        if theirs.shape != own.shape:
            self._note(f"{quantity} (shape)", 1.0, 0.0)
            return
        apart = np.full(own.shape, np.inf)
        finite = np.isfinite(theirs) & np.isfinite(own)
        apart[finite] = np.abs(theirs[finite] - own[finite])
        apart[theirs == own] = 0.0
        self._note(quantity, float(apart.max(initial=0.0)), tolerance, own.size)

    def add_relative(
        self, quantity: str, stored: Sequence[float], ours: Sequence[float], tolerance: float, *, least: float
    ) -> None:
        """Compare two rows of numbers by their differences in proportion to what is stored, or to `least`."""
        theirs, own = np.asarray(stored, dtype=np.float64), np.asarray(ours, dtype=np.float64)
        if theirs.shape == own.shape:
            scale = np.maximum(np.abs(theirs), least)
            theirs, own = theirs / scale, own / scale
        self.add_array(f"{quantity} (relative)", theirs, own, tolerance)

    def lack(self, what: str) -> None:
        """Say that a file does not hold what it should, so that it was not compared."""
        if what not in self._lacking:
            self._lacking.append(what)

    def _note(self, quantity: str, difference: float, tolerance: float, count: int = 1) -> None:
        compared, largest, _ = self._found.get(quantity, (0, 0.0, tolerance))
        largest = difference if math.isnan(difference) else max(largest, difference)
        self._found[quantity] = (compared + count, largest, tolerance)

    def add_to(self, report: Report) -> None:
        """Put what was found into a report, and say what was not compared."""
        for quantity, (compared, largest, tolerance) in self._found.items():
            report.rows.append(Row(self.file, quantity, compared, largest, tolerance, largest <= tolerance))
        if self.unknown:
            names = ", ".join(sorted(self.unknown))
            report.skipped.append(Skipped(self.file, f"unknown to this version, not compared: {names}"))
        if self._lacking:
            report.skipped.append(Skipped(self.file, f"the file holds no {', '.join(self._lacking)}"))


def _difference(stored: Json, ours: float) -> float:
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return math.inf
    try:
        return abs(stored - ours)
    except OverflowError:  # an integer beyond every float
        return math.inf


def or_fault(make: Callable[..., Json], *given: Any) -> Json:
    """Our value, or the message of why there is none: which then differs from whatever is stored."""
    try:
        return make(*given)
    except EscemeError as error:
        return f"no value: {error}"
    except MALFORMED as error:
        return f"no value: the record is malformed ({error!r})"


def outputs_of(record: Json, inputs: Collection[str]) -> Json:
    """A record without what it was computed from: comparing that with itself would show nothing."""
    return {key: value for key, value in record.items() if key not in inputs}
