"""What a generated house consists of: rooms, openings between them, furniture, and places to stand.

Metres; x to the east, y to the north, z up; heading 0 looks north and grows clockwise. Rooms are upright
boxes that do not overlap; between two of them lies a wall of `WALL` metres, pierced by openings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

WALL = 0.12
"""Thickness of the wall between two rooms."""
STOREY = 3.0
"""From one floor to the next; rooms are 2.7 m high, the ceiling's slab is the rest."""
EYE = 1.5
"""Height of the camera above the floor one stands on."""

Texture = Literal["plain", "planks", "tiles", "checks", "stripes", "bricks", "fabric", "grain"]


class Surface(NamedTuple):
    """How something looks: a colour by name and as red, green, blue (0 to 255), and a texture."""

    colour: str
    rgb: tuple[int, int, int]
    texture: Texture = "plain"


class Box(NamedTuple):
    """A solid with sides along the axes: the stuff that furniture and stairs are made of."""

    low: tuple[float, float, float]
    high: tuple[float, float, float]
    surface: Surface


@dataclass(frozen=True, slots=True)
class Room:
    """An upright box of air with a floor, a ceiling and four walls; corridors and landings are rooms, too."""

    kind: str
    """What people call it: 'kitchen', 'bedroom', 'hallway', 'stairs' ..."""
    storey: int
    """0 is the ground floor."""
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    floor: Surface
    walls: Surface
    ceiling: Surface


@dataclass(frozen=True, slots=True)
class Opening:
    """A hole in the wall between two rooms that one can look and, from `low` to `high`, walk through.

    `axis` is the direction the wall faces: 0 for a wall at constant x (one walks east or west through it), 1
    for a wall at constant y. `low` and `high` are its ends along the other horizontal axis, `bottom`
    and `top` its heights above zero. The wall lies between the two rooms' facing sides.
    """

    rooms: tuple[int, int]
    """Indices of the rooms, the one with the smaller coordinate along `axis` first."""
    axis: Literal[0, 1]
    low: float
    high: float
    bottom: float
    top: float
    kind: Literal["door", "arch", "open"]
    """A door (about 0.9 x 2.05 m), an arch (wider), or the whole side of an open-plan space."""
    frame: Surface
    """How its inner faces look."""


@dataclass(frozen=True, slots=True)
class Furniture:
    """A thing with a name that one can see and talk about."""

    object_id: str
    """Unique within a house."""
    name: str
    """'sofa', 'bathtub', 'painting' ..."""
    room: int
    surface: Surface
    """What it is called by when its colour is mentioned."""
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere to stand: a viewpoint."""

    viewpoint: str
    """32 hexadecimal digits, as Matterport3D has them."""
    room: int
    position: tuple[float, float, float]
    """Of the camera: `EYE` above what one stands on."""


@dataclass(frozen=True, slots=True)
class House:
    """One generated building."""

    scene_id: str
    rooms: tuple[Room, ...]
    openings: tuple[Opening, ...]
    furniture: tuple[Furniture, ...]
    stairs: tuple[Box, ...]
    """Steps; seen but never named."""
    places: tuple[Place, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of places one can walk between in a straight line, the smaller index first."""
