"""`esceme features extract`: the file it writes, what it prints, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import h5py
import msgspec
import numpy as np
import pytest
from PIL import Image

from esceme.cli.features_command import extract
from esceme.errors import ConfigError, DataError
from esceme.perception.encoders import encode_panorama, make_encoder
from esceme.perception.views import read_panorama
from esceme.world import open_features

KEYS = ("cabin_00aa", "house_00aa", "house_00bb")


@pytest.fixture
def panoramas(tmp_path: Path) -> Path:
    """Three small pictures of noise, two in a scene's folder and one beside it."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "panoramas"
    (folder / "house").mkdir(parents=True)
    for name in ("house/00bb.jpg", "house/00aa.jpg", "cabin_00aa.jpg"):
        Image.fromarray(rng.integers(0, 256, (64, 128, 3), dtype=np.uint8)).save(folder / name)
    return folder


def test_the_file_has_the_published_form(panoramas: Path, tmp_path: Path) -> None:
    assert extract(panoramas, out=tmp_path / "new" / "f.hdf5") == 0
    with h5py.File(tmp_path / "new" / "f.hdf5") as file:
        assert set(file) == set(KEYS)
        stored = file["house_00bb"]
        assert stored.shape == (36, make_encoder("small").width)
        assert dict(stored.attrs) == {
            "scanId": "house",
            "viewpointId": "00bb",
            "image_w": 640,
            "image_h": 480,
            "vfov": 60,
        }


def test_the_usual_reader_gives_what_the_encoder_saw(panoramas: Path, tmp_path: Path) -> None:
    extract(panoramas, out=tmp_path / "f.h5")
    store = open_features(tmp_path / "f.h5")
    expected = encode_panorama(make_encoder("small"), read_panorama(panoramas / "house/00bb.jpg"))
    assert store.keys == KEYS
    assert (store.panorama("house_00bb") == expected).all()


def test_the_same_pictures_give_the_same_bytes(panoramas: Path, tmp_path: Path) -> None:
    for name in ("a.hdf5", "b.hdf5"):
        extract(panoramas, out=tmp_path / name)
    assert (tmp_path / "a.hdf5").read_bytes() == (tmp_path / "b.hdf5").read_bytes()


def test_json_stands_alone_on_standard_output(
    panoramas: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "f.hdf5"
    assert extract(panoramas, out=out, json=True) == 0
    said = msgspec.json.decode(capsys.readouterr().out)
    assert said == {
        "out": str(out),
        "encoder": "small",
        "viewpoints": 3,
        "width": 498,
        "bytes": out.stat().st_size,
    }


def test_a_damaged_picture_leaves_what_was_there(panoramas: Path, tmp_path: Path) -> None:
    out = tmp_path / "f.hdf5"
    out.write_text("the old file")
    (panoramas / "house/00bb.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"00bb\.jpg: not a whole picture"):
        extract(panoramas, out=out)
    assert out.read_text() == "the old file"
    assert {path.name for path in tmp_path.iterdir()} == {"panoramas", "f.hdf5"}


def test_an_interruption_leaves_nothing(
    panoramas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def read_until_stopped(path: Path) -> np.ndarray:
        seen.append(path)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return read_panorama(path)

    monkeypatch.setattr("esceme.cli.features_command.read_panorama", read_until_stopped)
    with pytest.raises(KeyboardInterrupt):
        extract(panoramas, out=tmp_path / "f.hdf5")
    assert {path.name for path in tmp_path.iterdir()} == {"panoramas"}


def test_requests_that_cannot_be_met_are_refused_before_any_work(panoramas: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.hdf5 or \.h5"):
        extract(panoramas, out=tmp_path / "f.npy")
    with pytest.raises(ConfigError, match="small has no weights"):
        extract(panoramas, out=tmp_path / "f.hdf5", weights=tmp_path / "w.pth")
    with pytest.raises(ConfigError, match="vit-b-16 needs"):
        extract(panoramas, out=tmp_path / "f.hdf5", encoder="vit-b-16")
    with pytest.raises(DataError, match="no pictures"):
        (tmp_path / "empty").mkdir()
        extract(tmp_path / "empty", out=tmp_path / "f.hdf5")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot be written"):
        extract(panoramas, out=tmp_path / "file" / "f.hdf5")
    assert not list(tmp_path.glob("*.hdf5"))
