"""Test whether the words of an instruction match the next viewpoint better than other candidates.

At every step of a reference path the next viewpoint is compared with the other candidates that the path has
not visited. A candidate is described by words: the names of objects in its view, the names of objects in its
own candidate views (the content of a scene memory), or its room label. The score of a candidate is a sum over
the words that it shares with the instruction, singular or plural. The term of a word is its inverse document
frequency times the square root of the area that its objects cover.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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

Integers = NDArray[np.int64]


class NextHopAuc(NamedTuple):
    """Probability that the next viewpoint has a higher score than another candidate, by source of words.

    Chance is 0.5; a tie counts one half. The sources with `near` use annotated boxes only. The others also
    use objects that were annotated at another viewpoint and re-projected.
    """

    pairs: int
    """Number of compared pairs of candidates."""
    view_near: float
    """Objects in the candidate's view, annotated boxes only."""
    view: float
    """Objects in the candidate's view."""
    memory_near: float
    """Maximum over the candidate views of the candidate itself, annotated boxes only."""
    memory: float
    """Maximum over the candidate views of the candidate itself."""
    room: float
    """Room label of the candidate."""
    memory_and_room: float
    """Sum of the words of `memory` and `room`."""


def match_next_hops(
    root: str | Path,
    episodes: Sequence[Episode],
    *,
    reach: float = REACH,
    progress: ProgressBar = lambda names, label: names,
) -> NextHopAuc:
    """Compare the next viewpoint with all other candidates at every step of the episodes' reference paths.

    `root` is a data folder with object and room annotations. Objects farther than `reach` metres are ignored.
    Raises `DataError` if no step has another candidate.
    """
    folder = DataFolder(root)
    annotations = DatasetAnnotations.read(folder)
    weights = _WordWeights(annotations, episodes)
    by_scene: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_scene[episode.scene_id].append(episode)
    pairs, wins = 0, dict.fromkeys(NextHopAuc._fields[1:], 0.0)
    for scene in progress(sorted(by_scene), "matching"):
        path = folder.connectivity / f"{scene}{SUFFIX}"
        graph = SceneGraph.read(path)
        candidate_pairs = _pair_next_hops_with_alternatives(graph, by_scene[scene])
        if not len(candidate_pairs.next_hop):
            continue
        instructions = [episode.instruction for episode in by_scene[scene]]
        weighted = weights.weigh_instructions(instructions)[candidate_pairs.episode]
        pairs += len(candidate_pairs.next_hop)
        tables = _word_tables(graph, SceneViewpoints.read(path), annotations, weights, reach)
        for source, table in tables.items():
            by_view = source.startswith("view")
            right, other = (
                (
                    table[_word_table_rows(graph, candidate_pairs.viewpoint, slot, by_view=by_view)]
                    * weighted
                ).sum(axis=1)
                for slot in (candidate_pairs.next_hop, candidate_pairs.alternative)
            )
            wins[source] += float((right > other).sum() + (right == other).sum() / 2)
    if not pairs:
        raise DataError(f"{folder.root}: {len(episodes)} episodes hold no choice between candidates")
    return NextHopAuc(pairs, **{source: count / pairs for source, count in wins.items()})


def singular(word: str) -> str:
    """Return a word without its plural s; the rule is approximate.

    >>> singular("chairs"), singular("gas")
    ('chair', 'gas')
    """
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


class _WordWeights:
    """Vocabulary (W) of object names and room labels, and the inverse document frequency of every word."""

    def __init__(self, annotations: DatasetAnnotations, episodes: Iterable[Episode]) -> None:
        names, rooms = (
            [split_into_words(name) for name in group]
            for group in (annotations.names, annotations.labels.values())
        )
        vocabulary = sorted({singular(word) for name in (*names, *rooms) for word in name})
        self.index_of = {word: index for index, word in enumerate(vocabulary)}
        self.words_of_names, self.words_of_rooms = self._bag_of_words(names), self._bag_of_words(rooms)
        """(names, W) and (room labels, W): 1 where an object name or room label contains a word."""
        instructions = self._bag_of_words([split_words(episode.instruction) for episode in episodes])
        frequency = np.maximum(instructions.sum(axis=0), 1)
        self.inverse_frequency = np.log(max(instructions.shape[0], 1) / frequency)

    def weigh_instructions(self, instructions: Sequence[str]) -> csr_array:
        """Return the weight (N, W) of every word in every instruction; zero if the word does not occur."""
        bags = self._bag_of_words([split_words(text) for text in instructions])
        return csr_array(bags * self.inverse_frequency[None])

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
    weights: _WordWeights,
    reach: float,
) -> Mapping[str, csr_array]:
    """Return a dict from source of words (a field of `NextHopAuc`) to its word table.

    A word table holds the weight of every word: per view (P * 36, W) for the sources `view` and `view_near`,
    per viewpoint (P, W) for the others.
    """
    row_of = {viewpoint: row for row, viewpoint in enumerate(scene.viewpoints)}
    graph_rows = np.array([row_of[viewpoint] for viewpoint in graph.viewpoints])
    views = (graph_rows[:, None] * VIEWS + np.arange(VIEWS)).ravel()
    objects = find_visible_objects(scene, annotations, reach=reach)
    tables: dict[str, csr_array] = {}
    for suffix, group in (("_near", objects.only_annotated()), ("", objects)):
        coverage = coverage_by_name(group, len(scene.viewpoints), len(annotations.names))
        in_view = csr_array((coverage @ weights.words_of_names)[views].sqrt())  # (P * 36, W)
        tables[f"view{suffix}"] = in_view
        tables[f"memory{suffix}"] = _pool_candidate_views(in_view, graph)
    labels = list(annotations.labels)
    keys = [f"{graph.scene_id}_{viewpoint}" for viewpoint in graph.viewpoints]
    inside = [
        (row, labels.index(annotations.rooms[key]))
        for row, key in enumerate(keys)
        if key in annotations.rooms
    ]
    rows, label = np.array(inside, dtype=np.int64).reshape(-1, 2).T
    room_of = csr_array((np.ones(len(rows)), (rows, label)), shape=(len(graph), len(labels)))
    tables["room"] = room_of @ weights.words_of_rooms
    tables["memory_and_room"] = csr_array(tables["memory"] + tables["room"])
    return tables


def _word_table_rows(graph: SceneGraph, viewpoint: Integers, slot: Integers, *, by_view: bool) -> Integers:
    """Return the row indices of candidates in a word table with one row per view or per viewpoint.

    `viewpoint` (N,) holds indices of the current viewpoints; `slot` (N,) numbers of their candidates.
    """
    return (
        viewpoint * VIEWS + graph.views[viewpoint, slot]
        if by_view
        else graph.neighbours[viewpoint, slot].astype(np.int64)
    )


def _pool_candidate_views(in_view: csr_array, graph: SceneGraph) -> csr_array:
    """Return the maximum (P, W) over the candidate views of every viewpoint, given all views (P * 36, W)."""
    rows = np.arange(len(graph)) * VIEWS
    pooled = in_view[rows + graph.views[:, 0]]
    for slot in range(1, graph.views.shape[1]):
        view = np.where(graph.views[:, slot] >= 0, graph.views[:, slot], graph.views[:, 0])
        pooled = pooled.maximum(in_view[rows + view])
    return csr_array(pooled)


class _CandidatePairs(NamedTuple):
    """Pairs of candidates to compare, as arrays (N,).

    A pair has an episode index, a viewpoint index, and two numbers of candidates of this viewpoint: that of
    the next viewpoint on the reference path, and that of an alternative.
    """

    episode: Integers
    viewpoint: Integers
    next_hop: Integers
    alternative: Integers


def _pair_next_hops_with_alternatives(graph: SceneGraph, episodes: Sequence[Episode]) -> _CandidatePairs:
    """Return a pair for every step of the reference paths and every alternative to the next viewpoint.

    Candidates that the path has already visited are no alternatives.
    """
    rows = []
    for number, episode in enumerate(episodes):
        path = [graph.index(viewpoint) for viewpoint in episode.reference_path]
        for step, (here, following) in enumerate(zip(path, path[1:], strict=False)):
            neighbours = graph.neighbours[here, : graph.degrees[here]].tolist()
            if following not in neighbours:
                continue  # paths of R4R and others may repeat a viewpoint
            right = neighbours.index(following)
            visited = set(path[:step])
            rows += [
                (number, here, right, slot)
                for slot, neighbour in enumerate(neighbours)
                if slot != right and neighbour not in visited
            ]
    return _CandidatePairs(*np.array(rows, dtype=np.int64).reshape(-1, 4).T)
