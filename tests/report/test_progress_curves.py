"""Curves over the progress of a split."""

from __future__ import annotations

import math

import pytest

from esceme.errors import ConfigError, DataError
from esceme.evaluation import EpisodeResult, Result
from esceme.report.progress_curves import measure_label, progress_curve


def result_of(values: list[float], *, measure: str = "spl", scene: str = "house") -> Result:
    episodes = [
        EpisodeResult(
            id=f"{number}_0",
            scene=scene,
            path=str(number),
            visit=number,
            decisions=1,
            stopped=True,
            trajectory=[("hall", 0.0, 0.0)],
            scores={measure: value},
        )
        for number, value in enumerate(values, 1)
    ]
    return Result(facts={}, means={measure: sum(values) / len(values)}, episodes=episodes)


@pytest.mark.parametrize("axis", ["share", "visit"])
def test_constant_scores_give_a_flat_curve_without_a_band(axis: str) -> None:
    curve = progress_curve("a", result_of([0.5] * 20), axis=axis)  # type: ignore[arg-type]
    assert all(value == pytest.approx(50.0) for value in (*curve.ys, *(curve.low or ()), *(curve.high or ())))


def test_rising_scores_give_a_rising_curve_within_its_band() -> None:
    curve = progress_curve("a", result_of([float(n >= 30) for n in range(60)]))
    assert curve.xs[0] == 0 and curve.xs[-1] == 100
    assert curve.ys[0] < 1 and curve.ys[-1] > 99 and list(curve.ys) == sorted(curve.ys)
    assert curve.low is not None and curve.high is not None
    assert all(low <= y <= high for low, y, high in zip(curve.low, curve.ys, curve.high, strict=True))


def test_visits_begin_at_one_and_reach_the_last() -> None:
    curve = progress_curve("a", result_of([0.0, 1.0, 1.0]), axis="visit")
    assert list(curve.xs) == [1, 2, 3] and curve.ys[0] < curve.ys[-1]


def test_metres_are_not_scaled() -> None:
    curve = progress_curve("a", result_of([2.5] * 4, measure="gp"), measure="gp")
    assert all(math.isclose(y, 2.5) for y in curve.ys)
    assert measure_label("gp") == "GP (m)" and measure_label("spl") == "SPL (%)"


def test_unknown_measure_and_missing_scores_are_errors() -> None:
    with pytest.raises(ConfigError, match="no measure 'cls' of every episode; there are spl"):
        progress_curve("a", result_of([1.0]), measure="cls")
    with pytest.raises(DataError, match="no scores, because the goals are withheld"):
        progress_curve("a", Result(facts={}, means={}, episodes=[]))
