"""Hand-written SVG: whatever the text, the document is well-formed and says that text."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.report.svg import clean, element, number, shortened, width_of, wrapped


@settings(derandomize=True, deadline=None)
@given(st.text())
def test_any_text_survives_as_text_and_as_attribute(text: str) -> None:
    root = ET.fromstring(element("text", clean(text), name=text))
    assert len(root) == 0
    expected = "".join(letter if letter.isprintable() else "" for letter in text)
    found = "".join(letter if letter.isprintable() else "" for letter in root.text or "")
    assert found.replace(" ", "").replace("\ufffd", "") == expected.replace(" ", "").replace("\ufffd", "")
    assert (root.text or "") == root.attrib["name"]


def test_what_xml_cannot_hold_is_replaced() -> None:
    assert clean("a\x00b\ud800c\x1b") == "a\ufffdb\ufffdc\ufffd"
    clean("\ud800").encode()


def test_markup_is_escaped() -> None:
    assert clean("<script>\"&'") == "&lt;script&gt;&quot;&amp;&#x27;"


@settings(derandomize=True, deadline=None)
@given(st.floats(-1e6, 1e6))
def test_numbers_have_two_digits_at_most(value: float) -> None:
    text = number(value)
    assert abs(float(text) - value) <= 0.005 + 1e-9
    assert len(text.partition(".")[2]) <= 2
    assert text != "-0"


@settings(derandomize=True, deadline=None)
@given(st.text(alphabet="abcW il\n", max_size=200), st.floats(20, 300))
def test_wrapping_loses_nothing_and_fits(text: str, width: float) -> None:
    lines = wrapped(text, 10, width)
    assert "".join(lines).replace(" ", "") == "".join(text.split())
    assert all(width_of(line, 10) <= width for line in lines)
    assert all(lines)


@settings(derandomize=True, deadline=None)
@given(st.text(alphabet="abcW il", max_size=80), st.floats(10, 300))
def test_shortening_keeps_both_ends(text: str, width: float) -> None:
    short = shortened(text, 10, width)
    assert width_of(short, 10) <= max(width, width_of("…", 10))
    head, dots, tail = short.partition("…")
    assert dots or short == " ".join(text.split())
    assert " ".join(text.split()).startswith(head)
    assert " ".join(text.split()).endswith(tail)
