"""Manifests name every changed or missing file; malformed manifests are refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from esceme.errors import DataError
from esceme.files import read_json
from esceme.tasks.manifest import (
    FORMAT,
    NAME,
    ManifestMismatch,
    check_manifest,
    write_json_set,
    write_manifest,
)
from fixtures.files import file_contents, save_json

FILES = ["deep/a.bin", "deep/er/ü ö.json", "empty.txt"]
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "deep" / "a.bin").write_bytes(bytes(range(256)) * 500)
    (tmp_path / "deep" / "er" / "ü ö.json").write_text("{}")
    write_manifest(tmp_path)
    return tmp_path


def test_every_file_is_listed_with_its_hash(folder: Path) -> None:
    manifest = read_json(folder / NAME, dict[str, object])
    assert manifest["format"] == FORMAT
    files = manifest["files"]
    assert isinstance(files, dict)
    assert list(files) == FILES
    assert files["empty.txt"] == EMPTY
    before = (folder / NAME).read_bytes()
    write_manifest(folder)
    assert (folder / NAME).read_bytes() == before


@pytest.mark.parametrize("name", FILES)
def test_missing_or_changed_file_is_reported(folder: Path, name: str) -> None:
    with (folder / name).open("ab") as file:
        file.write(b" ")
    assert list(check_manifest(folder)) == [
        ManifestMismatch(name, "differs from the file that manifest.json lists")
    ]
    (folder / name).unlink()
    assert list(check_manifest(folder)) == [ManifestMismatch(name, "listed in manifest.json, but missing")]


KILLED = """
import os, sys
from pathlib import Path
from esceme.tasks.manifest import write_json_set
replace, count = os.replace, 0
def replace_or_end(*paths):
    global count
    if count == int(sys.argv[2]):
        os._exit(9)
    count += 1
    replace(*paths)
os.replace = replace_or_end
write_json_set(Path(sys.argv[1]), {"a.json": [2], "b.json": [2]}, manifest_name="set.json")
"""


@pytest.mark.parametrize("replaced", [0, 1, 2, 3])
@pytest.mark.parametrize("has_old_files", [False, True])
def test_set_of_files_is_written_whole_or_noticed(tmp_path: Path, replaced: int, has_old_files: bool) -> None:
    """The process is killed after it has replaced some of the files."""
    if has_old_files:
        write_json_set(tmp_path, {"a.json": [1], "b.json": [1]}, manifest_name="set.json")
    before = file_contents(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path, f"{replaced}"], check=False)
    assert done.returncode == (9 if replaced < 3 else 0)
    files = {name: data for name, data in file_contents(tmp_path).items() if not name.endswith(".part")}
    if replaced == 0:
        assert files == before
    else:
        damaged = [damage.file for damage in check_manifest(tmp_path, "set.json")]
        assert damaged == ["a.json", "b.json"][: 3 - replaced]
    write_json_set(tmp_path, {"a.json": [2], "b.json": [2]}, manifest_name="set.json")
    assert list(check_manifest(tmp_path, "set.json")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "set.json"]


def test_one_changed_bit_is_reported(folder: Path) -> None:
    data = bytearray((folder / "deep/a.bin").read_bytes())
    data[64_000] ^= 1
    (folder / "deep/a.bin").write_bytes(data)
    assert [damage.file for damage in check_manifest(folder)] == ["deep/a.bin"]


def test_folder_instead_of_a_file_is_damage(folder: Path) -> None:
    (folder / "empty.txt").unlink()
    (folder / "empty.txt").mkdir()
    assert [damage.file for damage in check_manifest(folder)] == ["empty.txt"]


def test_name_that_no_file_can_have_is_missing(tmp_path: Path) -> None:
    save_json(tmp_path / NAME, {"format": FORMAT, "files": {"k" * 5000: EMPTY}})
    assert [damage.text for damage in check_manifest(tmp_path)] == ["listed in manifest.json, but missing"]


def test_new_files_are_ignored(folder: Path) -> None:
    (folder / "notes.txt").write_text("new")
    assert list(check_manifest(folder)) == []


def test_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="manifest.json: no such file"):
        list(check_manifest(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{", "not valid json"),
        ("[]", "expected object"),
        ('{"files": {}}', "format"),
        ('{"format": "esceme-manifest-1"}', "files"),
        ('{"format": "esceme-manifest-1", "files": {"a": 3}}', "expected str"),
        (
            '{"format": "esceme-manifest-1", "files": {"a\\r": "3"}}',
            "'files': a key: expected text",
        ),
        ('{"format": "esceme-manifest-9", "files": {}}', "format 'esceme-manifest-9', expected"),
    ],
)
def test_malformed_manifest_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        list(check_manifest(tmp_path))
    assert str(tmp_path / NAME) in str(caught.value)
