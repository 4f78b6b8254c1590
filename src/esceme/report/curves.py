"""Line charts as self-contained SVG: a loss over a training, scores by visit, several agents in one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import NamedTuple

from esceme.errors import ConfigError
from esceme.report import marks
from esceme.report.axes import Axis, is_measured, written
from esceme.report.marks import GREY, INK, PALE, SMALL, Item, Style
from esceme.report.svg import Look, clean, document, element, number, points, shortened, width_of, wrapped

WIDTH, HEIGHT, MARGIN = 520.0, 240.0, 12.0
"""Pixels of the whole figure's content, of the plot within it, and around everything."""
TITLE_SIZE = 12.0
MARKED, POINTS = 24, 125
"""Points up to which a curve has a mark at each, and those that are drawn of it at the most."""
THIN = 1.5
"""The width of a line without marks, which has more to show."""
STYLES = (
    Style("#0072b2", "none", 2.2, 0, "round"),
    Style("#d55e00", "7 2.5", 2.2, 4),
    Style("#009e73", "0.1 3.8", 2.7, 3, "round"),
    Style("#aa4499", "8 2.4 1.6 2.4", 2.2, 6),
    Style("#56b4e9", "3 2", 2.4, -3),
    Style(INK, "12 3", 1.6, 0),
)
"""Okabe and Ito's colours, but for a darker purple; a seventh curve takes the first style again."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Values over numbers that do not fall, or over names; those that are not finite leave a gap.

    `low` and `high` bound the interval of every value.
    """

    name: str
    xs: Sequence[float] | Sequence[str]
    ys: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise ConfigError(f"curve '{self.name}' has one bound of its intervals; give both, or none")
        bounds = [each for each in (self.low, self.high) if each is not None]
        if any(len(each) != len(self.xs) for each in (self.ys, *bounds)):
            raise ConfigError(f"curve '{self.name}' has {len(self.xs)} places, but not as many values")
        places = [x for x in self.xs if not isinstance(x, str)]
        if len(places) not in (0, len(self.xs)):
            raise ConfigError(f"curve '{self.name}' lies over numbers and names; expected one of them")
        if not all(map(is_measured, places)) or any(a > b for a, b in pairwise(places)):
            raise ConfigError(f"curve '{self.name}' lies over numbers that fall or are not finite")

    @property
    def over_names(self) -> bool:
        """Whether it lies over names; one without points lies over anything."""
        return len(self.xs) > 0 and isinstance(self.xs[0], str)


def names_of(series: Sequence[Curve]) -> list[str] | None:
    """All names that curves lie over, as they first come; None where they lie over numbers."""
    if len({curve.over_names for curve in series if len(curve.xs)}) > 1:
        raise ConfigError("some curves lie over numbers and some over names; draw them apart")
    if not any(curve.over_names for curve in series):
        return None
    return list(dict.fromkeys(str(x) for curve in series for x in curve.xs))


def draw_curves(
    series: Sequence[Curve], *, title: str, x_label: str, y_label: str, band: str = "95 % interval"
) -> str:
    """A complete SVG document of curves in one plot; the same input gives the same bytes.

    Intervals are shaded and called `band` in the legend. Of a curve with many points, means of equally many
    consecutive ones are drawn, no more than can be told apart.
    """
    names = names_of(series)
    plotted = [_thinned(curve) for curve in series]
    places = [] if names else [float(x) for curve in series for x in curve.xs]
    across = Axis.of_names(names) if names else Axis.of_numbers(places)
    chart = Chart.of(plotted, across, names or ())
    look: Look = {"font_size": TITLE_SIZE, "font_weight": "bold", "fill": INK}
    heading = [
        element("text", clean(line), x=0.0, y=10 + 14.0 * row, **look)
        for row, line in enumerate(wrapped(title, TITLE_SIZE, WIDTH))
    ]
    top = 14.0 * len(heading) + 18
    legend, legend_height = marks.flow(_legend(plotted, band), WIDTH)
    bottom = top + HEIGHT + 48
    width, height = WIDTH + 2 * MARGIN, bottom + legend_height + 2 * MARGIN - 8

    def at(x: float, y: float, content: str | Sequence[str]) -> str:
        return element("g", content, transform=f"translate({number(MARGIN + x)} {number(MARGIN + y)})")

    parts = [
        at(0, 0, heading),
        at(chart.left, top, [_frame(chart), *_curves(plotted, chart)]),
        at(0, top, _labels(chart, x_label, y_label)),
        at(0, bottom, legend),
    ]
    return document(parts, width, height, title=title, description=_describe(series, chart, x_label, y_label))


class Chart(NamedTuple):
    """The plot: its axes, and where they lie in the figure."""

    across: Axis
    upwards: Axis
    names: tuple[str, ...]
    """What lies at 0, 1, 2 and so on of the axis; nothing where that is of numbers."""
    left: float
    width: float

    @classmethod
    def of(cls, series: Sequence[Curve], across: Axis, names: Sequence[str]) -> Chart:
        """A plot that has room for all curves and their intervals."""
        bounds = [ys for curve in series for ys in (curve.ys, curve.low, curve.high) if ys is not None]
        upwards = Axis.of_numbers((y for ys in bounds for y in ys), whole=True)
        left = 22 + max(width_of(tick.label, SMALL) for tick in upwards.ticks)
        return cls(across, upwards, tuple(names), left, WIDTH - left - 16)

    def x(self, place: float | str) -> float:
        """Pixels from the left end of the plot."""
        value = self.names.index(place) if isinstance(place, str) else place
        return self.width * self.across.share(value)

    def y(self, value: float) -> float:
        """Pixels from the top of the plot."""
        return HEIGHT * (1 - self.upwards.share(value))

    def written(self, value: float) -> str:
        """A value, more exactly than ticks are."""
        size = self.upwards.high - self.upwards.low
        return written(value, 10.0 ** math.floor(math.log10(size / 100)))


def _thinned(curve: Curve) -> Curve:
    """A curve of no more points than can be told apart: the means of consecutive ones."""
    if len(curve.xs) <= POINTS or curve.over_names:
        return curve

    size = math.ceil(len(curve.xs) / POINTS)

    def means(values: Sequence[float] | Sequence[str]) -> list[float]:
        numbers = [float(value) for value in values]
        parts = [list(filter(is_measured, numbers[at : at + size])) for at in range(0, len(numbers), size)]
        return [sum(part) / len(part) if part else math.nan for part in parts]

    low, high = (None if bound is None else means(bound) for bound in (curve.low, curve.high))
    return replace(curve, xs=means(curve.xs), ys=means(curve.ys), low=low, high=high)


def _frame(chart: Chart) -> str:
    """Lines at the ticks, and what is written beside them; names only as many as there is room for."""
    ticks, base = chart.across.ticks, number(HEIGHT)
    room = chart.width / max(1, len(ticks))
    every = max(1, -int(-max((width_of(tick.label, SMALL) + 6 for tick in ticks), default=0.0) // room))
    levels = "".join(
        f"M0,{number(chart.y(tick.value))} H{number(chart.width)}" for tick in chart.upwards.ticks
    )
    feet = "".join(f"M{number(chart.x(tick.value))},{base} v4" for tick in ticks)
    parts = [
        element("path", d=levels, stroke="#e4e6e8", stroke_width=0.8, fill="none"),
        element(
            "path", d=f"{feet}M0,{base} H{number(chart.width)}", stroke=PALE, stroke_width=1, fill="none"
        ),
    ]
    look: Look = {"font_size": SMALL, "fill": GREY}
    for tick in ticks[::every]:
        place: Look = {"x": chart.x(tick.value), "y": HEIGHT + 14, "text_anchor": "middle"}
        parts.append(element("text", clean(tick.label), class_="x-tick", **place, **look))
    for tick in chart.upwards.ticks:
        place = {"x": -6.0, "y": chart.y(tick.value) + 3.2, "text_anchor": "end"}
        parts.append(element("text", clean(tick.label), class_="y-tick", **place, **look))
    return element("g", parts, class_="frame")


def _labels(chart: Chart, x_label: str, y_label: str) -> list[str]:
    """What the axes mean."""
    look: Look = {"font_size": SMALL, "fill": INK, "text_anchor": "middle"}
    middle = chart.left + chart.width / 2
    below = element("text", clean(shortened(x_label, SMALL, chart.width)), x=middle, y=HEIGHT + 29, **look)
    turn = f"translate(8 {number(HEIGHT / 2)}) rotate(-90)"
    return [below, element("text", clean(shortened(y_label, SMALL, HEIGHT)), transform=turn, **look)]


def _curves(series: Sequence[Curve], chart: Chart) -> Iterator[str]:
    """Intervals below, then lines, then marks, so that nothing hides what is more exact."""
    styled = [(curve, _style(at, curve)) for at, curve in enumerate(series)]
    yield from (_band(curve, style, chart) for curve, style in styled if curve.low is not None)
    yield from (_line(curve, style, chart) for curve, style in styled)
    yield from (_marks(curve, style, chart) for curve, style in styled if _is_marked(curve))


def _style(at: int, curve: Curve) -> Style:
    style = STYLES[at % len(STYLES)]
    return style if _is_marked(curve) else style._replace(width=THIN)


def _is_marked(curve: Curve) -> bool:
    return len(curve.xs) <= MARKED


def _runs(*values: Sequence[float]) -> Iterator[list[int]]:
    """The stretches of points where all values are finite."""
    drawable = [all(map(is_measured, each)) for each in zip(*values, strict=True)]
    for whole, run in groupby(range(len(drawable)), key=drawable.__getitem__):
        if whole:
            yield list(run)


def _band(curve: Curve, style: Style, chart: Chart) -> str:
    """The intervals as a shade around the line; of a point without neighbours, a narrow one."""
    low, high = (() if bound is None else bound for bound in (curve.low, curve.high))
    shapes = []
    for run in _runs(low, high):
        sides = (-3.0, 3.0) if len(run) == 1 else (0.0,)
        there = [(chart.x(curve.xs[at]) + side, chart.y(high[at])) for at in run for side in sides]
        back = [(chart.x(curve.xs[at]) + side, chart.y(low[at])) for at in run for side in sides]
        shapes.append(element("polygon", points=points([*there, *reversed(back)])))
    return element("g", shapes, class_="band", fill=style.colour, fill_opacity=0.16)


def _line(curve: Curve, style: Style, chart: Chart) -> str:
    """The line, broken where values are missing; a point without neighbours is a dot."""
    drawn = []
    for run in _runs(curve.ys):
        places = [(chart.x(curve.xs[at]), chart.y(curve.ys[at])) for at in run]
        if len(run) > 1:
            drawn.append(marks.line(f"M{points(places)}", style))
        elif not _is_marked(curve):
            drawn.append(element("circle", cx=places[0][0], cy=places[0][1], r=1.6, fill=style.colour))
    return element("g", drawn, class_="curve", fill="none", stroke_linejoin="round")


def _marks(curve: Curve, style: Style, chart: Chart) -> str:
    """A mark at every value, which says it where one points at it."""
    drawn = []
    for at in (at for run in _runs(curve.ys) for at in run):
        x, y = chart.x(curve.xs[at]), chart.y(curve.ys[at])
        said = f"{curve.name}, {_named(curve.xs[at])}: {chart.written(curve.ys[at])}"
        bounds = [] if curve.low is None or curve.high is None else [curve.low[at], curve.high[at]]
        if bounds and all(map(is_measured, bounds)):
            said += f" ({' .. '.join(map(chart.written, bounds))})"
        mark = element("title", clean(said)) + marks.stop_mark(0, 0, style)
        drawn.append(element("g", mark, transform=f"translate({number(x)} {number(y)}) scale(0.75)"))
    return element("g", drawn, class_="marks")


def _named(place: float | str) -> str:
    return place if isinstance(place, str) else f"{place:g}"


def _legend(series: Sequence[Curve], band: str) -> list[Item]:
    items = []
    for at, curve in enumerate(series):
        style = _style(at, curve)
        mark = element("g", marks.stop_mark(0, 0, style), transform="translate(14 0) scale(0.75)")
        sample = element("g", marks.line("M0,0 L28,0", style), fill="none")
        text = shortened(curve.name, SMALL, WIDTH - 40)
        drawing = sample + (mark if _is_marked(curve) else "") + marks.words(text, 34)
        items.append(Item(drawing, 34 + width_of(text, SMALL)))
    if any(curve.low is not None for curve in series):
        shade = element("rect", x=0.0, y=-5.0, width=20.0, height=10.0, fill=GREY, fill_opacity=0.2)
        items.append(marks.icon_item(shade, band, width=20))
    return items


def _describe(series: Sequence[Curve], chart: Chart, x_label: str, y_label: str) -> str:
    """The figure in words, for those who cannot see it."""
    told = [f"{y_label} by {x_label}."]
    for curve in series:
        seen = [at for at, value in enumerate(curve.ys) if is_measured(value)]
        ends = [f"{chart.written(curve.ys[at])} at {_named(curve.xs[at])}" for at in seen[:1] + seen[-1:]]
        told.append(f"{curve.name}: from {ends[0]} to {ends[1]}." if ends else f"{curve.name}: no values.")
    return " ".join(told)
