"""Putting furniture into rooms: where it belongs, out of the way of doors, places and one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from esceme.synth.furniture import FURNISHINGS, KINDS, Kind
from esceme.synth.palette import SHADES
from esceme.synth.plan import WALL, Box, Furniture, Opening, Room, Surface
from esceme.synth.spots import ALONG, BESIDE, Array, Ground, face_of, gaps, survey

TRIES = 60
"""How many spots are tried for a thing before a room goes without."""
CROWDED = 0.2
"""The share of its floor to stand on that a room keeps, whatever is put into it."""
FLAT = 0.15
"""What is less deep than this is part of the wall."""
LOW = 0.3
"""What is no higher than this can be stepped over."""

Rect = tuple[float, float, float, float]


class Wish(NamedTuple):
    """A thing that a room is to get, with its measures."""

    name: str
    surface: Surface
    size: tuple[float, float, float]
    """Along the wall, away from it, up."""


class Stand(NamedTuple):
    """Where a thing stands: its outline, the wall its back is to (0 south, 1 west, 2 north, 3 east)."""

    rect: Rect
    wall: int
    bottom: float
    mirrored: bool = False


class Thing(NamedTuple):
    """A wish come true."""

    wish: Wish
    stand: Stand


@dataclass(slots=True)
class Interior:
    """A room being furnished."""

    index: int
    room: Room
    openings: list[Opening]
    outer: list[tuple[int, float, float]]
    """Stretches of outer wall: which wall, from where to where along it."""
    rng: np.random.Generator
    things: list[Thing] = field(default_factory=list)
    ways: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """Points that people pass."""

    def obstacles(self) -> Array:
        """Outlines of what one cannot step over (F, 4)."""
        rects = [thing.stand.rect for thing in self.things if thing.wish.size[2] > LOW]
        return np.array(rects, dtype=np.float64).reshape(-1, 4)

    def ground(self) -> Ground:
        """Where one can stand in it: all of it within reach of its doors."""
        return survey(self.index, self.room, self.openings, self.obstacles())

    def furnish(self, wishes: Iterable[Wish], *, early: bool) -> None:
        """Place what fits; early things leave a way between all doors, late ones keep off the ways."""
        room = len(self.ground().spots)
        for wish in wishes:
            if KINDS[wish.name].early == early:
                many = {"chair": 4, "stool": 2}.get(wish.name, 1)
                for stand in self._stands(wish):
                    if self._fits(wish, stand):
                        self.things.append(Thing(wish, stand))
                        if early and len(self.ground().spots) <= CROWDED * room:
                            self.things.pop()
                            continue
                        many -= 1
                        if not many:
                            break

    # -- where a thing might stand -----------------------------------------------------------------------

    def _stands(self, wish: Wish) -> Iterable[Stand]:
        kind = KINDS[wish.name]
        partners = [thing for thing in self.things if thing.wish.name == kind.partner]
        if kind.stand == "around":
            return [stand for partner in partners for stand in _around(wish, partner)]
        if kind.stand in ("beside", "before", "on") and partners:
            partner = partners[int(self.rng.integers(len(partners)))]
            near = self._by(wish, kind, partner)
            return near if kind.stand != "beside" or kind.base else [*near, *self._anywhere(wish, kind)]
        if kind.stand in ("before", "on") or (kind.stand == "beside" and kind.base):
            return []
        return self._anywhere(wish, kind)

    def _anywhere(self, wish: Wish, kind: Kind) -> Iterator[Stand]:
        return (self._somewhere(wish, kind) for _ in range(TRIES))

    def _somewhere(self, wish: Wish, kind: Kind) -> Stand:
        """A spot of the right sort, drawn at random."""
        rng, wall = self.rng, int(self.rng.integers(4))
        low, high = self._span(wall)
        if kind.stand in ("middle", "floor"):
            return self._inside(wish, apart=0.9 if kind.stand == "middle" else 0.15)
        if kind.stand == "outside":
            if not self.outer:
                return self._against(wish, wall, high, kind.base)  # beyond the end: fits nowhere
            wall, low, high = self.outer[int(rng.integers(len(self.outer)))]
        slack = high - low - wish.size[0]
        share = float(rng.integers(2)) if kind.stand == "corner" else rng.uniform(0, 1)
        return self._against(wish, wall, low + share * slack, kind.base, mirrored=share > 0.5)

    def _span(self, wall: int) -> tuple[float, float]:
        along = wall % 2
        return self.room.low[along], self.room.high[along]

    def _against(self, wish: Wish, wall: int, start: float, base: float, *, mirrored: bool = False) -> Stand:
        """With its back to a wall, from `start` on along it."""
        (x0, y0, z), (x1, y1, _) = self.room.low, self.room.high
        width, depth, _ = wish.size
        end = start + width
        rect = {
            0: (start, y0, end, y0 + depth),
            1: (x0, start, x0 + depth, end),
            2: (start, y1 - depth, end, y1),
            3: (x1 - depth, start, x1, end),
        }[wall]
        return Stand(rect, wall, z + base, mirrored)

    def _inside(self, wish: Wish, *, apart: float) -> Stand:
        """Anywhere off the walls, the long side along the longer side of the room."""
        size = np.array(self.room.high[:2]) - np.array(self.room.low[:2])
        wall = int(size[1] > size[0])
        extent = np.array(wish.size[:2] if wall % 2 == 0 else wish.size[1::-1])
        slack = np.maximum(size - extent - 2 * apart, 0)
        low = (
            np.array(self.room.low[:2]) + (size - extent - slack) / 2 + slack * self.rng.uniform(0.1, 0.9, 2)
        )
        rect = tuple(float(value) for value in (*low, *(low + extent)))
        return Stand((rect[0], rect[1], rect[2], rect[3]), wall, self.room.low[2])

    def _by(self, wish: Wish, kind: Kind, partner: Thing) -> list[Stand]:
        """Next to the partner, in front of it, or on it."""
        wall, rect = partner.stand.wall, partner.stand.rect
        along = wall % 2
        low, high = rect[along], rect[along + 2]
        if kind.stand == "beside":
            starts = [high + 0.01, low - wish.size[0] - 0.01]
            self.rng.shuffle(starts)
            return [self._against(wish, wall, start, kind.base) for start in starts]
        middle = (low + high - wish.size[0]) / 2
        flat = self._against(wish, wall, middle, 0.0)
        if kind.stand == "on":
            return [flat._replace(bottom=self.room.low[2] + partner.wish.size[2] + 0.001)]
        gap = 0.35 if wish.name == "coffee table" else 0.02
        return [_pushed(flat, partner.wish.size[1] + gap)._replace(wall=(wall + 2) % 4)]

    # -- whether it does ---------------------------------------------------------------------------------

    def _fits(self, wish: Wish, stand: Stand) -> bool:
        rect, bottom, top = stand.rect, stand.bottom, stand.bottom + wish.size[2]
        (x0, y0, _), (x1, y1, ceiling) = self.room.low, self.room.high
        if rect[0] < x0 - 1e-9 or rect[1] < y0 - 1e-9 or rect[2] > x1 + 1e-9 or rect[3] > y1 + 1e-9:
            return False
        if top > ceiling - 0.05 or any(_overlap(rect, bottom, top, thing) for thing in self.things):
            return False
        if wish.size[2] <= LOW:
            return True
        if any(_meet(rect, self._doorway(opening, flat=wish.size[1] < FLAT)) for opening in self.openings):
            return False
        limit = ALONG if KINDS[wish.name].stand in ("hung", "outside") else BESIDE
        return not len(self.ways) or bool((gaps(self.ways, np.array([rect])) >= limit).all())

    def _doorway(self, opening: Opening, *, flat: bool) -> Rect:
        """The floor just inside an opening, where nothing may stand and, close by, nothing flat may hang."""
        deep = FLAT if flat else 0.95 if opening.kind == "door" else 0.7
        face, first = face_of(self.index, self.room, opening), opening.rooms[0] == self.index
        across = (face - deep, face) if first else (face, face + deep)
        along = opening.low - 0.08, opening.high + 0.08
        (a, b), (c, d) = (across, along) if opening.axis == 0 else (along, across)
        return a, c, b, d


def _pushed(stand: Stand, by: float) -> Stand:
    """Moved away from the wall behind it."""
    x = {1: by, 3: -by}.get(stand.wall, 0.0)
    y = {0: by, 2: -by}.get(stand.wall, 0.0)
    rect = stand.rect
    return stand._replace(rect=(rect[0] + x, rect[1] + y, rect[2] + x, rect[3] + y))


def _around(wish: Wish, partner: Thing) -> list[Stand]:
    """Two along each long side of the partner, facing it."""
    (x0, y0, x1, y1), bottom = partner.stand.rect, partner.stand.bottom
    width, depth, _ = wish.size
    stands = []
    for share in (0.28, 0.72):
        if partner.stand.wall % 2 == 0:
            x = x0 + share * (x1 - x0) - width / 2
            stands.append(Stand((x, y0 - depth - 0.02, x + width, y0 - 0.02), 0, bottom))
            stands.append(Stand((x, y1 + 0.02, x + width, y1 + depth + 0.02), 2, bottom))
        else:
            y = y0 + share * (y1 - y0) - width / 2
            stands.append(Stand((x0 - depth - 0.02, y, x0 - 0.02, y + width), 1, bottom))
            stands.append(Stand((x1 + 0.02, y, x1 + depth + 0.02, y + width), 3, bottom))
    return stands


def _meet(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _overlap(rect: Rect, bottom: float, top: float, thing: Thing) -> bool:
    """Whether something would stand in a thing; rugs lie under everything but other rugs."""
    low, high = thing.stand.bottom, thing.stand.bottom + thing.wish.size[2]
    flat = (top - bottom <= LOW) != (high - low <= LOW)
    return not flat and bottom < high and low < top and _meet(rect, thing.stand.rect)


def draw_wishes(kind: str, rng: np.random.Generator) -> list[Wish]:
    """What a room of some kind is to be furnished with."""
    wishes = []
    for name, chance in FURNISHINGS[kind]:
        if rng.random() < chance:
            shape = KINDS[name]
            size = tuple(rng.uniform(*ends) for ends in (shape.width, shape.depth, shape.height))
            surface = SHADES[name][int(rng.integers(len(SHADES[name])))]
            wishes.append(Wish(name, surface, (size[0], size[1], size[2])))
    return wishes


def outer_walls(index: int, rooms: Sequence[Room]) -> list[tuple[int, float, float]]:
    """The stretches of a room's sides with no other room behind them, as wall, start and end."""
    room, stretches = rooms[index], []
    for wall in range(4):
        along, across = wall % 2, 1 - wall % 2
        face = room.low[across] if wall < 2 else room.high[across]
        cuts = [(room.low[along], room.low[along])]
        for other in rooms:
            behind = other.high[across] if wall < 2 else other.low[across]
            level = other.low[2] < room.high[2] and room.low[2] < other.high[2]
            if other is not room and level and abs(behind - face) < WALL + 0.05:
                cuts.append((other.low[along] - WALL, other.high[along] + WALL))
        cuts = [*sorted(cuts), (room.high[along], room.high[along])]
        start = room.low[along]
        for low, high in cuts:
            if low - start > 1.0:
                stretches.append((wall, start, min(low, room.high[along])))
            start = max(start, high)
    return stretches


def assemble(thing: Thing, object_id: str, room: int) -> Furniture:
    """The furniture that a placed wish is, box by box."""
    (x0, y0, x1, y1), wall, bottom, mirrored = thing.stand
    boxes = []
    for part in KINDS[thing.wish.name].parts:
        a, b = (1 - part.high[0], 1 - part.low[0]) if mirrored else (part.low[0], part.high[0])
        c, d = (part.low[1], part.high[1]) if wall < 2 else (1 - part.high[1], 1 - part.low[1])
        (xa, xb), (ya, yb) = ((a, b), (c, d)) if wall % 2 == 0 else ((c, d), (a, b))
        height = thing.wish.size[2]
        low = x0 + xa * (x1 - x0), y0 + ya * (y1 - y0), bottom + part.low[2] * height
        high = x0 + xb * (x1 - x0), y0 + yb * (y1 - y0), bottom + part.high[2] * height
        boxes.append(Box(_exact(low), _exact(high), part.surface or thing.wish.surface))
    return Furniture(object_id, thing.wish.name, room, thing.wish.surface, tuple(boxes))


def _exact(corner: tuple[float, float, float]) -> tuple[float, float, float]:
    x, y, z = (round(float(value), 6) for value in corner)
    return x, y, z
