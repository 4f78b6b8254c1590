"""Curves as text: bars are as long as values are large, and lines are as wide as was asked."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.report import Curve, text_curve

VISITS = ["1", "2", "3-5"]


def test_a_row_per_group_has_a_bar_and_a_value_of_every_agent() -> None:
    series = [
        Curve(name="no memory", xs=VISITS, ys=[40.0, 20.0, 0.0]),
        Curve(name="memory", xs=VISITS, ys=[20.0, 40.0, math.nan]),
    ]
    assert text_curve(series, width=40).split("\n") == [
        "     no memory         memory",
        "1    ██████████  40.0  █████       20.0",
        "2    █████       20.0  ██████████  40.0",
        "3-5               0.0                 –",
    ]


def test_a_group_that_an_agent_does_not_have_is_missing() -> None:
    series = [Curve(name="a", xs=VISITS, ys=[1, 2, 3]), Curve(name="b", xs=["2"], ys=[2])]
    rows = text_curve(series).split("\n")
    assert [row.endswith("–") for row in rows[1:]] == [True, False, True]


def test_bars_begin_at_zero_unless_values_are_negative() -> None:
    def bars(*values: float) -> list[float]:
        rows = text_curve([Curve(name="a", xs=range(len(values)), ys=values)]).split("\n")[1:]
        return [row.count("█") for row in rows]

    half, whole = bars(20.0, 40.0)
    assert whole == pytest.approx(2 * half, abs=1) and half > 10
    least, middle, most = bars(-1.0, 0.0, 1.0)
    assert least == 0 and most == pytest.approx(2 * middle, abs=1)


def test_long_curves_are_a_row_of_blocks_with_both_ends() -> None:
    falling = Curve(name="loss", xs=range(0, 1000, 10), ys=[3 - at / 50 for at in range(100)])
    flat = Curve(name="of another agent", xs=range(0, 500, 10), ys=[1.02] * 50)
    first, second, axis = text_curve([falling, flat], width=70).split("\n")
    blocks = first.split("  ")[-2]
    assert blocks[0] == "█" and blocks[-1] == "▁" and list(blocks) == sorted(blocks, reverse=True)
    assert first.endswith("3.00 → 1.02") and second.endswith("1.02 → 1.02")
    half = second.removeprefix("of another agent  ")[: len(blocks)]
    assert set(half.rstrip()) == {"▁"} and len(half.rstrip()) == pytest.approx(len(blocks) / 2, abs=1)
    assert axis.split() == ["0", "990"] and axis.index("0") == first.index("█")


def test_a_gap_in_a_long_curve_is_a_gap() -> None:
    ys = [1.0] * 30 + [math.nan] * 40 + [2.0] * 30
    blocks = text_curve([Curve(name="loss", xs=range(100), ys=ys)]).split("\n")[0].removeprefix("loss  ")
    assert "▁ " in blocks and " █" in blocks


@given(
    series=st.lists(
        st.lists(st.floats() | st.floats(0, 1), max_size=30).map(
            lambda ys: Curve(name="agent", xs=range(len(ys)), ys=ys)
        ),
        max_size=4,
    ),
    width=st.integers(60, 120),
)
def test_any_numbers_make_lines_of_the_width(series: list[Curve], width: int) -> None:
    text = text_curve(series, width=width)
    assert "nan" not in text and "inf" not in text
    assert all(len(row) <= width for row in text.split("\n"))


def test_where_there_is_no_room_for_bars_there_are_values() -> None:
    series = [Curve(name="a long name", xs=["1"], ys=[40.0 + at]) for at in range(8)]
    head, row = text_curve(series, width=50).split("\n")
    assert row.split() == ["1", *(f"{40 + at}.0" for at in range(8))]
    assert head.split() == ["a", "l…"] * 8


def test_nothing_is_text_too() -> None:
    assert text_curve([]).strip() == ""
    assert text_curve([Curve(name="loss", xs=[], ys=[])]).strip() == "loss"
