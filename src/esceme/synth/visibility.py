"""Ground truth of what is visible from where: the coverage of every view by every object.

Instructions name only visible objects, and the scripted instruction follower reads this list. Learning agents
never get it.
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
"""An object is visible in a view when it covers at least this share of the pixels."""


@dataclass(frozen=True, order=True, slots=True)
class Mention:
    """Referring expression: an object name, optionally with a colour."""

    name: str
    colour: str = ""

    def __str__(self) -> str:
        return f"{self.colour} {self.name}".strip()


@dataclass(frozen=True)
class Visibility:
    """Visible objects of one house by viewpoint (P), view (V) and object (F)."""

    house: House
    graph: SceneGraph
    coverage: NDArray[np.float32]
    """(P, V, F): share of each view that each piece of furniture covers."""

    @cached_property
    def mentions(self) -> tuple[Mention, ...]:
        """All mentions (M) of objects in this house, with and without colour."""
        names = {Mention(item.name) for item in self.house.furniture}
        coloured = {Mention(item.name, item.surface.colour) for item in self.house.furniture}
        return tuple(sorted(names | coloured))

    @cached_property
    def _refers_to(self) -> NDArray[np.bool_]:
        """(F, M): whether a mention refers to an object."""
        matches = [
            mention.name == item.name and mention.colour in ("", item.surface.colour)
            for item in self.house.furniture
            for mention in self.mentions
        ]
        return np.array(matches, dtype=bool).reshape(len(self.house.furniture), len(self.mentions))

    @cached_property
    def _is_visible(self) -> NDArray[np.bool_]:
        """(P, V, M): whether a view shows an object that the mention refers to."""
        return (self.coverage >= MIN_COVERAGE).astype(np.float32) @ self._refers_to.astype(np.float32) > 0

    @cached_property
    def _max_coverage(self) -> NDArray[np.float32]:
        """(P, M): largest share of a view that one object with this mention covers."""
        largest = self.coverage.max(axis=1)  # (P, F)
        return np.stack(
            [largest[:, matches].max(axis=1, initial=0.0) for matches in self._refers_to.T], axis=1
        )

    def seen_in_view(self, viewpoint: int, view: int) -> frozenset[Mention]:
        """Return the mentions of the objects in one view."""
        return self._mentions_where(self._is_visible[viewpoint, view])

    def seen_in_panorama(self, viewpoint: int) -> frozenset[Mention]:
        """Return the mentions of the objects in all views."""
        return self._mentions_where(self._is_visible[viewpoint].any(axis=0))

    def seen_in_candidate_views(self, viewpoint: int) -> frozenset[Mention]:
        """Return the mentions of the objects in the candidate views, which the scene memory pools."""
        views = self.graph.views[viewpoint, : self.graph.degrees[viewpoint]]
        return self._mentions_where(self._is_visible[viewpoint, views].any(axis=0))

    def max_coverage(self, viewpoint: int, mention: Mention) -> float:
        """Return the largest share of a view that one object with this mention covers."""
        return float(self._max_coverage[viewpoint, self.mentions.index(mention)])

    def _mentions_where(self, mask: NDArray[np.bool_]) -> frozenset[Mention]:
        return frozenset(self.mentions[index] for index in np.flatnonzero(mask))


def view_coverage(objects: NDArray[np.int16], num_objects: int) -> NDArray[np.float32]:
    """Return the share of each view that each object covers: indices (V, h, w), -1 for none -> (V, F)."""
    flat = objects.reshape(VIEWS, -1).astype(np.int64) + 1 + np.arange(VIEWS)[:, None] * (num_objects + 1)
    counts = np.bincount(flat.ravel(), minlength=VIEWS * (num_objects + 1)).reshape(VIEWS, num_objects + 1)
    return (counts[:, 1:] / objects[0].size).astype(np.float32)
