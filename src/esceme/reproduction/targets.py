"""What a target is: rows of trained agents under memory protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from esceme.evaluation import Protocol
from esceme.reproduction.small_agents import DataKind, TrainedAgent


@dataclass(frozen=True, kw_only=True)
class Row:
    """An agent under a memory protocol."""

    name: str
    agent: TrainedAgent
    memory: Protocol = "none"
    against: str = ""
    """Name of the row with which this row is compared; empty for none."""
    paper: str = ""
    """Name of the system in the table of the paper; empty if the paper has no such row."""
    variants: tuple[tuple[tuple[str, Any], ...], ...] = ((),)
    """Evaluations of each trained agent, by names and values of fields of `EvaluationConfig`."""
    splits: tuple[str, ...] = ("val_unseen",)
    measures: tuple[str, ...] = ("sr", "spl")
    """Measures whose differences to the other row are computed."""
    on_tours: bool = False
    sample: int | None = None
    """Number of random episodes of each split, in random order; None for all, in the order of the file."""
    max_seeds: int | None = None

    @property
    def task(self) -> str:
        """Task of the agent."""
        return self.agent.experiment.navigator.task


@dataclass(frozen=True, kw_only=True)
class Target:
    """A table, figure or study to reproduce. The agents of its rows are trained, evaluated and reported."""

    name: str
    kind: Literal["table", "figure", "study"]
    title: str
    rows: Callable[[DataKind], Sequence[Row]]
    """Function from the kind of data to the rows."""
    about: str = ""
    """What the rows are, for the report."""
    draw: Callable[[Mapping[str, Sequence[Path]], Path, Path], dict[str, str]] | None = None
    """Function that draws figures, given the evaluation folders of each row, the data folder and the folder
    to write to. It returns a dict from file name without suffix to title."""
    subsets_of: str = ""
    """Name of the row whose trajectories determine the subsets of episodes that the report shows; see
    `reproduction.subsets`. Empty for no subsets."""
    has_costs: bool = False
    """Whether the costs of inference are measured as well."""

    def needs(self, kind: DataKind) -> list[str]:
        """Return descriptions of the data that the rows need."""
        rows = self.rows(kind)
        experiments = [agent.experiment for row in rows for agent in row.agent.lineage]
        splits = dict.fromkeys((row.task, split) for row in rows for split in ("train", *row.splits))
        found = [
            f"{task} {', '.join(split for _, split in of_task)}"
            for task, of_task in groupby(sorted(splits), lambda pair: pair[0])
        ]
        augmentations = dict.fromkeys(experiment.training.augmentation for experiment in experiments)
        found += [f"{task} train" for task in augmentations if task]
        found += ["connectivity", "a feature file"]
        found += ["word vectors"] if any(experiment.word_vectors for experiment in experiments) else []
        return found


def main_measure(task: str) -> str:
    """Return the measure by which the rows of a task are compared first."""
    return {"cvdn": "gp", "r4r": "sdtw", "rxr": "sdtw"}.get(task, "spl")
