"""The catalogue of furniture: parts within bounds, kinds that rooms ask for, partners that exist."""

from __future__ import annotations

import pytest

from esceme.synth.furniture import FURNISHINGS, KINDS


@pytest.mark.parametrize("name", KINDS)
def test_parts_stay_within_the_thing_and_show_its_own_surface(name: str) -> None:
    kind = KINDS[name]
    for part in kind.parts:
        for low, high in zip(part.low, part.high, strict=True):
            assert 0 <= low < high <= 1
    volume = {True: 0.0, False: 0.0}
    for part in kind.parts:
        size = [high - low for low, high in zip(part.low, part.high, strict=True)]
        volume[part.surface is None] += size[0] * size[2]  # as seen from the front
    assert volume[True] >= 0.5 * volume[False]
    assert any(part.surface is None for part in kind.parts)


def test_rooms_ask_for_known_things_and_every_thing_is_asked_for() -> None:
    asked = {name for wishes in FURNISHINGS.values() for name, _ in wishes}
    assert asked == set(KINDS)


def test_some_things_are_in_one_kind_of_room_only_and_some_in_many() -> None:
    rooms = {name: {room for room, wishes in FURNISHINGS.items() if name in dict(wishes)} for name in KINDS}
    assert rooms["bathtub"] == {"bathroom"} and rooms["stove"] == {"kitchen"} and rooms["bed"] == {"bedroom"}
    assert all(len(rooms[name]) >= 4 for name in ("plant", "painting", "lamp", "window"))


def test_partners_come_first() -> None:
    for room, wishes in FURNISHINGS.items():
        names = [name for name, _ in wishes]
        for name in names:
            partner = KINDS[name].partner
            if partner and partner in names:
                assert names.index(partner) < names.index(name), (room, name)
