"""R4R made from R2R: the rule of joining by hand, and the whole dataset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.files import write_json
from esceme.tasks.episode import check_path
from esceme.tasks.r2r import R2RRecord, read_r2r
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.world import SceneGraph

# A corridor: a -2- b -2- c -1.5- m -1.5- p -0.5- q, metres between neighbours.
PLACES = {"a": 0.0, "b": 2.0, "c": 4.0, "m": 5.5, "p": 7.0, "q": 7.5}
EDGES = [("a", "b"), ("b", "c"), ("c", "m"), ("m", "p"), ("p", "q")]


def corridor(scene: str) -> SceneGraph:
    return SceneGraph.build(scene, {name: (0.0, y, 0.0) for name, y in PLACES.items()}, EDGES)


GRAPHS = {scene: corridor(scene) for scene in ("attic", "barn")}


def walk(path_id: int, path: str, *instructions: str, scan: str = "attic", heading: float = 0.0) -> R2RRecord:
    return R2RRecord(
        scan=scan,
        path_id=path_id,
        path=list(path),
        heading=heading,
        instructions=list(instructions or ["Go. "]),
    )


def joined(*walks: R2RRecord) -> list[str]:
    return ["".join(record.path) for record in join_paths(walks, GRAPHS)]


def test_paths_are_joined_by_the_shortest_path() -> None:
    first = walk(71, "abc", "Up. ", "Climb", heading=1.25)
    second = walk(35, "pq", "Wait.", "Stop. ", "Halt", heading=2.5)
    (record,) = join_paths([first, second], GRAPHS)
    assert record == R2RRecord(
        scan="attic",
        path_id=0,
        path=list("abcmpq"),
        heading=1.25,
        instructions=["Up. Wait.", "Up. Stop. ", "Up. Halt", "Climb Wait.", "Climb Stop. ", "Climb Halt"],
        distance=7.5,
    )


def test_exactly_three_metres_join_and_more_do_not() -> None:
    assert GRAPHS["attic"].distance("c", "p") == 3.0
    assert joined(walk(1, "abc"), walk(2, "pq")) == ["abcmpq"]
    assert joined(walk(1, "abc"), walk(2, "qp")) == []  # 3.5 m


def test_junction_is_not_doubled() -> None:
    # pq then qp share q, qp then pq share p.
    assert joined(walk(1, "pq"), walk(2, "qp")) == ["pqp", "qpq"]


def test_path_is_not_joined_with_itself() -> None:
    assert joined(walk(1, "pq")) == []  # though it ends 0.5 m from its start
    assert joined(walk(1, "pqp")) == []


def test_pairs_come_in_file_order_and_are_numbered() -> None:
    walks = [walk(9, "abc"), walk(8, "pq"), walk(7, "qp"), walk(6, "cb")]
    records = list(join_paths(walks, GRAPHS))
    assert ["".join(record.path) for record in records] == ["abcmpq", "abcb", "pqp", "qpq", "qpmcb", "cbabc"]
    assert [record.path_id for record in records] == [0, 1, 2, 3, 4, 5]


def test_scenes_are_kept_apart() -> None:
    assert joined(walk(1, "abc"), walk(2, "pq", scan="barn")) == []
    mixed = [walk(1, "abc"), walk(2, "qp", scan="barn"), walk(3, "pq"), walk(4, "pq", scan="barn")]
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
def test_space_is_put_only_where_there_is_none(first: str, second: str, text: str) -> None:
    (record,) = join_paths([walk(1, "abc", first), walk(2, "pq", second)], GRAPHS)
    assert record.instructions == [text]


def test_disconnected_paths_are_not_joined() -> None:
    places = {"a": (0.0, 0.0, 0.0), "b": (0.0, 2.0, 0.0), "p": (1.0, 0.0, 0.0), "q": (1.0, 2.0, 0.0)}
    divided = {"attic": SceneGraph.build("attic", places, [("a", "b"), ("p", "q")])}
    assert list(join_paths([walk(1, "ab"), walk(2, "pq")], divided)) == []


def test_progress_can_be_watched() -> None:
    seen: list[int | str] = []

    def watch(records: Sequence[R2RRecord]) -> Iterable[R2RRecord]:
        def told() -> Iterator[R2RRecord]:
            for record in records:
                seen.append(record.path_id)
                yield record

        return told()

    assert len(list(join_paths([walk(1, "pq"), walk(2, "qp")], GRAPHS, progress=watch))) == 2
    assert seen == [1, 2]


def test_joined_paths_are_a_valid_r2r_file(tmp_path: Path) -> None:
    made = list(join_paths([walk(1, "abc", "Up. ", "Climb. "), walk(2, "pq", "Wait.")], GRAPHS))
    write_json(tmp_path / "R4R_val.json", made)
    assert set(json.loads((tmp_path / "R4R_val.json").read_text())[0]) == {
        *("scan", "path_id", "path", "heading", "instructions", "distance")
    }
    episodes = read_r2r(tmp_path / "R4R_val.json")
    assert [each.episode_id for each in episodes] == ["0_0", "0_1"]
    assert [each.instruction for each in episodes] == ["Up. Wait.", "Climb. Wait."]
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
    ("split", "paths", "instructions", "fewest", "most"),
    [
        ("train", 25_921, 233_532, 7, 16),
        ("val_seen", 115, 1_035, 8, 14),
        ("val_unseen", 5_026, 45_234, 6, 15),
    ],
)
def test_real_r4r_has_its_size_and_follows_edges(
    data_root: Path,
    real_graphs: dict[str, SceneGraph],
    split: str,
    paths: int,
    instructions: int,
    fewest: int,
    most: int,
) -> None:
    walks = read_r2r_records(data_root / "R2R" / f"R2R_{split}.json", real_graphs)
    made = list(join_paths(walks, real_graphs))
    assert len(made) == paths
    assert sum(len(record.instructions) for record in made) == instructions
    edges = [len(record.path) - 1 for record in made]
    assert (min(edges), max(edges)) == (fewest, most)
    for record in made:
        check_path(record.scan, record.path, real_graphs)
        assert all(a != b for a, b in zip(record.path, record.path[1:], strict=False))
