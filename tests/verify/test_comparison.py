"""Leaf-by-leaf comparison: every difference is counted, whatever a file holds."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import WorldError
from esceme.verify.comparison import (
    ComparedQuantity,
    FileComparison,
    VerificationReport,
    value_or_error,
    without,
)


def report_of(comparison: FileComparison) -> VerificationReport:
    report = VerificationReport()
    comparison.add_to(report)
    return report


def compared(stored: Any, ours: Any) -> VerificationReport:
    comparison = FileComparison("file.json")
    comparison.add("value", stored, ours, 1e-6)
    return report_of(comparison)


leaves = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3)
values, any_values = (
    st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
        max_leaves=8,
    )
    for leaf in (leaves, leaves | st.just(10**400) | st.just(-(10**400)) | st.floats())
)


@given(value=values)
def test_a_value_equals_itself(value: Any) -> None:
    report = compared(value, value)
    assert all(row.ok and row.max_abs_diff == 0 for row in report.rows)
    assert not report.skipped


@given(stored=any_values, ours=values)
def test_anything_can_be_compared_with_anything(stored: Any, ours: Any) -> None:
    for row in compared(stored, ours).rows:
        assert row.ok == (row.max_abs_diff <= row.tolerance)


@pytest.mark.parametrize(
    ("stored", "ours"),
    [
        (1.1, 1.0),
        (None, 1.0),
        ("1.0", 1.0),
        (True, 1.0),
        ([1.0], 1.0),
        (10**400, 1.0),
        (math.nan, 1.0),
        (1.0, math.inf),
        (math.inf, math.inf),
        (None, math.inf),
        (3.0, 3),
        (True, 1),
        (1, True),
        ("3", 3),
        (None, "a"),
        ("b", "a"),
        ([], "a"),
        (["b", "a"], ["a", "b"]),
        (["a"], ["a", "b"]),
        (["a", "b", "c"], ["a", "b"]),
        ("ab", ["a", "b"]),
        (None, []),
        ({}, []),
        ([1.0, 2.0], [1.0, 2.1]),
        ({"x": 1.0}, {"x": 1.0, "y": 2.0}),
        (None, {"x": 1.0}),
        ([{"x": 1.0}], {"x": 1.0}),
    ],
)
def test_different_values_are_beyond_tolerance(stored: Any, ours: Any) -> None:
    assert compared(stored, ours).exit_code == 1


def test_numbers_within_tolerance_are_equal_and_integers_are_numbers() -> None:
    assert compared(1.0 + 9e-7, 1.0).exit_code == 0
    assert compared(1.0 + 2e-6, 1.0).exit_code == 1
    assert compared(1, 1.0).exit_code == 0


def test_a_quantity_is_one_row_with_its_largest_difference() -> None:
    report = compared(
        [{"x": 1.0, "id": "a"}, {"x": 2.5, "id": "b"}], [{"x": 1.0, "id": "a"}, {"x": 2.0, "id": "b"}]
    )
    assert report.rows == [
        ComparedQuantity("file.json", "value.x", 2, 0.5, 1e-6, False),
        ComparedQuantity("file.json", "value.id", 2, 0.0, 0.0, True),
    ]


def test_a_nan_is_kept_when_later_numbers_are_equal() -> None:
    report = compared([math.nan, 1.0, 2.0], [1.0, 1.0, 2.0])
    assert math.isnan(report.rows[0].max_abs_diff) and not report.rows[0].ok


def test_an_unknown_key_is_skipped_and_named() -> None:
    report = compared({"x": 1.0, "novel": {"deep": 1}}, {"x": 1.0})
    assert report.exit_code == 3
    assert report.skipped[0].reason == "unknown to this version, not compared: value.novel"


def test_nothing_compared_is_not_success() -> None:
    assert VerificationReport().exit_code == 3
    assert compared([], []).exit_code == 3


@pytest.mark.parametrize("stored", [{}, {"rows": []}, {"rows": None}])
def test_a_missing_or_empty_section_is_listed(stored: dict[str, Any]) -> None:
    comparison = FileComparison("file.json")
    assert comparison.section(stored, "rows", list[dict[str, int]]) == []
    report = report_of(comparison)
    assert (report.exit_code, report.skipped[0].reason) == (3, "the file holds no rows")


@pytest.mark.parametrize("rows", [5, "text", {"a": 1}, [5], [{"a": "b"}], True])
def test_a_section_of_another_kind_differs(rows: Any) -> None:
    comparison = FileComparison("file.json")
    assert comparison.section({"rows": rows}, "rows", list[dict[str, int]]) == []
    report = report_of(comparison)
    assert (report.exit_code, report.rows[0].quantity) == (1, "rows")


def test_a_section_is_returned_unchanged() -> None:
    rows = [{"a": 1}]
    assert FileComparison("f").section({"rows": rows, "x": 2}, "rows", list[dict[str, int]]) == rows


@pytest.mark.parametrize(
    ("values", "code"), [(["a", "b"], 0), (["a", "a"], 1), ([[1], [1]], 1), ([None, None], 1)]
)
def test_repeated_values_are_noticed(values: list[Any], code: int) -> None:
    comparison = FileComparison("file.json")
    comparison.add_distinct("ids", values)
    assert report_of(comparison).exit_code == code


def test_a_value_that_cannot_be_computed_is_a_message() -> None:
    def missing() -> None:
        raise WorldError("no such viewpoint")

    assert value_or_error(missing) == "no value: no such viewpoint"
    assert value_or_error(lambda record: record["t"] + 1, {}).startswith("no value: the record is malformed")
    assert value_or_error(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        value_or_error(lambda: 1 / 0)


def test_inputs_are_removed_from_a_record() -> None:
    assert without({"scan": "house", "x": 1}, ("scan", "viewpoint")) == {"x": 1}


@pytest.mark.parametrize(
    ("stored", "ours", "difference"),
    [
        ([1.0, 2.0], [1.0, 2.5], 0.5),
        ([1.0, -math.inf], [1.0, -math.inf], 0.0),
        ([-math.inf], [math.inf], math.inf),
        ([1.0], [-math.inf], math.inf),
        ([math.nan], [math.nan], math.inf),
        ([True, False], [1, 0], 0.0),
    ],
)
def test_arrays_are_compared_number_by_number(
    stored: list[float], ours: list[float], difference: float
) -> None:
    comparison = FileComparison("file")
    comparison.add_array("logits", stored, ours, 0.1)
    assert report_of(comparison).rows == [("file", "logits", len(ours), difference, 0.1, difference <= 0.1)]


def test_arrays_of_other_shapes_differ() -> None:
    comparison = FileComparison("file")
    comparison.add_array("logits", [[1.0]], [1.0], 0.1)
    assert [(row.quantity, row.ok) for row in report_of(comparison).rows] == [("logits (shape)", False)]
