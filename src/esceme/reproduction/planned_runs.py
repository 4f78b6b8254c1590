"""Plan of a reproduction: the trainings and evaluations that targets need, in content-addressed folders.

OUT/
  runs/NAME-KEY/                     a training: a run folder, and finished.json once it has ended
  runs/NAME-KEY/planner/             the planner of it, if an evaluation plans
  runs/NAME-KEY/evaluations/NAME/    an evaluation of it

KEY is a digest of everything that determines the weights: the code, the experiment with its seed, the data,
and the key of the run from which training starts. Targets with equal trainings therefore share them. The name
of an evaluation ends with a digest of the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from esceme.config import Experiment, as_json, with_iterations
from esceme.errors import ConfigError, DataError
from esceme.evaluation import EvaluationConfig
from esceme.files import write_text
from esceme.learning import MemoryDropout
from esceme.learning.matcher_fitting import MatcherConfig
from esceme.learning.planner_fitting import PlannerFitConfig
from esceme.learning.speaker_fitting import SpeakerConfig
from esceme.memory import READERS
from esceme.planner_training import PlannerTrainingConfig
from esceme.reproduction.small_agents import DataKind, TrainedAgent
from esceme.reproduction.targets import Row, Target
from esceme.source_digest import TRAINING_MODULES, source_digest
from esceme.tasks.catalogue import TASKS
from esceme.tasks.folder import DataFolder
from esceme.tasks.manifest import COMPANION, hash_file
from esceme.tasks.tours import make_tours, write_tours
from esceme.training import DESCRIPTIONS

KEY_LENGTH = 12
"""Number of hexadecimal digits of a key in the name of a folder."""
EVALUATION_BATCH = 16
"""Batch size of evaluations. Scores do not depend on it."""
LONGEST_TOUR = 100
"""Maximum number of episodes of tours that are made here because the data folder has none."""
MIN_ITERATIONS = 10


@dataclass(frozen=True, kw_only=True)
class ReproductionConfig:
    """Settings of a reproduction."""

    data: Path
    out: Path
    seeds: int = 3
    features: str = ""
    """Feature file, if the data folder has none or several."""
    scale: float = 1.0
    """Factor of the number of training iterations."""
    limit: int | None = None
    """Maximum number of episodes per evaluation, except on tours."""

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ConfigError(f"--seeds {self.seeds}: expected at least 1")

    @property
    def folder(self) -> DataFolder:
        """The data folder."""
        return DataFolder(self.data)

    @property
    def data_kind(self) -> DataKind:
        """Kind of the data: `embedded` for a generated world, else `semantic`."""
        return "embedded" if (self.data / COMPANION).is_file() else "semantic"


@dataclass(frozen=True)
class PlannedTraining:
    """A training and its run folder."""

    folder: Path
    key: str
    experiment: Experiment
    parent: PlannedTraining | None
    facts: Mapping[str, Any]
    """Digests of the code and the data, and the seed: with the experiment, they determine the weights. They
    are stored in `finished.json`."""

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.folder.name

    @property
    def prerequisite(self) -> PlannedTraining | None:
        """Job that must finish before this one."""
        return self.parent


@dataclass(frozen=True)
class PlannedFit:
    """The fit of the planner of a training."""

    training: PlannedTraining
    config: PlannerTrainingConfig

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.training.name}, planner"

    @property
    def prerequisite(self) -> PlannedTraining:
        """Job that must finish before this one."""
        return self.training


@dataclass(frozen=True)
class PlannedEvaluation:
    """An evaluation of the weights of a training, and its folder."""

    folder: Path
    training: PlannedTraining
    config: EvaluationConfig
    fit: PlannedFit | None
    """Fit of the planner; None for an evaluation without a planner."""

    @property
    def prerequisite(self) -> PlannedTraining | PlannedFit:
        """Job that must finish before this one."""
        return self.fit or self.training

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.training.name}, {self.folder.name}"


@dataclass
class Plan:
    """All trainings and evaluations that some targets need. Those that several targets need occur once."""

    config: ReproductionConfig
    targets: Sequence[Target]
    trainings: dict[str, PlannedTraining] = field(default_factory=dict)
    """Key -> training; parents come first."""
    fits: dict[str, PlannedFit] = field(default_factory=dict)
    """Key of the training -> fit of its planner."""
    evaluations: dict[Path, PlannedEvaluation] = field(default_factory=dict)
    """Folder -> evaluation."""
    rows: dict[tuple[str, str, str], list[PlannedEvaluation]] = field(default_factory=dict)
    """(target, row, split) -> the evaluations of all seeds."""
    _digests: dict[Path, str] = field(default_factory=dict)
    _drawn: set[Path] = field(default_factory=set)

    def add(self, target: Target) -> None:
        """Add the trainings and evaluations of a target."""
        for seed in range(self.config.seeds):
            for row in target.rows(self.config.data_kind):
                if row.max_seeds is not None and seed >= row.max_seeds:
                    continue
                training = self._add_training(row.agent, seed)
                for split, variant in product(row.splits, row.variants):
                    evaluation = self._plan_evaluation(training, row, split, dict(variant))
                    evaluation = self.evaluations.setdefault(evaluation.folder, evaluation)
                    self.rows.setdefault((target.name, row.name, split), []).append(evaluation)

    def _add_training(self, agent: TrainedAgent, seed: int) -> PlannedTraining:
        parent = None if agent.start is None else self._add_training(agent.start, seed)
        experiment = replace(
            self._scaled(agent.experiment),
            seed=seed,
            start="" if parent is None else str(parent.folder),
            features=str(self.find_features(agent.experiment)),
        )
        code, data = source_digest(TRAINING_MODULES), self.data_digest(agent.experiment)
        facts = {"code": code, "data": data, "seed": seed}
        key = _training_key(experiment, parent, facts)
        if key not in self.trainings:
            navigator = experiment.navigator
            name = f"{navigator.task}-{navigator.agent_name}-{navigator.reader_name}-{seed}-{key}"
            folder = self.config.out.absolute() / "runs" / name
            self.trainings[key] = PlannedTraining(folder, key, experiment, parent, facts)
        return self.trainings[key]

    def _scaled(self, experiment: Experiment) -> Experiment:
        iterations = experiment.training.iterations
        scaled = max(min(iterations, MIN_ITERATIONS), round(iterations * self.config.scale))
        if not READERS[experiment.navigator.reader_name].uses_memory:  # memory dropout has no effect
            training = replace(experiment.training, memory_dropout=MemoryDropout())
            experiment = replace(experiment, training=training)
        return with_iterations(experiment, scaled)

    def _plan_evaluation(
        self, training: PlannedTraining, row: Row, split: str, settings: Mapping[str, Any]
    ) -> PlannedEvaluation:
        words = [split, row.memory, *(["tours"] if row.on_tours else [])]
        words += [f"{name}-{value}" for name, value in settings.items()]
        words.append(source_digest()[:KEY_LENGTH])
        if row.on_tours:
            settings = {**settings, "tours": str(self.tours)}
        elif row.sample is not None:
            count = min(row.sample, self.config.limit or row.sample)
            settings = {**settings, "episode_file": str(self.draw_episodes(row.task, split, count))}
            words.append(f"sample-{count}")
        elif self.config.limit is not None:
            settings = {**settings, "limit": self.config.limit}
            words.append(f"limit-{self.config.limit}")
        config = EvaluationConfig(
            run=str(training.folder),
            data=str(self.config.data),
            split=split,
            memory=row.memory,
            batch=EVALUATION_BATCH,
            features=training.experiment.features,
            **settings,
        )
        fit = None
        if config.planner != "none":
            fit = self.fits.setdefault(
                training.key, PlannedFit(training, self._fit_config(training.experiment.seed))
            )
        return PlannedEvaluation(training.folder / "evaluations" / "-".join(words), training, config, fit)

    def _fit_config(self, seed: int) -> PlannerTrainingConfig:
        fit = PlannerFitConfig(seed=seed)
        if self.config.limit is not None:  # shortened for a budget
            fit = replace(
                fit, partial_maps=100, rounds=1, episodes_per_scene=10, cleared_episodes_per_scene=4
            )
        return PlannerTrainingConfig(
            speaker=SpeakerConfig(seed=seed), matcher=MatcherConfig(seed=seed), fit=fit
        )

    @cached_property
    def tours(self) -> Path:
        """File of tours of the data folder. If there is none, one is made in the output folder."""
        folder = self.config.folder
        if folder.tours is not None:
            return folder.tours
        splits = [split for split in ("val_seen", "val_unseen") if folder.annotations("r2r", split)]
        episodes = {split: list(TASKS["r2r"].read(folder.require("r2r", split))) for split in splits}
        tours = {split: make_tours(of_split, longest=LONGEST_TOUR) for split, of_split in episodes.items()}
        path = self.config.out.absolute() / "tours.json"
        write_tours(path, tours)
        return path

    def draw_episodes(self, task: str, split: str, count: int) -> Path:
        """Write the ids of `count` random episodes of a split to a file and return it; always the same."""
        path = self.config.out.absolute() / f"episodes-{task}-{split}-{count}.txt"
        if path not in self._drawn:
            episodes = TASKS[task].read(self.config.folder.require(task, split))
            order = np.random.default_rng(0).permutation(len(episodes))[:count]
            write_text(path, "".join(f"{episodes[row].episode_id}\n" for row in order))
            self._drawn.add(path)
        return path

    def data_digest(self, experiment: Experiment) -> str:
        """Return a digest of the content of all files that training and evaluation of an experiment read."""
        folder, task = self.config.folder, experiment.navigator.task
        files = [*folder.splits(task).values(), *sorted(folder.connectivity.glob("*_connectivity.json"))]
        if experiment.training.augmentation:
            files.append(folder.require(experiment.training.augmentation, "train"))
        files.append(self.find_features(experiment))
        files += filter(None, (folder.rooms, folder.tours, *folder.tokenizers))
        files += (
            Path(f"{folder.root / prefix}{suffix}")
            for prefix in experiment.word_vectors
            for suffix in ("_vocab.txt", "_glove.npy")
        )
        digests = [f"{path.name} {self._hash(path)}" for path in files]
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()

    def find_features(self, experiment: Experiment) -> Path:
        """Return the feature file of an experiment."""
        if self.config.features:
            return Path(self.config.features)
        return self.config.folder.find_features(experiment.features, option="--features")

    def _hash(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = hash_file(path)
        return self._digests[path]


def make_plan(targets: Sequence[Target], config: ReproductionConfig) -> Plan:
    """Return the plan of all runs of targets. Raise `DataError` if the data cannot serve a target."""
    for target in targets:
        if missing := missing_data(target, config):
            raise DataError(f"{config.data}: cannot serve {target.name}: {missing[0]}")
    plan = Plan(config, targets)
    for target in targets:
        plan.add(target)
    return plan


def missing_data(target: Target, config: ReproductionConfig) -> list[str]:
    """Return a message for each file that a target needs and that the data folder does not have."""
    folder, found = config.folder, list[str]()
    if not folder.root.is_dir():
        return ["no such folder"]

    def check(path: object, name: str) -> None:
        if not path and name not in found:
            found.append(name)

    for row in target.rows(config.data_kind):
        experiments = [agent.experiment for agent in row.agent.lineage]
        splits = [(row.task, split) for split in ("train", *row.splits)]
        splits += [(e.training.augmentation, "train") for e in experiments if e.training.augmentation]
        for task, split in splits:
            files = " or ".join(pattern.format(split=split) for pattern in TASKS[task].files)
            check(folder.annotations(task, split), f"no {files}")
        for prefix in dict.fromkeys(prefix for e in experiments for prefix in e.word_vectors):
            for suffix in ("_vocab.txt", "_glove.npy"):
                check((folder.root / f"{prefix}{suffix}").is_file(), f"no {prefix}{suffix}")
    try:
        check(folder.connectivity, "")
    except DataError as error:
        found.append(str(error).removeprefix(f"{folder.root}: "))
    if config.features:
        check(Path(config.features).is_file(), f"no feature file {config.features}")
    elif len(folder.features) != 1 and not any(path.name == "semantic.hdf5" for path in folder.features):
        names = ", ".join(path.name for path in folder.features) or "none"
        found.append(f"expected one feature file, found {names}; say which with --features")
    return found


def missing_in_world(target: Target) -> list[str]:
    """Return a message for each file that a target needs and that no generated world has."""
    experiments = [agent.experiment for row in target.rows("embedded") for agent in row.agent.lineage]
    prefixes = dict.fromkeys(prefix for experiment in experiments for prefix in experiment.word_vectors)
    return [f"no {prefix}_vocab.txt" for prefix in prefixes]


def _training_key(experiment: Experiment, parent: PlannedTraining | None, facts: Mapping[str, Any]) -> str:
    settings = as_json(experiment)
    for name in (*DESCRIPTIONS, "start", "features", "validation"):
        settings.pop(name)
    content = {**facts, "experiment": settings, "parent": None if parent is None else parent.key}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:KEY_LENGTH]
