"""Figure of graph encoding: memory of a scene, graph tensor of what its window keeps, and the added token."""

from __future__ import annotations

from collections.abc import Sequence

from esceme.evaluation.history import MemoryHistory
from esceme.report import symbols
from esceme.report.memory_figure import (
    HEADING_SIZE,
    MEMORY_EDGE,
    MemoryMoment,
    draw_floor_memory,
    floor_panels,
    legend_items,
)
from esceme.report.svg import element, escape_text, text_width, translated
from esceme.report.symbols import GREY, INK, PALE, REMEMBERED
from esceme.world.graph import SceneGraph

MAP_WIDTH, TENSOR_WIDTH, NETWORK_WIDTH, GAP = 330.0, 200.0, 250.0, 24.0
MAX_CELL, TOP = 12.0, 20.0
"""Maximum size in pixels of an entry of the tensor, and the height of a heading."""
BOX_HEIGHT = 30.0
NETWORK = (
    "entries [edge; feature], n × n × (1 + D)",
    "[MLP1(G) · MLP2(G); MLP3(G)]",
    "sum over all entries: one token",
    "context token of the observation",
    "cross-modal encoder: scores of candidates",
)
"""Steps of graph encoding from top to bottom (appendix A of the paper)."""


def encoded_viewpoints(history: MemoryHistory, episode: int, step: int) -> tuple[list[str], list[str]]:
    """Return the remembered viewpoints that the window `path` keeps at a step, and those that it leaves out.

    The window leaves out the viewpoints of the episode so far, which the agent's history already contains.
    """
    path = {*history.stored[episode][: step + 1]}
    remembered = history.remembered(episode, step)
    return [name for name in remembered if name not in path], [name for name in remembered if name in path]


def draw_graph_encoding(graph: SceneGraph, history: MemoryHistory, episode: int, step: int) -> str:
    """Draw graph encoding at a step of an episode as a complete SVG document.

    `episode` and `step` count from 0 within the scene.
    """
    encoded, left_out = encoded_viewpoints(history, episode, step)
    moment = MemoryMoment(
        label=f"episode {episode + 1}, step {step + 1}",
        remembered=encoded,
        current=history.stored[episode][step],
        number=episode,
    )
    panels = floor_panels(graph, MAP_WIDTH, {*encoded, *left_out, str(moment.current)})
    tensor_x = MAP_WIDTH + GAP
    network_x = tensor_x + TENSOR_WIDTH + GAP
    network = _draw_network()
    content = [
        _heading(f"memory: {len(encoded)} viewpoints encoded, {len(left_out)} left out", 0.0),
        *(draw_floor_memory(graph, panel, moment) for panel in panels),
        translated(
            tensor_x, 0, [_heading(f"graph tensor G, n = {len(encoded)}", 0.0), _draw_tensor(graph, encoded)]
        ),
        translated(network_x, 0, [_heading("graph encoding", 0.0), *network]),
    ]
    height = max(max(panel.y + panel.height for panel in panels), TOP + TENSOR_WIDTH, _network_height())
    title = f"Graph encoding in {graph.scene_id}, {moment.label}"
    return symbols.compose_figure(
        content,
        [
            *legend_items([moment], panels[0].scale),
            symbols.icon_item(_cell(0, -5, 10, REMEMBERED), "G(i, i) = [0; pooled feature]"),
            symbols.icon_item(_cell(0, -5, 10, MEMORY_EDGE), "G(i, j) = [1; 0], an edge"),
        ],
        width=network_x + NETWORK_WIDTH,
        height=height,
        title=title,
        description=f"{len(encoded)} remembered viewpoints from above and as a matrix, and the steps "
        "that encode them as one token.",
        heading=title,
        caption="The window leaves out the viewpoints of this episode, which the history already contains.",
    )


def _heading(text: str, x: float) -> str:
    return element(
        "text", escape_text(text), x=x, y=9.0, font_size=HEADING_SIZE, font_weight="bold", fill=INK
    )


def _cell(x: float, y: float, size: float, fill: str) -> str:
    return element("rect", x=x, y=y, width=size, height=size, fill=fill)


def _draw_tensor(graph: SceneGraph, viewpoints: Sequence[str]) -> str:
    """Return the n x n entries as SVG: viewpoints on the diagonal, remembered edges beside it."""
    size = min(MAX_CELL, TENSOR_WIDTH / max(1, len(viewpoints)))
    rows = {name: row for row, name in enumerate(viewpoints)}
    cells = [_cell(size * row, size * row, size, REMEMBERED) for row in rows.values()]
    names = graph.viewpoints
    for a, b in ((rows.get(names[a]), rows.get(names[b])) for a, b in graph.edges().tolist()):
        if a is not None and b is not None:
            cells += [
                _cell(size * a, size * b, size, MEMORY_EDGE),
                _cell(size * b, size * a, size, MEMORY_EDGE),
            ]
    side = size * len(viewpoints)
    frame = element("rect", width=side, height=side, fill="none", stroke=PALE, stroke_width=0.8)
    return translated(0, TOP, [*cells, frame])


def _network_height() -> float:
    return TOP + len(NETWORK) * (BOX_HEIGHT + GAP) - GAP


def _draw_network() -> list[str]:
    parts = []
    for number, text in enumerate(NETWORK):
        y = TOP + number * (BOX_HEIGHT + GAP)
        parts.append(
            element(
                "rect",
                y=y,
                width=NETWORK_WIDTH,
                height=BOX_HEIGHT,
                rx=4,
                fill="#fff",
                stroke=GREY,
                stroke_width=1,
            )
        )
        x = (NETWORK_WIDTH - text_width(text, HEADING_SIZE)) / 2
        parts.append(element("text", escape_text(text), x=x, y=y + 18.5, font_size=HEADING_SIZE, fill=INK))
        if number:
            arrow = f"M{NETWORK_WIDTH / 2:g},{y - GAP + 2:g} V{y - 3:g} m-3,-5 l3,5 l3,-5"
            parts.append(element("path", d=arrow, fill="none", stroke=GREY, stroke_width=1.2))
    return parts
