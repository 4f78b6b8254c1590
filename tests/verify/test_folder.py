"""`esceme verify` on whole folders: compared files, skipped files and the exit code."""

from __future__ import annotations

import gzip
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from esceme.errors import DataError
from esceme.verify import verify
from esceme.verify.fixtures import ReferenceData
from fixtures.corrupted_files import scene_statistics, write_stored

SIMULATOR, R2R, R4R = "sim_candidates.json.gz", "metrics_r2r_val_unseen.json", "metrics_r4r_val_seen_x.json"


@pytest.fixture
def small(toy: ReferenceData) -> dict[str, Any]:
    """A file of the simulator's kind about the toy world, with statistics alone."""
    return scene_statistics(toy.graphs["toy-villa"])


def test_a_folder_without_reference_files_compares_nothing(tmp_path: Path, toy: ReferenceData) -> None:
    (tmp_path / "README.md").write_text("remarks")
    report = verify(tmp_path, toy.root)
    assert (report.rows, report.skipped, report.exit_code) == ([], [], 3)


def test_files_are_found_in_sub_folders_by_their_whole_name(
    tmp_path: Path, toy: ReferenceData, small: dict[str, Any]
) -> None:
    write_stored(tmp_path / "deep" / "er" / SIMULATOR, small)
    write_stored(tmp_path / f"old_{SIMULATOR}", small)
    report = verify(tmp_path, toy.root)
    assert {row.file for row in report.rows} == {f"deep/er/{SIMULATOR}"}
    assert all(row.ok for row in report.rows)
    assert f"old_{SIMULATOR}" in {skip.file for skip in report.skipped}


@pytest.mark.parametrize(
    "name", ["hamt/case0_inputs.safetensors", "meta.json", "metrics_r2r_test.json", ".x"]
)
def test_unrecognised_files_are_listed(tmp_path: Path, toy: ReferenceData, name: str) -> None:
    write_stored(tmp_path / name, {})
    report = verify(tmp_path, toy.root)
    assert [skip.file for skip in report.skipped] == [name]
    assert report.exit_code == 3


@pytest.mark.parametrize("content", [b"", b"[]", b"5", b"{", b"\xff", b"null", b"[" * 100_000])
@pytest.mark.parametrize("name", [SIMULATOR, R2R, R4R])
def test_a_damaged_file_is_skipped_with_a_reason(
    tmp_path: Path, toy: ReferenceData, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    report = verify(tmp_path, toy.root)
    assert [skip.file for skip in report.skipped] == [name]
    assert name in report.skipped[0].reason  # the reader's own message, which names the file
    assert report.exit_code == 3


def test_a_truncated_file_is_skipped_wherever_it_ends(
    tmp_path: Path, toy: ReferenceData, small: dict[str, Any]
) -> None:
    path = write_stored(tmp_path / SIMULATOR, small)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        report = verify(tmp_path, toy.root)
        assert (report.exit_code, report.rows) == (3, [])
        assert [skip.file for skip in report.skipped] == [SIMULATOR]


def test_a_damaged_file_does_not_hide_a_difference_in_another(
    tmp_path: Path, toy: ReferenceData, small: dict[str, Any]
) -> None:
    (tmp_path / R2R).write_text("{")
    small["graph_stats"]["toy-villa"]["edges"] += 1
    write_stored(tmp_path / SIMULATOR, small)
    assert verify(tmp_path, toy.root).exit_code == 1


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_a_missing_folder_is_an_error(tmp_path: Path, toy: ReferenceData, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"{name}: cannot be read as a folder of reference vectors"):
        verify(tmp_path / name, toy.root)
    with pytest.raises(
        DataError, match=f"{name}: cannot be read as the data folder .*--data or set ESCEME_DATA"
    ):
        verify(tmp_path, tmp_path / name)


def test_a_data_folder_without_graphs_is_the_reason(tmp_path: Path, small: dict[str, Any]) -> None:
    write_stored(tmp_path / "vectors" / SIMULATOR, small)
    (tmp_path / "data").mkdir()
    report = verify(tmp_path / "vectors", tmp_path / "data")
    assert report.exit_code == 3
    assert "no connectivity folder" in report.skipped[0].reason


def test_an_unreadable_sub_folder_is_skipped_by_name(toy: ReferenceData, toy_root: Path) -> None:
    superuser = os.geteuid() == 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        shutil.copytree(toy_root / "connectivity", folder / "data" / "connectivity")
        (folder / "vectors" / "locked").mkdir(parents=True)
        (folder / "vectors" / "locked").chmod(0o000)
        try:
            if superuser:
                os.seteuid(65534)
            report = verify(folder / "vectors", folder / "data")
        finally:
            if superuser:
                os.seteuid(0)
            (folder / "vectors" / "locked").chmod(0o755)
    assert [tuple(skip) for skip in report.skipped] == [("locked", "cannot be read (Permission denied)")]
