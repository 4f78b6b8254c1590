"""A street to train in, small experiments for it, and what can be compared of runs.

Two houses have episodes to learn from, the other three to validate on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from esceme.config import Experiment
from esceme.files import read_json, write_json
from esceme.learning import MemoryDropout, Training, TrainingCallback, Validation
from esceme.tasks.r2r import read_r2r
from esceme.tasks.tours import make_tours, write_tours
from street import SPLIT, write_street

TAUGHT = ("number-0", "number-2")
SMALL = {
    "hidden": 16,
    "heads": 2,
    "feed_forward": 32,
    "text_layers": 1,
    "cross_layers": 1,
    "panorama_layers": 1,
    "positions": 60,
    "critic_inner": 16,
    "initial_std": 0.2,
    "initial_bias_std": 0.2,
}
CERTAIN = {"dropout": 0.0, "head_dropout": 0.0, "critic_dropout": 0.0}
"""Settings of an agent from which nothing is dropped."""
PRODUCTS = (
    "experiment.json",
    "weights.safetensors",
    "best/experiment.json",
    "best/weights.safetensors",
    "training.json",
    "log.jsonl",
)


def write_school(root: Path) -> Path:
    """A data folder with the splits `train` and `val_unseen`, and tours of both."""
    data = write_street(root).root
    everything = read_json(data / "R2R" / f"R2R_{SPLIT}.json", list[dict[str, Any]])
    for split, taught in (("train", True), (SPLIT, False)):
        records = [record for record in everything if (record["scan"] in TAUGHT) is taught]
        write_json(data / "R2R" / f"R2R_{split}.json", records)
    tours = {
        split: make_tours(read_r2r(data / f"R2R/R2R_{split}.json"), longest=3) for split in ("train", SPLIT)
    }
    write_tours(data / "tours" / "tours_iVLN.json", tours)
    return data


def lesson_plan(
    *,
    who: str = "hamt",
    way: str = "as-released",
    agent: Mapping[str, Any] | None = None,
    reader: str = "candidate-enhancing",
    feature_dropout: float = 0.4,
    every: int = 3,
    memory: str = "cold",
    splits: tuple[str, ...] = (SPLIT,),
    **training: Any,
) -> Experiment:
    """A small experiment; all other settings are of `Training`."""
    settings = {"iterations": 6, "batch": 4, "learning_rate": 1e-3, "checkpoint_every": 2} | training
    completeness = MemoryDropout(way=way, reset_after=5)  # type: ignore[arg-type]
    return Experiment(
        max_steps=5,
        agent=who,
        agent_settings={**SMALL, **(agent or {})},
        reader=reader,
        feature_dropout=feature_dropout,
        training=Training(**settings, completeness=completeness),
        validation=Validation(every=every, splits=splits, memory=memory),
    )


class Interrupted(Exception):  # noqa: N818
    """Someone pressed Ctrl-C."""


class Interrupt(TrainingCallback):
    """Interrupts training after an iteration, or after a validation."""

    def __init__(self, after: int, *, validated: bool = False) -> None:
        self.after, self._validated = after, validated
        self.notes: list[str] = []
        self.begun = -1

    def begin(self, done: int, total: int) -> None:
        self.begun = done

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        if done == self.after and not self._validated:
            raise Interrupted

    def validated(self, done: int, scores: Mapping[str, Mapping[str, float]], *, best: bool) -> None:
        if done == self.after and self._validated:
            raise Interrupted

    def note(self, message: str) -> None:
        self.notes.append(message)


def products(folder: Path) -> dict[str, bytes]:
    """What a run leaves behind that is the same however often it was interrupted."""
    return {name: (folder / name).read_bytes() for name in PRODUCTS}


def states(folder: Path) -> dict[str, dict[str, Any]]:
    """The states of a run, by the names of their files."""
    return {
        path.name: torch.load(path, weights_only=True) for path in sorted((folder / "state").glob("*.pt"))
    }


def alike(one: Any, other: Any) -> bool:
    """Whether two nests of tensors and other things are the same to the bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return type(one) is type(other) and one == other
