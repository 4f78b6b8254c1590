"""Furniture catalogue: box models, size ranges and placement rules, and the furniture of each room kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from esceme.synth.house_model import Surface
from esceme.synth.palette import BLACK, STEEL, WHITE

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
    surface: Surface | None = None
    """Surface of a small part that differs from the object's own surface."""


class FurnitureKind(NamedTuple):
    """Placement rule, size ranges in metres (along the wall, away from it, up) and parts."""

    rule: PlacementRule
    width: Range
    depth: Range
    height: Range
    parts: tuple[Part, ...]
    base: float = 0.0
    """Height of its lower edge above the floor."""
    partner: str = ""
    """Kind that the rule refers to."""
    placed_last: bool = False
    """Whether it is placed after the viewpoints; larger kinds are placed before them."""


ALL: Range = (0.0, 1.0)
BLOCK = (Part(ALL, ALL, ALL),)
TABLE = (
    Part(ALL, ALL, (0.92, 1)),
    Part((0.03, 0.1), (0.06, 0.94), (0, 0.92)),
    Part((0.9, 0.97), (0.06, 0.94), (0, 0.92)),
)
SEAT = (
    Part((0.08, 0.92), (0.25, 1), (0.1, 0.5)),
    Part(ALL, (0, 0.25), (0, 1)),
    Part((0, 0.08), (0.25, 1), (0, 0.72)),
    Part((0.92, 1), (0.25, 1), (0, 0.72)),
)
CHAIR = (
    Part(ALL, (0.1, 1), (0.46, 0.53)),
    Part(ALL, (0, 0.1), (0, 1)),
    Part((0.05, 0.95), (0.88, 0.96), (0, 0.46)),
)
STOOL = (Part(ALL, ALL, (0.85, 1)), Part((0.3, 0.7), (0.3, 0.7), (0, 0.85)))
CABINET = (Part(ALL, ALL, (0.08, 1)), Part((0.02, 0.98), (0.05, 0.9), (0, 0.08), BLACK))
WORKTOP = (Part(ALL, (0, 0.96), (0, 0.95)), Part(ALL, ALL, (0.95, 1), WHITE))
COOKER = (
    Part(ALL, (0, 0.97), (0, 0.97)),
    Part((0.08, 0.92), (0.1, 0.9), (0.97, 1), BLACK),
    Part((0.2, 0.8), (0.97, 1), (0.3, 0.6), BLACK),
)
DRUM = (Part(ALL, (0, 0.97), ALL), Part((0.3, 0.7), (0.97, 1), (0.35, 0.7), WHITE))
COOLER = (Part(ALL, (0, 0.96), ALL), Part((0.08, 0.13), (0.96, 1), (0.4, 0.75), STEEL))
BASIN = (Part(ALL, ALL, (0.75, 1)), Part((0.3, 0.7), (0.1, 0.6), (0, 0.75), WHITE))
BED = (
    Part(ALL, (0, 0.04), ALL),
    Part((0.02, 0.98), (0.04, 1), (0.16, 0.52)),
    Part((0.05, 0.95), (0.08, 0.96), (0, 0.16), BLACK),
    Part((0.08, 0.44), (0.05, 0.2), (0.52, 0.62), WHITE),
    Part((0.56, 0.92), (0.05, 0.2), (0.52, 0.62), WHITE),
)
TUB = (
    Part(ALL, ALL, (0, 0.35)),
    Part((0, 0.06), ALL, (0.35, 1)),
    Part((0.94, 1), ALL, (0.35, 1)),
    Part((0.06, 0.94), (0, 0.12), (0.35, 1)),
    Part((0.06, 0.94), (0.88, 1), (0.35, 1)),
)
TOILET = (Part((0.12, 0.88), (0.3, 1), (0, 0.52)), Part(ALL, (0, 0.3), (0, 1)))
SHOWER = (
    Part(ALL, ALL, (0, 0.06)),
    Part(ALL, (0, 0.05), (0.06, 1)),
    Part((0, 0.05), (0.05, 1), (0.06, 1)),
    Part((0.45, 0.55), (0.05, 0.2), (0.9, 0.94), STEEL),
)
SCREEN = (
    Part(ALL, ALL, (0, 0.34), BLACK),
    Part((0.4, 0.6), (0.35, 0.55), (0.34, 0.42), BLACK),
    Part((0.02, 0.98), (0.35, 0.5), (0.42, 1)),
)
HEARTH = (
    Part((0, 0.25), ALL, (0, 0.6)),
    Part((0.75, 1), ALL, (0, 0.6)),
    Part(ALL, ALL, (0.6, 1)),
    Part((0.25, 0.75), (0, 0.4), (0, 0.6), BLACK),
)
PIANO = (
    Part(ALL, (0, 0.6), ALL),
    Part(ALL, (0.6, 1), (0.5, 0.6)),
    Part((0.05, 0.95), (0.62, 0.96), (0.6, 0.62), WHITE),
    Part((0, 0.06), (0.6, 1), (0, 0.5)),
    Part((0.94, 1), (0.6, 1), (0, 0.5)),
)
FRAMED = (Part(ALL, (0, 0.6), ALL, BLACK), Part((0.05, 0.95), (0.6, 1), (0.05, 0.95)))
GLAZED = (
    Part(ALL, (0, 0.6), ALL, WHITE),
    Part((0.04, 0.47), (0.6, 1), (0.05, 0.95)),
    Part((0.53, 0.96), (0.6, 1), (0.05, 0.95)),
)
PLANT = (
    Part((0.28, 0.72), (0.28, 0.72), (0, 0.28), WHITE),
    Part((0.1, 0.9), (0.1, 0.9), (0.36, 0.75)),
    Part((0.2, 0.8), (0.2, 0.8), (0.75, 1)),
    Part((0.42, 0.58), (0.42, 0.58), (0.28, 0.36), BLACK),
)
LAMP = (
    Part((0.2, 0.8), (0.2, 0.8), (0, 0.02), STEEL),
    Part((0.46, 0.54), (0.46, 0.54), (0.02, 0.7), STEEL),
    Part(ALL, ALL, (0.7, 1)),
)
DESK = (
    Part(ALL, ALL, (0.93, 1)),
    Part((0.02, 0.32), (0.05, 0.9), (0, 0.93)),
    Part((0.93, 0.98), (0.05, 0.9), (0, 0.93)),
)
SWIVEL = (
    Part(ALL, (0.15, 1), (0.42, 0.52)),
    Part(ALL, (0, 0.15), (0.52, 1)),
    Part((0.42, 0.58), (0.45, 0.65), (0, 0.42), BLACK),
)
MONITOR = (Part((0.35, 0.65), (0.2, 0.8), (0, 0.12), BLACK), Part(ALL, (0.4, 0.6), (0.12, 1)))
RACK = (
    Part((0.42, 0.58), (0.42, 0.58), (0, 0.7)),
    Part((0, 1), (0.3, 0.7), (0.7, 1)),
    Part((0.1, 0.9), (0.1, 0.9), (0, 0.04)),
)
BENCH = (
    Part(ALL, (0.1, 1), (0.45, 0.55)),
    Part(ALL, (0, 0.1), (0.45, 1)),
    Part((0.05, 0.15), (0.1, 0.95), (0, 0.45)),
    Part((0.85, 0.95), (0.1, 0.95), (0, 0.45)),
)
CLOCK = (Part(ALL, (0, 0.94), ALL), Part((0.2, 0.8), (0.94, 1), (0.74, 0.92), WHITE))
STATUE = (
    Part(ALL, ALL, (0, 0.3), WHITE),
    Part((0.15, 0.85), (0.15, 0.85), (0.3, 0.8)),
    Part((0.32, 0.68), (0.32, 0.68), (0.8, 1)),
)
VASE = (Part((0.1, 0.9), (0.1, 0.9), (0, 0.75)), Part((0.3, 0.7), (0.3, 0.7), (0.75, 1)))
TANK = (Part(ALL, ALL, (0, 0.5), BLACK), Part(ALL, ALL, (0.5, 0.96)), Part(ALL, ALL, (0.96, 1), BLACK))
GLOBE = (Part((0.3, 0.7), (0.3, 0.7), (0, 0.5), BLACK), Part(ALL, ALL, (0.5, 1)))
RUNNING = (
    Part(ALL, ALL, (0, 0.14)),
    Part((0, 0.1), (0.05, 0.15), (0.14, 0.85)),
    Part((0.9, 1), (0.05, 0.15), (0.14, 0.85)),
    Part(ALL, (0.02, 0.18), (0.85, 1)),
)

FURNITURE_KINDS: Mapping[str, FurnitureKind] = {
    "sofa": FurnitureKind("wall", (1.8, 2.3), (0.85, 0.95), (0.8, 0.9), SEAT),
    "armchair": FurnitureKind("corner", (0.8, 0.9), (0.8, 0.9), (0.85, 0.95), SEAT),
    "coffee table": FurnitureKind("before", (0.9, 1.2), (0.5, 0.6), (0.42, 0.45), TABLE, partner="sofa"),
    "television": FurnitureKind("wall", (1.2, 1.6), (0.4, 0.45), (1.25, 1.4), SCREEN),
    "fireplace": FurnitureKind("wall", (1.4, 1.7), (0.4, 0.5), (1.3, 1.6), HEARTH),
    "piano": FurnitureKind("wall", (1.4, 1.5), (0.6, 0.65), (1.15, 1.25), PIANO),
    "bookshelf": FurnitureKind("wall", (0.9, 1.4), (0.3, 0.36), (1.8, 2.2), BLOCK),
    "rug": FurnitureKind("floor", (1.4, 2.4), (1.0, 1.6), (0.012, 0.015), BLOCK, placed_last=True),
    "painting": FurnitureKind(
        "hung", (0.9, 1.5), (0.04, 0.05), (0.7, 1.0), FRAMED, base=1.05, placed_last=True
    ),
    "plant": FurnitureKind("corner", (0.55, 0.75), (0.55, 0.75), (1.1, 1.7), PLANT),
    "lamp": FurnitureKind("corner", (0.42, 0.5), (0.42, 0.5), (1.5, 1.75), LAMP, placed_last=True),
    "curtain": FurnitureKind(
        "beside", (0.4, 0.6), (0.1, 0.12), (2.2, 2.3), BLOCK, base=0.1, partner="window", placed_last=True
    ),
    "dining table": FurnitureKind("middle", (1.5, 1.9), (0.85, 1.0), (0.74, 0.78), TABLE),
    "chair": FurnitureKind("around", (0.44, 0.48), (0.46, 0.5), (0.9, 0.98), CHAIR, partner="dining table"),
    "sideboard": FurnitureKind("wall", (1.2, 1.7), (0.42, 0.48), (0.85, 1.0), CABINET),
    "stove": FurnitureKind("beside", (0.6, 0.7), (0.62, 0.64), (0.9, 0.92), COOKER, partner="counter"),
    "fridge": FurnitureKind("corner", (0.7, 0.85), (0.66, 0.72), (1.75, 1.95), COOLER),
    "counter": FurnitureKind("wall", (1.3, 1.9), (0.62, 0.64), (0.9, 0.92), WORKTOP),
    "sink": FurnitureKind("wall", (0.6, 0.75), (0.46, 0.54), (0.86, 0.92), BASIN),
    "dishwasher": FurnitureKind("beside", (0.58, 0.62), (0.6, 0.62), (0.86, 0.9), DRUM, partner="counter"),
    "kitchen island": FurnitureKind("middle", (1.2, 1.5), (0.7, 0.8), (0.9, 0.92), WORKTOP),
    "stool": FurnitureKind("around", (0.36, 0.4), (0.36, 0.4), (0.65, 0.7), STOOL, partner="kitchen island"),
    "bed": FurnitureKind("wall", (1.4, 1.8), (1.95, 2.05), (0.95, 1.15), BED),
    "nightstand": FurnitureKind("beside", (0.42, 0.5), (0.4, 0.45), (0.5, 0.6), BLOCK, partner="bed"),
    "wardrobe": FurnitureKind("wall", (1.0, 1.6), (0.56, 0.6), (1.95, 2.2), CABINET),
    "dresser": FurnitureKind("wall", (0.9, 1.2), (0.45, 0.5), (0.8, 0.95), CABINET),
    "mirror": FurnitureKind("hung", (0.6, 0.9), (0.03, 0.04), (0.9, 1.1), FRAMED, base=1.0, placed_last=True),
    "bathtub": FurnitureKind("corner", (1.5, 1.7), (0.7, 0.75), (0.55, 0.6), TUB),
    "toilet": FurnitureKind("wall", (0.38, 0.42), (0.62, 0.68), (0.78, 0.85), TOILET),
    "shower": FurnitureKind("corner", (0.85, 0.95), (0.85, 0.95), (2.0, 2.1), SHOWER),
    "towel": FurnitureKind("hung", (0.45, 0.6), (0.05, 0.06), (0.7, 0.9), BLOCK, base=0.85, placed_last=True),
    "washing machine": FurnitureKind("wall", (0.6, 0.64), (0.6, 0.64), (0.85, 0.9), DRUM),
    "dryer": FurnitureKind("beside", (0.6, 0.64), (0.6, 0.64), (0.85, 0.9), DRUM, partner="washing machine"),
    "basket": FurnitureKind("corner", (0.42, 0.5), (0.42, 0.5), (0.5, 0.65), BLOCK, placed_last=True),
    "desk": FurnitureKind("wall", (1.2, 1.6), (0.6, 0.7), (0.73, 0.77), DESK),
    "office chair": FurnitureKind("before", (0.5, 0.56), (0.5, 0.56), (0.95, 1.05), SWIVEL, partner="desk"),
    "computer": FurnitureKind("on", (0.6, 0.75), (0.2, 0.25), (0.45, 0.52), MONITOR, partner="desk"),
    "filing cabinet": FurnitureKind("wall", (0.45, 0.5), (0.5, 0.55), (1.0, 1.3), BLOCK),
    "coat rack": FurnitureKind("corner", (0.45, 0.5), (0.45, 0.5), (1.7, 1.85), RACK),
    "bench": FurnitureKind("wall", (1.0, 1.4), (0.4, 0.45), (0.8, 0.9), BENCH),
    "clock": FurnitureKind("wall", (0.45, 0.55), (0.28, 0.32), (1.9, 2.1), CLOCK),
    "console table": FurnitureKind("wall", (0.9, 1.2), (0.3, 0.35), (0.78, 0.85), DESK),
    "window": FurnitureKind(
        "outside", (1.1, 1.6), (0.04, 0.05), (1.1, 1.3), GLAZED, base=0.9, placed_last=True
    ),
    "front door": FurnitureKind("outside", (0.95, 1.05), (0.06, 0.07), (2.05, 2.1), BLOCK),
    "statue": FurnitureKind("corner", (0.4, 0.45), (0.4, 0.45), (1.4, 1.7), STATUE),
    "vase": FurnitureKind("corner", (0.38, 0.45), (0.38, 0.45), (0.75, 0.95), VASE),
    "trash can": FurnitureKind("corner", (0.34, 0.4), (0.34, 0.4), (0.55, 0.7), BLOCK, placed_last=True),
    "aquarium": FurnitureKind("wall", (1.0, 1.2), (0.4, 0.45), (1.2, 1.3), TANK),
    "globe": FurnitureKind("corner", (0.42, 0.48), (0.42, 0.48), (0.9, 1.0), GLOBE),
    "treadmill": FurnitureKind("wall", (0.7, 0.8), (1.5, 1.6), (1.2, 1.3), RUNNING),
}

ROOM_FURNITURE: Mapping[str, tuple[tuple[str, float], ...]] = {
    "entry": (
        *(("front door", 1.0), ("coat rack", 0.8), ("console table", 0.5), ("bench", 0.5), ("rug", 0.6)),
        *(("mirror", 0.4), ("statue", 0.4), ("painting", 0.5), ("plant", 0.4), ("window", 0.3)),
    ),
    "hallway": (
        *(("painting", 0.9), ("console table", 0.4), ("plant", 0.5), ("rug", 0.5), ("clock", 0.4)),
        *(("statue", 0.4), ("vase", 0.3), ("bench", 0.2), ("painting", 0.6), ("mirror", 0.2)),
        *(("painting", 0.4), ("window", 0.4), ("lamp", 0.3)),
    ),
    "living room": (
        *(("sofa", 1.0), ("coffee table", 0.8), ("fireplace", 0.5), ("piano", 0.4), ("television", 0.7)),
        *(("window", 1.0), ("armchair", 0.8), ("armchair", 0.4), ("bookshelf", 0.5), ("rug", 0.7)),
        *(("sideboard", 0.2), ("aquarium", 0.4), ("plant", 0.7), ("lamp", 0.7), ("painting", 0.9)),
        *(("curtain", 0.6), ("statue", 0.2), ("vase", 0.25), ("clock", 0.25), ("painting", 0.3)),
    ),
    "dining room": (
        *(("dining table", 1.0), ("chair", 1.0), ("window", 1.0), ("sideboard", 0.7), ("rug", 0.4)),
        *(("painting", 0.8), ("curtain", 0.5), ("plant", 0.5), ("lamp", 0.3), ("vase", 0.4)),
    ),
    "kitchen": (
        *(("counter", 1.0), ("stove", 1.0), ("fridge", 1.0), ("sink", 0.9), ("dishwasher", 0.7)),
        *(("kitchen island", 0.5), ("stool", 1.0), ("window", 0.9), ("trash can", 0.8), ("plant", 0.2)),
    ),
    "bedroom": (
        *(("bed", 1.0), ("nightstand", 0.9), ("wardrobe", 0.8), ("desk", 0.15), ("window", 1.0)),
        *(("dresser", 0.6), ("mirror", 0.3), ("rug", 0.5), ("painting", 0.7), ("curtain", 0.6)),
        *(("lamp", 0.5), ("plant", 0.3), ("armchair", 0.2), ("television", 0.15)),
    ),
    "bathroom": (
        *(("shower", 0.45), ("bathtub", 0.6), ("toilet", 1.0), ("sink", 1.0), ("mirror", 0.7)),
        *(("towel", 0.9), ("basket", 0.3), ("window", 0.4), ("trash can", 0.3)),
    ),
    "closet": (("wardrobe", 1.0), ("basket", 0.6), ("mirror", 0.4)),
    "laundry": (*(("washing machine", 1.0), ("dryer", 0.8), ("sink", 0.4), ("basket", 0.9), ("towel", 0.4)),),
    "office": (
        *(("desk", 1.0), ("computer", 0.9), ("office chair", 1.0), ("treadmill", 0.4), ("window", 1.0)),
        *(("bookshelf", 0.8), ("filing cabinet", 0.7), ("globe", 0.5), ("painting", 0.5), ("lamp", 0.4)),
        *(("plant", 0.5), ("armchair", 0.2), ("curtain", 0.3)),
    ),
    "stairs": (),
}
"""Room kind -> furniture kinds and their probabilities, the most important first."""
