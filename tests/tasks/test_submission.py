"""Prediction files: accepted formats, faults, and submissions to the servers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.submission import (
    Prediction,
    TrajectoryPoint,
    check_predictions,
    find_prediction_fault,
    match_predictions,
    read_predictions,
    write_submission,
)
from esceme.world import SceneGraph
from fixtures.files import save_json
from fixtures.toy_atlas import predict, toy_episode

# b is north of a (heading 0), c east of b (90°), d south of c and higher (180°); h is excluded, i isolated.
HOUSE = SceneGraph.build(
    "house",
    {"a": (0, 0, 0), "b": (0, 2, 0), "c": (2, 2, 0), "d": (2, 0, 1.5), "h": (1, 1, 0), "i": (9, 9, 0)},
    [("a", "b"), ("b", "c"), ("c", "d"), ("h", "a")],
    excluded=["h"],
)
GRAPHS = {"house": HOUSE}


def episode(episode_id: str = "1_0", **fields: Any) -> Episode:
    return toy_episode(episode_id, fields.pop("scene_id", "house"), "abc", **fields)


# -- reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trajectory", "points"),
    [
        ([["a", 1.5, -0.5], ["b", 0, 0]], [("a", 1.5, -0.5), ("b", 0.0, 0.0)]),
        ([["a"], ["b"]], [("a", None, None), ("b", None, None)]),
        (["a", "b"], [("a", None, None), ("b", None, None)]),
        ([["a"], ["b", "c"]], [("a", None, None), ("b", None, None), ("c", None, None)]),
        ([["a"], ["b", "c", "d"]], [(viewpoint, None, None) for viewpoint in "abcd"]),
        ([["a", "b", "c", "d"]], [(viewpoint, None, None) for viewpoint in "abcd"]),
        ([["a", 1.5], ["b", None, None], "c"], [("a", 1.5, None), ("b", None, None), ("c", None, None)]),
        ([["a", 0.0, 0.0], ["a", 0.5, 0.0]], [("a", 0.0, 0.0), ("a", 0.5, 0.0)]),
    ],
    ids=["poses", "lists", "names", "two hops", "three hops", "one list", "mixed", "turn"],
)
def test_every_format_of_a_trajectory_is_read(
    tmp_path: Path, trajectory: list[Any], points: list[tuple[Any, ...]]
) -> None:
    file = save_json(tmp_path / "preds.json", [{"instr_id": "1_0", "trajectory": trajectory}])
    assert read_predictions(file) == {
        "1_0": Prediction("1_0", tuple(TrajectoryPoint(*point) for point in points))
    }


@pytest.mark.parametrize("key", ["instr_id", "inst_idx", "instruction_id"])
@pytest.mark.parametrize(("value", "episode_id"), [("12_3", "12_3"), ("123", "123"), (123, "123"), (0, "0")])
@pytest.mark.parametrize("path_key", ["trajectory", "path"])
@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.json.gz", "p.jsonl.gz"])
def test_every_id_key_and_container_is_read(
    tmp_path: Path, key: str, value: object, episode_id: str, path_key: str, name: str
) -> None:
    other = {key: "other", path_key: ["a"], "extra": {"ignored": True}}
    found = read_predictions(save_json(tmp_path / name, [{key: value, path_key: ["a", "b"]}, other]))
    assert list(found) == [episode_id, "other"]
    assert found[episode_id] == predict("ab", episode_id)


@pytest.mark.parametrize(("value", "object_id"), [(402, "402"), ("402", "402"), (0, "0"), (None, None)])
def test_object_id_is_read(tmp_path: Path, value: object, object_id: str | None) -> None:
    file = save_json(tmp_path / "preds.json", [{"instr_id": "1_0", "trajectory": ["a"], "predObjId": value}])
    assert read_predictions(file)["1_0"].object_id == object_id


def test_path_has_no_consecutive_repetitions() -> None:
    assert predict("aabbbcbba").path == ("a", "b", "c", "b", "a")
    assert predict("a").path == ("a",)


GOOD = {"instr_id": "1_0", "trajectory": ["a"]}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"trajectory": ["a"]}], "record 0: 0 ids; expected instr_id, inst_idx or instruction_id"),
        ([GOOD | {"inst_idx": 1}], "record 0: 2 ids"),
        ([GOOD | {"instr_id": None}], "record 0: 0 ids"),
        ([GOOD | {"instr_id": 1.5}], "record 0: field 'instr_id'"),
        ([GOOD | {"instr_id": True}], "record 0: field 'instr_id'"),
        ([GOOD | {"instr_id": "1_0\x1b[2J"}], "record 0: field 'instr_id': expected text without control"),
        (
            [GOOD | {"trajectory": [["a", 1e30, 0.0]]}],
            r"record 0: field 'trajectory\[0\]\[1\]': expected float",
        ),
        ([GOOD, GOOD], "record 1: id '1_0' occurs twice"),
        ([GOOD | {"instr_id": 5}, GOOD | {"instr_id": "5"}], "record 1: id '5' occurs twice"),
        ([GOOD | {"trajectory": []}], "episode 1_0: no trajectory; expected at least the start"),
        ([{"instr_id": "1_0", "path": []}], "episode 1_0: no trajectory"),
        ([{"instr_id": "1_0"}], "episode 1_0: no trajectory"),
        ([GOOD | {"trajectory": ["a", []]}], r"episode 1_0: trajectory entry 1 is \[\]"),
        *(
            ([GOOD | {"trajectory": [entry]}], "episode 1_0: trajectory entry 0 is")
            for entry in ([1.5, 0.0], ["a", 1, 2, 3], ["a", "b", 0.5], ["a", None, "b"])
        ),
        *(
            ([GOOD | {"trajectory": trajectory}], "record 0: field 'trajectory")
            for trajectory in ([["a", [0.5]]], [7], "abc", [{"viewpoint": "a"}])
        ),
        ([{"instr_id": "1_0", "path": [["a"]]}], "record 0: field 'path"),
        ([GOOD | {"predObjId": 1.5}], "record 0: field 'predObjId'"),
        ([["1_0", ["a"]]], "record 0: expected object, got array"),
        ([], "holds no records"),
    ],
)
def test_invalid_record_is_named(tmp_path: Path, records: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"preds.json: {message}"):
        read_predictions(save_json(tmp_path / "preds.json", records))


# -- matching --------------------------------------------------------------------------------------------


def match(
    episode_ids: str, prediction_ids: Sequence[str], task: str = "r2r", *, partial: bool = False
) -> list[tuple[str, str]]:
    """Match predictions with the episodes of a space-separated list; returns pairs of ids."""
    predictions = {name: predict("ab", name) for name in prediction_ids}
    episodes = [episode(name) for name in episode_ids.split()]
    pairs = match_predictions(episodes, predictions, TASKS[task], file="p.json", partial=partial)
    return [(matched.episode_id, prediction.episode_id) for matched, prediction in pairs]


def test_pairs_are_in_the_order_of_the_episodes() -> None:
    assert match("2_0 1_1 1_0", ["1_0", "2_0", "1_1"]) == [("2_0", "2_0"), ("1_1", "1_1"), ("1_0", "1_0")]


def test_missing_predictions_are_an_error_unless_partial() -> None:
    message = r"p.json: no prediction for episode 1_0 \(and 1 more\) of 3.*--partial"
    with pytest.raises(DataError, match=message):
        match("1_0 1_1 1_2", ["1_1"])
    assert match("1_0 1_1 1_2", ["1_1"], partial=True) == [("1_1", "1_1")]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("name", ["9_0", "0", "1", "", "1_0 "])
def test_predictions_of_unknown_episodes_are_an_error(name: str, partial: bool) -> None:
    with pytest.raises(DataError, match=f"p.json: episode {name} is not among the 2 annotated ones"):
        match("1_0 1_1", ["1_0", "1_1", name], partial=partial)


def test_rxr_predictions_may_have_the_instruction_id() -> None:
    expected = [("12_7", "12_7"), ("12_8", "8"), ("13_9", "9")]
    assert match("12_7 12_8 13_9", ["8", "12_7", "9"], "rxr") == expected
    assert match("7", ["7"], "rxr") == [("7", "7")]
    with pytest.raises(DataError, match="p.json: episode 12_7 is predicted twice, once as '7'"):
        match("12_7", ["12_7", "7"], "rxr")


# -- checking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("abc", None),
        ("a", None),
        ("aabbcc", None),
        ("abcba", None),
        ("ba", "starts at 'b', expected the episode's start 'a'"),
        ("zab", "starts at 'z', expected the episode's start 'a'"),
        ("ac", "no edge leads from 'a' to 'c' in scene 'house'"),
        ("abz", "viewpoint 'z' is not in scene 'house'; is connectivity/ of another release?"),
        ("ah", "viewpoint 'h' is excluded from scene 'house' (\"included\": false)"),
        ("abi", "viewpoint 'i' of scene 'house' has no edge to any other"),
    ],
)
def test_prediction_must_begin_at_the_start_and_follow_edges(path: str, fault: str | None) -> None:
    assert find_prediction_fault(episode(), predict(path), GRAPHS) == fault


def test_unknown_scene_is_a_fault() -> None:
    assert "scene 'barn' is unknown" in str(
        find_prediction_fault(episode(scene_id="barn"), predict("abc"), GRAPHS)
    )


def fault_message(num_faults: int) -> str:
    """The error for a file with faulty predictions between valid ones."""
    pairs = [
        (episode(f"{n}_0"), predict("ac" if n % 2 else "abc", f"{n}_0")) for n in range(2 * num_faults + 1)
    ]
    check_predictions(pairs[::2], GRAPHS, file="p.json")  # the valid ones
    with pytest.raises(DataError) as error:
        check_predictions(pairs, GRAPHS, file="p.json")
    return str(error.value)


def test_faults_are_listed_in_one_line() -> None:
    faults = [f"episode {n}_0: no edge leads from 'a' to 'c' in scene 'house'" for n in (1, 3, 5)]
    assert fault_message(1) == f"p.json: {faults[0]}"
    assert fault_message(3) == f"p.json: 3 faulty predictions: {'; '.join(faults)}"
    assert fault_message(13) == f"p.json: 13 faulty predictions: {'; '.join(faults)}; and 10 more"


# -- writing ---------------------------------------------------------------------------------------------


def submit(tmp_path: Path, task: str, pairs: Sequence[tuple[Episode, Prediction]]) -> list[Any]:
    out = tmp_path / "out"
    write_submission(out, TASKS[task], pairs, GRAPHS)
    text = out.read_text()
    return [json.loads(line) for line in text.splitlines()] if task == "rxr" else json.loads(text)


POSES = (TrajectoryPoint("a", 0.25, -0.5), TrajectoryPoint("a", 1.0, 0.0), TrajectoryPoint("b", 2.0, 0.125))
POSE_LISTS = [["a", 0.25, -0.5], ["a", 1.0, 0.0], ["b", 2.0, 0.125]]


@pytest.mark.parametrize(
    ("task", "episode_id", "record"),
    [
        ("r2r", "2_1", {"instr_id": "2_1", "trajectory": POSE_LISTS}),
        ("cvdn", "149", {"inst_idx": 149, "trajectory": POSE_LISTS}),
        ("rxr", "12_107", {"instruction_id": 107, "path": ["a", "b"]}),
        ("rxr", "107", {"instruction_id": 107, "path": ["a", "b"]}),
        ("reverie", "62_4_0", {"instr_id": "62_4_0", "trajectory": POSE_LISTS, "predObjId": 402}),
    ],
)
def test_submission_has_the_keys_and_types_of_its_server(
    tmp_path: Path, task: str, episode_id: str, record: dict[str, Any]
) -> None:
    """Only REVERIE submissions have objects."""
    pairs = [(episode(episode_id), Prediction(episode_id, POSES, object_id="402"))]
    assert submit(tmp_path, task, pairs) == [record]
    assert submit(tmp_path, "reverie", [(episode(), predict("a"))]) == [
        {"instr_id": "1_0", "trajectory": [["a", 0.0, 0.0]]}
    ]


def test_rxr_submission_is_sorted_by_id(tmp_path: Path) -> None:
    pairs = [(episode("12_107"), predict("a", "107")), (episode("13_9"), predict("abbcb", "13_9"))]
    assert submit(tmp_path, "rxr", pairs) == [
        {"instruction_id": 9, "path": ["a", "b", "c", "b"]},
        {"instruction_id": 107, "path": ["a"]},
    ]


TURN = math.pi / 6


def test_missing_headings_follow_from_the_moves(tmp_path: Path) -> None:
    # 80° snaps to 90°; after a move the agent faces the view of the candidate (spec A.4).
    (record,) = submit(tmp_path, "r2r", [(episode(heading=math.radians(80)), predict("abcd"))])
    assert [name for name, _, _ in record["trajectory"]] == list("abcd")
    angles = [angle for pose in record["trajectory"] for angle in pose[1:]]
    # d is atan(1.5 / 2) = 37° above c, south of it: the upper row of views, 30°.
    assert angles == pytest.approx([3 * TURN, 0, 0, 0, 3 * TURN, 0, 6 * TURN, TURN])


def test_given_angles_are_written_and_apply_to_repeated_viewpoints(tmp_path: Path) -> None:
    points = [("a",), ("a", 1.25), ("a",), ("b",), ("b", None, 0.5), ("b",)]
    prediction = Prediction("1_0", tuple(TrajectoryPoint(*point) for point in points))
    (record,) = submit(tmp_path, "r2r", [(episode(heading=3.14), prediction)])
    assert record["trajectory"] == [
        ["a", pytest.approx(6 * TURN), 0.0],
        ["a", 1.25, 0.0],
        ["a", 1.25, 0.0],
        ["b", 0.0, 0.0],
        ["b", 0.0, 0.5],
        ["b", 0.0, 0.5],
    ]


@pytest.mark.parametrize(
    ("task", "pattern", "target"),
    [("r2r", "{0}_0", None), ("cvdn", "{0}", None), ("rxr", "3{0}_{0}", None), ("reverie", "{0}_5_0", "17")],
)
def test_written_submission_is_read_back(tmp_path: Path, task: str, pattern: str, target: str | None) -> None:
    paths = {pattern.format(k): path for k, path in enumerate(["a", "ab", "abcd", "aabccb", "abcba"])}
    pairs = [(episode(name), predict(path, name, target)) for name, path in paths.items()]
    first = tmp_path / ("first.jsonl" if task == "rxr" else "first.json")
    second = first.with_stem("second")
    write_submission(first, TASKS[task], pairs, GRAPHS)
    found = read_predictions(first)
    again = match_predictions([episode for episode, _ in pairs], found, TASKS[task], file=first)
    for (_, expected), (_, prediction) in zip(pairs, again, strict=True):
        assert (prediction.path, prediction.object_id) == (expected.path, expected.object_id)
    write_submission(second, TASKS[task], again, GRAPHS)
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    ("task", "name", "target", "message"),
    [
        ("cvdn", "12_0", None, "episode 12_0: '12_0' cannot be written as inst_idx: .* an integer"),
        ("rxr", "12_a", None, "episode 12_a: 'a' cannot be written as instruction_id"),
        ("reverie", "1_0", "sofa", "episode 1_0: 'sofa' cannot be written as predObjId"),
        ("reverie", "1_0", "-1", "episode 1_0: '-1' cannot be written as predObjId"),
    ],
)
def test_invalid_ids_leave_no_file(
    tmp_path: Path, task: str, name: str, target: str | None, message: str
) -> None:
    out = tmp_path / "out.json"
    out.write_text("earlier")
    good = "5" if task == "cvdn" else "5_5"
    pairs = [(episode(good), predict("a", good)), (episode(name), Prediction(name, POSES, target))]
    with pytest.raises(DataError, match=message):
        write_submission(out, TASKS[task], pairs, GRAPHS)
    assert out.read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.real
def test_real_predictions_are_submitted_unchanged(
    tmp_path: Path, data_root: Path, real_graphs: dict[str, SceneGraph]
) -> None:
    file = data_root / "predictions" / "PREVALENT_NDH_all_trusted40_val_seen_iter100.json"
    found = read_predictions(file)
    pairs = match_predictions(
        TASKS["cvdn"].read(data_root / "CVDN" / "val_seen.json"), found, TASKS["cvdn"], file=file
    )
    check_predictions(pairs, real_graphs, file=file)
    write_submission(tmp_path / "out.json", TASKS["cvdn"], pairs, real_graphs)
    assert read_predictions(tmp_path / "out.json") == found
    written = {record["inst_idx"]: record for record in json.loads((tmp_path / "out.json").read_text())}
    assert written == {record["inst_idx"]: record for record in json.loads(file.read_text())}


@pytest.mark.real
def test_missing_headings_are_those_of_the_simulator(
    tmp_path: Path, data_root: Path, real_graphs: dict[str, SceneGraph]
) -> None:
    """Remove the headings that the simulator wrote; the submission restores them."""
    file = data_root / "predictions" / "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000.json"
    original = read_predictions(file)
    bare = {
        name: Prediction(name, tuple(TrajectoryPoint(point.viewpoint) for point in prediction.trajectory))
        for name, prediction in original.items()
    }
    pairs = match_predictions(
        TASKS["r2r"].read(data_root / "R2R" / "R2R_val_unseen.json"), bare, TASKS["r2r"], file=file
    )
    write_submission(tmp_path / "out.json", TASKS["r2r"], pairs, real_graphs)
    filled = read_predictions(tmp_path / "out.json")
    for name, prediction in original.items():
        for ours, theirs in zip(filled[name].trajectory, prediction.trajectory, strict=True):
            assert ours.viewpoint == theirs.viewpoint
            assert ours[1:] == pytest.approx(theirs[1:], abs=1e-6)
