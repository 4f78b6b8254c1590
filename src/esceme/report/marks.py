"""What stands on a scene figure: line styles, markers and the legend, told apart without colour as well."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from esceme.report.svg import Look, clean, element, number, points, shortened, width_of, wrapped

INK, GREY, PALE = "#1a1a1a", "#5f6468", "#a9afb5"
SMALL = 9.0
"""Font size of everything but title, caption and step numbers."""
TITLE_SIZE, CAPTION_SIZE = 12.0, 10.0
CAPTION_LINES = 12
"""Lines of a caption that are shown; long dialogs are cut off."""
REMEMBERED = "#f0e442"
"""The pale yellow of what a memory holds."""


class Style(NamedTuple):
    """How a route is drawn: everything differs between two styles, so that print in grey keeps them apart."""

    colour: str
    dash: str
    width: float
    corners: int
    """The stop marker: a polygon of so many corners, 0 for a disc, 5 for the goal's star."""
    cap: str = "butt"


REFERENCE = Style(INK, "none", 3.0, 5)
PREDICTED = (
    Style("#d55e00", "6.5 2.5", 2.4, 4),
    Style("#0072b2", "0.1 3.6", 2.7, 3, "round"),
    Style("#009e73", "8 2.4 1.6 2.4", 2.2, 0),
    Style("#aa4499", "2.6 1.6", 2.0, 6),
    Style("#56b4e9", "12 3", 2.2, -3),
)
"""Okabe and Ito's colours, but for a darker purple; a sixth route takes the first style again."""


def line(path: str, style: Style) -> str:
    """A route's line along path data."""
    return element(
        "path",
        d=path,
        stroke=style.colour,
        stroke_width=style.width,
        stroke_dasharray=style.dash,
        stroke_linecap=style.cap,
    )


def casing(path: str, style: Style) -> str:
    """The white border that lifts a route's line off the graph."""
    return element("path", d=path, stroke="#fff", stroke_width=style.width + 2)


def polygon(
    x: float, y: float, radii: Sequence[float], corners: int, turn: float
) -> list[tuple[float, float]]:
    """The corners of a polygon or star around (x, y), its radii taken in turn."""
    count = corners * len(radii)
    angles = [turn + 2 * math.pi * corner / count for corner in range(count)]
    return [
        (x + radii[i % len(radii)] * math.cos(angle), y + radii[i % len(radii)] * math.sin(angle))
        for i, angle in enumerate(angles)
    ]


def start_mark(x: float, y: float) -> str:
    """A ring with a dot: here a route begins."""
    ring = element("circle", cx=x, cy=y, r=5.2, fill="#fff", stroke=INK, stroke_width=1.8)
    return element("g", ring + element("circle", cx=x, cy=y, r=2.1, fill=INK), class_="start")


def stop_mark(x: float, y: float, style: Style) -> str:
    """Where a route ends, in its own shape."""
    look: Look = {"fill": style.colour, "stroke": "#fff", "stroke_width": 1.1}
    if style.corners == 0:
        return element("circle", cx=x, cy=y, r=4.6, class_="stop", **look)
    if style.corners == 5:
        corners = polygon(x, y, (8.2, 3.6), 5, -math.pi / 2)
        return element("polygon", points=points(corners), class_="goal", **look)
    count = abs(style.corners)
    turn = math.pi / 4 if count == 4 else math.copysign(math.pi / 2, -style.corners)
    centre = y + math.copysign(1.2, style.corners) if count == 3 else y
    corners = polygon(x, centre, (6.2 if count == 3 else 5.5,), count, turn)
    return element("polygon", points=points(corners), class_="stop", **look)


def step_mark(x: float, y: float, step: int, style: Style) -> str:
    """The number of a step on a disc: white on black for the reference, coloured on white otherwise."""
    dark = style is REFERENCE
    disc = element(
        "circle", cx=x, cy=y, r=4.8, fill=INK if dark else "#fff", stroke=style.colour, stroke_width=1
    )
    size = 6.8 if step < 10 else 6
    look: Look = {"font_size": size, "font_weight": "bold", "text_anchor": "middle"}
    text = element("text", str(step), x=x, y=y + 0.36 * size, fill="#fff" if dark else style.colour, **look)
    return element("g", disc + text, class_="step")


def stairs_mark(x: float, y: float, *, up: bool, colour: str = GREY, size: float = 1.0) -> str:
    """A small triangle: from here the way goes up or down to another floor."""
    corners = polygon(x, y, (3.3 * size,), 3, -math.pi / 2 if up else math.pi / 2)
    return element("polygon", points=points(corners), fill=colour, stroke="#fff", stroke_width=0.7)


def remembered_mark(x: float, y: float, *, size: float = 1.0) -> str:
    """A pale disc around a viewpoint that a memory holds, so wide that numbers do not hide it."""
    look: Look = {"fill": REMEMBERED, "stroke": GREY, "stroke_width": 0.7 * size}
    return element("circle", cx=x, cy=y, r=6.6 * size, class_="remembered", **look)


def heading(title: str | None, caption: str | None, width: float) -> tuple[str, float]:
    """Title and caption, wrapped, and the height they take."""
    bold: Look = {"font_size": TITLE_SIZE, "font_weight": "bold"}
    italic: Look = {"font_size": CAPTION_SIZE, "font_style": "italic"}
    lines = [(text, bold) for text in wrapped(title or "", TITLE_SIZE, width)]
    told = wrapped(caption or "", CAPTION_SIZE, width)
    told = told if len(told) <= CAPTION_LINES else [*told[: CAPTION_LINES - 1], "…"]
    lines += [(text, italic) for text in told]
    parts, y = [], -2.0
    for text, look in lines:
        y += CAPTION_SIZE + 3.5
        parts.append(element("text", clean(text), x=0.0, y=y, fill=INK, **look))
    return "\n".join(parts), y + 13 if parts else 0.0


def words(text: str, x: float, *, aside: str = "") -> str:
    """A line of small text around y = 0, what is said aside in grey."""
    more = element("tspan", clean(aside), dx=4.0, fill=GREY) if aside else ""
    return element("text", clean(text) + more, x=x, y=3.2, font_size=SMALL, fill=INK)


def success_circle(x: float, y: float, radius: float) -> str:
    """The distance from the goal within which stopping counts."""
    dash = "4 3" if radius > 10 else "2.6 1.7"
    look: Look = {"fill": "none", "stroke": INK, "stroke_width": 0.9, "stroke_dasharray": dash}
    return element("circle", cx=x, cy=y, r=radius, class_="success", **look)


class Item(NamedTuple):
    """One entry of the legend, drawn around the line y = 0 from x = 0."""

    drawing: str
    width: float


def route_item(label: str, facts: str, style: Style, *, stops: bool, most: float) -> Item:
    """A route's line with its stop marker, its label and what is known about it."""
    path = "M0,0 L26,0"
    label = shortened(label, SMALL, most - 40 - width_of(facts, SMALL))
    sample = element("g", casing(path, style) + line(path, style), fill="none")
    mark = stop_mark(26, 0, style) if stops else ""
    width = 40 + width_of(label, SMALL) + width_of(facts, SMALL)
    return Item(sample + mark + words(label, 37, aside=facts), width)


def icon_item(icon: str, label: str, *, width: float = 10.0) -> Item:
    """A symbol and what it means."""
    return Item(icon + words(label, width + 4), width + 4 + width_of(label, SMALL))


def scale_item(pixels_per_metre: float) -> Item:
    """A bar of two metres."""
    long = 2 * pixels_per_metre
    end = number(long)
    bar = element("path", d=f"M0,-3 V3 M0,0 H{end} M{end},-3 V3", stroke=INK, stroke_width=1.2)
    return Item(bar + words("2 m", long + 4), long + 4 + width_of("2 m", SMALL))


def north_item() -> Item:
    """An arrow to the north (+y)."""
    arrow = element("polygon", points=points([(4, -8), (7.6, 6), (4, 3.4), (0.4, 6)]), fill=INK)
    return Item(arrow + words("N", 10), 16)


def flow(
    items: Iterable[Item], width: float, *, gap: float = 16.0, height: float = 16.0
) -> tuple[str, float]:
    """Items from left to right, in as many rows as they need; the drawing and its height."""
    x, y, drawn = 0.0, 0.0, []
    for item in items:
        if x and x + item.width > width:
            x, y = 0.0, y + height
        drawn.append(element("g", item.drawing, transform=f"translate({number(x)} {number(y)})"))
        x += item.width + gap
    return "\n".join(drawn), y + height if drawn else 0.0
