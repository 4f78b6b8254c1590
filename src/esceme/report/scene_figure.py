"""A scene from above as SVG: its navigation graph, floor by floor, with paths over it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from esceme.report import symbols
from esceme.report.floor_drawing import GROUND_WIDTH, SUCCESS_RADIUS, draw_floor
from esceme.report.floors import Bounds, Panel, arrange_panels, floor_heights, total_size
from esceme.report.paths import PathOverlay, SceneContent
from esceme.report.symbols import REFERENCE, LegendItem
from esceme.world.graph import SceneGraph

MIN_WIDTH, MIN_WIDTH_WITH_TEXT = 200.0, 380.0
"""Minimum width of a figure in pixels: without text, and with a caption or paths."""
PATH_MARGIN = 3.5
"""Margin in metres around the paths on a floor that is cropped to its paths."""
MAX_CROP_SHARE = 0.6
"""A floor is cropped to its paths if the crop covers less than this share of its area."""


def draw_scene(
    graph: SceneGraph,
    paths: Sequence[PathOverlay] = (),
    *,
    title: str | None = None,
    caption: str | None = None,
    labels: bool = False,
    whole: bool = False,
    remembered: Collection[str] = (),
) -> str:
    """Draw the graph of a scene from above with paths, as a complete SVG document.

    Equal arguments give equal documents. Floors are drawn side by side at one scale, with north (+y) up. If
    there are paths, floors without a path are drawn as thumbnails. Large floors are cropped to their paths
    and get a thumbnail of the whole floor.

    Args:
        graph: the scene.
        paths: reference paths and predictions.
        title: heading of the figure.
        caption: text below the heading, for example the instruction; long texts are cut.
        labels: whether to write a unique prefix of its id beside every viewpoint.
        whole: whether to draw every floor in full.
        remembered: viewpoints in memory at the start of the episode; they are highlighted.

    Raises:
        WorldError: a viewpoint is not in the scene or cannot be reached.
    """
    drawing = scene_drawing(
        graph, paths, labels=labels, whole=whole, remembered=remembered, has_text=bool(caption)
    )
    return symbols.compose_figure(
        [drawing.content],
        drawing.legend,
        width=drawing.width,
        height=drawing.height,
        title=title or f"Scene {graph.scene_id} from above",
        description=drawing.description,
        heading=title or "",
        caption=caption or "",
    )


class SceneDrawing(NamedTuple):
    """A scene from above as a part of a figure: SVG with its size in pixels, legend and description."""

    content: str
    legend: list[LegendItem]
    width: float
    height: float
    description: str


def scene_drawing(
    graph: SceneGraph,
    paths: Sequence[PathOverlay] = (),
    *,
    labels: bool = False,
    whole: bool = False,
    remembered: Collection[str] = (),
    has_text: bool = True,
    num_steps: int | None = None,
) -> SceneDrawing:
    """Return the drawing of a scene for a figure that has further parts; see `draw_scene`.

    With `num_steps`, predicted paths are drawn up to this step. The layout is that of the whole paths.
    """
    scene = SceneContent.of(graph, paths, remembered)
    panels = arrange_panels(_list_panels(scene, whole=whole))
    width, height = total_size(panels)
    width = max(MIN_WIDTH_WITH_TEXT if paths or has_text else MIN_WIDTH, width)
    legend = _legend_items(scene, panels[0].scale, width)
    if num_steps is not None:
        scene = scene.up_to_step(num_steps)
    content = "\n".join(draw_floor(scene, panel, labels=labels) for panel in panels)
    return SceneDrawing(content, legend, width, height, scene.describe())


def _list_panels(scene: SceneContent, *, whole: bool) -> list[Panel]:
    """Return the panels of all floors: first the large panels, then the thumbnails.

    With `whole`, every floor is a large panel and is not cropped.
    """
    heights = floor_heights(scene.graph)
    bounds, around_paths = zip(
        *(_floor_and_path_bounds(scene, floor) for floor in range(len(heights))), strict=True
    )
    crops = {} if whole else _crop_to_paths(bounds, around_paths)
    large, small = [], []
    for floor, height in enumerate((heights - heights[0]).tolist()):
        name = f"Floor {floor + 1}" if len(heights) > 1 else ""
        heading = f"{name} ({height:+.1f} m)" if floor else name
        panel = Panel(floor=floor, heading=heading, bounds=bounds[floor])
        if floor in crops:
            crop, overview = crops[floor], name and f"{name}, whole"
            large.append(replace(panel, bounds=crop, focus=crop))
            small.append(replace(panel, heading=overview, focus=crop, is_thumbnail=True))
        elif around_paths[floor] is None and scene.paths and not whole:
            small.append(replace(panel, is_thumbnail=True))
        else:
            large.append(panel)
    return large + small


def _crop_to_paths(bounds: Sequence[Bounds], around_paths: Sequence[Bounds | None]) -> dict[int, Bounds]:
    """Return a dict from floor to the part that is shown, for all floors that are cropped to their paths.

    All parts have the same extent from south to north.
    """
    crops = {
        floor: part
        for floor, (full, part) in enumerate(zip(bounds, around_paths, strict=True))
        if part is not None and math.prod(part.size) < MAX_CROP_SHARE * math.prod(full.size)
    }
    south = min((part.south for part in crops.values()), default=0.0)
    north = max((part.north for part in crops.values()), default=0.0)
    return {floor: part._replace(south=south, north=north) for floor, part in crops.items()}


def _floor_and_path_bounds(scene: SceneContent, floor: int) -> tuple[Bounds, Bounds | None]:
    """Return the bounds of a floor, and the bounds of the paths on this floor; None without paths."""
    positions, floors = scene.graph.positions[:, :2], scene.floors
    on_paths = [index for path in scene.paths for index in path.viewpoints if floors[index] == floor]
    goals = [path.goal for path in scene.paths if path.goal is not None and floors[path.goal] == floor]
    circles = [positions[goal] + sign * SUCCESS_RADIUS for goal in goals for sign in (-1, 1)]
    middles = [link.middle for link in scene.floor_links(floor)]
    bounds = Bounds.around(np.array([*positions[floors == floor], *middles, *circles]), GROUND_WIDTH / 2)
    if not on_paths:
        return bounds, None
    return bounds, Bounds.around(positions[on_paths], PATH_MARGIN).intersection(bounds)


def _legend_items(scene: SceneContent, scale: float, width: float) -> list[LegendItem]:
    items = [symbols.scale_item(scale), symbols.north_item()]
    if scene.floors.any():
        icons = symbols.stairs_marker(3, 0, up=True) + symbols.stairs_marker(10, 0, up=False)
        items.append(symbols.icon_item(icons, "stairs up, down", width=13))
    if scene.paths:
        items.append(symbols.icon_item(symbols.start_marker(5, 0), "start"))
    if scene.remembered:
        count = f"remembered before ({len(scene.remembered)} of {len(scene.graph)} viewpoints)"
        items.append(symbols.icon_item(symbols.remembered_marker(6, 0, size=0.85), count, width=12))
    if scene.goal is not None:
        items.append(symbols.icon_item(symbols.end_marker(5, 0, REFERENCE), "goal"))
        items.append(symbols.icon_item(symbols.success_circle(6, 0, 5.5), "3 m around the goal", width=12))
    for path in scene.paths:
        label, details, has_end = path.overlay.label, scene.summarize(path), bool(path.segments)
        items.append(symbols.path_item(label, details, path.style, has_end_marker=has_end, max_width=width))
    return items
