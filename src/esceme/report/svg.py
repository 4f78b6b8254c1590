"""SVG as text: elements, escaped text, rounded numbers and estimated text widths."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from html import escape
from math import fsum

LETTER_WIDTHS = {**dict.fromkeys("fijlrtI.,:;'|!()[]/ -", 0.31), **dict.fromkeys("mwMW%@", 0.9)}
"""Letter -> estimated width relative to the font size, for narrow and wide letters."""
Attributes = dict[str, str | float]
"""Attributes of an element; `_` in a name is written as `-`."""
MIME_TYPES = {b"\xff\xd8": "image/jpeg", b"\x89P": "image/png"}
"""First two bytes of an image file -> MIME type."""
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 cannot represent."""


def format_number(value: float) -> str:
    """Return a number as text, rounded to at most two decimal digits.

    >>> format_number(2.0), format_number(-0.001), format_number(3.14159)
    ('2', '0', '3.14')
    """
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def format_points(points: Iterable[Iterable[float]]) -> str:
    """Return points as text in the format of SVG path and polygon data.

    >>> format_points([(1, 2), (3.5, 4)])
    '1,2 3.5,4'
    """
    return " ".join(",".join(format_number(value) for value in point) for point in points)


def one_line(text: str) -> str:
    """Return a text on one line, with replacements for characters that XML cannot represent."""
    return FORBIDDEN.sub("\ufffd", " ".join(text.split()))


def escape_text(text: str) -> str:
    """Return a text on one line, with XML markup escaped."""
    return escape(one_line(text))


def element(tag: str, content: str | Iterable[str] = "", /, **attributes: str | float) -> str:
    """Return an SVG element around `content`, which must be SVG.

    Names of attributes are written without `_` at the end, and with `-` for every other `_`.

    >>> element("text", escape_text("a < b"), x=1.5, class_="label")
    '<text x="1.5" class="label">a &lt; b</text>'
    """
    opening = tag
    for name, value in attributes.items():
        text = escape_text(value) if isinstance(value, str) else format_number(value)
        opening += f' {name.rstrip("_").replace("_", "-")}="{text}"'
    inner = content if isinstance(content, str) else "\n".join(content)
    return f"<{opening}>{inner}</{tag}>" if inner else f"<{opening}/>"


def embed_image(image: bytes, width: float, height: float) -> str:
    """Return the content of a JPEG or PNG file as an SVG element of the given size in pixels."""
    mime_type = MIME_TYPES.get(image[:2], "application/octet-stream")
    data = f"data:{mime_type};base64,{base64.b64encode(image).decode()}"
    return element("image", href=data, width=width, height=height, preserveAspectRatio="none")


def translated(x: float, y: float, content: str | Iterable[str]) -> str:
    """Return a group of elements that is moved by (x, y) pixels."""
    return element("g", content, transform=f"translate({format_number(x)} {format_number(y)})")


def text_width(text: str, size: float) -> float:
    """Return the estimated width in pixels of a line of sans-serif text; an upper bound for most texts."""
    return size * fsum(LETTER_WIDTHS.get(letter, 0.71 if letter.isupper() else 0.57) for letter in text)


def wrap_text(text: str, size: float, width: float) -> list[str]:
    """Return a text as lines that are at most `width` pixels wide at a font size; long words are broken."""
    lines, line = [], ""
    for word in text.split():
        while text_width(word, size) > width:
            fits = next(n for n in range(len(word), 0, -1) if n == 1 or text_width(word[:n], size) <= width)
            lines += [line, word[:fits]] if line else [word[:fits]]
            line, word = "", word[fits:]
        longer = f"{line} {word}".strip()
        if text_width(longer, size) > width:
            lines.append(line)
            longer = word
        line = longer
    return [*lines, line] if line else lines


def shorten_text(text: str, size: float, width: float) -> str:
    """Return a text; if it is wider than `width` pixels, an ellipsis replaces its middle."""
    text = " ".join(text.split())
    if text_width(text, size) <= width:
        return text
    for length in range(len(text), 1, -1):
        short = f"{text[: length - length // 2]}…{text[len(text) - length // 2 :]}"
        if text_width(short, size) <= width:
            return short
    return "…"
