"""Line charts with confidence bands, drawn with matplotlib as SVG, PDF or PNG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.files import atomic_open
from esceme.report.svg import one_line, shorten_text, text_width, wrap_text

if TYPE_CHECKING:  # loading matplotlib takes longer than most commands
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 6.8, 3.9
"""Size of a chart in inches."""
MAX_MARKERS, MAX_POINTS = 24, 125
"""A curve with more points than `MAX_MARKERS` has no markers. With more than `MAX_POINTS` it is averaged."""
FONT_SIZE, TITLE_SIZE = 9.0, 11.0
"""Font sizes in points, as in the style file."""
TEXT_WIDTH = 72 * WIDTH - 50
"""Width available to a line of text, in points."""
MAX_VALUE = 1e100
"""Larger values are treated as missing."""
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#d55e00", "linestyle": (0, (6, 2)), "marker": "s"},
    {"color": "#0072b2", "linestyle": "-", "marker": "o"},
    {"color": "#009e73", "linestyle": (0, (1, 1)), "marker": "^"},
    {"color": "#aa4499", "linestyle": (0, (6, 2, 1, 2)), "marker": "h"},
    {"color": "#56b4e9", "linestyle": (0, (3, 1.5)), "marker": "v"},
    {"color": "#1a1a1a", "linestyle": (0, (10, 3)), "marker": "D"},
)
"""Colours of the curves in order: those of Okabe and Ito, safe for the colour-blind, with a darker purple.
The first two are those of the first two results in figures of episodes and on the page."""
METADATA = {".svg": ("Title", "Description"), ".pdf": ("Title", "Subject"), ".png": ("Title", "Description")}
"""File name suffix -> metadata keys of the title and the description."""
NO_DATE: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
"""Metadata that omits the current date, so that equal charts are equal files."""
STYLE_FILE = Path(__file__).with_name("charts.mplstyle")


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Named curve with values `ys` at `xs`, which are non-decreasing numbers or names.

    Non-finite values leave a gap. `low` and `high` are the bounds of a confidence interval for every value.
    """

    name: str
    xs: Sequence[float] | Sequence[str]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ConfigError(f"curve '{self.name}' has only one of `low` and `high`; give both or none")
        for values in (self.ys, self.low, self.high):
            if values is not None and len(values) != len(self.xs):
                raise ConfigError(
                    f"curve '{self.name}' has {len(self.xs)} x values, but {len(values)} y values or bounds"
                )
        numbers = [x for x in self.xs if not isinstance(x, str)]
        if len(numbers) not in (0, len(self.xs)):
            raise ConfigError(f"curve '{self.name}' mixes numbers and names on the x axis")
        if any(not abs(x) < MAX_VALUE for x in numbers) or any(a > b for a, b in pairwise(numbers)):
            raise ConfigError(f"curve '{self.name}' has x values that decrease or are not finite")


def plot_curves(
    curves: Sequence[Curve],
    path: str | Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    band_label: str = "95 % interval",
) -> None:
    """Write a chart of all curves to an `.svg`, `.pdf` or `.png` file.

    With one version of matplotlib, equal curves give equal files. Confidence intervals are shaded; the legend
    names them `band_label`. Curves with many points are averaged in bins of equal size.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in METADATA:
        raise ConfigError(f"{path}: expected a file name that ends in .svg, .pdf or .png")
    names = _x_axis_names(curves)
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    with style.context(["default", STYLE_FILE]):  # independent of the user's settings
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        for curve, line_style in zip(curves, cycle(STYLES), strict=False):
            _plot_curve(axes, curve, line_style, names)
        axes.set_title("\n".join(wrap_text(one_line(title), TITLE_SIZE, TEXT_WIDTH)), parse_math=False)
        axes.set_xlabel(_shorten_label(x_label), parse_math=False)
        axes.set_ylabel(_shorten_label(y_label, TEXT_WIDTH / 2), parse_math=False)
        _set_ticks(axes, curves, names)
        handles: list[Any] = list(axes.get_lines())
        labels = [_shorten_label(curve.name) for curve in curves]
        if any(curve.low is not None for curve in curves):
            handles.append(Patch(facecolor="#5f6468", alpha=0.2))
            labels.append(_shorten_label(band_label))
        widest = max((text_width(label, FONT_SIZE) for label in labels), default=0.0)
        columns = max(1, min(len(labels), int(TEXT_WIDTH / (widest + 50))))
        numbers = range(len(labels))  # labels are set below: a legend leaves out those that start with "_"
        legend = figure.legend(handles, list(map(str, numbers)), loc="outside lower center", ncols=columns)
        for text, label in zip(legend.get_texts(), labels, strict=True):
            text.set_parse_math(False)
            text.set_text(label)
        texts = (one_line(title), _chart_description(curves, x_label, y_label))
        metadata = {**dict(zip(METADATA[suffix], texts, strict=True)), **NO_DATE[suffix]}
        with atomic_open(path) as file:
            figure.savefig(file, format=suffix[1:], metadata=metadata)


def _x_axis_names(curves: Sequence[Curve]) -> list[str]:
    """Return all names on the x axis, in order of appearance; empty if the x axis has numbers."""
    kinds = {isinstance(curve.xs[0], str) for curve in curves if len(curve.xs)}
    if len(kinds) > 1:
        raise ConfigError("some curves have numbers and some have names on the x axis; draw separate charts")
    return list(dict.fromkeys(str(x) for curve in curves for x in curve.xs)) if kinds == {True} else []


def _plot_curve(axes: Axes, curve: Curve, line_style: dict[str, Any], names: Sequence[str]) -> None:
    """Add one curve and its confidence band to the axes; `names` are all names on the x axis."""
    bin_size = 1 if names else max(1, math.ceil(len(curve.xs) / MAX_POINTS))
    xs = _bin_means([names.index(str(x)) if names else float(x) for x in curve.xs], bin_size)
    ys = _bin_means(curve.ys, bin_size)
    marked = np.flatnonzero(np.isfinite(ys) if len(curve.xs) <= MAX_MARKERS else _is_isolated(ys)).tolist()
    line_style = line_style if marked else {**line_style, "marker": ""}
    axes.plot(xs, ys, markevery=marked, **line_style)
    if curve.low is not None and curve.high is not None:
        low, high = (_bin_means(bound, bin_size) for bound in (curve.low, curve.high))
        axes.fill_between(xs, low, high, color=line_style["color"], alpha=0.16, linewidth=0)
        alone = _is_isolated(low + high)  # the area of a single point is invisible
        axes.vlines(xs[alone], low[alone], high[alone], color=line_style["color"], alpha=0.16, linewidth=6)


def _bin_means(values: Sequence[float], size: int) -> NDArray[np.float64]:
    """Return the means of the finite values in bins of `size` values; NaN for bins without finite values."""
    array = np.asarray(values, dtype=np.float64)
    bins = np.pad(array, (0, -len(array) % size), constant_values=math.nan).reshape(-1, size)
    known = np.abs(bins) < MAX_VALUE
    means = np.full(len(bins), math.nan)
    return np.divide(np.where(known, bins, 0.0).sum(axis=1), known.sum(axis=1), out=means, where=known.any(1))


def _is_isolated(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask that is True for finite values whose neighbours are not finite."""
    known = np.pad(np.isfinite(values), 1)
    return known[1:-1] & ~known[:-2] & ~known[2:]


def _set_ticks(axes: Axes, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Set the ticks of the x axis: as many names as fit, or integers if all x values are integers."""
    if names:
        labels = [_shorten_label(name, TEXT_WIDTH / 4) for name in names]
        widest = max(text_width(label, FONT_SIZE) for label in labels) + 6
        step = math.ceil(widest * len(names) / TEXT_WIDTH)
        axes.set_xticks(range(0, len(names), step), labels[::step], parse_math=False)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif all(float(x).is_integer() for curve in curves for x in curve.xs):
        axes.locator_params("x", integer=True)


def _shorten_label(text: str, width: float = TEXT_WIDTH - 50) -> str:
    return shorten_text(one_line(text), FONT_SIZE, width)


def _chart_description(curves: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Return a description of the chart for screen readers."""
    sentences = [f"{y_label} by {x_label}."]
    for curve in curves:
        known = [(x, y) for x, y in zip(curve.xs, curve.ys, strict=True) if abs(y) < MAX_VALUE]
        ends = [f"{y:.4g} at {x}" for x, y in known[:1] + known[-1:]]
        sentences.append(f"{curve.name}: {' to '.join(ends) or 'no values'}.")
    return one_line(" ".join(sentences))
