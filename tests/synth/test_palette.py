"""Colours: every shade of furniture is told apart from all others, however bright the light."""

from __future__ import annotations

import numpy as np

from esceme.synth.furniture import KINDS
from esceme.synth.palette import APART, BUILDING, NEUTRAL, SHADES, chromaticity
from esceme.synth.plan import Surface

THINGS = [(name, surface) for name, surfaces in SHADES.items() for surface in surfaces]


def saturation(surface: Surface) -> float:
    return 1 - min(surface.rgb) / max(surface.rgb)


def test_every_two_shades_differ_in_chromaticity() -> None:
    shades = chromaticity([surface for _, surface in THINGS])
    apart = np.linalg.norm(shades[:, None] - shades[None], axis=2) + np.eye(len(shades))
    a, b = np.unravel_index(apart.argmin(), apart.shape)
    assert apart[a, b] >= APART, (THINGS[a], THINGS[b], apart[a, b])


def test_furniture_is_told_from_walls_and_floors() -> None:
    shades = chromaticity([surface for _, surface in THINGS])
    building = chromaticity(BUILDING)
    apart = np.linalg.norm(shades[:, None] - building[None], axis=2)
    a, b = np.unravel_index(apart.argmin(), apart.shape)
    assert apart[a, b] >= APART, (THINGS[a], BUILDING[b], apart[a, b])


def test_the_building_is_pale_or_wooden() -> None:
    for surface in BUILDING:
        assert saturation(surface) < (0.45 if "wooden" in surface.colour else 0.15), surface
    assert all(saturation(surface) < 0.05 for surface in NEUTRAL)


def test_a_thing_and_its_colour_name_one_shade() -> None:
    named = [(name, surface.colour) for name, surface in THINGS]
    assert len(set(named)) == len(named)


def test_every_kind_of_furniture_has_shades() -> None:
    assert set(SHADES) == set(KINDS)
    assert len(SHADES) >= 45


def test_shades_stay_apart_when_darkened_to_a_third_and_rounded() -> None:
    dark = [Surface("", tuple(round(value / 3) for value in surface.rgb)) for _, surface in THINGS]  # type: ignore[arg-type]
    bright = chromaticity([surface for _, surface in THINGS])
    nearest = np.linalg.norm(chromaticity(dark)[:, None] - bright[None], axis=2).argmin(axis=1)
    assert (nearest == np.arange(len(THINGS))).all()
