"""Comparing results: known answers of hand-made ones, what is refused, and scores by visit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from esceme.errors import ConfigError, DataError, EscemeError
from esceme.evaluation.compare import by_visit, compare
from esceme.evaluation.result import EpisodeResult, Result, scores_of

FACTS = {
    "task": "r2r",
    "split": "val_unseen",
    "memory": "cold",
    "hashes": {"weights": "a" * 64, "data": "d" * 64},
}


def lived(number: int, score: float, *, scenes: int = 4, per_path: int = 3) -> EpisodeResult:
    """Episode `number`; three instructions to a path, and paths dealt out to scenes in turn."""
    path = number // per_path
    return EpisodeResult(
        id=f"{path}_{number % per_path}",
        scene=f"house{path % scenes}",
        path=f"{path}",
        visit=1 + path // scenes * per_path + number % per_path,
        decisions=1,
        stopped=True,
        trajectory=[("v", 0.0, 0.0)],
        scores={"spl": score, "sr": 1.0},
    )


def made(scores: Sequence[float], *, scenes: int = 4, **facts: Any) -> Result:
    return Result(
        facts={**FACTS, **facts},
        means={"spl": float(np.mean(scores)), "sr": 1.0},
        episodes=[lived(number, score, scenes=scenes) for number, score in enumerate(scores)],
    )


def scored(result: Result, scores: Mapping[str, float]) -> Result:
    """The result with other scores of every episode."""
    episodes = [msgspec.structs.replace(each, scores=dict(scores)) for each in result.episodes]
    return msgspec.structs.replace(result, episodes=episodes)


DRAWN = np.random.default_rng(3).random(60)


def test_a_gain_that_is_the_same_everywhere_is_certain() -> None:
    found = compare([made(np.zeros(60)), made(np.full(60, 0.5))], measures=["spl"], draws=500)
    (spl,) = found.measures
    (gain,) = spl.differences
    assert (spl.measure, spl.means, gain.mean) == ("spl", (0.0, 0.5), 0.5)
    assert gain.over_paths is not None and gain.over_scenes is not None
    assert gain.over_paths[:2] == gain.over_scenes[:2] == (0.5, 0.5)
    assert gain.over_paths.p == 2 / 501  # of 500 draws none is beyond, of 501 one
    assert gain.over_scenes.p == 2**-3  # four scenes agree: so do four coins, every eighth time
    assert (found.episodes, found.paths, found.scenes) == (60, 20, 4)


def test_a_result_does_not_differ_from_itself() -> None:
    found = compare([made(DRAWN), made(DRAWN)], measures=["spl", "sr"], draws=100)
    assert found.differing == {}
    for row in found.measures:
        assert row.means[0] == row.means[1]
        (gain,) = row.differences
        assert gain.mean == 0.0 and gain.over_paths == gain.over_scenes == (0.0, 0.0, 1.0)


def test_pairing_sees_a_gain_that_the_spread_of_scores_would_hide() -> None:
    gain = np.random.default_rng(0).normal(0.02, 0.01, 60)
    first, second = made(DRAWN), made(DRAWN + gain)
    (row,) = compare([first, second], measures=["spl"], draws=2000).measures
    (found,) = row.differences
    assert found.over_paths is not None and 0 < found.over_paths.low < found.mean < found.over_paths.high
    assert found.mean == pytest.approx(gain.mean()) and found.over_paths.p < 0.01
    unpaired = [scores_of(each).intervals(draws=2000)["spl"] for each in (first, second)]
    assert unpaired[0][1] > unpaired[1][0]  # the intervals of the two means overlap widely


def test_instructions_of_a_path_stay_together() -> None:
    """Three times the same number says no more than one: the interval is that of the path means."""
    by_path = np.random.default_rng(1).normal(size=20)
    found = compare([made(np.zeros(60)), made(np.repeat(by_path, 3))], measures=["spl"], draws=4000)
    interval = found.measures[0].differences[0].over_paths
    assert interval is not None
    expected = 2 * 1.96 * by_path.std() / np.sqrt(20)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.1)


def test_scenes_are_resampled_whole() -> None:
    """All of a gain comes from one scene of four: every draw is a multiple of a quarter of it."""
    scores = [float(number // 3 % 4 == 0) for number in range(60)]
    (row,) = compare([made(np.zeros(60)), made(scores)], measures=["spl"], draws=4000).measures
    (gain,) = row.differences
    assert gain.over_paths is not None and gain.over_scenes is not None
    assert gain.mean == 0.25 and gain.over_scenes[:2] == (0.0, 0.75)
    assert gain.over_paths.low > 0 and gain.over_scenes.p > 0.5  # (3/4)^4 of the draws miss that scene


def test_a_single_scene_says_nothing_about_others() -> None:
    first, second = made(DRAWN, scenes=1), made(DRAWN + 1, scenes=1)
    (gain,) = compare([first, second], measures=["spl"], draws=10).measures[0].differences
    assert gain.over_scenes is None and gain.over_paths is not None


def test_every_result_is_compared_with_the_first_whatever_its_order() -> None:
    shuffled = made(DRAWN + 0.25)
    order = np.random.default_rng(0).permutation(60)
    shuffled = msgspec.structs.replace(shuffled, episodes=[shuffled.episodes[place] for place in order])
    found = compare([made(DRAWN), made(DRAWN), shuffled], measures=["sr", "spl"], draws=50)
    assert [row.measure for row in found.measures] == ["sr", "spl"]
    gains = [each.mean for each in found.measures[1].differences]
    assert gains == pytest.approx([0.0, 0.25]) and [len(row.means) for row in found.measures] == [3, 3]


def test_the_seed_decides_the_draws_alone() -> None:
    results = [made(DRAWN), made(DRAWN[::-1])]
    first, again, other = (compare(results, measures=["spl"], draws=200, seed=seed) for seed in (0, 0, 1))
    assert first == again and first.measures != other.measures
    assert first.measures[0].means == other.measures[0].means


def test_facts_that_differ_are_named() -> None:
    other = made(DRAWN, memory="masked", hashes={**FACTS["hashes"], "weights": "b" * 64, "bank": "c"})
    assert compare([made(DRAWN), other], measures=["spl"], draws=1).differing == {
        "memory": ("cold", "masked"),
        "hashes.weights": ("a" * 64, "b" * 64),
        "hashes.bank": (None, "c"),
    }


# -- refusals --------------------------------------------------------------------------------------------

CUT = made(DRAWN[:57])
TWICE = msgspec.structs.replace(made(DRAWN), episodes=made(DRAWN).episodes + made(DRAWN).episodes[:1])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (made(DRAWN, task="r4r"), "result 2: task 'r4r', and 'r2r' in result 1"),
        (made(DRAWN, split="val_seen"), "result 2: split 'val_seen', and 'val_unseen' in result 1"),
        (made(DRAWN, hashes={"data": "e" * 64}), f"result 2: data (sha256) '{'e' * 20}', and 'dddd"),
        (made(DRAWN, hashes={}), "result 2: data (sha256) 'None', and 'dddd"),
        (CUT, "result 2: other episodes than in result 1: 57 and 60, 19_0 is only in result 1"),
        (TWICE, "result 2: an episode occurs twice"),
        (scored(made(DRAWN), {}), "result 2: its episodes have no scores; of split 'val_unseen' only the "),
        (scored(made(DRAWN), {"sr": 0.0}), "result 2: no measure 'spl' of every episode; there are sr"),
    ],
)
def test_what_is_not_of_the_same_episodes_is_refused(other: Result, message: str) -> None:
    with pytest.raises(EscemeError) as refused:
        compare([made(DRAWN), other], measures=["spl"])
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("results", [[], [made(DRAWN)]])
def test_a_single_result_is_not_compared(results: list[Result]) -> None:
    with pytest.raises(DataError, match=f"expected at least two results to compare, found {len(results)}"):
        compare(results)


@pytest.mark.parametrize("options", [{"draws": 0}, {"seed": -1}, {"measures": []}, {"measures": ["love"]}])
def test_options_without_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        compare([made(DRAWN), made(DRAWN)], **{"measures": ["spl"], **options})


# -- by visit --------------------------------------------------------------------------------------------


def test_scores_by_visit_are_means_of_groups() -> None:
    """20 paths in 4 scenes: every scene is visited 15 times."""
    result = made(np.arange(60.0))
    groups = by_visit(result, "spl", edges=(1, 2, 4, 20, 30))
    assert [(each.first, each.last, each.episodes) for each in groups] == [(1, 1, 4), (2, 3, 8), (4, 15, 48)]
    first = [each.scores["spl"] for each in result.episodes if each.visit == 1]
    assert groups[0].mean == np.mean(first) == np.mean([0, 3, 6, 9])
    assert sum(each.mean * each.episodes for each in groups) / 60 == pytest.approx(29.5)
    assert sum(each.episodes for each in by_visit(result)) == 60


def test_a_group_may_be_a_single_visit_and_the_last_is_open() -> None:
    groups = by_visit(made(np.ones(60)), edges=(1,))
    assert groups == [(1, 15, 1.0, 60)]


def test_without_scores_there_is_nothing_by_visit() -> None:
    assert by_visit(scored(made(DRAWN), {})) == []


@pytest.mark.parametrize("edges", [(), (0, 1), (2, 3), (1, 3, 3)])
def test_groups_of_visits_rise_from_one(edges: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="increasing numbers from 1"):
        by_visit(made(DRAWN), edges=edges)


def test_an_unknown_measure_by_visit_is_refused() -> None:
    with pytest.raises(ConfigError, match="no measure 'love'; there are spl, sr"):
        by_visit(made(DRAWN), "love")
