"""Fixtures of the tests of `verify`: reference data, and functions that compare a single file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from esceme.files import write_json
from esceme.tasks.r2r import read_r2r
from esceme.verify import check_file, verify
from esceme.verify.comparison import VerificationReport
from esceme.verify.fixtures import ReferenceData
from fixtures.corrupted_files import write_stored
from reference.make import WORLD, unpack

Check = Callable[[Any], VerificationReport]
"""Takes the content of a reference file; returns the report."""


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's own reference files, unpacked."""
    return unpack(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="session")
def toy(toy_root: Path, tmp_path_factory: pytest.TempPathFactory) -> ReferenceData:
    """The toy world, and predictions that follow each path only partly."""
    root = tmp_path_factory.mktemp("references") / "data"
    shutil.copytree(toy_root, root, ignore=shutil.ignore_patterns("features", "RxR", "R4R"))
    predictions = [
        {
            "instr_id": episode.episode_id,
            "trajectory": [
                [name, 0.0, 0.0] for name in episode.reference_path[: 1 + row % len(episode.reference_path)]
            ],
        }
        for row, episode in enumerate(read_r2r(root / "R2R" / "R2R_val_unseen.json"))
    ]
    write_json(root / "predictions" / "toy.json", predictions)
    return ReferenceData(root)


@pytest.fixture
def report_on(tmp_path: Path, toy: ReferenceData) -> Callable[..., VerificationReport]:
    """Compare one file, given by its name and content, with the toy world or other data."""

    def report_on(name: str, value: Any, references: ReferenceData = toy) -> VerificationReport:
        report = VerificationReport()
        check_file(name, write_stored(tmp_path / name, value), references, report)
        return report

    return report_on


@pytest.fixture
def checker(reference: Path, tmp_path: Path) -> Callable[..., Check]:
    """Make functions that compare a file with the numbers of a reference network."""

    def make(variant: str, name: str, data: Path = WORLD) -> Check:
        for fixture in ("vln_bert.safetensors", "critic.safetensors", "meta.json"):
            if "rollout" not in name or "critic" not in fixture:
                shutil.copyfile(reference / variant / fixture, tmp_path / fixture)
        return lambda stored: verify(write_stored(tmp_path / name, stored).parent, data)

    return make
