"""Conversion of arguments. `TypeError` is raised for values that the compiled simulator refuses as well."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import index
from typing import Any

INT_LIMIT = 2**31
UNSIGNED_LIMIT = 2**32


def is_sequence(value: Any) -> bool:
    """Return whether `value` is a list, a tuple, an array or a similar type; texts and sets are not."""
    return hasattr(type(value), "__getitem__") and not isinstance(value, str | bytes | dict)


def as_flag(value: Any) -> bool:
    """Convert an argument to a bool; None is False."""
    if value is not None and not hasattr(type(value), "__bool__"):
        raise TypeError(f"expected True or False, found {value!r}")
    return bool(value)


def as_int(value: Any, *, unsigned: bool = False) -> int:
    """Convert an argument to an integer of 32 bits; with `unsigned`, it must not be negative."""
    low, high = (0, UNSIGNED_LIMIT) if unsigned else (-INT_LIMIT, INT_LIMIT)
    if not low <= index(value) < high:
        raise TypeError(f"expected an integer from {low} to {high - 1}, found {value}")
    return index(value)


def as_float(value: Any) -> float:
    """Convert an argument to a float; texts are refused."""
    return array("d", [value])[0]


def as_text(value: Any) -> str:
    """Convert an argument to a text; bytes are decoded."""
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"expected a str, found {type(value).__name__}")
    return str(value)


def as_floats(values: Any) -> Sequence[float]:
    """Convert an argument to a sequence of floats."""
    return array("d", _require_sequence(values))


def as_indices(values: Any) -> Sequence[int]:
    """Convert an argument to a sequence of indices, which must not be negative."""
    try:
        return array("I", _require_sequence(values))
    except OverflowError:
        raise TypeError(f"expected indices from 0 to {UNSIGNED_LIMIT - 1}, found {values}") from None


def as_texts(values: Any) -> list[str]:
    """Convert an argument to a list of texts."""
    return [as_text(value) for value in _require_sequence(values)]


def _require_sequence(values: Any) -> Any:
    if not is_sequence(values):
        raise TypeError(f"expected a list with one entry per environment, found {values!r}")
    return values
