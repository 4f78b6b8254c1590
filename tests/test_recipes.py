"""Recipes: the released scripts as they are in effect, number by number, and small ones in pairs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from esceme.config import Experiment, as_json, from_json, value_of, with_settings
from esceme.errors import ConfigError
from esceme.memory import READERS
from esceme.navigator import Navigator
from esceme.recipes import PAPER, RECIPES, SMALL, find_recipe
from esceme.runs import NavigatorConfig
from esceme.tasks.catalogue import TASKS

# The columns of the specification's table G, "eff." where that differs from what is intended, and for RxR,
# which the release cannot run, those of HAMT's own script. What ESceme's script changes is below.
EFFECTIVE: dict[str, dict[str, Any]] = {
    "r2r": {
        "training.learning_rate": 1e-5,
        "training.iterations": 100_000,
        "validation.every": 2000,
        "training.batch": 8,
        "max_steps": 15,
        "max_tokens": 60,
        "keep": "first",
        "agent.freeze_text": True,
        "agent.freeze_history": True,
        "agent.language_cross_attention": True,
        "feature_dropout": 0.4,
        "training.augmentation": "prevalent",
        "training.scale_by_batch": False,
        "training.supervision": "annotated",
        "training.reward": "path",
        "validation.first": True,
        "validation.best": "sr+spl",
        "validation.best_split": "val_unseen",
    },
    "r4r": {
        "training.learning_rate": 1e-5,
        "training.iterations": 100_000,
        "validation.every": 2000,
        "training.batch": 8,
        "max_steps": 15,
        "max_tokens": 80,
        "keep": "first",
        "agent.freeze_text": False,
        "agent.freeze_history": False,
        "agent.language_cross_attention": False,
        "feature_dropout": 0.4,
        "training.augmentation": "",
        "training.scale_by_batch": False,
        "training.supervision": "annotated",
        "training.reward": "path",
        "validation.first": True,
        "validation.best": "sr+spl",
        "validation.best_split": "val_unseen_sampled",
    },
    "cvdn": {
        "training.learning_rate": 1e-5,
        "training.iterations": 100_000,
        "validation.every": 2000,
        "training.batch": 4,
        "max_steps": 30,
        "max_tokens": 100,
        "keep": "last",
        "agent.freeze_text": False,
        "agent.freeze_history": False,
        "agent.language_cross_attention": False,
        "feature_dropout": 0.4,
        "training.augmentation": "",
        "training.scale_by_batch": True,
        "training.supervision": "player-or-shortest",
        "training.reward": "goal",
        "validation.first": True,
        "validation.best": "gp",
        "validation.best_split": "val_unseen",
    },
    "rxr": {
        "training.learning_rate": 1e-5,
        "training.iterations": 200_000,
        "validation.every": 2000,
        "training.batch": 8,
        "max_steps": 20,
        "max_tokens": 250,
        "keep": "first",
        "agent.freeze_text": True,
        "agent.freeze_history": True,
        "agent.language_cross_attention": False,
        "feature_dropout": 0.3,
        "training.augmentation": "",
        "training.scale_by_batch": False,
        "training.supervision": "annotated",
        "training.reward": "path",
        "validation.first": True,
        "validation.best": "sr+spl",
        "validation.best_split": "val_unseen",
        "agent.vocabulary": 250_002,
        "agent.positions": 514,
        "agent.epsilon": 1e-5,
        "agent.feature_width": 512,
        "features": "pth_vit_base_patch32_224_clip.hdf5",
    },
}
COMMON: dict[str, Any] = {
    "training.method": "imitation+a2c",
    "training.imitation_first": 0,
    "training.imitation_weight": 0.2,
    "training.discount": 0.9,
    "training.entropy_weight": 0.01,
    "training.normalise": "steps",
    "training.weight_decay": 0.01,
    "training.clip": 40.0,
    "training.decay": "constant",
    "training.warm_up": 0,
    "training.teacher": "time",
    "training.completeness.way": "as-released",
    "validation.memory": "cold",
    "text": "encoded",
    "seed": 0,
    "agent.text_layers": 9,
    "agent.cross_layers": 4,
    "agent.history_layers": 0,
    "agent.panorama_layers": 2,
    "agent.encode_panorama": True,
    "agent.hidden": 768,
    "agent.heads": 12,
    "agent.max_steps": 50,
    "agent.angle_width": 4,
    "agent.dropout": 0.1,
    "agent.critic_dropout": 0.5,
    "agent.grounding": 0,
    "agent.context_views": True,
    "agent.stop_shows": "nothing",
}
VIT = {"features": "pth_vit_base_patch16_224_imagenet_r2r.e2e.ft.22k.hdf5"}
BERT = {
    **VIT,
    "agent.vocabulary": 30522,
    "agent.positions": 512,
    "agent.epsilon": 1e-12,
    "agent.feature_width": 768,
}
ESCEME = {
    "reader": "candidate-enhancing",
    "reader.pooling": "max",
    "reader.order": "feature-memory",
    "reader.context": "itself",
    "reader.stop": "fused",
    "reader.norm": True,
    "reader.shortcut": "none",
    "reader.hidden": None,
}
OF_ESCEME_ON_R2R = {"training.learning_rate": 8e-6, "validation.first": False}


def read(experiment: Experiment, names: dict[str, Any]) -> dict[str, Any]:
    return {name: value_of(experiment, tuple(name.split("."))) for name in names}


def build(experiment: Experiment) -> Navigator:
    """Its network, of shapes without numbers."""
    with torch.device("meta"):
        return NavigatorConfig(
            agent=experiment.agent,
            agent_settings=experiment.agent_settings,
            reader=experiment.reader,
            reader_settings=experiment.reader_settings,
            feature_dropout=experiment.feature_dropout,
        ).build()


def size(part: torch.nn.Module) -> int:
    return sum(each.numel() for each in part.parameters())


# -- the paper's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", EFFECTIVE)
def test_rows_without_memory_are_as_the_scripts_are_in_effect(task: str) -> None:
    expected = {**COMMON, **BERT, **EFFECTIVE[task], "task": task, "reader": "unaided"}
    assert read(PAPER[f"{task}-hamt"], expected) == expected


@pytest.mark.parametrize("task", EFFECTIVE)
def test_rows_with_memory_differ_as_their_scripts_do(task: str) -> None:
    expected = {**COMMON, **BERT, **EFFECTIVE[task], **ESCEME, "task": task}
    if task == "r2r":
        expected |= OF_ESCEME_ON_R2R
    row = PAPER[f"{task}-hamt-esceme"]
    assert read(row, expected) == expected
    # There is nothing else in which they differ.
    plain = PAPER[f"{task}-hamt"]
    changed = {name: value for name, value in as_json(row).items() if value != as_json(plain)[name]}
    assert set(changed) - {"training", "validation"} == {"about", "differences", "reader"}


def test_the_ablation_differs_in_pooling_alone() -> None:
    row, mean = PAPER["r2r-hamt-esceme"], PAPER["r2r-hamt-esceme-mean"]
    assert replace(mean, about=row.about, reader_settings={}) == row
    assert value_of(mean, ("reader", "pooling")) == "mean"


def test_rows_of_tours_learn_by_imitation_and_differ_in_the_reader_alone() -> None:
    expected = {
        **COMMON,
        **BERT,
        **EFFECTIVE["r2r"],
        "training.method": "imitation",
        "training.augmentation": "",
        "validation.memory": "tour",
        "validation.best": "t_sr+t_spl",
        "validation.oracle_phases": False,
        "task": "r2r",
        "reader": "unaided",
    }
    row, memory = PAPER["ir2r"], PAPER["ir2r-esceme"]
    assert read(row, expected) == expected
    assert read(memory, ESCEME) == ESCEME
    assert replace(memory, about=row.about, differences=row.differences, reader="unaided") == row


def test_small_rows_of_tours_train_like_those_of_r2r() -> None:
    for name in ("small", "small-esceme"):
        episodes, tours = SMALL[f"r2r-{name}"], SMALL[f"ir2r-{name}"]
        assert tours.validation.memory == "tour" and tours.validation.best == "t_sr+t_spl"
        assert replace(tours, about=episodes.about, validation=episodes.validation) == episodes


def test_the_row_of_graph_encoding_differs_in_the_reader_alone() -> None:
    row, graph = PAPER["r2r-hamt-esceme"], PAPER["r2r-ge"]
    assert replace(graph, about=row.about, differences=row.differences, reader=row.reader) == row
    expected = {
        "reader": "graph-encoding",
        "reader.pooling": "mean",
        "reader.window": "path",
        "reader.divide_by": "viewpoints",
        "reader.bias": False,
        "reader.mark": True,
        "reader.hidden": None,
    }
    assert read(graph, expected) == expected
    assert any("release has no code of it" in each for each in graph.differences)


def test_the_rows_of_td_stp_follow_its_script() -> None:
    row, hamt = PAPER["r2r-tdstp"], PAPER["r2r-hamt"]
    expected = {
        "agent": "tdstp",
        "agent.freeze_text": True,
        "agent.freeze_history": False,
        "agent.grid": 5,
        "agent.spacing": 6.0,
        "agent.target_weight": 0.1,
        "agent.reweigh": True,
        "agent.structured": False,
        "training.comment_weight": 0.4,
        "training.comments": "path",
        "training.learning_rate": 1e-5,
        "training.batch": 8,
        "training.augmentation": "prevalent",
    }
    assert read(row, expected) == expected
    assert replace(row.training, comment_weight=0.0) == hamt.training
    memory = PAPER["r2r-tdstp-esceme"]
    assert (memory.agent, memory.reader, memory.training) == ("tdstp", "candidate-enhancing", row.training)


def test_paper_size_networks_have_the_published_numbers_of_parameters() -> None:
    network = build(PAPER["r2r-hamt-esceme"])
    critic = size(network.agent.critic)
    assert (size(network.agent) - critic, critic, size(network.reader)) == (170_393_089, 394_241, 1_772_544)
    assert [size(build(PAPER[f"{task}-hamt"]).agent) for task in ("r4r", "cvdn")] == [size(network.agent)] * 2


def test_every_row_says_which_one_it_is_and_what_it_follows() -> None:
    for name, row in PAPER.items():
        assert re.match(r"Table \d+, (I?R2R|R4R|CVDN|RxR): (HAMT|TD-STP|ESceme)", row.about), name
        assert ("esceme" in name) == ("ESceme" in row.about)
        assert all("follow" in each or "Here" in each or "Without" in each for each in row.differences), name
        remembers = READERS[row.reader].uses_memory and row.validation.memory == "cold"
        assert remembers == any("--validation.memory leaking" in each for each in row.differences)
    assert any("8e-6" in each for each in PAPER["r2r-hamt-esceme"].differences)
    assert any("30 and 100" in each for each in PAPER["r4r-hamt"].differences)
    assert any("by accident" in each for each in PAPER["cvdn-hamt"].differences)
    assert any("release cannot run it" in each for each in PAPER["rxr-hamt-esceme"].differences)


@pytest.mark.parametrize("name", PAPER)
def test_the_options_that_differences_name_exist(name: str) -> None:
    for difference in PAPER[name].differences:
        said = dict(re.findall(r"--([a-z][\w.-]*) ([\w,+-]*\w)", difference))
        if said:
            made = with_settings(PAPER[name], said)
            assert as_json(made) != as_json(PAPER[name])


# -- small ones ------------------------------------------------------------------------------------------


def test_there_is_a_small_recipe_of_every_task_without_and_with_memory() -> None:
    tasks = ("r2r", "r2r-tdstp", "ir2r", "r4r", "cvdn", "rxr", "r2r-semantic")
    pairs = {f"{task}-small{memory}" for task in tasks for memory in ("", "-esceme")}
    others = {f"r2r-small-{name}" for name in ("blind", "esceme-mean", "ge", "both")}
    assert set(SMALL) == pairs | others


@pytest.mark.parametrize("name", [name for name in SMALL if f"{name}-esceme" in SMALL])
def test_small_recipes_with_memory_differ_in_the_reader_alone(name: str) -> None:
    without, memory = SMALL[name], SMALL[f"{name}-esceme"]
    assert (without.reader, memory.reader) == ("unaided", "candidate-enhancing")
    assert replace(memory, about=without.about, reader=without.reader, reader_settings={}) == without


def test_the_blind_differs_in_what_it_sees_alone() -> None:
    seeing, blind = SMALL["r2r-small"], SMALL["r2r-small-blind"]
    assert (
        replace(blind, about=seeing.about, reader=seeing.reader) == seeing and blind.reader == "blindfolded"
    )


def test_small_readers_differ_in_the_reader_alone() -> None:
    plain, esceme = SMALL["r2r-small"], SMALL["r2r-small-esceme"]
    for name, reader, pooling in (
        ("esceme-mean", "candidate-enhancing", "mean"),
        ("ge", "graph-encoding", "mean"),
        ("both", "both", "max"),
    ):
        made = SMALL[f"r2r-small-{name}"]
        assert replace(made, about=plain.about, reader=plain.reader, reader_settings={}) == plain
        assert (made.reader, value_of(made, ("reader", "pooling"))) == (reader, pooling)
    mean = SMALL["r2r-small-esceme-mean"]
    assert mean.reader_settings == {**esceme.reader_settings, "pooling": "mean"}
    joined = {**esceme.reader_settings, **SMALL["r2r-small-ge"].reader_settings}
    assert SMALL["r2r-small-both"].reader_settings == joined


def test_small_networks_are_alike_for_all_tasks() -> None:
    settings = [
        {name: value for name, value in each.agent_settings.items() if name != "grounding"}
        for each in SMALL.values()
    ]
    assert all(each == settings[0] for each in settings)
    assert all(each.training.completeness.way == "drawn" for each in SMALL.values())
    assert size(build(SMALL["r2r-small-esceme"]).agent.cross_layers) < 1_000_000


def test_no_small_recipe_chooses_on_unseen_scenes() -> None:
    assert all(each.validation.best_split == "val_seen" for each in SMALL.values())


# -- all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_and_survives_being_stored(name: str) -> None:
    experiment = RECIPES[name]
    navigator = build(experiment)
    remembers = name.removesuffix("-mean").endswith(("esceme", "-ge", "-both"))
    assert size(navigator.agent) > 0 and navigator.reader.uses_memory == remembers
    assert from_json(as_json(experiment)) == experiment
    assert experiment.about and "\n" not in experiment.about


@pytest.mark.parametrize("name", RECIPES)
def test_walks_and_instructions_are_as_long_as_the_task_wants(name: str) -> None:
    experiment = RECIPES[name]
    task = TASKS[experiment.task]
    assert experiment.max_steps == task.max_steps and experiment.keep == task.keep
    assert experiment.max_tokens == (
        task.max_tokens if name in PAPER or "semantic" in name else max(80, task.max_tokens)
    )


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("r2r-hmat", "r2r-hamt"), ("r2r_small", "r2r-small"), ("cvdn-esceme", "cvdn-"), ("R2R-SMALL", "")],
)
def test_an_unknown_recipe_is_refused_with_the_closest_names(name: str, suggested: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_recipe(name)
    told = str(raised.value)
    assert told.startswith(f"no recipe '{name}'; ") and suggested in told
    assert suggested or told.endswith("esceme recipes lists them")
