"""What every task keeps to, whatever its files look like (`esceme.tasks.catalogue.Task`)."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.tasks import TASKS, Task
from esceme.tasks.episode import Episode, check_paths
from esceme.world import read_scenes


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


def file_of(task: Task, root: Path, pattern: int = 0) -> Path:
    path = root / task.files[pattern].format(split="train")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def toy_episodes(task: Task, root: Path) -> list[tuple[Path, Sequence[Episode]]]:
    """The splits of a task that the toy world has."""
    files = [root / each.format(split=split) for split in task.split_sizes for each in task.files]
    return [(file, task.read(file)) for file in files if file.is_file()]


def test_a_task_is_listed_under_its_name_with_limits_that_let_somebody_walk(task: Task) -> None:
    assert TASKS[task.name] is task
    assert task.max_steps >= 1 and task.max_tokens >= 1 and task.id_key
    assert task.split_sizes and all("{split}" in pattern for pattern in task.files)


def test_a_file_that_is_not_there_is_named(task: Task, tmp_path: Path) -> None:
    for pattern in range(len(task.files)):
        file = file_of(task, tmp_path, pattern)
        with pytest.raises(DataError, match=file.name):
            task.read(file)


@pytest.mark.parametrize(
    "content", [b"", b"[", b"[]", b"{}", b"null", b'["walk"]', b'[{"unheard of": 1}]', b"\xff\xfe[]"]
)
def test_a_file_of_something_else_is_named(task: Task, tmp_path: Path, content: bytes) -> None:
    for pattern in range(len(task.files)):
        file = file_of(task, tmp_path, pattern)
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
        with pytest.raises(DataError, match=file.name):
            task.read(file)


def test_episodes_are_told_apart_and_can_be_walked(task: Task, toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    for file, episodes in toy_episodes(task, toy_root):
        assert len({each.episode_id for each in episodes}) == len(episodes) > 0
        check_paths(episodes, graphs, file)
        for episode in episodes:
            assert episode.instruction or episode.tokens
            assert episode.goal_withheld or episode.goal in graphs[episode.scene_id].viewpoints


def test_reading_twice_gives_the_same(task: Task, toy_root: Path) -> None:
    for (_, one), (_, other) in zip(toy_episodes(task, toy_root), toy_episodes(task, toy_root), strict=True):
        assert list(one) == list(other)


def test_the_toy_world_has_some_of_them(toy_root: Path) -> None:
    assert {name for name, each in TASKS.items() if toy_episodes(each, toy_root)} >= {"r2r", "rxr", "cvdn"}
