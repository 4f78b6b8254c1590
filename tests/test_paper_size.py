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
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from esceme.files import read_json, write_json, write_text
from esceme.learning import TrainingCallback
from esceme.recipes import CLIP, PAPER, VIT
from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.training import prepare
from esceme.world import read_scenes
from esceme.world.features import write_features
from esceme.world.geometry import VIEWS

pytestmark = pytest.mark.slow

BERT, XLM_R = 30_522, 250_002
SCORES = 1000
"""Number of classifier scores that published feature files append to the features (spec A.7)."""
Record = dict[str, Any]


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
    write_annotations(world, root, rng)
    assert world.tours is not None
    shutil.copy(world.tours, root / "R2R/annotations/tours_iVLN.json")
    return root


def write_annotations(world: DataFolder, root: Path, rng: np.random.Generator) -> None:
    """Write the embedded world's annotations with ids, under the file names of HAMT."""
    for task, split, name in (
        ("r2r", "train", "R2R_train"),
        ("r2r", "train", "prevalent_aug_train"),
        ("r2r", "val_seen", "R2R_val_seen"),
        ("r2r", "val_unseen", "R2R_val_unseen"),
        ("r4r", "train", "R4R_train"),
        ("r4r", "val_seen", "R4R_val_seen"),
        ("r4r", "val_unseen", "R4R_val_unseen_sampled"),
    ):
        records = read_json(world.require(task, split), list[Record])
        for record in records:
            record["instr_encodings"] = [ids(BERT, rng) for _ in record["instructions"]]
            if name.startswith("prevalent"):
                record["path_id"] = f"aug-{record['path_id']}"
        write_json(root / "R2R/annotations" / f"{name}_enc.json", records)
    for split in ("train", "val_seen", "val_unseen"):
        dialogs = [dialog(record, rng) for record in read_json(world.require("cvdn", split), list[Record])]
        write_json(root / f"CVDN/annotations/ndh/{split}_enc.json", dialogs)
        lines = [
            msgspec.json.encode(
                {
                    "instruction_id": number,
                    "language": episode.language,
                    "path_id": int(episode.path_id),
                    "scan": episode.scene_id,
                    "path": episode.reference_path,
                    "heading": episode.heading,
                    "instruction": episode.instruction,
                    "instr_encoding": ids(XLM_R, rng),
                }
            ).decode()
            for number, episode in enumerate(TASKS["rxr"].read(world.require("rxr", split)))
        ]
        write_text(root / f"RxR/annotations/rxr_{split}_guide_enc_xlmr.jsonl", "\n".join(lines) + "\n")


def ids(vocabulary: int, rng: np.random.Generator) -> list[int]:
    """Fifty random ids that include the largest of the vocabulary."""
    encoding = rng.integers(1, vocabulary, 50)
    encoding[[1, -2]] = vocabulary - 1
    return encoding.tolist()


def dialog(record: Record, rng: np.random.Generator) -> Record:
    """An NDH record in the encoded format of HAMT (spec A.12)."""
    before = record["nav_history"][:-1]
    return {
        "instr_id": str(record["inst_idx"]),
        "scan": record["scan"],
        "instr_encoding": ids(BERT, rng),
        "start_pano": record["start_pano"]["pano"],
        "start_heading": record["start_pano"]["heading"],
        "end_panos": record["end_panos"],
        "nav_steps": [*before, *record["player_path"]],
        "nav_idx": len(before),
    }


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
