"""`esceme features pack`: written files, output, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from esceme.cli import main
from esceme.world import open_features


@pytest.fixture
def source(toy_root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(toy_root / "features" / "toy.hdf5", tmp_path / "toy.hdf5"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_packed_file_is_beside_its_source_with_the_same_features(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["features", "pack", str(source)]) == 0
    assert names(source.parent) == {"toy.hdf5", "toy.npy", "toy.json"}
    printed = capsys.readouterr()
    assert printed.out == f"{source.with_suffix('.npy')}: 66 viewpoints, 36 numbers a view, 0.2 MB\n"
    assert "packing" in printed.err
    before, after = open_features(source), open_features(source.with_suffix(".npy"))
    assert after.keys == before.keys
    for key in before.keys[:5]:
        assert np.array_equal(after.panorama(key), before.panorama(key).astype(np.float16))


def test_width_drops_the_numbers_after_the_features(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.parent / "new" / "fast.npy"
    assert main(["features", "pack", str(source), "--width", "32", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    size = out.stat().st_size
    assert printed == {"out": str(out), "viewpoints": 66, "width": 32, "bytes": size}
    assert size - 66 * 36 * 32 * 2 in range(64, 257)  # and the header of an .npy file
    assert open_features(out).width == 32
    assert names(source.parent) == {"toy.hdf5", "new"} and names(out.parent) == {"fast.npy", "fast.json"}


def test_packing_again_replaces_the_file(source: Path) -> None:
    for width in ("32", "8"):
        assert main(["features", "pack", str(source), "--width", width]) == 0
        assert open_features(source.with_suffix(".npy")).width == int(width)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["nowhere.hdf5"], "nowhere.hdf5: no such file"),
        (["."], "expected a feature file ending"),
        (["toy.hdf5", "--width", "37"], "has shape (36, 36), expected (36, at least 37)"),
        (["toy.hdf5", "--width", "0"], "features of width 0; expected 1 to 65536"),
        (["toy.hdf5", "--out", "notes.txt/inside.npy"], "cannot be written"),
        (["toy.hdf5", "--out", "folder.npy"], "there is a folder of that name"),
    ],
)
def test_refusal_is_one_message_and_leaves_nothing(
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(source.parent)
    Path("notes.txt").write_text("not features")
    Path("folder.npy").mkdir()
    before = names(source.parent)
    assert main(["features", "pack", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err
    assert printed.err.splitlines()[-1].startswith("error: ") and message in printed.err
    assert names(source.parent) == before and names(source.parent / "folder.npy") == set()


@pytest.mark.parametrize(
    ("value", "message"), [(np.nan, "holds NaN or infinity"), (1e6, "half precision cannot")]
)
def test_values_out_of_half_precision_keep_the_old_file(
    source: Path, capsys: pytest.CaptureFixture[str], value: float, message: str
) -> None:
    assert main(["features", "pack", str(source)]) == 0
    old = {path: path.read_bytes() for path in (source.with_suffix(".npy"), source.with_suffix(".json"))}
    with h5py.File(source, "r+") as file:
        file[sorted(file)[-1]][3, 4] = value
    assert main(["features", "pack", str(source)]) == 2
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in old} == old
    assert names(source.parent) == {"toy.hdf5", "toy.npy", "toy.json"}
