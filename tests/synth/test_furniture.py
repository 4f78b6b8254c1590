"""Furniture catalogue: parts within bounds, room furniture that exists, partners placed first."""

from __future__ import annotations

import pytest

from esceme.synth.furniture import FURNITURE_KINDS, ROOM_FURNITURE


@pytest.mark.parametrize("name", FURNITURE_KINDS)
def test_parts_are_within_bounds_and_mostly_show_the_own_surface(name: str) -> None:
    front_area = {True: 0.0, False: 0.0}
    for part in FURNITURE_KINDS[name].parts:
        assert all(0 <= low < high <= 1 for low, high in (part.x, part.y, part.z))
        front_area[part.surface is None] += (part.x[1] - part.x[0]) * (part.z[1] - part.z[0])
    assert front_area[True] > 0 and front_area[True] >= 0.5 * front_area[False]


def test_room_furniture_is_the_catalogue() -> None:
    assert {name for items in ROOM_FURNITURE.values() for name, _ in items} == set(FURNITURE_KINDS)
    rooms = {
        name: {room for room, items in ROOM_FURNITURE.items() if name in dict(items)}
        for name in FURNITURE_KINDS
    }
    assert rooms["bathtub"] == {"bathroom"} and rooms["stove"] == {"kitchen"} and rooms["bed"] == {"bedroom"}
    assert all(len(rooms[name]) >= 4 for name in ("plant", "painting", "lamp", "window"))


def test_partners_come_first() -> None:
    for room, items in ROOM_FURNITURE.items():
        names = [name for name, _ in items]
        for name in names:
            partner = FURNITURE_KINDS[name].partner
            assert partner not in names or names.index(partner) < names.index(name), (room, name)
