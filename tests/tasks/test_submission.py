"""Prediction files: every form that is read, every fault that is named, and what servers are given."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esceme.errors import DataError
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.submission import (
    Prediction,
    TrajectoryPoint,
    check_predictions,
    find_fault,
    match_predictions,
    read_predictions,
    write_submission,
)
from esceme.world import SceneGraph

# b is north of a (heading 0), c east of b (90°), d south of c and higher (180°); h is excluded, i isolated.
HOUSE = SceneGraph.build(
    "house",
    {"a": (0, 0, 0), "b": (0, 2, 0), "c": (2, 2, 0), "d": (2, 0, 1.5), "h": (1, 1, 0), "i": (9, 9, 0)},
    [("a", "b"), ("b", "c"), ("c", "d"), ("h", "a")],
    excluded=["h"],
)
GRAPHS = {"house": HOUSE}


def asked(episode_id: str = "1_0", path_id: str | None = None, **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "episode_id": episode_id,
        "scene_id": "house",
        "path_id": path_id or episode_id.partition("_")[0],
        "reference_path": ("a", "b", "c"),
        "heading": 0.0,
        "instruction": "go",
    }
    return Episode(**{**fields, **changes})


def went(walk: str, episode_id: str = "1_0") -> Prediction:
    return Prediction(episode_id, tuple(TrajectoryPoint(viewpoint) for viewpoint in walk))


def write(tmp_path: Path, *records: object, name: str = "preds.json") -> Path:
    path = tmp_path / name
    lines = [json.dumps(record) for record in records]
    text = "\n".join(lines) + "\n" if ".jsonl" in name else f"[{','.join(lines)}]"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


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
    ids=["poses", "singles", "bare", "two hops", "three hops", "one list", "mixed", "turn on the spot"],
)
def test_every_form_of_trajectory_is_read(
    tmp_path: Path, trajectory: list[Any], points: list[tuple[Any, ...]]
) -> None:
    file = write(tmp_path, {"instr_id": "1_0", "trajectory": trajectory})
    assert read_predictions(file) == {
        "1_0": Prediction("1_0", tuple(TrajectoryPoint(*point) for point in points))
    }


@pytest.mark.parametrize("key", ["instr_id", "inst_idx", "instruction_id"])
@pytest.mark.parametrize(("value", "episode_id"), [("12_3", "12_3"), ("123", "123"), (123, "123"), (0, "0")])
@pytest.mark.parametrize("where", ["trajectory", "path"])
@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.json.gz", "p.jsonl.gz"])
def test_every_id_key_and_container_is_read(
    tmp_path: Path, key: str, value: object, episode_id: str, where: str, name: str
) -> None:
    records = [{key: value, where: ["a", "b"]}, {key: "other", where: ["a"], "extra": {"ignored": True}}]
    found = read_predictions(write(tmp_path, *records, name=name))
    assert list(found) == [episode_id, "other"]
    assert found[episode_id] == went("ab", episode_id)


@pytest.mark.parametrize(("value", "object_id"), [(402, "402"), ("402", "402"), (0, "0"), (None, None)])
def test_prediction_may_name_an_object(tmp_path: Path, value: object, object_id: str | None) -> None:
    file = write(tmp_path, {"instr_id": "1_0", "trajectory": ["a"], "predObjId": value})
    assert read_predictions(file)["1_0"].object_id == object_id


def test_path_has_its_turns_on_the_spot_merged() -> None:
    assert went("aabbbcbba").path == ("a", "b", "c", "b", "a")
    assert went("a").path == ("a",)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"trajectory": ["a"]}], "record 0: 0 ids; expected instr_id, inst_idx or instruction_id"),
        ([{"instr_id": "1_0", "inst_idx": 1, "trajectory": ["a"]}], "record 0: 2 ids"),
        ([{"instr_id": None, "trajectory": ["a"]}], "record 0: 0 ids"),
        ([{"instr_id": 1.5, "trajectory": ["a"]}], "record 0: field 'instr_id'"),
        ([{"instr_id": True, "trajectory": ["a"]}], "record 0: field 'instr_id'"),
        (
            [{"instr_id": "1_0", "trajectory": ["a"]}, {"instr_id": "1_0", "trajectory": ["a"]}],
            "record 1: id '1_0' occurs twice",
        ),
        (
            [{"instr_id": 5, "trajectory": ["a"]}, {"instr_id": "5", "trajectory": ["a"]}],
            "record 1: id '5' occurs twice",
        ),
        ([{"instr_id": "1_0", "trajectory": []}], "episode 1_0: no trajectory; expected at least the start"),
        ([{"instr_id": "1_0", "path": []}], "episode 1_0: no trajectory"),
        ([{"instr_id": "1_0"}], "episode 1_0: no trajectory"),
        ([{"instr_id": "1_0", "trajectory": ["a", []]}], r"episode 1_0: trajectory entry 1 is \[\]"),
        ([{"instr_id": "1_0", "trajectory": [[1.5, 0.0]]}], "episode 1_0: trajectory entry 0 is"),
        ([{"instr_id": "1_0", "trajectory": [["a", 1, 2, 3]]}], "episode 1_0: trajectory entry 0 is"),
        ([{"instr_id": "1_0", "trajectory": [["a", "b", 0.5]]}], "episode 1_0: trajectory entry 0 is"),
        ([{"instr_id": "1_0", "trajectory": [["a", None, "b"]]}], "episode 1_0: trajectory entry 0 is"),
        ([{"instr_id": "1_0", "trajectory": [["a", [0.5]]]}], "record 0: field 'trajectory"),
        ([{"instr_id": "1_0", "trajectory": [7]}], "record 0: field 'trajectory"),
        ([{"instr_id": "1_0", "trajectory": "abc"}], "record 0: field 'trajectory'"),
        ([{"instr_id": "1_0", "trajectory": [{"viewpoint": "a"}]}], "record 0: field 'trajectory"),
        ([{"instr_id": "1_0", "path": [["a"]]}], "record 0: field 'path"),
        ([{"instr_id": "1_0", "trajectory": ["a"], "predObjId": 1.5}], "record 0: field 'predObjId'"),
        ([["1_0", ["a"]]], "record 0: expected object, got array"),
        ([], "holds no records"),
    ],
)
def test_bad_record_is_named(tmp_path: Path, records: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"preds.json: {message}"):
        read_predictions(write(tmp_path, *records))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.json", b"", "the file is empty"),
        ("p.jsonl", b"\n\n", "holds no records"),
        ("p.json", b'{"1_0": {"trajectory": ["a"]}}', "expected array, got object"),
        ("p.json", b"null", "expected array, got null"),
        ("p.json", b'[{"instr_id": "1_0", "traj', "not valid json"),
        ("p.json", b"\xff\xfe", "not valid json"),
        ("p.jsonl", b'{"instr_id": 1, "path": ["a"]}\n{"instr_id"', "line 2: not valid json"),
        ("p.json.gz", b"[]", "damaged gzip file"),
        ("p.json.gz", gzip.compress(b"[1, 2, 3]" * 99, mtime=0)[:-9], "damaged gzip file"),
    ],
)
def test_file_of_another_kind_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{name}: {message}"):
        read_predictions(tmp_path / name)


@pytest.mark.parametrize(("place", "message"), [("", "cannot be read"), ("none.json", "no such file")])
def test_missing_prediction_file_is_refused(tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_predictions(tmp_path / place)


# -- matching --------------------------------------------------------------------------------------------


def named(*names: str) -> dict[str, Prediction]:
    return {name: went("ab", name) for name in names}


def test_pairs_come_in_the_order_of_the_episodes() -> None:
    episodes = [asked("2_0"), asked("1_1"), asked("1_0")]
    pairs = match_predictions(episodes, named("1_0", "2_0", "1_1"), TASKS["r2r"], file="p")
    assert [(episode.episode_id, walk.episode_id) for episode, walk in pairs] == [
        ("2_0", "2_0"),
        ("1_1", "1_1"),
        ("1_0", "1_0"),
    ]


def test_missing_episodes_are_an_error_unless_partial() -> None:
    episodes = [asked("1_0"), asked("1_1"), asked("1_2")]
    with pytest.raises(
        DataError, match=r"p.json: no prediction for episode 1_0 \(and 1 more\) of 3.*--partial"
    ):
        match_predictions(episodes, named("1_1"), TASKS["r2r"], file="p.json")
    assert [
        episode.episode_id
        for episode, _ in match_predictions(episodes, named("1_1"), TASKS["r2r"], file="p", partial=True)
    ] == ["1_1"]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("name", ["9_0", "0", "1", "", "1_0 "])
def test_predictions_of_other_episodes_are_an_error_even_if_partial(name: str, partial: bool) -> None:
    with pytest.raises(DataError, match=f"p.json: episode {name} is not among the 2 annotated ones"):
        match_predictions(
            [asked("1_0"), asked("1_1")],
            named("1_0", "1_1", name),
            TASKS["r2r"],
            file="p.json",
            partial=partial,
        )


def test_rxr_episodes_go_by_their_instruction_as_well() -> None:
    episodes = [asked("12_7"), asked("12_8"), asked("13_9")]
    pairs = match_predictions(episodes, named("8", "12_7", "9"), TASKS["rxr"], file="p")
    assert [walk.episode_id for _, walk in pairs] == ["12_7", "8", "9"]
    assert match_predictions([asked("7", path_id="7")], named("7"), TASKS["rxr"], file="p")


def test_two_predictions_of_one_episode_are_refused() -> None:
    with pytest.raises(DataError, match="p.json: episode 12_7 is predicted twice, once as '7'"):
        match_predictions([asked("12_7")], named("12_7", "7"), TASKS["rxr"], file="p.json")


# -- checking --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("walk", "problem"),
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
def test_prediction_begins_at_the_start_and_follows_edges(walk: str, problem: str | None) -> None:
    assert find_fault(asked(), went(walk), GRAPHS) == problem


def test_unknown_scene_is_a_problem() -> None:
    assert "scene 'barn' is unknown" in str(find_fault(asked(scene_id="barn"), went("abc"), GRAPHS))


def told(faults: int) -> list[str]:
    """The lines about a file with so many jumps in it, among sound walks."""
    pairs = [(asked(f"{n}_0"), went("ac" if n % 2 else "abc", f"{n}_0")) for n in range(2 * faults + 1)]
    with pytest.raises(DataError) as refused:
        check_predictions(pairs, GRAPHS, file="p.json")
    return [line.strip() for line in str(refused.value).splitlines()]


def test_faults_are_listed_in_one_message() -> None:
    fault = "no edge leads from 'a' to 'c' in scene 'house'"
    assert told(1) == [f"p.json: episode 1_0: {fault}"]
    assert told(2) == ["p.json: 2 faulty predictions", f"episode 1_0: {fault}", f"episode 3_0: {fault}"]
    assert told(10)[1:] == [f"episode {n}_0: {fault}" for n in range(1, 20, 2)]
    assert told(11)[1:] == [*told(10)[1:], "... and 1 more"]
    assert told(13)[0::11] == ["p.json: 13 faulty predictions", "... and 3 more"]


def test_valid_predictions_pass() -> None:
    check_predictions([(asked(), went("abc")), (asked("2_0"), went("a", "2_0"))], GRAPHS, file="p.json")


# -- writing ---------------------------------------------------------------------------------------------


def submitted(tmp_path: Path, task: str, pairs: Sequence[tuple[Episode, Prediction]]) -> list[Any]:
    out = tmp_path / "out"
    write_submission(out, TASKS[task], pairs, GRAPHS)
    text = out.read_text()
    return [json.loads(line) for line in text.splitlines()] if task == "rxr" else json.loads(text)


def types_of(record: dict[str, Any]) -> dict[str, type]:
    return {key: type(value) for key, value in record.items()}


POSES = (TrajectoryPoint("a", 0.25, -0.5), TrajectoryPoint("a", 1.0, 0.0), TrajectoryPoint("b", 2.0, 0.125))


def test_r2r_takes_text_ids_and_poses(tmp_path: Path) -> None:
    pairs = [(asked("2_1"), Prediction("2_1", POSES)), (asked("1_0"), went("a"))]
    assert submitted(tmp_path, "r2r", pairs) == [
        {"instr_id": "2_1", "trajectory": [["a", 0.25, -0.5], ["a", 1.0, 0.0], ["b", 2.0, 0.125]]},
        {"instr_id": "1_0", "trajectory": [["a", 0.0, 0.0]]},
    ]


def test_cvdn_takes_numbers_as_ids(tmp_path: Path) -> None:
    (record,) = submitted(tmp_path, "cvdn", [(asked("149", path_id="42"), Prediction("149", POSES))])
    assert types_of(record) == {"inst_idx": int, "trajectory": list}
    assert record["inst_idx"] == 149 and record["trajectory"][2] == ["b", 2.0, 0.125]


def test_rxr_takes_lines_of_paths_sorted_by_number(tmp_path: Path) -> None:
    pairs = [
        (asked("12_107"), Prediction("107", POSES)),
        (asked("13_9"), went("abbcb", "13_9")),
        (asked("50", path_id="50"), went("a", "50")),
    ]
    records = submitted(tmp_path, "rxr", pairs)
    assert records == [
        {"instruction_id": 9, "path": ["a", "b", "c", "b"]},
        {"instruction_id": 50, "path": ["a"]},
        {"instruction_id": 107, "path": ["a", "b"]},
    ]
    assert types_of(records[0]) == {"instruction_id": int, "path": list}


def test_reverie_takes_an_object_besides(tmp_path: Path) -> None:
    found = Prediction("6250_402_0", POSES, object_id="402")
    (record,) = submitted(tmp_path, "reverie", [(asked("6250_402_0", path_id="6250"), found)])
    assert types_of(record) == {"instr_id": str, "trajectory": list, "predObjId": int}
    assert (record["instr_id"], record["predObjId"]) == ("6250_402_0", 402)
    (without,) = submitted(tmp_path, "reverie", [(asked(), went("a"))])
    assert list(without) == ["instr_id", "trajectory"]


@pytest.mark.parametrize(("task", "name"), [("r2r", "1_0"), ("cvdn", "149"), ("rxr", "12_7")])
def test_only_reverie_submissions_have_objects(tmp_path: Path, task: str, name: str) -> None:
    (record,) = submitted(tmp_path, task, [(asked(name), Prediction(name, POSES, object_id="sofa"))])
    assert "predObjId" not in record


TURN = math.pi / 6


def test_missing_headings_follow_from_the_moves(tmp_path: Path) -> None:
    # 80° snaps to 90°; then each move is made in the view that shows the next viewpoint, and kept (spec A.4).
    (record,) = submitted(tmp_path, "r2r", [(asked(heading=math.radians(80)), went("abcd"))])
    assert [name for name, _, _ in record["trajectory"]] == list("abcd")
    angles = [angle for pose in record["trajectory"] for angle in pose[1:]]
    # d is atan(1.5 / 2) = 37° above c, south of it: the upper row of views, 30°.
    assert angles == pytest.approx([3 * TURN, 0, 0, 0, 3 * TURN, 0, 6 * TURN, TURN])


def test_headings_are_filled_in_as_the_candidates_have_them(tmp_path: Path) -> None:
    (record,) = submitted(tmp_path, "r2r", [(asked(), went("abcdcba"))])
    poses = record["trajectory"]
    for (here, _, _), (there, heading, elevation) in zip(poses, poses[1:], strict=False):
        (view,) = [option.view for option in HOUSE.candidates(here) if option.viewpoint == there]
        assert (heading, elevation) == pytest.approx((view % 12 * TURN, (view // 12 - 1) * TURN))


def test_given_angles_are_kept_and_repeated_viewpoints_keep_the_pose(tmp_path: Path) -> None:
    points = (
        TrajectoryPoint("a"),
        TrajectoryPoint("a", 1.25),
        TrajectoryPoint("a"),
        TrajectoryPoint("b"),
        TrajectoryPoint("b", None, 0.5),
        TrajectoryPoint("b"),
    )
    (record,) = submitted(tmp_path, "r2r", [(asked(heading=3.14), Prediction("1_0", points))])
    assert record["trajectory"] == [
        ["a", pytest.approx(6 * TURN), 0.0],
        ["a", 1.25, 0.0],
        ["a", 1.25, 0.0],
        ["b", 0.0, 0.0],
        ["b", 0.0, 0.5],
        ["b", 0.0, 0.5],
    ]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=5))
def test_steps_over_several_viewpoints_are_flattened(steps: list[list[str]]) -> None:
    with TemporaryDirectory() as folder:
        file = write(Path(folder), {"instr_id": "1_0", "trajectory": steps})
        flat = [viewpoint for step in steps for viewpoint in step]
        assert [point.viewpoint for point in read_predictions(file)["1_0"].trajectory] == flat


WALKS = ["a", "ab", "abcd", "aabccb", "abcba"]


@pytest.mark.parametrize("task", ["r2r", "cvdn", "rxr", "reverie"])
def test_written_submission_is_read_back(tmp_path: Path, task: str) -> None:
    names = {"r2r": "{0}_0", "cvdn": "{0}", "rxr": "3{0}_{0}", "reverie": "{0}_5_0"}[task]
    pairs = []
    for number, walk in enumerate(WALKS):
        name = names.format(number)
        target = "17" if task == "reverie" else None
        pairs.append((asked(name), Prediction(name, went(walk).trajectory, target)))
    first = tmp_path / ("first.jsonl" if task == "rxr" else "first.json")
    second = first.with_stem("second")
    write_submission(first, TASKS[task], pairs, GRAPHS)
    found = read_predictions(first)
    again = match_predictions([episode for episode, _ in pairs], found, TASKS[task], file=first)
    assert [prediction.path for _, prediction in again] == [prediction.path for _, prediction in pairs]
    assert [prediction.object_id for _, prediction in again] == [
        prediction.object_id for _, prediction in pairs
    ]
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
    out.write_text("of an earlier run")
    good = "5" if task == "cvdn" else "5_5"
    pairs = [(asked(good), went("a", good)), (asked(name), Prediction(name, POSES, target))]
    with pytest.raises(DataError, match=message):
        write_submission(out, TASKS[task], pairs, GRAPHS)
    assert out.read_text() == "of an earlier run"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.real
def test_real_predictions_survive_being_submitted(
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
def test_simulator_turned_as_we_fill_in(
    tmp_path: Path, data_root: Path, real_graphs: dict[str, SceneGraph]
) -> None:
    """Take the headings away from poses that the simulator wrote, and get them back."""
    file = data_root / "predictions" / "PREVALENT_R2R_seq2seq_teacher_val_unseen_iter36000.json"
    stated = read_predictions(file)
    bare = {
        name: Prediction(name, tuple(TrajectoryPoint(point.viewpoint) for point in prediction.trajectory))
        for name, prediction in stated.items()
    }
    pairs = match_predictions(
        TASKS["r2r"].read(data_root / "R2R" / "R2R_val_unseen.json"), bare, TASKS["r2r"], file=file
    )
    write_submission(tmp_path / "out.json", TASKS["r2r"], pairs, real_graphs)
    filled = read_predictions(tmp_path / "out.json")
    for name, prediction in stated.items():
        for ours, theirs in zip(filled[name].trajectory, prediction.trajectory, strict=True):
            assert ours.viewpoint == theirs.viewpoint
            assert ours[1:] == pytest.approx(theirs[1:], abs=1e-6)
