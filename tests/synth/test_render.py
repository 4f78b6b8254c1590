"""The ray-caster: distances, directions and occlusion, against single rays cast by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from esceme.errors import WorldError
from esceme.synth.casting import casings, opening_cell
from esceme.synth.house import make_house
from esceme.synth.plan import WALL, Box, Furniture, House, Opening, Place, Room, Surface
from esceme.synth.render import Panorama, Renderer, render

WHITE = Surface("white", (240, 238, 232))
OAK = Surface("brown", (160, 115, 75), "planks")
RED = Surface("red", (190, 40, 40), "fabric")


def room(low: tuple[float, float, float], high: tuple[float, float, float]) -> Room:
    return Room("room", 0, low, high, OAK, Surface("blue", (120, 150, 200), "bricks"), WHITE)


def thing(
    index: int, where: int, *boxes: tuple[tuple[float, float, float], tuple[float, float, float]]
) -> Furniture:
    solids = tuple(Box(low, high, RED) for low, high in boxes)
    return Furniture(str(index), "thing", where, RED, solids)


def place(where: int, *position: float) -> Place:
    return Place(f"{where:032x}", where, (position[0], position[1], position[2]))


def house(
    rooms: list[Room],
    openings: list[Opening],
    furniture: list[Furniture],
    places: list[Place],
    stairs: tuple[Box, ...] = (),
) -> House:
    return House("house", tuple(rooms), tuple(openings), tuple(furniture), stairs, tuple(places), ())


def two_rooms() -> House:
    """Side by side, west and east; the door is 2.0 to 2.9 m north; a thing before and one behind the wall."""
    rooms = [room((0, 0, 0), (4, 5, 2.7)), room((4 + WALL, 0, 0), (8, 5, 2.7))]
    door = Opening((0, 1), 0, 2.0, 2.9, 0, 2.05, "door", WHITE)
    things = [
        thing(0, 0, ((3.0, 4.0, 0.0), (3.6, 4.6, 1.0))),
        thing(1, 1, ((7.0, 2.2, 0.0), (7.6, 2.7, 1.8))),
        thing(2, 1, ((4.4, 0.2, 0.0), (7.0, 1.2, 1.8))),
    ]
    return house(rooms, [door], things, [place(0, 1.0, 2.45, 1.5), place(1, 6.0, 2.45, 1.5)])


def stairwell() -> House:
    """A tall room with doors above each other on one side, steps, and a lamp that hangs from its ceiling."""
    rooms = [
        room((0, 0, 0), (3, 6, 5.7)),
        room((3 + WALL, 0, 0), (8, 6, 2.7)),
        room((3 + WALL, 0, 3), (8, 6, 5.7)),
        room((0, 6 + WALL, 0), (8, 9, 2.7)),
    ]
    openings = [
        Opening((0, 1), 0, 1.0, 2.0, 0, 2.05, "door", WHITE),
        Opening((0, 2), 0, 1.2, 5.0, 3, 5.05, "arch", WHITE),
        Opening((1, 3), 1, 3.2, 7.9, 0, 2.7, "open", WHITE),
    ]
    steps = tuple(
        Box((0.0, 1 + i * 0.25, 0.0), (1.0, 1.25 + i * 0.25, (i + 1) * 0.2), OAK) for i in range(15)
    )
    things = [
        thing(0, 0, ((1.4, 2.8, 4.8), (1.6, 3.2, 5.2)), ((1.49, 2.99, 5.2), (1.51, 3.01, 5.7))),
        thing(1, 2, ((5.0, 2.0, 3.0), (6.0, 4.0, 3.8))),
        thing(2, 1, ((5.0, 1.0, 0.0), (6.0, 2.0, 0.8)), ((5.4, 1.4, 0.8), (5.6, 1.6, 1.4))),
        thing(3, 3, ((4.0, 8.0, 0.0), (7.0, 8.9, 1.9))),
    ]
    places = [
        place(0, 2.0, 1.5, 1.5),
        place(0, 0.5, 3.1, 3.3),
        place(2, 4.0, 3.0, 4.5),
        place(1, 7.0, 1.0, 1.5),
    ]
    return house(rooms, openings, things, places, steps)


def random_house(seed: int) -> House:
    """A grid of 3 x 3 rooms of random sizes with doors between most neighbours and boxes all over."""
    generator = np.random.default_rng(seed)
    cuts = [np.concatenate([[0], np.cumsum(generator.uniform(2.5, 5, 3))]) for _ in range(2)]
    rooms, openings, things = [], [], []
    for i in range(3):
        for j in range(3):
            high = (cuts[0][i + 1] - WALL, cuts[1][j + 1] - WALL, generator.uniform(2.5, 3.2))
            rooms.append(room((cuts[0][i], cuts[1][j], 0.0), high))
    for i in range(3):
        for j in range(3):
            for axis, other in ((0, (i + 1, j)), (1, (i, j + 1))):
                if max(other) < 3 and generator.random() < 0.8:
                    here = rooms[3 * i + j]
                    start = generator.uniform(here.low[1 - axis], here.high[1 - axis] - 1.2)
                    pair = (3 * i + j, 3 * other[0] + other[1])
                    sides = (start, start + generator.uniform(0.8, 1.2), 0.0, generator.uniform(1.9, 2.4))
                    openings.append(Opening(pair, axis, *sides, "door", WHITE))
    for index in range(45):
        where = index % 9
        low = generator.uniform(rooms[where].low, np.array(rooms[where].high) - 0.6)
        low[2] = generator.choice([0.0, low[2]])
        high = low + generator.uniform(0.02, 0.6, 3)
        things.append(thing(index, where, (tuple(low), tuple(high))))
    places = []
    for where, each in enumerate(rooms):
        x, y = generator.uniform(np.array(each.low)[:2] + 0.3, np.array(each.high)[:2] - 0.3)
        places.append(place(where, x, y, 1.5))
    return house(rooms, openings, things, places)


class SingleRays:
    """The obvious way: one ray at a time, against the air and all solids of the house."""

    def __init__(self, house: House) -> None:
        air = [(each.low, each.high) for each in house.rooms]
        air += [opening_cell(house, opening) for opening in house.openings]
        solids = [(box, index) for index, each in enumerate(house.furniture) for box in each.boxes]
        solids += [(box, -1) for box in house.stairs]
        solids += [(box, -1) for opening in house.openings for box, _ in casings(house, opening)]
        self.air = np.array(air)
        self.solids = np.array([(box.low, box.high) for box, _ in solids])
        self.owner = [index for _, index in solids]

    def first(self, start: tuple[float, ...], heading: float, elevation: float) -> tuple[float, int]:
        """The distance to what a ray meets first, and its index among the furniture or -1."""
        level = math.cos(elevation)
        ray = np.array([math.sin(heading) * level, math.cos(heading) * level, math.sin(elevation)])
        enter, leave = self.crossings(self.air, start, ray)
        end = 0.0
        for index in np.argsort(enter):  # air after air, as long as the next begins where the last one ends
            if enter[index] < leave[index] and enter[index] <= end + 1e-9:
                end = max(end, leave[index])
        enter, leave = self.crossings(self.solids, start, ray)
        enter[(enter >= leave) | (enter <= 0)] = np.inf
        nearest = int(enter.argmin())
        return (enter[nearest], self.owner[nearest]) if enter[nearest] < end else (end, -1)

    @staticmethod
    def crossings(
        extents: np.ndarray, start: tuple[float, ...], ray: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Where the ray enters and leaves each box."""
        ends = np.sort((extents - start) / ray, axis=1)
        return ends[:, 0].max(axis=1), ends[:, 1].min(axis=1)


def angles(row: int, column: int, height: int) -> tuple[float, float]:
    """The heading and the elevation of a pixel's centre."""
    return (column + 0.5) / height * math.pi - math.pi, math.pi / 2 - (row + 0.5) / height * math.pi


def pixel(heading: float, elevation: float, height: int = 512) -> tuple[int, int]:
    """The pixel that shows a direction."""
    turn = (heading + math.pi) % (2 * math.pi)
    row, column = int((math.pi / 2 - elevation) / math.pi * height), int(turn / math.pi * height)
    return min(row, height - 1), min(column, 2 * height - 1)


HOUSES = {
    "two rooms": two_rooms,
    "stairwell": stairwell,
    "generated, one storey": lambda: make_house("low", 3, storeys=1),
    "generated, two storeys": lambda: make_house("high", 4, storeys=2),
} | {f"random {seed}": (lambda seed=seed: random_house(seed)) for seed in range(3)}


@pytest.mark.parametrize("name", HOUSES)
def test_pixels_show_what_single_rays_meet(name: str) -> None:
    house, generator = HOUSES[name](), np.random.default_rng(1)
    renderer, rays = Renderer(house, height=256), SingleRays(house)
    wrong_depth = wrong_object = count = 0
    places = generator.permutation(len(house.places))[:8]
    for place in (house.places[at] for at in places):
        seen = renderer.render(place)
        for _ in range(500):
            row, column = generator.integers(256), generator.integers(512)
            depth, owner = rays.first(place.position, *angles(row, column, 256))
            wrong_depth += abs(seen.depth[row, column] - depth) > 1e-3 * max(1, depth)
            wrong_object += seen.objects[row, column] != owner
            count += 1
    assert wrong_depth <= 0.005 * count and wrong_object <= 0.005 * count


def test_an_empty_room_has_its_walls_at_their_distances() -> None:
    empty = house([room((0, 0, 0), (4, 6, 2.7))], [], [], [place(0, 1.0, 2.0, 1.5)])
    depth = render(empty, 0).depth
    for heading, distance in ((0, 4.0), (math.pi / 2, 3.0), (math.pi, 2.0), (-math.pi / 2, 1.0)):
        assert depth[pixel(heading, 0.0)] == pytest.approx(distance, rel=1e-3)
    assert depth[0] == pytest.approx(1.2, rel=1e-3)
    assert depth[-1] == pytest.approx(1.5, rel=1e-3)


def test_east_is_right_of_the_middle_and_west_is_left() -> None:
    things = [
        thing(0, 0, ((3.5, 1.9, 1.0), (3.6, 2.1, 2.0))),
        thing(1, 0, ((0.4, 1.9, 1.0), (0.5, 2.1, 2.0))),
    ]
    objects = render(house([room((0, 0, 0), (4, 4, 2.7))], [], things, [place(0, 2, 2, 1.5)]), 0).objects
    east, west = (np.flatnonzero((objects == index).any(axis=0)) for index in (0, 1))
    assert east.mean() == pytest.approx(767.5) and west.mean() == pytest.approx(255.5)


def test_up_is_the_top_of_the_picture() -> None:
    things = [
        thing(0, 0, ((1.9, 3.5, 2.0), (2.1, 3.6, 2.4))),
        thing(1, 0, ((1.9, 3.5, 0.0), (2.1, 3.6, 0.4))),
    ]
    objects = render(house([room((0, 0, 0), (4, 4, 2.7))], [], things, [place(0, 2, 2, 1.5)]), 0).objects
    high, low = (np.flatnonzero((objects == index).any(axis=1)) for index in (0, 1))
    assert high.max() < 256 < low.min()


def test_one_sees_through_a_doorway_but_not_through_the_wall() -> None:
    seen = render(two_rooms(), 0)
    through = seen.depth[pixel(math.pi / 2, 0.0)]
    assert through == pytest.approx(6.0, rel=1e-3)  # the thing in the other room, past the wall at 3 m
    assert {0, 1} <= set(seen.objects.ravel()) and 2 not in seen.objects
    beside = math.pi / 2 + math.atan2(0.7, 3.0)  # south of the door
    assert seen.depth[pixel(beside, 0.0)] == pytest.approx(math.hypot(0.7, 3.0), rel=1e-2)
    above = math.atan2(2.3 - 1.5, 3.0)  # over the door
    assert seen.depth[pixel(math.pi / 2, above)] == pytest.approx(math.hypot(0.8, 3.0), rel=1e-2)


def test_a_house_reads_the_same_in_a_doorway() -> None:
    home = two_rooms()
    seen = render(home, place(0, 4 + WALL / 2, 2.45, 1.5))
    assert seen.depth[pixel(-math.pi / 2, 0.0)] == pytest.approx(4 + WALL / 2, rel=1e-3)
    assert {0, 1, 2} <= set(seen.objects.ravel())


def test_doors_above_each_other_lead_to_different_rooms() -> None:
    home = stairwell()
    seen = render(home, place(0, 1.2, 1.5, 2.6))
    assert {1, 2} <= set(seen.objects.ravel())
    assert (np.argwhere(seen.objects == 1)[:, 0] < 256).all() and (
        np.argwhere(seen.objects == 2)[:, 0] > 256
    ).all()


@pytest.mark.parametrize("seed", range(3))
def test_nothing_stands_between_neighbouring_places(seed: int) -> None:
    home = make_house("home", seed)
    renderer = Renderer(home, height=256)
    depths = [renderer.render(at).depth for at in range(len(home.places))]
    for edge in home.edges:
        for here, there in (edge, edge[::-1]):
            x, y, z = np.subtract(home.places[there].position, home.places[here].position)
            distance = math.hypot(x, y, z)
            towards = pixel(math.atan2(x, y), math.asin(z / distance), 256)
            assert depths[here][towards] >= distance - 0.05, f"{here} does not see {there}"


def test_the_same_place_gives_the_same_bytes() -> None:
    one, two = render(stairwell(), 2, height=128), render(stairwell(), 2, height=128)
    assert [array.tobytes() for array in one] == [array.tobytes() for array in two]


def test_arrays_have_the_promised_shapes() -> None:
    seen = render(two_rooms(), 1, height=64)
    assert isinstance(seen, Panorama)
    assert [(array.shape, array.dtype) for array in seen] == [
        ((64, 128, 3), np.uint8),
        ((64, 128), np.int16),
        ((64, 128), np.float32),
    ]
    assert np.isfinite(seen.depth).all() and (seen.depth > 0).all()


def test_a_place_outside_the_house_is_refused() -> None:
    with pytest.raises(WorldError, match="in none of its rooms"):
        render(two_rooms(), place(0, -3.0, 0.0, 1.5))


def test_things_keep_their_hue() -> None:
    """Light and texture change a surface's brightness, hardly its chromaticity."""
    seen = render(two_rooms(), 1)
    inside = seen.objects == 1
    inside &= np.roll(inside, 2, 0) & np.roll(inside, -2, 0) & np.roll(inside, 2, 1) & np.roll(inside, -2, 1)
    colours = seen.rgb[inside].astype(float)
    assert len(colours) > 500
    share = colours / colours.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        share, np.broadcast_to(np.array(RED.rgb) / sum(RED.rgb), share.shape), atol=0.015
    )
    assert colours.sum(axis=1).min() > 0.6 * sum(RED.rgb)
