"""Feature stores: exact conversion, packing, damaged files."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from esceme.errors import DataError
from esceme.world import ArrayFeatures, Atlas, SceneGraph, open_features, pack
from esceme.world.features import FeatureStore, write_features
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


def test_rows_of_a_batch_are_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parts = pack(store_of(panoramas(width=100)), tmp_path / "packed.npy"), list[bytes]()

    def record(descriptor: int, offset: int, length: int, advice: int) -> None:
        assert advice == os.POSIX_FADV_WILLNEED
        parts.append(os.pread(descriptor, length, offset))

    monkeypatch.setattr(os, "posix_fadvise", record)
    open_features(path).gather(np.array([2, 0]), np.arange(36)[None].repeat(2, 0))
    stored = np.load(path)
    assert parts == [stored[2].tobytes(), stored[0].tobytes()]


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


def virtual_layout() -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((36, 6), "f4")
    layout[:] = h5py.VirtualSource("other.hdf5", "house_v0", (36, 6))
    return layout


ENTRIES: dict[str, tuple[Callable[[h5py.File, str], object], str]] = {
    "external link": (
        lambda file, key: file.__setitem__(key, h5py.ExternalLink("other.hdf5", "/house_v0")),
        "is a link",
    ),
    "soft link": (lambda file, key: file.__setitem__(key, h5py.SoftLink("/house_v0")), "is a link"),
    "circular link": (lambda file, key: file.__setitem__(key, h5py.SoftLink(f"/{key}")), "is a link"),
    "external storage": (
        lambda file, key: file.create_dataset(key, (36, 6), "f4", external=[("other", 0, 36 * 24)]),
        "is stored in another file",
    ),
    "virtual": (
        lambda file, key: file.create_virtual_dataset(key, virtual_layout()),
        "is stored in another file",
    ),
    "huge width": (
        lambda file, key: file.create_dataset(key, (36, 2**40), "f4", chunks=(36, 9)),
        "has shape",
    ),
    "huge height": (lambda file, key: file.create_dataset(key, (2**40, 6), "f4", chunks=(9, 6)), "has shape"),
    "empty": (lambda file, key: file.create_dataset(key, data=h5py.Empty("f4")), "has shape None"),
    "type": (lambda file, key: file.__setitem__(key, np.dtype("f4")), "is a datatype"),
}


@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("entry", ENTRIES)
def test_hdf5_entry_that_is_no_array_of_the_file_is_refused(
    tmp_path: Path, entry: str, position: int
) -> None:
    write_hdf5(tmp_path / "other.hdf5", panoramas())
    (tmp_path / "other").write_bytes(np.ones(36 * 6, "<f4").tobytes())
    path, key = write_hdf5(tmp_path / "f.hdf5", panoramas()), f"house_v{position}"
    add, message = ENTRIES[entry]
    with h5py.File(path, "r+") as file:
        del file[key]
        add(file, key)
    with pytest.raises(DataError, match=r"^[^\n]*f\.hdf5: [^\n]*$") as raised:
        use_all(open_features(path), "panorama")
    if position:
        assert re.search(f"'{key}' {message}", str(raised.value))


def test_compressed_features_beyond_the_size_of_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.hdf5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file.create_dataset(f"house_v{number}", (36, 8192), "f4", compression="gzip", fillvalue=0)
    with pytest.raises(DataError, match=r"f\.hdf5: declares 23592960 bytes of features, more than 64 times"):
        open_features(path)


def test_damaged_table_of_entries_is_named(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.hdf5", panoramas())
    data = path.read_bytes()
    path.write_bytes(data.replace(b"SNOD", b"SNOW"))
    with pytest.raises(DataError, match=r"f\.hdf5: not a complete HDF5 file \([^\n]*\); fetch"):
        open_features(path)


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
        (lambda path: path.mkdir(), r"not a complete HDF5 file \([^\n]*\); fetch it again$"),
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


def test_advice_of_numpy_to_run_code_is_not_repeated(packed: Path) -> None:
    header = b"{" + b"[" * 12_000
    packed.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(DataError, match="Header info length") as refused:
        open_features(packed)
    assert "pickle" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other-1"}, "format 'other-1', expected 'esceme-features-2'; pack it again"),
        ({"format": "esceme-features-1"}, "format 'esceme-features-1', expected .*; pack it again"),
        ({"keys": ["house_v0", "house_v1", "house_\x1b[2J"]}, r"'keys\[2\]': expected text without control"),
        ({"crc32": [0, 0]}, r"f\.json: 2 checksums for 3 keys; pack it again"),
        ({"keys": "all"}, "field 'keys'"),
        (
            {"keys": ["house_v0", "house_v1"], "crc32": [0, 0]},
            r"f\.npy: shape \(3, 36, 6\) of float16 does not fit",
        ),
        ({"keys": ["house_v0", "house_v1", "house_v0"]}, "key 'house_v0' occurs twice"),
    ],
)
def test_wrong_index_is_named(packed: Path, change: dict[str, object], message: str) -> None:
    index = packed.with_suffix(".json")
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    with pytest.raises(DataError, match=message):
        open_features(packed)


def use_all(store: FeatureStore, use: str) -> None:
    for row, key in enumerate(store.keys):
        if use == "gather":
            store.gather(np.array([0, row]), np.zeros((2, 1), dtype=np.int64))
        else:
            store.panorama(key)


USES = pytest.mark.parametrize("use", ["gather", "panorama"])


@USES
def test_every_changed_byte_of_a_packed_file_is_noticed(packed: Path, use: str) -> None:
    data = packed.read_bytes()
    for position in [*range(128), *range(128, len(data), 37), len(data) - 1]:
        packed.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        if position < 128:  # the header: blanks are free to change
            with suppress(DataError):
                use_all(open_features(packed), use)
        else:
            viewpoint = (position - 128) // (36 * 6 * 2)
            message = (
                rf"f\.npy: 'house_v{viewpoint}' does not have the checksum in the index.*; pack it again"
            )
            with pytest.raises(DataError, match=message):
                use_all(open_features(packed), use)


def test_array_of_another_index_is_noticed(packed: Path, tmp_path: Path) -> None:
    other = pack(store_of(panoramas(seed=1)), tmp_path / "other")
    packed.write_bytes(other.read_bytes())  # a process may be killed between two files
    with pytest.raises(DataError, match=r"f\.npy: 'house_v0' does not have .*index of another file"):
        open_features(packed).panorama("house_v0")


@USES
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_array_is_named(use: str, dtype: type, value: float) -> None:
    values = np.zeros((3, 36, 4), dtype=dtype)
    values[2, 17, 3] = value
    store = ArrayFeatures(panoramas(), values, source="test")
    assert (store.panorama("house_v1") == 0).all()  # the others can still be read
    for _ in range(2):
        with pytest.raises(DataError, match="test: 'house_v2' holds NaN or infinity in view 17"):
            use_all(store, use)


@pytest.mark.parametrize(
    "shape",
    [(2**40, 36, 6), (3, 36, 2**40), (2**62, 2**62), (2**63, 36, 6), (-3, 36, 6), (-1, 4), (0, 36, 6)],
)
def test_declared_size_is_never_allocated(packed: Path, shape: tuple[int, ...]) -> None:
    data = packed.read_bytes()
    with packed.open("wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(data[128:])
    with pytest.raises(DataError, match=r"^[^\n]*f\.npy: [^\n]*pack it again$"):
        open_features(packed)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (np.asfortranarray, "columns of float16"),
        (lambda values: values.astype(np.int64), "rows of int64"),
        (lambda values: values.astype("S3"), r"rows of \|S3"),
        (lambda values: values.astype(np.complex64), "rows of complex64"),
    ],
)
def test_array_of_another_kind_is_refused(packed: Path, change: Callable[..., Any], found: str) -> None:
    np.save(packed, change(np.load(packed)))
    with pytest.raises(DataError, match=rf"f\.npy: expected rows of floats, found {found}; pack it again"):
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


def test_written_features_have_checksums(tmp_path: Path) -> None:
    path = write_features(tmp_path / "f.hdf5", panoramas(1, 64).items())
    with h5py.File(path) as file:
        assert file["house_v0"].fletcher32
        chunk = file["house_v0"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + chunk.size - 1] ^= 1  # the checksum itself
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"f\.hdf5: 'house_v0' cannot be read .*(filter|checksum)"):
        open_features(path).panorama("house_v0")


FULL_DISK = """
import resource, sys
import numpy as np
from esceme.errors import DataError
from esceme.world.features import FeatureStore, write_features
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
values = np.random.default_rng(0).normal(size=(36, 1024))
try:
    write_features(sys.argv[1], ((f"house_v{number}", values) for number in range(40)))
except DataError as error:
    sys.exit(str(error))
"""
"""Writes 6 MB; a child process, because HDF5 crashes when a write fails."""


@pytest.mark.parametrize("limit", [20_000, 1_500_000, 3_000_000, 5_000_000])
def test_features_on_a_full_disk_are_an_error(tmp_path: Path, limit: int) -> None:
    out = tmp_path / "f.hdf5"
    out.write_text("earlier")
    command = [sys.executable, "-c", FULL_DISK, str(out), str(limit)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, f"{out}: cannot be written (File too large)\n")
    assert file_contents(tmp_path) == {"f.hdf5": b"earlier"}


def test_space_on_the_disk_is_checked_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    with pytest.raises(DataError, match=r"f\.hdf5: cannot be written \(No space left on device\)"):
        write_features(tmp_path / "f.hdf5", panoramas().items())
    assert list(tmp_path.iterdir()) == []
