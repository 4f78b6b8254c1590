"""The figure of a scene: well-formed, complete, deterministic, and legible without colour."""

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
from esceme.report import PathOverlay, draw_scene, floors_of
from esceme.report.marks import PREDICTED, REFERENCE, stop_mark
from esceme.report.panels import WIDTH
from esceme.tasks.r2r import read_r2r
from esceme.world import SceneGraph

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "quotes" ]]> \'\x00\ud800'


def house(side: int = 4, *, storeys: int = 2) -> SceneGraph:
    """Square floors of `side` x `side` viewpoints, 2 m apart, with one staircase."""
    places = {
        f"{floor}{x}{y}-id": (2.0 * x, 2.0 * y, 3.0 * floor)
        for floor in range(storeys)
        for x in range(side)
        for y in range(side)
    }
    edges = [
        (a, b) for a, b in combinations(places, 2) if np.linalg.norm(np.subtract(places[a], places[b])) < 2.1
    ]
    stairs = [(f"{floor}00-id", f"{floor + 1}01-id") for floor in range(storeys - 1)]
    return SceneGraph.build("house", places, edges + stairs)


HOUSE = house()
REFERENCE_ROUTE = PathOverlay("reference", ("020-id", "010-id", "000-id", "101-id", "111-id"), "reference")
ASTRAY = PathOverlay("agent", ("020-id", "010-id", "011-id"), "predicted")


def read(svg: str) -> ET.Element:
    return ET.fromstring(svg.encode())


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in root.iter() if name in each.get("class", "").split()]


def drawn_viewpoints(root: ET.Element) -> list[str]:
    return [each.findtext(f"{SVG}title", "") for each in of_class(root, "viewpoint")]


def texts(root: ET.Element) -> str:
    return " ".join("".join(each.itertext()) for each in root.iter(f"{SVG}text"))


def scale(root: ET.Element) -> float:
    """Pixels per metre, from the scale bar of two metres."""
    bar = next(each.get("d", "") for each in root.iter(f"{SVG}path") if each.get("d", "").startswith("M0,-3"))
    return float(re.findall(r"H([\d.]+)", bar)[0]) / 2


def test_every_viewpoint_is_drawn_once() -> None:
    assert sorted(drawn_viewpoints(read(draw_scene(HOUSE)))) == sorted(HOUSE.viewpoints)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30), st.floats(0, 9)), min_size=2, max_size=15),
    st.data(),
)
def test_any_scene_with_any_routes_is_drawn_whole(
    places: list[tuple[float, float, float]], data: st.DataObject
) -> None:
    names = [f"v{n}" for n in range(len(places))]
    graph = SceneGraph.build(
        "any", dict(zip(names, places, strict=True)), zip(names, names[1:], strict=False)
    )
    path = st.lists(st.sampled_from(names), min_size=1, max_size=6).map(tuple)
    kinds = st.sampled_from(["reference", "predicted"])
    routes = data.draw(st.lists(st.builds(PathOverlay, st.text(), path, kinds), max_size=3))
    root = read(draw_scene(graph, routes, whole=True))
    assert sorted(drawn_viewpoints(root)) == sorted(names)
    assert set(drawn_viewpoints(read(draw_scene(graph, routes)))) == set(names)


def test_positions_are_metric_and_north_is_up() -> None:
    root = read(draw_scene(house(storeys=1)))
    at = {
        each.findtext(f"{SVG}title"): np.array([float(each.get("cx", "")), float(each.get("cy", ""))])
        for each in of_class(root, "viewpoint")
    }
    assert at["010-id"] - at["000-id"] == pytest.approx([2 * scale(root), 0], abs=0.02)
    assert at["001-id"] - at["000-id"] == pytest.approx([0, -2 * scale(root)], abs=0.02)


def test_floors_have_panels_from_the_lowest_up() -> None:
    root = read(draw_scene(house(storeys=3)))
    assert [each.get("data-floor") for each in of_class(root, "floor")] == ["0", "1", "2"]
    assert re.search(r"Floor 1 .*Floor 2 \(\+3\.0 m\) .*Floor 3 \(\+6\.0 m\)", texts(root))


def test_a_single_floor_needs_no_heading() -> None:
    assert "Floor" not in texts(read(draw_scene(house(storeys=1))))


def test_floors_without_a_route_become_thumbnails_unless_all_is_wanted() -> None:
    root = read(draw_scene(HOUSE, [ASTRAY]))
    assert [each.get("data-floor") for each in of_class(root, "floor")] == ["0"]
    assert [each.get("data-floor") for each in of_class(root, "thumbnail")] == ["1"]
    assert not of_class(read(draw_scene(HOUSE, [ASTRAY], whole=True)), "thumbnail")
    assert not of_class(read(draw_scene(HOUSE)), "thumbnail")


def test_a_small_part_of_a_large_floor_is_drawn_large() -> None:
    large = house(20, storeys=1)
    route = PathOverlay("agent", ("011-id", "021-id", "031-id"), "predicted")
    near, far = read(draw_scene(large, [route])), read(draw_scene(large, [route], whole=True))
    assert scale(near) > scale(far)
    (part,) = of_class(near, "floor")
    assert 10 < len(drawn_viewpoints(part)) < len(large)
    (overview,) = of_class(near, "thumbnail")
    assert len(drawn_viewpoints(overview)) == len(large)


def test_start_goal_and_success_circle_are_marked() -> None:
    root = read(draw_scene(HOUSE, [REFERENCE_ROUTE, ASTRAY], whole=True))
    floors = of_class(root, "floor")
    assert [len(of_class(floor, "start")) for floor in floors] == [1, 0]
    assert [len(of_class(floor, "goal")) for floor in floors] == [0, 1]
    assert [len(of_class(floor, "stop")) for floor in floors] == [1, 0]
    (circle,) = of_class(floors[1], "success")
    assert float(circle.get("r", "")) == pytest.approx(3 * scale(root), abs=0.02)


def test_the_goal_stays_in_its_place_whoever_else_stops_there() -> None:
    def stars(routes: list[PathOverlay]) -> list[str | None]:
        floors = of_class(read(draw_scene(HOUSE, routes)), "floor")
        return [star.get("points") for floor in floors for star in of_class(floor, "goal")]

    arrived = PathOverlay("agent", REFERENCE_ROUTE.path, "predicted")
    assert stars([arrived, REFERENCE_ROUTE, arrived]) == stars([REFERENCE_ROUTE])


def test_a_withheld_goal_is_not_marked() -> None:
    root = read(draw_scene(HOUSE, [PathOverlay("start", ("020-id",), "reference"), ASTRAY]))
    assert len(of_class(root, "start")) == 2  # on the map and in the legend
    assert not of_class(root, "goal")
    assert not of_class(root, "success")


def test_routes_on_one_way_do_not_hide_each_other() -> None:
    same = PathOverlay("agent", REFERENCE_ROUTE.path, "predicted")
    root = read(draw_scene(HOUSE, [REFERENCE_ROUTE, same]))
    for routes in of_class(root, "routes"):
        lines = [each.get("d") for each in routes if each.get("stroke") != "#fff"]
        assert len(lines) == 2
        assert lines[0] != lines[1]


def test_routes_in_step_share_their_numbers() -> None:
    alone = of_class(read(draw_scene(HOUSE, [REFERENCE_ROUTE])), "step")
    same = PathOverlay("agent", REFERENCE_ROUTE.path, "predicted")
    both = of_class(read(draw_scene(HOUSE, [REFERENCE_ROUTE, same])), "step")
    assert ["".join(each.itertext()) for each in both] == ["".join(each.itertext()) for each in alone]
    assert ["".join(each.itertext()) for each in alone] == ["1", "2", "3"]


def test_a_walk_there_and_back_numbers_both_ways() -> None:
    there_and_back = ("020-id", "010-id", "000-id", "010-id", "020-id")
    steps = of_class(read(draw_scene(HOUSE, [PathOverlay("reference", there_and_back, "reference")])), "step")
    assert sorted("".join(each.itertext()) for each in steps) == ["1", "2", "3"]


def test_the_legend_tells_lengths_and_how_far_from_the_goal_agents_stop() -> None:
    legend = texts(read(draw_scene(HOUSE, [REFERENCE_ROUTE, ASTRAY])))
    metres = 2 + 2 + np.sqrt(13) + 2
    left = HOUSE.distance("011-id", "111-id")
    assert f"reference {metres:.1f} m, 4 steps" in legend.replace("reference", "reference ")
    assert f"4.0 m, 2 steps, stops {left:.1f} m from the goal" in legend
    arrived = PathOverlay("agent", REFERENCE_ROUTE.path, "predicted")
    assert "stops at the goal" in texts(read(draw_scene(HOUSE, [REFERENCE_ROUTE, arrived])))


def test_stairs_are_marked_where_they_leave_a_floor() -> None:
    def polygons(graph: SceneGraph) -> int:
        return sum(
            len(list(floor.iter(f"{SVG}polygon"))) for floor in of_class(read(draw_scene(graph)), "floor")
        )

    assert polygons(house(storeys=1)) == 0
    assert polygons(house(storeys=3)) == 4


def test_labels_tell_viewpoints_apart() -> None:
    (labels, _) = of_class(read(draw_scene(HOUSE, labels=True)), "labels")
    shown = [each.text for each in labels]
    assert len(set(shown)) == len(shown) == 16
    assert not of_class(read(draw_scene(HOUSE)), "labels")


def test_hostile_text_stays_text() -> None:
    graph = SceneGraph.build(HOSTILE, {HOSTILE: (0, 0, 0), "b": (2, 0, 0)}, [(HOSTILE, "b")])
    route = PathOverlay(HOSTILE, (HOSTILE, "b"), "reference")
    root = read(draw_scene(graph, [route], title=HOSTILE, caption=HOSTILE, labels=True))
    shapes = {"rect", "path", "circle", "polygon", "text", "tspan"}
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= shapes | {"svg", "g", "title", "desc"}
    assert texts(root).count("<script>alert(1)</script> &") == 3


def test_a_long_caption_and_a_long_label_stay_within_the_figure() -> None:
    route = PathOverlay("model_" * 60, ("000-id", "010-id"), "predicted")
    root = read(draw_scene(HOUSE, [route], caption="turn left " * 2000))
    assert float(root.get("height", "")) < 800
    assert "…" in texts(root)


def test_the_same_input_gives_the_same_bytes_in_every_process() -> None:
    program = (
        "from esceme.report import *; from esceme.world import SceneGraph\n"
        "places = {name: (x, 0, 0) for x, name in enumerate('abcdef')}\n"
        "graph = SceneGraph.build('s', places, zip('abcde', 'bcdef'))\n"
        "paths = [('r', tuple('abcdc'), 'reference'), ('p', tuple('bcdef'), 'predicted')]\n"
        "print(draw_scene(graph, [PathOverlay(*p) for p in paths], title='t', caption='c', labels=True))"
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


def test_numbers_are_rounded_and_finite() -> None:
    svg = draw_scene(HOUSE, [REFERENCE_ROUTE, ASTRAY], labels=True)
    assert not re.search(r"\d\.\d{3}", svg)
    assert not re.search(r"\b(nan|inf)\b", svg)


def test_the_figure_needs_nothing_else() -> None:
    svg = draw_scene(HOUSE, [REFERENCE_ROUTE, ASTRAY], title="t", caption="c", labels=True)
    assert not re.search(r"href|url\(|<style|<script|<image|@import", svg)
    assert svg.count("http") == 1  # the namespace


def test_the_figure_is_described_in_words() -> None:
    root = read(draw_scene(HOUSE, [REFERENCE_ROUTE]))
    assert root.findtext(f"{SVG}title") == "Scene house from above"
    assert "32 viewpoints and 49 edges on 2 floors" in root.findtext(f"{SVG}desc", "")


def test_styles_differ_in_dash_width_or_marker_not_in_colour_alone() -> None:
    for a, b in combinations([REFERENCE, *PREDICTED], 2):
        assert a.dash != b.dash
        grey = a._replace(colour="grey"), b._replace(colour="grey")
        assert stop_mark(0, 0, grey[0]) != stop_mark(0, 0, grey[1])


def test_a_route_outside_the_scene_is_refused() -> None:
    with pytest.raises(WorldError, match="'elsewhere' is not in scene 'house'"):
        draw_scene(HOUSE, [PathOverlay("agent", ("000-id", "elsewhere"), "predicted")])


def test_what_was_remembered_is_marked_counted_and_described() -> None:
    known = ["000-id", "010-id", "101-id"]
    root = read(draw_scene(HOUSE, [ASTRAY], remembered=known))
    shown = {
        kind: [of_class(each, "remembered") for each in of_class(root, kind)]
        for kind in ("floor", "thumbnail")
    }
    assert [len(each) for each in shown["floor"]] == [2] and [len(each) for each in shown["thumbnail"]] == [1]
    assert "remembered before (3 of 32 viewpoints)" in texts(root)
    assert "3 were remembered before" in root.findtext(f"{SVG}desc", "")
    assert not of_class(read(draw_scene(HOUSE, [ASTRAY])), "remembered")
    with pytest.raises(WorldError, match="'elsewhere' is not in scene"):
        draw_scene(HOUSE, remembered=["elsewhere"])


@pytest.mark.real
def test_all_real_scenes_can_be_drawn(real_graphs: dict[str, SceneGraph]) -> None:
    for graph in real_graphs.values():
        root = read(draw_scene(graph))
        assert sorted(drawn_viewpoints(root)) == sorted(graph.viewpoints)
        assert len(of_class(root, "floor")) == floors_of(graph).max() + 1
        assert float(root.get("width", "")) <= WIDTH + 24


@pytest.mark.real
def test_real_episodes_show_their_whole_path(real_graphs: dict[str, SceneGraph], data_root: Path) -> None:
    for episode in read_r2r(data_root / "R2R" / "R2R_val_unseen.json")[::150]:
        graph = real_graphs[episode.scene_id]
        root = read(draw_scene(graph, [PathOverlay("reference", episode.reference_path, "reference")]))
        floors = of_class(root, "floor")
        assert set(episode.reference_path) <= {name for floor in floors for name in drawn_viewpoints(floor)}
        assert sum(len(of_class(floor, "goal")) for floor in floors) == 1
