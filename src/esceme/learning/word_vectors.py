"""Where a grounding head begins: words where word vectors put them, and what is seen likewise."""

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

SHARPNESS = 4.0
"""How well a word fits what is exactly what it says; 0 is not at all."""


def init_grounding_head(
    navigator: Navigator, vocabulary: Vocabulary | None, prefixes: Sequence[Path], rooms: Path | None
) -> None:
    """Let a grounding head know words from the beginning, and features made of word vectors.

    Word vectors are those of PREFIX_vocab.txt and PREFIX_glove.npy, the first that has a word. Semantic
    features begin with such vectors; where they end with a number for each label of `rooms`, those are known
    by the words of the labels.
    """
    head = getattr(navigator.agent, "grounding", None)
    if head is None or vocabulary is None:
        raise ConfigError("word_vectors: expected a grounding head (--grounding) and --text words")
    tables = [WordTable.read(prefix) for prefix in prefixes]
    width, seen = tables[0].width, head.picture.in_features
    if width > min(head.words.embedding_dim, seen):
        raise ConfigError(
            f"word_vectors of width {width}: expected at most grounding {head.words.embedding_dim} "
            f"and features of width {seen}"
        )
    with torch.no_grad():
        for row, word in enumerate(vocabulary.entries):
            if (vector := _find(tables, word)) is not None:
                head.words.weight[row, :width] = torch.from_numpy(vector)
        head.picture.weight[:width, :width] = SHARPNESS * torch.eye(width)
        labels = {} if rooms is None else read_json(rooms, Rooms).label_name
        for column, label in enumerate(sorted(labels)) if len(labels) == seen - width else ():
            if (vector := _mean_of(tables, labels[label])) is not None:
                head.picture.weight[:width, width + column] = SHARPNESS * torch.from_numpy(vector)


def _find(tables: Sequence[WordTable], word: str) -> NDArray[np.float32] | None:
    found = (table.find(word) for table in tables)
    return next((vector for vector in found if vector is not None), None)


def _mean_of(tables: Sequence[WordTable], meaning: str) -> NDArray[np.float32] | None:
    """A vector of length 1 for what a room label means, by those of its words that are known.

    Labels join words (`familyroom`) and explain themselves in brackets, which are not read.
    """
    words = re.findall(r"[a-z]+", meaning.partition("(")[0])
    parts = (part for word in words for part in (word, word.removesuffix("room")))
    found = [vector for part in parts if (vector := _find(tables, part)) is not None]
    if not found:
        return None
    mean = np.mean(found, axis=0)
    return (mean / np.linalg.norm(mean)).astype(np.float32)
