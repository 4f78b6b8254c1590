"""Loading of splits: checked episodes, scene graphs, features, and the encoder of instructions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from esceme.errors import DataError
from esceme.tasks.catalogue import Task, get_task
from esceme.tasks.episode import Episode, check_paths, first_episode_per_path, scenes_of
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import Tokenizer, Vocabulary, WordPiece, truncate
from esceme.world.atlas import Atlas
from esceme.world.features import ArrayFeatures, FeatureStore, open_features
from esceme.world.geometry import VIEWS
from esceme.world.graph import SceneGraph, read_scenes

CLASSIFIER_SCORES = 1000
"""Number of ImageNet scores that published files may append to the features of a view (docs/spec.md A.7)."""

InstructionEncoder = Callable[[Episode], Sequence[int]]
"""Function that returns the token ids of an episode's instruction."""


@dataclass(frozen=True)
class Split:
    """Episodes of an annotation file, and the graphs of their scenes."""

    task: Task
    annotations: Path
    episodes: list[Episode]
    """Episodes in file order."""
    graphs: dict[str, SceneGraph]
    """Scene id -> graph, sorted by id."""


@dataclass(frozen=True)
class Dataset:
    """Several splits of a data folder, and one atlas of all their scenes."""

    folder: DataFolder
    splits: list[Split]
    features: FeatureStore
    atlas: Atlas
    """Atlas of all scenes, in the order of their ids."""


def load_dataset(
    folder: DataFolder,
    splits: Iterable[tuple[str, str]],
    *,
    features: str | Path | FeatureStore | None = None,
    name: str = "",
    width: int | None = None,
    needs_features: bool = True,
    option: str = "--features",
) -> Dataset:
    """Load several splits, given as (task, split) pairs, with the graphs and features of their scenes.

    `features` is a store or a file. By default, `load_features` selects the file by `name` and `width`. If
    `needs_features` is False, the default is features of zeros, for agents that read no features. Error
    messages name `option`, the command-line option that selects a feature file.
    """
    loaded, graphs = [], dict[str, SceneGraph]()
    for task, split in splits:
        loaded.append(load_split(folder, task, split, graphs=graphs))
        graphs |= loaded[-1].graphs
    graphs = {scene: graphs[scene] for scene in sorted(graphs)}
    if features is None and not needs_features:
        features = blank_features(graphs)
    elif not isinstance(features, FeatureStore):
        features = load_features(folder, features, name=name, width=width, option=option)
    return Dataset(folder, loaded, features, Atlas(graphs.values(), features))


def load_split(
    data: DataFolder, task: str, split: str, *, graphs: Mapping[str, SceneGraph] | None = None
) -> Split:
    """Load a split of a data folder. See `read_split` for `graphs` and errors."""
    if not data.root.is_dir():
        raise DataError(f"{data.root}: no such folder; say where the data is with --data or ESCEME_DATA")
    return read_split(
        get_task(task), data.require(get_task(task).name, split), data.connectivity, graphs=graphs
    )


def read_split(
    task: Task, annotations: Path, connectivity: Path, *, graphs: Mapping[str, SceneGraph] | None = None
) -> Split:
    """Read an annotation file and the graphs of its scenes.

    `graphs` holds graphs that are already in memory and are not read again. Raises `DataError` if a scene has
    no graph, or if a reference path or goal is not in the graph.
    """
    episodes = list(task.read(annotations))
    scenes = scenes_of(episodes, connectivity, annotations)
    known = {} if graphs is None else {scene: graph for scene, graph in graphs.items() if scene in scenes}
    known |= read_scenes(connectivity, scenes - known.keys())
    check_paths(first_episode_per_path(episodes), known, annotations)
    return Split(task, annotations, episodes, {scene: known[scene] for scene in sorted(known)})


def load_features(
    data: DataFolder,
    path: str | Path | None = None,
    *,
    name: str = "",
    width: int | None = None,
    option: str = "--features",
) -> FeatureStore:
    """Open the feature file `path`; by default the file called `name` in the data folder, or its only file.

    `width` is the number of features per view that the network reads; None accepts any number. Classifier
    scores at the end of the features are cut off. Any other width raises `DataError`. Error messages name
    `option`, the command-line option that selects a file.
    """
    path = data.find_features(name, option=option) if path is None else Path(path)
    store = open_features(path)
    if width is None or store.width == width:
        return store
    if store.width != width + CLASSIFIER_SCORES:
        raise DataError(
            f"{path}: features of width {store.width}, and this network reads {width}; is it the right file?"
        )
    return open_features(path, width=width)


def blank_features(graphs: Mapping[str, SceneGraph]) -> FeatureStore:
    """Return features of zeros, with width 1, for every viewpoint; for agents that read no features."""
    keys = [f"{scene}_{viewpoint}" for scene, graph in graphs.items() for viewpoint in graph.viewpoints]
    return ArrayFeatures(keys, np.zeros((len(keys), VIEWS, 1), np.float32), source="nothing")


def load_wordpiece(data: DataFolder) -> WordPiece | None:
    """Return the WordPiece tokenizer of a data folder, or None if the folder has no vocabulary."""
    path = next(iter(data.tokenizers), None)
    return None if path is None else WordPiece.read(path)


def find_tokenizer(
    data: DataFolder, vocabulary: Vocabulary | None, vocabulary_size: int | None
) -> Tokenizer | None:
    """Return `vocabulary`, or else the WordPiece tokenizer of the data folder.

    Return None if no tokenizer has `vocabulary_size` tokens. If `vocabulary_size` is None, any size is
    accepted.
    """
    tokenizer: Tokenizer | None = load_wordpiece(data) if vocabulary is None else vocabulary
    return None if tokenizer is None or vocabulary_size not in (None, tokenizer.size) else tokenizer


def make_instruction_encoder(
    data: DataFolder,
    task: str,
    *,
    max_tokens: int,
    keep: Literal["first", "last"],
    vocabulary: Vocabulary | None = None,
    vocabulary_size: int | None = None,
    needs_text: bool = True,
    episodes: Iterable[Episode] = (),
) -> InstructionEncoder:
    """Return a function that returns the token ids of an episode's instruction, at most `max_tokens`.

    If `vocabulary` is given, the function encodes the text with it. Otherwise the function returns the token
    ids in the annotations. If there are none, it encodes the text with the WordPiece tokenizer of the data
    folder. A tokenizer is not used if its size differs from `vocabulary_size`, the number of token embeddings
    of the network. If there is no way to get token ids, the function returns the bytes of the text, or raises
    `DataError` if `needs_text` is True. `keep` is the end of a long instruction that is kept.

    The token ids in the annotations of `episodes` are checked at once: `DataError` names an episode with an
    id that the network does not know.
    """
    tokenizer = find_tokenizer(data, vocabulary, vocabulary_size)
    if vocabulary is None:
        for episode in episodes:
            _check_ids(episode, episode.tokens or (), vocabulary_size)

    @functools.cache
    def encode(episode: Episode) -> Sequence[int]:
        if episode.tokens is not None and vocabulary is None:
            ids = list(episode.tokens)
        elif tokenizer is not None:
            ids = tokenizer.encode(episode.instruction)
        elif not needs_text:
            ids = list(episode.instruction.encode())
        else:
            raise DataError(
                f"{data.root}: episode {episode.episode_id} of {task} has text but no ids, and there is no "
                f"vocabulary of this network's {vocabulary_size} words; expected it in tokenizer/vocab.txt, "
                "or annotations that hold ids"
            )
        ids = truncate(ids, max_tokens, keep=keep)
        if not ids:
            raise DataError(f"episode {episode.episode_id} of {task}: its instruction holds no ids")
        _check_ids(episode, ids, vocabulary_size)
        return ids

    return encode


def _check_ids(episode: Episode, ids: Sequence[int], vocabulary_size: int | None) -> None:
    """Raise `DataError` if a token id is not below `vocabulary_size`, the number of embeddings.

    If `vocabulary_size` is None, all ids are accepted.
    """
    if vocabulary_size is None or not ids:
        return
    wrong = max(ids) if min(ids) >= 0 else min(ids)
    if not 0 <= wrong < vocabulary_size:
        raise DataError(
            f"episode {episode.episode_id}: token id {wrong} is not one of the {vocabulary_size} that this "
            "network knows; are the annotations encoded with its vocabulary?"
        )
