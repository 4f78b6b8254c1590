"""Test whether the words of an instruction match the next viewpoint better than other candidates.

At every step of a reference path the next viewpoint is compared with the other candidates that the path has
not visited. A candidate is described by words: the names of objects in its view, the names of objects in its
own candidate views (the content of a scene memory), or its room label. The score of a candidate is a sum over
the words that it shares with the instruction; singular and plural are the same word. Every shared word adds
its inverse document frequency times the square root of the area that its objects cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.errors import DataError
from esceme.perception.semantic_features import ProgressBar, coverage_by_name
from esceme.perception.visible_objects import (
    REACH,
    DatasetAnnotations,
    SceneViewpoints,
    find_visible_objects,
    split_into_words,
)
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import split_words
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX, SceneGraph


class NextHopAuc(NamedTuple):
    """AUC by source of words: probability that the next viewpoint has a higher score than another candidate.

    Chance is 0.5; a tie counts one half. Sources with `near` use annotated boxes only. All other sources also
    use objects that were annotated at another viewpoint and re-projected.
    """

    pairs: int
    """Number of compared pairs of a next viewpoint and another candidate."""
    view_near: float
    """AUC with the names of objects in the view that shows the candidate; annotated boxes only."""
    view: float
    """AUC with the names of objects in the view that shows the candidate."""
    memory_near: float
    """AUC with max-pooled words of the candidate views at the candidate's viewpoint; annotated boxes only."""
    memory: float
    """AUC with max-pooled words of the candidate views at the candidate's viewpoint, as in a scene memory."""
    room: float
    """AUC with the room label of the candidate's viewpoint."""
    memory_and_room: float
    """AUC with the words of `memory` and `room` together."""


def match_next_hops(
    data_folder: str | Path,
    episodes: Sequence[Episode],
    *,
    reach: float = REACH,
    progress: ProgressBar = lambda names, label: names,
) -> NextHopAuc:
    """Compare the next viewpoint with all other candidates at every step of the episodes' reference paths.

    `data_folder` must have object and room annotations. Objects farther than `reach` metres are ignored.
    Raises `DataError` if no step has another candidate.
    """
    folder = DataFolder(data_folder)
    annotations = DatasetAnnotations.read(folder)
    vocabulary = _Vocabulary(annotations, episodes)
    by_scene: dict[str, list[int]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        by_scene[episode.scene_id].append(index)
    num_pairs, wins = 0, dict.fromkeys(NextHopAuc._fields[1:], 0.0)
    for scene in progress(sorted(by_scene), "matching"):
        path = folder.connectivity / f"{scene}{SUFFIX}"
        graph = SceneGraph.read(path)
        pairs = np.concatenate([_candidate_pairs(graph, index, episodes[index]) for index in by_scene[scene]])
        if not len(pairs):
            continue
        num_pairs += len(pairs)
        episode_index, viewpoint, *candidates = pairs.T
        weights = vocabulary.instructions[episode_index]
        tables = _word_tables(graph, SceneViewpoints.read(path), annotations, vocabulary, reach)
        for source, table in tables.items():
            rows = _view_rows(graph) if source.startswith("view") else graph.neighbours
            right, other = ((table[rows[viewpoint, c]] * weights).sum(axis=1) for c in candidates)
            wins[source] += float((right > other).sum() + (right == other).sum() / 2)
    if not num_pairs:
        raise DataError(f"{folder.root}: {len(episodes)} episodes hold no choice between candidates")
    return NextHopAuc(num_pairs, **{source: count / num_pairs for source, count in wins.items()})


def singular(word: str) -> str:
    """Return a word without its plural s; the rule is approximate.

    >>> singular("chairs"), singular("gas")
    ('chair', 'gas')
    """
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


class _Vocabulary:
    """All words of object names and room labels, and matrices with one column per word (W)."""

    def __init__(self, annotations: DatasetAnnotations, episodes: Sequence[Episode]) -> None:
        names, rooms = (
            [split_into_words(name) for name in group]
            for group in (annotations.names, annotations.labels.values())
        )
        words = sorted({singular(word) for name in (*names, *rooms) for word in name})
        self.index_of = {word: index for index, word in enumerate(words)}
        self.names, self.rooms = self._bag_of_words(names), self._bag_of_words(rooms)
        """(names, W) and (room labels, W): 1 where an object name or room label contains a word."""
        instructions = self._bag_of_words([split_words(episode.instruction) for episode in episodes])
        frequency = np.maximum(instructions.sum(axis=0), 1)
        inverse_frequency = np.log(max(len(episodes), 1) / frequency)
        self.instructions = csr_array(instructions * inverse_frequency[None])
        """(episodes, W): inverse document frequency of every word in an instruction; zero for other words."""

    def _bag_of_words(self, texts: Sequence[Sequence[str]]) -> csr_array:
        """Return a matrix (texts, W) that is 1 where a text contains a word."""
        entries = [
            (row, self.index_of[word])
            for row, text in enumerate(texts)
            for word in {singular(word) for word in text}
            if word in self.index_of
        ]
        rows, columns = np.array(entries, dtype=np.int64).reshape(-1, 2).T
        return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(self.index_of)))


def _word_tables(
    graph: SceneGraph,
    scene: SceneViewpoints,
    annotations: DatasetAnnotations,
    vocabulary: _Vocabulary,
    reach: float,
) -> dict[str, csr_array]:
    """Return a dict from source of words (the name of a field of `NextHopAuc`) to weights of words.

    The weights of `view` and `view_near` are (P * 36, W), one row per view. The weights of all other sources
    are (P, W), one row per viewpoint.
    """
    row_of = {viewpoint: row for row, viewpoint in enumerate(scene.viewpoints)}
    graph_rows = np.array([row_of[viewpoint] for viewpoint in graph.viewpoints])
    views = (graph_rows[:, None] * VIEWS + np.arange(VIEWS)).ravel()
    objects = find_visible_objects(scene, annotations, reach=reach)
    tables: dict[str, csr_array] = {}
    for suffix, group in (("_near", objects.only_annotated()), ("", objects)):
        coverage = coverage_by_name(group, len(scene.viewpoints), len(annotations.names))
        in_view = csr_array((coverage @ vocabulary.names)[views].sqrt())  # (P * 36, W)
        tables[f"view{suffix}"] = in_view
        pooled = in_view[_view_rows(graph)[:, 0]]
        for rows in _view_rows(graph).T[1:]:
            pooled = pooled.maximum(in_view[rows])
        tables[f"memory{suffix}"] = csr_array(pooled)
    labels = list(annotations.labels)
    keys = [f"{graph.scene_id}_{viewpoint}" for viewpoint in graph.viewpoints]
    inside = [
        (row, labels.index(annotations.rooms[key]))
        for row, key in enumerate(keys)
        if key in annotations.rooms
    ]
    rows, label = np.array(inside, dtype=np.int64).reshape(-1, 2).T
    room_of = csr_array((np.ones(len(rows)), (rows, label)), shape=(len(graph), len(labels)))
    tables["room"] = room_of @ vocabulary.rooms
    tables["memory_and_room"] = csr_array(tables["memory"] + tables["room"])
    return tables


def _view_rows(graph: SceneGraph) -> NDArray[np.int64]:
    """Return the row number (P, K) of every candidate view in a table with 36 rows per viewpoint.

    A viewpoint with fewer than K candidates repeats its first candidate view.
    """
    views = np.where(graph.views >= 0, graph.views, graph.views[:, :1])
    return np.arange(len(graph))[:, None] * VIEWS + views


def _candidate_pairs(graph: SceneGraph, episode_index: int, episode: Episode) -> NDArray[np.int64]:
    """Return the pairs of candidates to compare on the reference path of an episode, as an array (N, 4).

    The columns are: episode index, viewpoint index, candidate number of the next viewpoint, candidate number
    of an alternative. Candidates that the path has already visited are no alternatives.
    """
    pairs = []
    path = [graph.index(viewpoint) for viewpoint in episode.reference_path]
    for step, (here, following) in enumerate(pairwise(path)):
        neighbours = graph.neighbours[here, : graph.degrees[here]].tolist()
        if following not in neighbours:
            continue  # paths of R4R and others may repeat a viewpoint
        right = neighbours.index(following)
        pairs += [
            (episode_index, here, right, candidate)
            for candidate, neighbour in enumerate(neighbours)
            if candidate != right and neighbour not in path[:step]
        ]
    return np.array(pairs, dtype=np.int64).reshape(-1, 4)
