from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from esceme.errors import ConfigError, DataError
from esceme.tasks.cvdn import DialogTurn, Supervision, dialog_text, read_cvdn
from esceme.tasks.episode import DialogEpisode, check_paths
from esceme.world import SceneGraph
from fixtures.files import save_json, without

TRAINING_ONLY = ("game_idx", "end_panos", "player_path", "planner_path")


def raw(inst_idx: int = 149, **changes: Any) -> dict[str, Any]:
    """A published NDH instance with `changes`."""
    fields = {
        "inst_idx": inst_idx,
        "scan": "attic",
        "target": "trashcan",
        "start_pano": {"heading": 0.6, "elevation": 19.1, "pano": "a"},
        "nav_camera": [{"heading": 0.6, "elevation": 19.1, "pano": "a"}],
        "dialog_history": [
            {"nav_idx": 0, "role": "navigator", "message": "Which door?"},
            {"nav_idx": 0, "role": "oracle", "message": "The closet."},
            {"nav_idx": 2, "role": "navigator", "message": "And now?"},
            {"nav_idx": 2, "role": "oracle", "message": "Turn right."},
        ],
        "nav_history": ["z", "a"],
        "game_idx": 42,
        "end_panos": ["d", "e"],
        "player_path": ["a", "b", "c", "d"],
        "planner_path": ["a", "b", "f"],
        "R2R_success": 1,
    }
    return fields | changes


def encoded(instr_id: str = "149", **changes: Any) -> dict[str, Any]:
    """The same instance in the pre-encoded format of HAMT."""
    fields = {
        "instr_id": instr_id,
        "scan": "attic",
        "instr_encoding": [101, 7, 8, 102],
        "start_pano": "a",
        "start_heading": 0.6,
        "end_panos": ["d", "e"],
        "nav_steps": ["z", "a", "b", "c", "d"],
        "nav_idx": 1,
    }
    return fields | changes


def read(tmp_path: Path, *records: dict[str, Any], **options: Any) -> list[DialogEpisode]:
    return read_cvdn(save_json(tmp_path / "val_seen.json", records), **options)


def test_instance_is_an_episode_with_a_dialog(tmp_path: Path) -> None:
    (episode,) = read(tmp_path, raw())
    assert (episode.episode_id, episode.scene_id, episode.path_id) == ("149", "attic", "42")
    assert (episode.start, episode.heading) == ("a", 0.6)
    assert (episode.target, episode.goals) == ("trashcan", ("d", "e"))
    assert episode.player_path == ("a", "b", "c", "d") and episode.planner_path == ("a", "b", "f")
    assert episode.instruction == (
        "<NAV> Which door? <ORA> The closet. <NAV> And now? <ORA> Turn right. <TAR> trashcan"
    )
    assert episode.tokens is None and not episode.goal_withheld


@pytest.mark.parametrize(
    ("history", "text"),
    [("target", "<TAR> trashcan"), ("last-answer", "<ORA> Turn right. <TAR> trashcan")],
)
def test_history_selects_the_turns_of_the_instruction(tmp_path: Path, history: Any, text: str) -> None:
    assert read(tmp_path, raw(), history=history)[0].instruction == text
    assert dialog_text([], "lamp", history) == dialog_text([], "lamp", "all") == "<TAR> lamp"


def test_unanswered_question_is_no_answer() -> None:
    turns = [DialogTurn("oracle", "Left."), DialogTurn("navigator", "Sure?")]
    assert dialog_text(turns, "lamp", "last-answer") == "<ORA> Left. <TAR> lamp"
    assert dialog_text(turns[1:], "lamp", "last-answer") == "<TAR> lamp"


@pytest.mark.parametrize(
    ("planner", "supervision", "reference"),
    [
        (["a", "b", "f"], "player", "abcd"),
        (["a", "b", "f"], "planner", "abf"),
        (["a", "b", "f"], "trusted", "abf"),
        (["a", "b", "c"], "trusted", "abcd"),
        (["a", "b", "c"], "planner", "abc"),
        (["a"], "trusted", "a"),
    ],
)
def test_supervision_selects_the_reference_path(
    tmp_path: Path, planner: list[str], supervision: Supervision, reference: str
) -> None:
    (episode,) = read(tmp_path, raw(planner_path=planner), supervision=supervision)
    assert episode.reference_path == tuple(reference)


@pytest.mark.parametrize("supervision", get_args(Supervision))
def test_instance_of_the_test_split_has_only_a_start(tmp_path: Path, supervision: Supervision) -> None:
    (episode,) = read(tmp_path, without(raw(), *TRAINING_ONLY), supervision=supervision)
    assert episode.reference_path == ("a",) and episode.goal_withheld and episode.goals == ()
    assert episode.path_id == episode.episode_id == "149"


def test_pre_encoded_instance_follows_the_rest_of_the_game(tmp_path: Path) -> None:
    (episode,) = read(tmp_path, encoded())
    assert (episode.episode_id, episode.path_id, episode.heading) == ("149", "149", 0.6)
    assert episode.tokens == (101, 7, 8, 102) and episode.instruction == ""
    assert episode.reference_path == episode.player_path == ("a", "b", "c", "d")
    assert episode.goals == ("d", "e") and not episode.goal_withheld


@pytest.mark.parametrize("nav_idx", [0, 2, 9])
def test_reference_path_is_the_start_if_the_game_continues_elsewhere(tmp_path: Path, nav_idx: int) -> None:
    (episode,) = read(tmp_path, encoded(nav_idx=nav_idx))
    assert episode.reference_path == ("a",)
    assert episode.goals == ("d", "e") and not episode.goal_withheld
    (test_episode,) = read(tmp_path, without(encoded(nav_idx=nav_idx), "end_panos"))
    assert test_episode.reference_path == ("a",) and test_episode.goal_withheld


@pytest.mark.parametrize("options", [{"history": "target"}, {"supervision": "planner"}])
def test_pre_encoded_file_refuses_history_and_planner_supervision(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="raw NDH file"):
        read(tmp_path, encoded(), **options)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([raw(dialog_history=[{"role": "judge", "message": ""}])], "record 0: .*invalid enum value 'judge'"),
        ([raw(), without(raw(150), "target")], "record 1: .*target"),
        ([raw(player_path=["b", "f"])], "instance 149: the trusted path begins at 'b'.*start_pano 'a'"),
        ([raw(planner_path=[])], "instance 149: the trusted path is empty"),
        ([raw(), raw()], "episode id '149' occurs twice"),
        ([encoded(), encoded()], "episode id '149' occurs twice"),
        ([encoded(), raw(150)], "record 1: field 'start_pano': expected str, got object"),
        ([encoded(nav_idx=-1)], "record 0: field 'nav_idx'"),
        ([encoded(instr_encoding=[])], "instance 149: 'instr_encoding' is empty"),
        ([], "holds no records"),
    ],
)
def test_invalid_record_is_named(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=f"val_seen.json: {message}"):
        read(tmp_path, *records)


@pytest.mark.real
@pytest.mark.parametrize(("split", "num_player_paths"), [("val_seen", 213), ("val_unseen", 544)])
def test_paths_of_every_supervision_follow_edges(
    data_root: Path, real_graphs: dict[str, SceneGraph], split: str, num_player_paths: int
) -> None:
    file = data_root / "CVDN" / f"{split}.json"
    for supervision in get_args(Supervision):
        check_paths(read_cvdn(file, supervision=supervision), real_graphs, file)
    trusted = read_cvdn(file)
    assert sum(episode.reference_path == episode.player_path for episode in trusted) == num_player_paths
    assert all(episode.reference_path in (episode.player_path, episode.planner_path) for episode in trusted)


@pytest.mark.real
def test_prediction_files_use_the_same_ids(data_root: Path) -> None:
    file = data_root / "predictions" / "PREVALENT_NDH_all_trusted40_val_seen_iter100.json"
    starts = {str(record["inst_idx"]): record["trajectory"][0][0] for record in json.loads(file.read_text())}
    episodes = read_cvdn(data_root / "CVDN" / "val_seen.json")
    assert {episode.episode_id: episode.start for episode in episodes} == starts
