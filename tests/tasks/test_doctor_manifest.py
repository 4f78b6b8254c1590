"""With a manifest, the data doctor reports every damaged or missing file."""

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


def test_embedded_world_has_no_fault(world: Path) -> None:
    assert faults(world) == []


@pytest.mark.slow
def test_every_missing_or_damaged_file_is_reported(world: Path) -> None:
    """One picture represents all pictures."""
    files = [path for path in sorted(world.rglob("*")) if path.is_file()]
    pictures = [path for path in files if path.suffix == ".jpg"]
    for path in [path for path in files if path not in pictures] + pictures[-1:]:
        name, data = path.relative_to(world).as_posix(), path.read_bytes()
        path.unlink()
        assert name in faults(world), f"{name} was removed"
        path.write_bytes(data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
        found = faults(world)  # a changed line of the manifest is a fault of the file it names
        assert name in found or (name == "manifest.json" and found), f"one byte of {name} was changed"
        path.write_bytes(data)
    assert faults(world) == []
