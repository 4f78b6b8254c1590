"""How well annotated words tell the way: does the right candidate match the instruction better than others?

At every step of a reference path the next viewpoint competes with the other candidates that were not visited
yet. What a candidate offers is the words of its view, the words of what its own candidate views show (what a
memory of it would hold), or those of its room. It matches by the words that it shares with the instruction,
plurals and singulars alike: each counts by its rareness in instructions, and by the square root of the view's
area that it names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.errors import DataError
from esceme.perception.glimpses import REACH, Annotations, Surroundings, glimpse, name_words
from esceme.perception.semantic import view_shares_by_name
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.text import words
from esceme.world.geometry import VIEWS
from esceme.world.graph import SUFFIX, SceneGraph


class Matching(NamedTuple):
    """How often the right candidate matches better than another one (AUC; 0.5 is chance, ties are halves)."""

    pairs: int
    """How many comparisons were made."""
    view_near: float
    """The view that leads there, annotated boxes alone."""
    view: float
    """The same with what is re-projected."""
    memory_near: float
    """The strongest of each word over the candidate's own candidate views, annotated boxes alone."""
    memory: float
    """The same with what is re-projected."""
    room: float
    """The candidate's room label."""
    memory_and_room: float


SOURCES = Matching._fields[1:]

Watch = Callable[[Sequence[str], str], Iterable[str]]


def match_next_hops(
    root: str | Path,
    episodes: Sequence[Episode],
    *,
    reach: float = REACH,
    watch: Watch = lambda names, label: names,
) -> Matching:
    """Match the instructions of episodes with what the views of their scenes show, at every next hop."""
    folder = DataFolder(root)
    annotations = Annotations.read(folder)
    lexicon = _Lexicon(annotations, episodes)
    by_scene: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_scene[episode.scene_id].append(episode)
    pairs, wins = 0, dict.fromkeys(SOURCES, 0.0)
    for scene in watch(sorted(by_scene), "matching"):
        path = folder.connectivity / f"{scene}{SUFFIX}"
        offers = _offers(SceneGraph.read(path), Surroundings.read(path), annotations, lexicon, reach)
        hops = _next_hops(offers.graph, by_scene[scene])
        if not len(hops.right):
            continue
        asked = lexicon.weigh([episode.instruction for episode in by_scene[scene]])[hops.episode]
        pairs += len(hops.right)
        for source, (table, row_of) in offers.tables.items():
            right = (table[row_of(hops.here, hops.right)] * asked).sum(axis=1)
            other = (table[row_of(hops.here, hops.other)] * asked).sum(axis=1)
            wins[source] += float((right > other).sum() + (right == other).sum() / 2)
    if not pairs:
        raise DataError(f"{folder.root}: {len(episodes)} episodes hold no choice between candidates")
    return Matching(pairs, **{source: won / pairs for source, won in wins.items()})


def singular(word: str) -> str:
    """A word without the s of its plural, roughly.

    >>> singular("chairs"), singular("gas")
    ('chair', 'gas')
    """
    return word[:-1] if len(word) > 3 and word.endswith("s") else word


class _Lexicon:
    """The words of all object names and rooms, and how much each counts."""

    def __init__(self, annotations: Annotations, episodes: Iterable[Episode]) -> None:
        spelled = [name_words(name) for name in (*annotations.names, *annotations.labels.values())]
        different = sorted({singular(word) for name in spelled for word in name})
        self.number_of = {word: number for number, word in enumerate(different)}
        self.of_names = self._table([name_words(name) for name in annotations.names])
        self.of_rooms = self._table([name_words(annotations.labels[key]) for key in annotations.labels])
        """In the order of the labels."""
        asked = self._table([words(episode.instruction) for episode in episodes])
        occurs = np.maximum(asked.sum(axis=0), 1)
        self.rareness = np.log(max(asked.shape[0], 1) / occurs)

    def weigh(self, instructions: Sequence[str]) -> csr_array:
        """How much each word counts in each instruction; nothing where it does not occur."""
        return csr_array(self._table([words(text) for text in instructions]) * self.rareness[None])

    def _table(self, texts: Sequence[Sequence[str]]) -> csr_array:
        """1 where a text (row) holds a word (column)."""
        found = [
            (row, self.number_of[word])
            for row, text in enumerate(texts)
            for word in {singular(word) for word in text}
            if word in self.number_of
        ]
        rows, columns = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return csr_array((np.ones(len(rows)), (rows, columns)), shape=(len(texts), len(self.number_of)))


RowOf = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]
"""From where one stands and the candidate's slot there to the row of a table."""


class _Offers(NamedTuple):
    """What the candidates of a scene offer, by source: a table of words and who has which row."""

    graph: SceneGraph
    tables: Mapping[str, tuple[csr_array, RowOf]]


def _offers(
    graph: SceneGraph, around: Surroundings, annotations: Annotations, lexicon: _Lexicon, reach: float
) -> _Offers:
    row_of = {viewpoint: row for row, viewpoint in enumerate(around.viewpoints)}
    known = np.array([row_of[viewpoint] for viewpoint in graph.viewpoints])
    places = (known[:, None] * VIEWS + np.arange(VIEWS)).ravel()  # views in the order of the graph

    def by_view(here: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.int64]:
        return here * VIEWS + graph.views[here, slot]

    def by_viewpoint(here: NDArray[np.int64], slot: NDArray[np.int64]) -> NDArray[np.int64]:
        return graph.neighbours[here, slot].astype(np.int64)

    shown = glimpse(around, annotations, reach=reach)
    tables: dict[str, tuple[csr_array, RowOf]] = {}
    for ending, each in (("_near", shown.only_near()), ("", shown)):
        shares = view_shares_by_name(each, len(around.viewpoints), len(annotations.names))
        seen = csr_array((shares @ lexicon.of_names)[places].sqrt())  # (P * 36, words)
        tables[f"view{ending}"] = (seen, by_view)
        tables[f"memory{ending}"] = (_pool(seen, graph), by_viewpoint)
    labels = list(annotations.labels)
    keys = [f"{graph.scene_id}_{viewpoint}" for viewpoint in graph.viewpoints]
    inside = [
        (row, labels.index(annotations.rooms[key]))
        for row, key in enumerate(keys)
        if key in annotations.rooms
    ]
    rows, label = np.array(inside, dtype=np.int64).reshape(-1, 2).T
    stands = csr_array((np.ones(len(rows)), (rows, label)), shape=(len(graph), len(labels)))
    rooms = stands @ lexicon.of_rooms
    tables["room"] = (rooms, by_viewpoint)
    tables["memory_and_room"] = (csr_array(tables["memory"][0] + rooms), by_viewpoint)
    return _Offers(graph, tables)


def _pool(seen: csr_array, graph: SceneGraph) -> csr_array:
    """The strongest of each word over each viewpoint's candidate views: (P * 36, words) -> (P, words)."""
    rows = np.arange(len(graph)) * VIEWS
    pooled = seen[rows + graph.views[:, 0]]
    for slot in range(1, graph.views.shape[1]):
        view = np.where(graph.views[:, slot] >= 0, graph.views[:, slot], graph.views[:, 0])
        pooled = pooled.maximum(seen[rows + view])
    return csr_array(pooled)


class _Hops(NamedTuple):
    """Comparisons: the episode's number, where it stands, and the slots of two candidates there."""

    episode: NDArray[np.int64]
    here: NDArray[np.int64]
    right: NDArray[np.int64]
    other: NDArray[np.int64]


def _next_hops(graph: SceneGraph, episodes: Sequence[Episode]) -> _Hops:
    """The right candidate against each of the others that the path has not come by."""
    found = []
    for number, episode in enumerate(episodes):
        path = [graph.index(viewpoint) for viewpoint in episode.reference_path]
        for step, (here, following) in enumerate(zip(path, path[1:], strict=False)):
            around = graph.neighbours[here, : graph.degrees[here]].tolist()
            if following not in around:
                continue  # R4R and the like may stand still
            right = around.index(following)
            visited = set(path[:step])
            found += [
                (number, here, right, slot)
                for slot, neighbour in enumerate(around)
                if slot != right and neighbour not in visited
            ]
    return _Hops(*np.array(found, dtype=np.int64).reshape(-1, 4).T)
