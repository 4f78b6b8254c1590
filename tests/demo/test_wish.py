"""What follows from a wish: the same budget for both agents, and evaluations where others find them."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from esceme.cli.evaluate import default_folder
from esceme.demo.wish import ROWS, SPLITS, Wish, share_out
from esceme.errors import ConfigError
from esceme.recipes import RECIPES
from esceme.synth import WorldConfig, embedded_world


@pytest.mark.parametrize("iterations", [None, 1, 40, 5000])
def test_both_agents_have_the_same_budget_and_differ_in_the_reader_alone(iterations: int | None) -> None:
    none, memory = Wish(seed=3, iterations=iterations).experiments().values()
    assert none.training == memory.training and none.validation == memory.validation
    assert (none.reader, memory.reader) == ("unaided", "candidate-enhancing")
    same = {"about": "", "reader": "unaided", "reader_settings": {}}
    assert replace(none, **same) == replace(memory, **same)
    assert none.seed == 3 and none.training.iterations == (
        iterations or RECIPES["r2r-small"].training.iterations
    )


def test_without_a_wish_for_iterations_the_recipes_are_taken_as_they_are() -> None:
    assert list(Wish().experiments().values()) == [RECIPES["r2r-small"], RECIPES["r2r-small-esceme"]]


def test_a_shorter_training_keeps_its_proportions() -> None:
    recipe = RECIPES["r2r-small"].training
    shorter = Wish(iterations=recipe.iterations // 2).experiments()["none"].training
    assert shorter.imitation_first == pytest.approx(recipe.imitation_first / 2, abs=1)
    assert shorter.checkpoint_every == pytest.approx(recipe.checkpoint_every / 2, abs=1)


@pytest.mark.parametrize("wish", [Wish(iterations=0), Wish(iterations=-5), Wish(seed=-1)])
def test_a_wish_without_sense_is_refused(wish: Wish) -> None:
    with pytest.raises(ConfigError, match=r"expected (at least 1|0 or more)"):
        wish.experiments()


def test_results_lie_where_the_evaluate_command_puts_them() -> None:
    evaluations = Wish(out=Path("look")).evaluations(Path("world"))
    assert [(each.split, each.memory) for each in evaluations] == [(s, m) for s in SPLITS for m in ROWS]
    for each in evaluations:
        assert each.folder == default_folder(each.plan)
        assert each.plan.run == ("look/none" if each.memory == "none" else "look/memory")


def test_evaluations_are_shared_out_evenly_and_completely() -> None:
    evaluations = Wish(size="tiny").evaluations(embedded_world(WorldConfig("tiny")))
    shares = share_out(evaluations, 2)
    assert sorted(each.name for share in shares for each in share) == sorted(
        each.name for each in evaluations
    )
    sizes = {"val_seen": 24, "val_unseen": 36}
    walks = [sum(sizes[each.split] * each.plan.passes for each in share) for share in shares]
    assert sum(walks) == 5 * (24 + 36) and abs(walks[0] - walks[1]) <= 36


def test_the_command_says_everything_and_survives_a_shell() -> None:
    wish = Wish(out=Path("my look"), size="tiny", seed=2, iterations=7)
    words = ["esceme", "demo", "--out", "my look", "--size", "tiny", "--seed", "2", "--iterations", "7"]
    assert shlex.split(wish.command) == words
    assert Wish().command == "esceme demo --out demo --size small --seed 0"
