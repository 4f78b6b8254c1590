from __future__ import annotations

import json
from pathlib import Path

import pytest

from esceme.tasks.catalogue import TASKS, SplitSize
from esceme.tasks.r4r import join_paths, read_r2r_records
from esceme.world import SceneGraph

SPLITS = [
    (name, split, counts)
    for name, task in TASKS.items()
    for split, counts in task.split_sizes.items()
    if counts is not None
]


def test_tasks_are_listed_under_their_names() -> None:
    assert {"r2r", "r4r", "rxr", "cvdn", "reverie", "prevalent"} <= set(TASKS)
    assert all(task.name == name for name, task in TASKS.items())


@pytest.mark.parametrize("name", TASKS)
def test_patterns_name_the_split_and_plain_files_come_first(name: str) -> None:
    files = TASKS[name].files
    assert all("{split}" in pattern for pattern in files)
    assert not any("annotations/" in pattern for pattern in files[:1])
    assert len({pattern.format(split="train") for pattern in files}) == len(files)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("r2r", (15, 60, "first", "instr_id")),
        ("r4r", (15, 80, "first", "instr_id")),
        ("rxr", (20, 250, "first", "instruction_id")),
        ("cvdn", (30, 100, "last", "inst_idx")),
        ("prevalent", (15, 60, "first", "instr_id")),
    ],
)
def test_limits_are_those_of_the_original_scripts(name: str, limits: tuple[int, int, str, str]) -> None:
    task = TASKS[name]
    assert (task.max_steps, task.max_tokens, task.keep, task.id_key) == limits


def test_augmentation_has_string_path_ids(tmp_path: Path) -> None:
    task = TASKS["prevalent"]
    walk = {"scan": "attic", "path_id": "12_3", "path": ["a", "b"], "heading": 0, "instructions": ["go"]}
    file = tmp_path / task.files[0].format(split="train")
    file.parent.mkdir()
    file.write_text(json.dumps([{**walk, "instr_encodings": [[101, 2175, 102]]}]))
    (episode,) = task.read(file)
    assert (episode.episode_id, episode.path_id, episode.tokens) == ("12_3_0", "12_3", (101, 2175, 102))


@pytest.mark.real
@pytest.mark.parametrize(("name", "split", "counts"), [each for each in SPLITS if each[0] != "r4r"])
def test_published_sizes_are_those_of_the_files(
    data_root: Path, name: str, split: str, counts: SplitSize
) -> None:
    file = data_root / TASKS[name].files[0].format(split=split)
    assert SplitSize.of(TASKS[name].read(file)) == counts


@pytest.mark.real
@pytest.mark.parametrize(("name", "split", "counts"), [each for each in SPLITS if each[0] == "r4r"])
def test_r4r_sizes_are_those_that_joining_gives(
    data_root: Path, real_graphs: dict[str, SceneGraph], name: str, split: str, counts: SplitSize
) -> None:
    walks = read_r2r_records(data_root / TASKS["r2r"].files[0].format(split=split), real_graphs)
    made = list(join_paths(walks, real_graphs))
    instructions = sum(len(record.instructions) for record in made)
    assert SplitSize(len(made), instructions, len({record.scan for record in made})) == counts
