"""Initialise an agent's grounding head, which relates words to image features, from word vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.files import read_json
from esceme.navigator import Navigator
from esceme.perception.semantic_features import WordTable
from esceme.tasks.file_checks import Rooms
from esceme.tasks.text import Vocabulary

SCALE = 4.0
"""Similarity of a word to features that equal its unit vector; unrelated words have similarity 0."""


def init_grounding_head(
    navigator: Navigator, vocabulary: Vocabulary | None, prefixes: Sequence[Path], rooms: Path | None
) -> None:
    """Set the word embeddings and the feature projection of a grounding head.

    A word's vector comes from the first of `prefixes` whose files PREFIX_vocab.txt and PREFIX_glove.npy
    contain it. Features are expected to start with such vectors. If one number per room label of the file
    `rooms` follows, the projection of this number is set to the mean vector of the label's words. Raise
    `ConfigError` if the agent has no grounding head, or if the vectors are wider than embeddings or features.
    """
    head = navigator.agent.grounding_head
    if head is None or vocabulary is None:
        raise ConfigError("word_vectors: expected a grounding head (--grounding) and --text words")
    tables = [WordTable.read(prefix) for prefix in prefixes]
    width, feature_width = tables[0].width, head.picture.in_features
    if width > min(head.words.embedding_dim, feature_width):
        raise ConfigError(
            f"word_vectors of width {width}: expected at most grounding {head.words.embedding_dim} "
            f"and features of width {feature_width}"
        )
    with torch.no_grad():
        for row, word in enumerate(vocabulary.entries):
            if (vector := _find(tables, word)) is not None:
                head.words.weight[row, :width] = torch.from_numpy(vector)
        head.picture.weight[:width, :width] = SCALE * torch.eye(width)
        labels = {} if rooms is None else read_json(rooms, Rooms).label_name
        for column, label in enumerate(sorted(labels)) if len(labels) == feature_width - width else ():
            if (vector := _mean_vector(tables, labels[label])) is not None:
                head.picture.weight[:width, width + column] = SCALE * torch.from_numpy(vector)


def _find(tables: Sequence[WordTable], word: str) -> NDArray[np.float32] | None:
    vectors = (table.find(word) for table in tables)
    return next((vector for vector in vectors if vector is not None), None)


def _mean_vector(tables: Sequence[WordTable], description: str) -> NDArray[np.float32] | None:
    """Return the normalised mean vector of the words of a room label, or None if all words are unknown.

    Words may be joined, as in `familyroom`. Text in parentheses is ignored.
    """
    words = re.findall(r"[a-z]+", description.partition("(")[0])
    parts = (part for word in words for part in (word, word.removesuffix("room")))
    vectors = [vector for part in parts if (vector := _find(tables, part)) is not None]
    if not vectors:
        return None
    mean = np.mean(vectors, axis=0)
    return (mean / np.linalg.norm(mean)).astype(np.float32)
