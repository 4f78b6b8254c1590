"""`esceme features extract` and `esceme features semantic`: written files, output, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from esceme.cli.features_command import extract, semantic
from esceme.errors import ConfigError, DataError
from esceme.perception.encoders import encode_panorama, make_encoder
from esceme.perception.views import ViewGrid, read_panorama
from esceme.world import open_features
from esceme.world.camera import Camera


@pytest.fixture
def panoramas(tmp_path: Path) -> Path:
    """Three small noise images: two in a scene's folder and one beside it."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "panoramas"
    (folder / "house").mkdir(parents=True)
    for name in ("house/00bb.jpg", "house/00aa.jpg", "cabin_00aa.jpg"):
        Image.fromarray(rng.integers(0, 256, (64, 128, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_extracted_file_has_the_published_format_and_the_encoders_features(
    panoramas: Path, tmp_path: Path
) -> None:
    files = [tmp_path / "new" / "f.hdf5", tmp_path / "f.h5"]
    for file in files:
        assert extract(panoramas, out=file) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    with h5py.File(files[0]) as file:
        attributes = dict(file["house_00bb"].attrs)
    assert attributes == {
        "scanId": "house",
        "viewpointId": "00bb",
        "image_w": 640,
        "image_h": 480,
        "vfov": 60,
    }
    store = open_features(files[0])
    assert store.keys == ("cabin_00aa", "house_00aa", "house_00bb")
    expected = encode_panorama(make_encoder("small"), read_panorama(panoramas / "house/00bb.jpg"))
    assert (store.panorama("house_00bb") == expected).all()


def test_other_cameras_and_grids(panoramas: Path, tmp_path: Path) -> None:
    out = tmp_path / "wide.hdf5"
    camera = {"width": 64, "height": 40, "vfov": 75.5}
    assert extract(panoramas, out=out, **camera, headings=5, elevations=(-20.0, 10.0)) == 0
    panorama = read_panorama(panoramas / "house/00bb.jpg")
    views = [
        (2 * np.pi / 5 * number, np.radians(elevation)) for elevation in (-20, 10) for number in range(5)
    ]
    images = ViewGrid(Camera(64, 40, np.radians(75.5)), tuple(views)).cut(panorama)
    assert images.shape == (10, 40, 64, 3)
    with h5py.File(out) as file:
        attributes = file["house_00bb"].attrs
        assert [attributes[key] for key in ("image_w", "image_h", "vfov")] == [64, 40, 75.5]
        assert (file["house_00bb"][:] == make_encoder("small").encode(images)).all()
    with pytest.raises(DataError, match=r"shape \(10, 498\), expected \(36"):
        open_features(out).panorama("house_00bb")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 4}, "width: expected 8 to 8192, found 4"),
        ({"width": 0}, "width: expected 8 to 8192, found 0"),
        ({"height": 10**6}, "height: expected 8"),
        ({"vfov": 180.0}, "vfov: expected 1 to 170, found 180"),
        ({"vfov": float("nan")}, "vfov: expected"),
        ({"headings": 0}, "headings: expected 1"),
        ({"elevations": ()}, "elevations: expected 1"),
        ({"elevations": (0.0, 91.0)}, "elevations: expected -90 to 90, found 91"),
    ],
)
def test_impossible_cameras_are_refused(
    options: dict[str, float], message: str, panoramas: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        extract(panoramas, out=tmp_path / "f.hdf5", **options)
    assert not (tmp_path / "f.hdf5").exists()


def test_extract_prints_one_json_object(
    panoramas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "f.hdf5"
    assert extract(panoramas, out=out, json=True) == 0
    size = out.stat().st_size
    expected = {"out": str(out), "encoder": "small", "viewpoints": 3, "width": 498, "bytes": size}
    assert json.loads(capsys.readouterr().out) == expected


def test_damaged_image_keeps_the_old_file(panoramas: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.hdf5"
    out.write_text("the old file")
    (panoramas / "house/00bb.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"00bb\.jpg: not a whole picture"):
        extract(panoramas, out=out)
    assert out.read_text() == "the old file"
    assert {path.name for path in tmp_path.iterdir()} == {"panoramas", "f.hdf5"}


def test_interruption_leaves_no_file(
    panoramas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> np.ndarray:
        if path.stem == "00bb":
            raise KeyboardInterrupt
        return read_panorama(path)

    monkeypatch.setattr("esceme.cli.features_command.read_panorama", interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract(panoramas, out=tmp_path / "f.hdf5")
    assert {path.name for path in tmp_path.iterdir()} == {"panoramas"}


def test_invalid_options_are_refused_before_any_work(panoramas: Path, toy_root: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.hdf5"
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"ends in \.hdf5 or \.h5"):
        extract(panoramas, out=tmp_path / "f.npy")
    with pytest.raises(ConfigError, match="small has no weights"):
        extract(panoramas, out=out, weights=tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="vit-b-16 needs"):
        extract(panoramas, out=out, encoder="vit-b-16")
    with pytest.raises(DataError, match="no pictures"):
        extract(tmp_path / "empty", out=out)
    with pytest.raises(DataError, match="cannot be written"):
        extract(panoramas, out=tmp_path / "file" / "f.hdf5")
    with pytest.raises(ConfigError, match=r"\.hdf5"):
        semantic(data=str(toy_root), out=tmp_path / "semantic.txt")
    with pytest.raises(DataError, match="nothing_vocab"):
        semantic(data=str(toy_root), out=out, glove=str(tmp_path / "nothing"))
    assert sorted(tmp_path.rglob("*")) == before


# -- semantic --------------------------------------------------------------------------------------------


def test_semantic_prints_one_json_object(
    toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "semantic.hdf5"
    assert semantic(data=str(toy_root), out=out, glove="none", json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bytes"] == out.stat().st_size
    assert report["reprojected"]["empty_views"] < report["near"]["empty_views"]
    assert report["next_hop_auc"]["split"] == "val_unseen"
    assert report["unknown_words"] == {}


@pytest.mark.parametrize("split", ["val_unseen", "test"])
def test_semantic_matches_only_splits_with_paths(
    split: str, toy_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert semantic(data=str(toy_root), out=tmp_path / "semantic.hdf5", split=split) == 0
    printed = capsys.readouterr()
    assert "names per viewpoint" in printed.out
    assert ("AUC" in printed.out) == (split != "test") == ("not matched" not in printed.err)
