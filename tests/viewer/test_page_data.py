"""Data of the page: compact, complete, aligned with trajectories, and safe inside HTML."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.evaluation.trace import TraceStep, read_trace
from esceme.report.result_set import load_results
from esceme.viewer.page import bundle_script, render_page
from esceme.viewer.page_data import PageData, align_steps, build_page_data, page_details, token_spans
from esceme.viewer.page_pictures import add_pictures
from esceme.world import SceneGraph
from fixtures.panoramas import copy_with_panoramas
from fixtures.viewed_results import traced_results

GRAPH = SceneGraph.build(
    "house",
    {"hall": (0, 0, 0), "den": (0, 3, 0), "bath": (3, 3, 0)},
    [("hall", "den"), ("den", "bath")],
)


@pytest.fixture(scope="module")
def folders(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return traced_results(tmp_path_factory.mktemp("results"), toy_root)


@pytest.fixture
def data(folders: list[Path], toy_root: Path) -> PageData:
    return build_page_data(load_results(folders, toy_root))


def embedded_data(page: str) -> Any:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match is not None
    return json.loads(match[1])


def test_trajectories_and_decisions_are_those_of_the_result(data: PageData, folders: list[Path]) -> None:
    traces = {trace.id: trace for trace in read_trace(folders[1]).episodes}
    for number, episode in enumerate(data.episodes):
        scene, trajectory = data.scenes[episode.scene], data.results[1].trajectories[number]
        trace = traces[episode.id]
        assert trajectory.steps is not None
        decided = [step for step in trajectory.steps if step is not None]
        assert [step.action for step in decided] == [step.action for step in trace.steps]
        for pose, step in enumerate(trace.steps):
            viewpoint = trajectory.poses[2 * pose]
            assert scene.viewpoints[viewpoint] == step.viewpoint
            assert [scene.viewpoints[n] for n in scene.neighbours[viewpoint]] == step.candidates
            assert sum(decided[pose].probabilities) == pytest.approx(10_000, abs=len(step.probabilities))
    assert data.results[0].trajectories[0].steps is None and not data.results[0].has_memory


def test_empty_memory_leaves_both_distributions_equal(data: PageData) -> None:
    first = [t for t in data.results[1].trajectories if t.order == 0]
    for trajectory in first:
        assert trajectory.steps is not None and trajectory.steps[0] is not None
        assert trajectory.steps[0].probabilities == trajectory.steps[0].masked
        assert trajectory.steps[0].recalled == []
    changed = [
        step
        for trajectory in data.results[1].trajectories
        for step in trajectory.steps or ()
        if step is not None and step.recalled
    ]
    assert any(step.probabilities != step.masked for step in changed)


def test_page_embeds_its_data_without_markup(data: PageData) -> None:
    data.episodes[0].instruction = "</script><script>alert(1)</script><!-- \u2028 & 'x'"
    page = render_page(data)
    assert embedded_data(page)["episodes"][0]["instruction"] == data.episodes[0].instruction
    assert page.count("<script") == 2 and "alert(1)</script>" not in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_modules_are_bundled_once_and_in_order() -> None:
    script = bundle_script()
    assert "import {" not in script and "\nexport " not in script and "</script" not in script
    names = re.findall(r"^modules\.(\w+) = ", script, re.MULTILINE)
    assert len(names) == len({*names}) and names[-1] == "main"
    for name in names:
        for used in re.findall(
            r"= modules\.(\w+);", script.split(f"modules.{name} = ")[1].split("\n})();")[0]
        ):
            assert names.index(used) < names.index(name)


def test_pictures_are_added_once_per_viewpoint(folders: list[Path], toy_root: Path, tmp_path: Path) -> None:
    world = copy_with_panoramas(toy_root, tmp_path / "world")
    results = load_results(folders, world)
    data = build_page_data(results)
    lost = world / "panoramas" / data.scenes[0].id
    viewpoint = data.scenes[0].viewpoints[data.episodes[0].reference[0]]
    (lost / f"{viewpoint}.jpg").unlink()
    assert add_pictures(data, results.folder, "thumbnails") == 1
    assert f"0/{data.episodes[0].reference[0]}" not in data.pictures and len(data.pictures) > 10
    other = next(file for file in lost.iterdir())
    other.write_bytes(b"no picture")
    with pytest.raises(DataError, match="expected a JPEG or PNG panorama"):
        add_pictures(data, results.folder, "full")


def test_decisions_are_aligned_over_returns() -> None:
    def step(viewpoint: str, candidates: list[str], action: int, routes: list[str]) -> TraceStep:
        count = len(candidates) + 1 + len(routes)
        return TraceStep(
            viewpoint=viewpoint,
            view=12,
            candidates=candidates,
            routes=routes,
            probabilities=[1 / count] * count,
            action=action,
        )

    steps = [
        step("hall", ["den"], 0, []),
        step("den", ["hall", "bath"], 1, ["hall"]),
        step("bath", ["den"], 2, ["hall", "den"]),  # returns to the hall through the den
        step("hall", ["den"], 1, []),
    ]
    aligned = align_steps(steps, [0, 1, 2, 1, 0], GRAPH)
    assert [entry and entry.action for entry in aligned] == [0, 1, 2, None, 1]


def test_compared_routes_refer_to_viewpoints_by_number() -> None:
    routes = [{"path": ["hall", "den"], "probability": 0.7}, {"path": ["hall", "nowhere"]}, "damaged"]
    details = page_details({"compared": 9, "routes": routes}, GRAPH)
    assert details == {"compared": 9, "routes": [{"path": [0, 1], "probability": 0.7}, {"path": [0]}]}
    assert page_details({}, GRAPH) is None and page_details({"a": 1}, GRAPH) == {"a": 1}


def test_tokens_are_found_in_the_text_and_unknown_ones_are_not() -> None:
    text = "Go to the 2nd sofa."
    spans = token_spans(["[CLS]", "go", "to", "[UNK]", "2nd", "so", "##fa", ".", "[SEP]"], text)
    words = [text[a:b] if a >= 0 else None for a, b in zip(spans[::2], spans[1::2], strict=True)]
    assert words == [None, "Go", "to", None, "2nd", "so", "fa", ".", None]
    assert token_spans(["12", "345"], "İstanbul") == [-1] * 4


def test_size_of_two_hundred_episodes_is_below_three_megabytes(data: PageData) -> None:
    share = len(render_page(data)) / len(data.episodes)
    assert 200 * share < 3_000_000
