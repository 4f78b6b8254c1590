"""Comparing results: known answers for constructed results, errors, and means by visit."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from esceme.errors import ConfigError, DataError, EscemeError
from esceme.evaluation.compare import Interval, by_visit, compare
from esceme.evaluation.result import Result, read_result, scores_of
from fixtures.files import save_json
from fixtures.toy_results import FACTS, SCORES, make_result, with_scores


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("spl", 1.5, "episode 0_1: spl is 1.5, expected 0 to 1; evaluate again"),
        ("spl", -1, "episode 0_1: spl is -1, expected 0 to 1"),
        ("tl", -0.5, "episode 0_1: tl is -0.5, expected 0 to inf"),
        ("visit", 0, r"field 'episodes\[1\].visit': expected int >= 1"),
        ("decisions", -1, r"field 'episodes\[1\].decisions': expected int >= 1"),
        ("id", "0_1\x1b[2J", r"field 'episodes\[1\].id': expected text without control characters"),
        ("means", {"sr": 7.0}, "means: sr is 7, expected 0 to 1"),
    ],
)
def test_result_with_impossible_values_is_refused(tmp_path: Path, key: str, value: Any, message: str) -> None:
    stored = msgspec.to_builtins(make_result([0.0, 1.0, 0.25]))
    scores = stored["episodes"][1]["scores"] | {"tl": 3.0, "gp": -2.0, "t_spl": 1.25}
    stored["episodes"][1]["scores"] = scores
    assert read_result(save_json(tmp_path / "result.json", stored)).episodes[1].scores == scores
    for values in (stored, stored["episodes"][1], scores):
        if key in values:
            values[key] = value
    with pytest.raises(DataError, match=f"result.json: {message}"):
        read_result(save_json(tmp_path / "result.json", stored))


def test_constant_difference_has_an_interval_of_zero_width() -> None:
    found = compare([make_result(np.zeros(60)), make_result(np.full(60, 0.5))], measures=["spl"], draws=500)
    (spl,) = found.measures
    (gain,) = spl.differences
    assert (spl.measure, spl.means, gain.mean) == ("spl", (0.0, 0.5), 0.5)
    assert gain.over_paths is not None and gain.over_scenes is not None
    assert gain.over_paths == Interval(0.5, 0.5, p=2 / 501)  # none of 500 draws is below 0; one is added
    assert gain.over_scenes == Interval(0.5, 0.5, p=2**-3)  # a two-sided sign test of four scenes
    assert (found.episodes, found.paths, found.scenes) == (60, 20, 4)


def test_result_does_not_differ_from_itself() -> None:
    found = compare([make_result(SCORES), make_result(SCORES)], measures=["spl", "sr"], draws=100)
    assert found.differing == {}
    for row in found.measures:
        assert row.means[0] == row.means[1]
        (gain,) = row.differences
        assert gain.mean == 0.0 and gain.over_paths == gain.over_scenes == Interval(0.0, 0.0, 1.0)


def test_paired_interval_is_narrower_than_unpaired_ones() -> None:
    gain = np.random.default_rng(0).normal(0.02, 0.01, 60)
    first, second = make_result(SCORES), make_result(SCORES + gain)
    (row,) = compare([first, second], measures=["spl"], draws=2000).measures
    (found,) = row.differences
    assert found.over_paths is not None and 0 < found.over_paths.low < found.mean < found.over_paths.high
    assert found.mean == pytest.approx(gain.mean()) and found.over_paths.p < 0.01
    unpaired = [scores_of(result).intervals(draws=2000)["spl"] for result in (first, second)]
    assert unpaired[0][1] > unpaired[1][0]  # the intervals of the two means overlap widely


def test_instructions_of_a_path_are_resampled_together() -> None:
    """Three equal scores per path give the interval of the path means."""
    by_path = np.random.default_rng(1).normal(size=20)
    found = compare(
        [make_result(np.zeros(60)), make_result(np.repeat(by_path, 3))], measures=["spl"], draws=4000
    )
    interval = found.measures[0].differences[0].over_paths
    assert interval is not None
    expected = 2 * 1.96 * by_path.std() / np.sqrt(20)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.1)


def test_scenes_are_resampled_whole() -> None:
    """The difference comes from one scene of four: every draw is a multiple of a quarter."""
    scores = [float(number // 3 % 4 == 0) for number in range(60)]
    (row,) = compare([make_result(np.zeros(60)), make_result(scores)], measures=["spl"], draws=4000).measures
    (gain,) = row.differences
    assert gain.over_paths is not None and gain.over_scenes is not None
    assert (gain.mean, gain.over_scenes.low, gain.over_scenes.high) == (0.25, 0.0, 0.75)
    assert gain.over_paths.low > 0 and gain.over_scenes.p > 0.5  # (3/4)^4 of the draws leave out that scene


def test_single_scene_has_no_interval_over_scenes() -> None:
    first, second = make_result(SCORES, scenes=1), make_result(SCORES + 1, scenes=1)
    (gain,) = compare([first, second], measures=["spl"], draws=10).measures[0].differences
    assert gain.over_scenes is None and gain.over_paths is not None


def test_every_result_is_compared_with_the_first_in_any_order_of_episodes() -> None:
    shuffled = make_result(SCORES + 0.25)
    order = np.random.default_rng(0).permutation(60)
    shuffled = msgspec.structs.replace(shuffled, episodes=[shuffled.episodes[index] for index in order])
    found = compare([make_result(SCORES), make_result(SCORES), shuffled], measures=["sr", "spl"], draws=50)
    assert [row.measure for row in found.measures] == ["sr", "spl"]
    gains = [difference.mean for difference in found.measures[1].differences]
    assert gains == pytest.approx([0.0, 0.25]) and [len(row.means) for row in found.measures] == [3, 3]


def test_seed_changes_the_draws_only() -> None:
    results = [make_result(SCORES), make_result(SCORES[::-1])]
    first, again, other = (compare(results, measures=["spl"], draws=200, seed=seed) for seed in (0, 0, 1))
    assert first == again and first.measures != other.measures
    assert first.measures[0].means == other.measures[0].means


def test_differing_facts_are_reported() -> None:
    other = make_result(SCORES, memory="masked", hashes={**FACTS["hashes"], "weights": "b" * 64, "bank": "c"})
    assert compare([make_result(SCORES), other], measures=["spl"], draws=1).differing == {
        "memory": ("cold", "masked"),
        "hashes.weights": ("a" * 64, "b" * 64),
        "hashes.bank": (None, "c"),
    }


# -- groups of results with different seeds --------------------------------------------------------------


def test_groups_are_compared_by_their_mean_per_episode() -> None:
    """One seed of the second agent is far better, the other a little worse: the mean difference counts."""
    none = [make_result(SCORES), make_result(SCORES + 0.1)]
    memory = [make_result(SCORES[::-1] + 0.5), make_result(SCORES - 0.1)]
    (spl,) = compare([none, memory], measures=["spl"], draws=300).measures
    averages = [
        [sum(pair) / 2 for pair in zip(*scores, strict=True)]
        for scores in ((SCORES, SCORES + 0.1), (SCORES[::-1] + 0.5, SCORES - 0.1))
    ]
    (expected,) = compare(
        [make_result(average) for average in averages], measures=["spl"], draws=300
    ).measures
    assert spl.means == pytest.approx(expected.means)
    assert spl.differences[0].mean == pytest.approx(expected.differences[0].mean)
    for name in ("over_paths", "over_scenes"):
        intervals = [asdict(getattr(row.differences[0], name)) for row in (spl, expected)]
        assert intervals[0] == pytest.approx(intervals[1])
    assert spl.stds == pytest.approx((np.std([0, 0.1], ddof=1), np.std([0.5, -0.1], ddof=1)))
    assert expected.stds == (None, None)


def test_group_and_single_result_can_be_compared() -> None:
    found = compare(
        [make_result(SCORES), [make_result(SCORES), make_result(SCORES + 0.5)]], draws=10, measures=["spl"]
    )
    assert found.runs == (1, 2) and found.measures[0].differences[0].mean == pytest.approx(0.25)
    assert found.measures[0].stds[0] is None


def test_groups_with_other_episodes_are_refused() -> None:
    with pytest.raises(DataError, match="second: other episodes than in first: 57 and 60"):
        compare(
            [[make_result(SCORES)], [make_result(SCORES), make_result(SCORES[:57])]],
            names=["first", "second"],
        )
    with pytest.raises(DataError, match="at least two results to compare, found 1"):
        compare([[make_result(SCORES), make_result(SCORES)]])
    with pytest.raises(ConfigError, match="a group of results is empty"):
        compare([[make_result(SCORES)], []])


# -- refusals --------------------------------------------------------------------------------------------

CUT = make_result(SCORES[:57])
TWICE = msgspec.structs.replace(
    make_result(SCORES), episodes=make_result(SCORES).episodes + make_result(SCORES).episodes[:1]
)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (make_result(SCORES, task="r4r"), "result 2: task 'r4r', and 'r2r' in result 1"),
        (make_result(SCORES, split="val_seen"), "result 2: split 'val_seen', and 'val_unseen' in result 1"),
        (make_result(SCORES, hashes={"data": "e" * 64}), f"result 2: data (sha256) '{'e' * 20}', and 'dddd"),
        (make_result(SCORES, hashes={}), "result 2: data (sha256) 'None', and 'dddd"),
        (CUT, "result 2: other episodes than in result 1: 57 and 60, 19_0 is only in result 1"),
        (TWICE, "result 2: an episode occurs twice"),
        (
            with_scores(make_result(SCORES), {}),
            "result 2: its episodes have no scores; of split 'val_unseen' only the ",
        ),
        (
            with_scores(make_result(SCORES), {"sr": 0.0}),
            "result 2: no measure 'spl' of every episode; there are sr",
        ),
    ],
)
def test_results_of_different_episodes_are_refused(other: Result, message: str) -> None:
    with pytest.raises(EscemeError, match=f"^{re.escape(message)}"):
        compare([make_result(SCORES), other], measures=["spl"])


@pytest.mark.parametrize("options", [{"draws": 0}, {"seed": -1}, {"measures": []}, {"measures": ["unknown"]}])
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        compare([make_result(SCORES), make_result(SCORES)], **{"measures": ["spl"], **options})
    with pytest.raises(DataError, match="expected at least two results to compare, found 1"):
        compare([make_result(SCORES)])


# -- by visit --------------------------------------------------------------------------------------------


def test_means_by_visit_group_the_episodes() -> None:
    """20 paths of three instructions in 4 scenes are 15 visits per scene."""
    result = make_result(np.arange(60.0))
    groups = by_visit(result, "spl", edges=(1, 2, 4, 20, 30))
    assert [(group.first, group.last, group.episodes) for group in groups] == [
        (1, 1, 4),
        (2, 3, 8),
        (4, 15, 48),
    ]
    first = [episode.scores["spl"] for episode in result.episodes if episode.visit == 1]
    assert groups[0].mean == np.mean(first) == np.mean([0, 3, 6, 9])
    assert sum(group.mean * group.episodes for group in groups) / 60 == pytest.approx(29.5)
    assert sum(group.episodes for group in by_visit(result)) == 60
    assert by_visit(make_result(np.ones(60)), edges=(1,)) == [(1, 15, 1.0, 60)]
    assert by_visit(with_scores(result, {})) == []


@pytest.mark.parametrize("edges", [(), (0, 1), (2, 3), (1, 3, 3)])
def test_invalid_groups_and_measures_are_refused(edges: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="increasing numbers from 1"):
        by_visit(make_result(SCORES), edges=edges)
    with pytest.raises(ConfigError, match="no measure 'unknown'; there are spl, sr"):
        by_visit(make_result(SCORES), "unknown")
