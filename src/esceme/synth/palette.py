"""Colours and surfaces of generated houses: each furniture kind has colours that no other kind has.

An encoder sees only pixels and must be able to distinguish furniture kinds under any light. Light changes
brightness, so colours differ in chromaticity (the shares of red, green and blue): by at least
`MIN_DISTANCE` between any two furniture colours, and between furniture and the pale or wooden building.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from esceme.synth.house_model import Surface

MIN_DISTANCE = 0.06
"""Minimum distance in chromaticity between two furniture colours, or between furniture and building."""

# The colours fill the plane of hue and saturation evenly. A red sofa and a red rug are different reds.
SHADES: Mapping[str, tuple[Surface, ...]] = {
    "sofa": (Surface("red", (206, 11, 29), "fabric"), Surface("blue", (23, 52, 207), "fabric")),
    "armchair": (Surface("green", (62, 213, 83), "fabric"), Surface("turquoise", (50, 211, 151), "fabric")),
    "coffee table": (Surface("red", (215, 79, 108), "grain"),),
    "television": (Surface("blue", (10, 106, 191)),),
    "fireplace": (Surface("red", (211, 47, 73), "bricks"),),
    "piano": (Surface("purple", (161, 62, 213)),),
    "bookshelf": (Surface("brown", (153, 92, 87), "stripes"), Surface("green", (99, 206, 11), "stripes")),
    "rug": (
        Surface("red", (206, 11, 11), "checks"),
        Surface("blue", (50, 40, 210), "checks"),
        Surface("purple", (212, 53, 202), "checks"),
    ),
    "painting": (
        Surface("blue", (49, 11, 206), "checks"),
        Surface("orange", (215, 117, 74), "checks"),
        Surface("pink", (212, 58, 148), "checks"),
    ),
    "plant": (Surface("green", (65, 206, 11), "grain"),),
    "lamp": (Surface("yellow", (211, 190, 51)), Surface("green", (11, 206, 84))),
    "curtain": (Surface("pink", (207, 20, 150), "stripes"), Surface("green", (97, 218, 108), "stripes")),
    "dining table": (Surface("brown", (153, 118, 60), "grain"),),
    "chair": (Surface("orange", (210, 133, 41), "grain"), Surface("green", (125, 210, 39), "grain")),
    "sideboard": (Surface("purple", (82, 41, 210), "planks"), Surface("green", (82, 210, 44), "planks")),
    "stove": (Surface("red", (209, 64, 35)),),
    "fridge": (Surface("blue", (50, 127, 210)),),
    "counter": (Surface("green", (119, 221, 158), "tiles"), Surface("purple", (110, 84, 216), "tiles")),
    "sink": (Surface("turquoise", (22, 164, 207)),),
    "dishwasher": (Surface("purple", (206, 104, 219)),),
    "kitchen island": (Surface("purple", (118, 42, 210), "tiles"),),
    "stool": (Surface("red", (206, 16, 77)), Surface("green", (36, 206, 12))),
    "bed": (
        Surface("purple", (78, 11, 206), "fabric"),
        Surface("pink", (226, 152, 206), "fabric"),
        Surface("green", (154, 219, 106), "fabric"),
    ),
    "nightstand": (Surface("red", (209, 36, 46), "grain"), Surface("green", (37, 209, 105), "grain")),
    "wardrobe": (Surface("green", (173, 214, 66), "planks"), Surface("blue", (24, 25, 208), "planks")),
    "dresser": (Surface("orange", (207, 98, 21), "grain"), Surface("blue", (54, 84, 212), "grain")),
    "mirror": (Surface("turquoise", (106, 219, 211)),),
    "bathtub": (Surface("blue", (142, 202, 226)),),
    "toilet": (Surface("pink", (210, 40, 106)),),
    "shower": (Surface("green", (180, 226, 154), "tiles"),),
    "towel": (Surface("orange", (206, 143, 11), "stripes"), Surface("green", (47, 209, 37), "stripes")),
    "washing machine": (Surface("purple", (159, 140, 223)),),
    "dryer": (Surface("pink", (219, 105, 165)),),
    "basket": (Surface("yellow", (219, 221, 123), "checks"),),
    "desk": (Surface("red", (207, 36, 18), "grain"), Surface("green", (177, 208, 26), "grain")),
    "office chair": (Surface("green", (139, 206, 11), "fabric"), Surface("red", (206, 11, 52), "fabric")),
    "computer": (Surface("turquoise", (10, 191, 170)),),
    "filing cabinet": (Surface("green", (11, 206, 45), "stripes"),),
    "coat rack": (Surface("blue", (12, 11, 206)),),
    "bench": (Surface("green", (12, 206, 11), "planks"), Surface("red", (213, 78, 63), "planks")),
    "clock": (Surface("pink", (206, 10, 111)),),
    "console table": (Surface("purple", (167, 23, 207), "grain"),),
    "window": (Surface("blue", (113, 160, 249)),),
    "front door": (Surface("red", (206, 66, 10), "planks"), Surface("green", (34, 209, 64), "planks")),
    "statue": (Surface("green", (112, 214, 72), "grain"),),
    "vase": (Surface("blue", (11, 79, 206)), Surface("purple", (123, 11, 206))),
    "trash can": (Surface("green", (10, 206, 127)),),
    "aquarium": (Surface("turquoise", (58, 203, 212)),),
    "globe": (Surface("yellow", (206, 191, 12)),),
    "treadmill": (Surface("purple", (206, 10, 195)),),
}
"""Furniture kind -> its possible surfaces."""

WHITE = Surface("white", (232, 232, 230))
STEEL = Surface("grey", (150, 152, 155))
BLACK = Surface("black", (42, 42, 44))
NEUTRAL = (WHITE, STEEL, BLACK)
"""Surfaces of small furniture parts: pillows, legs, handles, frames."""

CEILING = Surface("white", (240, 240, 238))
STEPS = Surface("wooden", (184, 150, 112), "grain")
FRAMES = (
    Surface("white", (226, 226, 224)),
    Surface("grey", (176, 176, 178)),
    Surface("wooden", (176, 144, 110), "grain"),
)
"""Surfaces of door frames."""

WOODEN_FLOORS = (
    Surface("light wooden", (205, 172, 132), "planks"),
    Surface("wooden", (184, 148, 108), "planks"),
    Surface("dark wooden", (148, 116, 86), "planks"),
)
TILED_FLOORS = (
    Surface("white tiled", (214, 216, 218), "tiles"),
    Surface("grey tiled", (158, 162, 166), "tiles"),
    Surface("checkered", (186, 188, 186), "checks"),
)
CARPETS = (
    Surface("beige", (206, 196, 180), "fabric"),
    Surface("grey", (170, 170, 172), "fabric"),
    Surface("cream", (222, 216, 204), "fabric"),
)
PAINTS = (
    Surface("white", (236, 236, 232)),
    Surface("cream", (236, 230, 216)),
    Surface("pale grey", (212, 213, 216)),
    Surface("pale blue", (212, 218, 225)),
    Surface("pale green", (216, 222, 212)),
    Surface("pale pink", (232, 216, 214)),
)
WALL_TILES = (
    Surface("white tiled", (228, 230, 232), "tiles"),
    Surface("pale blue tiled", (210, 216, 222), "tiles"),
    Surface("pale green tiled", (208, 220, 210), "tiles"),
)
BUILDING = (CEILING, STEPS, *FRAMES, *WOODEN_FLOORS, *TILED_FLOORS, *CARPETS, *PAINTS, *WALL_TILES, *NEUTRAL)
"""All surfaces that are not furniture colours."""


def chromaticity(surfaces: Sequence[Surface]) -> NDArray[np.float64]:
    """Return the shares of red, green and blue (S, 3), which do not depend on brightness.

    >>> chromaticity([Surface("red", (200, 50, 0)), Surface("dark red", (100, 25, 0))])
    array([[0.8, 0.2, 0. ],
           [0.8, 0.2, 0. ]])
    """
    colours = np.array([surface.rgb for surface in surfaces], dtype=np.float64)
    return colours / colours.sum(axis=1, keepdims=True)
