"""Recipes: the values that are in effect in the released scripts, and pairs of small ones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from esceme.agents import DuetConfig
from esceme.cli import main
from esceme.config import Experiment, as_json, flatten, from_json
from esceme.errors import ConfigError
from esceme.memory import (
    READERS,
    CandidateEnhancingConfig,
    GraphEncodingConfig,
    NoMemoryConfig,
    NoVisionConfig,
)
from esceme.navigator import Navigator
from esceme.recipes import DUET_ROWS, PAPER, RECIPES, SMALL, find_recipe
from esceme.tasks.catalogue import TASKS

# The columns of the specification's table G, "eff." where that differs from what is intended, and for RxR,
# which the release cannot run, those of HAMT's own script. What ESceme's script changes is below.
R2R: dict[str, Any] = {
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
    "validation.before_training": True,
    "validation.best": "sr+spl",
    "validation.best_split": "val_unseen",
}
NOT_FROZEN = {
    "agent.freeze_text": False,
    "agent.freeze_history": False,
    "agent.language_cross_attention": False,
    "training.augmentation": "",
}
EFFECTIVE: dict[str, dict[str, Any]] = {
    "r2r": R2R,
    "r4r": {**R2R, **NOT_FROZEN, "max_tokens": 80, "validation.best_split": "val_unseen_sampled"},
    "cvdn": {
        **R2R,
        **NOT_FROZEN,
        "training.batch": 4,
        "max_steps": 30,
        "max_tokens": 100,
        "keep": "last",
        "training.scale_by_batch": True,
        "training.supervision": "player-or-shortest",
        "training.reward": "goal",
        "validation.best": "gp",
    },
    "rxr": {
        **R2R,
        "training.iterations": 200_000,
        "max_steps": 20,
        "max_tokens": 250,
        "agent.language_cross_attention": False,
        "feature_dropout": 0.3,
        "training.augmentation": "",
        "vocabulary_size": 250_002,
        "agent.positions": 514,
        "agent.epsilon": 1e-5,
        "feature_width": 512,
        "features": "pth_vit_base_patch32_224_clip.hdf5",
    },
}
COMMON: dict[str, Any] = {
    "training.method": "imitation+a2c",
    "training.imitation_warmup_iterations": 0,
    "training.reader_warmup_iterations": 0,
    "training.imitation_weight": 0.2,
    "training.discount": 0.9,
    "training.entropy_weight": 0.01,
    "training.normalise": "steps",
    "training.weight_decay": 0.01,
    "training.max_grad_norm": 40.0,
    "training.lr_schedule": "constant",
    "training.warmup_iterations": 0,
    "training.teacher": "time",
    "training.memory_dropout.mode": "as-released",
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
    "agent.stop_features": "zeros",
}
VIT = {"features": "pth_vit_base_patch16_224_imagenet_r2r.e2e.ft.22k.hdf5"}
BERT = {
    **VIT,
    "agent.positions": 512,
    "agent.epsilon": 1e-12,
    "feature_width": 768,
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
OF_ESCEME_ON_R2R = {"training.learning_rate": 8e-6, "validation.before_training": False}


def read(experiment: Experiment, names: dict[str, Any]) -> dict[str, Any]:
    values = flatten(as_json(experiment))
    values = {name.removeprefix("navigator.").removesuffix(".name"): value for name, value in values.items()}
    return {name: values[name] for name in names}


def build(experiment: Experiment) -> Navigator:
    """Build the navigator without memory for its weights."""
    with torch.device("meta"):
        return experiment.navigator.build()


def with_reader_of(experiment: Experiment, other: Experiment) -> Experiment:
    """The experiment with the reader and the texts of another one."""
    navigator = replace(experiment.navigator, reader=other.navigator.reader)
    return replace(experiment, about=other.about, differences=other.differences, navigator=navigator)


def size(part: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


# -- the paper's -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", EFFECTIVE)
def test_rows_have_the_values_of_the_scripts(task: str) -> None:
    plain, memory = PAPER[f"{task}-hamt"], PAPER[f"{task}-hamt-esceme"]
    expected = {**COMMON, **BERT, **EFFECTIVE[task], "task": task, "reader": "none"}
    assert read(plain, expected) == expected
    expected |= ESCEME | (OF_ESCEME_ON_R2R if task == "r2r" else {})
    assert read(memory, expected) == expected
    same = with_reader_of(memory, plain)
    assert replace(same, training=plain.training, validation=plain.validation) == plain


def test_rows_of_tours_are_trained_by_imitation() -> None:
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
        "reader": "none",
    }
    row, memory = PAPER["ir2r"], PAPER["ir2r-esceme"]
    assert read(row, expected) == expected
    assert read(memory, ESCEME) == ESCEME


def test_small_recipes_of_tours_train_like_those_of_r2r() -> None:
    for name in ("small", "small-esceme"):
        episodes, tours = SMALL[f"r2r-{name}"], SMALL[f"ir2r-{name}"]
        assert tours.validation.memory == "tour" and tours.validation.best == "t_sr+t_spl"
        assert replace(tours, about=episodes.about, validation=episodes.validation) == episodes


def test_row_of_graph_encoding_has_the_values_of_appendix_a() -> None:
    graph = PAPER["r2r-ge"]
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


def test_rows_of_td_stp_follow_its_script() -> None:
    row, hamt = PAPER["r2r-tdstp"], PAPER["r2r-hamt"]
    expected = {
        "agent": "tdstp",
        "agent.freeze_text": True,
        "agent.freeze_history": False,
        "agent.grid": 5,
        "agent.spacing": 6.0,
        "agent.target_weight": 0.1,
        "agent.penalise_reversed_jumps": True,
        "agent.structured": False,
        "training.oracle_weight": 0.4,
        "training.oracle": "path",
        "training.learning_rate": 1e-5,
        "training.batch": 8,
        "training.augmentation": "prevalent",
    }
    assert read(row, expected) == expected
    assert replace(row.training, oracle_weight=0.0) == hamt.training


def test_td_stp_on_r4r_has_the_agent_of_r2r_and_the_limits_of_r4r() -> None:
    row, r2r, hamt = PAPER["r4r-tdstp"], PAPER["r2r-tdstp"], PAPER["r4r-hamt"]
    assert row.navigator == replace(hamt.navigator, agent=r2r.navigator.agent)
    assert row.training == replace(r2r.training, augmentation="") and row.validation == hamt.validation
    assert any("Neither the paper nor its release" in text for text in row.differences)


def test_rows_name_their_table_and_what_they_follow() -> None:
    for name, row in PAPER.items():
        assert re.match(
            r"Table \d+( has no such row)?, (I?R2R|R4R|CVDN|RxR): (HAMT|TD-STP|ESceme)", row.about
        ), name
        assert ("esceme" in name) == ("ESceme" in row.about)
        assert all(re.search("follow|Here|Without", text) for text in row.differences), name
        has_memory = READERS[row.navigator.reader_name].uses_memory and row.validation.memory == "cold"
        assert has_memory == any("--validation.memory leaking" in text for text in row.differences)
    for name, text in (
        ("r2r-hamt-esceme", "8e-6"),
        ("r4r-hamt", "30 and 100"),
        ("cvdn-hamt", "by accident"),
        ("rxr-hamt-esceme", "release cannot run it"),
        ("r2r-ge", "release has no code for it"),
    ):
        assert text in " ".join(PAPER[name].differences)


@pytest.mark.parametrize("name", PAPER)
def test_options_in_differences_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", name, "--help"])
    options = set(re.findall(r"--[a-z.-]+[a-z]", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z.-]+[a-z]", " ".join(PAPER[name].differences))) <= options


# -- small ones ------------------------------------------------------------------------------------------


PAIRS = {
    **{name: f"{name}-esceme" for name in SMALL if f"{name}-esceme" in SMALL},
    "ir2r": "ir2r-esceme",
    "r2r-tdstp": "r2r-tdstp-esceme",
    "r4r-tdstp": "r4r-tdstp-esceme",
}
READER_ONLY = [
    *PAIRS.items(),
    ("r2r-hamt-esceme", "r2r-hamt-esceme-mean"),
    ("r2r-hamt-esceme", "r2r-ge"),
    *(("r2r-small", f"r2r-small-{reader}") for reader in ("blind", "esceme-mean", "ge", "both")),
]


def test_every_task_has_a_small_recipe_without_and_with_memory() -> None:
    tasks = (
        "r2r",
        "r2r-tdstp",
        "r2r-duet",
        "ir2r",
        "r4r",
        "r4r-tdstp",
        "cvdn",
        "rxr",
        "r2r-semantic",
        "r2r-duet-semantic",
    )
    pairs = {f"{task}-small{memory}" for task in tasks for memory in ("", "-esceme")}
    pairs |= {"r2r-duet-small-map", "r2r-duet-semantic-small-map"}
    assert set(SMALL) == pairs | {f"r2r-small-{name}" for name in ("blind", "esceme-mean", "ge", "both")}


@pytest.mark.parametrize(("name", "other"), READER_ONLY)
def test_recipes_differ_in_the_reader_alone(name: str, other: str) -> None:
    assert with_reader_of(RECIPES[other], RECIPES[name]) == RECIPES[name]
    assert RECIPES[other].navigator.reader != RECIPES[name].navigator.reader


def test_readers_of_small_recipes() -> None:
    readers = {name: recipe.navigator.reader for name, recipe in SMALL.items()}
    small = CandidateEnhancingConfig(hidden=128, shortcut="both", context="untouched", stop="zero")
    for name, memory in PAIRS.items():
        if name in SMALL:
            assert (readers[name], readers[memory]) == (NoMemoryConfig(), small)
    assert readers["r2r-small-blind"] == NoVisionConfig()
    assert readers["r2r-small-esceme-mean"] == replace(small, pooling="mean")
    graph, both = readers["r2r-small-ge"], readers["r2r-small-both"]
    assert graph == GraphEncodingConfig(hidden=128, initial_std=0.1)
    assert vars(both) == {**vars(graph), **vars(small), "initial_std": 0.1}


def test_small_networks_are_equal_for_all_tasks() -> None:
    agents = {
        kind: vars(SMALL[name].navigator.agent)
        for kind, name in ((False, "r2r-small"), (True, "r2r-duet-small"))
    }
    for name, recipe in SMALL.items():
        agent = agents["duet" in name]
        assert agent.items() <= {**vars(recipe.navigator.agent), "grounding": agent["grounding"]}.items()
        assert recipe.training.memory_dropout.mode == "sampled"
        assert recipe.validation.best_split == "val_seen"  # no selection on unseen scenes
    assert size(build(SMALL["r2r-small-esceme"]).agent.cross_layers) < 1_000_000


# -- all of them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_survives_json_and_has_the_limits_of_its_task(name: str) -> None:
    experiment = RECIPES[name]
    navigator, config = build(experiment), experiment.navigator
    has_memory = name.removesuffix("-mean").endswith(("esceme", "-ge", "-both", "-map"))
    assert size(navigator.agent) > 0 and navigator.reader.uses_memory == has_memory
    assert from_json(as_json(experiment), Experiment) == experiment
    assert experiment.about and "\n" not in experiment.about
    task = TASKS[config.task]
    assert config.max_steps == task.max_steps and config.keep == task.keep
    uses_task_limit = name in PAPER or "semantic" in name
    limit = task.max_tokens if uses_task_limit else max(80, task.max_tokens)
    assert config.max_tokens == (200 if name in DUET_ROWS else limit)


def test_duet_trains_as_in_its_script() -> None:
    """Spec I.9."""
    training, navigator = DUET_ROWS["r2r-duet"].training, DUET_ROWS["r2r-duet"].navigator
    assert (training.method, training.oracle) == ("imitation+dagger", "shortest")
    assert (training.imitation_weight, training.oracle_weight, training.max_grad_norm) == (0.2, 1.0, 40.0)
    assert (training.iterations, training.batch, training.learning_rate) == (200_000, 8, 1e-5)
    assert (training.lr_schedule, training.weight_decay, training.augmentation) == ("constant", 0.01, "")
    assert (navigator.max_steps, navigator.max_tokens, navigator.feature_dropout) == (15, 200, 0.4)
    assert navigator.agent == DuetConfig() and not navigator.agent.freeze_text
    assert DUET_ROWS["r2r-duet"].validation.best == "spl"
    reverie = DUET_ROWS["reverie-duet"]
    assert reverie.navigator.task == "reverie" and reverie.training.supervision == "shortest"
    assert replace(reverie.training, supervision="annotated") == training


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("r2r-hmat", "r2r-hamt"), ("r2r_small", "r2r-small"), ("cvdn-esceme", "cvdn-"), ("R2R-SMALL", "")],
)
def test_unknown_recipe_is_refused_with_similar_names(name: str, suggested: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find_recipe(name)
    message = str(raised.value)
    assert message.startswith(f"no recipe '{name}'; ") and suggested in message
    assert suggested or message.endswith("`esceme recipes` lists them")
