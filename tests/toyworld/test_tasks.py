"""What the toy world asks for: instructions that fit their walks, dialogs that fit their games."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from esceme.tasks.rxr import read_rxr
from esceme.world import SceneGraph, read_scenes
from toyworld.house import House, Room
from toyworld.tasks import Walk, _instructions, _rate, _steps

SQUARE = {"a": (0.0, 0.0, 0.0), "b": (0.0, 3.0, 0.0), "c": (3.0, 3.0, 0.0), "d": (3.0, 0.0, 2.0)}


@pytest.fixture
def walk() -> tuple[Walk, SceneGraph]:
    """North through the kitchen into the hall, right to the stairs, right and up."""
    graph = SceneGraph.build("square", SQUARE, [("a", "b"), ("b", "c"), ("c", "d")])
    nothing = np.zeros((4, 4), dtype=bool)
    house = House(
        scene_id="square",
        rooms=[Room(label, (0.0, 0.0), (1.0, 1.0), 0.0) for label in "khs"],
        things=[],
        names=list("abcd"),
        positions=np.array(list(SQUARE.values())),
        room_of=np.array([0, 1, 1, 2]),
        included=np.ones(4, dtype=bool),
        visible=nothing,
        unobstructed=nothing,
    )
    return Walk(house, 1, ["a", "b", "c", "d"], heading=3.1), graph


def test_turns_and_rooms_are_told_as_they_come(walk: tuple[Walk, SceneGraph]) -> None:
    assert list(_steps(*walk)) == [
        ("around", "enter", "hallway"),
        ("right", "cross", "hallway"),
        ("right", "up", "stairs"),
    ]


def test_a_walk_is_told_in_three_ways(walk: tuple[Walk, SceneGraph]) -> None:
    assert _instructions(*walk) == [
        "Turn around and enter the hallway. Turn right and walk through the hallway. "
        "Turn right and go up the stairs. Stop near the middle of the stairs. ",
        "Leave the kitchen, go through the hallway and walk into the stairs. "
        "Wait beside the middle of the stairs. ",
        "From the kitchen, go back the way you came. "
        "Continue to the stairs until you reach the middle of the stairs. ",
    ]


def test_a_player_is_rated_by_how_near_it_came_and_where_it_stopped() -> None:
    line = {name: (0.0, 4.0 * place, 0.0) for place, name in enumerate("abcd")}
    graph = SceneGraph.build("line", line, [("a", "b"), ("b", "c"), ("c", "d")])
    perfect = {"R2R_success": 1, "R2R_spl": 1.0, "R2R_oracle_success": 1, "R2R_oracle_spl": 1.0}
    assert _rate(list("abc"), list("abc"), graph) == perfect
    assert _rate(list("abcb"), list("abc"), graph) == perfect | {"R2R_success": 0, "R2R_spl": 0.0}
    assert set(_rate(list("ab"), list("abcd"), graph).values()) == {0}
    assert _rate(list("abcdc"), list("abc"), graph)["R2R_spl"] == 0.5


def test_dialogs_continue_where_the_player_stopped(toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    for split in ("val_seen", "val_unseen"):
        records = json.loads((toy_root / f"CVDN/{split}.json").read_text())
        for asked, answered in zip(records[::2], records[1::2], strict=True):
            graph = graphs[asked["scan"]]
            assert asked["dialog_history"] == asked["nav_history"] == asked["nav_camera"] == []
            assert answered["start_pano"]["pano"] == asked["player_path"][-1] == answered["nav_history"][-1]
            assert {turn["nav_idx"] for turn in answered["dialog_history"]} == {
                len(answered["nav_history"]) - 1
            }
            for record in (asked, answered):
                nearest = min(graph.distance(record["planner_path"][0], end) for end in record["end_panos"])
                walked = graph.distance(record["planner_path"][0], record["planner_path"][-1])
                assert walked == pytest.approx(nearest) or len(record["planner_path"]) == 6
                assert record["planner_path"][0] == record["player_path"][0] == record["start_pano"]["pano"]
    assert len({record["inst_idx"] for record in records}) == len(records)


def test_instructions_come_in_two_languages_with_their_words_timed(toy_root: Path) -> None:
    episodes = read_rxr(toy_root / "RxR/rxr_val_unseen_guide.jsonl.gz")
    assert {episode.language for episode in episodes} == {"en-US", "hi-IN"}
    for english, hindi in zip(episodes[::2], episodes[1::2], strict=True):
        assert english.path_id == hindi.path_id
        assert english.instruction.isascii() and not hindi.instruction.isascii()
        assert english.instruction.count(".") == hindi.instruction.count("।")
