"""The axes of a chart: how far along them a value lies, and which values are written beside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
"""What ticks may be apart, times a power of ten."""
LARGEST, SMALLEST = 1e100, 1e-100
"""Numbers beyond this are nothing that was measured, and ranges below it are none."""


class Tick(NamedTuple):
    """A value that is written beside an axis."""

    value: float
    label: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, and its ticks."""

    low: float
    high: float
    ticks: tuple[Tick, ...]

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1.

        >>> Axis(2.0, 4.0, ()).share(3.5)
        0.75
        """
        return (value - self.low) / (self.high - self.low)

    @classmethod
    def of_numbers(cls, values: Iterable[float], *, count: int = 6, whole: bool = False) -> Axis:
        """An axis of the finite ones among `values`, with about `count` ticks at round numbers.

        It ends where they do, or with `whole` at the ticks beyond them; whole numbers have no ticks between.

        >>> [tick.label for tick in Axis.of_numbers([0.31, 0.72], whole=True).ticks]
        ['0.3', '0.4', '0.5', '0.6', '0.7', '0.8']
        """
        drawn = [value for value in values if is_measured(value)]
        low, high = _range(drawn)
        step = _step((high - low) / max(1, count - 1), counted=all(value == int(value) for value in drawn))
        first, last = low / step, high / step
        if whole:
            first, last = math.floor(first + 1e-9), math.ceil(last - 1e-9)
            low, high = first * step, last * step
        places = [number * step for number in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1)]
        return cls(low, high, tuple(Tick(place, written(place, step)) for place in places))

    @classmethod
    def of_names(cls, names: Sequence[str]) -> Axis:
        """An axis of names in equal distances, at 0, 1, 2 and so on."""
        return cls(-0.5, max(1, len(names)) - 0.5, tuple(Tick(at, name) for at, name in enumerate(names)))


def is_measured(value: float) -> bool:
    """Whether a value can be drawn: neither nan nor without end."""
    return math.isfinite(value) and abs(value) < LARGEST


def written(value: float, step: float) -> str:
    """A value with as many digits as it takes to tell it from others a step away.

    >>> written(0.5, 0.25), written(20000, 5000), written(-0.0, 1), written(3e-5, 1e-5)
    ('0.50', '20 000', '0', '3e-05')
    """
    if step < 1e-4 or abs(value) >= 1e9:
        return f"{round(value / step) * step:.4g}"
    digits = max(0, math.ceil(-math.log10(step) - 1e-9))
    digits += f"{step:.3e}".startswith("2.5") and step < 10
    return f"{value:,.{digits}f}".replace(",", " ").removeprefix("-" if not round(value / step) else "")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest value; something around them where they are the same, or there is none."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low > max(SMALLEST, 1e-9 * max(abs(low), abs(high))):
        return low, high
    around = abs(low) / 10 or 1.0
    return low - around, high + around


def _step(least: float, *, counted: bool) -> float:
    """The round number that is not below `least`; a whole one for things that are counted."""
    if counted and least <= 1:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    steps = (step * power for step in STEPS if step * power >= least * (1 - 1e-9))
    return next(step for step in steps if not counted or step == int(step))
