"""A floor plan as it is drawn: rooms without surfaces, ways between them, stairs.

It has its own coordinates, u along the hallway and v across, until it is turned into place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from esceme.synth.plan import STOREY, WALL

HEIGHT = 2.7
"""From a room's floor to its ceiling."""

Rect = tuple[float, float, float, float]
"""Low u, low v, high u, high v (later: x and y)."""
Way = Literal["door", "arch", "open"]


class Sketch(NamedTuple):
    """A room without its surfaces."""

    kind: str
    storey: int
    rect: Rect
    bottom: float
    top: float


class Passage(NamedTuple):
    """An opening as it is drawn: between which rooms, where its middle is, how wide."""

    rooms: tuple[int, int]
    kind: Way
    middle: tuple[float, float]
    width: float
    bottom: float


class Step(NamedTuple):
    """A block of the stairs, from the ground up."""

    rect: Rect
    height: float


class Rest(NamedTuple):
    """A level part of the stairs: where one stands on it, and how high."""

    at: tuple[float, float]
    height: float


@dataclass(slots=True)
class Layout:
    """A floor plan of one or two storeys."""

    rooms: list[Sketch] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    rests: list[Rest] = field(default_factory=list)
    """Bottom, half-way and top of the stairs, if there are any."""

    def add(self, kind: str, storey: int, rect: Rect, *, storeys: int = 1) -> int:
        """The index of a new room, which spans `storeys`."""
        bottom = storey * STOREY
        self.rooms.append(Sketch(kind, storey, rect, bottom, bottom + (storeys - 1) * STOREY + HEIGHT))
        return len(self.rooms) - 1

    def kinds(self) -> list[str]:
        """What the rooms are."""
        return [room.kind for room in self.rooms]


def is_whole(layout: Layout) -> bool:
    """Whether every room can be reached from every other."""
    reached, grown = {0}, {0}
    while grown:
        ways = [set(passage.rooms) for passage in layout.passages if reached & set(passage.rooms)]
        grown = set().union(*ways) - reached
        reached |= grown
    return len(reached) == len(layout.rooms)


def overlap(a: Rect, b: Rect, axis: int) -> tuple[float, float]:
    """The range along an axis that two rectangles share; empty if its end is before its start."""
    return max(a[axis], b[axis]), min(a[axis + 2], b[axis + 2])


def join(
    layout: Layout, rng: np.random.Generator, a: int, b: int, kind: Way, *, at: float | None = None
) -> bool:
    """Pierce the wall between two rooms, if they share enough of it; says whether they do."""
    one, two = layout.rooms[a].rect, layout.rooms[b].rect
    along = 1 if any(abs(one[i] - two[j]) < WALL + 1e-6 for i, j in ((0, 2), (2, 0))) else 0
    low, high = overlap(one, two, along)
    if high - low < {"door": 0.0, "arch": 1.5, "open": 1.2}[kind]:
        kind = "door"
    width = {"door": 0.9, "arch": min(rng.uniform(1.3, 2.0), high - low - 0.2), "open": high - low}[kind]
    margin = min(0.2, (high - low - width) / 2)
    if margin < 0 or (kind != "open" and margin < 0.05):
        return False
    if at is None:
        slack = max(0.0, high - low - width - 2 * margin)
        at = (low + high) / 2 + slack * rng.uniform(-0.5, 0.5)
    upper, lower = (one, two) if one[1 - along] > two[1 - along] else (two, one)
    face = (upper[1 - along] + lower[3 - along]) / 2
    middle = (at, face) if along == 0 else (face, at)
    bottom = max(layout.rooms[a].storey, layout.rooms[b].storey) * STOREY
    layout.passages.append(Passage((a, b), kind, middle, width, bottom))
    return True


def turn(layout: Layout, rng: np.random.Generator) -> Layout:
    """The plan with the spine along x or y, mirrored or not, its low corner at the origin."""
    flip_u, flip_v, swap = (bool(draw) for draw in rng.random(3) < 0.5)

    def point(u: float, v: float) -> tuple[float, float]:
        u, v = (-u if flip_u else u), (-v if flip_v else v)
        return (v, u) if swap else (u, v)

    corners = np.array([point(*room.rect[at : at + 2]) for room in layout.rooms for at in (0, 2)])
    shift = corners.min(axis=0)

    def move(u: float, v: float) -> tuple[float, float]:
        x, y = point(u, v)
        return round(float(x - shift[0]), 6), round(float(y - shift[1]), 6)

    def rectangle(rect: Rect) -> Rect:
        (a, b), (c, d) = move(*rect[:2]), move(*rect[2:])
        return min(a, c), min(b, d), max(a, c), max(b, d)

    return Layout(
        rooms=[room._replace(rect=rectangle(room.rect)) for room in layout.rooms],
        passages=[passage._replace(middle=move(*passage.middle)) for passage in layout.passages],
        steps=[step._replace(rect=rectangle(step.rect)) for step in layout.steps],
        rests=[rest._replace(at=move(*rest.at)) for rest in layout.rests],
    )
