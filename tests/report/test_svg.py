"""SVG text: escaping, rounding, wrapping and shortening."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.report.svg import element, escape_text, format_number, shorten_text, text_width, wrap_text


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_any_text_is_preserved_as_content_and_attribute(text: str) -> None:
    root = ET.fromstring(element("text", escape_text(text), name=text))
    assert len(root) == 0
    expected = "".join(letter if letter.isprintable() else "" for letter in text)
    found = "".join(letter if letter.isprintable() else "" for letter in root.text or "")
    assert found.replace(" ", "").replace("\ufffd", "") == expected.replace(" ", "").replace("\ufffd", "")
    assert (root.text or "") == root.attrib["name"]


def test_characters_forbidden_in_xml_are_replaced() -> None:
    assert escape_text("a\x00b\ud800c\x1b") == "a\ufffdb\ufffdc\ufffd"
    escape_text("\ud800").encode()


@settings(derandomize=True, deadline=None)
@given(st.floats(-1e6, 1e6))
def test_numbers_have_at_most_two_decimal_digits(value: float) -> None:
    text = format_number(value)
    assert abs(float(text) - value) <= 0.005 + 1e-9
    assert len(text.partition(".")[2]) <= 2
    assert text != "-0"


@settings(derandomize=True, deadline=None)
@given(st.text(alphabet="abcW il\n", max_size=200), st.floats(20, 300))
def test_wrapped_lines_hold_the_whole_text_and_fit(text: str, width: float) -> None:
    lines = wrap_text(text, 10, width)
    assert "".join(lines).replace(" ", "") == "".join(text.split())
    assert all(text_width(line, 10) <= width for line in lines)
    assert all(lines)


@settings(derandomize=True, deadline=None)
@given(st.text(alphabet="abcW il", max_size=80), st.floats(10, 300))
def test_shortening_keeps_both_ends(text: str, width: float) -> None:
    short = shorten_text(text, 10, width)
    assert text_width(short, 10) <= max(width, text_width("…", 10))
    head, ellipsis, tail = short.partition("…")
    assert ellipsis or short == " ".join(text.split())
    assert " ".join(text.split()).startswith(head)
    assert " ".join(text.split()).endswith(tail)
