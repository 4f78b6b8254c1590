from __future__ import annotations

import json
from pathlib import Path

import pytest

from esceme.tasks.catalogue import TASKS, SplitSize


@pytest.mark.parametrize("name", TASKS)
def test_plain_files_precede_pre_encoded_ones(name: str) -> None:
    files = TASKS[name].files
    assert "annotations/" not in files[0]
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
    record = {"scan": "attic", "path_id": "12_3", "path": ["a", "b"], "heading": 0, "instructions": ["go"]}
    file = tmp_path / task.files[0].format(split="train")
    file.parent.mkdir()
    file.write_text(json.dumps([{**record, "instr_encodings": [[101, 2175, 102]]}]))
    (episode,) = task.read(file)
    assert (episode.episode_id, episode.path_id, episode.tokens) == ("12_3_0", "12_3", (101, 2175, 102))


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "split"),
    [
        (name, split)
        for name, task in TASKS.items()
        for split, size in task.split_sizes.items()
        if size is not None and name != "r4r"  # test_r4r.py has the sizes of R4R
    ],
)
def test_published_sizes_are_those_of_the_files(data_root: Path, name: str, split: str) -> None:
    file = data_root / TASKS[name].files[0].format(split=split)
    assert SplitSize.of(TASKS[name].read(file)) == TASKS[name].split_sizes[split]
