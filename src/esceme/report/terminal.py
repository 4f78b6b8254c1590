"""Curves as text, for a terminal: bars by group, or a row of rising and falling blocks for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from esceme.report.axes import is_measured, written
from esceme.report.curves import Curve, names_of

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉"
GROUPS = 12
"""Places up to which each gets a row."""
MISSING = "–"


def text_curve(series: Sequence[Curve], *, width: int = 60) -> str:
    """Curves as lines of text, about `width` letters wide.

    Curves over names, or over a few numbers, get a row for each of these, with a bar and the value of every
    curve; bars begin at zero, or at the least value if that is negative. Curves over many numbers get a row
    each: means along the way, all at one scale, and the first and the last value.

    >>> print(text_curve([Curve(name="memory", xs=["1", "2-5"], ys=[20.0, 40.0])], width=25))
         memory
    1    ███████         20.0
    2-5  ██████████████  40.0
    """
    names = names_of(series)
    places = sorted({float(x) for curve in series for x in curve.xs}) if names is None else names
    few = names is not None or len(places) <= GROUPS
    return _bars(series, places, width) if few else _sparks(series, width)


def _bars(series: Sequence[Curve], places: Sequence[float] | Sequence[str], width: int) -> str:
    """A row per place: its label, and a bar and a value for each curve."""
    values = [value for curve in series for value in curve.ys if is_measured(value)]
    lowest, highest, step = min([0.0, *values]), max([0.0, *values]), _precision(values)
    labels = [place if isinstance(place, str) else f"{place:g}" for place in places]
    margin = max(map(len, labels), default=0)
    digits = max(len(written(value, step)) for value in [*values, 0.0])
    column = max(digits, (width - margin) // max(1, len(series)) - 2)
    longest = max(0, column - digits - 2)

    def cell(value: float) -> str:
        if not is_measured(value):
            return MISSING.rjust(column)
        bar = _bar((value - lowest) / ((highest - lowest) or 1), longest)
        return bar + written(value, step).rjust(column - longest)

    found = [dict(zip(curve.xs, curve.ys, strict=True)) for curve in series]
    rows = [["", *(_cut(curve.name, column).ljust(column) for curve in series)]]
    rows += [
        [label, *(cell(values_at.get(place, math.nan)) for values_at in found)]
        for label, place in zip(labels, places, strict=True)
    ]
    return "\n".join("  ".join([row[0].ljust(margin), *row[1:]]).rstrip() for row in rows)


def _bar(share: float, longest: int) -> str:
    """A bar of a share of so many letters, to an eighth of a letter.

    >>> _bar(0.5, 3), _bar(1.0, 3)
    ('█▌ ', '███')
    """
    whole, part = divmod(round(8 * share * longest), 8)
    return ("█" * whole + EIGHTHS[part])[:longest].ljust(longest)


def _sparks(series: Sequence[Curve], width: int) -> str:
    """A row per curve, and below them from where to where they lead."""
    places = [float(x) for curve in series for x in curve.xs]
    first, last = min(places), max(places)
    step = _precision([value for curve in series for value in curve.ys if is_measured(value)])
    ends = [_ends(curve.ys, step) for curve in series]
    margin = min(max(len(curve.name) for curve in series), width // 3)
    columns = max(8, width - margin - max(map(len, ends)) - 4)
    means = [_means(curve, first, last, columns) for curve in series]
    known = [mean for row in means for mean in row if is_measured(mean)]
    lines = [
        f"{_cut(curve.name, margin).ljust(margin)}  {_blocks(row, known)}  {end}"
        for curve, row, end in zip(series, means, ends, strict=True)
    ]
    below = f"{first:g}{f'{last:g}'.rjust(columns - len(f'{first:g}'))}"
    return "\n".join([*lines, f"{' ' * margin}  {below}"])


def _means(curve: Curve, first: float, last: float, columns: int) -> list[float]:
    """The mean of the values above each of so many equal parts of the way; nan where there is none."""
    parts: list[list[float]] = [[] for _ in range(columns)]
    for x, y in zip(map(float, curve.xs), curve.ys, strict=True):
        if is_measured(y):
            parts[min(columns - 1, int(columns * (x - first) / (last - first)))].append(y)
    return [sum(part) / len(part) if part else math.nan for part in parts]


def _blocks(means: Sequence[float], known: Sequence[float]) -> str:
    """A block as high as each mean is among all that are known.

    >>> _blocks([0.0, 3.0, math.nan, 7.0], [0.0, 7.0])
    '▁▄ █'
    """
    lowest, highest = min(known, default=0.0), max(known, default=0.0)
    top = (len(LEVELS) - 1) / ((highest - lowest) or 1)
    return "".join(LEVELS[round(top * (mean - lowest))] if is_measured(mean) else " " for mean in means)


def _ends(values: Sequence[float], step: float) -> str:
    seen = [value for value in values if is_measured(value)]
    return f"{written(seen[0], step)} → {written(seen[-1], step)}" if seen else MISSING


def _precision(values: Sequence[float]) -> float:
    """What three digits of the greatest value tell apart."""
    greatest = max(map(abs, values), default=0.0)
    return float(10.0 ** (math.floor(math.log10(greatest)) - 2)) if greatest > 1e-90 else 1.0


def _cut(text: str, width: int) -> str:
    """Text that is no longer than `width`, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 1]}…"
