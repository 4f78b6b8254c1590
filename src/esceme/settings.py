"""Types of settings with their ranges, and the check that config dataclasses make when they are built."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from esceme.errors import ConfigError

LARGEST = 1e31
"""Bound of every float setting; products with larger numbers overflow single precision."""
COMPARISONS = {">=": "at least", ">": "a number above", "<=": "at most", "<": "a number below"}

Size: TypeAlias = Annotated[int, Meta(ge=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0, le=LARGEST)]
NonNegative: TypeAlias = Annotated[float, Meta(ge=0, le=LARGEST)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
DropoutRate: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]


def check_settings(config: Any) -> None:
    """Raise `ConfigError` if a field of a dataclass has a value that its annotation does not admit.

    Fields that are dataclasses are not checked again: they were checked when they were built.
    """
    types = get_type_hints(type(config), include_extras=True)
    for name in (field.name for field in fields(config)):
        value = getattr(config, name)
        if is_dataclass(value):
            continue
        try:
            msgspec.convert(value, types[name])
        except msgspec.ValidationError as error:
            raise ConfigError(f"{name}: {_expectation(types[name], error)}, found {value!r}") from None


def _expectation(kind: Any, error: msgspec.ValidationError) -> str:
    """Return a text about the values that a type admits, from msgspec's message about a wrong value."""
    if get_origin(kind) is Literal:
        return f"expected one of {', '.join(get_args(kind))}"
    text = str(error).partition(", got ")[0].partition(" - at ")[0].replace("`", "")
    for comparison, words in COMPARISONS.items():
        text = re.sub(rf"\w+ {comparison} (\S+?)(\.0)?$", rf"{words} \1", text)
    return text[:1].lower() + text[1:]
