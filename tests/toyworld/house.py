"""A toy house: rooms along a corridor, viewpoints in them, objects by the walls, features of what is seen.

It stands in for a scanned building where only the file formats, a sensible graph and some structure in the
features matter. Nothing is rendered: a view's feature is a fixed random projection of the room, the direction
and the objects in sight. Walls matter only for which viewpoints see each other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.world.geometry import (
    HALF_FIELD,
    TURN,
    VIEW_ELEVATIONS,
    VIEW_HEADINGS,
    VIEWS,
    angle_feature,
    direction,
    sight,
)

EYE = 1.5
"""Height of a viewpoint above its floor, metres."""
STOREY = 2.8
BAY = 4.4
"""Length of corridor that one room on either side takes up."""
REACH = 5.0
"""No step is longer than this."""
FEATURE_WIDTH, SCORES = 32, 4
"""Columns of the feature file: features, then classifier scores as published files append them."""
FOCAL = 240 / np.tan(TURN)
"""Pixels per unit of tangent in a 640x480 picture with a vertical field of 60°."""

ROOM_NAMES = {
    "a": "bathroom",
    "b": "bedroom",
    "d": "dining room",
    "h": "hallway",
    "i": "library",
    "j": "laundry room",
    "k": "kitchen",
    "l": "living room",
    "o": "office",
    "p": "porch",
    "s": "stairs",
}
"""The labels of Matterport regions that occur here."""
FURNITURE = {
    "a": ("sink", "bathtub", "mirror"),
    "b": ("bed", "dresser", "lamp"),
    "d": ("dining#table", "chandelier", "cabinet"),
    "h": ("picture", "plant", "rug"),
    "i": ("bookshelf", "armchair", "globe"),
    "j": ("washing#machine", "basket", "shelf"),
    "k": ("stove", "refrigerator", "kitchen#island"),
    "l": ("sofa", "fireplace", "television"),
    "o": ("desk", "printer", "chair"),
    "p": ("doormat",),
    "s": ("handrail",),
}
"""Objects by room label; `#` joins words, as in the REVERIE files."""
THINGS = sorted({thing for things in FURNITURE.values() for thing in things})


class Room(NamedTuple):
    """A room: its Matterport label, its lower corner and its size (x, y), the height of its floor."""

    label: str
    corner: tuple[float, float]
    size: tuple[float, float]
    floor: float


class Thing(NamedTuple):
    """An object of a room; ids are unique within a house."""

    object_id: int
    name: str
    room: int
    position: NDArray[np.float64]
    size: float


class Sighted(NamedTuple):
    """An object seen from a viewpoint: the views that show it, and its box (x, y, w, h) in each of them."""

    thing: Thing
    distance: float
    views: NDArray[np.int64]
    boxes: NDArray[np.int64]


class House(NamedTuple):
    """One scene before it is written; arrays have an entry per viewpoint (P), excluded ones too."""

    scene_id: str
    rooms: list[Room]
    things: list[Thing]
    names: list[str]
    positions: NDArray[np.float64]
    room_of: NDArray[np.int64]
    included: NDArray[np.bool_]
    visible: NDArray[np.bool_]
    unobstructed: NDArray[np.bool_]

    def room_name(self, viewpoint: str) -> str:
        """What people call the room of a viewpoint."""
        return ROOM_NAMES[self.rooms[self.room_of[self.names.index(viewpoint)]].label]

    def look(self, index: int) -> list[Sighted]:
        """The objects of the same room within 3 m of a viewpoint, and where its views show them."""
        found = []
        for thing in self.things:
            offset = thing.position - self.positions[index]
            distance = float(np.linalg.norm(offset))
            if thing.room == self.room_of[index] and distance <= 3.0:
                seen = sight(direction(offset))
                views = np.flatnonzero((np.abs(seen.heading) < HALF_FIELD) & (np.abs(seen.elevation) < TURN))
                boxes = _boxes(seen.heading[views], seen.elevation[views], thing.size / distance)
                found.append(Sighted(thing, distance, views, boxes))
        return [each for each in found if len(each.views)]

    def sees(self, thing: Thing) -> list[str]:
        """The viewpoints that an object can be seen from."""
        seen = [[sighted.thing.object_id for sighted in self.look(index)] for index in range(len(self.names))]
        return [name for name, ids in zip(self.names, seen, strict=True) if thing.object_id in ids]


def plain(name: str) -> str:
    """An object's name as people say it.

    >>> plain("dining#table")
    'dining table'
    """
    return name.replace("#", " ")


def build_house(scene_id: str, storeys: list[str], rng: np.random.Generator) -> House:
    """A house whose storeys have the rooms of the given labels, two per bay of the corridor.

    One included viewpoint on the porch has no edge, and one excluded viewpoint doubles another, as in the
    scanned buildings.
    """
    rooms, places, doors = _lay_out(storeys, rng)
    room_of = np.array([room for room, _ in places])
    positions = np.array([place for _, place in places])
    positions[:, :2] += rng.uniform(-0.25, 0.25, (len(places), 2))
    positions[:, 2] += EYE + rng.uniform(-0.04, 0.04, len(places))

    visible, unobstructed = _connect(positions, room_of, doors)
    order = rng.permutation(len(places) + 1)
    source = np.where(order < len(places), order, 0)
    grid = np.ix_(source, source)
    included = order < len(places)
    return House(
        scene_id=scene_id,
        rooms=rooms,
        things=_furnish(rooms, rng),
        names=[rng.bytes(16).hex() for _ in order],
        positions=(positions[source] + np.where(included[:, None], 0.0, [0.4, 0.2, 0.0])).round(5),
        room_of=room_of[source],
        included=included,
        visible=visible[grid],
        unobstructed=unobstructed[grid],
    )


Place = tuple[int, tuple[float, float, float]]
Door = tuple[int, int, tuple[float, float, float]]


def _lay_out(storeys: list[str], rng: np.random.Generator) -> tuple[list[Room], list[Place], list[Door]]:
    """Rooms, where viewpoints stand (room, place on the floor), and doors (room, room, place).

    The last place is the isolated one on the porch.
    """
    rooms: list[Room] = []
    places: list[Place] = []
    doors: list[Door] = []
    end = BAY * max(len(labels) // 2 for labels in storeys)
    corridors = []
    for level, labels in enumerate(storeys):
        floor = level * STOREY
        corridor = len(rooms)
        corridors.append(corridor)
        rooms.append(Room("h", (0.0, -1.0), (end, 2.0), floor))
        places += [(corridor, (BAY * (k + 0.5) / 2, 0.0, floor)) for k in range(len(labels))]
        for number, label in enumerate(rng.permutation(list(labels)).tolist()):
            bay, side = number // 2, 1 - 2 * (number % 2)
            room, left = len(rooms), bay * BAY
            rooms.append(Room(label, (left, 1.0 if side > 0 else -5.0), (BAY, 4.0), floor))
            spots = [(BAY / 2, 2.0), (1.1, 3.9), (BAY - 1.1, 3.9)][: 2 + int(rng.random() < 0.5)]
            places += [(room, (left + x, side * y, floor)) for x, y in spots]
            doors.append((corridor, room, (left + BAY / 2, float(side), floor + EYE)))
            if bay and side > 0:
                doors.append((room - 2, room, (left, 3.9, floor + EYE)))
    for below, above in zip(corridors, corridors[1:], strict=False):
        stairs, floor = len(rooms), rooms[below].floor
        rooms.append(Room("s", (end, -1.0), (2.2, 2.0), floor))
        places += [(stairs, (end + 1.0, -0.6, floor + 0.9)), (stairs, (end + 1.0, 0.6, floor + 1.9))]
        doors += [(below, stairs, (end, -0.3, floor + 2.0)), (above, stairs, (end, 0.3, floor + 3.9))]
    rooms.append(Room("p", (-3.0, -1.0), (3.0, 2.0), 0.0))
    places.append((len(rooms) - 1, (-1.5, 0.0, 0.0)))
    return rooms, places, doors


def _connect(
    positions: NDArray[np.float64], room_of: NDArray[np.int64], doors: list[Door]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Who sees whom (one room, or through a door), and who can step where (seen, near)."""
    visible = room_of[:, None] == room_of[None]
    gaps = np.linalg.norm(positions[:, None] - positions[None], axis=-1)
    for a, b, door in doors:
        here, there = np.flatnonzero(room_of == a), np.flatnonzero(room_of == b)
        detour = np.linalg.norm(positions - np.array(door), axis=1)
        slack = detour[here][:, None] + detour[there] - gaps[np.ix_(here, there)]
        through = (slack < 0.35) | (slack == slack.min())
        visible[np.ix_(here, there)] |= through
        visible[np.ix_(there, here)] |= through.T
    np.fill_diagonal(visible, False)
    return visible, visible & (gaps <= REACH)


def _furnish(rooms: list[Room], rng: np.random.Generator) -> list[Thing]:
    things: list[Thing] = []
    for room, (label, corner, size, floor) in enumerate(rooms):
        for name in FURNITURE[label]:
            wall = rng.uniform(0.05, 0.95, 2)
            wall[rng.integers(2)] = rng.choice([0.05, 0.95])
            place = [*(np.array(corner) + wall * size), floor + rng.uniform(0.4, 1.8)]
            things.append(Thing(len(things) + 1, name, room, np.array(place), float(rng.uniform(0.4, 1.2))))
    return things


def _boxes(heading: NDArray[np.float64], elevation: NDArray[np.float64], extent: float) -> NDArray[np.int64]:
    """Boxes of an object of angular size `extent`, cut at the edges of the 640x480 picture."""
    x, y = 320 + FOCAL * np.tan(heading), 240 - FOCAL * np.tan(elevation)
    half = FOCAL * extent / 2
    left, top = np.clip(x - half, 0, 636), np.clip(y - half, 0, 476)
    right, bottom = np.clip(x + half, left + 4, 640), np.clip(y + half, top + 4, 480)
    return np.stack([left, top, right - left, bottom - top], axis=1).astype(np.int64)


def see(house: House, rng: np.random.Generator) -> NDArray[np.float64]:
    """Features and scores of all viewpoints, (P, 36, 32 + 4): what each view shows, projected, and noise.

    A view shows its own room, the rooms of neighbours that it looks at, the objects in sight, its direction.
    """
    labels = sorted(ROOM_NAMES)
    shown = np.zeros((len(house.names), VIEWS, len(labels) + len(THINGS) + 4))
    gaps = np.linalg.norm(house.positions[:, None] - house.positions[None], axis=-1)
    column = [labels.index(house.rooms[room].label) for room in house.room_of]
    for here in range(len(house.names)):
        shown[here, :, column[here]] += 0.5
        for there in np.flatnonzero(house.visible[here]):
            seen = sight(direction(house.positions[there] - house.positions[here]))
            facing = (np.abs(seen.heading) < TURN / 2) & (VIEW_ELEVATIONS == 0)
            shown[here, facing, column[there]] += 1 / gaps[here, there]
        for sighted in house.look(here):
            place = len(labels) + THINGS.index(sighted.thing.name)
            shown[here, sighted.views, place] += sighted.thing.size / sighted.distance
    shown[..., -4:] = 0.3 * angle_feature(VIEW_HEADINGS, VIEW_ELEVATIONS)
    projection = np.random.default_rng(36).normal(size=(shown.shape[-1], FEATURE_WIDTH + SCORES))
    features = np.tanh(shown @ projection) + 0.05 * rng.normal(
        size=(*shown.shape[:2], FEATURE_WIDTH + SCORES)
    )
    return features.round(6)
