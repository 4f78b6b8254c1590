"""What has been lived is kept line by line: a cut-off line is lost, nothing else is, and nothing is mixed."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.evaluation.journal import (
    Head,
    Journal,
    Line,
    done_batches,
    done_in_lanes,
    read_journals,
    whole_lines,
)
from esceme.tasks.episode import Episode
from esceme.trajectory import Trajectory
from esceme.world import Atlas, SceneGraph

HEAD = Head("this one")
ATLAS = Atlas(
    [
        SceneGraph.build("barn", {"x": (0, 0, 0), "y": (0, 3, 0)}, [("x", "y")]),
        SceneGraph.build("house", {"a": (0, 0, 0), "b": (0, 3, 0), "c": (3, 3, 0)}, [("a", "b"), ("b", "c")]),
    ]
)


def episode(name: str, scene: str = "house", start: str = "a") -> Episode:
    return Episode(
        episode_id=name,
        scene_id=scene,
        path_id=name,
        reference_path=(start,),
        heading=0.0,
        instruction="",
    )


def line(name: str, *, number: int = 1, batch: int = 0) -> Line:
    return Line(number, batch, name, 1, 2, True, [("a", 12), ("b", 13)])


def written(path: Path, *batches: list[Line], head: Head = HEAD) -> Path:
    journal = Journal(path, head)
    for lines in batches:
        journal.add(lines)
    journal.close()
    return path


def test_a_walk_survives_as_a_line_whichever_scenes_are_loaded(tmp_path: Path) -> None:
    walk = Trajectory(episode("7_1"), [(2, 12), (3, 13), (4, 24)], num_decisions=3, stopped=True, visit=5)
    written(tmp_path / "journal.jsonl", [Line.of(walk, ATLAS, number=2, batch=3)])
    (read,) = read_journals(tmp_path, HEAD)
    assert (read.pass_, read.batch, read.id) == (2, 3, "7_1")
    for atlas, shift in ((ATLAS, 0), (Atlas([ATLAS.graph("house")]), 2)):
        again = read.walk(atlas, walk.episode)
        assert again.poses == [(viewpoint - shift, view) for viewpoint, view in walk.poses]
        assert (again.num_decisions, again.stopped, again.visit) == (3, True, 5)


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    written(tmp_path / "journal.jsonl", [line("0_0")], [line("0_1")])
    written(tmp_path / "journal.jsonl", [line("1_0")])
    assert [each.id for each in read_journals(tmp_path, HEAD)] == ["0_0", "0_1", "1_0"]
    assert len(whole_lines(tmp_path / "journal.jsonl")) == 4


def test_wherever_a_journal_is_cut_off_whole_lines_count_and_it_can_go_on(tmp_path: Path) -> None:
    data = written(tmp_path / "journal.jsonl", [line("0_0")], [line("0_1")], [line("0_2")]).read_bytes()
    ends = [at for at, byte in enumerate(data, 1) if byte == ord("\n")]
    for at in range(len(data) + 1):
        path = tmp_path / f"cut-{at}" / "journal.jsonl"
        path.parent.mkdir()
        path.write_bytes(data[:at])
        kept = max(0, sum(end <= at for end in ends) - 1)
        assert [each.id for each in read_journals(path.parent, HEAD)] == ["0_0", "0_1", "0_2"][:kept]
        written(path, [line("9_9")])
        assert [each.id for each in read_journals(path.parent, HEAD)] == [
            *["0_0", "0_1", "0_2"][:kept],
            "9_9",
        ]


def test_another_evaluations_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path / "journal-1.jsonl", [line("0_0")], head=Head("another"))
    before = path.read_bytes()
    with pytest.raises(DataError, match="holds another evaluation.*--out"):
        read_journals(tmp_path, HEAD)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["not json\n", '{"walks": 3}\n', '{"evaluation": "this one"}\n[1, 2]\n'])
def test_a_file_that_is_no_journal_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(DataError, match="journal.jsonl: not a journal"):
        read_journals(tmp_path, HEAD)


def test_the_journals_of_several_processes_are_one(tmp_path: Path) -> None:
    written(tmp_path / "journal-0.jsonl", [line("0_0"), line("0_1")])
    written(tmp_path / "journal-1.jsonl", [line("1_0"), line("0_1")])  # one of them twice
    assert sorted(each.id for each in read_journals(tmp_path, HEAD)) == ["0_0", "0_1", "1_0"]


def test_two_evaluations_do_not_write_one_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", HEAD)
    with pytest.raises(DataError, match="another evaluation is writing it"):
        Journal(tmp_path / "journal.jsonl", HEAD)
    journal.close()
    written(tmp_path / "journal.jsonl", [line("0_0")])


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file"):
        Journal(tmp_path / "file" / "journal.jsonl", HEAD)


def test_a_full_disk_is_an_error_and_what_was_written_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, HEAD)
    journal.add([line("0_0")])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, before[1]))
    try:
        with pytest.raises(DataError, match=r"journal.jsonl: cannot be written"):
            journal.add([line("0_1"), line("0_2")])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        journal.close()
    assert not path.read_bytes().endswith(b"\n")
    written(path, [line("0_3")])
    assert [each.id for each in read_journals(tmp_path, HEAD)] == ["0_0", "0_1", "0_3"]


def test_what_is_done_in_lanes_is_of_one_pass_and_of_known_episodes() -> None:
    lines = [line("0_0"), line("0_1", number=2), line("elsewhere")]
    known = {name: episode(name) for name in ("0_0", "0_1")}
    assert list(done_in_lanes(lines, 1, ATLAS, known)) == ["0_0"]
    assert list(done_in_lanes(lines, 2, ATLAS, known)) == ["0_1"]


def test_a_batch_counts_only_as_a_whole_and_after_those_before_it() -> None:
    planned = [[episode("a"), episode("b")], [episode("c"), episode("a")], [episode("b"), episode("b")]]
    first = [line("b"), line("a")]
    second = [line("c", batch=1), line("a", batch=1)]
    third = [line("b", batch=2)]

    def done(*lines: Line) -> list[list[str]]:
        return [
            [walk.episode.episode_id for walk in batch] for batch in done_batches(lines, 1, ATLAS, planned)
        ]

    assert done(*first, *second, *third) == [["a", "b"], ["c", "a"], ["b", "b"]]
    assert done(*first, *second[:1], *third) == [["a", "b"]]
    assert done(*first[1:], *second) == []
    assert done(*[line(name, number=2) for name in "ab"]) == []
