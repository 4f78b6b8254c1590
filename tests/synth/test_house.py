"""Generated houses over thirty seeds: valid buildings, clear edges, and graphs like Matterport's."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from esceme.errors import ConfigError
from esceme.synth.house import build_graph, generate_house
from esceme.synth.house_model import CAMERA_HEIGHT, STOREY_HEIGHT, WALL_WIDTH, Furniture, House, Opening
from esceme.synth.ray_casting import opening_bounds

pytestmark = pytest.mark.long

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def houses() -> list[House]:
    return [generate_house(f"scene{seed}", seed) for seed in range(30)]


def inside_range(
    start: np.ndarray, end: np.ndarray, low: np.ndarray, high: np.ndarray
) -> tuple[float, float]:
    """The fractions of a line between which it is inside a box; empty if the second is smaller."""
    enter, leave = 0.0, 1.0
    for a, b, lo, hi in zip(start, end, low, high, strict=True):
        if abs(b - a) < 1e-12:
            if not lo <= a <= hi:
                return 1.0, 0.0
            continue
        near, far = sorted(((lo - a) / (b - a), (hi - a) / (b - a)))
        enter, leave = max(enter, near), min(leave, far)
    return enter, leave


def extent(item: Furniture) -> tuple[np.ndarray, np.ndarray]:
    return np.min([box.low for box in item.boxes], axis=0), np.max([box.high for box in item.boxes], axis=0)


def are_apart(low_a: np.ndarray, high_a: np.ndarray, low_b: np.ndarray, high_b: np.ndarray) -> bool:
    return bool(np.maximum(np.subtract(low_a, high_b), np.subtract(low_b, high_a)).max() > -TOLERANCE)


def edge_lines(house: House) -> np.ndarray:
    """(E, 2, 3): start and end of every edge."""
    return np.array([viewpoint.position for viewpoint in house.viewpoints])[np.array(house.edges)]


def openings_of(house: House, room: int) -> list[Opening]:
    return [opening for opening in house.openings if room in opening.rooms]


def test_house_is_determined_by_scene_id_and_seed() -> None:
    house = generate_house("a", 1)
    assert house == generate_house("a", 1)
    assert house != generate_house("a", 2) and house != generate_house("b", 1)
    program = "from esceme.synth.house import generate_house; print(generate_house('a', 1))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(house)


def test_storeys_can_be_chosen() -> None:
    for storeys in (1, 2):
        assert max(room.storey for room in generate_house("a", 3, storeys=storeys).rooms) == storeys - 1
    with pytest.raises(ConfigError, match="storeys, not 3"):
        generate_house("a", 1, storeys=3)


# -- rooms and openings ----------------------------------------------------------------------------------


def test_walls_fit_between_rooms(houses: list[House]) -> None:
    for house in houses:
        for a, b in itertools.combinations(house.rooms, 2):
            gap = np.maximum(np.subtract(a.low, b.high), np.subtract(b.low, a.high))
            assert gap[:2].max() > WALL_WIDTH - TOLERANCE or gap[2] > 0.2, (house.scene_id, a.kind, b.kind)
        for room in house.rooms:
            storeys = 2 if room.kind == "stairs" else 1
            assert room.high[2] - room.low[2] == pytest.approx(2.7 + (storeys - 1) * STOREY_HEIGHT)
            assert room.low[2] == room.storey * STOREY_HEIGHT
            assert min(room.high[0] - room.low[0], room.high[1] - room.low[1]) > 1.3


def test_openings_are_in_the_wall_between_their_rooms_and_apart(houses: list[House]) -> None:
    for house in houses:
        for opening in house.openings:
            first, second = (house.rooms[index] for index in opening.rooms)
            assert second.low[opening.axis] - first.high[opening.axis] == pytest.approx(WALL_WIDTH)
            for room in (first, second):
                assert room.low[1 - opening.axis] - TOLERANCE <= opening.low
                assert opening.high <= room.high[1 - opening.axis] + TOLERANCE
                assert room.low[2] <= opening.bottom < opening.top <= room.high[2] + TOLERANCE
            assert opening.high - opening.low >= (0.9 if opening.kind == "door" else 1.2) - TOLERANCE
        for a, b in itertools.combinations(house.openings, 2):
            assert are_apart(*opening_bounds(house, a), *opening_bounds(house, b))  # type: ignore[arg-type]


def test_every_house_has_the_rooms_of_a_home(houses: list[House]) -> None:
    for house in houses:
        kinds = Counter(room.kind for room in house.rooms)
        assert {"entry", "kitchen", "living room", "dining room", "bathroom"} <= set(kinds)
        assert kinds["bedroom"] >= 2
        assert kinds["stairs"] == max(room.storey for room in house.rooms)
    assert {room.kind for house in houses for room in house.rooms} >= {
        "hallway",
        "closet",
        "laundry",
        "office",
    }
    assert 8 <= sum(any(room.kind == "stairs" for room in house.rooms) for house in houses) <= 22


def test_long_corridors_corners_and_open_plan_spaces_occur(houses: list[House]) -> None:
    lengths = [
        max(max(np.subtract(r.high, r.low)[:2]) for r in house.rooms if r.kind == "hallway")
        for house in houses
    ]
    assert sum(length > 9 for length in lengths) >= 5
    joined = [
        (opening.kind, {house.rooms[index].kind for index in opening.rooms})
        for house in houses
        for opening in house.openings
    ]
    assert sum(kind == "open" and kinds == {"hallway"} for kind, kinds in joined) >= 3
    public = Counter(kind for kind, kinds in joined if kinds <= {"kitchen", "dining room", "living room"})
    assert public["open"] >= 5 and public["arch"] >= 5


def test_bedrooms_that_look_alike_occur(houses: list[House]) -> None:
    def look(house: House, index: int) -> tuple[object, ...]:
        items = sorted((i.name, i.surface.colour) for i in house.furniture if i.room == index)
        return house.rooms[index].floor, house.rooms[index].walls, items

    num_alike = 0
    for house in houses:
        looks = [look(house, index) for index, room in enumerate(house.rooms) if room.kind == "bedroom"]
        num_alike += any(a == b for a, b in itertools.combinations(looks, 2))
    assert num_alike >= 4


# -- furniture -------------------------------------------------------------------------------------------


def test_furniture_is_in_its_room_apart_from_other_furniture_and_openings(houses: list[House]) -> None:
    for house in houses:
        assert len({item.object_id for item in house.furniture}) == len(house.furniture)
        for item in house.furniture:
            low, high = extent(item)
            room = house.rooms[item.room]
            assert (low >= np.array(room.low) - TOLERANCE).all() and (
                high <= np.array(room.high) + TOLERANCE
            ).all()
            assert all(box.low[axis] < box.high[axis] for box in item.boxes for axis in range(3))
            assert item.surface in {box.surface for box in item.boxes}
            if high[2] - room.low[2] <= 0.3:
                continue
            for opening in openings_of(house, item.room):
                hole_low, hole_high = np.array(opening_bounds(house, opening))
                hole_low[opening.axis] -= 0.1
                hole_high[opening.axis] += 0.1
                assert are_apart(low, high, hole_low, hole_high), (item.name, opening.kind)
        for a, b in itertools.combinations(house.furniture, 2):
            if a.room == b.room and "rug" not in (a.name, b.name):
                assert are_apart(*extent(a), *extent(b)), (a.name, b.name)


def test_furniture_is_in_rooms_of_the_right_kind(houses: list[House]) -> None:
    rooms: dict[str, set[str]] = {}
    for house in houses:
        for item in house.furniture:
            rooms.setdefault(item.name, set()).add(house.rooms[item.room].kind)
        names = {item.name for item in house.furniture}
        assert {"bed", "sofa", "dining table", "counter", "window"} <= names
    assert len(rooms) >= 48
    assert rooms["bathtub"] == {"bathroom"} and rooms["stove"] == {"kitchen"}
    assert len(rooms["painting"]) >= 5 and len(rooms["plant"]) >= 5


# -- viewpoints and edges --------------------------------------------------------------------------------


def test_viewpoints_are_clear_of_walls_and_furniture(houses: list[House]) -> None:
    for house in houses:
        solids = [(item.room, *extent(item)) for item in house.furniture if item.name != "rug"]
        for viewpoint in house.viewpoints:
            room, position = house.rooms[viewpoint.room], np.array(viewpoint.position)
            assert (position > np.array(room.low) + 0.4).all() and (position < np.array(room.high)).all()
            for index, low, high in solids:
                if index == viewpoint.room:
                    outside = np.maximum(np.maximum(low - position, position - high), 0)[:2]
                    assert np.hypot(*outside) > 0.39, (house.scene_id, viewpoint)
        assert {viewpoint.room for viewpoint in house.viewpoints} == set(range(len(house.rooms)))


def test_viewpoint_ids_are_unique(houses: list[House]) -> None:
    ids = [viewpoint.viewpoint_id for house in houses for viewpoint in house.viewpoints]
    assert len(set(ids)) == len(ids)
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in ids)


def test_edges_stay_in_the_air_and_clear_of_furniture_and_steps(houses: list[House]) -> None:
    for house in houses:
        air = [(np.array(room.low), np.array(room.high)) for room in house.rooms]
        air += [tuple(np.array(opening_bounds(house, opening))) for opening in house.openings]
        solids = [(np.array(step.low), np.array(step.high)) for step in house.stairs]
        for item in house.furniture:
            low, high = extent(item)
            floor = house.rooms[item.room].low[2]
            if high[2] - floor > 0.3:
                solids.append((np.array([*low[:2] - 0.26, floor]), np.array([*high[:2] + 0.26, floor + 2.7])))
        for start, end in edge_lines(house):
            reached = 0.0
            for enter, leave in sorted(
                inside_range(start, end, low - TOLERANCE, high + TOLERANCE) for low, high in air
            ):
                if enter <= reached + TOLERANCE and leave > enter:
                    reached = max(reached, leave)
            assert reached > 1 - TOLERANCE, (house.scene_id, start, end)
            for low, high in solids:
                if (low < np.maximum(start, end)).all() and (high > np.minimum(start, end)).all():
                    enter, leave = inside_range(start, end, low, high)
                    assert leave <= enter, (house.scene_id, start, end)


def test_stairs_connect_the_storeys(houses: list[House]) -> None:
    num_stairs = 0
    for house in houses:
        stairs = [index for index, room in enumerate(house.rooms) if room.kind == "stairs"]
        assert bool(stairs) == bool(house.stairs)
        for index in stairs:
            assert all(step.low[2] == 0 and step.high[2] <= STOREY_HEIGHT for step in house.stairs)
            heights = sorted({round(step.high[2], 4) for step in house.stairs})
            assert np.allclose(np.diff([0, *heights]), STOREY_HEIGHT / 16)
            assert sorted(opening.bottom for opening in openings_of(house, index)) == [0, STOREY_HEIGHT]
            landings = [n for n, viewpoint in enumerate(house.viewpoints) if viewpoint.room == index]
            positions = [house.viewpoints[n].position for n in landings]
            assert [z for _, _, z in positions] == [
                CAMERA_HEIGHT,
                STOREY_HEIGHT / 2 + CAMERA_HEIGHT,
                STOREY_HEIGHT + CAMERA_HEIGHT,
            ]
            low, middle, high = landings
            assert {(low, middle), (middle, high)} <= set(house.edges)
            for x, y, z in positions:
                below = [
                    step.high[2]
                    for step in house.stairs
                    if step.low[0] <= x <= step.high[0] and step.low[1] <= y <= step.high[1]
                ]
                assert z - CAMERA_HEIGHT == pytest.approx(max(below, default=0.0))
            num_stairs += 1
    assert num_stairs >= 8


def test_graphs_are_like_those_of_matterport(houses: list[House]) -> None:
    degrees, lengths, sizes, dead_ends, num_suites = [], [], [], [], 0
    for house in houses:
        graph = build_graph(house)
        assert graph.is_connected and len(graph) == len(house.viewpoints)
        assert all(a < b for a, b in house.edges) and len(set(house.edges)) == len(house.edges)
        lines = edge_lines(house)
        edge_lengths = np.linalg.norm(lines[:, 0] - lines[:, 1], axis=1)
        assert edge_lengths.min() >= 0.8 and edge_lengths.max() <= 5.0
        degrees.append(graph.degrees.mean())
        lengths.append(edge_lengths.mean())
        sizes.append(len(graph))
        dead_ends.append((graph.degrees == 1).mean())
        for index, room in enumerate(house.rooms):
            if room.kind == "bathroom":
                neighbours = [
                    house.rooms[n].kind for o in openings_of(house, index) for n in o.rooms if n != index
                ]
                num_suites += neighbours == ["bedroom"]
    assert 3.5 < np.mean(degrees) < 4.6
    assert 1.6 < np.mean(lengths) < 2.8
    assert min(sizes) >= 30 and max(sizes) <= 150 and 35 < np.mean(sizes) < 60
    assert 0.01 < np.mean(dead_ends) < 0.15 and num_suites >= 8
