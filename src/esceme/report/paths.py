"""Paths drawn over a scene: expanded to graph rows, and drawn side by side where they share an edge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.report.floors import Point, floor_indices
from esceme.report.svg import format_points
from esceme.report.symbols import PREDICTED, REFERENCE, LineStyle
from esceme.world.graph import SceneGraph

LANE_WIDTH = 4.2
"""Pixels between paths that share an edge."""
MAX_LANES = 6
"""Number of lanes that an edge has at full width; more lanes are narrower."""
CORNER_RADIUS = 7.0
"""Pixels before and after a viewpoint within which a path turns."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PathOverlay:
    """A path to draw over a scene: the reference path of an episode, or the path of an agent.

    A reference path of one viewpoint marks the start only, for test splits, which withhold the goal.
    """

    label: str
    path: tuple[str, ...]
    kind: Literal["reference", "predicted"]

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError(f"path '{self.label}' has no viewpoint; expected at least the start")


class PathSegment(NamedTuple):
    """One step of a path, between two rows of the graph."""

    start: int
    end: int
    lane: float
    """Offset to the right of the edge in lanes, seen in the direction of movement."""


class StyledPath(NamedTuple):
    """A path with its graph rows, segments and line style."""

    overlay: PathOverlay
    rows: list[int]
    segments: list[PathSegment]
    style: LineStyle

    @property
    def goal(self) -> int | None:
        """Row of the goal; None for predictions and for withheld goals."""
        return self.rows[-1] if self.overlay.kind == "reference" and self.segments else None


class FloorLink(NamedTuple):
    """An edge that leaves a floor: rows on this and the other floor, midpoint (2,), direction."""

    row: int
    other_row: int
    middle: Vector
    up: bool


@dataclass(frozen=True, eq=False)
class SceneContent:
    """Content of a scene figure: graph, floor of every viewpoint (P,), paths, remembered rows."""

    graph: SceneGraph
    floors: NDArray[np.int64]
    paths: list[StyledPath]
    remembered: frozenset[int]

    @classmethod
    def of(
        cls, graph: SceneGraph, overlays: Sequence[PathOverlay], remembered: Collection[str] = ()
    ) -> SceneContent:
        """Expand all paths, reference paths first, and assign lanes and styles."""
        overlays = sorted(overlays, key=lambda overlay: overlay.kind != "reference")
        rows = [expand_path(graph, overlay) for overlay in overlays]
        num_references = sum(overlay.kind == "reference" for overlay in overlays)
        styles = [REFERENCE] * num_references
        styles += [PREDICTED[n % len(PREDICTED)] for n in range(len(overlays) - num_references)]
        paths = [StyledPath(*parts) for parts in zip(overlays, rows, assign_lanes(rows), styles, strict=True)]
        return cls(graph, floor_indices(graph), paths, frozenset(map(graph.index, remembered)))

    def floor_links(self, floor: int) -> Iterator[FloorLink]:
        """All edges that leave a floor."""
        for edge in self.graph.edges().tolist():
            for row, other in (edge, edge[::-1]):
                if self.floors[row] == floor != self.floors[other]:
                    middle = self.graph.positions[[row, other], :2].mean(axis=0)
                    yield FloorLink(row, other, middle, bool(self.floors[other] > floor))

    @property
    def goal(self) -> int | None:
        """Row of the first known goal."""
        return next((path.goal for path in self.paths if path.goal is not None), None)

    def summarize(self, path: StyledPath) -> str:
        """Length and number of steps; for a prediction also its final distance to the goal."""
        count = len(path.segments)
        metres = sum(self.graph.distances[a, b] for a, b in pairwise(path.rows))
        text = f"{metres:.1f} m, {count} step{'' if count == 1 else 's'}"
        if path.overlay.kind == "reference" or self.goal is None:
            return text
        left = float(self.graph.distances[path.rows[-1], self.goal])
        return f"{text}, stops {f'{left:.1f} m from' if left else 'at'} the goal"

    def describe(self) -> str:
        """Description of the figure for screen readers."""
        count = int(self.floors.max()) + 1
        size = f"{len(self.graph)} viewpoints and {self.graph.num_edges} edges"
        parts = [
            f"Navigation graph of scene {self.graph.scene_id}: {size} on {count} floor{'s'[: count - 1]}."
        ]
        if self.remembered:
            parts.append(f"Of its viewpoints {len(self.remembered)} were remembered before.")
        return " ".join(parts + [f"{path.overlay.label}: {self.summarize(path)}." for path in self.paths])


def expand_path(graph: SceneGraph, overlay: PathOverlay) -> list[int]:
    """Rows of a path: repeated viewpoints merged, jumps replaced by shortest paths, as in all scores.

    Raises `WorldError` for a viewpoint that does not exist or cannot be reached.
    """
    rows = [graph.index(overlay.path[0])]
    for a, b in pairwise(overlay.path):
        viewpoints = [a, b] if graph.adjacent(a, b) else graph.shortest_path(a, b)
        rows += [graph.index(viewpoint) for viewpoint in viewpoints[1:]]
    return rows


def assign_lanes(paths: Sequence[Sequence[int]]) -> list[list[PathSegment]]:
    """Segments of every path; segments on one edge get different lanes, in the order of paths.

    >>> there_and_back, across = assign_lanes([[0, 1, 0], [2, 1]])
    >>> [segment.lane for segment in there_and_back], [segment.lane for segment in across]
    ([-0.5, -0.5], [0.0])
    """
    users: dict[frozenset[int], list[tuple[int, int]]] = defaultdict(list)
    for rows in paths:
        for a, b in pairwise(rows):
            users[frozenset((a, b))].append((a, b))
    used: dict[frozenset[int], int] = defaultdict(int)
    segments: list[list[PathSegment]] = []
    for rows in paths:
        segments.append([])
        for a, b in pairwise(rows):
            edge = frozenset((a, b))
            lane = (used[edge] - (len(users[edge]) - 1) / 2) * min(1.0, MAX_LANES / len(users[edge]))
            used[edge] += 1
            segments[-1].append(PathSegment(a, b, lane if (a, b) == users[edge][0] else -lane))
    return segments


class FloorPathPart(NamedTuple):
    """A connected part of a path on one floor."""

    data: str
    """SVG path data."""
    steps: tuple[tuple[int, float, float], ...]
    """Viewpoints it passes: number of the step that ends there, x and y in pixels."""


def path_parts_on_floor(
    segments: Sequence[PathSegment],
    is_on_floor: Callable[[int], bool],
    to_pixels: Callable[[int], Point],
    end: Point,
) -> list[FloorPathPart]:
    """Parts of a path on one floor, rounded at viewpoints; segments to other floors end at their midpoint.

    `is_on_floor` and `to_pixels` take a graph row. `end` is the point of the end marker.
    """
    lines: list[FloorPathPart] = []
    previous: tuple[Vector, Vector] | None = None
    for step, segment in enumerate(segments):
        starts_here, ends_here = is_on_floor(segment.start), is_on_floor(segment.end)
        if not (starts_here or ends_here):
            previous = None
            continue
        a, b, direction = _in_lane(segment, to_pixels)
        middle = (a + b) / 2
        a, b = a if starts_here else middle, b if ends_here else middle
        is_last = step == len(segments) - 1
        trim = direction * min(CORNER_RADIUS, 0.4 * float(np.linalg.norm(b - a)))
        if previous is None or not starts_here:
            lines.append(FloorPathPart(f"M{format_points([a])}", ()))
        else:
            lines[-1] = _add_corner(lines[-1], step, *previous, a, a + trim)
        leave = b - trim if ends_here and not is_last else np.array(end) if ends_here else b
        lines[-1] = lines[-1]._replace(data=f"{lines[-1].data} L{format_points([leave])}")
        previous = (leave, b) if ends_here else None
    return lines


def _in_lane(segment: PathSegment, to_pixels: Callable[[int], Point]) -> tuple[Vector, Vector, Vector]:
    """Both ends of a segment in its lane, and its unit direction; all (2,) in pixels."""
    a, b = np.array(to_pixels(segment.start)), np.array(to_pixels(segment.end))
    direction = (b - a) / (float(np.linalg.norm(b - a)) or 1.0)
    offset = segment.lane * LANE_WIDTH * np.array([-direction[1], direction[0]])
    return a + offset, b + offset, direction


def _add_corner(
    line: FloorPathPart, step: int, leave: Vector, corner: Vector, next_corner: Vector, enter: Vector
) -> FloorPathPart:
    """Extend a polyline by a curve from the lane of one segment to the lane of the next."""
    control = (corner + next_corner) / 2
    x, y = (leave + 2 * control + enter).tolist()
    return FloorPathPart(
        f"{line.data} Q{format_points([control, enter])}", (*line.steps, (step, x / 4, y / 4))
    )
