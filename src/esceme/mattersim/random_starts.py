"""The simulator's random numbers: starting viewpoints and headings that depend only on a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from esceme.mattersim.navigation_graphs import ScanGraph, ViewpointPlace

MODULUS = 2**31 - 1
MULTIPLIER = 16807
RANGE = MODULUS - 1
"""Number of different draws."""


def draws(seed: int) -> Iterator[int]:
    """Yield draws 0 to `RANGE` - 1 of the multiplicative congruential generator `minstd_rand0` of C++.

    A negative seed counts as an unsigned number of 64 bits.

    >>> stream = draws(1)
    >>> [next(stream) for _ in range(3)]
    [16806, 282475248, 1622650072]
    """
    state = seed % 2**64 % MODULUS or 1
    while True:
        state = MULTIPLIER * state % MODULUS
        yield state - 1


def draw_viewpoint(stream: Iterator[int], graph: ScanGraph) -> ViewpointPlace:
    """Draw a random viewpoint. If it is excluded, take the next included one in the graph's order."""
    count = len(graph.places)
    width = (RANGE - 1) // count
    ix = next(draw // width for draw in stream if draw < count * width)
    return graph.next_included(ix)


def random_headings(count: int) -> list[float]:
    """Return `count` headings in radians. They are the same in every call, because they depend on no seed.

    >>> [round(heading, 6) for heading in random_headings(2)]
    [0.826476, 2.881784]
    """
    stream, span = draws(1), float(RANGE)
    pairs = [(next(stream), next(stream)) for _ in range(count)]
    return [2 * math.pi * ((low + high * span) / (span * span)) for low, high in pairs]
