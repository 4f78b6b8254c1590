"""Figure of one episode: the paths of several agents from above, and the panoramas of every step."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path

from PIL import Image

from esceme.perception.views import read_panorama
from esceme.report import symbols
from esceme.report.paths import PathOverlay
from esceme.report.result_set import ResultSet
from esceme.report.scene_figure import scene_drawing
from esceme.report.svg import Attributes, element, embed_image, escape_text, shorten_text, translated
from esceme.report.symbols import INK, PREDICTED, REMEMBERED, LegendItem, LineStyle
from esceme.world.geometry import wrap_angle

WIDTH = 720.0
"""Width of the figure in pixels."""
COLUMNS, GAP = 4, 8.0
"""Number of panoramas in a row, and the distance between two of them in pixels."""
THUMBNAIL_WIDTH = (WIDTH - (COLUMNS - 1) * GAP) / COLUMNS
THUMBNAIL_HEIGHT = THUMBNAIL_WIDTH / 3
"""Size of a drawn panorama in pixels. Panoramas are cropped to 120 degrees from bottom to top."""
ELEVATION_RANGE = 2 * math.pi / 3
ROW_HEIGHT, HEADING_HEIGHT = THUMBNAIL_HEIGHT + 16.0, 18.0
ENLARGEMENT = (WIDTH - GAP) / 2 / THUMBNAIL_WIDTH
"""Scale of panoramas in drawings of single steps, which have two in a row."""
PIXEL_RATIO = 2
"""Pixels of an embedded image per pixel of the figure."""
JPEG_QUALITY = 80


def draw_episode(results: ResultSet, episode_id: str, *, title: str | None = None) -> str:
    """Return a complete SVG document of an episode: the scene from above, and the available panoramas.

    Every agent has its rows of panoramas, one per step. The centre of a panorama is the direction that the
    agent faces. A ring marks the candidate that the agent takes, a disc every other candidate; discs of
    remembered viewpoints are yellow. Remembered viewpoints are those in the memory of the last result.
    """
    return _compose(results, episode_id, title, num_steps=None)


def draw_episode_steps(results: ResultSet, episode_id: str) -> list[str]:
    """Return one SVG document of equal size per step: the paths so far, and the current panoramas."""
    numbers = range(len(results.names))
    num_steps = max(len(results.viewpoints(number, episode_id)) for number in numbers)
    return [_compose(results, episode_id, None, num_steps=step) for step in range(num_steps)]


def _compose(results: ResultSet, episode_id: str, title: str | None, *, num_steps: int | None) -> str:
    episode, graph, last = results.find(episode_id), results.graph(episode_id), len(results.names) - 1
    overlays = [PathOverlay("reference path", episode.reference_path, "reference")]
    overlays += [
        PathOverlay(name, results.viewpoints(number, episode_id), "predicted")
        for number, name in enumerate(results.names)
    ]
    scene = scene_drawing(
        graph,
        overlays,
        remembered=results.remembered(last, episode_id, num_steps or 0),
        num_steps=num_steps,
    )
    rows, height = _panorama_rows(results, episode_id, num_steps)
    visit = results.by_id[last][episode_id].visit
    heading = title or f"{graph.scene_id}, episode {episode_id}: visit {visit} to this scene"
    has_memory = any(result.facts.get("memory") != "none" for result in results.results)
    legend = [*scene.legend, *(_candidate_items(has_memory=has_memory) if rows else [])]
    return symbols.compose_figure(
        [
            translated((WIDTH - min(scene.width, WIDTH)) / 2, 0, scene.content),
            translated(0, scene.height + 16, rows),
        ],
        legend,
        width=max(WIDTH, scene.width),
        height=scene.height + height,
        title=heading,
        description=scene.description,
        heading=heading,
        caption=episode.instruction,
    )


def _panorama_rows(results: ResultSet, episode_id: str, num_steps: int | None) -> tuple[str, float]:
    """Return the panoramas of all agents as SVG, and their height; "" and 0 without panoramas.

    With `num_steps`, only the panorama of this step is drawn, one per agent.
    """
    parts, y = list[str](), 0.0
    for number, name in enumerate(results.names):
        style, trajectory = PREDICTED[number % len(PREDICTED)], results.by_id[number][episode_id].trajectory
        steps = range(len(trajectory)) if num_steps is None else [min(num_steps, len(trajectory) - 1)]
        tiles = [(step, _draw_step(results, number, episode_id, step, style)) for step in steps]
        tiles = [(step, tile) for step, tile in tiles if tile]
        if not tiles:
            continue
        if num_steps is not None:
            row_height = ENLARGEMENT * THUMBNAIL_HEIGHT + GAP
            x, y = number % 2 * (WIDTH + GAP) / 2, number // 2 * row_height
            enlarged = element("g", [tiles[0][1]], transform=f"scale({ENLARGEMENT:.4f})")
            parts.append(translated(x, y, enlarged))
            y += row_height
            continue
        parts.append(_row_heading(name, style, y + 11))
        y += HEADING_HEIGHT
        for position, (_, tile) in enumerate(tiles):
            column, row = position % COLUMNS, position // COLUMNS
            parts.append(translated(column * (THUMBNAIL_WIDTH + GAP), y + row * ROW_HEIGHT, tile))
        y += math.ceil(len(tiles) / COLUMNS) * ROW_HEIGHT
    return "\n".join(parts), y + 16 if parts else 0.0


def _row_heading(name: str, style: LineStyle, y: float) -> str:
    font: Attributes = {"font_size": 9.5, "font_weight": "bold", "fill": style.colour}
    return element("text", escape_text(shorten_text(name, 9.5, WIDTH)), x=0.0, y=y, **font)


def _draw_step(results: ResultSet, number: int, episode_id: str, step: int, style: LineStyle) -> str:
    """Return the panorama of a step with its candidates as SVG; empty if there is no panorama."""
    graph, trajectory = results.graph(episode_id), results.by_id[number][episode_id].trajectory
    viewpoint, heading, _ = trajectory[step]
    file = results.folder.panorama(graph.scene_id, viewpoint)
    if file is None:
        return ""
    taken = trajectory[step + 1][0] if step + 1 < len(trajectory) else None
    remembered = {*results.remembered(number, episode_id, step)}
    image = embed_image(_turned_thumbnail(file, heading), THUMBNAIL_WIDTH, THUMBNAIL_HEIGHT)
    parts = [image]
    for candidate in graph.candidates(viewpoint):
        x = THUMBNAIL_WIDTH * (0.5 + float(wrap_angle(candidate.heading - heading)) / (2 * math.pi))
        y = THUMBNAIL_HEIGHT * (0.5 - candidate.elevation / ELEVATION_RANGE)
        y = min(max(y, 5.0), THUMBNAIL_HEIGHT - 5.0)
        fill = REMEMBERED if candidate.viewpoint in remembered else "#fff"
        parts.append(element("circle", cx=x, cy=y, r=3.2, fill=fill, stroke=INK, stroke_width=0.9))
        if candidate.viewpoint == taken:
            parts.append(_taken_ring(x, y, style.colour))
    parts.append(symbols.step_number(7, 7, step, style))
    if taken is None:
        label = "stops here" if results.by_id[number][episode_id].stopped else "no step left"
        parts.append(element("text", label, x=16.0, y=9.5, font_size=7.5, font_weight="bold", fill=INK))
    return element("g", parts, class_="panorama")


def _taken_ring(x: float, y: float, colour: str) -> str:
    white = element("circle", cx=x, cy=y, r=6.2, fill="none", stroke="#fff", stroke_width=3.6)
    return white + element("circle", cx=x, cy=y, r=6.2, fill="none", stroke=colour, stroke_width=2.2)


def _candidate_items(*, has_memory: bool) -> list[LegendItem]:
    circle: Attributes = {"cx": 6.0, "cy": 0.0, "stroke": INK, "stroke_width": 0.9}
    ring = element("circle", cx=6.0, cy=0.0, r=5.2, fill="none", stroke=INK, stroke_width=1.8)
    disc = element("circle", r=3.2, fill="#fff", **circle)
    known = element("circle", r=3.2, fill=REMEMBERED, **circle)
    icons = [(disc, "candidate"), (known, "leads to a remembered viewpoint"), (ring, "taken")]
    shown = [item for item in icons if has_memory or item[0] != known]
    return [symbols.icon_item(icon, text, width=12) for icon, text in shown]


def _turned_thumbnail(file: Path, heading: float) -> bytes:
    """Return a small JPEG of a panorama, turned so that `heading` is in the centre, and cropped."""
    width, height = round(PIXEL_RATIO * THUMBNAIL_WIDTH), round(PIXEL_RATIO * THUMBNAIL_HEIGHT)
    full = Image.fromarray(read_panorama(file)).resize((width, round(width / 2)))
    shift = round(width * float(wrap_angle(heading)) / (2 * math.pi)) % width
    turned = Image.new("RGB", full.size)
    turned.paste(full, (-shift, 0))
    turned.paste(full, (width - shift, 0))
    top = round(full.height / 2 - height / 2)
    turned, content = turned.crop((0, top, width, top + height)), BytesIO()
    turned.save(content, "JPEG", quality=JPEG_QUALITY)
    return content.getvalue()
