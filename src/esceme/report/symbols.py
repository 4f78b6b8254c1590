"""Line styles, markers, headings and legends of figures.

Styles differ in dash and marker as well as in colour, so that figures stay readable in greyscale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from esceme.report import svg
from esceme.report.svg import Attributes, element, escape_text, format_number, format_points, text_width

INK, GREY, PALE = "#1a1a1a", "#5f6468", "#a9afb5"
"""Line and text colours, from dark to light."""
REMEMBERED = "#f0e442"
"""Fill colour of viewpoints that a memory holds."""
MARGIN = 12.0
"""Margin around a figure in pixels."""
LEGEND_FONT_SIZE = 9.0
"""Font size of legends."""
TITLE_SIZE, CAPTION_SIZE, LINE_HEIGHT = 12.0, 10.0, 13.5
MAX_CAPTION_LINES = 12


class LineStyle(NamedTuple):
    """Line of a path, and the marker at its end."""

    colour: str
    dash: str
    width: float
    marker_corners: int
    """Shape of the end marker: number of corners; 0 is a disc, 5 a star, -3 a triangle that points down."""
    cap: str = "butt"


REFERENCE = LineStyle(INK, "none", 3.0, 5)
PREDICTED = (
    LineStyle("#d55e00", "6.5 2.5", 2.4, 4),
    LineStyle("#0072b2", "0.1 3.6", 2.7, 3, "round"),
    LineStyle("#009e73", "8 2.4 1.6 2.4", 2.2, 0),
    LineStyle("#aa4499", "2.6 1.6", 2.0, 6),
    LineStyle("#56b4e9", "12 3", 2.2, -3),
)
"""Styles of predicted paths, used in turn: colour-blind safe colours of Okabe and Ito, a darker purple."""


def path_line(data: str, style: LineStyle) -> str:
    """Return the line of a path as SVG, given its SVG path data."""
    dash: Attributes = {"stroke_dasharray": style.dash, "stroke_linecap": style.cap}
    return element("path", d=data, stroke=style.colour, stroke_width=style.width, **dash)


def path_line_border(data: str, style: LineStyle) -> str:
    """Return the white border of a path's line as SVG. In the document it must precede the line."""
    return element("path", d=data, stroke="#fff", stroke_width=style.width + 2)


def polygon(
    x: float, y: float, radii: tuple[float, ...], corners: int, angle: float, **attributes: str | float
) -> str:
    """Return a regular polygon around (x, y) as SVG, with its first corner at `angle` radians.

    Two radii give a star.
    """
    count, points = corners * len(radii), []
    for corner, radius in enumerate(radii * corners):
        turned = angle + 2 * math.pi * corner / count
        points.append((x + radius * math.cos(turned), y + radius * math.sin(turned)))
    return element("polygon", points=format_points(points), **attributes)


def start_marker(x: float, y: float) -> str:
    """Return the marker at the start of a path as SVG: a ring with a dot."""
    ring = element("circle", cx=x, cy=y, r=5.2, fill="#fff", stroke=INK, stroke_width=1.8)
    return element("g", ring + element("circle", cx=x, cy=y, r=2.1, fill=INK), class_="start")


def end_marker(x: float, y: float, style: LineStyle) -> str:
    """Return the marker at the end of a path as SVG, in the shape of the path's style."""
    fill: Attributes = {"fill": style.colour, "stroke": "#fff", "stroke_width": 1.1}
    if style.marker_corners == 0:
        return element("circle", cx=x, cy=y, r=4.6, class_="stop", **fill)
    if style.marker_corners == 5:
        return polygon(x, y, (8.2, 3.6), 5, -math.pi / 2, class_="goal", **fill)
    count = abs(style.marker_corners)
    angle = math.pi / 4 if count == 4 else math.copysign(math.pi / 2, -style.marker_corners)
    centre = y + math.copysign(1.2, style.marker_corners) if count == 3 else y
    return polygon(x, centre, (6.2 if count == 3 else 5.5,), count, angle, class_="stop", **fill)


def step_number(x: float, y: float, step: int, style: LineStyle) -> str:
    """Return the number of a step on a disc as SVG; white on black for the reference path."""
    is_dark = style is REFERENCE
    fill, ink = (INK, "#fff") if is_dark else ("#fff", style.colour)
    disc = element("circle", cx=x, cy=y, r=4.8, fill=fill, stroke=style.colour, stroke_width=1)
    size = 6.8 if step < 10 else 6
    font: Attributes = {"font_size": size, "font_weight": "bold", "text_anchor": "middle"}
    text = element("text", str(step), x=x, y=y + 0.36 * size, fill=ink, **font)
    return element("g", disc + text, class_="step")


def stairs_marker(x: float, y: float, *, up: bool, colour: str = GREY, size: float = 1.0) -> str:
    """Return the marker of an edge to another floor as SVG: a triangle that points up or down."""
    angle = -math.pi / 2 if up else math.pi / 2
    return polygon(x, y, (3.3 * size,), 3, angle, fill=colour, stroke="#fff", stroke_width=0.7)


def remembered_marker(x: float, y: float, *, size: float = 1.0) -> str:
    """Return a disc around a viewpoint in memory as SVG; it is wider than the disc of a step number."""
    attributes: Attributes = {"fill": REMEMBERED, "stroke": GREY, "stroke_width": 0.7 * size}
    return element("circle", cx=x, cy=y, r=6.6 * size, class_="remembered", **attributes)


def success_circle(x: float, y: float, radius: float) -> str:
    """Return the circle around the goal within which stopping is a success, as SVG."""
    dash = "4 3" if radius > 10 else "2.6 1.7"
    attributes: Attributes = {"fill": "none", "stroke": INK, "stroke_width": 0.9, "stroke_dasharray": dash}
    return element("circle", cx=x, cy=y, r=radius, class_="success", **attributes)


class LegendItem(NamedTuple):
    """One entry of a legend: SVG that begins at x = 0 around the line y = 0, and its width in pixels."""

    drawing: str
    width: float


def icon_item(icon: str, label: str, *, width: float = 10.0) -> LegendItem:
    """Return a legend item with a symbol of the given width in pixels and the meaning of the symbol."""
    return LegendItem(icon + _legend_text(label, width + 4), width + 4 + text_width(label, LEGEND_FONT_SIZE))


def path_item(
    label: str, details: str, style: LineStyle, *, has_end_marker: bool, max_width: float
) -> LegendItem:
    """Return a legend item with a sample of a path's line, its label and, in grey, details."""
    data = "M0,0 L26,0"
    label = svg.shorten_text(label, LEGEND_FONT_SIZE, max_width - 40 - text_width(details, LEGEND_FONT_SIZE))
    sample = element("g", path_line_border(data, style) + path_line(data, style), fill="none")
    marker = end_marker(26, 0, style) if has_end_marker else ""
    width = 40 + text_width(label, LEGEND_FONT_SIZE) + text_width(details, LEGEND_FONT_SIZE)
    return LegendItem(sample + marker + _legend_text(label, 37, details=details), width)


def scale_item(pixels_per_metre: float) -> LegendItem:
    """Return a legend item with a scale bar that stands for two metres."""
    length = 2 * pixels_per_metre
    end = format_number(length)
    bar = element("path", d=f"M0,-3 V3 M0,0 H{end} M{end},-3 V3", stroke=INK, stroke_width=1.2)
    return icon_item(bar, "2 m", width=length)


def north_item() -> LegendItem:
    """Return a legend item with an arrow to the north (+y)."""
    arrow = element("polygon", points=format_points([(4, -8), (7.6, 6), (4, 3.4), (0.4, 6)]), fill=INK)
    return LegendItem(arrow + _legend_text("N", 10), 16)


def _legend_text(text: str, x: float, *, details: str = "") -> str:
    more = element("tspan", escape_text(details), dx=4.0, fill=GREY) if details else ""
    return element("text", escape_text(text) + more, x=x, y=3.2, font_size=LEGEND_FONT_SIZE, fill=INK)


def compose_figure(
    content: Sequence[str],
    legend: Iterable[LegendItem],
    *,
    width: float,
    height: float,
    title: str,
    description: str,
    heading: str,
    caption: str,
) -> str:
    """Return a complete SVG document with heading, caption, content and legend.

    `width` and `height` are the size of the content in pixels. Screen readers read `title` and `description`,
    which are not visible.
    """
    heading, top = _draw_heading(heading, caption, width)
    items, legend_height = _arrange_legend(legend, width)
    bottom = top + height + 16
    parts = [
        element("title", escape_text(title)),
        element("desc", escape_text(description)),
        element("rect", width="100%", height="100%", fill="#fff"),
        *([svg.translated(MARGIN, MARGIN, heading)] if heading else []),
        svg.translated(MARGIN, MARGIN + top, content),
        svg.translated(MARGIN, MARGIN + bottom, items),
    ]
    width, height = width + 2 * MARGIN, bottom + legend_height + 2 * MARGIN - 8
    size: Attributes = {"width": width, "height": height}
    size["viewBox"] = f"0 0 {format_number(width)} {format_number(height)}"
    font = "Helvetica, Arial, sans-serif"
    figure = element("svg", parts, xmlns="http://www.w3.org/2000/svg", **size, role="img", font_family=font)
    return figure + "\n"


def _draw_heading(title: str, caption: str, width: float) -> tuple[str, float]:
    """Return the wrapped title and caption as SVG, and their height in pixels."""
    bold: Attributes = {"font_size": TITLE_SIZE, "font_weight": "bold"}
    italic: Attributes = {"font_size": CAPTION_SIZE, "font_style": "italic"}
    captions = svg.wrap_text(caption, CAPTION_SIZE, width)
    if len(captions) > MAX_CAPTION_LINES:
        captions = [*captions[: MAX_CAPTION_LINES - 1], "…"]
    lines = [(text, bold) for text in svg.wrap_text(title, TITLE_SIZE, width)]
    lines += [(text, italic) for text in captions]
    parts = [
        element("text", escape_text(text), x=0.0, y=LINE_HEIGHT * number - 2, fill=INK, **font)
        for number, (text, font) in enumerate(lines, 1)
    ]
    return "\n".join(parts), LINE_HEIGHT * len(parts) + 11 if parts else 0.0


def _arrange_legend(items: Iterable[LegendItem], width: float) -> tuple[str, float]:
    """Return the legend as SVG, with items from left to right in as many rows as needed, and its height."""
    gap = row_height = 16.0
    x, y, drawn = 0.0, 0.0, []
    for item in items:
        if x and x + item.width > width:
            x, y = 0.0, y + row_height
        drawn.append(svg.translated(x, y, item.drawing))
        x += item.width + gap
    return "\n".join(drawn), y + row_height if drawn else 0.0
