"""Comparison of stored values with our own values, and the report of all comparisons."""

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
"""A value of a JSON file."""
T = TypeVar("T")
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions of computing with a record of the wrong structure."""


class ComparedQuantity(NamedTuple):
    """The comparison of one quantity of one file."""

    file: str
    quantity: str
    compared: int
    max_abs_diff: float
    """The largest difference; 1 where ids, counts or orders differ, inf where a number is missing."""
    tolerance: float
    ok: bool


class Skipped(NamedTuple):
    """A file that was not compared, or not completely, and the reason."""

    file: str
    reason: str


@dataclass
class VerificationReport:
    """The compared quantities of all files, and the files that were skipped."""

    rows: list[ComparedQuantity] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Fixture files that a comparison read: weights, inputs, settings."""

    @property
    def exit_code(self) -> int:
        """The exit code of the command.

        0: all values are equal; 1: a value is beyond tolerance; 3: a file was skipped, or none compared.
        """
        if not all(row.ok for row in self.rows):
            return 1
        return 3 if self.skipped or not self.rows else 0


class FileComparison:
    """Collects the differences between the stored values of one file and our values, by quantity."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.unknown: set[str] = set()
        """Keys of the file that this version does not know."""
        self.skipped: list[str] = []
        """Reasons why parts of the file were not compared."""
        self.used: set[str] = set()
        """Names of the files in the same folder that the comparison read: weights, inputs, settings."""
        self._found: dict[str, tuple[int, float, float]] = {}
        self._missing: list[str] = []

    def section(self, stored: Mapping[str, Json], key: str, kind: type[T]) -> T:
        """Return `stored[key]` as a `kind`.

        A missing or empty section is listed as missing. A section of another type counts as a difference.
        In these two cases the returned value is an empty `kind`.
        """
        if not stored.get(key):
            self.add_missing(key)
            return kind()
        try:
            return msgspec.convert(stored[key], kind)
        except msgspec.ValidationError:
            self._record(key, math.inf, 0.0)
            return kind()

    def add_distinct(self, quantity: str, values: Sequence[Json]) -> None:
        """Check that no value occurs twice."""
        self.add(f"{quantity} (distinct)", len({repr(value) for value in values}), len(values), 0.0)

    def add(self, quantity: str, stored: Json, ours: Json, tolerance: float) -> None:
        """Compare two values of the same structure.

        Floats in `ours` are compared within the tolerance; other values must be equal and of the same type.
        """
        if isinstance(ours, Mapping):
            stored = stored if isinstance(stored, Mapping) else {}
            self.unknown |= {f"{quantity}.{key}".lstrip(".") for key in stored if key not in ours}
            for key, value in ours.items():
                self.add(f"{quantity}.{key}".lstrip("."), stored.get(key), value, tolerance)
        elif isinstance(ours, Sequence) and not isinstance(ours, str):
            if not isinstance(stored, list) or len(stored) != len(ours):
                self._record(f"{quantity} (how many)", 1.0, 0.0)
            stored = stored if isinstance(stored, list) else []
            for theirs, value in zip(stored, ours, strict=False):
                self.add(quantity, theirs, value, tolerance)
        elif isinstance(ours, float):
            self._record(quantity, _absolute_difference(stored, ours), tolerance)
        else:
            self._record(quantity, float(stored != ours or type(stored) is not type(ours)), 0.0)

    def add_array(self, quantity: str, stored: ArrayLike, ours: ArrayLike, tolerance: float) -> None:
        """Compare two arrays elementwise; equal infinities do not differ, NaN always differs."""
        theirs, own = np.asarray(stored, dtype=np.float64), np.asarray(ours, dtype=np.float64)
        if theirs.shape != own.shape:
            self._record(f"{quantity} (shape)", 1.0, 0.0)
            return
        difference = np.full(own.shape, np.inf)
        finite = np.isfinite(theirs) & np.isfinite(own)
        difference[finite] = np.abs(theirs[finite] - own[finite])
        difference[theirs == own] = 0.0
        self._record(quantity, float(difference.max(initial=0.0)), tolerance, own.size)

    def add_relative(
        self, quantity: str, stored: Sequence[float], ours: Sequence[float], tolerance: float, *, floor: float
    ) -> None:
        """Compare two lists of numbers; differences are divided by max(|stored|, floor)."""
        theirs, own = np.asarray(stored, dtype=np.float64), np.asarray(ours, dtype=np.float64)
        if theirs.shape == own.shape:
            scale = np.maximum(np.abs(theirs), floor)
            theirs, own = theirs / scale, own / scale
        self.add_array(f"{quantity} (relative)", theirs, own, tolerance)

    def add_missing(self, key: str) -> None:
        """Report a key that the file should hold and does not hold."""
        if key not in self._missing:
            self._missing.append(key)

    def _record(self, quantity: str, difference: float, tolerance: float, count: int = 1) -> None:
        compared, largest, _ = self._found.get(quantity, (0, 0.0, tolerance))
        largest = difference if math.isnan(difference) else max(largest, difference)
        self._found[quantity] = (compared + count, largest, tolerance)

    def add_to(self, report: VerificationReport) -> None:
        """Append the compared quantities to a report, and the reasons why other parts were not compared."""
        for quantity, (compared, largest, tolerance) in self._found.items():
            report.rows.append(
                ComparedQuantity(self.file, quantity, compared, largest, tolerance, largest <= tolerance)
            )
        reasons = list(self.skipped)
        if self.unknown:
            reasons.append(f"unknown to this version, not compared: {', '.join(sorted(self.unknown))}")
        if self._missing:
            reasons.append(f"the file holds no {', '.join(self._missing)}")
        report.skipped += [Skipped(self.file, reason) for reason in reasons]


def _absolute_difference(stored: Json, ours: float) -> float:
    if isinstance(stored, bool) or not isinstance(stored, int | float):
        return math.inf
    try:
        return abs(stored - ours)
    except OverflowError:  # an integer larger than every float
        return math.inf


def value_or_error(compute: Callable[..., Json], *arguments: Any) -> Json:
    """Return `compute(*arguments)`; if the computation fails, return an error message instead.

    A stored value never equals such a message, so the failure counts as a difference.
    """
    try:
        return compute(*arguments)
    except EscemeError as error:
        return f"no value: {error}"
    except MALFORMED as error:
        return f"no value: the record is malformed ({error!r})"


def without(record: Json, inputs: Collection[str]) -> Json:
    """Return a record without the keys `inputs`: these values are not compared, but computed with."""
    return {key: value for key, value in record.items() if key not in inputs}
