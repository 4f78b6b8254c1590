"""Feature stores: exact conversion, packing, damaged files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from esceme.errors import DataError
from esceme.world import ArrayFeatures, Atlas, SceneGraph, open_features, pack
from esceme.world.features import write_features
from esceme.world.geometry import nearest_view
from fixtures.files import file_contents, unprivileged

Panoramas = dict[str, NDArray[np.float64]]


def panoramas(count: int = 3, width: int = 6, *, seed: int = 0) -> Panoramas:
    values = np.random.default_rng(seed).normal(size=(count, 36, width))
    return {f"house_v{index}": panorama for index, panorama in enumerate(values)}


def write_hdf5(path: Path, stored: Panoramas) -> Path:
    with h5py.File(path, "w") as file:
        for key, values in stored.items():
            file.create_dataset(key, data=values, compression="gzip" if np.ndim(values) else None)
    return path


def store_of(stored: Panoramas) -> ArrayFeatures:
    return ArrayFeatures.from_mapping(stored, source="test")


# -- half to single precision ----------------------------------------------------------------------------


def test_every_finite_half_is_converted_exactly() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = halves[np.isfinite(halves)]
    assert len(finite) == 63_488
    values = np.zeros((28, 36, 64), dtype=np.float16)  # the smallest whole number of panoramas
    values.ravel()[: len(finite)] = finite
    store = ArrayFeatures([f"v{row}" for row in range(28)], values, source="every half")
    ours = store.gather(np.arange(28), np.tile(np.arange(36), (28, 1))).ravel()[: len(finite)]
    theirs = finite.astype(np.float32)
    assert (ours.view(np.uint32) == theirs.view(np.uint32)).all()  # bit for bit, so -0.0 too


# -- gathering -------------------------------------------------------------------------------------------


@given(st.data())
def test_gather_equals_indexing(data: st.DataObject) -> None:
    stored = panoramas(4, 5)
    half = data.draw(st.booleans())
    values = np.stack(list(stored.values())).astype(np.float16 if half else np.float32)
    store = ArrayFeatures(stored, values, source="test")
    batch = data.draw(st.integers(1, 5))
    rows = np.array(data.draw(st.lists(st.integers(0, 3), min_size=batch, max_size=batch)))
    views = np.array(
        data.draw(st.lists(st.tuples(*[st.integers(0, 35)] * 3), min_size=batch, max_size=batch))
    )
    gathered = store.gather(rows, views)
    assert gathered.dtype == np.float32
    for item in range(batch):
        assert (gathered[item] == values[rows[item], views[item]].astype(np.float32)).all()


def test_gathered_features_are_copies() -> None:
    store = store_of(panoramas())
    rows, views = np.array([0]), np.array([[0, 1]])
    before = store.gather(rows, views).copy()
    store.gather(rows, views)[:] = 7.0
    assert (store.gather(rows, views) == before).all()


@pytest.mark.parametrize("width", [None, 4])
def test_hdf5_features_are_read_in_single_precision(tmp_path: Path, width: int | None) -> None:
    stored = panoramas()
    store = open_features(write_hdf5(tmp_path / "f.hdf5", stored), width=width)
    assert (store.width, len(store), store.keys) == (width or 6, 3, tuple(sorted(stored)))
    for key, values in stored.items():
        assert key in store
        assert (store.panorama(key) == values[:, :width].astype(np.float32)).all()


# -- packing ---------------------------------------------------------------------------------------------


def test_packed_features_are_equal_within_half_precision(tmp_path: Path) -> None:
    source = open_features(write_hdf5(tmp_path / "f.hdf5", panoramas(5, 7)))
    packed = open_features(pack(source, tmp_path / "packed.npy"))
    assert (packed.keys, packed.width, packed.source) == (source.keys, source.width, "f.hdf5")
    for key in source.keys:
        half = source.panorama(key).astype(np.float16)
        assert (packed.panorama(key) == half.astype(np.float32)).all()
        np.testing.assert_allclose(packed.panorama(key), source.panorama(key), rtol=2.0**-11, atol=2.0**-25)


def test_packing_a_packed_file_gives_the_same_bytes(tmp_path: Path) -> None:
    once = pack(store_of(panoramas()), tmp_path / "once")
    twice = pack(open_features(once), tmp_path / "twice")
    assert once.read_bytes() == twice.read_bytes()
    assert once.name == "once.npy"


def test_packed_and_hdf5_features_give_equal_observations(toy_root: Path, tmp_path: Path) -> None:
    published = toy_root / "features" / "toy.hdf5"
    packed = pack(open_features(published, width=32), tmp_path / "toy")
    whole = Atlas.read(toy_root / "connectivity", features=published, width=32)
    half = Atlas.read(toy_root / "connectivity", features=packed, width=32)
    everywhere = whole.begin(np.arange(len(whole)), 1.0)
    np.testing.assert_allclose(
        half.observe(everywhere).features, whole.observe(everywhere).features, rtol=2.0**-11, atol=2.0**-25
    )


def test_packing_reports_its_progress(tmp_path: Path) -> None:
    seen: list[str] = []

    def progress(keys: Iterable[str]) -> Iterable[str]:
        for key in keys:
            seen.append(key)
            yield key

    pack(store_of(panoramas()), tmp_path / "f", progress=progress)
    assert seen == ["house_v0", "house_v1", "house_v2"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "'house_v2' holds NaN or infinity in view 17"),
        (1e5, "'house_v2' holds 100000, which half precision cannot"),
    ],
)
def test_failed_packing_changes_no_file(tmp_path: Path, value: float, message: str) -> None:
    stored = panoramas()
    stored["house_v2"][17, 3] = value
    source = open_features(write_hdf5(tmp_path / "f.hdf5", stored))
    out = tmp_path / "out"
    with pytest.raises(DataError, match=rf"f\.hdf5: {message}"):
        pack(source, out / "packed")
    assert list(out.iterdir()) == []
    pack(store_of(panoramas()), out / "packed")
    before = file_contents(out)
    with pytest.raises(DataError, match=message):
        pack(source, out / "packed")
    assert file_contents(out) == before


def test_array_is_not_written_without_its_index(tmp_path: Path) -> None:
    (tmp_path / "packed.json").mkdir()
    with pytest.raises((DataError, OSError)):
        pack(store_of(panoramas()), tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["packed.json"]


# -- damaged files -------------------------------------------------------------------------------------


def test_viewpoint_without_features_is_named(tmp_path: Path) -> None:
    positions = {f"v{index}": (0.0, float(index), 0.0) for index in range(4)}
    graph = SceneGraph.build("house", positions, [("v0", "v1"), ("v1", "v2"), ("v2", "v3")])
    path = write_hdf5(tmp_path / "f.hdf5", panoramas(2))
    with pytest.raises(DataError, match=r"f\.hdf5: no features for 'house_v2' and 1 more viewpoints"):
        Atlas([graph], open_features(path))


def reshape(values: NDArray[np.float64]) -> Panoramas:
    return panoramas() | {"house_v1": values}


WRONG: dict[str, tuple[Callable[[], Panoramas], str]] = {
    "narrow": (lambda: reshape(np.zeros((36, 5))), r"has shape \(36, 5\), expected \(36, at least 6\)"),
    "35 views": (lambda: reshape(np.zeros((35, 6))), r"has shape \(35, 6\)"),
    "flat": (lambda: reshape(np.zeros(36 * 6)), r"has shape \(216,\)"),
    "a scalar": (lambda: reshape(np.float64(3)), r"has shape \(\)"),  # type: ignore[arg-type]
    "infinite": (lambda: reshape(np.full((36, 6), np.inf)), "holds NaN or infinity in view 0"),
    "overflowing": (lambda: reshape(np.full((36, 6), 1e300)), "holds NaN or infinity in view 0"),
    "words": (lambda: reshape(np.full((36, 6), b"x")), "holds .*S1, expected numbers"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_panorama_is_named_with_its_file(tmp_path: Path, fault: str) -> None:
    stored, message = WRONG[fault]
    store = open_features(write_hdf5(tmp_path / "f.hdf5", stored()))
    assert store.panorama("house_v0").shape == (36, 6)  # the others can still be read
    with pytest.raises(DataError, match=rf"f\.hdf5: 'house_v1' {message}"):
        store.panorama("house_v1")


def test_hdf5_file_grouped_by_scene_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.hdf5", "w") as file:
        file.create_dataset("house/v0", data=np.zeros((36, 6)))
    with pytest.raises(DataError, match=r"f\.hdf5: 'house' is a group"):
        open_features(tmp_path / "f.hdf5")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: write_hdf5(path, {}), "holds no features"),
        (lambda path: path.write_text("<html>404</html>"), "not a complete HDF5 file"),
        (lambda path: os.truncate(write_hdf5(path, panoramas()), 2000), "not a complete HDF5 file"),
        (lambda path: path.mkdir(), ""),
        (lambda path: None, "no such file"),
    ],
)
def test_damaged_hdf5_file_is_named(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(tmp_path / "f.hdf5")
    with pytest.raises(DataError, match=rf"f\.hdf5: {message}"):
        open_features(tmp_path / "f.hdf5")


def test_damaged_dataset_is_named(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.hdf5", panoramas(1, 64))
    data = bytearray(path.read_bytes())
    data[-3000:-1000] = bytes(2000)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"f\.hdf5: 'house_v0' cannot be read"):
        open_features(path).panorama("house_v0")


@pytest.mark.parametrize(
    ("name", "message"),
    [("f.npy", r"f\.json: no such file"), ("f.zip", r"f\.zip: expected a feature file ending in")],
)
def test_missing_or_unknown_file_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_features(tmp_path / name)


def test_file_in_an_unreadable_folder_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    write_hdf5(folder / "f.hdf5", panoramas())
    pack(store_of(panoramas()), folder / "f.npy")
    folder.chmod(0o000)
    try:
        for name in ("f.hdf5", "f.npy"):
            with unprivileged(), pytest.raises(DataError, match="locked/f.*[Pp]ermission denied"):
                open_features(folder / name)
    finally:
        folder.chmod(0o700)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return pack(store_of(panoramas()), tmp_path / "f")


@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY\x01\x00", b"PK\x03\x04", b"not an array at all"])
def test_damaged_array_is_an_error(packed: Path, content: bytes | None) -> None:
    packed.write_bytes(packed.read_bytes()[:-100] if content is None else content)
    with pytest.raises(DataError, match=r"f\.npy: not a complete \.npy file"):
        open_features(packed)


def test_pickled_objects_are_never_loaded(packed: Path) -> None:
    np.save(packed, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"f\.npy"):
        open_features(packed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other-1"}, "format 'other-1', expected 'esceme-features-1'"),
        ({"keys": "all"}, "field 'keys'"),
        ({"keys": ["house_v0", "house_v1"]}, r"f\.npy: shape \(3, 36, 6\) does not fit its index"),
        ({"keys": ["house_v0", "house_v1", "house_v0"]}, "key 'house_v0' occurs twice"),
    ],
)
def test_wrong_index_is_named(packed: Path, change: dict[str, object], message: str) -> None:
    index = packed.with_suffix(".json")
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    with pytest.raises(DataError, match=message):
        open_features(packed)


def test_packed_file_of_another_width_is_refused(packed: Path) -> None:
    assert open_features(packed, width=6).width == 6
    with pytest.raises(DataError, match=r"f\.npy: holds features of width 6, not 4"):
        open_features(packed, width=4)


def test_arrays_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(DataError, match=r"test: expected features of shape \(1, 36, D\), found \(1, 35, 4\)"):
        ArrayFeatures(["a"], np.zeros((1, 35, 4), dtype=np.float32), source="test")
    with pytest.raises(DataError, match="test: expected float16 or float32 features, found float64"):
        ArrayFeatures(["a"], np.zeros((1, 36, 4)), source="test")
    with pytest.raises(DataError, match="test: key 'a' occurs twice"):
        ArrayFeatures(["a", "a"], np.zeros((2, 36, 4), dtype=np.float32), source="test")
    with pytest.raises(DataError, match="test: no features given"):
        ArrayFeatures.from_mapping({}, source="test")


@pytest.mark.parametrize("width", [0, -1])
def test_width_below_one_is_refused(tmp_path: Path, width: int) -> None:
    with pytest.raises(DataError, match=rf"f\.hdf5: .*width.*{width}"):
        open_features(write_hdf5(tmp_path / "f.hdf5", panoramas()), width=width)


# -- real features ---------------------------------------------------------------------------------------


@pytest.mark.real
def test_real_features_in_another_order_of_views_become_a_store(
    data_root: Path, real_graphs: dict[str, SceneGraph]
) -> None:
    with np.load(data_root / "features" / "valan_efficientnet_b4_3scans.npz", allow_pickle=False) as stored:
        names, values = stored["viewpoints"].tolist(), stored["features"]
        headings, elevations = stored["heading"], stored["elevation"]
    view_of = nearest_view(headings, elevations)  # the file stores elevations of one heading side by side
    assert sorted(view_of.tolist()) == list(range(36))
    assert view_of[:4].tolist() == [0, 12, 24, 1]
    ordered = np.empty_like(values)
    ordered[:, view_of] = values

    scene_of = {
        name: scene for scene, graph in real_graphs.items() for name in (*graph.viewpoints, *graph.left_out)
    }
    keys = [f"{scene_of[name]}_{name}" for name in names]
    store = ArrayFeatures(keys, ordered, source="valan_efficientnet_b4_3scans.npz")
    assert (len(store), store.width) == (31, 1792)

    scenes = {scene_of[name] for name in names}
    atlas = Atlas([real_graphs[scene] for scene in sorted(scenes)], store)
    seen = atlas.observe(atlas.begin(np.arange(len(atlas)), 0.0))
    for row, (scene, name) in enumerate(atlas.names):
        theirs = values[names.index(name)].astype(np.float32)
        candidate = real_graphs[scene].candidates(name)[0]
        column, line = candidate.view % 12, candidate.view // 12
        assert (seen.features[row, 0] == theirs[3 * column + line]).all()


# -- writing HDF5 ----------------------------------------------------------------------------------------


def test_written_features_have_the_published_attributes(tmp_path: Path) -> None:
    stored = panoramas(3, 5)
    path = write_features(tmp_path / "f.hdf5", ((key, values) for key, values in stored.items()))
    store = open_features(path)
    for key, values in stored.items():
        assert (store.panorama(key) == values.astype(np.float32)).all()
    with h5py.File(path) as file:
        assert file["house_v1"].attrs["scanId"] == "house"
        assert file["house_v1"].attrs["viewpointId"] == "v1"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no features to write"),
        ([("house_a", np.zeros((36, 4))), ("house_a", np.zeros((36, 4)))], "key 'house_a' occurs twice"),
        ([("house", np.zeros((36, 4)))], "key 'house' is not '<scene>_<viewpoint>'"),
        ([("house_a", np.zeros((35, 4)))], "has shape"),
        ([("house_a", np.full((36, 4), np.nan))], "NaN or infinity"),
        ([("house_a", np.zeros((36, 4))), ("house_b", np.zeros((36, 3)))], "3 numbers a view, others 4"),
    ],
)
def test_features_that_cannot_be_written_leave_no_file(
    tmp_path: Path, items: list[tuple[str, NDArray[np.float64]]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        write_features(tmp_path / "f.hdf5", items)
    assert list(tmp_path.iterdir()) == []
