"""One floor of a scene figure: the graph on its ground, and the routes over it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from esceme.report import marks
from esceme.report.lanes import Piece, pieces_on
from esceme.report.marks import GREY, INK, PALE, Style
from esceme.report.panels import HEADING_SIZE, Panel, Point
from esceme.report.plan import Plan
from esceme.report.svg import Look, clean, element, number, points

SUCCESS = 3.0
"""Metres around the goal within which stopping counts."""
GROUND = 1.8
"""How many metres of ground are shown along an edge."""
LABEL_SIZE = 4.6
ASIDE = 12.5
"""Pixels from a stop marker to another at the same viewpoint."""
APART = 10.0
"""Pixels between numbers, so that they do not overlap."""


def draw_floor(plan: Plan, panel: Panel, *, labels: bool) -> str:
    """A panel's floor under its heading; a part of a floor is framed, in its thumbnail as well."""
    content = [_draw_graph(plan, panel)]
    if not panel.thumbnail:
        content += _draw_routes(plan, panel)
        content += [_draw_labels(plan, panel)] if labels else []
    parts = ["\n".join(content)]
    if panel.focus:
        frame = element("rect", fill="none", stroke=GREY, stroke_width=0.7, **panel.box(panel.focus))
        if not panel.thumbnail:  # an inner document cuts off what lies outside of it
            box = panel.box(panel.focus)
            view = " ".join(number(box[key]) for key in ("x", "y", "width", "height"))
            parts = [element("svg", content, viewBox=view, **box)]
        parts.append(frame)
    if panel.heading:
        colour = "#868d93" if panel.thumbnail else GREY
        look: Look = {"font_size": HEADING_SIZE, "font_weight": "bold", "fill": colour}
        parts.append(element("text", clean(panel.heading), x=panel.x, y=panel.top + 8, **look))
    kind = "thumbnail" if panel.thumbnail else "floor"
    return element("g", parts, class_=kind, data_floor=str(panel.floor))


def _draw_graph(plan: Plan, panel: Panel) -> str:
    """The ground as a pale shape, edges, stairs that leave the floor, and viewpoints."""
    graph, floors = plan.graph, plan.floors
    near = [edge for edge in graph.edges() if panel.bounds.meets(graph.positions[edge, :2])]
    level = [edge for edge in near if (floors[edge] == panel.floor).all()]
    edges = "".join(f"M{points(panel.place(graph.positions[row]) for row in edge)}" for edge in level)
    ways = [
        (panel.place(graph.positions[way.here]), panel.place(way.middle), way.up)
        for way in plan.stairs(panel.floor)
    ]
    stubs = "".join(f"M{points((here, middle))}" for here, middle, _ in ways)
    pale = panel.thumbnail
    ink = "#c6cbcf" if pale else PALE
    parts = [
        element(
            "path",
            d=edges + stubs,
            stroke="#f1f2f3" if pale else "#eceeef",
            stroke_width=GROUND * panel.scale,
        ),
        element("path", d=edges, stroke=ink, stroke_width=0.5 if pale else 0.7),
    ]
    if ways and not pale:
        parts.append(element("path", d=stubs, stroke=GREY, stroke_width=0.8, stroke_dasharray="1.5 1.5"))
        parts += [marks.stairs_mark(*middle, up=up) for _, middle, up in ways]
    parts += _draw_viewpoints(plan, panel, ink if pale else "#868d93")
    return element("g", parts, class_="graph", fill="none", stroke_linecap="round", stroke_linejoin="round")


def _draw_viewpoints(plan: Plan, panel: Panel, colour: str) -> Iterator[str]:
    """Discs around those that are remembered, and then a dot for each."""
    graph, pale = plan.graph, panel.thumbnail
    places = {
        row: panel.place(graph.positions[row])
        for row in np.flatnonzero(plan.floors == panel.floor).tolist()
        if panel.bounds.meets(graph.positions[[row], :2])
    }
    known = [place for row, place in places.items() if row in plan.remembered]
    yield from (marks.remembered_mark(*place, size=0.35 if pale else 1.0) for place in known)
    look: Look = {"r": 0.9 if pale else 1.7, "fill": colour, "class_": "viewpoint"}
    for row, (x, y) in places.items():
        yield element("circle", element("title", clean(graph.viewpoints[row])), cx=x, cy=y, **look)


def _draw_labels(plan: Plan, panel: Panel) -> str:
    """The beginnings of viewpoint ids, as long as it takes to tell them apart."""
    graph = plan.graph
    longest = max(map(len, graph.viewpoints))
    size = next(
        size
        for size in range(min(4, longest), longest + 1)
        if len({name[:size] for name in graph.viewpoints}) == len(graph)
    )
    marked = {row for trip in plan.trips for row in trip.rows}
    texts = []
    for row in np.flatnonzero(plan.floors == panel.floor).tolist():
        if panel.bounds.meets(graph.positions[[row], :2]):
            x, y = panel.place(graph.positions[row])
            away = 5.0 if row in marked else 2.0  # beyond the number of a step
            texts.append(element("text", clean(graph.viewpoints[row][:size]), x=x + away, y=y - away))
    return element("g", texts, class_="labels", font_size=LABEL_SIZE, fill=GREY)


def _draw_routes(plan: Plan, panel: Panel) -> list[str]:
    """The routes' lines, then where they change floors, step numbers, and where they start and end."""

    def is_here(row: int) -> bool:
        return bool(plan.floors[row] == panel.floor)

    def place(row: int) -> Point:
        return panel.place(plan.graph.positions[row])

    stops = _stops(plan, panel)
    pieces = [
        (piece, trip.style)
        for trip, stop in zip(plan.trips, stops, strict=True)
        for piece in pieces_on(trip.legs, is_here, place, stop)
    ]
    starts = [place(row) for row in dict.fromkeys(trip.rows[0] for trip in plan.trips) if is_here(row)]
    ends = [
        (stop, trip.style)
        for trip, stop in zip(plan.trips, stops, strict=True)
        if is_here(trip.rows[-1]) and (trip.legs or trip.route.kind == "predicted")
    ]
    goals = [trip.goal for trip in plan.trips if trip.goal is not None and is_here(trip.goal)]
    lines = [draw(piece.path, style) for draw in (marks.casing, marks.line) for piece, style in pieces]
    return [
        *(marks.success_circle(*place(goal), SUCCESS * panel.scale) for goal in goals),
        element("g", lines, fill="none", class_="routes"),
        *(
            marks.stairs_mark(*panel.place(way.middle), up=way.up, colour=INK, size=1.6)
            for way in plan.stairs(panel.floor)
            if any({way.here, way.there} == {*leg[:2]} for trip in plan.trips for leg in trip.legs)
        ),
        *_number_steps(pieces, taken=[*starts, *(stop for stop, _ in ends)]),
        *(marks.start_mark(*start) for start in starts),
        *(marks.stop_mark(*stop, style) for stop, style in ends),
    ]


def _stops(plan: Plan, panel: Panel) -> list[Point]:
    """Where the line of every trip ends; at a viewpoint that has a marker, beside that marker."""
    taken = [*dict.fromkeys(trip.rows[0] for trip in plan.trips)]
    turned: dict[int, float] = {}
    stops = []
    for trip in plan.trips:
        row = trip.rows[-1]
        x, y = panel.place(plan.graph.positions[row])
        if row in taken:
            back = panel.place(plan.graph.positions[trip.rows[-2] if trip.legs else row])
            angle = turned.get(row, math.atan2(y - back[1], x - back[0]) + 0.5 * math.pi)
            x, y = x + ASIDE * math.cos(angle), y + ASIDE * math.sin(angle)
            turned[row] = angle - 0.4 * math.pi
        stops.append((x, y))
        taken.append(row)
    return stops


def _number_steps(pieces: Iterable[tuple[Piece, Style]], taken: Iterable[Point]) -> Iterator[str]:
    """Step numbers on the routes, or beside them where another has the place; none where there is no room.

    Routes that walk in step share their numbers: those of the first are enough.
    """
    used: list[tuple[Point, int | None]] = [(place, None) for place in taken]
    for piece, style in pieces:
        for step, x, y in piece.turns:
            if any(number == step and math.dist((x, y), place) < 2.2 * APART for place, number in used):
                continue
            for spot in _around(x, y):
                if all(math.dist(spot, place) > APART for place, _ in used):
                    used.append((spot, step))
                    yield marks.step_mark(*spot, step, style)
                    break


def _around(x: float, y: float) -> Iterator[Point]:
    yield x, y
    for eighth in range(8):
        angle = (eighth - 2) * math.pi / 4
        yield x + 1.1 * APART * math.cos(angle), y + 1.1 * APART * math.sin(angle)
