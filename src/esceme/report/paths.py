"""Paths drawn over a scene. Paths that share an edge of the graph are drawn side by side, in lanes.

A lane is a line parallel to an edge. Viewpoints are given by their indices in the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError
from esceme.report.floors import Point, floor_indices
from esceme.report.svg import format_points
from esceme.report.symbols import PREDICTED, REFERENCE, LineStyle
from esceme.world.graph import SceneGraph

LANE_WIDTH = 4.2
"""Distance in pixels between the lines (lanes) of two paths that share an edge."""
MAX_LANES = 6
"""Maximum number of paths on an edge that are drawn at this distance. More paths are drawn closer."""
CORNER_RADIUS = 7.0
"""Distance in pixels before and after a viewpoint at which the curve of a turn begins and ends."""

Vector = NDArray[np.float64]
"""x and y, (2,)."""


@dataclass(frozen=True, slots=True)
class PathOverlay:
    """A path to draw over a scene: the reference path of an episode, or the path of an agent.

    A reference path with one viewpoint marks only the start; test splits have such paths.
    """

    label: str
    path: tuple[str, ...]
    """Viewpoint ids."""
    kind: Literal["reference", "predicted"]

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError(f"path '{self.label}' has no viewpoint; expected at least the start")


class PathSegment(NamedTuple):
    """One step of a path, from one viewpoint index to another."""

    start: int
    end: int
    lane: float
    """Distance of the line from the edge, in units of `LANE_WIDTH`; positive to the right of the movement."""


class StyledPath(NamedTuple):
    """A path with its viewpoint indices, its segments and its line style."""

    overlay: PathOverlay
    viewpoints: list[int]
    segments: list[PathSegment]
    style: LineStyle

    @property
    def goal(self) -> int | None:
        """Viewpoint index of the goal; None for predictions and for withheld goals."""
        return self.viewpoints[-1] if self.overlay.kind == "reference" and self.segments else None


class FloorLink(NamedTuple):
    """An edge from one floor to another."""

    viewpoint: int
    """Index of the viewpoint on the floor that is drawn."""
    other_viewpoint: int
    """Index of the viewpoint on the other floor."""
    middle: Vector
    """Midpoint of the edge, x and y in metres."""
    up: bool
    """Whether the other floor is higher."""


@dataclass(frozen=True, eq=False)
class SceneContent:
    """Content of a scene figure."""

    graph: SceneGraph
    floors: NDArray[np.int64]
    """(P,): floor number of every viewpoint."""
    paths: list[StyledPath]
    remembered: frozenset[int]
    """Indices of the viewpoints in memory."""

    @classmethod
    def of(
        cls, graph: SceneGraph, overlays: Sequence[PathOverlay], remembered: Collection[str] = ()
    ) -> SceneContent:
        """Build the content from paths and remembered viewpoint ids; reference paths come first."""
        overlays = sorted(overlays, key=lambda overlay: overlay.kind != "reference")
        viewpoints = [expand_path(graph, overlay) for overlay in overlays]
        num_references = sum(overlay.kind == "reference" for overlay in overlays)
        styles = [REFERENCE] * num_references
        styles += [PREDICTED[n % len(PREDICTED)] for n in range(len(overlays) - num_references)]
        paths = [
            StyledPath(*parts)
            for parts in zip(overlays, viewpoints, assign_lanes(viewpoints), styles, strict=True)
        ]
        return cls(graph, floor_indices(graph), paths, frozenset(map(graph.index, remembered)))

    def up_to_step(self, num_steps: int) -> SceneContent:
        """Return this content with predicted paths that end after `num_steps` steps."""
        paths = [
            path
            if path.overlay.kind == "reference"
            else path._replace(
                viewpoints=path.viewpoints[: num_steps + 1], segments=path.segments[:num_steps]
            )
            for path in self.paths
        ]
        return replace(self, paths=paths)

    def floor_links(self, floor: int) -> Iterator[FloorLink]:
        """Yield all edges that lead from a floor to another floor."""
        for edge in self.graph.edges().tolist():
            for index, other in (edge, edge[::-1]):
                if self.floors[index] == floor != self.floors[other]:
                    middle = self.graph.positions[[index, other], :2].mean(axis=0)
                    yield FloorLink(index, other, middle, bool(self.floors[other] > floor))

    @property
    def goal(self) -> int | None:
        """Viewpoint index of the first known goal; None if no path has a known goal."""
        return next((path.goal for path in self.paths if path.goal is not None), None)

    def summarize(self, path: StyledPath) -> str:
        """Return a text with length and number of steps, and for a prediction its distance to the goal."""
        count = len(path.segments)
        metres = fsum(self.graph.distances[a, b] for a, b in pairwise(path.viewpoints))
        text = f"{metres:.1f} m, {count} step{'' if count == 1 else 's'}"
        if path.overlay.kind == "reference" or self.goal is None:
            return text
        left = float(self.graph.distances[path.viewpoints[-1], self.goal])
        return f"{text}, stops {f'{left:.1f} m from' if left else 'at'} the goal"

    def describe(self) -> str:
        """Return a description of the figure for screen readers."""
        count = int(self.floors.max()) + 1
        size = f"{len(self.graph)} viewpoints and {self.graph.num_edges} edges"
        parts = [
            f"Navigation graph of scene {self.graph.scene_id}: {size} on {count} floor{'s'[: count - 1]}."
        ]
        if self.remembered:
            parts.append(f"Of its viewpoints {len(self.remembered)} were remembered before.")
        return " ".join(parts + [f"{path.overlay.label}: {self.summarize(path)}." for path in self.paths])


def expand_path(graph: SceneGraph, overlay: PathOverlay) -> list[int]:
    """Return the viewpoint indices of a path, prepared as for the computation of scores.

    Repeated viewpoints are merged. A step between viewpoints without an edge is replaced by the shortest
    path. Raises `WorldError` for a viewpoint that does not exist or cannot be reached.
    """
    indices = [graph.index(overlay.path[0])]
    for a, b in pairwise(overlay.path):
        viewpoints = [a, b] if graph.adjacent(a, b) else graph.shortest_path(a, b)
        indices += [graph.index(viewpoint) for viewpoint in viewpoints[1:]]
    return indices


def assign_lanes(paths: Sequence[Sequence[int]]) -> list[list[PathSegment]]:
    """Return the segments of every path, a sequence of viewpoint indices.

    Segments on the same edge of the graph get different lanes (offsets), so that they are drawn side by side.

    >>> there_and_back, across = assign_lanes([[0, 1, 0], [2, 1]])
    >>> [segment.lane for segment in there_and_back], [segment.lane for segment in across]
    ([-0.5, -0.5], [0.0])
    """
    users: dict[frozenset[int], list[tuple[int, int]]] = defaultdict(list)
    for path in paths:
        for a, b in pairwise(path):
            users[frozenset((a, b))].append((a, b))
    used: dict[frozenset[int], int] = defaultdict(int)
    segments: list[list[PathSegment]] = []
    for path in paths:
        segments.append([])
        for a, b in pairwise(path):
            edge = frozenset((a, b))
            lane = (used[edge] - (len(users[edge]) - 1) / 2) * min(1.0, MAX_LANES / len(users[edge]))
            used[edge] += 1
            segments[-1].append(PathSegment(a, b, lane if (a, b) == users[edge][0] else -lane))
    return segments


class FloorPathPart(NamedTuple):
    """A connected part of a path on one floor, drawn as one line."""

    data: str
    """SVG path data."""
    steps: tuple[tuple[int, float, float], ...]
    """For every viewpoint inside the part: number of the step that ends there, x and y in pixels."""


def path_parts_on_floor(
    segments: Sequence[PathSegment],
    is_on_floor: Callable[[int], bool],
    to_pixels: Callable[[int], Point],
    end: Point,
) -> list[FloorPathPart]:
    """Return the parts of a path that are drawn on one floor.

    Lines are rounded at viewpoints. A segment to another floor ends at its midpoint. `is_on_floor` and
    `to_pixels` take a viewpoint index. `end` is the point of the end marker in pixels.
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
    """Return start and end of the line of a segment, in pixels, and its direction as a unit vector."""
    a, b = np.array(to_pixels(segment.start)), np.array(to_pixels(segment.end))
    direction = (b - a) / (float(np.linalg.norm(b - a)) or 1.0)
    offset = segment.lane * LANE_WIDTH * np.array([-direction[1], direction[0]])
    return a + offset, b + offset, direction


def _add_corner(
    line: FloorPathPart, step: int, leave: Vector, corner: Vector, next_corner: Vector, enter: Vector
) -> FloorPathPart:
    """Return `line` with a curve at its end, from one segment of a path to the next.

    The curve begins at `leave` on the first segment and ends at `enter` on the second, points in pixels. Its
    control point is midway between `corner`, the end of the first segment, and `next_corner`, the start of
    the second. `step` is the number that marks the curve.
    """
    control = (corner + next_corner) / 2
    x, y = (leave + 2 * control + enter).tolist()
    return FloorPathPart(
        f"{line.data} Q{format_points([control, enter])}", (*line.steps, (step, x / 4, y / 4))
    )
