"""A scene from above: its navigation graph floor by floor, with routes on it, as one self-contained SVG."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from esceme.report import marks
from esceme.report.floorplan import GROUND, SUCCESS, draw_floor
from esceme.report.floors import floor_heights
from esceme.report.lanes import PathOverlay
from esceme.report.marks import REFERENCE, Item
from esceme.report.panels import Bounds, Panel, arrange, extent
from esceme.report.plan import Plan
from esceme.report.svg import document, element, number
from esceme.world.graph import SceneGraph

MARGIN, NARROWEST, NARROWEST_WITH_TEXT = 12.0, 200.0, 380.0
"""Pixels around everything, and the least width of a figure, without and with a caption or routes."""
SURROUNDINGS = 3.5
"""Metres shown around routes where they fill only a part of a large floor."""
LARGE_PART = 0.6
"""A floor is shown whole where the surroundings of its routes are at least so much of it."""


def draw_scene(
    graph: SceneGraph,
    routes: Sequence[PathOverlay] = (),
    *,
    title: str | None = None,
    caption: str | None = None,
    labels: bool = False,
    whole: bool = False,
    remembered: Collection[str] = (),
) -> str:
    """A complete SVG document of the scene's graph with `routes` on it; the same input gives the same bytes.

    Floors stand side by side at one metric scale, north (+y) up. With routes, floors that none of them
    enters become pale thumbnails, and so does a large floor of which they need only a part, that part being
    drawn large; `whole` shows every floor in full instead. `caption` (the instruction, say) is wrapped above
    the floors; `labels` writes the beginning of every viewpoint's id; `remembered` are viewpoints that a
    memory held when the routes began. Raises `WorldError` for a route that leads where the scene has no
    viewpoint.
    """
    plan = Plan.of(graph, routes, remembered)
    panels = arrange(_panels(plan, whole=whole))
    inner = max(NARROWEST_WITH_TEXT if routes or caption else NARROWEST, extent(panels)[0])
    heading, top = marks.heading(title, caption, inner)
    bottom = top + extent(panels)[1] + 16
    legend, legend_height = marks.flow(_legend(plan, panels[0].scale, inner), inner)
    width, height = inner + 2 * MARGIN, bottom + legend_height + 2 * MARGIN - 8
    floors = [draw_floor(plan, panel, labels=labels) for panel in panels]

    def below(y: float, content: str | Sequence[str]) -> str:
        return element("g", content, transform=f"translate({number(MARGIN)} {number(MARGIN + y)})")

    parts = [
        *([below(0.0, heading)] if heading else []),
        below(top, floors),
        below(bottom, legend),
    ]
    return document(
        parts, width, height, title=title or f"Scene {graph.scene_id} from above", description=plan.describe()
    )


def _panels(plan: Plan, *, whole: bool) -> list[Panel]:
    """What has to be shown of each floor: first what matters, then thumbnails of the rest."""
    heights = floor_heights(plan.graph)
    wholes, parts = zip(*(_bounds(plan, floor) for floor in range(len(heights))), strict=True)
    cut = {} if whole else _level(_cut(wholes, parts))
    large, small = [], []
    for floor, height in enumerate((heights - heights[0]).tolist()):
        name = f"Floor {floor + 1}" if len(heights) > 1 else ""
        heading = f"{name} ({height:+.1f} m)" if floor else name
        panel = Panel(floor=floor, heading=heading, bounds=wholes[floor])
        if floor in cut:
            large.append(replace(panel, bounds=cut[floor], focus=cut[floor]))
            small.append(replace(panel, heading=name and f"{name}, whole", focus=cut[floor], thumbnail=True))
        elif parts[floor] is None and plan.trips and not whole:
            small.append(replace(panel, thumbnail=True))
        else:
            large.append(panel)
    return large + small


def _cut(wholes: Sequence[Bounds], parts: Sequence[Bounds | None]) -> dict[int, Bounds]:
    """The floors of which only a part is worth showing, and that part."""
    return {
        floor: part
        for floor, (whole, part) in enumerate(zip(wholes, parts, strict=True))
        if part is not None and part.area < LARGE_PART * whole.area
    }


def _level(parts: dict[int, Bounds]) -> dict[int, Bounds]:
    """The parts made equally tall, so that they line up."""
    south = min((part.south for part in parts.values()), default=0.0)
    north = max((part.north for part in parts.values()), default=0.0)
    return {floor: part._replace(south=south, north=north) for floor, part in parts.items()}


def _bounds(plan: Plan, floor: int) -> tuple[Bounds, Bounds | None]:
    """The rectangle of a floor, and of the surroundings of the routes on it, if there are any."""
    positions, floors = plan.graph.positions[:, :2], plan.floors
    rows = [row for trip in plan.trips for row in trip.rows if floors[row] == floor]
    goals = [trip.goal for trip in plan.trips if trip.goal is not None and floors[trip.goal] == floor]
    circles = [positions[goal] + sign * SUCCESS for goal in goals for sign in (-1, 1)]
    middles = [way.middle for way in plan.stairs(floor)]
    bounds = Bounds.around(np.array([*positions[floors == floor], *middles, *circles]), GROUND / 2)
    if not rows:
        return bounds, None
    return bounds, Bounds.around(positions[rows], SURROUNDINGS).within(bounds)


def _legend(plan: Plan, scale: float, width: float) -> list[Item]:
    items = [marks.scale_item(scale), marks.north_item()]
    if plan.floors.any():
        both = marks.stairs_mark(3, 0, up=True) + marks.stairs_mark(10, 0, up=False)
        items.append(marks.icon_item(both, "stairs up, down", width=13))
    if plan.trips:
        items.append(marks.icon_item(marks.start_mark(5, 0), "start"))
    if plan.remembered:
        count = f"remembered before ({len(plan.remembered)} of {len(plan.graph)} viewpoints)"
        items.append(marks.icon_item(marks.remembered_mark(6, 0, size=0.85), count, width=12))
    if plan.goal is not None:
        items.append(marks.icon_item(marks.stop_mark(5, 0, REFERENCE), "goal"))
        items.append(marks.icon_item(marks.success_circle(6, 0, 5.5), "3 m around the goal", width=12))
    items += [
        marks.route_item(trip.route.label, plan.facts(trip), trip.style, stops=bool(trip.legs), most=width)
        for trip in plan.trips
    ]
    return items
