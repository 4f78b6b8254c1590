"""What an evaluation needs on the table: the navigator, the world, the episodes, and how words become ids."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from esceme import __version__
from esceme.errors import ConfigError, DataError
from esceme.evaluation.protocol import (
    Lifetime,
    Place,
    Protocol,
    open_lifetime,
    places_in_tours,
    require_sense,
)
from esceme.evaluation.schedule import ScheduleName
from esceme.files import read_bytes
from esceme.runs import Run, Setup, load_run
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode, check_paths, one_per_walk, scenes_of
from esceme.tasks.folder import DataFolder
from esceme.tasks.task import Task
from esceme.tasks.text import Tokenizer, Vocabulary, WordPiece, truncate
from esceme.tasks.tours import Tour, check_tours, read_tours
from esceme.walking import Encode
from esceme.world import ArrayFeatures, Atlas, FeatureStore, open_features, read_scenes
from esceme.world.geometry import VIEWS
from esceme.world.graph import SceneGraph

SCRIPTED = ("random", "shortest", "stop")
"""Agents that need no run folder."""
Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be evaluated, and how: all that a person decides."""

    run: str
    """A run folder, or the name of a scripted agent."""
    data: str
    split: str
    memory: Protocol
    task: str | None = None
    """By default the one the run was made for."""
    schedule: ScheduleName = "lanes"
    batch: int = 8
    seed: int = 0
    order: Literal["file", "shuffled"] = "file"
    """How a scene's episodes follow each other in lanes: as in the file, or drawn from the seed."""
    bank: str | None = None
    tours: str | None = None
    oracle_phases: bool = False
    features: str | None = None
    max_steps: int | None = None
    max_tokens: int | None = None
    precision: Precision = "fp32"

    @property
    def passes(self) -> int:
        """How often the split is lived; the last time counts."""
        return 2 if self.memory == "two-pass" else 1

    def __post_init__(self) -> None:
        for name in ("batch", "max_steps", "max_tokens"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, found {value}")
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, found {self.seed}")
        if self.schedule == "interleaved" and self.order != "file":
            raise ConfigError("'interleaved' shuffles by its seed as it is; an order is for 'lanes'")
        choices = {
            "schedule": ("lanes", "interleaved"),
            "order": ("file", "shuffled"),
            "precision": ("fp32", "bf16"),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} '{getattr(self, name)}': expected {' or '.join(known)}")


@dataclass(frozen=True)
class Stage:
    """Everything loaded that a plan names."""

    plan: Plan
    run: Run
    atlas: Atlas
    episodes: Sequence[Episode]
    """In the order they are lived."""
    annotations: Path
    tours: Sequence[Tour] | None
    encode: Encode
    max_steps: int
    size: int
    """How many episodes the whole evaluation has."""
    hashes: Mapping[str, str]
    """sha256 of the weights, of the data (annotations and graphs), of the features, and of files beside."""

    @cached_property
    def by_id(self) -> dict[str, Episode]:
        """The episodes by their ids."""
        return {episode.episode_id: episode for episode in self.episodes}

    @cached_property
    def places(self) -> dict[str, Place]:
        """Where each episode stands in its tour."""
        if self.tours is None:
            return {}
        return places_in_tours(
            [tour for tour in self.tours if tour.scene_id in self.atlas.graphs], self.episodes
        )

    @cached_property
    def visits(self) -> dict[str, int] | None:
        """The number of each episode in its tour; None where the scene is what is visited."""
        return {each: place.number + 1 for each, place in self.places.items()} or None

    def lifetime(self) -> Lifetime:
        """A memory at its beginning."""
        return open_lifetime(
            self.plan.memory,
            self.run.navigator.reader,
            self.atlas,
            bank=None if self.plan.bank is None else Path(self.plan.bank),
            tours=self.places,
            oracle_phases=self.plan.oracle_phases,
        )

    @property
    def facts(self) -> dict[str, object]:
        """What determines the result: two evaluations with the same facts give the same scores."""
        plan, setup = self.plan, self.run.setup
        decided = {key: value for key, value in asdict(plan).items() if key not in PLACES}
        if plan.schedule == "lanes":
            decided.pop("batch")  # which lanes do not depend on
        limits = {"max_steps": self.max_steps, "max_tokens": plan.max_tokens or setup.max_tokens}
        return {
            **decided,
            **limits,
            "task": plan.task or setup.task,
            "agent": setup.agent,
            "reader": setup.reader,
            "settings": {
                "agent": setup.agent_settings,
                "reader": setup.reader_settings,
                "keep": setup.keep,
            },
            "origin": setup.origin,
            "episodes": self.size,
            "hashes": dict(self.hashes),
            "version": __version__,
        }

    @property
    def fingerprint(self) -> str:
        """A hash of the facts."""
        return hashlib.sha256(msgspec.json.encode(self.facts, order="sorted")).hexdigest()


PLACES = ("run", "data", "bank", "tours", "features")
"""Fields of a plan that say where something lies; what lies there is hashed instead."""


def set_stage(
    plan: Plan, *, scenes: Collection[str] | None = None, hashes: Mapping[str, str] | None = None
) -> Stage:
    """Load what a plan names, for some scenes or for all of them; `hashes` are of all, where known."""
    run = open_run(plan)
    lanes = plan.schedule == "lanes"
    require_sense(
        plan.memory,
        run.navigator.reader,
        bank=plan.bank,
        tours=plan.tours,
        oracle_phases=plan.oracle_phases,
        lanes=lanes,
    )
    data, task = DataFolder(plan.data), plan.task or run.setup.task
    annotations = _annotations(data, task, plan.split)
    episodes = list(TASKS[task].read(annotations))
    graphs = read_scenes(data.connectivity, scenes_of(episodes, data.connectivity, annotations))
    check_paths(one_per_walk(episodes), graphs, annotations)
    store = _features(plan, run, data, graphs)
    tours = None if plan.tours is None else read_tours(plan.tours, plan.split)
    if tours is not None:
        check_tours(tours, episodes, plan.tours)
    lived = _ordered(episodes, plan, tours)
    return Stage(
        plan=plan,
        run=run,
        atlas=Atlas(
            (graph for graph in graphs.values() if scenes is None or graph.scene_id in scenes), store
        ),
        episodes=[each for each in lived if scenes is None or each.scene_id in scenes],
        annotations=annotations,
        tours=tours,
        encode=_encoder(plan, run, data, task),
        max_steps=plan.max_steps or run.setup.max_steps,
        size=len(lived),
        hashes=hashes or _hashes(plan, run, data, annotations, graphs, store),
    )


def open_run(plan: Plan) -> Run:
    """The run folder of a plan, or a scripted agent in the guise of one."""
    if plan.run not in SCRIPTED:
        return load_run(plan.run)
    task = _task(plan.task or "r2r")
    settings = {"seed": plan.seed} if plan.run == "random" else {}
    setup = Setup(
        agent=plan.run,
        agent_settings=settings,
        reader_settings={},
        task=task.name,
        max_steps=task.max_steps,
        max_tokens=task.max_tokens,
        keep=task.keep,
        origin="scripted",
    )
    return Run(Path(plan.run), setup, setup.build().eval(), hashlib.sha256(plan.run.encode()).hexdigest())


def _task(name: str) -> Task:
    if name not in TASKS:
        raise ConfigError(f"task '{name}' is unknown; expected one of {', '.join(TASKS)}")
    return TASKS[name]


def _annotations(data: DataFolder, task: str, split: str) -> Path:
    if not data.root.is_dir():
        raise DataError(f"{data.root}: no such folder; say where the data is with --data or ESCEME_DATA")
    path = data.annotations(_task(task).name, split)
    if path is None:
        here = ", ".join(data.splits(task)) or "none"
        raise DataError(f"{data.root}: no split '{split}' of {task}; splits that are here: {here}")
    return path


def _features(plan: Plan, run: Run, data: DataFolder, graphs: Mapping[str, SceneGraph]) -> FeatureStore:
    """The features to see with; a scripted agent sees nothing where there are none."""
    if plan.features is not None:
        found = [Path(plan.features)]
    else:
        named = [path for path in data.features if path.name == run.setup.feature_source]
        found = named or data.features
    scripted = run.setup.agent in SCRIPTED
    if scripted and plan.features is None:
        keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
        return ArrayFeatures(keys, np.zeros((len(keys), VIEWS, 1), np.float32), source="nothing")
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise DataError(f"{data.root}: expected one feature file, found {names}; say which with --features")
    width = run.setup.agent_settings.get("feature_width")
    store = open_features(found[0])
    if width is None or store.width == width or scripted:
        return store
    if found[0].suffix == ".npy" or store.width < width:
        raise DataError(
            f"{found[0]}: features of width {store.width}, and this network reads {width}; "
            "is it the file the run was trained on?"
        )
    return open_features(found[0], width=width)


def _hashes(
    plan: Plan,
    run: Run,
    data: DataFolder,
    annotations: Path,
    graphs: Mapping[str, SceneGraph],
    store: FeatureStore,
) -> dict[str, str]:
    hashes = {
        "weights": run.weights_hash,
        "data": _hash_of_data(annotations, graphs),
        "features": _hash_of_features(graphs, store),
    }
    files = {"vocabulary": _vocabulary(run, data), "bank": plan.bank, "tours": plan.tours}
    if (plan.task or run.setup.task) == "reverie":  # whose success depends on the objects in sight
        files["objects"] = data.objects
    for name, path in files.items():
        if path is not None:
            hashes[name] = hashlib.sha256(read_bytes(Path(path))).hexdigest()
    return hashes


def _hash_of_data(annotations: Path, graphs: Mapping[str, SceneGraph]) -> str:
    """sha256 over the annotations and the graphs' places and edges: what all agents share."""
    digest = hashlib.sha256(read_bytes(annotations))
    for scene in sorted(graphs):
        graph = graphs[scene]
        digest.update("\n".join((scene, *graph.viewpoints)).encode())
        digest.update(graph.neighbours.tobytes() + graph.views.tobytes() + graph.positions.tobytes())
    return digest.hexdigest()


def _hash_of_features(graphs: Mapping[str, SceneGraph], store: FeatureStore) -> str:
    """sha256 over every feature of the graphs' viewpoints."""
    digest = hashlib.sha256()
    for scene in sorted(graphs):
        for key in store.locate([f"{scene}_{name}" for name in graphs[scene].viewpoints])[:, None]:
            digest.update(store.gather(key, np.arange(VIEWS)[None]).tobytes())
    return digest.hexdigest()


def _ordered(episodes: Sequence[Episode], plan: Plan, tours: Sequence[Tour] | None) -> list[Episode]:
    """Episodes in the order they are lived: the file's, a drawn one, or that of their tours."""
    if tours is not None:
        by_id = {episode.episode_id: episode for episode in episodes}
        return [by_id[each] for tour in tours for each in tour.episode_ids]
    if plan.order == "file":
        return list(episodes)
    order = np.random.default_rng(plan.seed).permutation(len(episodes))
    return [episodes[place] for place in order]


def _encoder(plan: Plan, run: Run, data: DataFolder, task: str) -> Encode:
    """How an instruction becomes ids: as stored, or by the run's or the data's vocabulary."""
    setup = run.setup
    longest = plan.max_tokens or setup.max_tokens
    known = setup.agent_settings.get("vocabulary")
    tokenizer = _tokenizer(run, data)

    def encode(episode: Episode) -> Sequence[int]:
        if episode.tokens is not None and run.vocabulary is None:
            ids = list(episode.tokens)
        elif tokenizer is not None:
            ids = tokenizer.encode(episode.instruction)
        elif setup.agent in SCRIPTED:
            ids = list(episode.instruction.encode())
        else:
            raise DataError(
                f"{data.root}: episode {episode.episode_id} of {task} has text but no ids, and there is no "
                f"vocabulary; expected {data.root}/tokenizer/vocab.txt"
            )
        ids = truncate(ids, longest, keep=setup.keep)
        if known is not None and max(ids) >= known:
            raise DataError(
                f"episode {episode.episode_id}: word id {max(ids)} is beyond the {known} words this network "
                "knows; are the annotations encoded with its vocabulary?"
            )
        return ids

    return encode


def _tokenizer(run: Run, data: DataFolder) -> Tokenizer | None:
    if run.vocabulary is not None:
        return Vocabulary.read(run.vocabulary)
    path = _vocabulary(run, data)
    return None if path is None else WordPiece.read(path)


def _vocabulary(run: Run, data: DataFolder) -> Path | None:
    """The vocabulary that makes ids of text: the run's own, else that of the data."""
    return run.vocabulary or next(iter(data.tokenizers), None)
