"""What a person wants to see: which experiments follow from it, which evaluations, and where they lie."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from esceme.config import Experiment
from esceme.evaluation.options import EvaluationConfig
from esceme.evaluation.protocol import Protocol
from esceme.recipes import RECIPES
from esceme.synth.dataset import Size
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder

TASK = "r2r"
AGENTS = {"none": "r2r-small", "memory": "r2r-small-esceme"}
"""Folder of a run -> the recipe it is trained by."""
SPLITS = ("val_seen", "val_unseen")
ROWS: dict[Protocol, str] = {"none": "none", "cold": "memory", "two-pass": "memory", "episodic": "memory"}
"""Memory protocol -> the run that lives by it: the rows of the table, in their order."""
BATCH = 16
"""How many walk side by side in an evaluation; the scores do not depend on it."""


class Evaluation(NamedTuple):
    """A split lived under a protocol, and where its result goes: where `esceme evaluate` would put it."""

    split: str
    memory: Protocol
    plan: EvaluationConfig
    folder: Path

    @property
    def name(self) -> str:
        """For a progress bar."""
        return f"{self.split}, {self.memory}"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a person decides."""

    out: Path = Path("demo")
    size: Size = "small"
    seed: int = 0
    """Of both trainings; the world stays the same."""
    iterations: int | None = None
    """By default as many as the recipes say."""

    def experiments(self) -> dict[str, Experiment]:
        """What is trained, by the names of the run folders: the same budget for both."""
        return {name: self._shortened(RECIPES[recipe]) for name, recipe in AGENTS.items()}

    def _shortened(self, experiment: Experiment) -> Experiment:
        """A recipe with this seed and with so many iterations, all that happens meanwhile in proportion."""
        training, validation = experiment.training, experiment.validation
        asked = training.iterations if self.iterations is None else self.iterations

        def part(count: int, *, least: int = 0) -> int:
            return max(least, round(count * asked / training.iterations))

        shorter = replace(
            training,
            iterations=asked,
            imitation_first=part(training.imitation_first),
            warm_up=part(training.warm_up),
            checkpoint_every=part(training.checkpoint_every, least=1),
        )
        rarer = replace(validation, every=part(validation.every, least=1))
        return replace(experiment, seed=self.seed, training=shorter, validation=rarer)

    def run(self, agent: str) -> Path:
        """The run folder of an agent."""
        return self.out / agent

    def evaluations(self, world: Path) -> list[Evaluation]:
        """Every protocol on every split."""
        return [self._evaluation(world, split, memory) for split in SPLITS for memory in ROWS]

    def _evaluation(self, world: Path, split: str, memory: Protocol) -> Evaluation:
        run = self.run(ROWS[memory])
        plan = EvaluationConfig(
            run=str(run), data=str(world), split=split, memory=memory, task=TASK, batch=BATCH
        )
        return Evaluation(split, memory, plan, run / "evaluations" / f"{TASK}-{split}-{memory}")

    @property
    def command(self) -> str:
        """What to write to see this."""
        asked = {each.name: getattr(self, each.name) for each in fields(self)}
        said = [(name, str(value)) for name, value in asked.items() if value is not None]
        return shlex.join(["esceme", "demo", *(word for name, text in said for word in (f"--{name}", text))])

    def advice(self, world: Path) -> list[str]:
        """Commands to try next."""
        compared = [
            str(each.folder)
            for each in self.evaluations(world)
            if each.split == SPLITS[-1] and each.memory in ("none", "cold")
        ]
        masked = ["--split", SPLITS[-1], "--memory", "masked", "--data", str(world)]
        longer = str(2 * self.experiments()["memory"].training.iterations)
        data = "embedded" if self.size == "small" else f"embedded:{self.size}"
        return [
            shlex.join(["esceme", "evaluate", str(self.run("memory")), *masked]),
            shlex.join(["esceme", "compare", *compared]),
            shlex.join(
                ["esceme", "train", AGENTS["memory"], "--data", data]
                + ["--out", str(self.out / "longer"), "--iterations", longer]
            ),
        ]


def share_out(evaluations: Sequence[Evaluation], processes: int) -> list[list[Evaluation]]:
    """Evaluations for so many processes, with about equally many walks for each."""
    sizes = {
        each.split: len(TASKS[TASK].read(DataFolder(each.plan.data).require(TASK, each.split)))
        for each in {each.split: each for each in evaluations}.values()
    }
    shares: list[list[Evaluation]] = [[] for _ in range(processes)]

    def walks(each: Evaluation) -> int:
        return sizes[each.split] * each.plan.passes

    for each in sorted(evaluations, key=walks, reverse=True):
        min(shares, key=lambda share: sum(map(walks, share))).append(each)
    return shares
