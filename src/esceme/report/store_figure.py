"""The remembered graph of a scene from above as SVG, coloured by age, robot or visits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from esceme.errors import DataError
from esceme.memory.store import Place
from esceme.memory.store_formats import remembered_edges
from esceme.report import symbols
from esceme.report.floors import floor_indices
from esceme.report.memory_figure import WIDTH, floor_panels
from esceme.report.svg import element, format_points
from esceme.report.symbols import GREY, PALE, PREDICTED, LegendItem
from esceme.world.graph import SceneGraph

Colouring = Literal["age", "robot", "visits"]
SHADES = ("#f7e225", "#f58c46", "#cb4679", "#7e03a8", "#0d0887")
"""Colours of ages and visits, from few to many; they also differ in lightness."""
AGES = ((3600.0, "under an hour"), (86400.0, "under a day"), (7 * 86400.0, "under a week"),
        (30 * 86400.0, "under 30 days"))  # fmt: skip
"""Upper limits of ages in seconds, and their labels."""
VISITS = ((2, "1 visit"), (3, "2"), (5, "3 to 4"), (10, "5 to 9"))


def draw_store(places: Sequence[Place], colouring: Colouring, *, now: float, title: str | None = None) -> str:
    """Draw the remembered viewpoints of one scene that have positions and neighbours, as a complete SVG.

    `now` is the time, in seconds since 1970, at which ages are counted.
    """
    located = {place.recalled.viewpoint: place for place in places if place.recalled.position is not None}
    edges = remembered_edges(place.recalled for place in located.values())
    if not edges:
        raise DataError("expected adjacent viewpoints with positions, found none; nothing can be drawn")
    scene = places[0].recalled.scene
    positions = {name: place.recalled.position or (0.0, 0.0, 0.0) for name, place in located.items()}
    graph = SceneGraph.build(scene, positions, edges)
    marker, legend = _markers([located[name] for name in graph.viewpoints], colouring, now)
    panels, floors = floor_panels(graph, WIDTH, graph.viewpoints), floor_indices(graph)
    parts = []
    for panel in panels:
        points = {
            name: panel.to_pixels(graph.positions[index])
            for index, name in enumerate(graph.viewpoints)
            if floors[index] == panel.floor
        }
        lines = "".join(f"M{format_points([points[a], points[b]])}" for a, b in edges if {a, b} <= {*points})
        parts.append(element("path", d=lines, stroke=PALE, stroke_width=1.2, fill="none"))
        parts += [marker(located[name], x, y) for name, (x, y) in points.items()]
    return symbols.compose_figure(
        parts,
        [symbols.scale_item(panels[0].scale), symbols.north_item(), *legend],
        width=WIDTH,
        height=max(panel.y + panel.height for panel in panels),
        title=title or f"Memory of {scene}",
        description=f"{len(graph)} remembered viewpoints of {scene}, coloured by {colouring}.",
        heading=title or f"Memory of {scene}, by {colouring}",
        caption="",
    )


def _markers(
    places: Sequence[Place], colouring: Colouring, now: float
) -> tuple[Callable[[Place, float, float], str], list[LegendItem]]:
    """Return a function that draws a place at a point, and the legend."""
    if colouring == "robot":
        robots = sorted({place.recalled.robot for place in places})
        styles = {robot: PREDICTED[number % len(PREDICTED)] for number, robot in enumerate(robots)}
        items = [
            symbols.icon_item(symbols.end_marker(6, 0, styles[robot]), robot, width=12) for robot in robots
        ]
        return lambda place, x, y: symbols.end_marker(x, y, styles[place.recalled.robot]), items
    limits: Sequence[tuple[float, str]] = AGES if colouring == "age" else VISITS
    labels = [*(label for _, label in limits), "older" if colouring == "age" else "10 and more"]

    def shade(place: Place) -> int:
        value = now - place.last_time if colouring == "age" else place.visits
        return next((number for number, (limit, _) in enumerate(limits) if value < limit), len(limits))

    def disc(number: int, x: float, y: float) -> str:
        return element("circle", cx=x, cy=y, r=4.2, fill=SHADES[number], stroke=GREY, stroke_width=0.6)

    used = sorted({shade(place) for place in places})
    items = [symbols.icon_item(disc(number, 6, 0), labels[number], width=12) for number in used]
    return lambda place, x, y: disc(shade(place), x, y), items
