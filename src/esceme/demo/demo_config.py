"""Settings of the demo, and the experiments, evaluations, folders and commands that follow from them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields, replace
from pathlib import Path

from esceme.config import Experiment, with_iterations
from esceme.evaluation.context import EvaluationConfig
from esceme.evaluation.protocol import Protocol
from esceme.recipes import RECIPES
from esceme.synth.dataset import WorldSize

TASK = "r2r"
AGENT_RECIPES = {"none": "r2r-small", "memory": "r2r-small-esceme"}
"""Name of an agent (and of its run folder) -> recipe of its training."""
SPLITS = ("val_seen", "val_unseen")
"""Splits on which the two agents are evaluated."""
UNSEEN = SPLITS[-1]
PROTOCOL_RUNS: dict[Protocol, str] = {
    "none": "none",
    "cold": "memory",
    "two-pass": "memory",
    "episodic": "memory",
}
"""Memory protocol (when memory is kept and cleared) -> name of the evaluated agent, in table order."""
BATCH_SIZE = 16
"""Batch size of evaluations. Scores do not depend on it."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """Settings of the demo."""

    out: Path = Path("demo")
    size: WorldSize = "small"
    """Size of the generated world."""
    seed: int = 0
    """Seed of the two trainings. The world does not depend on this seed."""
    iterations: int | None = None
    """Number of iterations of each training; by default as in the recipes."""

    def experiments(self) -> dict[str, Experiment]:
        """Return a dict from agent name to experiment. All agents train for the same number of iterations."""
        return {agent: self._scaled(RECIPES[recipe]) for agent, recipe in AGENT_RECIPES.items()}

    def _scaled(self, experiment: Experiment) -> Experiment:
        """Return `experiment` with the seed and the number of iterations of the demo."""
        iterations = experiment.training.iterations if self.iterations is None else self.iterations
        return replace(with_iterations(experiment, iterations), seed=self.seed)

    @property
    def num_iterations(self) -> int:
        """Number of iterations of each training."""
        return self.experiments()["memory"].training.iterations

    def run_folder(self, agent: str) -> Path:
        """Return the run folder of an agent."""
        return self.out / agent

    def evaluations(self, world: Path) -> list[EvaluationConfig]:
        """Return the settings of all evaluations: every memory protocol on every split.

        `world` is the data folder.
        """
        return [
            EvaluationConfig(
                run=str(self.run_folder(agent)),
                data=str(world),
                split=split,
                memory=memory,
                task=TASK,
                batch=BATCH_SIZE,
            )
            for split in SPLITS
            for memory, agent in PROTOCOL_RUNS.items()
        ]

    @property
    def command(self) -> str:
        """Command line that runs this demo."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        options = [(f"--{name}", str(value)) for name, value in values.items() if value is not None]
        return shlex.join(["esceme", "demo", *(word for option in options for word in option)])

    def next_commands(self, world: Path) -> list[str]:
        """Return command lines to try next: masked memory, a comparison, live walks, a longer training."""
        masked = ["--split", UNSEEN, "--memory", "masked", "--data", str(world)]
        compared = [
            str(result_folder(config))
            for config in self.evaluations(world)
            if config.split == UNSEEN and config.memory in ("none", "cold")
        ]
        data = "embedded" if self.size == "small" else f"embedded:{self.size}"
        longer = ["--out", str(self.out / "longer"), "--iterations", str(2 * self.num_iterations)]
        commands = [
            ["evaluate", str(self.run_folder("memory")), *masked],
            ["compare", *compared],
            ["walk", str(self.run_folder("memory")), "--data", str(world), "--open"],
            ["train", AGENT_RECIPES["memory"], "--data", data, *longer],
        ]
        return [shlex.join(["esceme", *command]) for command in commands]


def result_folder(config: EvaluationConfig) -> Path:
    """Return the folder of an evaluation's result, which is the default folder of `esceme evaluate`."""
    return Path(config.run) / "evaluations" / f"{TASK}-{config.split}-{config.memory}"
