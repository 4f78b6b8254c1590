"""Ray casting and rendering: distances, directions and occlusion, compared with single rays."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.rendering import PerPixelCaster

from esceme.errors import WorldError
from esceme.synth.house import generate_house
from esceme.synth.house_model import WALL_WIDTH, Box, Furniture, House, HouseViewpoint, Opening, Room, Surface
from esceme.synth.render import Renderer, render

WHITE = Surface("white", (240, 238, 232))
OAK = Surface("brown", (160, 115, 75), "planks")
RED = Surface("red", (190, 40, 40), "fabric")


def make_room(low: tuple[float, float, float], high: tuple[float, float, float]) -> Room:
    return Room("room", 0, low, high, OAK, Surface("blue", (120, 150, 200), "bricks"), WHITE)


def item(
    index: int, where: int, *boxes: tuple[tuple[float, float, float], tuple[float, float, float]]
) -> Furniture:
    solids = tuple(Box(low, high, RED) for low, high in boxes)
    return Furniture(str(index), "item", where, RED, solids)


def viewpoint(where: int, *position: float) -> HouseViewpoint:
    return HouseViewpoint(f"{where:032x}", where, (position[0], position[1], position[2]))


def make_house(
    rooms: list[Room],
    openings: list[Opening],
    furniture: list[Furniture],
    viewpoints: list[HouseViewpoint],
    stairs: tuple[Box, ...] = (),
) -> House:
    return House("house", tuple(rooms), tuple(openings), tuple(furniture), stairs, tuple(viewpoints), ())


def two_rooms() -> House:
    """A west and an east room; the door is 2.0 to 2.9 m north; one item in the west room, two in the east."""
    rooms = [make_room((0, 0, 0), (4, 5, 2.7)), make_room((4 + WALL_WIDTH, 0, 0), (8, 5, 2.7))]
    door = Opening((0, 1), 0, 2.0, 2.9, 0, 2.05, "door", WHITE)
    items = [
        item(0, 0, ((3.0, 4.0, 0.0), (3.6, 4.6, 1.0))),
        item(1, 1, ((7.0, 2.2, 0.0), (7.6, 2.7, 1.8))),
        item(2, 1, ((4.4, 0.2, 0.0), (7.0, 1.2, 1.8))),
    ]
    return make_house(rooms, [door], items, [viewpoint(0, 1.0, 2.45, 1.5), viewpoint(1, 6.0, 2.45, 1.5)])


def stairwell() -> House:
    """A tall room with two doors, one above the other, steps, and a lamp that hangs from its ceiling."""
    rooms = [
        make_room((0, 0, 0), (3, 6, 5.7)),
        make_room((3 + WALL_WIDTH, 0, 0), (8, 6, 2.7)),
        make_room((3 + WALL_WIDTH, 0, 3), (8, 6, 5.7)),
        make_room((0, 6 + WALL_WIDTH, 0), (8, 9, 2.7)),
    ]
    openings = [
        Opening((0, 1), 0, 1.0, 2.0, 0, 2.05, "door", WHITE),
        Opening((0, 2), 0, 1.2, 5.0, 3, 5.05, "arch", WHITE),
        Opening((1, 3), 1, 3.2, 7.9, 0, 2.7, "open", WHITE),
    ]
    steps = tuple(
        Box((0.0, 1 + i * 0.25, 0.0), (1.0, 1.25 + i * 0.25, (i + 1) * 0.2), OAK) for i in range(15)
    )
    items = [
        item(0, 0, ((1.4, 2.8, 4.8), (1.6, 3.2, 5.2)), ((1.49, 2.99, 5.2), (1.51, 3.01, 5.7))),
        item(1, 2, ((5.0, 2.0, 3.0), (6.0, 4.0, 3.8))),
        item(2, 1, ((5.0, 1.0, 0.0), (6.0, 2.0, 0.8)), ((5.4, 1.4, 0.8), (5.6, 1.6, 1.4))),
        item(3, 3, ((4.0, 8.0, 0.0), (7.0, 8.9, 1.9))),
    ]
    viewpoints = [
        viewpoint(0, 2.0, 1.5, 1.5),
        viewpoint(0, 0.5, 3.1, 3.3),
        viewpoint(2, 4.0, 3.0, 4.5),
        viewpoint(1, 7.0, 1.0, 1.5),
    ]
    return make_house(rooms, openings, items, viewpoints, steps)


def random_house(seed: int) -> House:
    """A grid of 3 x 3 rooms of random sizes with doors between most neighbours and boxes all over."""
    generator = np.random.default_rng(seed)
    cuts = [np.concatenate([[0], np.cumsum(generator.uniform(2.5, 5, 3))]) for _ in range(2)]
    rooms, openings, items = [], [], []
    for i in range(3):
        for j in range(3):
            high = (cuts[0][i + 1] - WALL_WIDTH, cuts[1][j + 1] - WALL_WIDTH, generator.uniform(2.5, 3.2))
            rooms.append(make_room((cuts[0][i], cuts[1][j], 0.0), high))
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
        items.append(item(index, where, (tuple(low), tuple(high))))
    viewpoints = []
    for where, room in enumerate(rooms):
        x, y = generator.uniform(np.array(room.low)[:2] + 0.3, np.array(room.high)[:2] - 0.3)
        viewpoints.append(viewpoint(where, x, y, 1.5))
    return make_house(rooms, openings, items, viewpoints)


def pixel(heading: float, elevation: float, height: int = 512) -> tuple[int, int]:
    """The pixel that shows a direction."""
    turn = (heading + math.pi) % (2 * math.pi)
    row, column = int((math.pi / 2 - elevation) / math.pi * height), int(turn / math.pi * height)
    return min(row, height - 1), min(column, 2 * height - 1)


HOUSES = {
    "two rooms": two_rooms,
    "stairwell": stairwell,
    "generated, one storey": lambda: generate_house("low", 3, storeys=1),
    "generated, two storeys": lambda: generate_house("high", 4, storeys=2),
} | {f"random {seed}": (lambda seed=seed: random_house(seed)) for seed in range(3)}


@pytest.mark.parametrize("name", HOUSES)
def test_pixels_agree_with_single_rays(name: str) -> None:
    house, generator = HOUSES[name](), np.random.default_rng(1)
    renderer, rays = Renderer(house, height=256), PerPixelCaster(house, height=256)
    wrong_depth = wrong_object = count = 0
    for index in generator.permutation(len(house.viewpoints))[:8]:
        seen = renderer.render(index)
        for _ in range(500):
            row, column = int(generator.integers(256)), int(generator.integers(512))
            depth, owner = rays.cast(house.viewpoints[index].position, row, column)
            wrong_depth += abs(seen.depth[row, column] - depth) > 1e-3 * max(1, depth)
            wrong_object += seen.objects[row, column] != owner
            count += 1
    assert wrong_depth <= 0.005 * count and wrong_object <= 0.005 * count


def test_walls_of_an_empty_room_have_their_distances() -> None:
    empty = make_house([make_room((0, 0, 0), (4, 6, 2.7))], [], [], [viewpoint(0, 1.0, 2.0, 1.5)])
    depth = render(empty, 0).depth
    for heading, distance in ((0, 4.0), (math.pi / 2, 3.0), (math.pi, 2.0), (-math.pi / 2, 1.0)):
        assert depth[pixel(heading, 0.0)] == pytest.approx(distance, rel=1e-3)
    assert depth[0] == pytest.approx(1.2, rel=1e-3)
    assert depth[-1] == pytest.approx(1.5, rel=1e-3)


def test_east_is_right_of_the_middle_and_up_is_the_top() -> None:
    items = [
        item(0, 0, ((3.5, 1.9, 1.0), (3.6, 2.1, 2.0))),
        item(1, 0, ((0.4, 1.9, 1.0), (0.5, 2.1, 2.0))),
        item(2, 0, ((1.9, 3.5, 2.0), (2.1, 3.6, 2.4))),
        item(3, 0, ((1.9, 3.5, 0.0), (2.1, 3.6, 0.4))),
    ]
    house = make_house([make_room((0, 0, 0), (4, 4, 2.7))], [], items, [viewpoint(0, 2, 2, 1.5)])
    objects = render(house, 0).objects
    east, west = (np.flatnonzero((objects == index).any(axis=0)) for index in (0, 1))
    assert east.mean() == pytest.approx(767.5) and west.mean() == pytest.approx(255.5)
    high, low = (np.flatnonzero((objects == index).any(axis=1)) for index in (2, 3))
    assert high.max() < 256 < low.min()


def test_doorway_is_transparent_and_the_wall_is_not() -> None:
    seen = render(two_rooms(), 0)
    assert seen.depth[pixel(math.pi / 2, 0.0)] == pytest.approx(6.0, rel=1e-3)  # past the wall at 3 m
    assert {0, 1} <= set(seen.objects.ravel()) and 2 not in seen.objects
    beside = math.pi / 2 + math.atan2(0.7, 3.0)  # south of the door
    assert seen.depth[pixel(beside, 0.0)] == pytest.approx(math.hypot(0.7, 3.0), rel=1e-2)
    above = math.atan2(2.3 - 1.5, 3.0)  # over the door
    assert seen.depth[pixel(math.pi / 2, above)] == pytest.approx(math.hypot(0.8, 3.0), rel=1e-2)
    inside = render(two_rooms(), viewpoint(0, 4 + WALL_WIDTH / 2, 2.45, 1.5))  # from within the doorway
    assert inside.depth[pixel(-math.pi / 2, 0.0)] == pytest.approx(4 + WALL_WIDTH / 2, rel=1e-3)
    assert {0, 1, 2} <= set(inside.objects.ravel())


def test_doors_above_each_other_show_different_rooms() -> None:
    objects = render(stairwell(), viewpoint(0, 1.2, 1.5, 2.6)).objects
    above, below = np.argwhere(objects == 1), np.argwhere(objects == 2)
    assert len(above) and len(below) and (above[:, 0] < 256).all() and (below[:, 0] > 256).all()


def test_arrays_have_the_documented_shapes_and_are_deterministic() -> None:
    seen, again = render(stairwell(), 2, height=64), render(stairwell(), 2, height=64)
    assert [array.tobytes() for array in seen] == [array.tobytes() for array in again]
    assert [(array.shape, array.dtype) for array in seen] == [
        ((64, 128, 3), np.uint8),
        ((64, 128), np.int16),
        ((64, 128), np.float32),
    ]
    assert np.isfinite(seen.depth).all() and (seen.depth > 0).all()


def test_viewpoint_outside_the_house_is_refused() -> None:
    with pytest.raises(WorldError, match="in none of its rooms"):
        render(two_rooms(), viewpoint(0, -3.0, 0.0, 1.5))


def test_light_and_texture_keep_the_chromaticity() -> None:
    seen = render(two_rooms(), 1)
    inside = seen.objects == 1
    inside &= np.roll(inside, 2, 0) & np.roll(inside, -2, 0) & np.roll(inside, 2, 1) & np.roll(inside, -2, 1)
    colours = seen.rgb[inside].astype(float)
    assert len(colours) > 500
    share = colours / colours.sum(axis=1, keepdims=True)
    expected = np.broadcast_to(np.array(RED.rgb) / sum(RED.rgb), share.shape)
    np.testing.assert_allclose(share, expected, atol=0.015)
    assert colours.sum(axis=1).min() > 0.6 * sum(RED.rgb)
