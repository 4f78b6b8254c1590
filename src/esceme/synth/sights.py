"""What can be seen of a house from where: how much of each view each thing fills, what memory keeps of it.

This is the ground truth behind the pictures: instructions name only what is in sight, and a scripted reader
sees exactly this list. Nothing here is given to an agent that learns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from esceme.synth.plan import House
from esceme.world.geometry import VIEWS
from esceme.world.graph import SceneGraph

NOTICED = 0.01
"""A thing is seen in a view when it fills at least this share of it."""


@dataclass(frozen=True, order=True, slots=True)
class Mention:
    """How one speaks of a thing: its name and, where it helps, its colour."""

    name: str
    colour: str = ""

    def __str__(self) -> str:
        return f"{self.colour} {self.name}".strip()


@dataclass(frozen=True)
class Sights:
    """One house as it is seen from its places (P), view by view (V), thing by thing (F)."""

    house: House
    graph: SceneGraph
    share: NDArray[np.float32]
    """(P, V, F): how much of each view each piece of furniture fills."""

    @cached_property
    def mentions(self) -> tuple[Mention, ...]:
        """Every way to speak of something in this house, with and without its colour."""
        plain = {Mention(thing.name) for thing in self.house.furniture}
        coloured = {Mention(thing.name, thing.surface.colour) for thing in self.house.furniture}
        return tuple(sorted(plain | coloured))

    @cached_property
    def _noticed(self) -> NDArray[np.bool_]:
        """(P, V, M): whether a view shows something that the mention fits."""
        fits = np.array(
            [
                [
                    each.name == thing.name and each.colour in ("", thing.surface.colour)
                    for each in self.mentions
                ]
                for thing in self.house.furniture
            ]
        )  # (F, M)
        return (self.share >= NOTICED).astype(np.float32) @ fits.astype(np.float32) > 0

    @cached_property
    def _filled(self) -> NDArray[np.float32]:
        """(P, M): the largest share of a view that something fitting the mention fills."""
        names = [(thing.name, thing.surface.colour) for thing in self.house.furniture]
        largest = self.share.max(axis=1)  # (P, F)
        columns = [
            largest[:, [n == each.name and each.colour in ("", c) for n, c in names]].max(axis=1, initial=0.0)
            for each in self.mentions
        ]
        return np.stack(columns, axis=1)

    def in_view(self, place: int, view: int) -> frozenset[Mention]:
        """What one view shows."""
        return self._named(self._noticed[place, view])

    def around(self, place: int) -> frozenset[Mention]:
        """What the whole panorama shows."""
        return self._named(self._noticed[place].any(axis=0))

    def remembered(self, place: int) -> frozenset[Mention]:
        """What the views that lead on from a place show: all that the scene memory keeps of it."""
        leading = self.graph.views[place, : self.graph.degrees[place]]
        return self._named(self._noticed[place, leading].any(axis=0))

    def prominence(self, place: int, mention: Mention) -> float:
        """The largest share of a view at `place` that something fitting the mention fills."""
        return float(self._filled[place, self.mentions.index(mention)])

    def _named(self, found: NDArray[np.bool_]) -> frozenset[Mention]:
        return frozenset(self.mentions[index] for index in np.flatnonzero(found))


def view_shares(ids: NDArray[np.int16], things: int) -> NDArray[np.float32]:
    """How much of each view each thing fills: (V, h, w) of their numbers, -1 for none -> (V, F)."""
    flat = ids.reshape(VIEWS, -1).astype(np.int64) + 1 + np.arange(VIEWS)[:, None] * (things + 1)
    counts = np.bincount(flat.ravel(), minlength=VIEWS * (things + 1)).reshape(VIEWS, things + 1)
    return (counts[:, 1:] / ids[0].size).astype(np.float32)
