"""Demo settings: equal training budgets, result folders, commands."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from esceme.cli.evaluate_command import default_folder
from esceme.demo import DemoConfig
from esceme.demo.demo_config import PROTOCOL_RUNS, SPLITS, result_folder
from esceme.memory import NoMemoryConfig
from esceme.recipes import RECIPES


@pytest.mark.parametrize("iterations", [None, 1, 40, 5000])
def test_both_agents_have_the_same_budget_and_differ_only_in_the_reader(iterations: int | None) -> None:
    none, memory = DemoConfig(seed=3, iterations=iterations).experiments().values()
    assert none.navigator.reader == NoMemoryConfig()
    assert memory.navigator.reader_name == "candidate-enhancing"
    assert replace(memory, about=none.about, navigator=none.navigator) == none
    assert replace(memory.navigator, reader=NoMemoryConfig()) == none.navigator
    assert none.seed == 3 and none.training.iterations == (
        iterations or RECIPES["r2r-small"].training.iterations
    )


def test_default_experiments_are_the_recipes() -> None:
    assert list(DemoConfig().experiments().values()) == [RECIPES["r2r-small"], RECIPES["r2r-small-esceme"]]


def test_shorter_training_keeps_its_proportions() -> None:
    recipe = RECIPES["r2r-small"].training
    shorter = DemoConfig(iterations=recipe.iterations // 2).experiments()["none"].training
    assert shorter.imitation_warmup_iterations == pytest.approx(recipe.imitation_warmup_iterations / 2, abs=1)
    assert shorter.checkpoint_every == pytest.approx(recipe.checkpoint_every / 2, abs=1)


def test_results_are_in_the_default_folders_of_the_evaluate_command() -> None:
    evaluations = DemoConfig(out=Path("trial")).evaluations(Path("world"))
    assert [(e.split, e.memory) for e in evaluations] == [(s, m) for s in SPLITS for m in PROTOCOL_RUNS]
    for evaluation in evaluations:
        assert result_folder(evaluation) == default_folder(evaluation)
        assert evaluation.run == ("trial/none" if evaluation.memory == "none" else "trial/memory")


def test_command_holds_all_settings_quoted_for_a_shell() -> None:
    config = DemoConfig(out=Path("my demo"), size="tiny", seed=2, iterations=7)
    words = ["esceme", "demo", "--out", "my demo", "--size", "tiny", "--seed", "2", "--iterations", "7"]
    assert shlex.split(config.command) == words
    assert DemoConfig().command == "esceme demo --out demo --size small --seed 0"
