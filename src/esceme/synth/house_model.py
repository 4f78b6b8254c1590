"""Data model of a generated house: rooms, openings, furniture, stairs, viewpoints and edges.

Units are metres; x points east, y north, z up. Heading 0 looks north and grows clockwise. Rooms are
axis-aligned boxes that do not overlap. A wall `WALL_WIDTH` metres thick separates two adjacent rooms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

WALL_WIDTH = 0.12
"""Thickness of the wall between two rooms, in metres."""
STOREY_HEIGHT = 3.0
"""Height difference between two floors in metres: a room height of 2.7 m plus the ceiling slab."""
CAMERA_HEIGHT = 1.5
"""Height of the camera above the floor, in metres."""

TextureName = Literal["plain", "planks", "tiles", "checks", "stripes", "bricks", "fabric", "grain"]
Point = tuple[float, float, float]
"""x, y and z in metres."""


class Surface(NamedTuple):
    """Appearance of a face: colour name, RGB values from 0 to 255, and texture."""

    colour: str
    rgb: tuple[int, int, int]
    texture: TextureName = "plain"


class Box(NamedTuple):
    """Solid axis-aligned box between two corners. Furniture and stairs consist of boxes."""

    low: Point
    high: Point
    surface: Surface


@dataclass(frozen=True, slots=True)
class Room:
    """Axis-aligned box of air with a floor, a ceiling and four walls; hallways and stairwells are rooms."""

    kind: str
    """Kind of room: 'kitchen', 'bedroom', 'hallway', 'stairs' ..."""
    storey: int
    """Storey number; 0 is the ground floor."""
    low: Point
    high: Point
    floor: Surface
    walls: Surface
    ceiling: Surface


@dataclass(frozen=True, slots=True)
class Opening:
    """Hole in the wall between two rooms: a door, an arch or an open side.

    `axis` is the wall's normal: 0 for a wall at constant x, 1 for a wall at constant y. `low` and `high`
    bound the hole along the other horizontal axis, `bottom` and `top` along z.
    """

    rooms: tuple[int, int]
    """Indices of the two rooms; the room with the smaller coordinate along `axis` comes first."""
    axis: Literal[0, 1]
    low: float
    high: float
    bottom: float
    top: float
    kind: Literal["door", "arch", "open"]
    """A door (about 0.9 x 2.05 m), an arch (wider), or the whole side of an open-plan room."""
    frame: Surface
    """Surface of the hole's inner faces."""


@dataclass(frozen=True, slots=True)
class Furniture:
    """Named object made of boxes."""

    object_id: str
    """Id that is unique within a house."""
    name: str
    """Kind of furniture: 'sofa', 'bathtub', 'painting' ..."""
    room: int
    """Index of the room that contains the furniture."""
    surface: Surface
    """Main surface. Instructions mention its colour."""
    boxes: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class HouseViewpoint:
    """Viewpoint of a house: camera position and room."""

    viewpoint_id: str
    """Id of 32 hexadecimal digits, as in Matterport3D."""
    room: int
    """Index of the room that contains the viewpoint."""
    position: Point
    """Camera position, `CAMERA_HEIGHT` above the floor or the stairs."""


@dataclass(frozen=True, slots=True)
class House:
    """Generated building with its navigation graph."""

    scene_id: str
    rooms: tuple[Room, ...]
    openings: tuple[Opening, ...]
    furniture: tuple[Furniture, ...]
    stairs: tuple[Box, ...]
    """Steps of the stairs. They are rendered, but instructions never name them."""
    viewpoints: tuple[HouseViewpoint, ...]
    edges: tuple[tuple[int, int], ...]
    """Pairs of viewpoint indices with a straight walkable line in between, the smaller index first."""
