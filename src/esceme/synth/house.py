"""House generation: floor plan, surfaces, furniture, viewpoints and edges."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from esceme.errors import ConfigError
from esceme.synth.furniture_placement import (
    FurnitureItem,
    RoomFurnisher,
    build_furniture,
    find_outer_walls,
    sample_furniture,
)
from esceme.synth.house_model import CAMERA_HEIGHT, Box, House, HouseViewpoint, Opening, Room, Surface
from esceme.synth.layout import Layout
from esceme.synth.layout_generator import generate_layout
from esceme.synth.palette import (
    CARPETS,
    CEILING,
    DOOR_FRAMES,
    PAINTS,
    STAIRS,
    TILED_FLOORS,
    WALL_TILES,
    WOODEN_FLOORS,
)
from esceme.synth.viewpoint_sampling import FloorPoint, FreeFloor, points_along, sample_viewpoints
from esceme.synth.walkable_edges import EdgeList, find_walkable_pairs, is_connected, select_edges
from esceme.world import SceneGraph

OPENING_HEIGHT = {"door": 2.05, "arch": 2.25, "open": 2.7}
"""Kind of opening -> its height in metres."""
MIN_VIEWPOINTS = 30
MEAN_DEGREE = 4.06
"""Mean number of candidates per viewpoint in Matterport3D."""

FurniturePlan = tuple[int, list[FurnitureItem]]
"""For one room: seed of the furniture placement, and the furniture to place."""


def generate_house(scene_id: str, seed: int, *, storeys: int | None = None) -> House:
    """Generate the house of a scene id and a seed. Equal arguments give equal houses.

    A house has 1 or 2 storeys (random by default) and 30 to 80 viewpoints.
    """
    if storeys not in (None, 1, 2):
        raise ConfigError(f"a house has 1 or 2 storeys, not {storeys}")
    rng = np.random.default_rng(list(hashlib.sha256(f"{scene_id}:{seed}".encode()).digest()))
    num_storeys = storeys or int(rng.integers(1, 3))
    while True:
        layout = generate_layout(rng, storeys=num_storeys)
        rooms, furniture_plans = _sample_surfaces_and_furniture(layout, rng)
        openings = _build_openings(layout, rooms, DOOR_FRAMES[int(rng.integers(len(DOOR_FRAMES)))])
        furnishers = _place_large_furniture(rooms, openings, furniture_plans)
        graph = _sample_viewpoints_and_edges(layout, rooms, openings, furnishers, rng)
        if graph is not None:
            break
    points, edges = graph
    furnishers = _with_edge_points(furnishers, points, edges)
    for furnisher, (_, items) in zip(furnishers, furniture_plans, strict=True):
        furnisher.furnish(items, placed_last=True)
    placed = [(item, furnisher.index) for furnisher in furnishers for item in furnisher.placed]
    return House(
        scene_id=scene_id,
        rooms=tuple(rooms),
        openings=tuple(openings),
        furniture=tuple(build_furniture(item, str(n), room) for n, (item, room) in enumerate(placed, 1)),
        stairs=tuple(
            Box((step.rect[0], step.rect[1], 0.0), (step.rect[2], step.rect[3], step.height), STAIRS)
            for step in layout.steps
        ),
        viewpoints=tuple(_build_viewpoint(scene_id, seed, n, point) for n, point in enumerate(points)),
        edges=tuple(edges),
    )


def build_graph(house: House) -> SceneGraph:
    """Return the navigation graph of a house. It equals the graph read from the house's connectivity file."""
    names = [viewpoint.viewpoint_id for viewpoint in house.viewpoints]
    positions = {viewpoint.viewpoint_id: viewpoint.position for viewpoint in house.viewpoints}
    return SceneGraph.build(house.scene_id, positions, [(names[a], names[b]) for a, b in house.edges])


def _build_viewpoint(scene_id: str, seed: int, index: int, point: FloorPoint) -> HouseViewpoint:
    """Return a viewpoint at a floor point, with an id that is a hash of the other arguments."""
    name = hashlib.sha256(f"{scene_id}:{seed}:{index}".encode()).hexdigest()[:32]
    x, y = point.xy
    return HouseViewpoint(name, point.room, (round(x, 4), round(y, 4), round(point.floor + CAMERA_HEIGHT, 4)))


def _sample_surfaces_and_furniture(
    layout: Layout, rng: np.random.Generator
) -> tuple[list[Room], list[FurniturePlan]]:
    """Sample the surfaces and the furniture of every room.

    In most houses the first two bedrooms, or the first two bathrooms, look alike.
    """
    wood = WOODEN_FLOORS[int(rng.integers(len(WOODEN_FLOORS)))]
    paint = PAINTS[int(rng.integers(len(PAINTS)))]
    has_twins = {kind: rng.random() < 0.6 for kind in ("bedroom", "bathroom")}
    rooms: list[Room] = []
    furniture_plans: list[FurniturePlan] = []
    for outline in layout.rooms:
        same_kind = [index for index, room in enumerate(rooms) if room.kind == outline.kind]
        if has_twins.get(outline.kind) and len(same_kind) == 1:
            twin = same_kind[0]
            floor, walls, plan = rooms[twin].floor, rooms[twin].walls, furniture_plans[twin]
        else:
            floor, walls = _sample_surfaces(outline.kind, wood, paint, rng)
            plan = (int(rng.integers(2**31)), sample_furniture(outline.kind, rng))
        x0, y0, x1, y1 = outline.rect
        low, high = (x0, y0, outline.bottom), (x1, y1, outline.top)
        rooms.append(Room(outline.kind, outline.storey, low, high, floor, walls, CEILING))
        furniture_plans.append(plan)
    return rooms, furniture_plans


def _sample_surfaces(
    kind: str, wood: Surface, paint: Surface, rng: np.random.Generator
) -> tuple[Surface, Surface]:
    """Sample the floor and wall surfaces of a kind of room; the house's defaults are `wood` and `paint`."""

    def sample(surfaces: Sequence[Surface]) -> Surface:
        return surfaces[int(rng.integers(len(surfaces)))]

    if kind in ("bathroom", "laundry"):
        return sample(TILED_FLOORS), sample(WALL_TILES)
    if kind == "kitchen":
        return (sample(TILED_FLOORS) if rng.random() < 0.7 else wood), sample(PAINTS)
    if kind in ("bedroom", "closet", "office"):
        return (sample(CARPETS) if rng.random() < 0.6 else wood), sample(PAINTS)
    return wood, paint


def _build_openings(layout: Layout, rooms: Sequence[Room], frame: Surface) -> list[Opening]:
    """Convert the passages of a floor plan to openings in the walls."""
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
                top=passage.bottom + OPENING_HEIGHT[passage.kind],
                kind=passage.kind,
                frame=rooms[first].walls if passage.kind == "open" else frame,
            )
        )
    return openings


def _place_large_furniture(
    rooms: Sequence[Room], openings: Sequence[Opening], furniture_plans: Sequence[FurniturePlan]
) -> list[RoomFurnisher]:
    """Place the furniture whose kind is not `placed_last`; return one furnisher per room."""
    furnishers = []
    for index, (room, (seed, items)) in enumerate(zip(rooms, furniture_plans, strict=True)):
        room_openings = [opening for opening in openings if index in opening.rooms]
        outer_walls, rng = find_outer_walls(index, rooms), np.random.default_rng(seed)
        furnishers.append(RoomFurnisher(index, room, room_openings, outer_walls, rng))
        furnishers[-1].furnish(items, placed_last=False)
    return furnishers


def _sample_viewpoints_and_edges(
    layout: Layout,
    rooms: Sequence[Room],
    openings: Sequence[Opening],
    furnishers: Sequence[RoomFurnisher],
    rng: np.random.Generator,
) -> tuple[list[FloorPoint], EdgeList] | None:
    """Return viewpoints and edges, or None if viewpoints are too few or disconnected, or a room has none."""
    stairs = [index for index, room in enumerate(rooms) if room.kind == "stairs"]
    landings = [FloorPoint(stairs[0], landing.centre, landing.height) for landing in layout.landings]
    empty = FreeFloor(np.zeros((0, 2)), np.zeros((0, 4)))
    floors = [empty if f.room.kind == "stairs" else f.free_floor() for f in furnishers]
    points = sample_viewpoints(rooms, openings, floors, landings, spacing=rng.uniform(1.35, 1.6))
    walkable = find_walkable_pairs(rooms, openings, [floor.obstacles for floor in floors], points)
    for below in range(len(landings) - 1):
        walkable[below, below + 1] = walkable[below + 1, below] = True
    covers_all_rooms = {point.room for point in points} == set(range(len(rooms)))
    if len(points) < MIN_VIEWPOINTS or not covers_all_rooms or not is_connected(walkable):
        return None
    positions = np.array([(*point.xy, point.floor) for point in points])
    return points, select_edges(walkable, positions, degree=rng.normal(MEAN_DEGREE, 0.2))


def _with_edge_points(
    furnishers: Sequence[RoomFurnisher], viewpoints: Sequence[FloorPoint], edges: EdgeList
) -> list[RoomFurnisher]:
    """Return the furnishers with the points on edges that furniture placed later must keep clear."""
    xy = np.array([point.xy for point in viewpoints])
    floors = np.array([point.floor for point in viewpoints])
    a, b = np.array(edges).T
    points, results = points_along(xy[a], xy[b], 41), []
    for furnisher in furnishers:
        low, high = furnisher.room.low, furnisher.room.high
        on_level = (np.minimum(floors[a], floors[b]) < high[2]) & (np.maximum(floors[a], floors[b]) >= low[2])
        near = points[on_level].reshape(-1, 2)
        inside = (near > np.array(low[:2]) - 0.5) & (near < np.array(high[:2]) + 0.5)
        results.append(replace(furnisher, edge_points=near[inside.all(axis=1)]))
    return results
