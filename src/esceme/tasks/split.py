"""Loading of splits: checked episodes with their scene graphs, features, and the instruction encoder."""

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
"""Number of ImageNet class scores that published feature files may append (docs/spec.md A.7)."""

InstructionEncoder = Callable[[Episode], Sequence[int]]
"""Returns the token ids of an episode's instruction."""


@dataclass(frozen=True)
class Split:
    """The episodes of an annotation file and the graphs of their scenes."""

    task: Task
    annotations: Path
    episodes: list[Episode]
    """In file order."""
    graphs: dict[str, SceneGraph]
    """Graphs by scene id, sorted."""


@dataclass(frozen=True)
class Dataset:
    """Splits of a data folder, with an atlas of all their scenes."""

    folder: DataFolder
    splits: list[Split]
    features: FeatureStore
    atlas: Atlas
    """Scenes in the order of their ids."""


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
    """Load splits, given as (task, split), with the graphs and features of their scenes.

    `features` is a store or a file; by default `name` and `width` select the file, see `load_features`.
    Without `needs_features`, the default is features of zeros, for agents that read none.
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
    """Load a split of a data folder; see `read_split`."""
    if not data.root.is_dir():
        raise DataError(f"{data.root}: no such folder; say where the data is with --data or ESCEME_DATA")
    return read_split(
        get_task(task), data.require(get_task(task).name, split), data.connectivity, graphs=graphs
    )


def read_split(
    task: Task, annotations: Path, connectivity: Path, *, graphs: Mapping[str, SceneGraph] | None = None
) -> Split:
    """Read an annotation file and the graphs of its scenes.

    `graphs` holds graphs that were read before; they are not read again. Raises `DataError` if a scene has no
    graph or a reference path or goal does not exist in its graph.
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
    """Open a feature file: `path`, or the file called `name` in the data folder, or its only feature file.

    `width` is the number of features per view that the network reads; None accepts any. Appended classifier
    scores are cut off; any other width raises `DataError`. Messages refer to the user's `option`.
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
    """Make features of zeros, of width 1, for every viewpoint, for agents that read no features."""
    keys = [f"{scene}_{viewpoint}" for scene, graph in graphs.items() for viewpoint in graph.viewpoints]
    return ArrayFeatures(keys, np.zeros((len(keys), VIEWS, 1), np.float32), source="nothing")


def load_wordpiece(data: DataFolder) -> WordPiece | None:
    """Read the WordPiece tokenizer of a data folder; None if the folder has none."""
    path = next(iter(data.tokenizers), None)
    return None if path is None else WordPiece.read(path)


def make_instruction_encoder(
    data: DataFolder,
    task: str,
    *,
    max_tokens: int,
    keep: Literal["first", "last"],
    vocabulary: Vocabulary | None = None,
    vocabulary_size: int | None = None,
    needs_text: bool = True,
) -> InstructionEncoder:
    """Make a function that returns the token ids of an episode's instruction, at most `max_tokens`.

    With the `vocabulary` of a run, the function encodes the text by that vocabulary. Otherwise it returns the
    token ids in the annotations or, if there are none, encodes the text by the data folder's WordPiece
    tokenizer. A tokenizer of another size than `vocabulary_size`, the number of embeddings of the network, is
    not used. If no ids can be made, agents that do not need text get the bytes of the text; for others the
    encoder raises `DataError`.
    """
    tokenizer: Tokenizer | None = load_wordpiece(data) if vocabulary is None else vocabulary
    if tokenizer is not None and vocabulary_size not in (None, tokenizer.size):
        tokenizer = None

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
        if vocabulary_size is not None and max(ids) >= vocabulary_size:
            raise DataError(
                f"episode {episode.episode_id}: word id {max(ids)} is beyond the {vocabulary_size} words "
                "this network knows; are the annotations encoded with its vocabulary?"
            )
        return ids

    return encode
