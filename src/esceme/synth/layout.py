"""Floor plans: a hallway as a spine, rooms cut off on both sides of it, doors between them, stairs.

A plan is drawn in its own coordinates, u along the spine and v across; turned and mirrored at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from esceme.synth.plan import WALL
from esceme.synth.sketch import Layout, Way, is_whole, join, overlap, turn
from esceme.synth.stairs import arrive, climb

WIDTHS = {
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
"""How wide a slot along the spine is; in a split or service one are two small rooms, one behind the other."""
FILLINGS = (
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
"""What may fill a stretch of a strip beside the spine."""
LARGER = 7.0
"""How much longer a large house is."""
PUBLIC = ("entry", "living room", "dining room", "kitchen")


class Slot(NamedTuple):
    """A piece of a strip: its rooms, the one at the spine first."""

    kind: str
    rooms: list[int]


@dataclass(frozen=True, slots=True)
class Spine:
    """The measures that both storeys share: the hallway's width and length, the strips' depths."""

    rng: np.random.Generator
    length: float
    width: float
    above: float
    below: float

    def across(self, side: int, near: float = 0.0, far: float = 1.0) -> tuple[float, float]:
        """The range of v that the strip on a side (1 above, -1 below) covers, or a share of it."""
        depth = self.above if side > 0 else self.below
        low, high = (self.width + WALL, 1) if side > 0 else (-WALL, -1)
        ends = low + high * near * depth, low + high * far * depth
        return min(ends), max(ends)


def draw_layout(rng: np.random.Generator, *, storeys: int, large: bool = False) -> Layout:
    """A floor plan with entry, living room, kitchen, dining room, two or more bedrooms and a bathroom."""
    while True:
        layout = _draw(rng, storeys=storeys, large=large)
        kinds = layout.kinds()
        if kinds.count("bedroom") >= 2 and "bathroom" in kinds and is_whole(layout):
            return turn(layout, rng)


def _draw(rng: np.random.Generator, *, storeys: int, large: bool) -> Layout:
    layout = Layout()
    scheme = str(rng.choice(["across", "across", "row", "great"]))
    fronts = _fronts(rng, scheme, storeys=storeys)
    length = rng.uniform(12.0, 15.5) if storeys == 1 else rng.uniform(10.0, 12.2)
    needed = max(sum(width + WALL for _, width in front) for front in fronts.values())
    deep = (4.05, 4.6) if storeys == 2 else (3.6, 4.5)
    spine = Spine(
        rng,
        length=max(length + LARGER * large, needed),
        width=rng.uniform(1.45, 1.9),
        above=rng.uniform(*deep),
        below=rng.uniform(*deep),
    )
    stairs = _ground_floor(layout, spine, scheme, fronts)
    if storeys == 1 and rng.random() < 0.4:
        _wing(layout, spine, layout.kinds().index("hallway"))
    if stairs is not None:
        _upper_floor(layout, spine, *stairs)
    return layout


def _fronts(rng: np.random.Generator, scheme: str, *, storeys: int) -> dict[int, list[tuple[str, float]]]:
    """What the strips on both sides begin with, and how wide: public rooms, then the stairs on one side."""
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
    return {side: [(kind, rng.uniform(*WIDTHS[kind])) for kind in front] for side, front in kinds.items()}


def _ground_floor(
    layout: Layout, spine: Spine, scheme: str, fronts: Mapping[int, Sequence[tuple[str, float]]]
) -> tuple[int, float, float] | None:
    """Public rooms first, then what fits; gives the stairs' side and range of u, if there are any."""
    strips: dict[int, list[Slot]] = {}
    stairs = None
    for side, front in fronts.items():
        kinds = [kind for kind, _ in front]
        ranges = _cut([width for _, width in front], 0.0)
        strips[side] = _build(layout, spine, 0, side, kinds, ranges)
        if "stairs" in kinds:
            stairs = (side, *ranges[-1])
        start = ranges[-1][1] + WALL if ranges else 0.0
        strips[side] += _fill(layout, spine, 0, side, start, spine.length)
    halls = _ground_halls(layout, spine, scheme)
    _open_up(layout, spine, strips, halls)
    if stairs is not None:
        arrive(layout, spine.rng, halls)
    if scheme == "great":
        _great_room(layout, spine, strips[1][0].rooms[0], halls[0])
    return stairs


def _ground_halls(layout: Layout, spine: Spine, scheme: str) -> list[int]:
    """The pieces of the spine on the ground floor: the entry, unless that is beside it, and a hallway."""
    if scheme == "great":
        return [layout.add("hallway", 0, (0.0, 0.0, spine.length, spine.width))]
    end = spine.rng.uniform(2.3, 3.4)
    entry = layout.add("entry", 0, (0.0, 0.0, end, spine.width))
    hallway = layout.add("hallway", 0, (end + WALL, 0.0, spine.length, spine.width))
    join(layout, spine.rng, entry, hallway, "open" if spine.rng.random() < 0.6 else "arch")
    return [entry, hallway]


def _upper_floor(layout: Layout, spine: Spine, side: int, start: float, end: float) -> None:
    """Bedrooms, bathrooms and the like around the upper hallway; the stairs come up where they went down."""
    strips = {
        side: [
            *_fill(layout, spine, 1, side, 0.0, start - WALL),
            *_fill(layout, spine, 1, side, end + WALL, spine.length),
        ],
        -side: _fill(layout, spine, 1, -side, 0.0, spine.length),
    }
    hall = layout.add("hallway", 1, (0.0, 0.0, spine.length, spine.width))
    _open_up(layout, spine, strips, [hall])
    climb(layout, spine.rng, side, hall)


def _cut(widths: Sequence[float], start: float) -> list[tuple[float, float]]:
    """Ranges of the given widths one after the other, a wall between them."""
    ranges = []
    for width in widths:
        ranges.append((start, start + width))
        start += width + WALL
    return ranges


def _fill(layout: Layout, spine: Spine, storey: int, side: int, start: float, end: float) -> list[Slot]:
    """Slots that fill a stretch of a strip, scaled to fit it; none if it is too short for any."""
    rng = spine.rng
    middles = {kind: sum(ends) / 2 for kind, ends in WIDTHS.items()}
    lengths = [sum(middles[kind] + WALL for kind in filling) - WALL for filling in FILLINGS]
    fitting = [index for index, length in enumerate(lengths) if 0.82 < (end - start) / length < 1.22]
    if not fitting:
        return []
    filling = FILLINGS[int(rng.choice(fitting))]
    drawn = {kind: rng.uniform(*WIDTHS[kind]) for kind in sorted(set(filling))}  # look-alikes: equal widths
    scale = (end - start - WALL * (len(filling) - 1)) / sum(drawn[kind] for kind in filling)
    return _build(
        layout, spine, storey, side, filling, _cut([drawn[kind] * scale for kind in filling], start)
    )


def _build(
    layout: Layout,
    spine: Spine,
    storey: int,
    side: int,
    kinds: Sequence[str],
    ranges: Sequence[tuple[float, float]],
) -> list[Slot]:
    """The rooms of the slots of one strip."""
    rng, slots = spine.rng, []
    low, high = spine.across(side)
    for kind, (start, end) in zip(kinds, ranges, strict=True):
        if kind in ("split", "service"):
            share = rng.uniform(0.46, 0.54)
            gap = WALL / (spine.above if side > 0 else spine.below)
            near, far = spine.across(side, 0, share), spine.across(side, share + gap, 1)
            rects = [(start, near[0], end, near[1]), (start, far[0], end, far[1])]
            names = _small_rooms(layout, kind, storey, rng)
            rooms = [layout.add(name, storey, rect) for name, rect in zip(names, rects, strict=True)]
        else:
            if kind == "office" and "office" in layout.kinds():
                kind = "bedroom"  # one is enough
            deeper = rng.uniform(0, 1.1) if kind == "living room" and start == 0 else 0.0
            rect = (start, low - deeper * (side < 0), end, high + deeper * (side > 0))
            rooms = [layout.add(kind, storey, rect, storeys=2 if kind == "stairs" else 1)]
        slots.append(Slot(kind, rooms))
    return slots


def _small_rooms(layout: Layout, kind: str, storey: int, rng: np.random.Generator) -> tuple[str, str]:
    """What is in a slot of two: at the hallway first a bathroom, behind it what belongs to a neighbour."""
    has_bath = any(room.kind == "bathroom" and room.storey == storey for room in layout.rooms)
    first = str(rng.choice(["bathroom", "laundry", "closet"])) if has_bath else "bathroom"
    if kind == "service":
        return ("closet" if first == "laundry" else first), "laundry"
    return first, (str(rng.choice(["bathroom", "closet"])) if first != "closet" else "bathroom")


def _wing(layout: Layout, spine: Spine, hall: int) -> None:
    """A second hallway round the corner with a bedroom beside it, and a suite at the end of the first."""
    rng = spine.rng
    kind, storey, (start, *_), *_ = layout.rooms[hall]
    turn = spine.length + WALL
    end = turn + rng.uniform(1.4, 1.7)
    low, high = spine.across(1)
    layout.rooms[hall] = layout.rooms[hall]._replace(rect=(start, 0.0, end, spine.width))
    side_hall = layout.add(kind, storey, (turn, low, end, high))
    join(layout, rng, hall, side_hall, "open")
    column = end + WALL, end + WALL + rng.uniform(3.3, 4.1)
    bedroom = layout.add("bedroom", storey, (column[0], low, column[1], high))
    join(layout, rng, side_hall, bedroom, "door")
    foot, bath = spine.across(-1)[0], spine.across(-1)[0] + rng.uniform(1.9, 2.2)
    suite = layout.add("bedroom", storey, (column[0], bath + WALL, column[1], spine.width))
    join(layout, rng, hall, suite, "door")
    ensuite = layout.add("bathroom", storey, (column[0], foot, column[1], bath))
    join(layout, rng, suite, ensuite, "door")


def _great_room(layout: Layout, spine: Spine, dining: int, hall: int) -> None:
    """A living room across the whole depth of the house, in front of everything else."""
    low, high = spine.across(-1)[0], spine.across(1)[1]
    width = spine.rng.uniform(4.3, 5.2)
    living = layout.add("living room", 0, (-WALL - width, low, -WALL, high))
    join(layout, spine.rng, living, hall, "open" if spine.rng.random() < 0.5 else "arch")
    join(layout, spine.rng, living, dining, _public_way(spine.rng))


def _public_way(rng: np.random.Generator) -> Way:
    draw = rng.random()
    return "open" if draw < 0.4 else "arch" if draw < 0.8 else "door"


def _open_up(layout: Layout, spine: Spine, strips: dict[int, list[Slot]], halls: list[int]) -> None:
    """Doors from every slot to the spine, between public neighbours, and to the rooms behind."""
    rng = spine.rng
    for slots in strips.values():
        for slot, after in zip(slots, slots[1:], strict=False):
            if slot.kind in PUBLIC and after.kind in PUBLIC and "entry" not in (slot.kind, after.kind):
                join(layout, rng, slot.rooms[0], after.rooms[0], _public_way(rng))
        for place, slot in enumerate(slots):
            if len(slot.rooms) > 1:
                hosting = ("kitchen",) if slot.kind == "service" else ("bedroom", "office")
                beside = [slots[at] for at in (place - 1, place + 1) if 0 <= at < len(slots)]
                hosts = [other.rooms[0] for other in beside if other.kind in hosting]
                hosts = hosts or [slot.rooms[0]]
                join(layout, rng, hosts[int(rng.integers(len(hosts)))], slot.rooms[1], "door")
            if slot.kind != "stairs":
                _to_hall(layout, rng, slot, halls)


def _to_hall(layout: Layout, rng: np.random.Generator, slot: Slot, halls: list[int]) -> None:
    """A way from a slot to the piece of the spine that it shares most wall with."""
    room = slot.rooms[0]
    shared = {hall: overlap(layout.rooms[room].rect, layout.rooms[hall].rect, 0) for hall in halls}
    hall = max(shared, key=lambda index: shared[index][1] - shared[index][0])
    way: Way = _public_way(rng) if slot.kind in PUBLIC and slot.kind != "kitchen" else "door"
    join(layout, rng, room, hall, "arch" if slot.kind == "entry" else way)
    others = [other for other in halls if other != hall]
    if slot.kind in PUBLIC and others and rng.random() < 0.5:
        join(layout, rng, room, others[0], "arch" if rng.random() < 0.5 else "door")
