"""With a manifest, the doctor notices any one file that was damaged or removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from esceme.synth import WorldConfig, embedded_world
from esceme.tasks.doctor import examine


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world") / "tiny"
    shutil.copytree(embedded_world(WorldConfig("tiny")), root)
    return root


def faults(root: Path) -> list[str]:
    return [finding.file for finding in examine(root) if finding.level == "fault"]


def test_nothing_is_wrong_with_the_embedded_world(world: Path) -> None:
    assert faults(world) == []


def one_of_each_kind(root: Path) -> list[str]:
    """Every file but the pictures, of which one stands for all."""
    files = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*")) if path.is_file()]
    pictures = [name for name in files if name.endswith(".jpg")]
    return [name for name in files if not name.endswith(".jpg")] + pictures[-1:]


@pytest.mark.slow
def test_any_one_file_removed_or_damaged_is_noticed(world: Path) -> None:
    for name in one_of_each_kind(world):
        path, kept = world / name, (world / name).read_bytes()
        path.unlink()
        assert name in faults(world), f"{name} was removed"
        path.write_bytes(kept[: len(kept) // 2] + b"?" + kept[len(kept) // 2 + 1 :])
        found = faults(world)  # a changed manifest accuses the file whose line was changed
        assert name in found or (name == "manifest.json" and found), f"one byte of {name} was changed"
        path.write_bytes(kept)
    assert faults(world) == []
