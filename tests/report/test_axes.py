"""Axes: whatever was measured has its place on them, and ticks are round, few and told apart."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.report.axes import Axis, is_measured, written

VALUES = st.lists(st.floats(), max_size=8)


@given(values=VALUES, whole=st.booleans())
def test_every_measured_value_lies_on_the_axis(values: list[float], whole: bool) -> None:
    axis = Axis.of_numbers(values, whole=whole)
    assert axis.low < axis.high
    assert all(-1e-6 <= axis.share(value) <= 1 + 1e-6 for value in values if is_measured(value))


@given(values=VALUES, whole=st.booleans())
def test_ticks_are_few_rise_and_lie_on_the_axis(values: list[float], whole: bool) -> None:
    axis = Axis.of_numbers(values, whole=whole)
    assert 1 <= len(axis.ticks) <= 8
    assert all(a.value < b.value for a, b in pairwise(axis.ticks))
    assert all(-1e-6 <= axis.share(tick.value) <= 1 + 1e-6 for tick in axis.ticks)
    if whole:
        assert axis.share(axis.ticks[0].value) == pytest.approx(0, abs=1e-9)
        assert axis.share(axis.ticks[-1].value) == pytest.approx(1)


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-3, 1e6))
def test_labels_say_the_value_and_differ(low: float, size: float) -> None:
    axis = Axis.of_numbers([low, low + size])
    assert len({tick.label for tick in axis.ticks}) == len(axis.ticks)
    for tick in axis.ticks:
        assert float(tick.label.replace(" ", "")) == pytest.approx(tick.value, rel=1e-6, abs=1e-9)


def test_what_is_counted_has_whole_ticks() -> None:
    assert [tick.label for tick in Axis.of_numbers([1, 2, 4]).ticks] == ["1", "2", "3", "4"]
    assert [tick.label for tick in Axis.of_numbers([0, 12]).ticks] == ["0", "5", "10"]
    assert [tick.label for tick in Axis.of_numbers([0, 12.5]).ticks] == [
        "0.0",
        "2.5",
        "5.0",
        "7.5",
        "10.0",
        "12.5",
    ]


def test_thousands_are_set_apart_and_long_trainings_readable() -> None:
    labels = [tick.label for tick in Axis.of_numbers([10, 300_000]).ticks]
    assert labels == ["100 000", "200 000", "300 000"]


@pytest.mark.parametrize(
    "values", [[], [math.nan, math.inf], [0.0], [5.0, 5.0], [-1e-300, 0.0], [1e99, 1e99]]
)
def test_nothing_and_a_single_value_have_an_axis_around_them(values: list[float]) -> None:
    axis = Axis.of_numbers(values, whole=True)
    assert axis.low < axis.high and len(axis.ticks) >= 2
    assert all(0 < axis.share(value) < 1 for value in values if is_measured(value))


def test_names_stand_in_equal_distances() -> None:
    axis = Axis.of_names(["1", "2", "3-5", "6-10"])
    assert [axis.share(tick.value) for tick in axis.ticks] == [0.125, 0.375, 0.625, 0.875]
    assert [tick.label for tick in axis.ticks] == ["1", "2", "3-5", "6-10"]


def test_a_negative_nothing_has_no_sign() -> None:
    assert written(-0.0001, 0.01) == "0.00"
    assert written(-0.25, 0.25) == "-0.25"
