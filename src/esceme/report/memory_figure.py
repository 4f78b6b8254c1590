"""Figure of the memory of a scene at several moments of an evaluation (Figure 3 of the paper)."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from esceme.errors import ConfigError
from esceme.evaluation.history import MemoryHistory
from esceme.report import symbols
from esceme.report.floors import GAP, Bounds, Panel, Point, floor_indices
from esceme.report.svg import element, escape_text, format_points, text_width, translated
from esceme.report.symbols import GREY, INK, PREDICTED, REMEMBERED, LegendItem
from esceme.world.graph import SceneGraph

WIDTH, MAX_COLUMNS = 720.0, 3
"""Width of the figure in pixels, and maximum number of moments in a row."""
MAX_SCALE = 14.0
"""Maximum of the scale in pixels per metre."""
MARGIN = 1.2
"""Margin in metres around the viewpoints of a floor."""
HEADING_SIZE, HEADING_HEIGHT = 9.0, 22.0
MEMORY_EDGE, OBSERVED = "#8a7f00", "#56b4e9"
"""Colours of edges in memory, and of the candidates of the current viewpoint."""
CURRENT = PREDICTED[1].colour
"""Colour of the agent's position."""


@dataclass(frozen=True, kw_only=True)
class MemoryMoment:
    """Memory of a scene at one moment: after some episodes, or before a step of an episode."""

    label: str
    remembered: Collection[str]
    new: Collection[str] = ()
    """Viewpoints that were stored since the previous moment of the figure."""
    current: str | None = None
    """Viewpoint of the agent; None between episodes."""
    chosen: str | None = None
    """Viewpoint to which the agent moves next."""
    number: int | None = None
    """Number of the episode in the scene, from 0; None between episodes."""


def moments_after(history: MemoryHistory, num_episodes: Sequence[int]) -> list[MemoryMoment]:
    """Return the memory after each of the given numbers of episodes; too large numbers mean all episodes."""
    if not num_episodes or min(num_episodes) < 0:
        raise ConfigError(f"numbers of episodes {list(num_episodes)}: expected at least one, none negative")
    counts = sorted({min(number, len(history.stored)) for number in num_episodes})
    moments, before = list[MemoryMoment](), set[str]()
    for count in counts:
        remembered = {*history.remembered(count - 1, len(history.stored[count - 1]))} if count else set[str]()
        plural = "" if count == 1 else "s"
        moments.append(
            MemoryMoment(
                label=f"after {count} episode{plural}", remembered=remembered, new=remembered - before
            )
        )
        before = remembered
    return moments


def moments_of_steps(history: MemoryHistory, per_episode: int = 3) -> list[MemoryMoment]:
    """Return the memory before steps of two episodes, as in the paper.

    Of the first episode, these are the first steps and the last. The second one is the first episode that
    starts at a viewpoint without memory and reaches remembered ones, or the next one if there is none. Its
    steps end where it reaches them.
    """
    if not any(history.stored):
        raise ConfigError("this result has no memory; give a result of another memory protocol than 'none'")
    moments = list[MemoryMoment]()
    for number in dict.fromkeys((0, _meeting_episode(history))):
        path = history.stored[number]
        last = (_meeting_step(history, number) or len(path) - 1) if number else len(path) - 1
        first = max(0, last - per_episode + 1) if number else 0
        steps = [*range(first, min(first + per_episode - 1, last)), last]
        for step in (step for step in steps if step >= 0):
            remembered = {*history.remembered(number, step)}
            before = {*moments[-1].remembered} if moments else set[str]()
            moments.append(
                MemoryMoment(
                    label=f"episode {number + 1}, step {step + 1}",
                    remembered=remembered,
                    new=remembered - before,
                    number=number,
                    current=path[step],
                    chosen=path[step + 1] if step + 1 < len(path) else None,
                )
            )
    return moments


def _meeting_step(history: MemoryHistory, number: int) -> int | None:
    """Return the first step of an episode at a viewpoint that was in memory before; None without one."""
    before = history.remembered(number)
    return next((step for step, name in enumerate(history.stored[number]) if name in before), None)


def _meeting_episode(history: MemoryHistory) -> int:
    """Return the first episode that starts outside the memory and reaches it; 1 if there is none."""
    numbers = range(1, len(history.stored))
    return next((n for n in numbers if _meeting_step(history, n)), min(1, len(history.stored) - 1))


def draw_memory(
    graph: SceneGraph,
    moments: Sequence[MemoryMoment],
    *,
    title: str | None = None,
    caption: str | None = None,
) -> str:
    """Draw the memory of a scene at several moments, side by side, as a complete SVG document."""
    columns = min(MAX_COLUMNS, len(moments))
    cell_width = (WIDTH - (columns - 1) * GAP) / columns
    shown = {name for moment in moments for name in (*moment.remembered, moment.current) if name}
    panels = floor_panels(graph, cell_width, shown)
    cell_height = max(panel.y + panel.height for panel in panels) + HEADING_HEIGHT
    cells = []
    for position, moment in enumerate(moments):
        x, y = position % columns * (cell_width + GAP), position // columns * (cell_height + GAP)
        cells.append(translated(x, y, _draw_moment(graph, panels, moment, cell_width)))
    rows = math.ceil(len(moments) / columns)
    title = title or f"Memory of {graph.scene_id}"
    counts = [f"{moment.label}: {len(moment.remembered)} of {len(graph)} viewpoints." for moment in moments]
    return symbols.compose_figure(
        cells,
        legend_items(moments, panels[0].scale),
        width=WIDTH,
        height=rows * (cell_height + GAP) - GAP,
        title=title,
        description=" ".join([f"Memory of scene {graph.scene_id} at several moments.", *counts]),
        heading=title,
        caption=caption or "",
    )


def floor_panels(graph: SceneGraph, width: float, shown: Collection[str]) -> list[Panel]:
    """Return a panel per floor of the `shown` viewpoints, side by side, as large as `width` pixels permit."""
    floors = floor_indices(graph)
    used = sorted({int(floors[graph.index(name)]) for name in shown}) or [0]
    bounds = [Bounds.around(graph.positions[floors == floor, :2], MARGIN) for floor in used]
    scale = min(MAX_SCALE, (width - GAP * (len(bounds) - 1)) / sum(bound.size[0] for bound in bounds))
    north, x, panels = max(bound.north for bound in bounds), 0.0, list[Panel]()
    for floor, bound in zip(used, bounds, strict=True):
        y = HEADING_HEIGHT + (north - bound.north) * scale
        panels.append(Panel(floor=floor, heading="", bounds=bound, scale=scale, x=x, y=y))
        x += bound.size[0] * scale + GAP
    left = (width - x + GAP) / 2
    return [replace(panel, x=panel.x + left) for panel in panels]


def _draw_moment(graph: SceneGraph, panels: Sequence[Panel], moment: MemoryMoment, width: float) -> list[str]:
    text = f"{moment.label}: {len(moment.remembered)} of {len(graph)}"
    x = (width - text_width(text, HEADING_SIZE)) / 2
    heading = element(
        "text", escape_text(text), x=max(0.0, x), y=9.0, font_size=HEADING_SIZE, font_weight="bold", fill=INK
    )
    floors = [
        element("text", f"Floor {panel.floor + 1}", x=panel.x, y=20.0, font_size=7.0, fill=GREY)
        for panel in panels
        if floor_indices(graph).any()
    ]
    return [heading, *floors, *(draw_floor_memory(graph, panel, moment) for panel in panels)]


def draw_floor_memory(graph: SceneGraph, panel: Panel, moment: MemoryMoment) -> str:
    """Return one floor as SVG: the whole graph in grey, the memory, the agent and its candidates."""
    floors, names = floor_indices(graph), graph.viewpoints
    points: dict[str, Point] = {
        names[index]: panel.to_pixels(graph.positions[index])
        for index in np.flatnonzero(floors == panel.floor).tolist()
    }
    edges = [
        (names[a], names[b]) for a, b in graph.edges().tolist() if names[a] in points and names[b] in points
    ]

    def line(pairs: Sequence[tuple[str, str]], colour: str, width: float, dash: str = "none") -> str:
        data = "".join(f"M{format_points([points[a], points[b]])}" for a, b in pairs)
        return (
            element("path", d=data, stroke=colour, stroke_width=width, stroke_dasharray=dash) if data else ""
        )

    known = {*moment.remembered}
    parts = [
        line(edges, "#dfe2e4", 0.7),
        line([(a, b) for a, b in edges if a in known and b in known], MEMORY_EDGE, 1.8),
    ]
    if moment.current in points:
        seen = [c.viewpoint for c in graph.candidates(str(moment.current)) if c.viewpoint in points]
        added = [] if moment.current in known else [(str(moment.current), v) for v in seen if v in known]
        parts.append(line(added, MEMORY_EDGE, 1.4, "3 2"))
        parts += [
            element("circle", cx=points[v][0], cy=points[v][1], r=3.0, fill=OBSERVED)
            for v in seen
            if v not in known
        ]
    parts += [
        element("circle", cx=x, cy=y, r=1.2, fill="#b4b9bd")
        for name, (x, y) in points.items()
        if name not in known
    ]
    for name, (x, y) in points.items():
        if name in known:
            stroke, stroke_width = (INK, 1.5) if name in moment.new else (GREY, 0.6)
            parts.append(
                element(
                    "circle", cx=x, cy=y, r=4.0, fill=REMEMBERED, stroke=stroke, stroke_width=stroke_width
                )
            )
    if moment.chosen in points:
        x, y = points[str(moment.chosen)]
        parts.append(element("circle", cx=x, cy=y, r=6.0, fill="none", stroke=MEMORY_EDGE, stroke_width=2.0))
    if moment.current in points:
        x, y = points[str(moment.current)]
        parts.append(element("circle", cx=x, cy=y, r=4.6, fill=CURRENT, stroke="#fff", stroke_width=1.0))
    return element("g", parts, fill="none", stroke_linecap="round", class_="floor")


def legend_items(moments: Sequence[MemoryMoment], scale: float) -> list[LegendItem]:
    """Return the legend of drawn moments, with a scale bar for `scale` pixels per metre."""

    def disc(fill: str, stroke: str, width: float, radius: float = 4.0) -> str:
        return element("circle", cx=6.0, cy=0.0, r=radius, fill=fill, stroke=stroke, stroke_width=width)

    items = [
        symbols.scale_item(scale),
        symbols.icon_item(disc(REMEMBERED, GREY, 0.6), "remembered", width=12),
    ]
    if any(moment.new for moment in moments):
        items.append(symbols.icon_item(disc(REMEMBERED, INK, 1.5), "new since the picture before", width=12))
    if any(moment.current for moment in moments):
        items += [
            symbols.icon_item(disc(CURRENT, "#fff", 1.0), "agent", width=12),
            symbols.icon_item(disc(OBSERVED, "none", 0.0, 3.0), "observed", width=12),
        ]
    if any(moment.chosen for moment in moments):
        items.append(symbols.icon_item(disc("none", MEMORY_EDGE, 2.0, 5.2), "chosen", width=12))
    return items
