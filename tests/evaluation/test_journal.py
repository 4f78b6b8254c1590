"""The journal keeps finished trajectories across kills, for one evaluation only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from esceme.errors import DataError
from esceme.evaluation.journal import (
    Journal,
    JournalEntry,
    finished_batches,
    finished_in_lanes,
    read_journal,
)
from esceme.trajectory import Trajectory
from esceme.world import Atlas, SceneGraph
from fixtures.toy_atlas import toy_episode

ATLAS = Atlas(
    [
        SceneGraph.build("barn", {"x": (0, 0, 0), "y": (0, 3, 0)}, [("x", "y")]),
        SceneGraph.build("house", {"a": (0, 0, 0), "b": (0, 3, 0), "c": (3, 3, 0)}, [("a", "b"), ("b", "c")]),
    ]
)


def make_entry(name: str, *, pass_number: int = 1, batch: int = 0) -> JournalEntry:
    return JournalEntry(pass_number, batch, name, 1, 2, True, [("a", 12), ("b", 13)])


def write(path: Path, *entries: JournalEntry, fingerprint: str = "this one") -> Path:
    with Journal(path, fingerprint, JournalEntry) as journal:
        journal.write(entries)
    return path


def test_entry_restores_a_trajectory_whichever_scenes_are_loaded(tmp_path: Path) -> None:
    trajectory = Trajectory(
        toy_episode("7_1", "house", "a"), [(2, 12), (3, 13), (4, 24)], num_decisions=3, stopped=True, visit=5
    )
    path = write(tmp_path / "journal.jsonl", JournalEntry.of(trajectory, ATLAS, pass_number=2, batch=3))
    ((entry,), _) = read_journal(path, "this one", JournalEntry)
    assert (entry.pass_, entry.batch, entry.id) == (2, 3, "7_1")
    for atlas, shift in ((ATLAS, 0), (Atlas([ATLAS.graph("house")]), 2)):
        restored = entry.trajectory(atlas, trajectory.episode, max_steps=15)
        assert restored.poses == [(viewpoint - shift, view) for viewpoint, view in trajectory.poses]
        assert (restored.num_decisions, restored.stopped, restored.visit) == (3, True, 5)


def test_journal_cut_off_anywhere_continues_with_its_complete_entries(tmp_path: Path) -> None:
    path, names = tmp_path / "journal.jsonl", ["0_0", "0_1", "0_2"]
    data = write(path, *map(make_entry, names)).read_bytes()
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        complete = names[: max(0, data[:end].count(b"\n") - 1)]
        assert [entry.id for entry in read_journal(path, "this one", JournalEntry)[0]] == complete
        write(path, make_entry("9_9"))
        assert [entry.id for entry in read_journal(path, "this one", JournalEntry)[0]] == [*complete, "9_9"]


def test_journal_of_another_evaluation_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", make_entry("0_0"), fingerprint="another")
    before = path.read_bytes()
    with pytest.raises(DataError, match="holds another evaluation.*--out"):
        Journal(path, "this one", JournalEntry)
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["not json\n", '{"walks": 3}\n', "\0\n[1, 2]\n"])
def test_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(DataError, match="journal.jsonl: holds no journal; give another --out"):
        Journal(tmp_path / "journal.jsonl", "this one", JournalEntry)
    assert (tmp_path / "journal.jsonl").read_text() == text


def test_evaluation_that_fails_at_its_start_does_not_block_the_folder(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl", "first", JournalEntry).__exit__()
    write(tmp_path / "journal.jsonl", make_entry("0_0"), fingerprint="second")
    assert len(read_journal(tmp_path / "journal.jsonl", "second", JournalEntry)[0]) == 1


@pytest.mark.parametrize("line", [0, 1, 2, 3])
def test_entries_before_a_damaged_line_are_kept(tmp_path: Path, line: int) -> None:
    path = write(tmp_path / "journal.jsonl", *map(make_entry, ["0_0", "0_1", "0_2"]))
    lines, notes = path.read_bytes().splitlines(keepends=True), list[str]()
    lines[line] = lines[line].replace(b'"a"', b'"c"').replace(b"evaluation", b"evulation")
    path.write_bytes(b"".join(lines))
    with Journal(path, "this one", JournalEntry, note=notes.append) as journal:
        ids = [entry.id for entry in journal.entries]
        assert ids == (["0_0", "0_1", "0_2"] if line == 0 else ["0_0", "0_1", "0_2"][: line - 1])
        assert (
            len(notes) == 1 and f"line {line + 1} is damaged; {len(ids)} undamaged trajectories" in notes[0]
        )
        journal.write([make_entry("9_9")])
    assert [entry.id for entry in read_journal(path, "this one", JournalEntry)[0]] == [*ids, "9_9"]


@pytest.mark.parametrize(
    "change",
    [
        {"poses": [("b", 12)]},
        {"poses": [("a", 12), ("c", 12)]},
        {"poses": [("a", 36)]},
        {"poses": [("a", -1)]},
        {"poses": []},
        {"poses": [("nowhere", 0)]},
        {"decisions": 0},
        {"decisions": 16},
        {"visit": 0},
    ],
)
def test_entry_that_no_agent_can_have_made_is_refused(change: dict[str, Any]) -> None:
    entry = msgspec.structs.replace(make_entry("7_1"), **change)
    with pytest.raises(DataError, match="the journal of this evaluation: episode 7_1: "):
        entry.trajectory(ATLAS, toy_episode("7_1", "house", "a"), max_steps=15)


def test_finished_in_lanes_selects_the_pass_and_known_episodes() -> None:
    entries = [make_entry("0_0"), make_entry("0_1", pass_number=2), make_entry("elsewhere")]
    episodes = {name: toy_episode(name, "house", "a") for name in ("0_0", "0_1")}
    assert list(finished_in_lanes(entries, 1, ATLAS, episodes, max_steps=15)) == ["0_0"]
    assert list(finished_in_lanes(entries, 2, ATLAS, episodes, max_steps=15)) == ["0_1"]


def test_batch_counts_only_if_complete_and_after_complete_ones() -> None:
    batches = [[toy_episode(name, "house", "a") for name in names] for names in ("ab", "ca", "bb")]
    first = [make_entry("b"), make_entry("a")]
    second = [make_entry("c", batch=1), make_entry("a", batch=1)]
    third = [make_entry("b", batch=2)]

    def finished(*entries: JournalEntry) -> list[list[str]]:
        found = finished_batches(entries, 1, ATLAS, batches, max_steps=15)
        return [[trajectory.episode.episode_id for trajectory in batch] for batch in found]

    assert finished(*first, *second, *third) == [["a", "b"], ["c", "a"], ["b", "b"]]
    assert finished(*first, *second[:1], *third) == [["a", "b"]]
    assert finished(*first[1:], *second) == []
    assert finished(*[make_entry(name, pass_number=2) for name in "ab"]) == []
