"""Rules that select episodes for figures."""

from __future__ import annotations

import pytest

from esceme.errors import ConfigError, DataError
from esceme.evaluation import EpisodeResult, Result
from esceme.report.selection import select_by_rule


def result_of(**spl: float) -> Result:
    """Result of episodes by id; the first letter of an id is its scene, its path ends before `_`."""
    episodes = [
        EpisodeResult(
            id=name,
            scene=name[0],
            path=name.partition("_")[0],
            visit=1,
            decisions=1,
            stopped=True,
            trajectory=[("hall", 0.0, 0.0)],
            scores={"sr": float(value > 0), "spl": value, "ne": 5.0 + number},
        )
        for number, (name, value) in enumerate(spl.items())
    ]
    return Result(facts={}, means={"spl": 0.5}, episodes=episodes)


NONE = result_of(a1_0=0.1, a2_0=0.0, a2_1=0.0, b1_0=0.9, c1_0=0.5)
COLD = result_of(a1_0=1.0, a2_0=0.5, a2_1=0.4, b1_0=0.8, c1_0=0.7)


def test_helped_prefers_success_then_spl_then_different_scenes() -> None:
    assert select_by_rule([NONE, COLD], "helped", 5) == ["a2_0", "c1_0", "a1_0", "a2_1"]
    assert select_by_rule([NONE, COLD], "helped", 1) == ["a2_0"]


def test_hurt_is_the_opposite_of_helped() -> None:
    assert select_by_rule([NONE, COLD], "hurt", 5) == ["b1_0"]
    assert select_by_rule([COLD, NONE], "hurt", 5) == select_by_rule([NONE, COLD], "helped", 5)


def test_failures_begin_where_another_result_succeeds() -> None:
    last = result_of(a1_0=0.0, a2_0=0.0, a2_1=0.0, b1_0=1.0, c1_0=0.0)
    assert select_by_rule([NONE, last], "failures", 9) == ["c1_0", "a1_0", "a2_1", "a2_0"]
    assert select_by_rule([last], "failures", 2) == ["c1_0", "a2_1"]


def test_best_of_several_baselines_counts() -> None:
    other = result_of(a1_0=0.0, a2_0=1.0, a2_1=0.0, b1_0=0.0, c1_0=0.0)
    assert "a2_0" not in select_by_rule([NONE, other, COLD], "helped", 9)


def test_rules_that_compare_need_two_results_with_scores() -> None:
    with pytest.raises(ConfigError, match="the rule 'helped' compares results; give at least two"):
        select_by_rule([COLD], "helped", 1)
    with pytest.raises(DataError, match="no scores"):
        select_by_rule([Result(facts={}, means={}, episodes=[])], "failures", 1)
