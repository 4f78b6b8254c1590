"""Writing SVG by hand: elements with escaped text and rounded numbers, and the width of a line of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

NARROW, WIDE = frozenset("fijlrtI.,:;'|!()[]/ -"), frozenset("mwMW%@")
Look = dict[str, str | float]
"""Attributes of an element, `_` standing for the dash in their names."""
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no way to write."""


def number(value: float) -> str:
    """A number with two digits at most.

    >>> number(2.0), number(-0.001), number(3.14159)
    ('2', '0', '3.14')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def clean(text: str) -> str:
    """Text as XML may hold it, escaped, on one line."""
    return escape(FORBIDDEN.sub("\ufffd", " ".join(text.split())))


def element(tag: str, content: str | Iterable[str] = "", /, **attributes: str | float) -> str:
    """One element around `content`, which is SVG already; `class_` means class, `stroke_width` stroke-width.

    >>> element("text", clean("a < b"), x=1.5, class_="label")
    '<text x="1.5" class="label">a &lt; b</text>'
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{clean(value) if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
    )
    inner = content if isinstance(content, str) else "\n".join(content)
    return f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>"


def document(content: Iterable[str], width: float, height: float, *, title: str, description: str) -> str:
    """A whole figure on white ground, with what it shows for those who cannot see it."""
    parts = [
        element("title", clean(title)),
        element("desc", clean(description)),
        element("rect", width="100%", height="100%", fill="#fff"),
        *content,
    ]
    figure = element(
        "svg",
        parts,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        font_family="Helvetica, Arial, sans-serif",
    )
    return figure + "\n"


def points(pairs: Iterable[Iterable[float]]) -> str:
    """Coordinates as path and polygon data have them.

    >>> points([(1, 2), (3.5, 4)])
    '1,2 3.5,4'
    """
    return " ".join(",".join(number(value) for value in pair) for pair in pairs)


def width_of(text: str, size: float) -> float:
    """About how wide a line of sans-serif text is at a font size; rather too wide than too narrow."""
    ems = (
        0.31 if letter in NARROW else 0.9 if letter in WIDE else 0.71 if letter.isupper() else 0.57
        for letter in text
    )
    return size * sum(ems)


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The lines of `text` that fit into `width`; a word longer than a line is broken."""
    lines, line = [], ""
    for word in text.split():
        while width_of(word, size) > width:
            fits = next(n for n in range(len(word), 0, -1) if n == 1 or width_of(word[:n], size) <= width)
            lines += [line, word[:fits]] if line else [word[:fits]]
            line, word = "", word[fits:]
        longer = f"{line} {word}".strip()
        if width_of(longer, size) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line] if line else lines


def shortened(text: str, size: float, width: float) -> str:
    """`text`, its middle replaced by an ellipsis where it is wider than `width`."""
    text = " ".join(text.split())
    if width_of(text, size) <= width:
        return text
    for kept in range(len(text), 1, -1):
        short = f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}"
        if width_of(short, size) <= width:
            return short
    return "…"
