"""Furniture catalogue, read from `furniture.toml`: shapes, kinds, surfaces, and which rooms hold what."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from esceme.synth.house_model import Surface

PlacementRule = Literal[
    "wall", "corner", "middle", "hung", "outside", "floor", "beside", "before", "around", "on"
]
"""Where furniture is placed, in the order of the values: against a wall, in a corner, in the room's middle,
on a wall, on an outer wall, flat on the floor; or relative to another piece of furniture, the partner:
next to the partner at the same wall, in front of it, along its sides, on top of it."""
Range = tuple[float, float]
"""Lower and upper bound."""


class Part(NamedTuple):
    """One box of a furniture shape.

    Bounds are fractions of the furniture's size: x along the wall, y away from the wall, z up.
    """

    x: Range
    y: Range
    z: Range
    colour: Literal["white", "grey", "black"] | None = None
    """Colour of this part if it differs from the surface of the furniture."""


class FurnitureKind(msgspec.Struct, frozen=True):
    """Placement rule, size and shape of one kind of furniture, such as a sofa."""

    rule: PlacementRule
    size: tuple[Range, Range, Range]
    """Ranges of the size in metres: along the wall, away from the wall, up."""
    model: str
    """Key of the shape in `FurnitureCatalogue.models`."""
    hindi: str
    """Hindi name."""
    base: float = 0.0
    """Height of the lower edge above the floor, in metres."""
    partner: str = ""
    """Kind of furniture that the placement rule refers to; empty if the rule needs no partner."""
    placed_last: bool = False
    """Whether the furniture is placed after the viewpoints are chosen. Large furniture is placed before."""


class FurnitureCatalogue(msgspec.Struct, frozen=True):
    """Content of `furniture.toml`."""

    models: dict[str, tuple[Part, ...]]
    """Model name -> the boxes of its shape."""
    kinds: dict[str, FurnitureKind]
    """Furniture name -> its kind."""
    surfaces: dict[str, tuple[Surface, ...]]
    """Furniture name -> its possible surfaces."""
    rooms: dict[str, tuple[tuple[str, float], ...]]
    """Kind of room -> (furniture name, probability) pairs in the order of placement."""


CATALOGUE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=FurnitureCatalogue)
