"""Drawing of one floor of a scene figure: the graph, and the paths over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from esceme.report import symbols
from esceme.report.floors import HEADING_SIZE, Panel, Point
from esceme.report.paths import FloorPathPart, SceneContent, path_parts_on_floor
from esceme.report.svg import Attributes, element, escape_text, format_number, format_points
from esceme.report.symbols import GREY, INK, PALE, LineStyle

SUCCESS_RADIUS = 3.0
"""Metres around the goal within which stopping is a success."""
GROUND_WIDTH = 1.8
"""Width in metres of the ground that is drawn below every edge."""
LABEL_SIZE = 4.6
"""Font size of viewpoint ids."""
MARKER_OFFSET = 12.5
"""Distance in pixels between a viewpoint and an end marker that is moved aside."""
NUMBER_SPACING = 10.0
"""Minimum distance in pixels between two step numbers."""


def draw_floor(scene: SceneContent, panel: Panel, *, labels: bool) -> str:
    """Return one panel as SVG. A panel shows a floor: its heading, its graph and the paths on it.

    If the panel shows only a part of the floor, this part has a frame in the panel and in the thumbnail of
    the floor. With `labels`, the id of every viewpoint is written beside the viewpoint.
    """
    content = [_draw_graph(scene, panel)]
    if not panel.is_thumbnail:
        content += _draw_paths(scene, panel)
        content += [_draw_labels(scene, panel)] if labels else []
    parts = ["\n".join(content)]
    if panel.focus:
        rectangle = panel.rectangle(panel.focus)
        frame = element("rect", fill="none", stroke=GREY, stroke_width=0.7, **rectangle)
        if not panel.is_thumbnail:  # a nested svg element clips its content
            view = " ".join(format_number(rectangle[key]) for key in ("x", "y", "width", "height"))
            parts = [element("svg", content, viewBox=view, **rectangle)]
        parts.append(frame)
    if panel.heading:
        colour = "#868d93" if panel.is_thumbnail else GREY
        font: Attributes = {"font_size": HEADING_SIZE, "font_weight": "bold", "fill": colour}
        parts.append(element("text", escape_text(panel.heading), x=panel.x, y=panel.top + 8, **font))
    kind = "thumbnail" if panel.is_thumbnail else "floor"
    return element("g", parts, class_=kind, data_floor=str(panel.floor))


def _draw_graph(scene: SceneContent, panel: Panel) -> str:
    """Return the graph of a floor as SVG: ground, edges, links to other floors, and viewpoints."""
    graph, pale = scene.graph, panel.is_thumbnail
    visible = [edge for edge in graph.edges() if panel.bounds.overlaps(graph.positions[edge, :2])]
    same_floor = [edge for edge in visible if (scene.floors[edge] == panel.floor).all()]
    edges = "".join(f"M{format_points(map(panel.to_pixels, graph.positions[edge]))}" for edge in same_floor)
    links = [
        (panel.to_pixels(graph.positions[link.viewpoint]), panel.to_pixels(link.middle), link.up)
        for link in scene.floor_links(panel.floor)
    ]
    stubs = "".join(f"M{format_points((start, middle))}" for start, middle, _ in links)
    ground, ink, width = ("#f1f2f3", "#c6cbcf", 0.5) if pale else ("#eceeef", PALE, 0.7)
    parts = [
        element("path", d=edges + stubs, stroke=ground, stroke_width=GROUND_WIDTH * panel.scale),
        element("path", d=edges, stroke=ink, stroke_width=width),
    ]
    if links and not pale:
        parts.append(element("path", d=stubs, stroke=GREY, stroke_width=0.8, stroke_dasharray="1.5 1.5"))
        parts += [symbols.stairs_marker(*middle, up=up) for _, middle, up in links]
    parts += _draw_viewpoints(scene, panel, ink if pale else "#868d93")
    return element("g", parts, class_="graph", fill="none", stroke_linecap="round", stroke_linejoin="round")


def _visible_viewpoints(scene: SceneContent, panel: Panel) -> dict[int, Point]:
    """Return a dict from viewpoint index to its point in pixels, for all viewpoints within a panel."""
    positions = scene.graph.positions
    return {
        viewpoint: panel.to_pixels(positions[viewpoint])
        for viewpoint in np.flatnonzero(scene.floors == panel.floor).tolist()
        if panel.bounds.overlaps(positions[[viewpoint], :2])
    }


def _draw_viewpoints(scene: SceneContent, panel: Panel, colour: str) -> Iterator[str]:
    """Yield a disc for every remembered viewpoint, then a dot for every viewpoint, as SVG."""
    points = _visible_viewpoints(scene, panel)
    size, radius = (0.35, 0.9) if panel.is_thumbnail else (1.0, 1.7)
    for viewpoint, point in points.items():
        if viewpoint in scene.remembered:
            yield symbols.remembered_marker(*point, size=size)
    attributes: Attributes = {"r": radius, "fill": colour, "class_": "viewpoint"}
    for viewpoint, (x, y) in points.items():
        name = element("title", escape_text(scene.graph.viewpoints[viewpoint]))
        yield element("circle", name, cx=x, cy=y, **attributes)


def _draw_labels(scene: SceneContent, panel: Panel) -> str:
    """Return the labels of viewpoints as SVG: the beginnings of their ids, long enough to be unique."""
    names = scene.graph.viewpoints
    longest = max(map(len, names))
    size = next(
        size
        for size in range(min(4, longest), longest + 1)
        if len({name[:size] for name in names}) == len(names)
    )
    on_path = {viewpoint for path in scene.paths for viewpoint in path.viewpoints}
    texts = []
    for viewpoint, (x, y) in _visible_viewpoints(scene, panel).items():
        offset = 5.0 if viewpoint in on_path else 2.0  # beyond the step number
        texts.append(element("text", escape_text(names[viewpoint][:size]), x=x + offset, y=y - offset))
    return element("g", texts, class_="labels", font_size=LABEL_SIZE, fill=GREY)


def _draw_paths(scene: SceneContent, panel: Panel) -> list[str]:
    """Return SVG of success circles, lines, stairs, step numbers, start and end markers, in this order."""

    def is_on_floor(viewpoint: int) -> bool:
        return bool(scene.floors[viewpoint] == panel.floor)

    def to_pixels(viewpoint: int) -> Point:
        return panel.to_pixels(scene.graph.positions[viewpoint])

    with_ends = list(zip(scene.paths, _end_marker_points(scene, panel), strict=True))
    path_parts = [
        (path_part, path.style)
        for path, end in with_ends
        for path_part in path_parts_on_floor(path.segments, is_on_floor, to_pixels, end)
    ]
    start_viewpoints = dict.fromkeys(path.viewpoints[0] for path in scene.paths)
    starts = [to_pixels(viewpoint) for viewpoint in start_viewpoints if is_on_floor(viewpoint)]
    ends = [
        (end, path.style)
        for path, end in with_ends
        if is_on_floor(path.viewpoints[-1]) and (path.segments or path.overlay.kind == "predicted")
    ]
    goals = [path.goal for path in scene.paths if path.goal is not None and is_on_floor(path.goal)]
    lines = [
        draw(path_part.data, style)
        for draw in (symbols.path_line_border, symbols.path_line)
        for path_part, style in path_parts
    ]
    used_edges = {frozenset(segment[:2]) for path in scene.paths for segment in path.segments}
    return [
        *(symbols.success_circle(*to_pixels(goal), SUCCESS_RADIUS * panel.scale) for goal in goals),
        element("g", lines, fill="none", class_="routes"),
        *(
            symbols.stairs_marker(*panel.to_pixels(link.middle), up=link.up, colour=INK, size=1.6)
            for link in scene.floor_links(panel.floor)
            if {link.viewpoint, link.other_viewpoint} in used_edges
        ),
        *_number_steps(path_parts, occupied=[*starts, *(end for end, _ in ends)]),
        *(symbols.start_marker(*start) for start in starts),
        *(symbols.end_marker(*end, style) for end, style in ends),
    ]


def _end_marker_points(scene: SceneContent, panel: Panel) -> list[Point]:
    """Return the point in pixels of every path's end marker, moved aside if another marker is there."""
    marked = {path.viewpoints[0] for path in scene.paths}
    next_angle: dict[int, float] = {}
    ends = []
    for path in scene.paths:
        viewpoint = path.viewpoints[-1]
        x, y = panel.to_pixels(scene.graph.positions[viewpoint])
        if viewpoint in marked:
            before = panel.to_pixels(
                scene.graph.positions[path.viewpoints[-2] if path.segments else viewpoint]
            )
            angle = next_angle.get(viewpoint, math.atan2(y - before[1], x - before[0]) + 0.5 * math.pi)
            x, y = x + MARKER_OFFSET * math.cos(angle), y + MARKER_OFFSET * math.sin(angle)
            next_angle[viewpoint] = angle - 0.4 * math.pi
        ends.append((x, y))
        marked.add(viewpoint)
    return ends


def _number_steps(
    path_parts: Iterable[tuple[FloorPathPart, LineStyle]], occupied: Iterable[Point]
) -> Iterator[str]:
    """Yield the step numbers of paths as SVG.

    A number is moved aside if another marker is at its point, and omitted if there is no free point nearby.
    Paths that pass a viewpoint at the same step share one number. `occupied` are the points of other markers.
    """
    used: list[tuple[Point, int | None]] = [(point, None) for point in occupied]
    for path_part, style in path_parts:
        for step, x, y in path_part.steps:
            if any(other == step and math.dist((x, y), p) < 2.2 * NUMBER_SPACING for p, other in used):
                continue
            for point in _points_around(x, y):
                if all(math.dist(point, other) > NUMBER_SPACING for other, _ in used):
                    used.append((point, step))
                    yield symbols.step_number(*point, step, style)
                    break


def _points_around(x: float, y: float) -> Iterator[Point]:
    yield x, y
    for eighth in range(8):
        angle = (eighth - 2) * math.pi / 4
        yield x + 1.1 * NUMBER_SPACING * math.cos(angle), y + 1.1 * NUMBER_SPACING * math.sin(angle)
