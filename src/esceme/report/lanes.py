"""Routes through a scene, and how those that share a way are drawn side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.report.svg import points
from esceme.world.graph import SceneGraph

LANE = 4.2
"""Pixels between routes that share an edge."""
LANES = 6
"""How many lanes an edge is wide at the most; if there are more, they are closer together."""
ROUNDING = 7.0
"""Pixels before and after a viewpoint within which a route turns."""


@dataclass(frozen=True, slots=True)
class PathOverlay:
    """A way through a scene to be drawn: where an episode should lead, or where an agent went.

    A reference of a single viewpoint marks the start alone, as in test splits, whose goals are withheld.
    """

    label: str
    path: tuple[str, ...]
    kind: Literal["reference", "predicted"]

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError(f"route '{self.label}' has no viewpoint; expected at least the start")


class Leg(NamedTuple):
    """One step of a route, from row to row of the graph."""

    start: int
    end: int
    lane: float
    """How many lanes to the right of the edge it is drawn, seen in walking direction."""


def walk(graph: SceneGraph, route: PathOverlay) -> list[int]:
    """The rows a route visits: standing still merged, jumps walked the shortest way as all scores count them.

    Raises `WorldError` where a viewpoint does not exist or cannot be reached.
    """
    rows = [graph.index(route.path[0])]
    for a, b in pairwise(route.path):
        steps = [a, b] if graph.adjacent(a, b) else graph.shortest_path(a, b)
        rows += [graph.index(viewpoint) for viewpoint in steps[1:]]
    return rows


def length(graph: SceneGraph, rows: Sequence[int]) -> float:
    """Metres walked along adjacent rows."""
    return float(sum(graph.distances[a, b] for a, b in pairwise(rows)))


def legs_of(walks: Sequence[Sequence[int]]) -> list[list[Leg]]:
    """The legs of every walk; all that use one edge lie in lanes beside each other, in the order of walks.

    >>> there_and_back, across = legs_of([[0, 1, 0], [2, 1]])
    >>> [leg.lane for leg in there_and_back], [leg.lane for leg in across]
    ([-0.5, -0.5], [0.0])
    """
    users: dict[frozenset[int], list[tuple[int, int]]] = defaultdict(list)
    for rows in walks:
        for a, b in pairwise(rows):
            users[frozenset((a, b))].append((a, b))
    taken: dict[frozenset[int], int] = defaultdict(int)
    legs: list[list[Leg]] = []
    for rows in walks:
        legs.append([])
        for a, b in pairwise(rows):
            edge = frozenset((a, b))
            lane = (taken[edge] - (len(users[edge]) - 1) / 2) * min(1.0, LANES / len(users[edge]))
            taken[edge] += 1
            legs[-1].append(Leg(a, b, lane if (a, b) == users[edge][0] else -lane))
    return legs


class Turn(NamedTuple):
    """Where a route passes a viewpoint, in pixels, and the number of the step that led there."""

    step: int
    x: float
    y: float


class Piece(NamedTuple):
    """A part of a route that lies on one floor: path data, and the viewpoints on the way."""

    path: str
    turns: tuple[Turn, ...]


def pieces_on(
    legs: Sequence[Leg],
    is_here: Callable[[int], bool],
    place: Callable[[int], tuple[float, float]],
    end: tuple[float, float],
) -> list[Piece]:
    """The parts of a route on one floor, rounded at viewpoints; legs to other floors are cut in the middle.

    `is_here` tells which rows are on the floor, `place` where any row lies in pixels, `end` where the
    route's last viewpoint is drawn, its stop marker having been moved aside, perhaps.
    """
    pieces: list[Piece] = []
    before: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    for step, leg in enumerate(legs):
        from_here, to_here = is_here(leg.start), is_here(leg.end)
        if not (from_here or to_here):
            before = None
            continue
        a, b, along = _beside(leg, place)
        middle = (a + b) / 2
        a, b = a if from_here else middle, b if to_here else middle
        is_last = step == len(legs) - 1
        trim = along * min(ROUNDING, 0.4 * float(np.linalg.norm(b - a)))
        if before is None or not from_here:
            pieces.append(Piece(f"M{points([a])}", ()))
        else:
            pieces[-1] = _turn(pieces[-1], step, *before, a, a + trim)
        leave = b - trim if to_here and not is_last else np.array(end) if to_here else b
        pieces[-1] = pieces[-1]._replace(path=f"{pieces[-1].path} L{points([leave])}")
        before = (leave, b) if to_here else None
    return pieces


def _beside(
    leg: Leg, place: Callable[[int], tuple[float, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Both ends of a leg in its lane, and the direction of walking."""
    a, b = np.array(place(leg.start)), np.array(place(leg.end))
    along = (b - a) / (float(np.linalg.norm(b - a)) or 1.0)
    aside = leg.lane * LANE * np.array([-along[1], along[0]])
    return a + aside, b + aside, along


def _turn(
    piece: Piece,
    step: int,
    leave: NDArray[np.float64],
    corner: NDArray[np.float64],
    next_corner: NDArray[np.float64],
    enter: NDArray[np.float64],
) -> Piece:
    """The piece led around a viewpoint, from the lane of one leg to that of the next."""
    control = (corner + next_corner) / 2
    x, y = (leave + 2 * control + enter).tolist()
    return Piece(f"{piece.path} Q{points([control, enter])}", (*piece.turns, Turn(step, x / 4, y / 4)))
