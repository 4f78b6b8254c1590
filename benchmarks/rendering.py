"""Rendering panoramas: columns cut into spans against one ray per pixel, tried on every box of the house.

The obvious side casts each pixel's ray on its own and intersects it, in one array expression, with all rooms
and openings (the air) and all solids, keeping the nearest; it finds distance and object, no colour. A
whole panorama takes it about a minute, so it casts a random sample of the pixels and its time is scaled up to
all of them. Ours does everything: distance, objects, light, textures. Both are checked to agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Ratio, both_sides
from esceme.synth.casting import casings, opening_cell
from esceme.synth.house import make_house
from esceme.synth.plan import House
from esceme.synth.render import Panorama, Renderer

HEIGHT, SAMPLE, PLACES = 512, 4000, 8


class PerPixel:
    """One ray at a time, against everything."""

    def __init__(self, house: House) -> None:
        air = [(room.low, room.high) for room in house.rooms]
        air += [opening_cell(house, opening) for opening in house.openings]
        solids = [(box, index) for index, thing in enumerate(house.furniture) for box in thing.boxes]
        solids += [(box, -1) for box in house.stairs]
        solids += [(box, -1) for opening in house.openings for box, _ in casings(house, opening)]
        self.cells = len(air)
        self.extents = np.array(air + [(box.low, box.high) for box, _ in solids])
        self.owner = [index for _, index in solids]

    def cast(self, start: tuple[float, ...], row: int, column: int) -> tuple[float, int]:
        """The distance to what a pixel shows, and the furniture's index or -1."""
        heading = (column + 0.5) / HEIGHT * math.pi - math.pi
        elevation = math.pi / 2 - (row + 0.5) / HEIGHT * math.pi
        level = math.cos(elevation)
        ray = np.array([math.sin(heading) * level, math.cos(heading) * level, math.sin(elevation)])
        ends = (self.extents - start) / ray
        enter, leave = ends.min(axis=1).max(axis=1), ends.max(axis=1).min(axis=1)
        end = 0.0
        for index in np.argsort(enter[: self.cells]):
            if enter[index] < leave[index] and enter[index] <= end + 1e-9:
                end = max(end, leave[index])
        near = enter[self.cells :]
        near[(near >= leave[self.cells :]) | (near <= 0)] = math.inf
        nearest = int(near.argmin())
        return (near[nearest], self.owner[nearest]) if near[nearest] < end else (end, -1)


def run(_data: Path | None = None) -> Iterator[Ratio]:
    """Panoramas of 1024 x 512 of one generated house."""
    house = make_house("benchmark", 0)
    renderer, slow = Renderer(house, height=HEIGHT), PerPixel(house)
    generator = np.random.default_rng(0)
    places = generator.choice(len(house.places), PLACES, replace=False)
    sample = np.stack(
        [generator.choice(places, SAMPLE), *generator.integers(0, [[HEIGHT], [2 * HEIGHT]], (2, SAMPLE))],
        axis=1,
    )
    turns = [(at, row, column) for at, row, column in sample.tolist()]

    def obvious() -> list[tuple[float, int]]:
        return [slow.cast(house.places[at].position, row, column) for at, row, column in turns]

    def ours() -> dict[int, Panorama]:
        return {int(at): renderer.render(int(at)) for at in places}

    seen = ours()
    agree = [
        seen[at].objects[row, column] == owner
        and math.isclose(seen[at].depth[row, column], depth, rel_tol=1e-3)
        for (at, row, column), (depth, owner) in zip(turns, obvious(), strict=True)
    ]
    assert np.mean(agree) >= 0.995, f"only {np.mean(agree):.2%} of the pixels agree"
    sampled, whole = both_sides(obvious, ours, 3)
    each = whole / PLACES
    name = f"a panorama of 1024 x 512 ({len(slow.owner)} boxes; the loop scaled up from {SAMPLE:,} pixels)"
    bound = f"colouring half a million pixels; {1 / each:.0f} panoramas per second"
    yield Ratio(name, sampled * 2 * HEIGHT**2 / SAMPLE, each, 100, bound)
