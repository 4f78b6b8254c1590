"""Random floor plans: a central hallway, a strip of rooms along each of its sides, doors and stairs.

The hallway is called the spine. Every strip is divided into sections of one or two rooms. Coordinate u runs
along the spine, v across it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import NamedTuple

import numpy as np

from esceme.synth.house_model import WALL_WIDTH
from esceme.synth.layout import (
    Layout,
    PassageKind,
    add_passage,
    add_stair_entrance,
    add_stairs,
    is_connected_layout,
    orient_randomly,
    shared_range,
)

SECTION_WIDTHS = {
    "entry": (2.2, 2.8),
    "living room": (4.6, 6.0),
    "dining room": (3.5, 4.3),
    "kitchen": (3.4, 4.4),
    "bedroom": (3.3, 4.2),
    "office": (2.8, 3.4),
    "bathroom": (2.0, 2.3),
    "split": (2.0, 2.5),
    "service": (1.9, 2.2),
    "stairs": (2.3, 2.5),
}
"""Section kind -> range of its width along the hallway, in metres.

A `split` or `service` section holds two small rooms: one at the hallway and one behind it.
"""
SECTION_SEQUENCES = (
    ("office",),
    ("bedroom",),
    ("bathroom",),
    ("bedroom", "split"),
    ("split", "bedroom"),
    ("office", "bedroom"),
    ("bedroom", "split", "bedroom"),
    ("office", "split", "bedroom"),
    ("bedroom", "split", "bedroom", "office"),
    ("bedroom", "split", "bedroom", "bedroom"),
    ("bedroom", "split", "bedroom", "split", "bedroom"),
    ("bedroom", "split", "bedroom", "office", "split", "bedroom"),
)
"""Sequences of section kinds that may fill the rest of a strip, the row of rooms along the hallway."""
PUBLIC_ROOMS = ("entry", "living room", "dining room", "kitchen")


class Section(NamedTuple):
    """Section (one or two rooms) of a strip: its kind and its room indices, the room at the hallway first."""

    kind: str
    rooms: list[int]


@dataclass(frozen=True, slots=True)
class Spine:
    """Dimensions of the hallway (the spine) and of the strips of rooms along it, in metres.

    All storeys have the same dimensions. `length` and `width` are those of the hallway. `above` and `below`
    are the depths of the strips with larger and smaller v than the hallway.
    """

    rng: np.random.Generator
    length: float
    width: float
    above: float
    below: float

    def v_range(self, side: int, near: float = 0.0, far: float = 1.0) -> tuple[float, float]:
        """Return the range of v (across the hallway) of the rooms on one side: 1 above, -1 below.

        `near` and `far` restrict the range to fractions of the strip's depth, measured from the hallway.
        """
        depth = self.above if side > 0 else self.below
        low, high = (self.width + WALL_WIDTH, 1) if side > 0 else (-WALL_WIDTH, -1)
        ends = low + high * near * depth, low + high * far * depth
        return min(ends), max(ends)


def generate_layout(rng: np.random.Generator, *, storeys: int) -> Layout:
    """Sample a connected floor plan with all living areas, at least two bedrooms and a bathroom."""
    while True:
        layout = _sample_layout(rng, storeys=storeys)
        kinds = layout.kinds()
        if kinds.count("bedroom") >= 2 and "bathroom" in kinds and is_connected_layout(layout):
            return orient_randomly(layout, rng)


def _sample_layout(rng: np.random.Generator, *, storeys: int) -> Layout:
    layout = Layout()
    scheme = str(rng.choice(["across", "across", "row", "great"]))
    fronts = _sample_front_sections(rng, scheme, storeys=storeys)
    length = rng.uniform(12.0, 15.5) if storeys == 1 else rng.uniform(10.0, 12.2)
    min_length = max(fsum(width + WALL_WIDTH for _, width in front) for front in fronts.values())
    depths = (4.05, 4.6) if storeys == 2 else (3.6, 4.5)
    spine = Spine(
        rng,
        length=max(length, min_length),
        width=rng.uniform(1.45, 1.9),
        above=rng.uniform(*depths),
        below=rng.uniform(*depths),
    )
    stairs = _add_ground_floor(layout, spine, scheme, fronts)
    if storeys == 1 and rng.random() < 0.4:
        _add_wing(layout, spine, layout.kinds().index("hallway"))
    if stairs is not None:
        _add_upper_floor(layout, spine, *stairs)
    return layout


def _sample_front_sections(
    rng: np.random.Generator, scheme: str, *, storeys: int
) -> dict[int, list[tuple[str, float]]]:
    """Sample the first sections of each strip: the public rooms and, in a house with two storeys, the stairs.

    Returns a dict from the side of the strip (1 or -1) to (section kind, width in metres) pairs.
    """
    pair = ["dining room", "kitchen"] if rng.random() < 0.6 else ["kitchen", "dining room"]
    kinds = {
        "across": {1: ["living room"], -1: pair},
        "row": {1: ["living room", "dining room", "kitchen"], -1: []},
        "great": {1: ["dining room", "kitchen"], -1: ["entry"]},
    }[scheme]
    for front in kinds.values():
        if "kitchen" in front and rng.random() < 0.6:
            front.insert(front.index("kitchen") + (front[0] != "kitchen"), "service")
    if storeys == 2:
        min(kinds.values(), key=len).append("stairs")
    return {
        side: [(kind, rng.uniform(*SECTION_WIDTHS[kind])) for kind in front] for side, front in kinds.items()
    }


def _add_ground_floor(
    layout: Layout, spine: Spine, scheme: str, fronts: Mapping[int, Sequence[tuple[str, float]]]
) -> tuple[int, float, float] | None:
    """Add all rooms of the ground floor. Return the stairs' side, start and end along u; None without stairs.

    `fronts` maps each side to the first sections of its strip. Random sections fill the rest of the strip.
    """
    strips: dict[int, list[Section]] = {}
    stairs = None
    for side, front in fronts.items():
        kinds = [kind for kind, _ in front]
        ranges = _consecutive_ranges([width for _, width in front], 0.0)
        strips[side] = _add_sections(layout, spine, 0, side, kinds, ranges)
        if "stairs" in kinds:
            stairs = (side, *ranges[-1])
        start = ranges[-1][1] + WALL_WIDTH if ranges else 0.0
        strips[side] += _fill_strip(layout, spine, 0, side, start, spine.length)
    halls = _add_ground_halls(layout, spine, scheme)
    _connect_strips(layout, spine, strips, halls)
    if stairs is not None:
        add_stair_entrance(layout, spine.rng, halls)
    if scheme == "great":
        _add_great_room(layout, spine, strips[1][0].rooms[0], halls[0])
    return stairs


def _add_ground_halls(layout: Layout, spine: Spine, scheme: str) -> list[int]:
    """Add the spine (hallway) of the ground floor and return the indices of its rooms.

    The spine consists of the entry and a hallway; in the scheme `great`, of a hallway only.
    """
    if scheme == "great":
        return [layout.add_room("hallway", 0, (0.0, 0.0, spine.length, spine.width))]
    end = spine.rng.uniform(2.3, 3.4)
    entry = layout.add_room("entry", 0, (0.0, 0.0, end, spine.width))
    hallway = layout.add_room("hallway", 0, (end + WALL_WIDTH, 0.0, spine.length, spine.width))
    add_passage(layout, spine.rng, entry, hallway, "open" if spine.rng.random() < 0.6 else "arch")
    return [entry, hallway]


def _add_upper_floor(layout: Layout, spine: Spine, side: int, start: float, end: float) -> None:
    """Add the rooms of the upper floor around a hallway, and the stairs.

    The stairwell occupies the range of u from `start` to `end` on one side.
    """
    strips = {
        side: [
            *_fill_strip(layout, spine, 1, side, 0.0, start - WALL_WIDTH),
            *_fill_strip(layout, spine, 1, side, end + WALL_WIDTH, spine.length),
        ],
        -side: _fill_strip(layout, spine, 1, -side, 0.0, spine.length),
    }
    hall = layout.add_room("hallway", 1, (0.0, 0.0, spine.length, spine.width))
    _connect_strips(layout, spine, strips, [hall])
    add_stairs(layout, spine.rng, side, hall)


def _consecutive_ranges(widths: Sequence[float], start: float) -> list[tuple[float, float]]:
    """Return consecutive (start, end) ranges of the given widths, separated by the width of a wall."""
    ranges = []
    for width in widths:
        ranges.append((start, start + width))
        start += width + WALL_WIDTH
    return ranges


def _fill_strip(
    layout: Layout, spine: Spine, storey: int, side: int, start: float, end: float
) -> list[Section]:
    """Add sections (one or two rooms) between `start` and `end` along the hallway, and return them.

    Returns an empty list if no sequence of sections has a suitable length.
    """
    rng = spine.rng
    middles = {kind: sum(ends) / 2 for kind, ends in SECTION_WIDTHS.items()}
    lengths = [fsum(middles[kind] + WALL_WIDTH for kind in kinds) - WALL_WIDTH for kinds in SECTION_SEQUENCES]
    fitting = [index for index, length in enumerate(lengths) if 0.82 < (end - start) / length < 1.22]
    if not fitting:
        return []
    kinds = SECTION_SEQUENCES[int(rng.choice(fitting))]
    widths = {
        kind: rng.uniform(*SECTION_WIDTHS[kind]) for kind in sorted(set(kinds))
    }  # equal for look-alike rooms
    scale = (end - start - WALL_WIDTH * (len(kinds) - 1)) / fsum(widths[kind] for kind in kinds)
    ranges = _consecutive_ranges([widths[kind] * scale for kind in kinds], start)
    return _add_sections(layout, spine, storey, side, kinds, ranges)


def _add_sections(
    layout: Layout,
    spine: Spine,
    storey: int,
    side: int,
    kinds: Sequence[str],
    ranges: Sequence[tuple[float, float]],
) -> list[Section]:
    """Add the rooms of consecutive sections on one side of the hallway, and return the sections.

    `ranges` are (start, end) of the sections along the hallway, in metres.
    """
    rng, sections = spine.rng, []
    low, high = spine.v_range(side)
    for kind, (start, end) in zip(kinds, ranges, strict=True):
        if kind in ("split", "service"):
            share = rng.uniform(0.46, 0.54)
            gap = WALL_WIDTH / (spine.above if side > 0 else spine.below)
            near, far = spine.v_range(side, 0, share), spine.v_range(side, share + gap, 1)
            rects = [(start, near[0], end, near[1]), (start, far[0], end, far[1])]
            names = _sample_small_rooms(layout, kind, storey, rng)
            rooms = [layout.add_room(name, storey, rect) for name, rect in zip(names, rects, strict=True)]
        else:
            if kind == "office" and "office" in layout.kinds():
                kind = "bedroom"  # at most one office
            deeper = rng.uniform(0, 1.1) if kind == "living room" and start == 0 else 0.0
            rect = (start, low - deeper * (side < 0), end, high + deeper * (side > 0))
            rooms = [layout.add_room(kind, storey, rect, storeys=2 if kind == "stairs" else 1)]
        sections.append(Section(kind, rooms))
    return sections


def _sample_small_rooms(layout: Layout, kind: str, storey: int, rng: np.random.Generator) -> tuple[str, str]:
    """Sample the kinds of the two rooms of a `split` or `service` section, the room at the hallway first.

    A storey without a bathroom gets its bathroom at the hallway.
    """
    has_bath = any(room.kind == "bathroom" and room.storey == storey for room in layout.rooms)
    first = str(rng.choice(["bathroom", "laundry", "closet"])) if has_bath else "bathroom"
    if kind == "service":
        return ("closet" if first == "laundry" else first), "laundry"
    return first, (str(rng.choice(["bathroom", "closet"])) if first != "closet" else "bathroom")


def _add_wing(layout: Layout, spine: Spine, hall: int) -> None:
    """Add a wing: a second hallway around the corner with a bedroom, and a bedroom with its own bathroom.

    `hall` is the room index of the first hallway, which is extended.
    """
    rng = spine.rng
    kind, storey, (start, *_), *_ = layout.rooms[hall]
    corner = spine.length + WALL_WIDTH
    end = corner + rng.uniform(1.4, 1.7)
    low, high = spine.v_range(1)
    layout.rooms[hall] = layout.rooms[hall]._replace(rect=(start, 0.0, end, spine.width))
    side_hall = layout.add_room(kind, storey, (corner, low, end, high))
    add_passage(layout, rng, hall, side_hall, "open")
    column = end + WALL_WIDTH, end + WALL_WIDTH + rng.uniform(3.3, 4.1)
    bedroom = layout.add_room("bedroom", storey, (column[0], low, column[1], high))
    add_passage(layout, rng, side_hall, bedroom, "door")
    bottom = spine.v_range(-1)[0]
    bath_top = bottom + rng.uniform(1.9, 2.2)
    suite = layout.add_room("bedroom", storey, (column[0], bath_top + WALL_WIDTH, column[1], spine.width))
    add_passage(layout, rng, hall, suite, "door")
    ensuite = layout.add_room("bathroom", storey, (column[0], bottom, column[1], bath_top))
    add_passage(layout, rng, suite, ensuite, "door")


def _add_great_room(layout: Layout, spine: Spine, dining: int, hall: int) -> None:
    """Add a living room across the whole depth of the house, before the start of the spine.

    `dining` and `hall` are the room indices of its neighbours.
    """
    low, high = spine.v_range(-1)[0], spine.v_range(1)[1]
    width = spine.rng.uniform(4.3, 5.2)
    living = layout.add_room("living room", 0, (-WALL_WIDTH - width, low, -WALL_WIDTH, high))
    add_passage(layout, spine.rng, living, hall, "open" if spine.rng.random() < 0.5 else "arch")
    add_passage(layout, spine.rng, living, dining, _sample_public_passage(spine.rng))


def _sample_public_passage(rng: np.random.Generator) -> PassageKind:
    draw = rng.random()
    return "open" if draw < 0.4 else "arch" if draw < 0.8 else "door"


def _connect_strips(layout: Layout, spine: Spine, strips: dict[int, list[Section]], halls: list[int]) -> None:
    """Add passages from every section to the halls, between public rooms, and to rooms behind other rooms.

    `strips` maps the side (1 or -1) to its sections; `halls` are room indices.
    """
    rng = spine.rng
    for sections in strips.values():
        for section, after in zip(sections, sections[1:], strict=False):
            if (
                section.kind in PUBLIC_ROOMS
                and after.kind in PUBLIC_ROOMS
                and "entry" not in (section.kind, after.kind)
            ):
                add_passage(layout, rng, section.rooms[0], after.rooms[0], _sample_public_passage(rng))
        for index, section in enumerate(sections):
            if len(section.rooms) > 1:
                host_kinds = ("kitchen",) if section.kind == "service" else ("bedroom", "office")
                adjacent = [sections[other] for other in (index - 1, index + 1) if 0 <= other < len(sections)]
                hosts = [other.rooms[0] for other in adjacent if other.kind in host_kinds]
                hosts = hosts or [section.rooms[0]]
                add_passage(layout, rng, hosts[int(rng.integers(len(hosts)))], section.rooms[1], "door")
            if section.kind != "stairs":
                _connect_to_hall(layout, rng, section, halls)


def _connect_to_hall(layout: Layout, rng: np.random.Generator, section: Section, halls: list[int]) -> None:
    """Add a passage from a section to the hall with which it shares most wall.

    A public room sometimes gets a second passage, to another hall.
    """
    room = section.rooms[0]
    shared = {hall: shared_range(layout.rooms[room].rect, layout.rooms[hall].rect, 0) for hall in halls}
    hall = max(shared, key=lambda index: shared[index][1] - shared[index][0])
    is_public = section.kind in PUBLIC_ROOMS
    kind: PassageKind = _sample_public_passage(rng) if is_public and section.kind != "kitchen" else "door"
    add_passage(layout, rng, room, hall, "arch" if section.kind == "entry" else kind)
    others = [other for other in halls if other != hall]
    if is_public and others and rng.random() < 0.5:
        add_passage(layout, rng, room, others[0], "arch" if rng.random() < 0.5 else "door")
