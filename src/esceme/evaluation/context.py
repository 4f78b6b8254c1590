"""The settings of an evaluation, and everything loaded for it: navigator, world, episodes, hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from esceme import __version__
from esceme.agents import AGENTS
from esceme.errors import ConfigError
from esceme.evaluation.protocol import (
    MemoryLifetime,
    Protocol,
    TourPosition,
    check_protocol,
    check_tour_routes,
    open_memory,
    tour_episodes,
    tour_positions,
)
from esceme.evaluation.schedule import ScheduleName
from esceme.files import read_bytes
from esceme.runs import NavigatorConfig, Run, load_run, part_config_type
from esceme.tasks.catalogue import Task, get_task
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import Dataset, InstructionEncoder, load_dataset, make_instruction_encoder
from esceme.tasks.text import Vocabulary
from esceme.tasks.tours import Tour, check_tours, read_tours
from esceme.world import Atlas
from esceme.world.geometry import VIEWS

SCRIPTED = tuple(name for name, kind in AGENTS.items() if kind.is_scripted)
"""Agents that need no run folder."""
Precision = Literal["fp32", "bf16"]
FILE_FIELDS = ("run", "data", "bank", "tours", "features")
"""Fields of `EvaluationConfig` that name files. Results depend on the content of a file, not on its name."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The settings of an evaluation."""

    run: str
    """A run folder, or the name of a scripted agent."""
    data: str
    """The data folder."""
    split: str
    """The split to evaluate on, such as val_unseen."""
    memory: Protocol
    """The memory protocol."""
    task: str | None = None
    """By default the task of the run."""
    schedule: ScheduleName = "lanes"
    """`lanes` runs one episode per scene at a time; `interleaved` runs the batches of the released code."""
    batch: int = 8
    """Number of episodes that run side by side."""
    seed: int = 0
    """Seed of a shuffled order, and of the random agent."""
    order: Literal["file", "shuffled"] = "file"
    """Order of a scene's episodes in lanes: that of the file, or a random one by the seed."""
    bank: str | None = None
    """The bank file that the protocol `warm` starts with."""
    tours: str | None = None
    """A file of tours, which the episodes follow."""
    oracle_phases: bool = False
    """Whether the memory also holds the paths to an episode's goal and to the next start of its tour."""
    features: str | None = None
    """The feature file; by default the only one of the data folder."""
    max_steps: int | None = None
    """Maximum number of decisions per episode; by default that of the run."""
    max_tokens: int | None = None
    """Maximum number of tokens per instruction; by default that of the run."""
    precision: Precision = "fp32"
    """Precision of the network: single, or bfloat16 autocast."""

    @property
    def num_passes(self) -> int:
        """How often the split is run; the last pass is scored."""
        return 2 if self.memory == "two-pass" else 1

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a value out of range and for settings that contradict each other."""
        for name in ("batch", "max_steps", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, found {value}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, found {self.seed}")
        if self.tours is not None and self.order != "file":
            raise ConfigError("tours have an order of their own; give either --tours or --order")
        if self.schedule == "interleaved" and self.order != "file":
            raise ConfigError(
                "the schedule 'interleaved' always shuffles by the seed; --order is for 'lanes'"
            )
        choices = {
            "schedule": ("lanes", "interleaved"),
            "order": ("file", "shuffled"),
            "precision": ("fp32", "bf16"),
        }
        for name, expected in choices.items():
            if getattr(self, name) not in expected:
                raise ConfigError(f"{name} '{getattr(self, name)}': expected {' or '.join(expected)}")


class EvaluationLimits(NamedTuple):
    """Limits on trajectories and instructions."""

    max_steps: int
    max_tokens: int
    keep: Literal["first", "last"]
    """Which end of a truncated instruction is kept."""


@dataclass(frozen=True)
class EvaluationContext:
    """Everything loaded for an evaluation."""

    config: EvaluationConfig
    run: Run
    task: Task
    atlas: Atlas
    episodes: Sequence[Episode]
    """The episodes in the order they are run."""
    annotations: Path
    tours: Sequence[Tour] | None
    encode: InstructionEncoder
    limits: EvaluationLimits
    num_episodes: int
    """Number of episodes of the whole evaluation, of which a worker runs some."""
    num_left_out: int
    """Number of episodes of the split that are on none of the tours; they are not run."""
    hashes: Mapping[str, str]
    """sha256 of the weights, of the data (annotations and graphs), of the features, and of other files."""

    @cached_property
    def by_id(self) -> dict[str, Episode]:
        """The episodes by their ids."""
        return {episode.episode_id: episode for episode in self.episodes}

    @cached_property
    def tour_positions(self) -> dict[str, TourPosition]:
        """The position of each episode in its tour, by episode id; empty without tours."""
        tours = [tour for tour in self.tours or () if tour.episode_ids[0] in self.by_id]
        return tour_positions(tours, self.episodes)

    @cached_property
    def visits(self) -> dict[str, int] | None:
        """Position of each episode in its tour, counted from 1, by episode id; None without tours."""
        return {name: position.number + 1 for name, position in self.tour_positions.items()} or None

    def lifetime(self) -> MemoryLifetime:
        """Create the memory of this evaluation, in its initial state."""
        return open_memory(
            self.config.memory,
            self.run.navigator.reader,
            self.atlas,
            bank=None if self.config.bank is None else Path(self.config.bank),
            tours=self.tour_positions,
            oracle_phases=self.config.oracle_phases,
        )

    @property
    def facts(self) -> dict[str, object]:
        """Everything that determines the result: evaluations with equal facts have equal scores."""
        config, navigator = self.config, self.run.config
        settings = {name: value for name, value in asdict(config).items() if name not in FILE_FIELDS}
        if config.schedule == "lanes" and config.precision == "fp32":
            settings.pop("batch")  # trajectories in lanes depend on the batch size by bf16's rounding only
        order = "tours" if config.tours else config.order
        return {
            **settings,
            **self.limits._asdict(),
            "task": self.task.name,
            "order": "released" if config.schedule == "interleaved" else order,
            "agent": navigator.agent_name,
            "reader": navigator.reader_name,
            "settings": {"agent": asdict(navigator.agent), "reader": asdict(navigator.reader)},
            "origin": navigator.origin,
            "episodes": self.num_episodes,
            **({} if self.tours is None else {"left_out": self.num_left_out}),
            "hashes": dict(self.hashes),
            "version": __version__,
        }

    @property
    def fingerprint(self) -> str:
        """A hash of the facts."""
        return hashlib.sha256(msgspec.json.encode(self.facts, order="sorted")).hexdigest()


def load_context(
    config: EvaluationConfig,
    *,
    scenes: Collection[str] | None = None,
    hashes: Mapping[str, str] | None = None,
) -> EvaluationContext:
    """Load everything that `config` names. If `scenes` are given, keep only the episodes of these scenes.

    `hashes` saves time: pass the hashes of another context of the same config. By default the files are
    hashed. Raises an error for missing or contradictory data and for settings that do not suit the agent.
    """
    run = open_run(config)
    check_protocol(
        config.memory,
        run.navigator.reader,
        bank=config.bank,
        tours=config.tours,
        oracle_phases=config.oracle_phases,
        lanes=config.schedule == "lanes",
    )
    task, is_scripted = get_task(config.task or run.config.task), run.config.agent_name in SCRIPTED
    dataset = load_dataset(  # with all scenes, also in workers: viewpoints have the same integers everywhere
        DataFolder(config.data),
        [(task.name, config.split)],
        features=config.features,
        name=run.config.feature_source,
        width=run.config.agent.limits.feature_width,
        needs_features=not is_scripted,
    )
    split = dataset.splits[0]
    if run.navigator.agent.needs_goals and any(episode.goal_withheld for episode in split.episodes):
        raise ConfigError(f"'{config.run}' needs the goals, and those of {config.split} are withheld")
    tours = None if config.tours is None else read_tours(config.tours, config.split)
    if tours is not None:
        check_tours(tours, split.episodes, config.tours)
        if config.oracle_phases:
            check_tour_routes(tours, split.episodes, dataset.atlas, config.tours)
    episodes = order_episodes(split.episodes, config, tours)
    limits = get_limits(config, run)
    return EvaluationContext(
        config=config,
        run=run,
        task=task,
        atlas=dataset.atlas,
        episodes=[episode for episode in episodes if scenes is None or episode.scene_id in scenes],
        annotations=split.annotations,
        tours=tours,
        encode=make_instruction_encoder(
            dataset.folder,
            task.name,
            max_tokens=limits.max_tokens,
            keep=limits.keep,
            vocabulary=None if run.vocabulary is None else Vocabulary.read(run.vocabulary),
            vocabulary_size=run.config.agent.limits.vocabulary,
            needs_text=not is_scripted,
        ),
        limits=limits,
        num_episodes=len(episodes),
        num_left_out=len(split.episodes) - len(episodes),
        hashes=hashes or hash_inputs(config, run, dataset),
    )


def open_run(config: EvaluationConfig) -> Run:
    """Load the run folder, or build a scripted agent as if it were one."""
    if config.run not in SCRIPTED:
        return load_run(config.run)
    task = get_task(config.task or "r2r")
    agent_config = part_config_type("agent", config.run)
    has_seed = "seed" in {field.name for field in fields(agent_config)}
    navigator = NavigatorConfig(
        agent=agent_config(seed=config.seed) if has_seed else agent_config(),
        task=task.name,
        max_steps=task.max_steps,
        max_tokens=task.max_tokens,
        keep=task.keep,
        origin="scripted",
    )
    weights_hash = hashlib.sha256(config.run.encode()).hexdigest()
    return Run(Path(config.run), navigator, navigator.build().eval(), weights_hash)


def get_limits(config: EvaluationConfig, run: Run) -> EvaluationLimits:
    """Return the limits of an evaluation.

    A limit that `config` leaves open is that of the run, or that of the task if `config` names another task
    than the run was trained for. Raises `ConfigError` if the network has too few embeddings for a limit.
    """
    default = run.config if config.task in (None, run.config.task) else get_task(config.task or "")
    limits = EvaluationLimits(
        config.max_steps or default.max_steps, config.max_tokens or default.max_tokens, default.keep
    )
    for name, size, needed in (
        ("max_steps", run.config.agent.limits.max_steps, limits.max_steps - 1),  # none after the last step
        ("max_tokens", run.config.agent.limits.max_tokens, limits.max_tokens),
    ):
        if size is not None and needed > size:
            raise ConfigError(
                f"{name} {getattr(limits, name)}: this network has embeddings for {size} only; give fewer"
            )
    return limits


def order_episodes(
    episodes: Sequence[Episode], config: EvaluationConfig, tours: Sequence[Tour] | None
) -> list[Episode]:
    """Return the episodes in the order of the tours, of the file, or of a random permutation by the seed."""
    if tours is not None:
        return tour_episodes(tours, episodes)
    if config.order == "file":
        return list(episodes)
    return [episodes[row] for row in np.random.default_rng(config.seed).permutation(len(episodes))]


# -- hashes ----------------------------------------------------------------------------------------------


def hash_inputs(config: EvaluationConfig, run: Run, dataset: Dataset) -> dict[str, str]:
    """Compute the sha256 of each input of an evaluation on the only split of `dataset`."""
    data, split = dataset.folder, dataset.splits[0]
    annotations_and_graphs, features = hashlib.sha256(read_bytes(split.annotations)), hashlib.sha256()
    for scene, graph in split.graphs.items():
        annotations_and_graphs.update("\n".join((scene, *graph.viewpoints)).encode())
        arrays = graph.neighbours.tobytes() + graph.views.tobytes() + graph.positions.tobytes()
        annotations_and_graphs.update(arrays)
        for row in dataset.features.locate([f"{scene}_{name}" for name in graph.viewpoints])[:, None]:
            features.update(dataset.features.gather(row, np.arange(VIEWS)[None]).tobytes())
    hashes = {
        "weights": run.weights_hash,
        "data": annotations_and_graphs.hexdigest(),
        "features": features.hexdigest(),
    }
    files = {
        "vocabulary": run.vocabulary or next(iter(data.tokenizers), None),
        "bank": config.bank,
        "tours": config.tours,
        "objects": data.objects if split.task.scores_objects else None,
    }
    for name, path in files.items():
        if path is not None:
            hashes[name] = hashlib.sha256(read_bytes(Path(path))).hexdigest()
    return hashes
