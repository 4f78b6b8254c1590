"""Generated houses: sound buildings, free ways, and graphs like Matterport's, over thirty seeds."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from esceme.errors import ConfigError
from esceme.synth.house import graph_of, make_house
from esceme.synth.plan import EYE, STOREY, WALL, Furniture, House, Opening, Room

pytestmark = pytest.mark.long

SEEDS = range(30)
TINY = 1e-5


@pytest.fixture(scope="module")
def houses() -> list[House]:
    return [make_house(f"scene{seed}", seed) for seed in SEEDS]


def box(house: House, opening: Opening) -> tuple[np.ndarray, np.ndarray]:
    """The air in an opening."""
    first, second = (house.rooms[index] for index in opening.rooms)
    low, high = np.empty(3), np.empty(3)
    low[opening.axis], high[opening.axis] = first.high[opening.axis], second.low[opening.axis]
    low[1 - opening.axis], high[1 - opening.axis] = opening.low, opening.high
    low[2], high[2] = opening.bottom, opening.top
    return low, high


def within(start: np.ndarray, end: np.ndarray, low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """From where to where (shares of its length) a line is inside a box; empty if the end comes first."""
    share = [0.0, 1.0]
    for a, b, lo, hi in zip(start, end, low, high, strict=True):
        if abs(b - a) < 1e-12:
            if not lo <= a <= hi:
                return 1.0, 0.0
            continue
        near, far = sorted(((lo - a) / (b - a), (hi - a) / (b - a)))
        share = [max(share[0], near), min(share[1], far)]
    return share[0], share[1]


def extent(thing: Furniture) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.min([part.low for part in thing.boxes], axis=0),
        np.max([part.high for part in thing.boxes], axis=0),
    )


def at(house: House) -> np.ndarray:
    return np.array([place.position for place in house.places])


def ways_in(house: House, room: int) -> list[Opening]:
    return [opening for opening in house.openings if room in opening.rooms]


def test_a_house_is_decided_by_its_name_and_seed() -> None:
    assert make_house("a", 1) == make_house("a", 1)
    assert make_house("a", 1) != make_house("a", 2) and make_house("a", 1) != make_house("b", 1)
    program = "from esceme.synth.house import make_house; print(make_house('a', 1))"
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told.strip() == str(make_house("a", 1))


def test_only_one_or_two_storeys_can_be_asked_for() -> None:
    for storeys in (1, 2):
        assert max(room.storey for room in make_house("a", 3, storeys=storeys).rooms) == storeys - 1
    with pytest.raises(ConfigError, match="storeys, not 3"):
        make_house("a", 1, storeys=3)


def test_rooms_do_not_overlap_and_leave_room_for_walls(houses: list[House]) -> None:
    for house in houses:
        for a, b in itertools.combinations(house.rooms, 2):
            gap = np.maximum(np.subtract(a.low, b.high), np.subtract(b.low, a.high))
            assert gap[:2].max() > WALL - TINY or gap[2] > 0.2, (house.scene_id, a.kind, b.kind)
        for room in house.rooms:
            storeys = 2 if room.kind == "stairs" else 1
            assert room.high[2] - room.low[2] == pytest.approx(2.7 + (storeys - 1) * STOREY)
            assert room.low[2] == room.storey * STOREY
            assert min(room.high[0] - room.low[0], room.high[1] - room.low[1]) > 1.3


def test_openings_are_in_the_wall_between_their_rooms(houses: list[House]) -> None:
    for house in houses:
        for opening in house.openings:
            first, second = (house.rooms[index] for index in opening.rooms)
            assert second.low[opening.axis] - first.high[opening.axis] == pytest.approx(WALL)
            for room in (first, second):
                assert room.low[1 - opening.axis] - TINY <= opening.low
                assert opening.high <= room.high[1 - opening.axis] + TINY
                assert room.low[2] <= opening.bottom < opening.top <= room.high[2] + TINY
            assert opening.high - opening.low >= (0.9 if opening.kind == "door" else 1.2) - TINY


def test_openings_of_one_wall_do_not_overlap(houses: list[House]) -> None:
    for house in houses:
        for a, b in itertools.combinations(house.openings, 2):
            (low_a, high_a), (low_b, high_b) = box(house, a), box(house, b)
            assert np.maximum(low_a - high_b, low_b - high_a).max() > -TINY


def test_every_house_has_the_rooms_of_a_home(houses: list[House]) -> None:
    for house in houses:
        kinds = Counter(room.kind for room in house.rooms)
        assert all(
            kinds[kind] >= 1 for kind in ("entry", "kitchen", "living room", "dining room", "bathroom")
        )
        assert kinds["bedroom"] >= 2
        assert kinds["stairs"] == max(room.storey for room in house.rooms)
    everything = {room.kind for house in houses for room in house.rooms}
    assert everything >= {"hallway", "closet", "laundry", "office", "stairs"}
    assert 8 <= sum(any(room.kind == "stairs" for room in house.rooms) for house in houses) <= 22


def test_furniture_is_in_its_room_and_not_in_other_furniture(houses: list[House]) -> None:
    for house in houses:
        assert len({thing.object_id for thing in house.furniture}) == len(house.furniture)
        for thing in house.furniture:
            low, high = extent(thing)
            room = house.rooms[thing.room]
            assert (low >= np.array(room.low) - TINY).all() and (high <= np.array(room.high) + TINY).all()
            assert all(part.low[axis] < part.high[axis] for part in thing.boxes for axis in range(3))
            assert thing.surface in {part.surface for part in thing.boxes}
        for a, b in itertools.combinations(house.furniture, 2):
            if a.room == b.room and "rug" not in (a.name, b.name):
                (low_a, high_a), (low_b, high_b) = extent(a), extent(b)
                assert np.maximum(low_a - high_b, low_b - high_a).max() > -TINY, (a.name, b.name)


def test_furniture_blocks_no_opening(houses: list[House]) -> None:
    for house in houses:
        for thing in house.furniture:
            low, high = extent(thing)
            if high[2] - house.rooms[thing.room].low[2] <= 0.3:
                continue
            for opening in ways_in(house, thing.room):
                hole_low, hole_high = box(house, opening)
                hole_low[opening.axis] -= 0.1
                hole_high[opening.axis] += 0.1
                assert np.maximum(low - hole_high, hole_low - high).max() > -TINY, (thing.name, opening.kind)


def test_places_have_room_around_them(houses: list[House]) -> None:
    for house in houses:
        solid = [(thing.room, *extent(thing)) for thing in house.furniture if thing.name != "rug"]
        for place in house.places:
            room = house.rooms[place.room]
            spot = np.array(place.position)
            assert (spot > np.array(room.low) + 0.4).all() and (spot < np.array(room.high)).all()
            for index, low, high in solid:
                if index == place.room:
                    beyond = np.maximum(np.maximum(low - spot, spot - high), 0)[:2]
                    assert np.hypot(*beyond) > 0.39, (house.scene_id, place)


def test_every_room_has_a_place_and_every_place_a_name_of_its_own(houses: list[House]) -> None:
    names = [place.viewpoint for house in houses for place in house.places]
    assert len(set(names)) == len(names)
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
    for house in houses:
        assert {place.room for place in house.places} == set(range(len(house.rooms)))


def test_edges_lead_through_openings_only(houses: list[House]) -> None:
    for house in houses:
        air = [(np.array(room.low), np.array(room.high)) for room in house.rooms]
        air += [box(house, opening) for opening in house.openings]
        for start, end in at(house)[np.array(house.edges)]:
            pieces = sorted(within(start, end, low - TINY, high + TINY) for low, high in air)
            reached = 0.0
            for low, high in pieces:
                if low <= reached + TINY and high > low:
                    reached = max(reached, high)
            assert reached > 1 - TINY, (house.scene_id, start, end)


def test_edges_keep_off_furniture(houses: list[House]) -> None:
    for house in houses:
        solid = []
        for thing in house.furniture:
            low, high = extent(thing)
            floor = house.rooms[thing.room].low[2]
            if high[2] - floor > 0.3:
                solid.append((np.array([*low[:2] - 0.26, floor]), np.array([*high[:2] + 0.26, floor + 2.7])))
        for start, end in at(house)[np.array(house.edges)]:
            for low, high in solid:
                if (low < np.maximum(start, end)).all() and (high > np.minimum(start, end)).all():
                    near, far = within(start, end, low, high)
                    assert far <= near, (house.scene_id, start, end)


def test_stairs_lead_from_storey_to_storey(houses: list[House]) -> None:
    climbed = 0
    for house in houses:
        stairs = [index for index, room in enumerate(house.rooms) if room.kind == "stairs"]
        assert bool(stairs) == bool(house.stairs)
        for index in stairs:
            room = house.rooms[index]
            assert all(step.low[2] == 0 and step.high[2] <= STOREY for step in house.stairs)
            heights = sorted({round(step.high[2], 4) for step in house.stairs})
            assert np.allclose(np.diff([0, *heights]), STOREY / 16)
            assert sorted(opening.bottom for opening in ways_in(house, index)) == [0, STOREY]
            rests = [at for at, place in enumerate(house.places) if place.room == index]
            assert [house.places[at].position[2] for at in rests] == [EYE, STOREY / 2 + EYE, STOREY + EYE]
            low, middle, high = rests
            assert {(low, middle), (middle, high)} <= set(house.edges)
            for x, y, z in (house.places[at].position for at in rests):
                under = [
                    s.high[2] for s in house.stairs if s.low[0] < x < s.high[0] and s.low[1] < y < s.high[1]
                ]
                stood_on = max(under, default=room.low[2])
                on_border = middle_of(house, (x, y))
                assert z - EYE == pytest.approx(max(stood_on, on_border))
            climbed += 1
    assert climbed >= 8


def middle_of(house: House, spot: tuple[float, float]) -> float:
    """How high the step is that a spot touches, borders included."""
    x, y = spot
    tops = [s.high[2] for s in house.stairs if s.low[0] <= x <= s.high[0] and s.low[1] <= y <= s.high[1]]
    return max(tops, default=0.0)


def test_nobody_walks_through_steps(houses: list[House]) -> None:
    for house in houses:
        for start, end in at(house)[np.array(house.edges)]:
            for step in house.stairs:
                near, far = within(start, end, np.array(step.low), np.array(step.high))
                assert far <= near


def test_graphs_are_like_those_of_matterport(houses: list[House]) -> None:
    degrees, lengths, sizes = [], [], []
    for house in houses:
        graph = graph_of(house)
        assert graph.is_connected and len(graph) == len(house.places)
        assert all(a < b for a, b in house.edges) and len(set(house.edges)) == len(house.edges)
        ends = at(house)[np.array(house.edges)]
        steps = np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1)
        assert steps.min() >= 0.8 and steps.max() <= 5.0
        degrees.append(graph.degrees.mean())
        lengths.append(steps.mean())
        sizes.append(len(graph))
    print(f"degree {np.mean(degrees):.2f}, edge {np.mean(lengths):.2f} m, {np.mean(sizes):.1f} places")
    assert 3.5 < np.mean(degrees) < 4.6
    assert 1.6 < np.mean(lengths) < 2.8
    assert min(sizes) >= 30 and max(sizes) <= 150 and 35 < np.mean(sizes) < 60


def test_large_houses_are_larger() -> None:
    sizes = [len(make_house("villa", seed, large=True).places) for seed in range(6)]
    assert np.mean(sizes) > 62 and max(sizes) <= 150


def test_long_corridors_and_corners_occur(houses: list[House]) -> None:
    def length(room: Room) -> float:
        return max(room.high[0] - room.low[0], room.high[1] - room.low[1])

    halls = [max(length(room) for room in house.rooms if room.kind == "hallway") for house in houses]
    assert sum(hall > 9 for hall in halls) >= 5
    corners = [
        opening
        for house in houses
        for opening in house.openings
        if opening.kind == "open" and {house.rooms[index].kind for index in opening.rooms} == {"hallway"}
    ]
    assert len(corners) >= 3


def test_open_plan_spaces_occur(houses: list[House]) -> None:
    public = {"kitchen", "dining room", "living room"}
    joined = [
        opening.kind
        for house in houses
        for opening in house.openings
        if {house.rooms[index].kind for index in opening.rooms} <= public
    ]
    assert joined.count("open") >= 5 and joined.count("arch") >= 5


def test_look_alike_bedrooms_occur(houses: list[House]) -> None:
    def look(house: House, index: int) -> tuple[object, ...]:
        things = sorted(
            (thing.name, thing.surface.colour) for thing in house.furniture if thing.room == index
        )
        return house.rooms[index].floor, house.rooms[index].walls, things

    alike = 0
    for house in houses:
        looks = [look(house, index) for index, room in enumerate(house.rooms) if room.kind == "bedroom"]
        alike += any(a == b for a, b in itertools.combinations(looks, 2))
    assert alike >= 4


def test_dead_ends_occur(houses: list[House]) -> None:
    ends = [(graph_of(house).degrees == 1).mean() for house in houses]
    assert 0.01 < np.mean(ends) < 0.15
    suites = 0
    for house in houses:
        for index, room in enumerate(house.rooms):
            if room.kind == "bathroom":
                (way, *others) = ways_in(house, index)
                suites += not others and "bedroom" in {house.rooms[at].kind for at in way.rooms}
    assert suites >= 8


def test_furniture_is_where_it_belongs(houses: list[House]) -> None:
    rooms: dict[str, Counter[str]] = {}
    for house in houses:
        for thing in house.furniture:
            rooms.setdefault(thing.name, Counter())[house.rooms[thing.room].kind] += 1
    assert len(rooms) >= 48
    assert set(rooms["bathtub"]) == {"bathroom"} and set(rooms["stove"]) == {"kitchen"}
    assert len(rooms["painting"]) >= 5 and len(rooms["plant"]) >= 5
    missing = Counter(
        name
        for house in houses
        for name in ("bed", "sofa", "dining table", "counter", "window")
        if name not in {thing.name for thing in house.furniture}
    )
    assert not missing
