"""Semantic features: word vectors, view features, and the written files."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import numpy as np
import pytest

from esceme.errors import DataError
from esceme.files import write_text
from esceme.perception.semantic_features import (
    Annotation,
    WordTable,
    unknown_words,
    view_features,
    write_semantic_features,
)
from esceme.perception.visible_objects import DatasetAnnotations, VisibleObjects
from esceme.tasks.folder import DataFolder
from esceme.tasks.folder_check import check_folder
from esceme.world import Atlas, open_features


def npy_header(shape: tuple[int, ...], dtype: str = "<f4") -> bytes:
    """The first bytes of an array file that declares a shape and a type, and 16 bytes of numbers."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue() + bytes(16)


def npz(vectors: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, vectors)
    return file.getvalue()


def write_glove(folder: Path, words: list[str], vectors: np.ndarray) -> Path:
    write_text(folder / "small_vocab.txt", "\n".join(words) + "\n")
    np.save(folder / "small_glove.npy", vectors)
    return folder / "small"


def test_view_feature_is_the_weighted_mean_with_the_length_of_the_area() -> None:
    entries = [(0, 5, 0, 0.12), (0, 5, 1, 0.09), (0, 6, 2, 0.04), (0, 6, 2, 0.05), (1, 7, 1, 3.0)]
    viewpoint, view, name, coverage = (np.array(column) for column in zip(*entries, strict=True))
    objects = VisibleObjects(viewpoint, view, name, coverage.astype(np.float32), np.ones(5, dtype=bool))
    features = view_features(objects, np.eye(3, dtype=np.float32), np.array([1, -1]), num_labels=2)
    assert features.shape == (2, 36, 5)
    np.testing.assert_allclose(features[0, 5, :3], np.sqrt(0.21) * np.array([0.8, 0.6, 0]), rtol=1e-5)
    np.testing.assert_allclose(features[0, 6, :3], [0, 0, 0.3], rtol=1e-5)
    np.testing.assert_allclose(features[1, 7, :3], [0, 1, 0], rtol=1e-5)
    assert not features[0, 0, :3].any()
    assert (features[0, :, 3:] == [0, 1]).all()
    assert not features[1, :, 3:].any()


def test_name_is_embedded_by_its_known_words(tmp_path: Path) -> None:
    table = WordTable.read(write_glove(tmp_path, ["dining", "table"], np.array([[3.0, 0.0], [0.0, 0.5]])))
    vectors = table.embed(["dining#table", "table#lamp", "lamp"])
    np.testing.assert_allclose(vectors, [[0.5**0.5, 0.5**0.5], [0, 1], [0, 0]], rtol=1e-6)


def test_random_vectors_depend_only_on_the_word() -> None:
    one, other = WordTable.random().embed(["lamp", "sofa"]), WordTable.random().embed(["sofa"])
    np.testing.assert_array_equal(one[1], other[0])
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-5)
    assert abs(one[0] @ one[1]) < 0.4


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (np.ones((3, 2)), "2 words"),
        (np.ones(2), "shape"),
        (np.array([[1.0, 0.0], [0.0, 0.0]]), "'table'"),
        (b"nothing like it", "small_glove.npy: not a complete"),
        (npy_header((2**40, 2)), "small_glove.npy: not a complete"),
        (npy_header((2**62, 2**62)), "small_glove.npy: not a complete"),
        (npy_header((-1, 2)), "small_glove.npy: not a complete"),
        (npy_header((2, 2)).replace(b"(2, 2)", b"(2, 2,"), "small_glove.npy: not a complete"),
        (npy_header((2, 2), "|O"), "small_glove.npy: not a complete"),
        (npz(np.ones((2, 2))), "small_glove.npy: not a complete"),
        (np.ones((2, 2), np.int64), "expected rows of floats, found rows of int64"),
        (np.ones((2, 2), "S3"), "expected rows of floats, found rows of |S3"),
        (np.asfortranarray(np.arange(1.0, 5).reshape(2, 2)), "expected rows of floats, found columns"),
        (None, "small_glove.npy: no such file"),
    ],
)
def test_faulty_vectors_are_refused(tmp_path: Path, vectors: np.ndarray | bytes | None, message: str) -> None:
    is_array = isinstance(vectors, np.ndarray)
    prefix = write_glove(tmp_path, ["dining", "table"], vectors if is_array else np.ones((2, 2)))
    if isinstance(vectors, bytes):
        (tmp_path / "small_glove.npy").write_bytes(vectors)
    elif vectors is None:
        (tmp_path / "small_glove.npy").unlink()
    with pytest.raises(DataError) as raised:
        WordTable.read(prefix)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_unknown_words_are_counted(toy_root: Path, tmp_path: Path) -> None:
    annotations = DatasetAnnotations.read(DataFolder(toy_root))
    table = WordTable.read(write_glove(tmp_path, ["dining"], np.ones((1, 2))))
    unknown = unknown_words(annotations, table)
    names = [item.name for group in annotations.objects.values() for item in group]
    assert "dining" not in unknown and unknown["table"] == names.count("dining#table")


def test_toy_features_are_valid_and_observable(toy_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    shutil.copytree(toy_root, root, ignore=shutil.ignore_patterns("features"))
    summary = write_semantic_features(root, root / "features/semantic.hdf5", words=WordTable.random(16))
    assert summary.reprojected.names_per_viewpoint > 2 * summary.near.names_per_viewpoint
    assert summary.reprojected.empty_views < summary.near.empty_views
    assert [finding for finding in check_folder(root, deep=True) if finding.level == "fault"] == []

    atlas = Atlas.read(root / "connectivity", features=root / "features/semantic.hdf5")
    features = atlas.observe(atlas.begin(np.arange(4), heading=np.zeros(4))).features
    assert features.shape[-1] == summary.width == 16 + 11 and features[..., :16].any()


def test_files_are_deterministic(toy_root: Path, tmp_path: Path) -> None:
    files = [tmp_path / "one.hdf5", tmp_path / "two.hdf5"]
    for file in files:
        write_semantic_features(toy_root, file, words=WordTable.random(8))
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("without", ["objects", "rooms"])
def test_features_without_an_annotation_are_zero(toy_root: Path, tmp_path: Path, without: Annotation) -> None:
    width, arrays = 8, []
    for omitted in ((), (without,)):
        file = tmp_path / f"{len(omitted)}.hdf5"
        write_semantic_features(toy_root, file, words=WordTable.random(width), without=omitted)
        atlas = Atlas.read(toy_root / "connectivity", features=file)
        arrays.append(atlas.panorama_features(np.arange(len(atlas))))
    words, rooms = slice(width), slice(width, None)
    absent, present = (words, rooms) if without == "objects" else (rooms, words)
    assert arrays[0][..., absent].any() and not arrays[1][..., absent].any()
    assert np.array_equal(arrays[0][..., present], arrays[1][..., present])


@pytest.mark.real
def test_matterport_features_are_valid(data_root: Path, tmp_path: Path) -> None:
    scenes = ["17DRP5sb8fy", "8194nk5LbLH", "zsNo4HB9uLZ"]
    (tmp_path / "connectivity").mkdir()
    for name in ("objects", "rooms", *(f"connectivity/{scene}_connectivity.json" for scene in scenes)):
        (tmp_path / name).symlink_to(data_root / name)
    (tmp_path / "connectivity/scans.txt").write_text("\n".join(scenes) + "\n")
    out = tmp_path / "features/semantic.hdf5"
    words = WordTable.read(data_root / "glove/REVERIE_train")
    summary = write_semantic_features(tmp_path, out, words=words)
    assert summary.width == 300 + 31
    assert summary.near.empty_views > 0.6 > 0.5 > summary.reprojected.empty_views
    assert summary.reprojected.names_per_viewpoint > 3 * summary.near.names_per_viewpoint
    for name in ("objects", "rooms"):
        (tmp_path / name).unlink()  # they describe other scenes too
    assert [finding for finding in check_folder(tmp_path, deep=True) if finding.level == "fault"] == []
    assert len(open_features(out)) == summary.viewpoints
