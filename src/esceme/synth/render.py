"""Rendering: equirectangular panoramas of a generated house with object indices and depth."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.synth.house_model import House, HouseViewpoint, Point
from esceme.synth.ray_casting import Floats, PanoramaCamera, RayHits, SceneGeometry, cast_rays
from esceme.synth.texture import TEXTURES, sample_texture

SKIRTING = 0.09
"""Height of the skirting boards in metres."""
SKIRTING_RGB = (226, 222, 214)
BOX_LIGHT = (0.84, 0.88, 0.94, 0.97, 0.78, 1.0)
"""Brightness of a box's faces: west, east, south, north, bottom, top."""
ROOM_LIGHT = (0.89, 0.92, 0.96, 0.98, 1.0, 0.96)
"""Brightness of a room's sides: west, east, south, north, floor, ceiling."""
SHADOW_STRENGTH, SHADOW_WIDTH, SHADOW_HEIGHT = 0.34, 0.30, 1.2
"""Floor shadows: maximum darkening (0 to 1), width around a box, maximum height of a box above the floor."""
SHADOW_TEXEL = 0.02
"""Size of a light map's pixel, in metres."""
HALF_LIGHT_DISTANCE = 40.0
"""Distance in metres at which brightness is halved."""
ROOM_EDGE = (0.20, 0.22)
"""Darkening of the sides of rooms towards their edges: amount (0 to 1), and width in metres."""
BOX_EDGE = (0.10, 0.012)
"""Darkening of the faces of boxes towards their edges: amount (0 to 1), and width in metres."""
COLUMNS_PER_BLOCK = 64
"""Number of columns shaded at a time, so that the arrays fit into the processor cache."""

Float32Array = NDArray[np.float32]


class Panorama(NamedTuple):
    """Equirectangular images of one viewpoint. Heading 0 is in the middle; headings increase to the right."""

    rgb: NDArray[np.uint8]
    """(H, 2H, 3): colours."""
    objects: NDArray[np.int16]
    """(H, 2H): index of the visible piece of furniture, or -1."""
    depth: NDArray[np.float32]
    """(H, 2H): distance to the visible surface in metres."""


def render(house: House, viewpoint: int | HouseViewpoint, *, height: int = 512) -> Panorama:
    """Render the panorama of one viewpoint; `height` is in pixels.

    Use one `Renderer` for several viewpoints of a house, which is faster.
    """
    return Renderer(house, height=height).render(viewpoint)


class Renderer:
    """Renders panoramas of one house; `height` is the height of the images in pixels."""

    def __init__(self, house: House, *, height: int = 512) -> None:
        self.house = house
        self.geometry = SceneGeometry(house)
        self.camera = PanoramaCamera(height)
        self.faces = FaceAppearance(self.geometry)

    def render(self, viewpoint: int | HouseViewpoint) -> Panorama:
        """Render the panorama of a viewpoint or of a viewpoint index. The result is deterministic."""
        if not isinstance(viewpoint, HouseViewpoint):
            viewpoint = self.house.viewpoints[viewpoint]
        position = viewpoint.position
        camera, hits = self.camera, cast_rays(self.geometry, position, self.camera)
        rgb = np.empty((camera.height, camera.width, 3), dtype=np.uint8)
        for start in range(0, camera.width, COLUMNS_PER_BLOCK):
            columns = slice(start, start + COLUMNS_PER_BLOCK)
            rgb[:, columns] = shade_columns(self.faces, hits, position, camera, columns)
        face = np.ascontiguousarray(hits.face.T)
        antialias_face_boundaries(rgb, face)
        depth = hits.distance.T * camera.stretch[:, None]
        return Panorama(rgb, self.geometry.object_index_of[face // 6], depth)


class FaceAppearance:
    """Colour, texture and shading parameters of every face of a scene; arrays indexed by face number."""

    def __init__(self, geometry: SceneGeometry) -> None:
        house = geometry.house
        surfaces = []
        for room in house.rooms:
            surfaces += [*[room.walls] * 4, room.floor, room.ceiling]
        for opening in house.openings:
            floor = house.rooms[opening.rooms[0]].floor
            surfaces += [*[opening.frame] * 4, floor, opening.frame]
        surfaces += [box.surface for box in geometry.boxes for _ in range(6)]
        faces = np.arange(len(surfaces))
        solid, side, is_air = faces // 6, faces % 6, faces < 6 * geometry.num_cells
        axis = side // 2
        across, up = np.where(axis == 0, 1, 0), np.where(axis == 2, 1, 2)
        low, high = geometry.low, geometry.high
        self.axis = axis.astype(np.int8)
        light = np.where(is_air, np.array(ROOM_LIGHT)[side], np.array(BOX_LIGHT)[side])
        self.rgb: Float32Array = (np.array([surface.rgb for surface in surfaces]) * light[:, None]).astype(
            np.float32
        )
        self.texture = np.array([TEXTURES.index(surface.texture) for surface in surfaces], dtype=np.int32)
        self.start: Float32Array = np.stack([low[solid, across], low[solid, up]]).astype(np.float32)
        self.size: Float32Array = np.stack([high[solid, across], high[solid, up]]).astype(np.float32)
        self.size -= self.start
        self.plane: Float32Array = np.where(side % 2, high[solid, axis], low[solid, axis]).astype(np.float32)
        self.edge_shading: Float32Array = np.where(
            is_air, *np.array([ROOM_EDGE, BOX_EDGE])[:, :, None]
        ).astype(np.float32)
        is_directed = np.isin(self.texture, [TEXTURES.index("planks"), TEXTURES.index("grain")])
        self.is_swapped = is_directed & (self.size[1] > self.size[0])
        is_wall = (solid < len(house.rooms)) & (axis < 2)
        self.skirting: Float32Array = np.where(is_wall, SKIRTING, -1).astype(np.float32)
        self.shadows = FloorShadows(geometry)
        for index, opening in enumerate(house.openings, start=len(house.rooms)):
            if opening.kind == "open":  # continue the floor of an open-plan space between its rooms
                strip, floor_face = 6 * index + 4, 6 * opening.rooms[0] + 4
                self.start[:, strip] = self.start[:, floor_face]
                self.is_swapped[strip] = self.is_swapped[floor_face]
                self.edge_shading[0, strip] = 0
                self.rgb[strip] *= 1 - ROOM_EDGE[0]  # as dark as the edges of the floors it joins


def shade_columns(
    faces: FaceAppearance, hits: RayHits, position: Point, camera: PanoramaCamera, columns: slice
) -> NDArray[np.uint8]:
    """Return the colours (H, columns, 3) of a range of panorama columns."""
    distance, face = hits.distance[columns], hits.face[columns]
    east, north = (
        distance * camera.horizontal[axis, columns, None].astype(np.float32) + np.float32(position[axis])
        for axis in (0, 1)
    )
    height = distance * camera.slope + np.float32(position[2])
    axis = faces.axis[face]
    u = np.where(axis == 0, north, east) - faces.start[0][face]
    v = np.where(axis == 2, north, height) - faces.start[1][face]
    depth: Float32Array = distance * camera.stretch
    light = 1 - _edge_darkness(faces, face, u, v)
    light *= HALF_LIGHT_DISTANCE / (HALF_LIGHT_DISTANCE + depth)
    swapped = faces.is_swapped[face]
    plane_distance = np.abs(faces.plane - np.array(position, dtype=np.float32)[faces.axis])
    footprint = depth * np.sqrt(depth / np.maximum(plane_distance, np.float32(0.01))[face])
    footprint *= np.float32(np.pi / camera.height)
    is_skirting = v < faces.skirting[face]
    texture = np.where(is_skirting, 0, faces.texture[face])
    light *= sample_texture(texture, np.where(swapped, v, u), np.where(swapped, u, v), footprint)
    faces.shadows.darken(light, face, east, north)
    rgb = faces.rgb.take(face, axis=0)
    rgb[is_skirting] = SKIRTING_RGB
    rgb *= light[..., None]
    return np.minimum(rgb, 255, out=rgb).astype(np.uint8).transpose(1, 0, 2)


def _edge_darkness(
    faces: FaceAppearance, face: NDArray[np.int32], u: Float32Array, v: Float32Array
) -> Float32Array:
    """Return how much edges darken pixels at coordinates (u, v) of their faces, from 0 to 1."""
    amount, width = faces.edge_shading[0][face], faces.edge_shading[1][face]
    from_sides = np.minimum(u, faces.size[0][face] - u)
    from_ends = np.minimum(v, faces.size[1][face] - v)
    return amount * width * (1 / (width + np.maximum(from_sides, 0)) + 1 / (width + np.maximum(from_ends, 0)))


class FloorShadows:
    """Soft shadows of furniture and stairs on floors: one light map per room, seen from above."""

    def __init__(self, geometry: SceneGeometry) -> None:
        rooms = geometry.house.rooms
        self.light_map_of_face: NDArray[np.int32] = np.full(6 * len(geometry.low), -1, dtype=np.int32)
        """Face number -> room index of its light map; -1 for faces without shadows."""
        self.light_map_of_face[6 * np.arange(len(rooms)) + 4] = np.arange(len(rooms))
        self.corner: Float32Array = np.array([room.low[:2] for room in rooms], dtype=np.float32)
        size = np.array([np.subtract(room.high, room.low)[:2] for room in rooms])
        self.shape = np.ceil(size / SHADOW_TEXEL).astype(np.int32) + 1  # texels to the east, to the north
        self.start = np.concatenate([[0], np.cumsum(self.shape.prod(axis=1))]).astype(np.int32)
        self.light: Float32Array = np.ones(self.start[-1], dtype=np.float32)
        for box, room in enumerate(geometry.box_rooms, start=geometry.num_cells):
            if room < 0:
                continue
            low, high = geometry.low[box], geometry.high[box]
            above = low[2] - rooms[room].low[2]
            if above < 0.05 and high[2] - low[2] < 0.05:
                self.light_map_of_face[6 * box + 5] = room  # a rug
            elif 0 <= above < SHADOW_HEIGHT:
                self._add_shadow(room, low, high, SHADOW_STRENGTH * (1 - above / SHADOW_HEIGHT))

    def _add_shadow(self, room: int, low: Floats, high: Floats, amount: float) -> None:
        """Darken the light map of a room around and under a box; `amount` is the maximum darkening."""
        width, length = self.shape[room]
        light = self.light[self.start[room] : self.start[room + 1]].reshape(length, width)
        first = np.floor((low[:2] - self.corner[room] - SHADOW_WIDTH) / SHADOW_TEXEL).astype(int)
        last = np.ceil((high[:2] - self.corner[room] + SHADOW_WIDTH) / SHADOW_TEXEL).astype(int)
        first, last = first.clip(0), last.clip(0, self.shape[room])
        gaps = []
        for axis in (0, 1):
            at = (np.arange(first[axis], last[axis]) + 0.5) * SHADOW_TEXEL + self.corner[room, axis]
            gaps.append(np.maximum(np.maximum(low[axis] - at, at - high[axis]), 0))
        away = np.hypot(gaps[0], gaps[1][:, None]) / SHADOW_WIDTH
        part = light[first[1] : last[1], first[0] : last[0]]
        np.minimum(part, 1 - amount * np.maximum(1 - away, 0) ** 2, out=part)

    def darken(
        self, light: Float32Array, face: NDArray[np.int32], east: Float32Array, north: Float32Array
    ) -> None:
        """Darken `light` in place where pixels show a shadowed floor at world coordinates (east, north)."""
        room = self.light_map_of_face[face]
        pixel = np.flatnonzero(room >= 0)
        room = room.ravel()[pixel]
        column = (east.ravel()[pixel] - self.corner[room, 0]) * np.float32(1 / SHADOW_TEXEL)
        row = (north.ravel()[pixel] - self.corner[room, 1]) * np.float32(1 / SHADOW_TEXEL)
        width, length = self.shape[:, 0][room], self.shape[:, 1][room]
        texel = np.clip(row.astype(np.int32), 0, length - 1) * width + np.clip(
            column.astype(np.int32), 0, width - 1
        )
        light.reshape(-1)[pixel] *= self.light[self.start[room] + texel]


def antialias_face_boundaries(rgb: NDArray[np.uint8], face: NDArray[np.int32]) -> None:
    """Blend the pixels at boundaries of faces with their four neighbours, in place."""
    height, width = face.shape
    edge = np.zeros(face.shape, dtype=bool)
    right, below = face[:, 1:] != face[:, :-1], face[1:] != face[:-1]
    edge[:, 1:] |= right
    edge[:, :-1] |= right
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
