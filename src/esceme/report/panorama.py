"""Drawing of a panorama as SVG: the image, with a marker at every candidate."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import NamedTuple

from esceme.report import symbols
from esceme.report.svg import Attributes, element, escape_text
from esceme.report.symbols import INK, REMEMBERED, LegendItem
from esceme.world.geometry import wrap_angle

WIDTH, HEIGHT = 760.0, 380.0
"""Size of the image in pixels."""
RADIUS = 9.0
"""Radius of a marker in pixels."""
MIME_TYPES = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png"}
"""First two bytes of an image file -> MIME type."""
LEGEND_TEXTS = {
    True: "leads to a viewpoint that is remembered",
    False: "leads to a viewpoint that is not remembered",
}
"""Whether the candidate's viewpoint is in memory -> text in the legend."""


class CandidateMarker(NamedTuple):
    """Label and direction of a candidate in a panorama; absolute heading and elevation in radians."""

    label: str
    heading: float
    elevation: float
    is_remembered: bool = False
    """Whether the memory holds the candidate's viewpoint."""


def draw_panorama(
    image: bytes, markers: Sequence[CandidateMarker], *, title: str, caption: str | None = None
) -> str:
    """Draw markers on an equirectangular image and return a complete SVG document.

    `image` is the content of a JPEG or PNG file, which is embedded. Its centre has heading 0, and headings
    increase to the right.
    """
    return symbols.compose_figure(
        [
            embed_image(image, WIDTH, HEIGHT),
            *(_draw_marker(*placed) for placed in _place_without_overlap(markers)),
        ],
        _legend_items(markers),
        width=WIDTH,
        height=HEIGHT,
        title=title,
        description=_figure_description(markers),
        heading=title,
        caption=caption or "",
    )


def to_pixels(marker: CandidateMarker) -> tuple[float, float]:
    """Return x and y of a marker in pixels, from the upper left corner of the image.

    >>> to_pixels(CandidateMarker("1", 0.0, 0.0)), to_pixels(CandidateMarker("2", math.pi / 2, math.pi / 4))
    ((380.0, 190.0), (570.0, 95.0))
    """
    heading = float(wrap_angle(marker.heading))
    return WIDTH * (0.5 + heading / (2 * math.pi)), HEIGHT * (0.5 - marker.elevation / math.pi)


def _place_without_overlap(markers: Sequence[CandidateMarker]) -> list[tuple[CandidateMarker, float, float]]:
    """Return markers with x and y in pixels; a marker that would overlap another marker is moved down."""
    placed: list[tuple[CandidateMarker, float, float]] = []
    for marker in markers:
        x, y = to_pixels(marker)
        while any(math.dist((x, y), other[1:]) < 2 * RADIUS for other in placed):
            y += RADIUS
        placed.append((marker, x, y))
    return placed


def embed_image(image: bytes, width: float, height: float) -> str:
    """Return the content of a JPEG or PNG file as an SVG element of the given size in pixels."""
    mime_type = MIME_TYPES.get(image[:2], "application/octet-stream")
    data = f"data:{mime_type};base64,{base64.b64encode(image).decode()}"
    return element("image", href=data, width=width, height=height, preserveAspectRatio="none")


def _fill_colour(is_remembered: bool) -> str:
    return REMEMBERED if is_remembered else "#fff"


def _draw_marker(marker: CandidateMarker, x: float, y: float) -> str:
    fill = _fill_colour(marker.is_remembered)
    disc = element("circle", cx=x, cy=y, r=RADIUS, fill=fill, stroke=INK, stroke_width=1.4)
    font: Attributes = {"font_size": 10.0, "font_weight": "bold", "text_anchor": "middle", "fill": INK}
    text = element("text", escape_text(marker.label), x=x, y=y + 3.6, **font)
    return element("g", disc + text, class_="candidate")


def _legend_items(markers: Sequence[CandidateMarker]) -> list[LegendItem]:
    """Return the legend items of the fill colours that occur."""
    items = []
    for is_remembered, meaning in LEGEND_TEXTS.items():
        if any(marker.is_remembered == is_remembered for marker in markers):
            fill = _fill_colour(is_remembered)
            icon = element("circle", cx=5.0, cy=0.0, r=4.6, fill=fill, stroke=INK, stroke_width=1.2)
            items.append(symbols.icon_item(icon, meaning))
    return items


def _figure_description(markers: Sequence[CandidateMarker]) -> str:
    """Return a description of the figure for screen readers."""
    known = sum(marker.is_remembered for marker in markers)
    headings = [f"{m.label}: heading {math.degrees(m.heading) % 360:.0f} degrees." for m in markers]
    counts = f"{len(markers)} candidates; {known} lead to remembered viewpoints."
    return " ".join([f"A panorama of 360 degrees with {counts}", *headings])
