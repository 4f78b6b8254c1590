"""Means over seeds, averages per episode, and the restriction to the first instruction of each path."""

from __future__ import annotations

from pathlib import Path
from statistics import stdev

import msgspec
import pytest

from esceme.errors import DataError
from esceme.evaluation import average_results, compare, first_told, means_over_seeds
from esceme.metrics import TOUR_METRICS
from esceme.tasks.tours import read_tours
from fixtures.toy_dataset import EPISODES, SPLIT, ToyDataset
from fixtures.toy_results import SCORES, make_result, with_scores


def test_means_over_seeds_have_the_deviation_of_a_sample() -> None:
    results = [make_result(SCORES + shift) for shift in (0.0, 0.125, 0.5)]
    over_seeds = means_over_seeds(results)
    spl = [result.means["spl"] for result in results]
    assert over_seeds["spl"].mean == pytest.approx(sum(spl) / 3)
    assert over_seeds["spl"].std == pytest.approx(stdev(spl))
    assert over_seeds["sr"] == (1.0, 0.0) and means_over_seeds(results[:1])["spl"] == (spl[0], None)


def test_results_are_averaged_per_episode_in_any_order() -> None:
    first, second = make_result(SCORES), make_result(SCORES[::-1].copy())
    shuffled = msgspec.structs.replace(second, episodes=second.episodes[7:] + second.episodes[:7])
    average = average_results([first, shuffled])
    assert [episode.id for episode in average.episodes] == [episode.id for episode in first.episodes]
    expected = (SCORES + SCORES[::-1]) / 2
    assert [episode.scores["spl"] for episode in average.episodes] == pytest.approx(expected.tolist())
    assert average.means["spl"] == pytest.approx(SCORES.mean())
    with pytest.raises(DataError, match="different episodes"):
        average_results([first, make_result(SCORES[:57])])


# -- first told ------------------------------------------------------------------------------------------


def test_first_told_episodes_are_the_first_of_each_path() -> None:
    """A path has three instructions; the result is in the order of the run."""
    result = make_result(SCORES)
    assert [episode.id for episode in first_told(result).episodes] == [f"{path}_0" for path in range(20)]
    assert first_told(result).means["spl"] == pytest.approx(SCORES[::3].mean())
    assert first_told(result).means["n"] == 20
    backwards = msgspec.structs.replace(result, episodes=result.episodes[::-1])
    assert {episode.id for episode in first_told(backwards).episodes} == {f"{p}_2" for p in range(20)}


def test_first_told_of_mixed_batches_follows_the_visits() -> None:
    """The released schedule shuffles episodes, but its results are in the order of the file."""
    result = make_result(SCORES, schedule="interleaved")
    last = max(episode.visit for episode in result.episodes)
    episodes = [
        msgspec.structs.replace(episode, visit=last + 1 - episode.visit) for episode in result.episodes
    ]
    found = first_told(msgspec.structs.replace(result, episodes=episodes))
    assert [episode.id for episode in found.episodes] == [f"{path}_2" for path in range(20)]


def test_first_told_result_without_scores_has_no_means() -> None:
    hidden = msgspec.structs.replace(with_scores(make_result(SCORES), {}), means={})
    assert first_told(hidden).means == {} and len(first_told(hidden).episodes) == 20


def test_first_told_result_of_tours_has_no_tour_metrics(dataset: ToyDataset, evaluated: object) -> None:
    result = evaluated("tour", tours=dataset.tours).result  # type: ignore[operator]
    assert all(name in result.means for name in TOUR_METRICS) and len(result.episodes) == EPISODES
    first = first_told(result)
    assert len(first.episodes) == len({episode.path for episode in result.episodes}) == EPISODES // 2
    assert not any(name in first.means or name in first.episodes[0].scores for name in TOUR_METRICS)
    order = [name for tour in read_tours(Path(dataset.tours), SPLIT) for name in tour.episode_ids]
    path_of = {episode.id: episode.path for episode in result.episodes}
    expected = {path_of[name]: name for name in reversed(order)}
    assert {episode.path: episode.id for episode in first.episodes} == expected
    compared = compare([result, result], draws=10, first_told=True)
    assert "t_spl" not in {row.measure for row in compared.measures} and compared.episodes == EPISODES // 2


def test_first_told_results_of_different_orders_are_paired_by_path() -> None:
    """In another order, another instruction of a path may come first."""
    forwards = make_result(SCORES)
    backwards = msgspec.structs.replace(forwards, episodes=forwards.episodes[::-1])
    found = compare([forwards, backwards], measures=["spl"], draws=200, first_told=True)
    (spl,) = found.measures
    assert (found.episodes, found.paths, found.first_told) == (20, 20, True)
    assert spl.means == pytest.approx((SCORES[::3].mean(), SCORES[2::3].mean()))
    assert spl.differences[0].mean == pytest.approx((SCORES[2::3] - SCORES[::3]).mean())
    assert compare([forwards, backwards], measures=["spl"], draws=10).measures[0].differences[0].mean == 0.0
