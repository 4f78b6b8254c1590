"""Panorama rendering: columns split into spans against one ray per pixel and box.

The baseline casts each pixel's ray on its own and intersects it with all rooms, openings and boxes in one
array expression; it finds distance and object, no colour. A whole panorama takes about a minute, so it casts
a random sample of pixels and its time is scaled up. Ours renders distance, objects, light and textures. The
benchmark checks that both agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Ratio, both_sides
from esceme.synth.house import generate_house
from esceme.synth.house_model import House
from esceme.synth.ray_casting import door_frames, opening_bounds
from esceme.synth.render import Panorama, Renderer

HEIGHT, NUM_PIXELS, NUM_VIEWPOINTS = 512, 4000, 8


class PerPixelCaster:
    """Casts one ray at a time against the whole house."""

    def __init__(self, house: House, height: int = HEIGHT) -> None:
        air = [(room.low, room.high) for room in house.rooms]
        air += [opening_bounds(house, opening) for opening in house.openings]
        boxes = [(box, index) for index, item in enumerate(house.furniture) for box in item.boxes]
        boxes += [(box, -1) for box in house.stairs]
        boxes += [(box, -1) for opening in house.openings for box, _ in door_frames(house, opening)]
        self.height, self.num_cells = height, len(air)
        self.extents = np.array(air + [(box.low, box.high) for box, _ in boxes])
        self.objects = [index for _, index in boxes]

    def cast(self, start: tuple[float, ...], row: int, column: int) -> tuple[float, int]:
        """Return the distance to what a pixel shows, and its furniture index or -1."""
        heading = (column + 0.5) / self.height * math.pi - math.pi
        elevation = math.pi / 2 - (row + 0.5) / self.height * math.pi
        level = math.cos(elevation)
        ray = np.array([math.sin(heading) * level, math.cos(heading) * level, math.sin(elevation)])
        ends = (self.extents - start) / ray
        enter, leave = ends.min(axis=1).max(axis=1), ends.max(axis=1).min(axis=1)
        end = 0.0
        for index in np.argsort(enter[: self.num_cells]):  # cells of air that adjoin each other along the ray
            if enter[index] < leave[index] and enter[index] <= end + 1e-9:
                end = max(end, leave[index])
        near = enter[self.num_cells :]
        near[(near >= leave[self.num_cells :]) | (near <= 0)] = math.inf
        nearest = int(near.argmin())
        return (near[nearest], self.objects[nearest]) if near[nearest] < end else (end, -1)


def run(_data: Path | None = None) -> Iterator[Ratio]:
    """Render panoramas of 1024 x 512 of one generated house."""
    house = generate_house("benchmark", 0)
    renderer, baseline = Renderer(house, height=HEIGHT), PerPixelCaster(house)
    generator = np.random.default_rng(0)
    viewpoints = generator.choice(len(house.viewpoints), NUM_VIEWPOINTS, replace=False)
    at = generator.choice(viewpoints, NUM_PIXELS)
    pixels = generator.integers(0, [[HEIGHT], [2 * HEIGHT]], (2, NUM_PIXELS))
    samples = list(zip(at.tolist(), *pixels.tolist(), strict=True))

    def cast_pixels() -> list[tuple[float, int]]:
        return [baseline.cast(house.viewpoints[at].position, row, column) for at, row, column in samples]

    def render_panoramas() -> dict[int, Panorama]:
        return {int(at): renderer.render(int(at)) for at in viewpoints}

    panoramas = render_panoramas()
    agree = [
        panoramas[at].objects[row, column] == index
        and math.isclose(panoramas[at].depth[row, column], depth, rel_tol=1e-3)
        for (at, row, column), (depth, index) in zip(samples, cast_pixels(), strict=True)
    ]
    assert np.mean(agree) >= 0.995, f"only {np.mean(agree):.2%} of the pixels agree"
    sampled, whole = both_sides(cast_pixels, render_panoramas, 3)
    ours = whole / NUM_VIEWPOINTS
    boxes = len(baseline.objects)
    name = f"a panorama of 1024 x 512 ({boxes} boxes; the loop scaled up from {NUM_PIXELS:,} pixels)"
    bound = f"colouring half a million pixels; {1 / ours:.0f} panoramas per second"
    yield Ratio(name, sampled * 2 * HEIGHT**2 / NUM_PIXELS, ours, 100, bound)
