"""Walks worth a picture: chosen by what memory gave, drawn with what it held when they began."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from esceme.demo.walks import draw_parting, draw_walk, remembered_before, telling
from esceme.evaluation import EpisodeResult, Result
from esceme.tasks.episode import Episode
from esceme.world import SceneGraph

GRAPH = SceneGraph.build(
    "house",
    {"hall": (0, 0, 0), "den": (0, 3, 0), "bath": (3, 3, 0), "attic": (-3, 3, 0)},
    [("hall", "den"), ("den", "bath"), ("den", "attic")],
)
EPISODE = Episode(
    episode_id="7_0",
    scene_id="house",
    path_id="7",
    reference_path=("hall", "den", "attic"),
    heading=0.0,
    instruction="Go up.",
)


def lived(
    name: str, *path: str, spl: float = 0.0, scene: str = "house", visit: int = 1, stopped: bool = True
) -> EpisodeResult:
    return EpisodeResult(
        id=name,
        scene=scene,
        path=name.partition("_")[0],
        visit=visit,
        decisions=len(path) if stopped else len(path) - 1,
        stopped=stopped,
        trajectory=[(viewpoint, 0.0, 0.0) for viewpoint in path],
        scores={"sr": float(spl > 0), "spl": spl},
    )


def results(**episodes: list[EpisodeResult]) -> dict[str, Result]:
    return {name: Result(facts={}, means={}, episodes=each) for name, each in episodes.items()}


def test_walks_are_chosen_by_arriving_first_and_from_different_scenes() -> None:
    def some(**spl: float) -> list[EpisodeResult]:
        return [lived(name, "hall", spl=each, scene=name[0]) for name, each in spl.items()]

    found = results(
        none=some(a1_0=0.1, a2_0=0.0, a2_1=0.0, b1_0=0.9, c1_0=0.5),
        cold=some(a1_0=1.0, a2_0=0.5, a2_1=0.4, b1_0=0.8, c1_0=0.7),
    )
    assert telling(found, 5) == ["a2_0", "c1_0", "b1_0", "a1_0", "a2_1"]
    assert telling(found, 2) == ["a2_0", "c1_0"]


def test_remembered_is_where_earlier_walks_in_the_house_decided() -> None:
    cold = [
        lived(
            "1_0", "hall", "den", "bath", visit=1, stopped=False
        ),  # out of steps before it could decide there
        lived("2_0", "hall", visit=2),
        lived("3_0", "attic", scene="other", visit=1),
        lived("7_0", "hall", "den", "attic", visit=3),
        lived("8_0", "bath", visit=4),
    ]
    (result,) = results(cold=cold).values()
    assert remembered_before(result, "1_0") == []
    assert remembered_before(result, "7_0") == ["den", "hall"]
    assert remembered_before(result, "8_0") == ["attic", "den", "hall"]


def both() -> dict[str, Result]:
    return results(
        none=[lived("1_0", "hall"), lived("7_0", "hall", "den", "bath", visit=2)],
        cold=[lived("1_0", "den", "attic"), lived("7_0", "hall", "den", "attic", spl=1.0, visit=2)],
    )


def test_a_walk_is_drawn_with_both_agents_and_what_was_remembered() -> None:
    drawing = draw_walk(GRAPH, EPISODE, both())
    root = ET.fromstring(drawing)
    for words in ("episode 7_0: walk 2", "Go up.", "reference path", "without memory", "with memory (cold)"):
        assert words in drawing
    assert "remembered before (2 of 4 viewpoints)" in drawing
    floor = next(each for each in root.iter() if each.get("class") == "floor")
    assert sum(each.get("class") == "remembered" for each in floor.iter()) == 2


def test_the_panorama_shows_where_the_agents_part(tmp_path: Path) -> None:
    (tmp_path / "panoramas/house").mkdir(parents=True)
    (tmp_path / "panoramas/house/den.jpg").write_bytes(b"\xff\xd8 a picture")
    drawing = draw_parting(tmp_path, GRAPH, EPISODE, both())
    names = [each.viewpoint for each in GRAPH.candidates("den")]
    bath, attic = (names.index(name) + 1 for name in ("bath", "attic"))
    assert f"decision 2: without memory {bath}, with memory (cold) {attic}" in drawing
    assert "3 candidates; 2 lead to remembered viewpoints" in drawing  # the attic before, the hall just now
    ET.fromstring(drawing)


def test_who_stops_where_the_other_goes_on_parts_there(tmp_path: Path) -> None:
    (tmp_path / "panoramas/house").mkdir(parents=True)
    (tmp_path / "panoramas/house/hall.jpg").write_bytes(b"\xff\xd8 a picture")
    found = results(none=[lived("7_0", "hall")], cold=[lived("7_0", "hall", "den", "attic")])
    assert "decision 1: without memory STOP, with memory (cold) 1" in draw_parting(
        tmp_path, GRAPH, EPISODE, found
    )


def test_a_walk_on_which_earlier_walks_made_no_difference_is_not_telling() -> None:
    def lived(arrived: str) -> Result:
        episodes = [
            EpisodeResult(
                id=name,
                scene=name,
                path=name,
                visit=visit,
                decisions=1,
                stopped=True,
                trajectory=[("hall", 0.0, 0.0)],
                scores=dict.fromkeys(("sr", "spl"), float(name in arrived)),
            )
            for visit, name in enumerate("abc", 1)
        ]
        return Result(facts={}, means={}, episodes=episodes)

    results = {"none": lived("c"), "cold": lived("abc"), "episodic": lived("ac")}
    assert telling(results, 1) == ["b"]
