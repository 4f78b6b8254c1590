"""What stands in which room: for every kind of thing its parts, sizes and where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from esceme.synth.palette import BLACK, STEEL, WHITE
from esceme.synth.plan import Surface

Stand = Literal["wall", "corner", "middle", "hung", "outside", "floor", "beside", "before", "around", "on"]
"""Against a wall, in a corner, in the middle of the room; on a wall, on an outer wall, flat on the floor;
or by its partner: next to it at the same wall, in front of it, along its sides, on top of it."""
Range = tuple[float, float]
Corner = tuple[float, float, float]


class Part(NamedTuple):
    """A box in shares of the thing's size: x along the wall, y away from it, z up."""

    low: Corner
    high: Corner
    surface: Surface | None = None
    """Of small parts that do not look like the rest."""


class Kind(NamedTuple):
    """A kind of furniture: sizes in metres (along the wall, away from it, up) and what it is made of."""

    stand: Stand
    width: Range
    depth: Range
    height: Range
    parts: tuple[Part, ...]
    base: float = 0.0
    """How far it hangs above the floor."""
    partner: str = ""
    early: bool = False
    """Big enough that places to stand are found around it, not the other way round."""


def _part(x: Range, y: Range, z: Range, surface: Surface | None = None) -> Part:
    return Part((x[0], y[0], z[0]), (x[1], y[1], z[1]), surface)


ALL: Range = (0.0, 1.0)
BLOCK = (_part(ALL, ALL, ALL),)
TABLE = (
    _part(ALL, ALL, (0.92, 1)),
    _part((0.03, 0.1), (0.06, 0.94), (0, 0.92)),
    _part((0.9, 0.97), (0.06, 0.94), (0, 0.92)),
)
SEAT = (
    _part((0.08, 0.92), (0.25, 1), (0.1, 0.5)),
    _part(ALL, (0, 0.25), (0, 1)),
    _part((0, 0.08), (0.25, 1), (0, 0.72)),
    _part((0.92, 1), (0.25, 1), (0, 0.72)),
)
CHAIR = (
    _part(ALL, (0.1, 1), (0.46, 0.53)),
    _part(ALL, (0, 0.1), (0, 1)),
    _part((0.05, 0.95), (0.88, 0.96), (0, 0.46)),
)
STOOL = (_part(ALL, ALL, (0.85, 1)), _part((0.3, 0.7), (0.3, 0.7), (0, 0.85)))
CABINET = (_part(ALL, ALL, (0.08, 1)), _part((0.02, 0.98), (0.05, 0.9), (0, 0.08), BLACK))
WORKTOP = (_part(ALL, (0, 0.96), (0, 0.95)), _part(ALL, ALL, (0.95, 1), WHITE))
COOKER = (
    _part(ALL, (0, 0.97), (0, 0.97)),
    _part((0.08, 0.92), (0.1, 0.9), (0.97, 1), BLACK),
    _part((0.2, 0.8), (0.97, 1), (0.3, 0.6), BLACK),
)
DRUM = (_part(ALL, (0, 0.97), ALL), _part((0.3, 0.7), (0.97, 1), (0.35, 0.7), WHITE))
COOLER = (_part(ALL, (0, 0.96), ALL), _part((0.08, 0.13), (0.96, 1), (0.4, 0.75), STEEL))
BASIN = (_part(ALL, ALL, (0.75, 1)), _part((0.3, 0.7), (0.1, 0.6), (0, 0.75), WHITE))
BED = (
    _part(ALL, (0, 0.04), ALL),
    _part((0.02, 0.98), (0.04, 1), (0.16, 0.52)),
    _part((0.05, 0.95), (0.08, 0.96), (0, 0.16), BLACK),
    _part((0.08, 0.44), (0.05, 0.2), (0.52, 0.62), WHITE),
    _part((0.56, 0.92), (0.05, 0.2), (0.52, 0.62), WHITE),
)
TUB = (
    _part(ALL, ALL, (0, 0.35)),
    _part((0, 0.06), ALL, (0.35, 1)),
    _part((0.94, 1), ALL, (0.35, 1)),
    _part((0.06, 0.94), (0, 0.12), (0.35, 1)),
    _part((0.06, 0.94), (0.88, 1), (0.35, 1)),
)
TOILET = (_part((0.12, 0.88), (0.3, 1), (0, 0.52)), _part(ALL, (0, 0.3), (0, 1)))
SHOWER = (
    _part(ALL, ALL, (0, 0.06)),
    _part(ALL, (0, 0.05), (0.06, 1)),
    _part((0, 0.05), (0.05, 1), (0.06, 1)),
    _part((0.45, 0.55), (0.05, 0.2), (0.9, 0.94), STEEL),
)
SCREEN = (
    _part(ALL, ALL, (0, 0.34), BLACK),
    _part((0.4, 0.6), (0.35, 0.55), (0.34, 0.42), BLACK),
    _part((0.02, 0.98), (0.35, 0.5), (0.42, 1)),
)
HEARTH = (
    _part((0, 0.25), ALL, (0, 0.6)),
    _part((0.75, 1), ALL, (0, 0.6)),
    _part(ALL, ALL, (0.6, 1)),
    _part((0.25, 0.75), (0, 0.4), (0, 0.6), BLACK),
)
PIANO = (
    _part(ALL, (0, 0.6), ALL),
    _part(ALL, (0.6, 1), (0.5, 0.6)),
    _part((0.05, 0.95), (0.62, 0.96), (0.6, 0.62), WHITE),
    _part((0, 0.06), (0.6, 1), (0, 0.5)),
    _part((0.94, 1), (0.6, 1), (0, 0.5)),
)
FRAMED = (
    _part(ALL, (0, 0.6), ALL, BLACK),
    _part((0.05, 0.95), (0.6, 1), (0.05, 0.95)),
)
GLAZED = (
    _part(ALL, (0, 0.6), ALL, WHITE),
    _part((0.04, 0.47), (0.6, 1), (0.05, 0.95)),
    _part((0.53, 0.96), (0.6, 1), (0.05, 0.95)),
)
PLANT = (
    _part((0.28, 0.72), (0.28, 0.72), (0, 0.28), WHITE),
    _part((0.1, 0.9), (0.1, 0.9), (0.36, 0.75)),
    _part((0.2, 0.8), (0.2, 0.8), (0.75, 1)),
    _part((0.42, 0.58), (0.42, 0.58), (0.28, 0.36), BLACK),
)
LAMP = (
    _part((0.2, 0.8), (0.2, 0.8), (0, 0.02), STEEL),
    _part((0.46, 0.54), (0.46, 0.54), (0.02, 0.7), STEEL),
    _part(ALL, ALL, (0.7, 1)),
)
DESK = (
    _part(ALL, ALL, (0.93, 1)),
    _part((0.02, 0.32), (0.05, 0.9), (0, 0.93)),
    _part((0.93, 0.98), (0.05, 0.9), (0, 0.93)),
)
SWIVEL = (
    _part(ALL, (0.15, 1), (0.42, 0.52)),
    _part(ALL, (0, 0.15), (0.52, 1)),
    _part((0.42, 0.58), (0.45, 0.65), (0, 0.42), BLACK),
)
MONITOR = (_part((0.35, 0.65), (0.2, 0.8), (0, 0.12), BLACK), _part(ALL, (0.4, 0.6), (0.12, 1)))
RACK = (
    _part((0.42, 0.58), (0.42, 0.58), (0, 0.7)),
    _part((0, 1), (0.3, 0.7), (0.7, 1)),
    _part((0.1, 0.9), (0.1, 0.9), (0, 0.04)),
)
BENCH = (
    _part(ALL, (0.1, 1), (0.45, 0.55)),
    _part(ALL, (0, 0.1), (0.45, 1)),
    _part((0.05, 0.15), (0.1, 0.95), (0, 0.45)),
    _part((0.85, 0.95), (0.1, 0.95), (0, 0.45)),
)
CLOCK = (_part(ALL, (0, 0.94), ALL), _part((0.2, 0.8), (0.94, 1), (0.74, 0.92), WHITE))
STATUE = (
    _part(ALL, ALL, (0, 0.3), WHITE),
    _part((0.15, 0.85), (0.15, 0.85), (0.3, 0.8)),
    _part((0.32, 0.68), (0.32, 0.68), (0.8, 1)),
)
VASE = (_part((0.1, 0.9), (0.1, 0.9), (0, 0.75)), _part((0.3, 0.7), (0.3, 0.7), (0.75, 1)))
TANK = (_part(ALL, ALL, (0, 0.5), BLACK), _part(ALL, ALL, (0.5, 0.96)), _part(ALL, ALL, (0.96, 1), BLACK))
GLOBE = (_part((0.3, 0.7), (0.3, 0.7), (0, 0.5), BLACK), _part(ALL, ALL, (0.5, 1)))
RUNNING = (
    _part(ALL, ALL, (0, 0.14)),
    _part((0, 0.1), (0.05, 0.15), (0.14, 0.85)),
    _part((0.9, 1), (0.05, 0.15), (0.14, 0.85)),
    _part(ALL, (0.02, 0.18), (0.85, 1)),
)

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "sofa": Kind("wall", (1.8, 2.3), (0.85, 0.95), (0.8, 0.9), SEAT, early=True),
        "armchair": Kind("corner", (0.8, 0.9), (0.8, 0.9), (0.85, 0.95), SEAT, early=True),
        "coffee table": Kind(
            "before", (0.9, 1.2), (0.5, 0.6), (0.42, 0.45), TABLE, partner="sofa", early=True
        ),
        "television": Kind("wall", (1.2, 1.6), (0.4, 0.45), (1.25, 1.4), SCREEN, early=True),
        "fireplace": Kind("wall", (1.4, 1.7), (0.4, 0.5), (1.3, 1.6), HEARTH, early=True),
        "piano": Kind("wall", (1.4, 1.5), (0.6, 0.65), (1.15, 1.25), PIANO, early=True),
        "bookshelf": Kind("wall", (0.9, 1.4), (0.3, 0.36), (1.8, 2.2), BLOCK, early=True),
        "rug": Kind("floor", (1.4, 2.4), (1.0, 1.6), (0.012, 0.015), BLOCK),
        "painting": Kind("hung", (0.9, 1.5), (0.04, 0.05), (0.7, 1.0), FRAMED, base=1.05),
        "plant": Kind("corner", (0.55, 0.75), (0.55, 0.75), (1.1, 1.7), PLANT, early=True),
        "lamp": Kind("corner", (0.42, 0.5), (0.42, 0.5), (1.5, 1.75), LAMP),
        "curtain": Kind("beside", (0.4, 0.6), (0.1, 0.12), (2.2, 2.3), BLOCK, base=0.1, partner="window"),
        "dining table": Kind("middle", (1.5, 1.9), (0.85, 1.0), (0.74, 0.78), TABLE, early=True),
        "chair": Kind(
            "around", (0.44, 0.48), (0.46, 0.5), (0.9, 0.98), CHAIR, partner="dining table", early=True
        ),
        "sideboard": Kind("wall", (1.2, 1.7), (0.42, 0.48), (0.85, 1.0), CABINET, early=True),
        "stove": Kind("beside", (0.6, 0.7), (0.62, 0.64), (0.9, 0.92), COOKER, partner="counter", early=True),
        "fridge": Kind("corner", (0.7, 0.85), (0.66, 0.72), (1.75, 1.95), COOLER, early=True),
        "counter": Kind("wall", (1.3, 1.9), (0.62, 0.64), (0.9, 0.92), WORKTOP, early=True),
        "sink": Kind("wall", (0.6, 0.75), (0.46, 0.54), (0.86, 0.92), BASIN, early=True),
        "dishwasher": Kind(
            "beside", (0.58, 0.62), (0.6, 0.62), (0.86, 0.9), DRUM, partner="counter", early=True
        ),
        "kitchen island": Kind("middle", (1.2, 1.5), (0.7, 0.8), (0.9, 0.92), WORKTOP, early=True),
        "stool": Kind(
            "around", (0.36, 0.4), (0.36, 0.4), (0.65, 0.7), STOOL, partner="kitchen island", early=True
        ),
        "bed": Kind("wall", (1.4, 1.8), (1.95, 2.05), (0.95, 1.15), BED, early=True),
        "nightstand": Kind("beside", (0.42, 0.5), (0.4, 0.45), (0.5, 0.6), BLOCK, partner="bed", early=True),
        "wardrobe": Kind("wall", (1.0, 1.6), (0.56, 0.6), (1.95, 2.2), CABINET, early=True),
        "dresser": Kind("wall", (0.9, 1.2), (0.45, 0.5), (0.8, 0.95), CABINET, early=True),
        "mirror": Kind("hung", (0.6, 0.9), (0.03, 0.04), (0.9, 1.1), FRAMED, base=1.0),
        "bathtub": Kind("corner", (1.5, 1.7), (0.7, 0.75), (0.55, 0.6), TUB, early=True),
        "toilet": Kind("wall", (0.38, 0.42), (0.62, 0.68), (0.78, 0.85), TOILET, early=True),
        "shower": Kind("corner", (0.85, 0.95), (0.85, 0.95), (2.0, 2.1), SHOWER, early=True),
        "towel": Kind("hung", (0.45, 0.6), (0.05, 0.06), (0.7, 0.9), BLOCK, base=0.85),
        "washing machine": Kind("wall", (0.6, 0.64), (0.6, 0.64), (0.85, 0.9), DRUM, early=True),
        "dryer": Kind(
            "beside", (0.6, 0.64), (0.6, 0.64), (0.85, 0.9), DRUM, partner="washing machine", early=True
        ),
        "basket": Kind("corner", (0.42, 0.5), (0.42, 0.5), (0.5, 0.65), BLOCK),
        "desk": Kind("wall", (1.2, 1.6), (0.6, 0.7), (0.73, 0.77), DESK, early=True),
        "office chair": Kind(
            "before", (0.5, 0.56), (0.5, 0.56), (0.95, 1.05), SWIVEL, partner="desk", early=True
        ),
        "computer": Kind("on", (0.6, 0.75), (0.2, 0.25), (0.45, 0.52), MONITOR, partner="desk", early=True),
        "filing cabinet": Kind("wall", (0.45, 0.5), (0.5, 0.55), (1.0, 1.3), BLOCK, early=True),
        "coat rack": Kind("corner", (0.45, 0.5), (0.45, 0.5), (1.7, 1.85), RACK, early=True),
        "bench": Kind("wall", (1.0, 1.4), (0.4, 0.45), (0.8, 0.9), BENCH, early=True),
        "clock": Kind("wall", (0.45, 0.55), (0.28, 0.32), (1.9, 2.1), CLOCK, early=True),
        "console table": Kind("wall", (0.9, 1.2), (0.3, 0.35), (0.78, 0.85), DESK, early=True),
        "window": Kind("outside", (1.1, 1.6), (0.04, 0.05), (1.1, 1.3), GLAZED, base=0.9),
        "front door": Kind("outside", (0.95, 1.05), (0.06, 0.07), (2.05, 2.1), BLOCK, early=True),
        "statue": Kind("corner", (0.4, 0.45), (0.4, 0.45), (1.4, 1.7), STATUE, early=True),
        "vase": Kind("corner", (0.38, 0.45), (0.38, 0.45), (0.75, 0.95), VASE, early=True),
        "trash can": Kind("corner", (0.34, 0.4), (0.34, 0.4), (0.55, 0.7), BLOCK),
        "aquarium": Kind("wall", (1.0, 1.2), (0.4, 0.45), (1.2, 1.3), TANK, early=True),
        "globe": Kind("corner", (0.42, 0.48), (0.42, 0.48), (0.9, 1.0), GLOBE, early=True),
        "treadmill": Kind("wall", (0.7, 0.8), (1.5, 1.6), (1.2, 1.3), RUNNING, early=True),
    }
)

Wish = tuple[str, float]
"""A kind of furniture, and the chance that a room has it."""
FURNISHINGS: Mapping[str, tuple[Wish, ...]] = MappingProxyType(
    {
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
        "laundry": (
            *(("washing machine", 1.0), ("dryer", 0.8), ("sink", 0.4), ("basket", 0.9), ("towel", 0.4)),
        ),
        "office": (
            *(("desk", 1.0), ("computer", 0.9), ("office chair", 1.0), ("treadmill", 0.4), ("window", 1.0)),
            *(("bookshelf", 0.8), ("filing cabinet", 0.7), ("globe", 0.5), ("painting", 0.5), ("lamp", 0.4)),
            *(("plant", 0.5), ("armchair", 0.2), ("curtain", 0.3)),
        ),
        "stairs": (),
    }
)
"""What each kind of room wishes for, the most important first."""
