"""What a plan names, found and read: annotations, features, words, and the hashes of all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from esceme.errors import ConfigError, DataError
from esceme.evaluation.options import SCRIPTED, EvaluationConfig
from esceme.evaluation.protocol import tour_episodes
from esceme.files import read_bytes
from esceme.runs import Run
from esceme.tasks.catalogue import TASKS, get_task
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.text import Tokenizer, Vocabulary, WordPiece, truncate
from esceme.tasks.tours import Tour
from esceme.world import ArrayFeatures, FeatureStore, open_features
from esceme.world.geometry import VIEWS
from esceme.world.graph import SceneGraph

SCORES = 1000
"""Published feature files may append the scores of an image classifier, which nobody reads (spec A.7)."""


class Limits(NamedTuple):
    """How long walks and instructions may be."""

    max_steps: int
    max_tokens: int
    keep: Literal["first", "last"]


def limits_of(plan: EvaluationConfig, run: Run) -> Limits:
    """What the plan says, else what the run was made with, or the task's own where it is another task."""
    made_for = run.config if plan.task in (None, run.config.task) else get_task(plan.task or "")
    steps, tokens = plan.max_steps or made_for.max_steps, plan.max_tokens or made_for.max_tokens
    limits = Limits(steps, tokens, made_for.keep)
    for name, known, wanted in (
        ("max_steps", network_size(run, "max_steps"), limits.max_steps - 1),  # none after the last
        ("max_tokens", network_size(run, "positions"), limits.max_tokens),
    ):
        if known is not None and wanted > known:
            raise ConfigError(f"{name} {getattr(limits, name)}: this network has no more than {known} rows")
    return limits


def network_size(run: Run, size: str) -> int | None:
    """A size of a run's network, where it has such a one."""
    return getattr(run.navigator.agent.config, size, None)


def find_annotations(data: DataFolder, task: str, split: str) -> Path:
    """The file of a split; raises `DataError` naming the splits that are there."""
    if not data.root.is_dir():
        raise DataError(f"{data.root}: no such folder; say where the data is with --data or ESCEME_DATA")
    return data.require(get_task(task).name, split)


def find_features(
    plan: EvaluationConfig, run: Run, data: DataFolder, graphs: Mapping[str, SceneGraph]
) -> FeatureStore:
    """The features to see with; a scripted agent sees nothing where there are none."""
    scripted = run.config.agent_name in SCRIPTED
    if scripted and plan.features is None:
        keys = [f"{scene}_{name}" for scene, graph in graphs.items() for name in graph.viewpoints]
        return ArrayFeatures(keys, np.zeros((len(keys), VIEWS, 1), np.float32), source="nothing")
    path = Path(plan.features or data.only_features(run.config.feature_source, option="--features"))
    return open_fitting(path, None if scripted else network_size(run, "feature_width"))


def open_fitting(path: Path, width: int | None) -> FeatureStore:
    """A feature file for a network that reads `width` numbers a view; None: as many as the file has.

    Scores of a classifier after the features are left out; other widths raise `DataError`.
    """
    store = open_features(path)
    if width is None or store.width == width:
        return store
    if store.width != width + SCORES:
        raise DataError(
            f"{path}: features of width {store.width}, and this network reads {width}; is it the right file?"
        )
    return open_features(path, width=width)


def hash_inputs(
    plan: EvaluationConfig,
    run: Run,
    data: DataFolder,
    annotations: Path,
    graphs: Mapping[str, SceneGraph],
    store: FeatureStore,
) -> dict[str, str]:
    """sha256 of everything that was read, by what it is."""
    hashes = {
        "weights": run.weights_hash,
        "data": _hash_of_data(annotations, graphs),
        "features": _hash_of_features(graphs, store),
    }
    files = {"vocabulary": _vocabulary(run, data), "bank": plan.bank, "tours": plan.tours}
    if TASKS[plan.task or run.config.task].scores_objects:
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


def in_order(
    episodes: Sequence[Episode], plan: EvaluationConfig, tours: Sequence[Tour] | None
) -> list[Episode]:
    """Episodes in the order they are lived: the file's, a drawn one, or that of their tours."""
    if tours is not None:
        return tour_episodes(tours, episodes)
    if plan.order == "file":
        return list(episodes)
    order = np.random.default_rng(plan.seed).permutation(len(episodes))
    return [episodes[place] for place in order]


def make_encoder(
    plan: EvaluationConfig, run: Run, data: DataFolder, task: str, *, own: Vocabulary | None = None
) -> InstructionEncoder:
    """How an instruction becomes ids: as stored, or by the run's or the data's vocabulary.

    `own` is the vocabulary of a run that has not been written yet; by default it is in the run's folder.
    """
    limits = limits_of(plan, run)
    known = network_size(run, "vocabulary")
    if own is None and run.vocabulary is not None:
        own = Vocabulary.read(run.vocabulary)
    tokenizer: Tokenizer | None = _wordpiece(data) if own is None else own
    if tokenizer is not None and known not in (None, tokenizer.size):
        tokenizer = None  # made for other words

    def encode(episode: Episode) -> Sequence[int]:
        if episode.tokens is not None and own is None:
            ids = list(episode.tokens)
        elif tokenizer is not None:
            ids = tokenizer.encode(episode.instruction)
        elif run.config.agent_name in SCRIPTED:
            ids = list(episode.instruction.encode())
        else:
            raise DataError(
                f"{data.root}: episode {episode.episode_id} of {task} has text but no ids, and there is no "
                f"vocabulary of this network's {known} words; expected it in tokenizer/vocab.txt, "
                "or annotations that hold ids"
            )
        ids = truncate(ids, limits.max_tokens, keep=limits.keep)
        if not ids:
            raise DataError(f"episode {episode.episode_id} of {task}: its instruction holds no ids")
        if known is not None and max(ids) >= known:
            raise DataError(
                f"episode {episode.episode_id}: word id {max(ids)} is beyond the {known} words this network "
                "knows; are the annotations encoded with its vocabulary?"
            )
        return ids

    return encode


def _wordpiece(data: DataFolder) -> WordPiece | None:
    path = next(iter(data.tokenizers), None)
    return None if path is None else WordPiece.read(path)


def _vocabulary(run: Run, data: DataFolder) -> Path | None:
    """The vocabulary that makes ids of text: the run's own, else that of the data."""
    return run.vocabulary or next(iter(data.tokenizers), None)
