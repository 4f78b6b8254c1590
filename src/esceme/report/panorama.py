"""A panorama as an agent stands in it: the picture, and signs where its candidates are seen."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import NamedTuple

from esceme.report import marks
from esceme.report.marks import INK, REMEMBERED, Item
from esceme.report.svg import Look, clean, document, element, number
from esceme.world.geometry import wrap

WIDTH, HEIGHT, MARGIN = 760.0, 380.0, 12.0
"""Pixels of the picture, and around everything."""
RADIUS = 9.0
"""Of a sign, in pixels."""
KINDS = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png"}
"""How a picture file begins, and what it then is."""


class Sign(NamedTuple):
    """A candidate as it is seen in a panorama."""

    label: str
    heading: float
    """Absolute, radians."""
    elevation: float
    remembered: bool = False
    """Whether a memory holds the viewpoint that it leads to."""


def draw_panorama(picture: bytes, signs: Sequence[Sign], *, title: str, caption: str | None = None) -> str:
    """A complete SVG document of an equirectangular picture (a JPEG or PNG file, embedded) with signs on it.

    The middle of the picture looks along heading 0, and right is clockwise.
    """
    heading, top = marks.heading(title, caption, WIDTH)
    legend, legend_height = marks.flow(_legend(signs), WIDTH)
    bottom = top + HEIGHT + 16
    width, height = WIDTH + 2 * MARGIN, bottom + legend_height + 2 * MARGIN - 8

    def below(y: float, content: str | Sequence[str]) -> str:
        return element("g", content, transform=f"translate({number(MARGIN)} {number(MARGIN + y)})")

    parts = [
        below(0.0, heading),
        below(top, [_embedded(picture), *(_draw(*each) for each in _apart(signs))]),
        below(bottom, legend),
    ]
    return document(parts, width, height, title=title, description=_describe(signs))


def place_of(sign: Sign) -> tuple[float, float]:
    """Pixels from the upper left corner of the picture.

    >>> place_of(Sign("1", 0.0, 0.0)), place_of(Sign("2", math.pi / 2, math.pi / 4))
    ((380.0, 190.0), (570.0, 95.0))
    """
    turned = float(wrap(sign.heading))
    return WIDTH * (0.5 + turned / (2 * math.pi)), HEIGHT * (0.5 - sign.elevation / math.pi)


def _apart(signs: Sequence[Sign]) -> list[tuple[Sign, float, float]]:
    """Where the signs stand: in their places, or below them where another one has the place."""
    placed: list[tuple[Sign, float, float]] = []
    for sign in signs:
        x, y = place_of(sign)
        while any(math.dist((x, y), other[1:]) < 2 * RADIUS for other in placed):
            y += RADIUS
        placed.append((sign, x, y))
    return placed


def _embedded(picture: bytes) -> str:
    kind = KINDS.get(picture[:2], "application/octet-stream")
    data = f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return element("image", href=data, width=WIDTH, height=HEIGHT, preserveAspectRatio="none")


def _draw(sign: Sign, x: float, y: float) -> str:
    fill = REMEMBERED if sign.remembered else "#fff"
    disc = element("circle", cx=x, cy=y, r=RADIUS, fill=fill, stroke=INK, stroke_width=1.4)
    look: Look = {"font_size": 10.0, "font_weight": "bold", "text_anchor": "middle", "fill": INK}
    text = element("text", clean(sign.label), x=x, y=y + 3.6, **look)
    return element("g", disc + text, class_="candidate")


def _legend(signs: Sequence[Sign]) -> list[Item]:
    """What the signs mean, as far as there are such."""
    meanings = {
        True: "leads to a viewpoint that is remembered",
        False: "leads to a viewpoint that is not remembered",
    }
    items = []
    for remembered, meaning in meanings.items():
        if any(sign.remembered == remembered for sign in signs):
            fill = REMEMBERED if remembered else "#fff"
            icon = element("circle", cx=5.0, cy=0.0, r=4.6, fill=fill, stroke=INK, stroke_width=1.2)
            items.append(marks.icon_item(icon, meaning))
    return items


def _describe(signs: Sequence[Sign]) -> str:
    """The figure in words, for those who cannot see it."""
    known = sum(sign.remembered for sign in signs)
    return (
        f"A panorama of 360 degrees with {len(signs)} candidates; {known} lead to remembered viewpoints. "
        + " ".join(f"{sign.label}: heading {math.degrees(sign.heading) % 360:.0f} degrees." for sign in signs)
    )
