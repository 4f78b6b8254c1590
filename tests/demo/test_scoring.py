"""What came out: means, paired differences, and words that do not promise more than was measured."""

from __future__ import annotations

import pytest

from esceme.demo.scoring import HEADINGS, Scoring, cells, verdict, visit_curves
from esceme.evaluation import EpisodeResult, Result

MEMORIES = ("none", "cold", "two-pass", "episodic")


def result(memory: str, spl: list[float], *, split: str = "val_unseen") -> Result:
    """Walks of three paths in two houses, two instructions each, with these scores."""
    episodes = [
        EpisodeResult(
            id=f"{place}_0",
            scene=f"house {place % 2}",
            path=f"{place // 2}",
            visit=place // 2 + 1,
            decisions=3,
            stopped=True,
            trajectory=[("here", 0.0, 0.0)],
            scores={"tl": 9.0 + each, "ne": 3.0 - each, "sr": float(each > 0), "spl": each},
        )
        for place, each in enumerate(spl)
    ]
    means = {name: sum(each.scores[name] for each in episodes) / len(episodes) for name in HEADINGS}
    return Result(facts={"memory": memory, "task": "r2r", "split": split}, means=means, episodes=episodes)


def scoring(cold: list[float]) -> Scoring:
    scores = {"none": [0.2] * 6, "cold": cold, "two-pass": [0.8] * 6, "episodic": [0.1] * 6}
    return Scoring.of("val_unseen", {memory: result(memory, spl) for memory, spl in scores.items()})


def test_every_row_has_values_intervals_and_its_difference_to_none() -> None:
    found = scoring([0.3, 0.5, 0.3, 0.5, 0.3, 0.5])
    assert (found.episodes, found.paths, found.scenes) == (6, 3, 2)
    assert [row.memory for row in found.rows] == list(MEMORIES)
    gains = [None if row.gain is None else round(row.gain.mean, 6) for row in found.rows]
    assert gains == [None, 0.2, 0.6, -0.1]
    for row in found.rows:
        assert row.means["spl"] == pytest.approx(
            found.row("none").means["spl"] + (row.gain.mean if row.gain else 0)
        )
        low, high = row.intervals["spl"]
        assert low <= row.means["spl"] + 1e-9 and row.means["spl"] <= high + 1e-9


def test_cells_have_metres_and_per_cent() -> None:
    none, cold = scoring([0.3, 0.5, 0.3, 0.5, 0.3, 0.5]).rows[:2]
    assert cells(none)[-1] == ("", "")
    assert [value for value, _ in cells(cold)] == ["9.40", "2.60", "100.0", "40.0", "+20.0"]
    assert cells(cold)[3][1] == "40.0..40.0"  # every path has the same mean


def test_curves_say_how_many_walks_a_value_is_the_mean_of() -> None:
    none, cold = visit_curves(scoring([0.0, 0.0, 0.3, 0.5, 1.0, 1.0]), ("none", "cold"))
    assert none.xs == cold.xs == ["1 (n 2)", "2 (n 2)", "3 (n 2)"]
    assert none.ys == pytest.approx([20.0, 20.0, 20.0]) and cold.ys == pytest.approx([0.0, 40.0, 100.0])


@pytest.mark.parametrize(
    ("cold", "words"),
    [
        ([0.5] * 6, "a difference of +30.0 points (95 % interval +30.0..+30.0), so memory helped;"),
        ([0.1] * 6, "a difference of -10.0 points (95 % interval -10.0..-10.0), so memory did harm;"),
        ([0.2, 0.2, 0.9, 0.9, 0.1, 0.1], ", so this run does not tell whether memory helped;"),
    ],
)
def test_the_verdict_is_what_the_interval_allows(cold: list[float], words: str) -> None:
    told = verdict(scoring(cold))
    assert words in told and told.count(". ") == 0 and told.endswith(".")
    assert f"(cold) reached {100 * sum(cold) / 6:.1f} SPL and the one without memory 20.0" in told
    assert "(two-pass) it reached 80.0" in told and "(episodic) 10.0" in told
    assert told.startswith("On 6 walks through 2 houses ")
