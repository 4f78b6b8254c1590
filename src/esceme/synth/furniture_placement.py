"""Furniture placement: put furniture into rooms, clear of doors, viewpoints and other furniture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from esceme.synth.furniture import CATALOGUE, FurnitureKind
from esceme.synth.house_model import WALL_WIDTH, Box, Furniture, Opening, Point, Room, Surface
from esceme.synth.layout import Rect
from esceme.synth.palette import NEUTRAL_SURFACES
from esceme.synth.viewpoint_sampling import (
    EDGE_CLEARANCE,
    VIEWPOINT_CLEARANCE,
    Array,
    FreeFloor,
    face_coordinate,
    find_free_floor,
    rect_distances,
)

NUM_TRIALS = 60
"""Number of random placements that are tried before an item is omitted."""
MIN_FREE_FLOOR = 0.2
"""Minimum fraction of a room's free floor that must remain free after placement."""
MAX_FLAT_DEPTH = 0.15
"""An item less deep than this (in metres, away from the wall) counts as part of the wall."""
MAX_LOW_HEIGHT = 0.3
"""An item no higher than this (in metres), such as a rug, does not block the floor."""


class FurnitureItem(NamedTuple):
    """Piece of furniture to place. `size` is in metres: along the wall, away from the wall, up."""

    name: str
    surface: Surface
    size: Point


class Placement(NamedTuple):
    """Position of an item in a room.

    `rect` is the outline of the item from above, `wall` the wall behind it (0 south, 1 west, 2 north, 3
    east), and `bottom` the height of its lower edge. A mirrored item is reflected along the wall.
    """

    rect: Rect
    wall: int
    bottom: float
    is_mirrored: bool = False


class PlacedItem(NamedTuple):
    """Piece of furniture and its position."""

    item: FurnitureItem
    placement: Placement


@dataclass(slots=True)
class RoomFurnisher:
    """Places furniture in one room and holds the furniture placed so far."""

    index: int
    room: Room
    openings: list[Opening]
    outer_walls: list[tuple[int, float, float]]
    """Parts of walls with no room behind: (wall number, start, end), along the wall in metres."""
    rng: np.random.Generator
    placed: list[PlacedItem] = field(default_factory=list)
    edge_points: Array = field(default_factory=lambda: np.zeros((0, 2)))
    """Points (E, 2) on edges of the navigation graph; furniture must not come close to them."""

    def free_floor(self) -> FreeFloor:
        """Return the part of the floor without furniture that is connected to all openings of the room."""
        rects = [placed.placement.rect for placed in self.placed if placed.item.size[2] > MAX_LOW_HEIGHT]
        obstacles = np.array(rects, dtype=np.float64).reshape(-1, 4)
        return find_free_floor(self.index, self.room, self.openings, obstacles)

    def furnish(self, items: Iterable[FurnitureItem], *, placed_last: bool) -> None:
        """Place all items whose kind has this value of `placed_last`; omit items that do not fit.

        An item that is placed before the viewpoints are chosen is also omitted if it leaves too little free
        floor.
        """
        num_points = len(self.free_floor().points)
        for item in items:
            if CATALOGUE.kinds[item.name].placed_last == placed_last:
                copies = {"chair": 4, "stool": 2}.get(item.name, 1)
                for placement in self._candidate_placements(item):
                    if self._fits(item, placement):
                        self.placed.append(PlacedItem(item, placement))
                        if not placed_last and len(self.free_floor().points) <= MIN_FREE_FLOOR * num_points:
                            self.placed.pop()
                            continue
                        copies -= 1
                        if not copies:
                            break

    # -- candidate placements ----------------------------------------------------------------------------

    def _candidate_placements(self, item: FurnitureItem) -> Iterable[Placement]:
        """Return the placements to try, in order; empty if the rule needs a partner that is not placed."""
        kind = CATALOGUE.kinds[item.name]
        partners = [placed for placed in self.placed if placed.item.name == kind.partner]
        if kind.rule == "around":
            return [placement for partner in partners for placement in _placements_around(item, partner)]
        anywhere = (self._sample_placement(item, kind) for _ in range(NUM_TRIALS))
        if kind.rule in ("beside", "before", "on") and partners:
            partner = partners[int(self.rng.integers(len(partners)))]
            near = self._place_near(item, kind, partner)
            return near if kind.rule != "beside" or kind.base else [*near, *anywhere]
        if kind.rule in ("before", "on") or (kind.rule == "beside" and kind.base):
            return []
        return anywhere

    def _sample_placement(self, item: FurnitureItem, kind: FurnitureKind) -> Placement:
        """Sample a random placement that follows the placement rule of `kind`."""
        rng, wall = self.rng, int(self.rng.integers(4))
        low, high = self.room.low[wall % 2], self.room.high[wall % 2]
        if kind.rule in ("middle", "floor"):
            return self._sample_placement_inside(item, margin=0.9 if kind.rule == "middle" else 0.15)
        if kind.rule == "outside":
            if not self.outer_walls:
                return self._place_at_wall(item, wall, high, kind.base)  # beyond the wall's end: never fits
            wall, low, high = self.outer_walls[int(rng.integers(len(self.outer_walls)))]
        slack = high - low - item.size[0]
        share = float(rng.integers(2)) if kind.rule == "corner" else rng.uniform(0, 1)
        return self._place_at_wall(item, wall, low + share * slack, kind.base, is_mirrored=share > 0.5)

    def _place_at_wall(
        self, item: FurnitureItem, wall: int, start: float, base: float, *, is_mirrored: bool = False
    ) -> Placement:
        """Return the placement with the item's back to a wall, from `start` metres along this wall."""
        (x0, y0, z), (x1, y1, _) = self.room.low, self.room.high
        width, depth, _ = item.size
        end = start + width
        rect = {
            0: (start, y0, end, y0 + depth),
            1: (x0, start, x0 + depth, end),
            2: (start, y1 - depth, end, y1),
            3: (x1 - depth, start, x1, end),
        }[wall]
        return Placement(rect, wall, z + base, is_mirrored)

    def _sample_placement_inside(self, item: FurnitureItem, *, margin: float) -> Placement:
        """Sample a placement at least `margin` metres from the walls, along the longer side of the room."""
        size = np.array(self.room.high[:2]) - np.array(self.room.low[:2])
        wall = int(size[1] > size[0])
        extent = np.array(item.size[:2] if wall % 2 == 0 else item.size[1::-1])
        slack = np.maximum(size - extent - 2 * margin, 0)
        low = (
            np.array(self.room.low[:2]) + (size - extent - slack) / 2 + slack * self.rng.uniform(0.1, 0.9, 2)
        )
        x0, y0, x1, y1 = (float(value) for value in (*low, *(low + extent)))
        return Placement((x0, y0, x1, y1), wall, self.room.low[2])

    def _place_near(self, item: FurnitureItem, kind: FurnitureKind, partner: PlacedItem) -> list[Placement]:
        """Return the placements of an item next to its partner, in front of the partner, or on top of it."""
        wall, rect = partner.placement.wall, partner.placement.rect
        along = wall % 2
        low, high = rect[along], rect[along + 2]
        if kind.rule == "beside":
            starts = [high + 0.01, low - item.size[0] - 0.01]
            self.rng.shuffle(starts)
            return [self._place_at_wall(item, wall, start, kind.base) for start in starts]
        centred = self._place_at_wall(item, wall, (low + high - item.size[0]) / 2, 0.0)
        if kind.rule == "on":
            return [centred._replace(bottom=self.room.low[2] + partner.item.size[2] + 0.001)]
        gap = 0.35 if item.name == "coffee table" else 0.02
        return [_move_from_wall(centred, partner.item.size[1] + gap)._replace(wall=(wall + 2) % 4)]

    # -- collision checks --------------------------------------------------------------------------------

    def _fits(self, item: FurnitureItem, placement: Placement) -> bool:
        """Return whether an item stays inside the room and clear of furniture, openings and edges."""
        rect, bottom, top = placement.rect, placement.bottom, placement.bottom + item.size[2]
        (x0, y0, _), (x1, y1, ceiling) = self.room.low, self.room.high
        if rect[0] < x0 - 1e-9 or rect[1] < y0 - 1e-9 or rect[2] > x1 + 1e-9 or rect[3] > y1 + 1e-9:
            return False
        if top > ceiling - 0.05 or any(_collides(rect, bottom, top, placed) for placed in self.placed):
            return False
        if item.size[2] <= MAX_LOW_HEIGHT:
            return True
        is_flat = item.size[1] < MAX_FLAT_DEPTH
        if any(_overlap(rect, self._doorway_rect(opening, is_flat=is_flat)) for opening in self.openings):
            return False
        is_hung = CATALOGUE.kinds[item.name].rule in ("hung", "outside")
        clearance = EDGE_CLEARANCE if is_hung else VIEWPOINT_CLEARANCE
        distances = rect_distances(self.edge_points, np.array([rect]))
        return not len(self.edge_points) or bool((distances >= clearance).all())

    def _doorway_rect(self, opening: Opening, *, is_flat: bool) -> Rect:
        """Return the rectangle of floor inside an opening that must stay free; flat items may come closer."""
        depth = MAX_FLAT_DEPTH if is_flat else 0.95 if opening.kind == "door" else 0.7
        face = face_coordinate(self.index, self.room, opening)
        across = (face - depth, face) if opening.rooms[0] == self.index else (face, face + depth)
        along = opening.low - 0.08, opening.high + 0.08
        (a, b), (c, d) = (across, along) if opening.axis == 0 else (along, across)
        return a, c, b, d


def _move_from_wall(placement: Placement, distance: float) -> Placement:
    x = {1: distance, 3: -distance}.get(placement.wall, 0.0)
    y = {0: distance, 2: -distance}.get(placement.wall, 0.0)
    rect = placement.rect
    return placement._replace(rect=(rect[0] + x, rect[1] + y, rect[2] + x, rect[3] + y))


def _placements_around(item: FurnitureItem, partner: PlacedItem) -> list[Placement]:
    """Return four placements of an item: two along each long side of its partner, facing the partner."""
    (x0, y0, x1, y1), bottom = partner.placement.rect, partner.placement.bottom
    width, depth, _ = item.size
    placements = []
    for share in (0.28, 0.72):
        if partner.placement.wall % 2 == 0:
            x = x0 + share * (x1 - x0) - width / 2
            placements.append(Placement((x, y0 - depth - 0.02, x + width, y0 - 0.02), 0, bottom))
            placements.append(Placement((x, y1 + 0.02, x + width, y1 + depth + 0.02), 2, bottom))
        else:
            y = y0 + share * (y1 - y0) - width / 2
            placements.append(Placement((x0 - depth - 0.02, y, x0 - 0.02, y + width), 1, bottom))
            placements.append(Placement((x1 + 0.02, y, x1 + depth + 0.02, y + width), 3, bottom))
    return placements


def _overlap(a: Rect, b: Rect) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _collides(rect: Rect, bottom: float, top: float, placed: PlacedItem) -> bool:
    """Return whether a box intersects a placed item. A low item (a rug) collides only with low items."""
    low, high = placed.placement.bottom, placed.placement.bottom + placed.item.size[2]
    one_is_low = (top - bottom <= MAX_LOW_HEIGHT) != (high - low <= MAX_LOW_HEIGHT)
    return not one_is_low and bottom < high and low < top and _overlap(rect, placed.placement.rect)


def sample_furniture(room_kind: str, rng: np.random.Generator) -> list[FurnitureItem]:
    """Sample the furniture of a room of the given kind, with random sizes and surfaces."""
    items = []
    for name, probability in CATALOGUE.rooms[room_kind]:
        if rng.random() < probability:
            width, depth, height = (rng.uniform(*ends) for ends in CATALOGUE.kinds[name].size)
            surfaces = CATALOGUE.surfaces[name]
            surface = surfaces[int(rng.integers(len(surfaces)))]
            items.append(FurnitureItem(name, surface, (width, depth, height)))
    return items


def find_outer_walls(index: int, rooms: Sequence[Room]) -> list[tuple[int, float, float]]:
    """Return the parts of a room's walls with no room behind, as (wall number, start, end) in metres."""
    room, ranges = rooms[index], []
    for wall in range(4):
        along, across = wall % 2, 1 - wall % 2
        face = room.low[across] if wall < 2 else room.high[across]
        covered = [(room.low[along], room.low[along])]
        for other in rooms:
            behind = other.high[across] if wall < 2 else other.low[across]
            is_level = other.low[2] < room.high[2] and room.low[2] < other.high[2]
            if other is not room and is_level and abs(behind - face) < WALL_WIDTH + 0.05:
                covered.append((other.low[along] - WALL_WIDTH, other.high[along] + WALL_WIDTH))
        covered = [*sorted(covered), (room.high[along], room.high[along])]
        start = room.low[along]
        for low, high in covered:
            if low - start > 1.0:
                ranges.append((wall, start, min(low, room.high[along])))
            start = max(start, high)
    return ranges


def build_furniture(placed: PlacedItem, object_id: str, room: int) -> Furniture:
    """Convert a placed item to furniture of a house: boxes in world coordinates."""
    (x0, y0, x1, y1), wall, bottom, is_mirrored = placed.placement
    item, boxes = placed.item, []
    for part in CATALOGUE.models[CATALOGUE.kinds[item.name].model]:
        along = (1 - part.x[1], 1 - part.x[0]) if is_mirrored else part.x
        across = part.y if wall < 2 else (1 - part.y[1], 1 - part.y[0])
        (xa, xb), (ya, yb) = (along, across) if wall % 2 == 0 else (across, along)
        low = x0 + xa * (x1 - x0), y0 + ya * (y1 - y0), bottom + part.z[0] * item.size[2]
        high = x0 + xb * (x1 - x0), y0 + yb * (y1 - y0), bottom + part.z[1] * item.size[2]
        surface = NEUTRAL_SURFACES[part.colour] if part.colour else item.surface
        boxes.append(Box(_round_point(low), _round_point(high), surface))
    return Furniture(object_id, item.name, room, item.surface, tuple(boxes))


def _round_point(corner: Point) -> Point:
    x, y, z = (round(float(value), 6) for value in corner)
    return x, y, z
