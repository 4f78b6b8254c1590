"""Surfaces of generated buildings. No furniture has the chromaticity of one of these surfaces."""

from __future__ import annotations

from esceme.synth.house_model import Surface

NEUTRAL_SURFACES = {
    "white": Surface("white", (232, 232, 230)),
    "grey": Surface("grey", (150, 152, 155)),
    "black": Surface("black", (42, 42, 44)),
}
"""Colour name -> surface of small furniture parts: pillows, legs, handles, frames."""

CEILING = Surface("white", (240, 240, 238))
STAIRS = Surface("wooden", (184, 150, 112), "grain")
DOOR_FRAMES = (
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
