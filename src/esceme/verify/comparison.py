"""Comparison of the values in reference files with the values that our code computes, and the report.

The values in a reference file are called stored. A quantity is a named group of values, for example all
rewards of a file. Each quantity is one row of the report.
"""

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
"""Any value that a JSON file can hold."""
T = TypeVar("T")
MALFORMED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions that computing with a record of the wrong structure raises."""


class ComparedQuantity(NamedTuple):
    """Result of comparing one quantity (a named group of values) of one reference file."""

    file: str
    quantity: str
    compared: int
    max_abs_diff: float
    """Largest absolute difference; 1 if ids, counts or orders differ, and inf if a number is missing."""
    tolerance: float
    ok: bool


class Skipped(NamedTuple):
    """Reference file that was not compared, or not completely, and the reason."""

    file: str
    reason: str


@dataclass
class VerificationReport:
    """Result of comparing a folder: one row per compared quantity, and the skipped files."""

    rows: list[ComparedQuantity] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    """Names of the files whose content was needed to compute our values: weights, inputs and settings."""

    @property
    def exit_code(self) -> int:
        """Exit code of the command `esceme verify`.

        0: all values are equal within tolerance; 1: a difference exceeds its tolerance; 3: a file was skipped
        or no file was compared.
        """
        if not all(row.ok for row in self.rows):
            return 1
        return 3 if self.skipped or not self.rows else 0


class FileComparison:
    """Collects, for one reference file, the differences between its values and ours, by quantity."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.unknown: set[str] = set()
        """Names of keys in the file that our code does not know and therefore did not compare."""
        self.skipped: list[str] = []
        """Reasons why parts of the file were not compared."""
        self.used: set[str] = set()
        """Names of the files in the same folder that the comparison read: weights, inputs and settings."""
        self._found: dict[str, tuple[int, float, float]] = {}
        self._missing: list[str] = []

    def section(self, stored: Mapping[str, Json], key: str, kind: type[T]) -> T:
        """Return `stored[key]`, converted to the type `kind` (a list or dict).

        If the key is missing or its value is empty, the report lists the key as missing. A value of another
        type counts as a difference. In both cases an empty `kind` is returned.
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
        """Record a difference if a value occurs twice in `values`."""
        self.add(f"{quantity} (distinct)", len({repr(value) for value in values}), len(values), 0.0)

    def add(self, quantity: str, stored: Json, ours: Json, tolerance: float) -> None:
        """Compare a value of the reference file with our value; record the difference as `quantity`.

        Dicts and lists are compared item by item. Floats in `ours` are compared within `tolerance`. All other
        values must be equal and of the same type.
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
        """Compare two arrays elementwise. Equal infinities count as equal, NaN always as different."""
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
        """Compare two lists of numbers. The difference of two numbers is divided by max(|stored|, floor)."""
        theirs, own = np.asarray(stored, dtype=np.float64), np.asarray(ours, dtype=np.float64)
        if theirs.shape == own.shape:
            scale = np.maximum(np.abs(theirs), floor)
            theirs, own = theirs / scale, own / scale
        self.add_array(f"{quantity} (relative)", theirs, own, tolerance)

    def add_missing(self, key: str) -> None:
        """Record that the file lacks a key that it should hold."""
        if key not in self._missing:
            self._missing.append(key)

    def _record(self, quantity: str, difference: float, tolerance: float, count: int = 1) -> None:
        compared, largest, _ = self._found.get(quantity, (0, 0.0, tolerance))
        largest = difference if math.isnan(difference) else max(largest, difference)
        self._found[quantity] = (compared + count, largest, tolerance)

    def add_to(self, report: VerificationReport) -> None:
        """Append the compared quantities to `report`, and the reasons why parts were not compared."""
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

    No value in a reference file equals such a message, so that a failure counts as a difference.
    """
    try:
        return compute(*arguments)
    except EscemeError as error:
        return f"no value: {error}"
    except MALFORMED as error:
        return f"no value: the record is malformed ({error!r})"


def without(record: Json, names: Collection[str]) -> Json:
    """Return a copy of the JSON object `record` without the fields in `names`.

    The fields that are left out are inputs: our code reads them and does not compute them.
    """
    return {key: value for key, value in record.items() if key not in names}
