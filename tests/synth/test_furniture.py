"""Furniture catalogue: models within bounds, partners placed first, colours that differ under any light."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from esceme.synth import palette
from esceme.synth.furniture import CATALOGUE
from esceme.synth.house_model import Surface

BUILDING_SURFACES = [
    *(palette.CEILING, palette.STAIRS, *palette.DOOR_FRAMES, *palette.WOODEN_FLOORS, *palette.TILED_FLOORS),
    *(*palette.CARPETS, *palette.PAINTS, *palette.WALL_TILES, *palette.NEUTRAL_SURFACES.values()),
]

NAMES = [(name, surface.colour) for name, surfaces in CATALOGUE.surfaces.items() for surface in surfaces]
SURFACES = [surface for surfaces in CATALOGUE.surfaces.values() for surface in surfaces]
MIN_DISTANCE = 0.06
"""Minimum distance in chromaticity by which an encoder can distinguish two surfaces."""


@pytest.mark.parametrize("name", CATALOGUE.models)
def test_parts_are_within_bounds_and_mostly_show_the_own_surface(name: str) -> None:
    front_area = {True: 0.0, False: 0.0}
    for part in CATALOGUE.models[name]:
        assert all(0 <= low < high <= 1 for low, high in (part.x, part.y, part.z))
        front_area[part.colour is None] += (part.x[1] - part.x[0]) * (part.z[1] - part.z[0])
    assert front_area[True] > 0 and front_area[True] >= 0.5 * front_area[False]


def test_models_and_room_furniture_match_the_kinds() -> None:
    assert {kind.model for kind in CATALOGUE.kinds.values()} == set(CATALOGUE.models)
    assert {name for items in CATALOGUE.rooms.values() for name, _ in items} == set(CATALOGUE.kinds)


def test_partners_come_first() -> None:
    for room, items in CATALOGUE.rooms.items():
        names = [name for name, _ in items]
        for name in names:
            partner = CATALOGUE.kinds[name].partner
            assert partner not in names or names.index(partner) < names.index(name), (room, name)


# -- colours ---------------------------------------------------------------------------------------------


def chromaticity(surfaces: Iterable[Surface]) -> np.ndarray:
    """(S, 3): the shares of red, green and blue, which do not depend on brightness."""
    colours = np.array([surface.rgb for surface in surfaces], dtype=float)
    return colours / colours.sum(axis=1, keepdims=True)


def saturation(surface: Surface) -> float:
    return 1 - min(surface.rgb) / max(surface.rgb)


def test_furniture_colours_differ_in_chromaticity_from_each_other_and_the_building() -> None:
    colours, building = chromaticity(SURFACES), chromaticity(BUILDING_SURFACES)
    between = np.linalg.norm(colours[:, None] - colours[None], axis=2) + np.eye(len(colours))
    assert between.min() >= MIN_DISTANCE, NAMES[between.min(axis=1).argmin()]
    to_building = np.linalg.norm(colours[:, None] - building[None], axis=2)
    assert to_building.min() >= MIN_DISTANCE, NAMES[to_building.min(axis=1).argmin()]


def test_building_is_pale_or_wooden() -> None:
    for surface in BUILDING_SURFACES:
        assert saturation(surface) < (0.45 if "wooden" in surface.colour else 0.15), surface
    assert all(saturation(surface) < 0.05 for surface in palette.NEUTRAL_SURFACES.values())


def test_every_furniture_kind_has_shades_and_name_with_colour_is_unique() -> None:
    assert set(CATALOGUE.surfaces) == set(CATALOGUE.kinds) and len(CATALOGUE.kinds) >= 45
    assert len(set(NAMES)) == len(NAMES)


def test_shades_stay_distinct_when_darkened_and_rounded() -> None:
    dark = [Surface("", tuple(round(value / 3) for value in surface.rgb)) for surface in SURFACES]  # type: ignore[arg-type]
    distances = np.linalg.norm(chromaticity(dark)[:, None] - chromaticity(SURFACES)[None], axis=2)
    assert (distances.argmin(axis=1) == np.arange(len(SURFACES))).all()
