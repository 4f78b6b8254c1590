"""The contract of all tasks (`esceme.tasks.catalogue.Task`)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.files import read_bytes
from esceme.tasks import TASKS, Task
from esceme.tasks.episode import Episode, check_paths
from esceme.world import read_scenes


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


def toy_episodes(task: Task, root: Path) -> list[tuple[Path, Sequence[Episode]]]:
    """The splits of a task that the toy world has."""
    files = [root / pattern.format(split=split) for split in task.split_sizes for pattern in task.files]
    return [(file, task.read(file)) for file in files if file.is_file()]


def test_a_task_has_a_name_limits_and_files(task: Task) -> None:
    assert TASKS[task.name] is task
    assert task.max_steps >= 1 and task.max_tokens >= 1 and task.id_key
    assert task.split_sizes and all("{split}" in pattern for pattern in task.files)


@pytest.mark.parametrize(
    "content", [None, b"", b"[", b"[]", b"{}", b"null", b'["walk"]', b'[{"unknown": 1}]', b"\xff\xfe[]"]
)
def test_missing_and_malformed_files_are_named(task: Task, tmp_path: Path, content: bytes | None) -> None:
    for pattern in task.files:
        file = tmp_path / pattern.format(split="train")
        file.parent.mkdir(parents=True, exist_ok=True)
        if content is not None:
            file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
        with pytest.raises(DataError, match=file.name):
            task.read(file)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scan", "attic\\u001b[2J", "field 'scan': expected text without control characters"),
        ("heading", "1e30", "heading': expected float <= 1000.0"),
    ],
)
def test_damaged_ids_and_headings_are_refused(
    task: Task, toy_root: Path, tmp_path: Path, key: str, value: str, message: str
) -> None:
    for file, _ in toy_episodes(task, toy_root)[:1]:
        text = read_bytes(file).decode()
        damaged = re.sub(rf'("{key}":\s*"?)[^",}}]+', lambda found: found[1] + value, text, count=1)
        path = tmp_path / file.name.removesuffix(".gz")
        path.write_text(damaged)
        with pytest.raises(DataError, match=re.escape(message)):
            task.read(path)


def test_episodes_are_unique_valid_and_read_deterministically(task: Task, toy_root: Path) -> None:
    graphs = read_scenes(toy_root / "connectivity")
    for file, episodes in toy_episodes(task, toy_root):
        assert len({episode.episode_id for episode in episodes}) == len(episodes) > 0
        assert list(task.read(file)) == list(episodes)
        check_paths(episodes, graphs, file)
        for episode in episodes:
            assert episode.instruction or episode.tokens
            assert episode.goal_withheld or episode.goal in graphs[episode.scene_id].viewpoints


def test_the_toy_world_has_episodes(toy_root: Path) -> None:
    assert {name for name, task in TASKS.items() if toy_episodes(task, toy_root)} >= {"r2r", "rxr", "cvdn"}
