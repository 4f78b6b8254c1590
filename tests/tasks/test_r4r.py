"""R4R from R2R: joined paths of a toy corridor and of the whole dataset."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.files import write_json
from esceme.tasks.catalogue import TASKS, SplitSize
from esceme.tasks.episode import check_path
from esceme.tasks.r2r import R2RRecord, read_r2r
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.world import SceneGraph

# A corridor: a -2- b -2- c -1.5- m -1.5- p -0.5- q, metres between neighbours.
POSITIONS = {"a": 0.0, "b": 2.0, "c": 4.0, "m": 5.5, "p": 7.0, "q": 7.5}
EDGES = [("a", "b"), ("b", "c"), ("c", "m"), ("m", "p"), ("p", "q")]


GRAPHS = {
    scene: SceneGraph.build(scene, {name: (0.0, y, 0.0) for name, y in POSITIONS.items()}, EDGES)
    for scene in ("attic", "barn")
}


def toy_path(
    path_id: int, path: str, *instructions: str, scan: str = "attic", heading: float = 0.0
) -> R2RRecord:
    return R2RRecord(
        scan=scan,
        path_id=path_id,
        path=list(path),
        heading=heading,
        instructions=list(instructions or ["Go. "]),
    )


def joined(*records: R2RRecord) -> list[str]:
    return ["".join(record.path) for record in join_paths(records, GRAPHS)]


def test_paths_are_joined_by_the_shortest_path() -> None:
    first = toy_path(71, "abc", "Up. ", "Climb", heading=1.25)
    second = toy_path(35, "pq", "Wait.", "Stop. ", "Halt", heading=2.5)
    (record,) = join_paths([first, second], GRAPHS)
    assert record == R2RRecord(
        scan="attic",
        path_id=0,
        path=list("abcmpq"),
        heading=1.25,
        instructions=["Up. Wait.", "Up. Stop. ", "Up. Halt", "Climb Wait.", "Climb Stop. ", "Climb Halt"],
        distance=7.5,
    )


def test_distance_is_equal_on_all_pythons() -> None:
    """From Python 3.12 on, `sum` rounds less often: ten edges of 0.1 m gave 0.9999999999999999 m on 3.11."""
    positions = {"a": (0.0, 0.0, 0.0), "b": (0.0, 0.1, 0.0)}
    graphs = {"attic": SceneGraph.build("attic", positions, [("a", "b")])}
    first, _ = join_paths([toy_path(1, "ababab"), toy_path(2, "bababa")], graphs)
    assert (len(first.path), first.distance) == (11, 1.0)


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["abc", "pq"], ["abcmpq"]),  # 3.0 m between c and p
        (["abc", "qp"], []),  # 3.5 m between c and q
        (["pq", "qp"], ["pqp", "qpq"]),  # a shared end is not repeated
        (["pq"], []),  # a path is not joined with itself, though it ends 0.5 m from its start
        (["pqp"], []),
    ],
)
def test_paths_at_most_three_metres_apart_are_joined(paths: list[str], expected: list[str]) -> None:
    assert GRAPHS["attic"].distance("c", "p") == 3.0
    assert joined(*(toy_path(number, path) for number, path in enumerate(paths))) == expected


def test_pairs_are_in_file_order_and_numbered() -> None:
    paths = [toy_path(9, "abc"), toy_path(8, "pq"), toy_path(7, "qp"), toy_path(6, "cb")]
    records = list(join_paths(paths, GRAPHS))
    assert ["".join(record.path) for record in records] == ["abcmpq", "abcb", "pqp", "qpq", "qpmcb", "cbabc"]
    assert [record.path_id for record in records] == [0, 1, 2, 3, 4, 5]


def test_paths_of_different_scenes_are_not_joined() -> None:
    assert joined(toy_path(1, "abc"), toy_path(2, "pq", scan="barn")) == []
    mixed = [
        toy_path(1, "abc"),
        toy_path(2, "qp", scan="barn"),
        toy_path(3, "pq"),
        toy_path(4, "pq", scan="barn"),
    ]
    assert [(record.scan, "".join(record.path)) for record in join_paths(mixed, GRAPHS)] == [
        ("attic", "abcmpq"),
        ("barn", "qpq"),
        ("barn", "pqp"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("Go up. ", "Wait.", "Go up. Wait."),
        ("Go up.", "Wait.", "Go up. Wait."),
        ("Go up.\n", "Wait. ", "Go up.\nWait. "),
        ("Go up.", " Wait.", "Go up.  Wait."),
    ],
)
def test_instructions_are_separated_by_a_space(first: str, second: str, text: str) -> None:
    (record,) = join_paths([toy_path(1, "abc", first), toy_path(2, "pq", second)], GRAPHS)
    assert record.instructions == [text]


def test_disconnected_paths_are_not_joined() -> None:
    positions = {"a": (0.0, 0.0, 0.0), "b": (0.0, 2.0, 0.0), "p": (1.0, 0.0, 0.0), "q": (1.0, 2.0, 0.0)}
    divided = {"attic": SceneGraph.build("attic", positions, [("a", "b"), ("p", "q")])}
    assert list(join_paths([toy_path(1, "ab"), toy_path(2, "pq")], divided)) == []


def test_progress_wraps_the_records() -> None:
    seen: list[int | str] = []

    def progress(records: Sequence[R2RRecord]) -> Iterator[R2RRecord]:
        for record in records:
            seen.append(record.path_id)
            yield record

    assert len(list(join_paths([toy_path(1, "pq"), toy_path(2, "qp")], GRAPHS, progress=progress))) == 2
    assert seen == [1, 2]


def test_joined_paths_are_a_valid_r2r_file(tmp_path: Path) -> None:
    records = list(join_paths([toy_path(1, "abc", "Up. ", "Climb. "), toy_path(2, "pq", "Wait.")], GRAPHS))
    write_json(tmp_path / "R4R_val.json", records)
    assert set(json.loads((tmp_path / "R4R_val.json").read_text())[0]) == {
        *("scan", "path_id", "path", "heading", "instructions", "distance")
    }
    episodes = read_r2r(tmp_path / "R4R_val.json")
    assert [episode.episode_id for episode in episodes] == ["0_0", "0_1"]
    assert [episode.instruction for episode in episodes] == ["Up. Wait.", "Climb. Wait."]
    assert episodes[0].reference_path == tuple("abcmpq")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scan": "cellar"}, "path 5: scene 'cellar' is unknown"),
        ({"path": []}, "path 5: 'path' or 'instructions' is empty"),
        ({"path": ["a", "z"]}, "path 5: viewpoint 'z' is not in scene 'attic'"),
        ({"path": ["a", "c"]}, "path 5: no edge leads from 'a' to 'c' in scene 'attic'"),
        ({"heading": None}, "record 1: field 'heading'"),
    ],
)
def test_invalid_paths_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    good = {"scan": "attic", "path_id": 4, "path": ["a", "b"], "heading": 0.0, "instructions": ["Go."]}
    file = tmp_path / "R2R_val_seen.json"
    file.write_text(json.dumps([good, {**good, "path_id": 5, **changes}]))
    with pytest.raises(DataError, match=f"R2R_val_seen.json: {message}"):
        read_r2r_records(file, GRAPHS)


@pytest.mark.real
@pytest.mark.parametrize(
    ("split", "num_edges"), [("train", (7, 16)), ("val_seen", (8, 14)), ("val_unseen", (6, 15))]
)
def test_real_r4r_has_the_published_size_and_follows_edges(
    data_root: Path, real_graphs: dict[str, SceneGraph], split: str, num_edges: tuple[int, int]
) -> None:
    r2r = read_r2r_records(data_root / "R2R" / f"R2R_{split}.json", real_graphs)
    records = list(join_paths(r2r, real_graphs))
    num_instructions = sum(len(record.instructions) for record in records)
    num_scenes = len({record.scan for record in records})
    assert SplitSize(len(records), num_instructions, num_scenes) == TASKS["r4r"].split_sizes[split]
    lengths = [len(record.path) - 1 for record in records]
    assert (min(lengths), max(lengths)) == num_edges
    for record in records:
        check_path(record.scan, record.path, real_graphs)
        assert all(a != b for a, b in zip(record.path, record.path[1:], strict=False))
