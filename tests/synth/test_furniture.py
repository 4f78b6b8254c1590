"""Furniture catalogue: models within bounds, room furniture that exists, partners placed first."""

from __future__ import annotations

import pytest

from esceme.synth.furniture import CATALOGUE


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
