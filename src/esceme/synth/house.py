"""Generated houses: a floor plan, its surfaces and furniture, places to stand and ways between them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from esceme.errors import ConfigError
from esceme.synth.furnish import Interior, Wish, assemble, draw_wishes, outer_walls
from esceme.synth.layout import draw_layout
from esceme.synth.palette import (
    CARPETS,
    CEILING,
    FRAMES,
    PAINTS,
    STEPS,
    TILED_FLOORS,
    WALL_TILES,
    WOODEN_FLOORS,
)
from esceme.synth.plan import EYE, Box, House, Opening, Place, Room, Surface
from esceme.synth.sketch import Layout
from esceme.synth.spots import Array, Ground, Spot, find_spots, samples
from esceme.synth.ways import Edges, is_connected, thin, walkable
from esceme.world import SceneGraph

TALL = {"door": 2.05, "arch": 2.25, "open": 2.7}
"""How high an opening is above its floor."""
FEWEST = 30
"""How many places a house has at least."""
DEGREE = 4.06
"""How many candidates a viewpoint of Matterport3D has on average."""


def make_house(scene_id: str, seed: int, *, storeys: int | None = None, large: bool = False) -> House:
    """The house that belongs to a scene's name and a seed: always the same one.

    It has one or two storeys (by chance unless given) and 30 to 80 places; a large one has 45 to 110.
    """
    if storeys not in (None, 1, 2):
        raise ConfigError(f"a house has 1 or 2 storeys, not {storeys}")
    rng = np.random.default_rng(list(hashlib.sha256(f"{scene_id}:{seed}".encode()).digest()))
    levels = storeys or int(rng.integers(1, 3))
    while True:
        layout = draw_layout(rng, storeys=levels, large=large)
        rooms, wishes = _dress(layout, rng)
        openings = _openings(layout, rooms, FRAMES[int(rng.integers(len(FRAMES)))])
        interiors = _interiors(rooms, openings, wishes)
        found = _places(layout, rooms, openings, interiors, rng)
        if found is not None:
            break
    spots, edges = found
    _keep_off(interiors, spots, edges)
    for interior, wanted in zip(interiors, wishes, strict=True):
        interior.furnish(wanted[1], early=False)
    things = [(thing, interior.index) for interior in interiors for thing in interior.things]
    return House(
        scene_id=scene_id,
        rooms=tuple(rooms),
        openings=tuple(openings),
        furniture=tuple(assemble(thing, str(place), room) for place, (thing, room) in enumerate(things, 1)),
        stairs=tuple(
            Box((step.rect[0], step.rect[1], 0.0), (step.rect[2], step.rect[3], step.height), STEPS)
            for step in layout.steps
        ),
        places=tuple(_place(scene_id, seed, index, spot) for index, spot in enumerate(spots)),
        edges=tuple(edges),
    )


def graph_of(house: House) -> SceneGraph:
    """The navigation graph of a house, as its connectivity file would give it."""
    names = [place.viewpoint for place in house.places]
    positions = {place.viewpoint: place.position for place in house.places}
    return SceneGraph.build(house.scene_id, positions, [(names[a], names[b]) for a, b in house.edges])


def _place(scene_id: str, seed: int, index: int, spot: Spot) -> Place:
    name = hashlib.sha256(f"{scene_id}:{seed}:{index}".encode()).hexdigest()[:32]
    x, y = spot.at
    return Place(name, spot.room, (round(x, 4), round(y, 4), round(spot.floor + EYE, 4)))


# -- surfaces ------------------------------------------------------------------------------------------------

Style = tuple[int, list[Wish]]
"""The seed by which a room is furnished, and with what."""


def _dress(layout: Layout, rng: np.random.Generator) -> tuple[list[Room], list[Style]]:
    """Rooms with surfaces and wishes; in most houses two bedrooms (and two bathrooms) are look-alikes."""
    wood = WOODEN_FLOORS[int(rng.integers(len(WOODEN_FLOORS)))]
    paint = PAINTS[int(rng.integers(len(PAINTS)))]
    alike = {kind: rng.random() < 0.6 for kind in ("bedroom", "bathroom")}
    rooms: list[Room] = []
    styles: list[Style] = []
    for sketch in layout.rooms:
        twins = [at for at, room in enumerate(rooms) if room.kind == sketch.kind]
        if alike.get(sketch.kind) and len(twins) == 1:
            floor, walls, style = rooms[twins[0]].floor, rooms[twins[0]].walls, styles[twins[0]]
        else:
            floor, walls = _surfaces(sketch.kind, wood, paint, rng)
            style = (int(rng.integers(2**31)), draw_wishes(sketch.kind, rng))
        x0, y0, x1, y1 = sketch.rect
        low, high = (x0, y0, sketch.bottom), (x1, y1, sketch.top)
        rooms.append(Room(sketch.kind, sketch.storey, low, high, floor, walls, CEILING))
        styles.append(style)
    return rooms, styles


def _surfaces(kind: str, wood: Surface, paint: Surface, rng: np.random.Generator) -> tuple[Surface, Surface]:
    """Floor and walls of a room: mostly the house's wood and paint, tiles where it gets wet."""

    def one(surfaces: Sequence[Surface]) -> Surface:
        return surfaces[int(rng.integers(len(surfaces)))]

    if kind in ("bathroom", "laundry"):
        return one(TILED_FLOORS), one(WALL_TILES)
    if kind == "kitchen":
        return (one(TILED_FLOORS) if rng.random() < 0.7 else wood), one(PAINTS)
    if kind in ("bedroom", "closet", "office"):
        return (one(CARPETS) if rng.random() < 0.6 else wood), one(PAINTS)
    return wood, paint


# -- openings ------------------------------------------------------------------------------------------------


def _openings(layout: Layout, rooms: Sequence[Room], frame: Surface) -> list[Opening]:
    openings = []
    for passage in layout.passages:
        a, b = passage.rooms
        axis = 0 if rooms[a].high[0] < rooms[b].low[0] or rooms[b].high[0] < rooms[a].low[0] else 1
        first, second = (a, b) if rooms[a].low[axis] < rooms[b].low[axis] else (b, a)
        middle, half = passage.middle[1 - axis], passage.width / 2
        openings.append(
            Opening(
                rooms=(first, second),
                axis=1 if axis else 0,
                low=round(middle - half, 6),
                high=round(middle + half, 6),
                bottom=passage.bottom,
                top=passage.bottom + TALL[passage.kind],
                kind=passage.kind,
                frame=rooms[first].walls if passage.kind == "open" else frame,
            )
        )
    return openings


# -- furniture and places ------------------------------------------------------------------------------------


def _interiors(rooms: Sequence[Room], openings: Sequence[Opening], styles: Sequence[Style]) -> list[Interior]:
    """The rooms with their big furniture in."""
    interiors = []
    for index, (room, (seed, wishes)) in enumerate(zip(rooms, styles, strict=True)):
        ways = [opening for opening in openings if index in opening.rooms]
        interior = Interior(index, room, ways, outer_walls(index, rooms), np.random.default_rng(seed))
        interior.furnish(wishes, early=True)
        interiors.append(interior)
    return interiors


def _places(
    layout: Layout,
    rooms: Sequence[Room],
    openings: Sequence[Opening],
    interiors: Sequence[Interior],
    rng: np.random.Generator,
) -> tuple[list[Spot], Edges] | None:
    """Spots and the ways between them; None if some cannot be reached or there are too few."""
    stairs = [index for index, room in enumerate(rooms) if room.kind == "stairs"]
    rests = [Spot(stairs[0], rest.at, rest.height) for rest in layout.rests]
    nowhere = Ground(np.zeros((0, 2)), np.zeros((0, 4)))
    grounds = [nowhere if interior.room.kind == "stairs" else interior.ground() for interior in interiors]
    spots = find_spots(rooms, openings, grounds, rests, spacing=rng.uniform(1.35, 1.6))
    joined = walkable(rooms, openings, [ground.obstacles for ground in grounds], spots)
    for below, above in zip(range(len(rests)), range(1, len(rests)), strict=False):
        joined[below, above] = joined[above, below] = True
    everywhere = {spot.room for spot in spots} == set(range(len(rooms)))
    if len(spots) < FEWEST or not everywhere or not is_connected(joined):
        return None
    positions = np.array([(*spot.at, spot.floor) for spot in spots])
    return spots, thin(joined, positions, degree=rng.normal(DEGREE, 0.2))


def _keep_off(interiors: Sequence[Interior], spots: Sequence[Spot], edges: Edges) -> None:
    """Tell every room which points on its floor people pass, so that nothing is put there."""
    at = np.array([spot.at for spot in spots])
    floors = np.array([spot.floor for spot in spots])
    a, b = np.array(edges).T
    points: Array = samples(at[a], at[b], 41)
    for interior in interiors:
        low, high = interior.room.low, interior.room.high
        level = (np.minimum(floors[a], floors[b]) < high[2]) & (np.maximum(floors[a], floors[b]) >= low[2])
        near = points[level].reshape(-1, 2)
        inside = (near > np.array(low[:2]) - 0.5) & (near < np.array(high[:2]) + 0.5)
        interior.ways = near[inside.all(axis=1)]
