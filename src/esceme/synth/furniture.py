"""Furniture catalogue, read from `furniture.toml`: models, kinds, surfaces, and the furniture of rooms."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from esceme.synth.house_model import Surface

PlacementRule = Literal[
    "wall", "corner", "middle", "hung", "outside", "floor", "beside", "before", "around", "on"
]
"""Against a wall, in a corner, in the middle of the room; on a wall, on an outer wall, flat on the floor;
or relative to the partner: next to it at the same wall, in front of it, along its sides, on top of it."""
Range = tuple[float, float]


class Part(NamedTuple):
    """Box in fractions of the object's size: x along the wall, y away from it, z up."""

    x: Range
    y: Range
    z: Range
    colour: Literal["white", "grey", "black"] | None = None
    """Colour of a small part that differs from the object's own surface."""


class FurnitureKind(msgspec.Struct, frozen=True):
    """Placement rule, size ranges in metres (along the wall, away from it, up) and model."""

    rule: PlacementRule
    size: tuple[Range, Range, Range]
    model: str
    hindi: str
    base: float = 0.0
    """Height of the lower edge above the floor."""
    partner: str = ""
    """Kind that the rule refers to."""
    placed_last: bool = False
    """Whether it is placed after the viewpoints; larger kinds are placed before them."""


class FurnitureCatalogue(msgspec.Struct, frozen=True):
    """Content of `furniture.toml`."""

    models: dict[str, tuple[Part, ...]]
    kinds: dict[str, FurnitureKind]
    surfaces: dict[str, tuple[Surface, ...]]
    """Kind -> its possible surfaces."""
    rooms: dict[str, tuple[tuple[str, float], ...]]
    """Room kind -> furniture kinds and their probabilities, the most important first."""


CATALOGUE = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=FurnitureCatalogue)
