"""Panoramas of a generated house: equirectangular pictures, with what and how far away each pixel shows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.synth.casting import Hits, Lens, Stage, cast
from esceme.synth.plan import House, Place, Room, Surface
from esceme.synth.texture import TEXTURES, lookup

SKIRTING = 0.09
"""Height of the board along the foot of a room's walls."""
SKIRTING_RGB = (226, 222, 214)
FACING = (0.84, 0.88, 0.94, 0.97, 0.78, 1.0)
"""How bright a solid's faces are, by the side they turn to: west, east, south, north, down, up."""
INDOORS = (0.89, 0.92, 0.96, 0.98, 1.0, 0.96)
"""How bright a room's sides are: west, east, south, north, floor, ceiling."""
SHADOW, SHADOW_WIDTH, SHADOW_HEIGHT = 0.34, 0.30, 1.2
"""Furniture darkens the floor: by how much at most, how far around it, and from how high above it."""
SHADOW_TEXEL = 0.02
FADING = 40.0
"""What is this many metres away is half as bright."""
CORNER = (0.20, 0.22)
"""Rooms darken towards their edges: by how much, and within how many metres."""
RIM = (0.10, 0.012)
"""So do the faces of solids, less and more narrowly."""
BLOCK = 64
"""Columns shaded at a time: few enough to stay in the processor's cache."""

Grid = NDArray[np.float32]


class Panorama(NamedTuple):
    """What one sees all around: heading 0 in the middle, clockwise to the right, up at the top."""

    rgb: NDArray[np.uint8]
    """(H, 2H, 3)."""
    objects: NDArray[np.int16]
    """(H, 2H): the piece of furniture by its index in the house, or -1."""
    depth: NDArray[np.float32]
    """(H, 2H): metres to what is seen."""


def render(house: House, place: int | Place, *, height: int = 512) -> Panorama:
    """The panorama of a place; for many places of one house, keep a `Renderer`."""
    return Renderer(house, height=height).render(place)


class Renderer:
    """Draws the panoramas of one house."""

    def __init__(self, house: House, *, height: int = 512) -> None:
        self.house = house
        self.stage = Stage(house)
        self.lens = Lens(height)
        self.paint = Paint(self.stage)

    def render(self, place: int | Place) -> Panorama:
        """The panorama of a place, given as such or by its index; the same bytes every time."""
        place = place if isinstance(place, Place) else self.house.places[place]
        lens, hits = self.lens, cast(self.stage, place.position, self.lens)
        rgb = np.empty((lens.height, lens.width, 3), dtype=np.uint8)
        for start in range(0, lens.width, BLOCK):
            columns = slice(start, start + BLOCK)
            rgb[:, columns] = shade(self.paint, hits, place.position, lens, columns)
        face = np.ascontiguousarray(hits.face.T)
        soften(rgb, face)
        depth = hits.distance.T * lens.stretch[:, None]
        return Panorama(rgb, self.stage.owner[face // 6], depth)

    def objects(self, place: int | Place) -> NDArray[np.int16]:
        """Only which thing each pixel shows, as in the panorama: quicker, since nothing is painted."""
        place = place if isinstance(place, Place) else self.house.places[place]
        return self.stage.owner[cast(self.stage, place.position, self.lens).face.T // 6]


class Paint:
    """How every face of a stage looks; arrays by the face's number."""

    def __init__(self, stage: Stage) -> None:
        house = stage.house
        surfaces = [surface for room in house.rooms for surface in room_surfaces(room)]
        for opening in house.openings:
            floor = house.rooms[opening.rooms[0]].floor
            surfaces += [*[opening.frame] * 4, floor, opening.frame]
        surfaces += [box.surface for box in stage.boxes for _ in range(6)]
        faces, airy = np.arange(len(surfaces)), np.arange(len(surfaces)) < 6 * stage.cells
        solid, side = faces // 6, faces % 6
        axis = side // 2
        across, up = np.where(axis == 0, 1, 0), np.where(axis == 2, 1, 2)
        self.axis = axis.astype(np.int8)
        light = np.where(airy, np.array(INDOORS)[side], np.array(FACING)[side])
        self.rgb: Grid = (np.array([surface.rgb for surface in surfaces]) * light[:, None]).astype(np.float32)
        self.texture = np.array([TEXTURES.index(surface.texture) for surface in surfaces], dtype=np.int32)
        self.start: Grid = np.stack([stage.low[solid, across], stage.low[solid, up]]).astype(np.float32)
        self.size: Grid = np.stack([stage.high[solid, across], stage.high[solid, up]]).astype(np.float32)
        self.size -= self.start
        self.plane: Grid = np.where(side % 2, stage.high[solid, axis], stage.low[solid, axis]).astype(
            np.float32
        )
        self.edge: Grid = np.where(airy, *np.array([CORNER, RIM])[:, :, None]).astype(np.float32)
        lengthwise = np.isin(self.texture, [TEXTURES.index("planks"), TEXTURES.index("grain")])
        self.swapped = lengthwise & (self.size[1] > self.size[0])
        self.skirting: Grid = np.where((solid < len(house.rooms)) & (axis < 2), SKIRTING, -1).astype(
            np.float32
        )
        self.shadow = Shadow(stage)
        self._continue_floors(house)

    def _continue_floors(self, house: House) -> None:
        """Let the floor of an open-plan space run on between its rooms."""
        for index, opening in enumerate(house.openings, start=len(house.rooms)):
            if opening.kind == "open":
                strip, floor = 6 * index + 4, 6 * opening.rooms[0] + 4
                self.start[:, strip], self.swapped[strip] = self.start[:, floor], self.swapped[floor]
                self.edge[0, strip] = 0
                self.rgb[strip] *= 1 - CORNER[0]  # as dark as the edges of the floors it joins


def room_surfaces(room: Room) -> tuple[Surface, ...]:
    """The surfaces of a room's six faces."""
    return (*[room.walls] * 4, room.floor, room.ceiling)


def shade(
    paint: Paint, hits: Hits, position: tuple[float, float, float], lens: Lens, columns: slice
) -> NDArray[np.uint8]:
    """The colours of some columns, (H, columns, 3)."""
    distance, face = hits.distance[columns], hits.face[columns]
    east, north = (
        distance * lens.across[axis, columns, None].astype(np.float32) + np.float32(position[axis])
        for axis in (0, 1)
    )
    height = distance * lens.slope + np.float32(position[2])
    axis = paint.axis[face]
    u = np.where(axis == 0, north, east) - paint.start[0][face]
    v = np.where(axis == 2, north, height) - paint.start[1][face]
    depth: Grid = distance * lens.stretch
    light = 1 - _darkness(paint, face, u, v)
    light *= FADING / (FADING + depth)
    swapped = paint.swapped[face]
    aside = np.abs(paint.plane - np.array(position, dtype=np.float32)[paint.axis])
    footprint = depth * np.sqrt(depth / np.maximum(aside, np.float32(0.01))[face])
    footprint *= np.float32(np.pi / lens.height)
    foot = v < paint.skirting[face]
    texture = np.where(foot, 0, paint.texture[face])
    light *= lookup(texture, np.where(swapped, v, u), np.where(swapped, u, v), footprint)
    paint.shadow.darken(light, face, east, north)
    rgb = paint.rgb.take(face, axis=0)
    rgb[foot] = SKIRTING_RGB
    rgb *= light[..., None]
    return np.minimum(rgb, 255, out=rgb).astype(np.uint8).transpose(1, 0, 2)


def _darkness(paint: Paint, face: NDArray[np.int32], u: Grid, v: Grid) -> Grid:
    """How much a face darkens towards its edges."""
    much, within = paint.edge[0][face], paint.edge[1][face]
    from_sides = np.minimum(u, paint.size[0][face] - u)
    from_ends = np.minimum(v, paint.size[1][face] - v)
    return (
        much * within * (1 / (within + np.maximum(from_sides, 0)) + 1 / (within + np.maximum(from_ends, 0)))
    )


class Shadow:
    """Soft shadows of furniture and stairs on the floor: one map of light per room, seen from above."""

    def __init__(self, stage: Stage) -> None:
        rooms = stage.house.rooms
        self.map_of: NDArray[np.int32] = np.full(6 * len(stage.low), -1, dtype=np.int32)
        """By the number of a face: its room's map, or -1 where nothing throws shadows on it."""
        self.map_of[6 * np.arange(len(rooms)) + 4] = np.arange(len(rooms))
        self.corner: Grid = np.array([room.low[:2] for room in rooms], dtype=np.float32)
        size = np.array([np.subtract(room.high, room.low)[:2] for room in rooms])
        self.shape = np.ceil(size / SHADOW_TEXEL).astype(np.int32) + 1  # texels to the east, to the north
        self.start = np.concatenate([[0], np.cumsum(self.shape.prod(axis=1))]).astype(np.int32)
        self.light: Grid = np.ones(self.start[-1], dtype=np.float32)
        for box, room in enumerate(stage.box_rooms, start=stage.cells):
            if room < 0:
                continue
            above = stage.low[box, 2] - rooms[room].low[2]
            if above < 0.05 and stage.high[box, 2] - stage.low[box, 2] < 0.05:
                self.map_of[6 * box + 5] = room  # a rug
            elif 0 <= above < SHADOW_HEIGHT:
                self._throw(room, stage.low[box], stage.high[box], SHADOW * (1 - above / SHADOW_HEIGHT))

    def _throw(self, room: int, low: NDArray[np.float64], high: NDArray[np.float64], much: float) -> None:
        """Darken a room's map around and under a box."""
        wide, long = self.shape[room]
        light = self.light[self.start[room] : self.start[room + 1]].reshape(long, wide)
        first = np.floor((low[:2] - self.corner[room] - SHADOW_WIDTH) / SHADOW_TEXEL).astype(int)
        last = np.ceil((high[:2] - self.corner[room] + SHADOW_WIDTH) / SHADOW_TEXEL).astype(int)
        first, last = first.clip(0), last.clip(0, self.shape[room])
        gaps = []
        for axis in (0, 1):
            at = (np.arange(first[axis], last[axis]) + 0.5) * SHADOW_TEXEL + self.corner[room, axis]
            gaps.append(np.maximum(np.maximum(low[axis] - at, at - high[axis]), 0))
        away = np.hypot(gaps[0], gaps[1][:, None]) / SHADOW_WIDTH
        part = light[first[1] : last[1], first[0] : last[0]]
        np.minimum(part, 1 - much * np.maximum(1 - away, 0) ** 2, out=part)

    def darken(self, light: Grid, face: NDArray[np.int32], east: Grid, north: Grid) -> None:
        """Multiply the light on faces that lie in a shadow, in place."""
        room = self.map_of[face]
        pixel = np.flatnonzero(room >= 0)
        room = room.ravel()[pixel]
        column = (east.ravel()[pixel] - self.corner[room, 0]) * np.float32(1 / SHADOW_TEXEL)
        row = (north.ravel()[pixel] - self.corner[room, 1]) * np.float32(1 / SHADOW_TEXEL)
        wide, long = self.shape[:, 0][room], self.shape[:, 1][room]
        texel = np.clip(row.astype(np.int32), 0, long - 1) * wide + np.clip(
            column.astype(np.int32), 0, wide - 1
        )
        light.reshape(-1)[pixel] *= self.light[self.start[room] + texel]


def soften(rgb: NDArray[np.uint8], face: NDArray[np.int32]) -> None:
    """Blend the pixels where faces meet with their neighbours, in place: straight edges lose their steps."""
    height, width = face.shape
    edge = np.zeros(face.shape, dtype=bool)
    aside, below = face[:, 1:] != face[:, :-1], face[1:] != face[:-1]
    edge[:, 1:] |= aside
    edge[:, :-1] |= aside
    edge[1:] |= below
    edge[:-1] |= below
    pixel = np.flatnonzero(edge)
    row, column = np.divmod(pixel, width)
    flat = rgb.reshape(-1, 3)
    total = 2 * flat[pixel].astype(np.uint16)
    for neighbour in (
        row * width + (column + 1) % width,
        row * width + (column - 1) % width,
        np.minimum(row + 1, height - 1) * width + column,
        np.maximum(row - 1, 0) * width + column,
    ):
        total += flat[neighbour]
    flat[pixel] = total // 6
