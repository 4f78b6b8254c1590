"""Scene figures: complete, deterministic, metric, and readable without colour."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esceme.errors import WorldError
from esceme.report import PathOverlay, draw_scene, floor_indices
from esceme.report.floors import WIDTH
from esceme.report.symbols import PREDICTED, REFERENCE, end_marker
from esceme.tasks.r2r import read_r2r
from esceme.world import SceneGraph

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "quotes" ]]> \'\x00\ud800'


def make_house(side: int = 4, *, storeys: int = 2) -> SceneGraph:
    """Square floors of `side` x `side` viewpoints, 2 m apart, with one staircase."""
    positions = {
        f"{floor}{x}{y}-id": (2.0 * x, 2.0 * y, 3.0 * floor)
        for floor in range(storeys)
        for x in range(side)
        for y in range(side)
    }
    edges = [
        (a, b)
        for a, b in combinations(positions, 2)
        if np.linalg.norm(np.subtract(positions[a], positions[b])) < 2.1
    ]
    stairs = [(f"{floor}00-id", f"{floor + 1}01-id") for floor in range(storeys - 1)]
    return SceneGraph.build("house", positions, edges + stairs)


HOUSE = make_house()
REFERENCE_PATH = PathOverlay("reference", ("020-id", "010-id", "000-id", "101-id", "111-id"), "reference")
SAME_PATH = PathOverlay("agent", REFERENCE_PATH.path, "predicted")
FAILED_PATH = PathOverlay("agent", ("020-id", "010-id", "011-id"), "predicted")


def draw(*args: object, **options: object) -> ET.Element:
    return ET.fromstring(draw_scene(*args, **options).encode())  # type: ignore[arg-type]


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [element for element in root.iter() if name in element.get("class", "").split()]


def drawn_viewpoints(root: ET.Element) -> list[str]:
    return [circle.findtext(f"{SVG}title", "") for circle in of_class(root, "viewpoint")]


def panel_floors(root: ET.Element, kind: str) -> list[str | None]:
    return [panel.get("data-floor") for panel in of_class(root, kind)]


def texts(root: ET.Element) -> str:
    return " ".join("".join(text.itertext()) for text in root.iter(f"{SVG}text"))


def step_numbers(root: ET.Element) -> list[str]:
    return ["".join(step.itertext()) for step in of_class(root, "step")]


def scale(root: ET.Element) -> float:
    """Pixels per metre, from the scale bar of two metres."""
    bar = next(path.get("d", "") for path in root.iter(f"{SVG}path") if path.get("d", "").startswith("M0,-3"))
    return float(re.findall(r"H([\d.]+)", bar)[0]) / 2


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30), st.floats(0, 9)), min_size=2, max_size=15),
    st.data(),
)
def test_every_viewpoint_of_any_scene_is_drawn(
    positions: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    names = [f"v{n}" for n in range(len(positions))]
    graph = SceneGraph.build(
        "any", dict(zip(names, positions, strict=True)), zip(names, names[1:], strict=False)
    )
    path = st.lists(st.sampled_from(names), min_size=1, max_size=6).map(tuple)
    kinds = st.sampled_from(["reference", "predicted"])
    overlays = data.draw(st.lists(st.builds(PathOverlay, st.text(), path, kinds), max_size=3))
    assert sorted(drawn_viewpoints(draw(graph, overlays, whole=True))) == sorted(names)
    assert set(drawn_viewpoints(draw(graph, overlays))) == set(names)


def test_positions_are_metric_and_north_is_up() -> None:
    root = draw(make_house(storeys=1))
    points = {
        circle.findtext(f"{SVG}title"): np.array([float(circle.get(name, "")) for name in ("cx", "cy")])
        for circle in of_class(root, "viewpoint")
    }
    assert points["010-id"] - points["000-id"] == pytest.approx([2 * scale(root), 0], abs=0.02)
    assert points["001-id"] - points["000-id"] == pytest.approx([0, -2 * scale(root)], abs=0.02)


def test_floors_have_panels_from_the_lowest_up() -> None:
    root = draw(make_house(storeys=3))
    assert panel_floors(root, "floor") == ["0", "1", "2"]
    assert re.search(r"Floor 1 .*Floor 2 \(\+3\.0 m\) .*Floor 3 \(\+6\.0 m\)", texts(root))
    assert "Floor" not in texts(draw(make_house(storeys=1)))


def test_floors_without_a_path_become_thumbnails_unless_drawn_whole() -> None:
    root = draw(HOUSE, [FAILED_PATH])
    assert panel_floors(root, "floor") == ["0"] and panel_floors(root, "thumbnail") == ["1"]
    assert not of_class(draw(HOUSE, [FAILED_PATH], whole=True), "thumbnail")
    assert not of_class(draw(HOUSE), "thumbnail")


def test_large_floor_is_cropped_to_its_path() -> None:
    large = make_house(20, storeys=1)
    overlay = PathOverlay("agent", ("011-id", "021-id", "031-id"), "predicted")
    cropped, whole = draw(large, [overlay]), draw(large, [overlay], whole=True)
    assert scale(cropped) > scale(whole)
    (part,) = of_class(cropped, "floor")
    assert 10 < len(drawn_viewpoints(part)) < len(large)
    (overview,) = of_class(cropped, "thumbnail")
    assert len(drawn_viewpoints(overview)) == len(large)


def test_start_goal_and_success_circle_are_marked() -> None:
    root = draw(HOUSE, [REFERENCE_PATH, FAILED_PATH], whole=True)
    floors = of_class(root, "floor")
    counts = {name: [len(of_class(floor, name)) for floor in floors] for name in ("start", "goal", "stop")}
    assert counts == {"start": [1, 0], "goal": [0, 1], "stop": [1, 0]}
    (circle,) = of_class(floors[1], "success")
    assert float(circle.get("r", "")) == pytest.approx(3 * scale(root), abs=0.02)


def test_goal_marker_does_not_move_for_paths_that_end_there() -> None:
    def stars(overlays: list[PathOverlay]) -> list[str | None]:
        floors = of_class(draw(HOUSE, overlays), "floor")
        return [star.get("points") for floor in floors for star in of_class(floor, "goal")]

    assert stars([SAME_PATH, REFERENCE_PATH, SAME_PATH]) == stars([REFERENCE_PATH])


def test_withheld_goal_is_not_marked() -> None:
    root = draw(HOUSE, [PathOverlay("start", ("020-id",), "reference"), FAILED_PATH])
    assert len(of_class(root, "start")) == 2  # on the map and in the legend
    assert not of_class(root, "goal") and not of_class(root, "success")


def test_paths_on_one_edge_are_side_by_side_and_share_step_numbers() -> None:
    root = draw(HOUSE, [REFERENCE_PATH, SAME_PATH])
    for group in of_class(root, "routes"):
        lines = [line.get("d") for line in group if line.get("stroke") != "#fff"]
        assert len(lines) == len(set(lines)) == 2
    assert step_numbers(root) == step_numbers(draw(HOUSE, [REFERENCE_PATH])) == ["1", "2", "3"]


def test_steps_of_a_path_there_and_back_are_all_numbered() -> None:
    path = ("020-id", "010-id", "000-id", "010-id", "020-id")
    steps = step_numbers(draw(HOUSE, [PathOverlay("reference", path, "reference")]))
    assert sorted(steps) == ["1", "2", "3"]


def test_legend_shows_lengths_and_final_distances_to_the_goal() -> None:
    legend = texts(draw(HOUSE, [REFERENCE_PATH, FAILED_PATH]))
    metres = 2 + 2 + np.sqrt(13) + 2
    left = HOUSE.distance("011-id", "111-id")
    assert f"reference{metres:.1f} m, 4 steps" in legend
    assert f"4.0 m, 2 steps, stops {left:.1f} m from the goal" in legend
    assert "stops at the goal" in texts(draw(HOUSE, [REFERENCE_PATH, SAME_PATH]))


@pytest.mark.parametrize(("storeys", "count"), [(1, 0), (3, 4)])
def test_stairs_are_marked_where_they_leave_a_floor(storeys: int, count: int) -> None:
    floors = of_class(draw(make_house(storeys=storeys)), "floor")
    assert sum(len(list(floor.iter(f"{SVG}polygon"))) for floor in floors) == count


def test_labels_are_unique_prefixes() -> None:
    (labels, _) = of_class(draw(HOUSE, labels=True), "labels")
    shown = [label.text for label in labels]
    assert len(set(shown)) == len(shown) == 16
    assert not of_class(draw(HOUSE), "labels")


def test_hostile_text_stays_text() -> None:
    graph = SceneGraph.build(HOSTILE, {HOSTILE: (0, 0, 0), "b": (2, 0, 0)}, [(HOSTILE, "b")])
    overlay = PathOverlay(HOSTILE, (HOSTILE, "b"), "reference")
    root = draw(graph, [overlay], title=HOSTILE, caption=HOSTILE, labels=True)
    shapes = {"rect", "path", "circle", "polygon", "text", "tspan"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= shapes | {
        "svg",
        "g",
        "title",
        "desc",
    }
    assert texts(root).count("<script>alert(1)</script> &") == 3


def test_long_caption_and_long_label_are_shortened() -> None:
    overlay = PathOverlay("model_" * 60, ("000-id", "010-id"), "predicted")
    root = draw(HOUSE, [overlay], caption="turn left " * 2000)
    assert float(root.get("height", "")) < 800
    assert "…" in texts(root)


def test_the_same_input_gives_the_same_bytes_in_every_process() -> None:
    program = (
        "from esceme.report import *; from esceme.world import SceneGraph\n"
        "positions = {name: (x, 0, 0) for x, name in enumerate('abcdef')}\n"
        "graph = SceneGraph.build('s', positions, zip('abcde', 'bcdef'))\n"
        "paths = [('r', tuple('abcdc'), 'reference'), ('p', tuple('bcdef'), 'predicted')]\n"
        "overlays = [PathOverlay(*path) for path in paths]\n"
        "print(draw_scene(graph, overlays, title='t', caption='c', labels=True))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(outputs) == 1


def test_figure_is_self_contained_and_numbers_are_rounded() -> None:
    svg = draw_scene(HOUSE, [REFERENCE_PATH, FAILED_PATH], title="t", caption="c", labels=True)
    assert not re.search(r"\d\.\d{3}|\b(nan|inf)\b", svg)
    assert not re.search(r"href|url\(|<style|<script|<image|@import", svg)
    assert svg.count("http") == 1  # the namespace


def test_figure_has_a_title_and_a_description_for_screen_readers() -> None:
    root = draw(HOUSE, [REFERENCE_PATH])
    assert root.findtext(f"{SVG}title") == "Scene house from above"
    assert "32 viewpoints and 49 edges on 2 floors" in root.findtext(f"{SVG}desc", "")


def test_styles_differ_in_dash_and_marker_and_not_only_in_colour() -> None:
    for a, b in combinations([REFERENCE, *PREDICTED], 2):
        assert a.dash != b.dash
        grey = a._replace(colour="grey"), b._replace(colour="grey")
        assert end_marker(0, 0, grey[0]) != end_marker(0, 0, grey[1])


def test_unknown_viewpoints_are_refused() -> None:
    overlay = PathOverlay("agent", ("000-id", "elsewhere"), "predicted")
    for options in ({"paths": [overlay]}, {"remembered": ["elsewhere"]}):
        with pytest.raises(WorldError, match="'elsewhere' is not in scene 'house'"):
            draw_scene(HOUSE, **options)


def test_remembered_viewpoints_are_marked_counted_and_described() -> None:
    root = draw(HOUSE, [FAILED_PATH], remembered=["000-id", "010-id", "101-id"])
    for kind, count in (("floor", 2), ("thumbnail", 1)):
        assert [len(of_class(panel, "remembered")) for panel in of_class(root, kind)] == [count]
    assert "remembered before (3 of 32 viewpoints)" in texts(root)
    assert "3 were remembered before" in root.findtext(f"{SVG}desc", "")
    assert not of_class(draw(HOUSE, [FAILED_PATH]), "remembered")


@pytest.mark.real
def test_all_real_scenes_can_be_drawn(real_graphs: dict[str, SceneGraph]) -> None:
    for graph in real_graphs.values():
        root = draw(graph)
        assert sorted(drawn_viewpoints(root)) == sorted(graph.viewpoints)
        assert len(of_class(root, "floor")) == floor_indices(graph).max() + 1
        assert float(root.get("width", "")) <= WIDTH + 24


@pytest.mark.real
def test_real_episodes_show_their_whole_path(real_graphs: dict[str, SceneGraph], data_root: Path) -> None:
    for episode in read_r2r(data_root / "R2R" / "R2R_val_unseen.json")[::150]:
        graph = real_graphs[episode.scene_id]
        floors = of_class(
            draw(graph, [PathOverlay("reference", episode.reference_path, "reference")]), "floor"
        )
        assert set(episode.reference_path) <= {name for floor in floors for name in drawn_viewpoints(floor)}
        assert sum(len(of_class(floor, "goal")) for floor in floors) == 1
