"""Comparing stored values with our own, leaf by leaf, and the report of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from esceme.errors import DataError, EscemeError

Json = Any
"""Whatever a json file may hold."""


class Row(NamedTuple):
    """One quantity of one file, compared."""

    file: str
    quantity: str
    compared: int
    max_abs_diff: float
    """The largest difference; for ids, counts and orders 1 where any differs."""
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

    def add(self, quantity: str, stored: Json, ours: Json, tolerance: float) -> None:
        """Compare two values of the same structure; our type decides how."""
        if isinstance(ours, Mapping):
            stored = stored if isinstance(stored, Mapping) else {}
            self.unknown |= {f"{quantity}.{key}".lstrip(".") for key in stored if key not in ours}
            for key, value in ours.items():
                self.add(f"{quantity}.{key}".lstrip("."), stored.get(key), value, tolerance)
        elif isinstance(ours, Sequence) and not isinstance(ours, str):
            stored = stored if isinstance(stored, list) else []
            if len(stored) != len(ours):
                self._note(f"{quantity} (how many)", 1.0, 0.0)
            for theirs, value in zip(stored, ours, strict=False):
                self.add(quantity, theirs, value, tolerance)
        elif isinstance(ours, float):
            number = isinstance(stored, int | float) and not isinstance(stored, bool)
            self._note(quantity, abs(stored - ours) if number else math.inf, tolerance)
        else:
            self._note(quantity, float(stored != ours or type(stored) is not type(ours)), 0.0)

    def _note(self, quantity: str, difference: float, tolerance: float) -> None:
        compared, largest, _ = self._found.get(quantity, (0, 0.0, tolerance))
        largest = difference if math.isnan(difference) else max(largest, difference)
        self._found[quantity] = (compared + 1, largest, tolerance)

    def add_to(self, report: Report) -> None:
        """Put what was found into a report."""
        for quantity, (compared, largest, tolerance) in self._found.items():
            report.rows.append(Row(self.file, quantity, compared, largest, tolerance, largest <= tolerance))
        if self.unknown:
            names = ", ".join(sorted(self.unknown))
            report.skipped.append(Skipped(self.file, f"unknown to this version, not compared: {names}"))


def or_fault(make: Callable[..., Json], *given: Any) -> Json:
    """Our value, or the message of why there is none: which then differs from whatever is stored."""
    try:
        return make(*given)
    except EscemeError as error:
        return f"no value: {error}"
    except (KeyError, TypeError) as error:
        return f"no value: the record is malformed ({error!r})"


def records_of(stored: Json, key: str) -> list[Json]:
    """The list of records under `key`; none where the key is missing."""
    records = stored.get(key, [])
    if not isinstance(records, list) or not all(isinstance(each, dict) for each in records):
        raise DataError(f"'{key}' is not a list of records")
    return records


def outputs_of(record: Json, inputs: Collection[str]) -> Json:
    """A record without what it was computed from: comparing that with itself would show nothing."""
    return {key: value for key, value in record.items() if key not in inputs}
