"""One training iteration of every recipe of the paper at full size, on generated data.

A training run on the real files differs in the data folder alone:

    esceme train r2r-hamt-esceme --start runs/pretrained --data ../datasets --out runs/esceme

The folder is laid out as the HAMT family of code has it (spec A.1): ids instead of text, features of 768
numbers, for RxR ids of XLM-R and features of 512, PREVALENT's augmentation for R2R. To save time, batches
have one episode, episodes three decisions and instructions forty ids; the network is unchanged.
"""

from __future__ import annotations

import gc
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from esceme.learning import TrainingCallback
from esceme.recipes import CLIP, PAPER, VIT
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.folder import DataFolder
from esceme.training import prepare
from esceme.world import read_scenes
from esceme.world.features import write_features
from esceme.world.geometry import VIEWS
from fixtures.hamt_layout import write_hamt_annotations

pytestmark = pytest.mark.slow

BERT, XLM_R = 30_522, 250_002
SCORES = 1000
"""Number of classifier scores that published feature files append to the features (spec A.7)."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny embedded world in the folder layout of HAMT, with random features and ids."""
    world, root = DataFolder(embedded_world(WorldConfig("tiny"))), tmp_path_factory.mktemp("datasets")
    rng = np.random.default_rng(0)
    shutil.copytree(world.connectivity, root / "R2R/connectivity")
    keys = [
        f"{scene}_{name}"
        for scene, graph in read_scenes(world.connectivity).items()
        for name in graph.viewpoints
    ]
    for name, width in ((VIT, 768 + SCORES), (CLIP, 512)):
        panoramas = ((key, rng.normal(size=(VIEWS, width)).astype(np.float32)) for key in keys)
        write_features(root / "R2R/features" / name, panoramas)
    write_hamt_annotations(world.root, root, lambda task: random_ids(XLM_R if task == "rxr" else BERT, rng))
    annotations = root / "R2R/annotations"
    (annotations / "R4R_val_unseen_enc.json").rename(annotations / "R4R_val_unseen_sampled_enc.json")
    return root


def random_ids(vocabulary: int, rng: np.random.Generator) -> list[int]:
    """Fifty random ids that include the largest of the vocabulary."""
    encoding = rng.integers(1, vocabulary, 50)
    encoding[[1, -2]] = vocabulary - 1
    return encoding.tolist()


@pytest.fixture(autouse=True)
def _collect_garbage() -> Iterator[None]:
    """Free the three gigabytes of a network, its gradients and its optimizer."""
    yield
    gc.collect()


FROZEN = {"r2r": {"text", "history"}, "rxr": {"text", "history"}, "tdstp": {"text"}}
"""Frozen parts in the recipes of a task or an agent (spec G)."""


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_of_the_paper_trains_for_one_iteration(name: str, datasets: Path, tmp_path: Path) -> None:
    recipe = PAPER[name]
    experiment = replace(
        recipe,
        navigator=replace(recipe.navigator, max_steps=3, max_tokens=40),
        training=replace(recipe.training, batch=1, iterations=1),
    )
    run = prepare(experiment, datasets, tmp_path / "run", callback=TrainingCallback())
    trainer, navigator = run.trainer, run.trainer.navigator
    parts = {
        "text": navigator.agent.text.layers[0],
        "history": navigator.agent.history.picture,
        "sight": navigator.agent.sight.picture,
        "vision": navigator.agent.cross_layers[0],
        "action": navigator.agent.action,
    }
    expected = {"imitation", "gradient_norm"}
    if experiment.training.method != "imitation":
        parts["critic"] = navigator.agent.critic
        expected |= {"policy", "critic", "entropy", "reward"}
    if navigator.reader.uses_memory:
        parts["reader"] = navigator.reader
    before = {part: fingerprint(module) for part, module in parts.items()}
    metrics = trainer.training_step(0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert expected <= set(metrics)
    learned = {part for part, module in parts.items() if fingerprint(module) != before[part]}
    config = navigator.agent.config
    frozen = {part for part in ("text", "history") if getattr(config, f"freeze_{part}")}
    assert learned == set(parts) - frozen
    assert frozen == FROZEN.get("tdstp" if "tdstp" in name else experiment.navigator.task, set())
    assert len(run.validation_sets[experiment.validation.best_split]) > 0
    assert not (tmp_path / "run").exists()  # a single step writes nothing


def fingerprint(module: torch.nn.Module) -> list[float]:
    return [float(parameter.detach().double().abs().sum()) for parameter in module.parameters()]
