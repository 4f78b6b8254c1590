"""Floor plan before surfaces and furniture: room outlines, passages and stairs.

A plan is drawn in local coordinates: u along the hallway, v across it. `orient_randomly` converts u and v to
x and y.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from esceme.synth.house_model import STOREY_HEIGHT, WALL_WIDTH

ROOM_HEIGHT = 2.7
"""Height of a room from floor to ceiling, in metres."""
LANDING_DEPTH = 1.05
"""Depth of the level parts (landings) of the stairs, in metres."""
NUM_STEPS = 16
"""Number of steps from one storey to the next."""

Rect = tuple[float, float, float, float]
"""Lower u, lower v, higher u and higher v in metres. After `orient_randomly`, u and v are x and y."""
PassageKind = Literal["door", "arch", "open"]


class RoomOutline(NamedTuple):
    """Room of a floor plan, without surfaces. `bottom` and `top` are the heights of floor and ceiling."""

    kind: str
    storey: int
    rect: Rect
    bottom: float
    top: float


class Passage(NamedTuple):
    """Opening between two rooms of a floor plan; `rooms` are the indices of the two rooms."""

    rooms: tuple[int, int]
    kind: PassageKind
    middle: tuple[float, float]
    width: float
    bottom: float


class StairStep(NamedTuple):
    """One step of the stairs: a solid block from the ground up to `height` metres."""

    rect: Rect
    height: float


class Landing(NamedTuple):
    """Level part of the stairs, with a viewpoint at its centre; `height` is in metres."""

    centre: tuple[float, float]
    height: float


@dataclass(slots=True)
class Layout:
    """Floor plan of one or two storeys."""

    rooms: list[RoomOutline] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    steps: list[StairStep] = field(default_factory=list)
    landings: list[Landing] = field(default_factory=list)
    """Landings at the bottom, middle and top of the stairs; empty in a house without stairs."""

    def add_room(self, kind: str, storey: int, rect: Rect, *, storeys: int = 1) -> int:
        """Append a room and return its index. The room starts on `storey` and is `storeys` storeys high."""
        bottom = storey * STOREY_HEIGHT
        self.rooms.append(
            RoomOutline(kind, storey, rect, bottom, bottom + (storeys - 1) * STOREY_HEIGHT + ROOM_HEIGHT)
        )
        return len(self.rooms) - 1

    def kinds(self) -> list[str]:
        """Return the kind of every room."""
        return [room.kind for room in self.rooms]


def is_connected_layout(layout: Layout) -> bool:
    """Return whether every room is reachable from every other room."""
    adjacent = np.eye(len(layout.rooms))
    for passage in layout.passages:
        adjacent[passage.rooms] = 1
    return bool(connected_components(adjacent)[0] == 1)


def shared_range(a: Rect, b: Rect, axis: int) -> tuple[float, float]:
    """Return start and end, in metres, of the range along an axis (0 or 1) that two rectangles share.

    If the rectangles share no range, the end is smaller than the start.
    """
    return max(a[axis], b[axis]), min(a[axis + 2], b[axis + 2])


def add_passage(
    layout: Layout, rng: np.random.Generator, a: int, b: int, kind: PassageKind, *, at: float | None = None
) -> bool:
    """Add a passage between the rooms with indices `a` and `b`; return False if they share too little wall.

    An arch or open side that is too wide for the shared wall becomes a door. `at` is the coordinate of the
    passage's centre along the wall; by default this coordinate is random.
    """
    one, two = layout.rooms[a].rect, layout.rooms[b].rect
    along = 1 if any(abs(one[i] - two[j]) < WALL_WIDTH + 1e-6 for i, j in ((0, 2), (2, 0))) else 0
    low, high = shared_range(one, two, along)
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
    bottom = max(layout.rooms[a].storey, layout.rooms[b].storey) * STOREY_HEIGHT
    layout.passages.append(Passage((a, b), kind, middle, width, bottom))
    return True


def orient_randomly(layout: Layout, rng: np.random.Generator) -> Layout:
    """Return the floor plan randomly rotated and mirrored, with its lower corner moved to the origin."""
    flip_u, flip_v, swap = (bool(draw) for draw in rng.random(3) < 0.5)

    def turn(u: float, v: float) -> tuple[float, float]:
        u, v = (-u if flip_u else u), (-v if flip_v else v)
        return (v, u) if swap else (u, v)

    corners = np.array([turn(*room.rect[start : start + 2]) for room in layout.rooms for start in (0, 2)])
    shift = corners.min(axis=0)

    def point(u: float, v: float) -> tuple[float, float]:
        x, y = turn(u, v)
        return round(float(x - shift[0]), 6), round(float(y - shift[1]), 6)

    def rectangle(rect: Rect) -> Rect:
        (a, b), (c, d) = point(*rect[:2]), point(*rect[2:])
        return min(a, c), min(b, d), max(a, c), max(b, d)

    return Layout(
        rooms=[room._replace(rect=rectangle(room.rect)) for room in layout.rooms],
        passages=[passage._replace(middle=point(*passage.middle)) for passage in layout.passages],
        steps=[step._replace(rect=rectangle(step.rect)) for step in layout.steps],
        landings=[landing._replace(centre=point(*landing.centre)) for landing in layout.landings],
    )


# -- stairs: two flights with a landing in between, in a room two storeys high ---------------------------


def add_stair_entrance(layout: Layout, rng: np.random.Generator, halls: list[int]) -> None:
    """Add a door between the foot of the stairs and every hall that lies beside it.

    `halls` are room indices of the ground floor.
    """
    stairs, (start, end), _ = _stairwell_and_flights(layout)
    for hall in halls:
        low, _, high, _ = layout.rooms[hall].rect
        if low < start and end < high:
            add_passage(layout, rng, stairs, hall, "door", at=(start + end) / 2)


def add_stairs(layout: Layout, rng: np.random.Generator, side: int, hall: int) -> None:
    """Add the steps and landings of the stairs, and the door to the upper hallway with room index `hall`.

    The stairs start and end at the hallway. `side` is 1 if the stairwell has larger v than the hallway, else
    -1.
    """
    stairs, first, second = _stairwell_and_flights(layout)
    rect = layout.rooms[stairs].rect
    depth, rise, half = rect[3] - rect[1], STOREY_HEIGHT / NUM_STEPS, NUM_STEPS // 2
    going = (depth - 2 * LANDING_DEPTH) / (half - 1)

    def v_at(distance: float) -> float:
        """Convert a distance from the hallway to a v coordinate."""
        return rect[1] + distance if side > 0 else rect[3] - distance

    def add_step(flight: tuple[float, float], start: float, end: float, height: float) -> None:
        low, high = sorted((v_at(start), v_at(end)))
        layout.steps.append(StairStep((flight[0], low, flight[1], high), height))

    for step in range(half - 1):
        start = LANDING_DEPTH + step * going
        add_step(first, start, start + going, (step + 1) * rise)
        add_step(second, start, start + going, (NUM_STEPS - 1 - step) * rise)
    add_step((first[0], second[1]), depth - LANDING_DEPTH, depth, STOREY_HEIGHT / 2)
    add_step(second, 0.0, LANDING_DEPTH, STOREY_HEIGHT)
    layout.landings += [
        Landing((sum(first) / 2, v_at(LANDING_DEPTH / 2)), 0.0),
        Landing((first[1], v_at(depth - LANDING_DEPTH / 2)), STOREY_HEIGHT / 2),
        Landing((sum(second) / 2, v_at(LANDING_DEPTH / 2)), STOREY_HEIGHT),
    ]
    add_passage(layout, rng, stairs, hall, "door", at=sum(second) / 2)


def _stairwell_and_flights(layout: Layout) -> tuple[int, tuple[float, float], tuple[float, float]]:
    """Return the room index of the stairwell, and the ranges of u of its lower and upper flight of steps."""
    stairs = layout.kinds().index("stairs")
    low, _, high, _ = layout.rooms[stairs].rect
    middle = (low + high) / 2
    return stairs, (low, middle), (middle, high)
