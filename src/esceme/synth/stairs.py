"""Stairs of two flights with a landing half-way, in a room as high as both storeys."""

from __future__ import annotations

import numpy as np

from esceme.synth.plan import STOREY
from esceme.synth.sketch import Layout, Rect, Rest, Step, join

LANDING = 1.05
"""Depth of the landings."""
RISERS = 16
"""How many steps up it is from one storey to the next."""

Lane = tuple[float, float]


def arrive(layout: Layout, rng: np.random.Generator, halls: list[int]) -> None:
    """The way to the foot of the stairs, in the lane of the first flight, if a hallway passes it."""
    stairs = layout.kinds().index("stairs")
    (start, end), _ = _lanes(layout.rooms[stairs].rect)
    for hall in halls:
        low, _, high, _ = layout.rooms[hall].rect
        if low < start and end < high:
            join(layout, rng, stairs, hall, "door", at=(start + end) / 2)


def _lanes(rect: Rect) -> tuple[Lane, Lane]:
    """The ranges of u of the flight that leads to the half-way landing, and of the one from there."""
    middle = (rect[0] + rect[2]) / 2
    return (rect[0], middle), (middle, rect[2])


def climb(layout: Layout, rng: np.random.Generator, side: int, hall: int) -> None:
    """The steps, where one stands on them, and the way from their top to the upper hallway.

    The stairs begin and end at the hallway, which is below their room (`side` 1) or above it (-1).
    """
    stairs = layout.kinds().index("stairs")
    rect = layout.rooms[stairs].rect
    first, second = _lanes(rect)
    depth, rise, half = rect[3] - rect[1], STOREY / RISERS, RISERS // 2
    going = (depth - 2 * LANDING) / (half - 1)

    def away(distance: float) -> float:
        """The v of something so far from the hallway."""
        return rect[1] + distance if side > 0 else rect[3] - distance

    def block(lane: Lane, start: float, end: float, height: float) -> None:
        low, high = sorted((away(start), away(end)))
        layout.steps.append(Step((lane[0], low, lane[1], high), height))

    for step in range(half - 1):
        start = LANDING + step * going
        block(first, start, start + going, (step + 1) * rise)
        block(second, start, start + going, (RISERS - 1 - step) * rise)
    block((first[0], second[1]), depth - LANDING, depth, STOREY / 2)
    block(second, 0.0, LANDING, STOREY)
    layout.rests += [
        Rest((sum(first) / 2, away(LANDING / 2)), 0.0),
        Rest((first[1], away(depth - LANDING / 2)), STOREY / 2),
        Rest((sum(second) / 2, away(LANDING / 2)), STOREY),
    ]
    join(layout, rng, stairs, hall, "door", at=sum(second) / 2)
