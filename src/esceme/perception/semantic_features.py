"""Semantic features of real scenes: word vectors of visible objects, and the room label, without images.

Semantic features come from human annotations (object boxes, room labels), not from images. The first features
of a view come from the word vectors of its objects; a view without objects has zeros. The last features are a
one-hot vector of the viewpoint's room label, in the order of the sorted labels.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.errors import DataError
from esceme.files import read_text
from esceme.perception.visible_objects import (
    REACH,
    DatasetAnnotations,
    SceneViewpoints,
    VisibleObjects,
    find_visible_objects,
    split_into_words,
)
from esceme.tasks.folder import DataFolder
from esceme.world.features import map_array, write_features
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX, scene_ids

RANDOM_WIDTH = 128
"""Number of features of a random word vector."""
Annotation = Literal["objects", "rooms"]
ProgressBar = Callable[[Sequence[str], str], Iterable[str]]
"""Takes names and a label; returns the same names and displays progress as they are consumed."""


@dataclass(frozen=True)
class WordTable:
    """Word vectors of length 1: GloVe vectors, or random vectors that are determined by the word."""

    width: int
    vectors: dict[str, NDArray[np.float32]] | None
    """Word -> vector (width,); None for random vectors, which exist for every word."""
    source: str
    """Name of the vocabulary file without its ending, or `random`."""

    @classmethod
    def read(cls, prefix: str | Path) -> WordTable:
        """Read the words in `<prefix>_vocab.txt`, one per line, and their vectors in `<prefix>_glove.npy`."""
        vocabulary, file = Path(f"{prefix}_vocab.txt"), Path(f"{prefix}_glove.npy")
        words = read_text(vocabulary).split("\n")
        words = words[:-1] if words[-1] == "" else words
        vectors = map_array(file, advice="fetch it again")
        if vectors.ndim != 2 or len(vectors) != len(words):
            raise DataError(f"{file}: shape {vectors.shape}, but {vocabulary.name} has {len(words)} words")
        lengths = np.linalg.norm(vectors, axis=1)
        is_valid = np.isfinite(lengths) & (lengths > 0)
        if not is_valid.all():
            raise DataError(f"{file}: the vector of '{words[int(is_valid.argmin())]}' is zero or not finite")
        units = (vectors / lengths[:, None]).astype(np.float32)
        return cls(vectors.shape[1], dict(zip(words, units, strict=True)), Path(prefix).name)

    @classmethod
    def random(cls, width: int = RANDOM_WIDTH) -> WordTable:
        """Return a table with a random vector for every word. Equal words have equal vectors."""
        return cls(width, None, "random")

    def find(self, word: str) -> NDArray[np.float32] | None:
        """Return the vector (width,) of a word, or None if the table does not contain the word."""
        if self.vectors is not None:
            return self.vectors.get(word)
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
        drawn = np.random.default_rng(seed).normal(size=self.width)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)

    def embed(self, names: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector of length 1 per name, (N, width): the normalised sum of the vectors of its words.

        A name without known words has a vector of zeros.
        """
        table = np.zeros((len(names), self.width), dtype=np.float32)
        for row, name in enumerate(names):
            for word in split_into_words(name):
                if (vector := self.find(word)) is not None:
                    table[row] += vector
        return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)


class ViewStatistics(NamedTuple):
    """Statistics of the objects that views show."""

    names_per_viewpoint: float
    """Mean number of different object names in all views of a viewpoint."""
    empty_views: float
    """Fraction of views without an object, from 0 to 1."""


class SemanticSummary(NamedTuple):
    """What a written feature file contains, for the report of the command."""

    scenes: int
    viewpoints: int
    width: int
    near: ViewStatistics
    """Statistics with annotated boxes only."""
    reprojected: ViewStatistics
    """Statistics with annotated and re-projected objects, as in the written file."""
    unknown_words: dict[str, int]
    """Word without a vector -> number of annotations, (object, viewpoint) pairs, whose name has this word."""


def view_features(
    objects: VisibleObjects, table: NDArray[np.float32], rooms: NDArray[np.int64], num_labels: int
) -> NDArray[np.float32]:
    """Return the semantic features (P, 36, D + num_labels) of one scene.

    `table` (names, D) holds the vector of every object name. `rooms` (P,) holds the index of every
    viewpoint's room label, or -1. The first D features of a view are the mean vector of its objects, weighted
    by area and scaled to a norm equal to the square root of the covered share of the view (at most 1).
    """
    coverage = coverage_by_name(objects, len(rooms), len(table))
    words = coverage @ table  # (P * 36, D)
    length = np.sqrt(np.minimum(coverage.sum(axis=1), 1))
    words *= (length / np.maximum(np.linalg.norm(words, axis=1), 1e-6))[:, None]
    features = np.zeros((len(rooms), VIEWS, table.shape[1] + num_labels), dtype=np.float32)
    features[..., : table.shape[1]] = words.reshape(len(rooms), VIEWS, -1)
    known = np.flatnonzero(rooms >= 0)
    features[known, :, table.shape[1] + rooms[known]] = 1
    return features


def coverage_by_name(objects: VisibleObjects, num_viewpoints: int, num_names: int) -> csr_array:
    """Return the share (P * 36, names) of every view that all objects of the same name cover together."""
    row = objects.viewpoint * VIEWS + objects.view
    return csr_array((objects.coverage, (row, objects.name)), shape=(num_viewpoints * VIEWS, num_names))


def write_semantic_features(
    data_folder: str | Path,
    out: str | Path,
    *,
    words: WordTable,
    reach: float = REACH,
    without: Collection[Annotation] = (),
    progress: ProgressBar = lambda names, label: names,
) -> SemanticSummary:
    """Write the semantic features of all scenes of a data folder to the HDF5 file `out`.

    The file has the format of the published files: the key `<scene>_<viewpoint>` of every included viewpoint
    has features (36, D). Values are rounded to half precision. Objects farther than `reach` metres are
    ignored. The features of annotations `without` are 0. Equal annotations give equal files.
    """
    folder = DataFolder(data_folder)
    annotations = DatasetAnnotations.read(folder)
    scenes = scene_ids(folder.connectivity)
    table, labels = words.embed(annotations.names), sorted(annotations.labels)
    if "objects" in without:
        table[:] = 0
    num_viewpoints, num_names, num_filled = 0, np.zeros(2), np.zeros(2)

    def features() -> Iterator[tuple[str, NDArray[np.float16]]]:
        nonlocal num_viewpoints
        for scene_id in progress(scenes, "scenes"):
            scene = SceneViewpoints.read(folder.connectivity / f"{scene_id}{SUFFIX}")
            objects = find_visible_objects(scene, annotations, reach=reach)
            num_viewpoints += len(scene.viewpoints)
            for kind, group in enumerate((objects.only_annotated(), objects)):
                num_names[kind] += len(np.unique(group.viewpoint * len(table) + group.name))
                num_filled[kind] += len(np.unique(group.viewpoint * VIEWS + group.view))
            room_of = [None if "rooms" in without else annotations.rooms.get(key) for key in scene.keys]
            rooms = np.array([-1 if room is None else labels.index(room) for room in room_of], dtype=np.int64)
            rows = view_features(objects, table, rooms, len(labels)).astype(np.float16)
            yield from zip(scene.keys, rows, strict=True)

    write_features(out, features())
    near, reprojected = (
        ViewStatistics(float(names / num_viewpoints), float(1 - filled / (num_viewpoints * VIEWS)))
        for names, filled in zip(num_names, num_filled, strict=True)
    )
    unknown = unknown_words(annotations, words)
    width = words.width + len(labels)
    return SemanticSummary(len(scenes), num_viewpoints, width, near, reprojected, unknown)


def unknown_words(annotations: DatasetAnnotations, words: WordTable) -> dict[str, int]:
    """Return a dict from word without a vector to its number of annotations, the most frequent word first."""
    counts = Counter(item.name for group in annotations.objects.values() for item in group)
    unknown: Counter[str] = Counter()
    for name, count in counts.items():
        unknown.update({word: count for word in split_into_words(name) if words.find(word) is None})
    return dict(sorted(unknown.items(), key=lambda item: (-item[1], item[0])))
