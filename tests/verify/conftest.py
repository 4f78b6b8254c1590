"""Fixtures of the tests of `verify`: reference data read once, and functions that judge a single file."""

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

Judge = Callable[[Any], VerificationReport]


@pytest.fixture(scope="session")
def real(data_root: Path) -> ReferenceData:
    return ReferenceData(data_root)


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
def judged(tmp_path: Path) -> Callable[[str, Any, ReferenceData], VerificationReport]:
    """The report on one file of a name with this content."""

    def judge(name: str, value: Any, references: ReferenceData) -> VerificationReport:
        report = VerificationReport()
        check_file(name, write_stored(tmp_path / name, value), references, report)
        return report

    return judge


@pytest.fixture
def judge_beside(tmp_path: Path) -> Callable[..., Judge]:
    """A function from a file's content to its report, beside copies of a folder's weights."""

    def make(folder: Path, name: str, data: Path = WORLD) -> Judge:
        for fixture in ("vln_bert.safetensors", "critic.safetensors", "meta.json"):
            if "rollout" not in name or "critic" not in fixture:
                shutil.copyfile(folder / fixture, tmp_path / fixture)

        def judge(stored: Any) -> VerificationReport:
            write_stored(tmp_path / name, stored)
            return verify(tmp_path, data)

        return judge

    return make
