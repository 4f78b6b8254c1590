"""Reconstructed memory: equal to the bank that an evaluation saves, and to what protocols clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from esceme.evaluation import EpisodeResult, EvaluationConfig, Protocol, Result, evaluate
from esceme.evaluation.history import BEFORE, MemoryHistory, Moment, memory_histories
from esceme.memory import load_bank
from fixtures.random_runs import random_run


def result_of(memory: str, episodes: list[tuple[str, int, str, bool]]) -> Result:
    """Result of episodes in one scene: (id, visit, letters of viewpoints, whether the agent stopped)."""
    return Result(
        facts={"memory": memory},
        means={},
        episodes=[
            EpisodeResult(
                id=name,
                scene="house",
                path=name,
                visit=visit,
                decisions=max(1, len(path) - (not stopped)),
                stopped=stopped,
                trajectory=[(letter, 0.0, 0.0) for letter in path],
                scores={},
            )
            for name, visit, path, stopped in episodes
        ],
    )


EPISODES = [("1", 1, "abc", False), ("2", 2, "bd", True), ("3", 1, "e", True), ("4", 2, "ae", True)]


def test_memory_holds_the_viewpoints_of_decisions_before_the_step() -> None:
    history = memory_histories(result_of("cold", EPISODES))["house"]
    assert history.remembered(0) == {}
    assert history.remembered(0, 1) == {"a": Moment(0, 0)}
    # the agent ran out of steps at c, which is therefore not stored
    assert history.remembered(1) == {"a": Moment(0, 0), "b": Moment(0, 1)}
    assert history.remembered(3, 2) == history.remembered(4)
    assert history.remembered(4) == {
        **{"a": Moment(0, 0), "b": Moment(0, 1)},
        **{"d": Moment(1, 1), "e": Moment(2, 0)},
    }


@pytest.mark.parametrize(
    ("memory", "expected"),
    [("none", ""), ("episodic", ""), ("tour", "e"), ("cold", "abde"), ("masked", "abde")],
)
def test_protocols_clear_the_memory(memory: str, expected: str) -> None:
    history = memory_histories(result_of(memory, EPISODES))["house"]
    assert {*history.remembered(3)} == {*expected}


def test_viewpoints_of_an_earlier_pass_are_older_than_all_episodes() -> None:
    history = memory_histories(result_of("two-pass", EPISODES), {"house": ["z", "a"]})["house"]
    assert history.remembered(0) == {"a": BEFORE, "z": BEFORE}


@pytest.mark.parametrize("memory", ["cold", "episodic"])
def test_history_ends_with_the_saved_bank(toy_root: Path, tmp_path: Path, memory: Protocol) -> None:
    run = random_run(tmp_path / "run", toy_root)
    config = EvaluationConfig(
        run=str(run), data=str(toy_root), split="val_seen", memory=memory, task="r2r", max_steps=4
    )
    histories = memory_histories(evaluate(config, tmp_path / "out"))
    bank = load_bank(tmp_path / "out/bank.safetensors")

    def at_the_end(history: MemoryHistory) -> set[str]:
        return {*history.remembered(len(history.stored) - 1, 99)}

    assert {scene: at_the_end(history) for scene, history in histories.items()} == {
        scene: {*bank[scene].viewpoints} for scene in bank.scenes
    }
