"""Features of real scenes without a single picture: the words of what each view shows, and the room.

They come from what people annotated (object boxes, room labels), not from vision: an agent that walks on them
sees names, not pixels. Of the numbers that describe a view, the first come from the words of its objects
(zeros where it shows none); the last have a 1 for the room one stands in, in the order of the sorted labels.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.errors import DataError
from esceme.files import read_text
from esceme.perception.glimpses import (
    REACH,
    Annotations,
    Glimpses,
    Surroundings,
    glimpse,
    name_words,
)
from esceme.tasks.folder import DataFolder
from esceme.world.features import write_features
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX, scene_ids

RANDOM_WIDTH = 128
"""How many numbers a word has where no GloVe is given."""


@dataclass(frozen=True)
class WordTable:
    """Vectors of words, all of length 1: GloVe's, or random ones that depend on nothing but the word."""

    width: int
    vectors: dict[str, NDArray[np.float32]] | None
    """None: every word is known and has its random vector."""
    source: str

    @classmethod
    def read(cls, prefix: str | Path) -> WordTable:
        """The words of `<prefix>_vocab.txt`, one a line, and their vectors in `<prefix>_glove.npy`."""
        vocabulary, file = Path(f"{prefix}_vocab.txt"), Path(f"{prefix}_glove.npy")
        words = read_text(vocabulary).split("\n")
        words = words[:-1] if words[-1] == "" else words
        try:
            vectors = np.load(file, allow_pickle=False)
        except FileNotFoundError:
            raise DataError(f"{file}: no such file") from None
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{file}: not a complete .npy file ({error}); fetch it again") from None
        if vectors.ndim != 2 or len(vectors) != len(words):
            raise DataError(f"{file}: shape {vectors.shape}, but {vocabulary.name} has {len(words)} words")
        lengths = np.linalg.norm(vectors, axis=1)
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            wrong = words[int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])]
            raise DataError(f"{file}: the vector of '{wrong}' is zero or not finite")
        units = (vectors / lengths[:, None]).astype(np.float32)
        return cls(vectors.shape[1], dict(zip(words, units, strict=True)), Path(prefix).name)

    @classmethod
    def random(cls, width: int = RANDOM_WIDTH) -> WordTable:
        """A vector for any word whatever, always the same for the same word."""
        return cls(width, None, "random")

    def find(self, word: str) -> NDArray[np.float32] | None:
        """The vector of a word; None where it is unknown."""
        if self.vectors is not None:
            return self.vectors.get(word)
        seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little")
        drawn = np.random.default_rng(seed).normal(size=self.width)
        return (drawn / np.linalg.norm(drawn)).astype(np.float32)

    def embed(self, names: Sequence[str]) -> NDArray[np.float32]:
        """A vector of length 1 for each name, the mean of its known words; zeros where all are unknown."""
        table = np.zeros((len(names), self.width), dtype=np.float32)
        for row, name in enumerate(names):
            for word in name_words(name):
                if (vector := self.find(word)) is not None:
                    table[row] += vector
        return table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-6)


class Sparseness(NamedTuple):
    """How much the views of viewpoints say."""

    names_per_viewpoint: float
    """Different names of objects, in any of the views."""
    empty_views: float
    """The share of views that show no object."""


class Summary(NamedTuple):
    """What was written."""

    scenes: int
    viewpoints: int
    width: int
    near: Sparseness
    """Annotated boxes alone."""
    reprojected: Sparseness
    """With what was re-projected, as written."""
    unknown_words: dict[str, int]
    """Words of object names that have no vector, and on how many (object, viewpoint) entries they stand."""


Watch = Callable[[Sequence[str], str], Iterable[str]]
"""Something that shows progress over names under a label."""


def view_features(
    shown: Glimpses, table: NDArray[np.float32], rooms: NDArray[np.int64], labels: int
) -> NDArray[np.float32]:
    """The features (P, 36, D + labels) of viewpoints in the given rooms; `table` (names, D) has the words.

    The words of a view point where the mean of its objects, weighted by area, points; they are as long as
    the square root of the area that all of them fill, at most 1, so that small things are not lost.
    """
    shares = view_shares_by_name(shown, len(rooms), len(table))
    words = shares @ table  # (P * 36, D)
    filled = np.sqrt(np.minimum(shares.sum(axis=1), 1))
    words *= (filled / np.maximum(np.linalg.norm(words, axis=1), 1e-6))[:, None]
    features = np.zeros((len(rooms), VIEWS, table.shape[1] + labels), dtype=np.float32)
    features[..., : table.shape[1]] = words.reshape(len(rooms), VIEWS, -1)
    known = np.flatnonzero(rooms >= 0)
    features[known, :, table.shape[1] + rooms[known]] = 1
    return features


def view_shares_by_name(shown: Glimpses, viewpoints: int, names: int) -> csr_array:
    """The share of each view (P * 36) that things of each name fill together."""
    place = shown.viewpoint * VIEWS + shown.view
    return csr_array((shown.share, (place, shown.name)), shape=(viewpoints * VIEWS, names))


def write_semantic(
    root: str | Path,
    out: str | Path,
    *,
    words: WordTable,
    reach: float = REACH,
    scenes: Iterable[str] | None = None,
    watch: Watch = lambda names, label: names,
) -> Summary:
    """Write the features of a data folder's scenes (default: all) as HDF5, and say how much they say.

    The form is that of the published files: `<scene>_<viewpoint>` -> (36, D), for every included viewpoint,
    with values that half precision holds. The same annotations give the same bytes.
    """
    folder = DataFolder(root)
    annotations = Annotations.read(folder)
    wanted = scene_ids(folder.connectivity) if scenes is None else sorted(set(scenes))
    table, labels = words.embed(annotations.names), sorted(annotations.labels)
    tally = _Tally(len(annotations.names))

    def panoramas() -> Iterator[tuple[str, NDArray[np.float16]]]:
        for scene in watch(wanted, "scenes"):
            around = Surroundings.read(folder.connectivity / f"{scene}{SUFFIX}")
            shown = glimpse(around, annotations, reach=reach)
            tally.add(shown, len(around.viewpoints))
            rooms = np.array([_room(annotations, labels, key) for key in around.keys], dtype=np.int64)
            features = view_features(shown, table, rooms, len(labels)).astype(np.float16)
            yield from zip(around.keys, features, strict=True)

    write_features(out, panoramas())
    return Summary(
        scenes=len(wanted),
        viewpoints=tally.viewpoints,
        width=words.width + len(labels),
        near=tally.sparseness(0),
        reprojected=tally.sparseness(1),
        unknown_words=unknown_words(annotations, words),
    )


def _room(annotations: Annotations, labels: Sequence[str], key: str) -> int:
    label = annotations.rooms.get(key)
    return -1 if label is None else labels.index(label)


def unknown_words(annotations: Annotations, words: WordTable) -> dict[str, int]:
    """Words of object names that the table lacks, the frequent first, and on how many entries they stand."""
    counts = Counter(each.name for found in annotations.objects.values() for each in found)
    unknown: Counter[str] = Counter()
    for name, count in counts.items():
        unknown.update({word: count for word in name_words(name) if words.find(word) is None})
    return dict(sorted(unknown.items(), key=lambda item: (-item[1], item[0])))


class _Tally:
    """Counts over scenes, for near boxes (0) and all glimpses (1)."""

    def __init__(self, names: int) -> None:
        self._names = names
        self.viewpoints = 0
        self._named = [0, 0]
        self._filled = [0, 0]

    def add(self, shown: Glimpses, viewpoints: int) -> None:
        self.viewpoints += viewpoints
        for which, each in enumerate((shown.only_near(), shown)):
            self._named[which] += len(np.unique(each.viewpoint * self._names + each.name))
            self._filled[which] += len(np.unique(each.viewpoint * VIEWS + each.view))

    def sparseness(self, which: int) -> Sparseness:
        return Sparseness(
            names_per_viewpoint=self._named[which] / self.viewpoints,
            empty_views=1 - self._filled[which] / (self.viewpoints * VIEWS),
        )
