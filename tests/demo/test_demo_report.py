"""The demo's report: scores and their summary, selected episodes, drawings."""

from __future__ import annotations

import pytest

from esceme.demo.demo_report import (
    HEADINGS,
    SplitScores,
    format_cells,
    select_trajectories,
    selection_sentence,
    summary_sentence,
    visit_curves,
)
from esceme.evaluation import EpisodeResult, Result


def episode_result(
    name: str, *path: str, spl: float = 0.0, scene: str = "house", visit: int = 1, stopped: bool = True
) -> EpisodeResult:
    return EpisodeResult(
        id=name,
        scene=scene,
        path=name.partition("_")[0],
        visit=visit,
        decisions=len(path) if stopped else len(path) - 1,
        stopped=stopped,
        trajectory=[(viewpoint, 0.0, 0.0) for viewpoint in path],
        scores={"tl": 9.0 + spl, "ne": 3.0 - spl, "sr": float(spl > 0), "spl": spl},
    )


def result(memory: str, episodes: list[EpisodeResult]) -> Result:
    means = {name: sum(e.scores[name] for e in episodes) / len(episodes) for name in HEADINGS}
    facts = {"memory": memory, "task": "r2r", "split": "val_unseen"}
    return Result(facts=facts, means=means, episodes=episodes)


def results(**episodes: list[EpisodeResult]) -> dict[str, Result]:
    return {memory: result(memory, group) for memory, group in episodes.items()}


# -- scores ----------------------------------------------------------------------------------------------


def split_scores(cold: list[float], *, num_paths: int = 3) -> SplitScores:
    """Scores of two instructions per path in two houses."""
    spl = {"none": [0.2] * 6, "cold": cold, "two-pass": [0.8] * 6, "episodic": [0.1] * 6}

    def group(values: list[float]) -> list[EpisodeResult]:
        return [
            episode_result(
                f"{n // 2 % num_paths}_{n}", "hall", spl=value, scene=f"house {n % 2}", visit=n // 2 + 1
            )
            for n, value in enumerate(values)
        ]

    return SplitScores.of("val_unseen", results(**{memory: group(values) for memory, values in spl.items()}))


def test_rows_have_means_intervals_and_differences_to_none() -> None:
    scores = split_scores([0.3, 0.5, 0.3, 0.5, 0.3, 0.5])
    assert (scores.episodes, scores.paths, scores.scenes) == (6, 3, 2)
    gains = {row.memory: None if row.gain is None else round(row.gain.mean, 6) for row in scores.rows}
    assert gains == {"none": None, "cold": 0.2, "two-pass": 0.6, "episodic": -0.1}
    for row in scores.rows:
        low, high = row.intervals["spl"]
        assert low <= row.means["spl"] + 1e-9 and row.means["spl"] <= high + 1e-9


def test_cells_are_in_metres_and_per_cent() -> None:
    none, cold = split_scores([0.3, 0.5, 0.3, 0.5, 0.3, 0.5]).rows[:2]
    assert format_cells(none)[-1] == ("", "")
    assert [value for value, _ in format_cells(cold)] == ["9.40", "2.60", "100.0", "40.0", "+20.0"]
    assert format_cells(cold)[3][1] == "40.0..40.0"  # every path has the same mean


def test_visit_curves_include_the_number_of_episodes() -> None:
    none, cold = visit_curves(split_scores([0.0, 0.0, 0.3, 0.5, 1.0, 1.0]), ("none", "cold"))
    assert none.xs == cold.xs == ["1 (n 2)", "2 (n 2)", "3 (n 2)"]
    assert none.ys == pytest.approx([20.0, 20.0, 20.0]) and cold.ys == pytest.approx([0.0, 40.0, 100.0])


@pytest.mark.parametrize(
    ("cold", "num_paths", "words"),
    [
        ([0.5] * 6, 3, "a difference of +30.0 points (95 % interval +30.0..+30.0), so memory helped;"),
        ([0.1] * 6, 3, "a difference of -10.0 points (95 % interval -10.0..-10.0), so memory did harm;"),
        ([0.2, 0.2, 0.9, 0.9, 0.1, 0.1], 3, ", so this run does not show whether memory helped;"),
        ([0.5] * 6, 1, "+30.0 points, without an interval because there is only one path;"),
    ],
)
def test_verdict_claims_only_what_the_interval_allows(cold: list[float], num_paths: int, words: str) -> None:
    text = summary_sentence(split_scores(cold, num_paths=num_paths))
    assert words in text and text.count(". ") == 0 and text.endswith(".")
    assert f"(cold) reached {100 * sum(cold) / 6:.1f} SPL and the agent without memory 20.0" in text
    assert "(two-pass) the agent with memory reached 80.0" in text and "(episodic) 10.0" in text
    assert text.startswith("On 6 episodes in 2 houses ")


# -- selected episodes -----------------------------------------------------------------------------------


def test_selected_episodes_gain_most_and_come_from_different_scenes() -> None:
    def group(**spl: float) -> list[EpisodeResult]:
        return [episode_result(name, "hall", spl=value, scene=name[0]) for name, value in spl.items()]

    by_memory = results(
        none=group(a1_0=0.1, a2_0=0.0, a2_1=0.0, b1_0=0.9, c1_0=0.5),
        cold=group(a1_0=1.0, a2_0=0.5, a2_1=0.4, b1_0=0.8, c1_0=0.7),
    )
    assert select_trajectories(by_memory, 5) == ["a2_0", "c1_0", "a1_0", "a2_1"]
    assert select_trajectories(by_memory, 2) == ["a2_0", "c1_0"]


def test_episode_that_succeeds_without_earlier_episodes_is_not_selected() -> None:
    def group(successful: str) -> list[EpisodeResult]:
        return [
            episode_result(name, "hall", spl=float(name in successful), scene=name, visit=visit)
            for visit, name in enumerate("abc", 1)
        ]

    by_memory = results(none=group("c"), cold=group("abc"), episodic=group("ac"))
    assert select_trajectories(by_memory, 1) == ["b"]


@pytest.mark.parametrize(
    ("cold", "words"),
    [
        ((0.9, 0.1), "episodes in which the last result is ahead most"),
        ((0.5, 0.0), "episodes in which the last result fails"),
        ((0.5, 0.5), "Memory changed no score"),
    ],
)
def test_selection_claims_only_what_the_scores_show(cold: tuple[float, float], words: str) -> None:
    by_memory = results(
        none=[episode_result(name, "hall", spl=0.5, scene=name) for name in "ab"],
        cold=[
            episode_result(name, "hall", spl=spl, scene=name) for name, spl in zip("ab", cold, strict=True)
        ],
    )
    assert words in selection_sentence(by_memory, 2)
    assert select_trajectories(by_memory, 2)
