"""Ground truth of visible objects: the share of every view that every object covers.

Instructions name only visible objects. Learned agents never get this ground truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from esceme.synth.house_model import House
from esceme.world.geometry import VIEWS
from esceme.world.graph import SceneGraph

MIN_COVERAGE = 0.01
"""Share of the pixels of a view that an object must cover to be visible in the view."""


@dataclass(frozen=True, order=True, slots=True)
class Mention:
    """Words that refer to an object: its name, optionally with its colour."""

    name: str
    colour: str = ""

    def __str__(self) -> str:
        return f"{self.colour} {self.name}".strip()


@dataclass(frozen=True)
class Visibility:
    """Visible objects of one house for every viewpoint (P), view (V) and piece of furniture (F)."""

    house: House
    graph: SceneGraph
    coverage: NDArray[np.float32]
    """(P, V, F): share of each view that each piece of furniture covers."""

    @cached_property
    def mentions(self) -> tuple[Mention, ...]:
        """All possible mentions (M) of objects in this house, with and without colour, sorted."""
        names = {Mention(item.name) for item in self.house.furniture}
        coloured = {Mention(item.name, item.surface.colour) for item in self.house.furniture}
        return tuple(sorted(names | coloured))

    @cached_property
    def _refers_to(self) -> NDArray[np.bool_]:
        """(F, M): True where a mention refers to a piece of furniture."""
        matches = [
            mention.name == item.name and mention.colour in ("", item.surface.colour)
            for item in self.house.furniture
            for mention in self.mentions
        ]
        return np.array(matches, dtype=bool).reshape(len(self.house.furniture), len(self.mentions))

    @cached_property
    def _is_visible(self) -> NDArray[np.bool_]:
        """(P, V, M): True where a view shows an object to which the mention refers."""
        return (self.coverage >= MIN_COVERAGE).astype(np.float32) @ self._refers_to.astype(np.float32) > 0

    @cached_property
    def _max_coverage(self) -> NDArray[np.float32]:
        """(P, M): largest share of a view that one object with this mention covers, over all views."""
        largest = self.coverage.max(axis=1)  # (P, F)
        return np.stack(
            [largest[:, matches].max(axis=1, initial=0.0) for matches in self._refers_to.T], axis=1
        )

    def seen_in_view(self, viewpoint: int, view: int) -> frozenset[Mention]:
        """Return the mentions of all objects visible in one view of a viewpoint index."""
        return self._mentions_where(self._is_visible[viewpoint, view])

    def seen_in_panorama(self, viewpoint: int) -> frozenset[Mention]:
        """Return the mentions of all objects visible in any view of a viewpoint index."""
        return self._mentions_where(self._is_visible[viewpoint].any(axis=0))

    def seen_in_candidate_views(self, viewpoint: int) -> frozenset[Mention]:
        """Return the mentions of all objects visible in the candidate views of a viewpoint index.

        A scene memory pools the features of the candidate views of a viewpoint.
        """
        views = self.graph.views[viewpoint, : self.graph.degrees[viewpoint]]
        return self._mentions_where(self._is_visible[viewpoint, views].any(axis=0))

    def max_coverage(self, viewpoint: int, mention: Mention) -> float:
        """Return the largest share of a view at `viewpoint` that one object with this mention covers."""
        return float(self._max_coverage[viewpoint, self.mentions.index(mention)])

    def _mentions_where(self, mask: NDArray[np.bool_]) -> frozenset[Mention]:
        return frozenset(self.mentions[index] for index in np.flatnonzero(mask))


def view_coverage(objects: NDArray[np.int16], num_objects: int) -> NDArray[np.float32]:
    """Return the share (V, F) of every view that every object covers.

    `objects` (V, h, w) holds the object index of every pixel, or -1.
    """
    flat = objects.reshape(VIEWS, -1).astype(np.int64) + 1 + np.arange(VIEWS)[:, None] * (num_objects + 1)
    counts = np.bincount(flat.ravel(), minlength=VIEWS * (num_objects + 1)).reshape(VIEWS, num_objects + 1)
    return (counts[:, 1:] / objects[0].size).astype(np.float32)
