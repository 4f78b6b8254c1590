"""Image features of views, read from published HDF5 files, memory-mapped half-precision files or arrays.

The key of a viewpoint is `<scene>_<viewpoint>`, as in the published files. A feature store has one row per
viewpoint; the row number is the index of the viewpoint in the store.
"""

from __future__ import annotations

import math
import os
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import h5py
import msgspec
import numpy as np
from numpy.typing import NDArray

from esceme.errors import DataError, WorldError
from esceme.files import (
    MAX_EXPANSION,
    PrintableText,
    atomic_open,
    atomic_path,
    expansion_limit,
    read_json,
    require_space,
    write_json,
)
from esceme.world.camera import Camera
from esceme.world.geometry import VIEWS

HDF5_SUFFIXES = (".hdf5", ".h5")
FORMAT = "esceme-features-2"
MAX_WIDTH = 65_536
"""Largest accepted number of features per view; published files have at most 3,048."""
ROWS_AT_ONCE = 640
"""Number of half-precision features that are converted at a time. They take about a megabyte."""
HDF5_STORAGE = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "fletcher32": True}
HDF5_STORAGE |= {"track_times": False}
"""HDF5 options of written files: compressed like the published files, with checksums, without time stamps."""
HDF5_MARGIN = 1 << 20
"""Bytes of free space that are left for the structures of an HDF5 file."""
HDF5_ERRORS = (OSError, KeyError, RuntimeError, TypeError, ValueError)
"""Exceptions of h5py for damaged files."""
NPY_ERRORS = (ArithmeticError, EOFError, OSError, SyntaxError, TokenError, TypeError, ValueError)
"""Exceptions of numpy for damaged `.npy` files."""
HALF_EXPONENT = 0x7C00
"""Exponent bits of a half-precision number; all of them are set in NaN and infinity."""
PACK_AGAIN = "pack it again"


class FeatureStore(ABC):
    """Features (R, 36, D) of the 36 views of R viewpoints. Subclasses may load features on demand."""

    def __init__(
        self, keys: Iterable[str], values: NDArray[Any], *, source: str, files: Sequence[Path] = ()
    ) -> None:
        """Store `values` (R, 36, D), one row per key. Error messages call the features `source`."""
        self.files = files
        """Files from which the features are read; none for features in memory."""
        self.keys = tuple(keys)
        self.source = source
        self._values = values
        self._is_ready = np.zeros(len(self.keys), dtype=bool)
        self._row_of = {key: row for row, key in enumerate(self.keys)}
        if len(self._row_of) < len(self.keys):
            repeated = next(key for row, key in enumerate(self.keys) if self._row_of[key] != row)
            raise DataError(f"{source}: key '{repeated}' occurs twice")

    @property
    def width(self) -> int:
        """Number of features per view."""
        return int(self._values.shape[-1])

    def __contains__(self, key: str) -> bool:
        return key in self._row_of

    def __len__(self) -> int:
        return len(self.keys)

    def locate(self, keys: Sequence[str]) -> NDArray[np.int64]:
        """Return the row numbers of `keys` in this store; raise `DataError` if a key is unknown."""
        missing = [key for key in keys if key not in self._row_of]
        if missing:
            raise DataError(
                f"{self.source}: no features for '{missing[0]}'"
                + (f" and {len(missing) - 1} more viewpoints" if len(missing) > 1 else "")
                + "; expected one entry per viewpoint under the key '<scene>_<viewpoint>'"
            )
        return np.array([self._row_of[key] for key in keys], dtype=np.int64)

    def gather(
        self,
        rows: NDArray[np.integer],
        view_indices: NDArray[np.integer],
        *,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Return features (B, N, D) of `view_indices` (B, N) of the viewpoints `rows` (B,), as float32.

        With `out`, features are written to the first elements of that array, and no new array is allocated.
        """
        self._prepare(rows)
        flat = self._values.reshape(-1, self.width)
        indices = rows[:, None] * VIEWS + view_indices
        shape = (*indices.shape, self.width)
        target = np.empty(shape, np.float32) if out is None else _view_front(out, shape)
        if flat.dtype == np.float32:
            return flat.take(indices, axis=0, out=target, mode="clip")
        _gather_half_precision(flat, indices.ravel(), target.reshape(-1, self.width))
        return target

    def panorama(self, key: str) -> NDArray[np.float32]:
        """Return the features (36, D) of all views of one viewpoint."""
        return self.gather(self.locate([key]), np.arange(VIEWS)[None])[0]

    def _prepare(self, rows: NDArray[np.integer]) -> None:
        """Prepare the rows that are used for the first time."""
        is_ready = self._is_ready[rows]
        if not is_ready.all():
            for row in np.unique(rows[~is_ready]):
                self._prepare_row(int(row))
                self._is_ready[row] = True

    @abstractmethod
    def _prepare_row(self, row: int) -> None:
        """Load or check the features of a row before their first use; raise `DataError` if they are wrong."""


class ArrayFeatures(FeatureStore):
    """Features in an array in memory, in half or single precision.

    >>> store = ArrayFeatures.from_mapping({"house_a": np.zeros((36, 8))}, source="zeros")
    >>> store.width, store.panorama("house_a").shape
    (8, (36, 8))
    """

    def __init__(self, keys: Iterable[str], values: NDArray[Any], *, source: str) -> None:
        """Store `values` (R, 36, D), float16 or float32, with one row per key.

        Values are checked at their first use; NaN and infinity raise `DataError` then.
        """
        super().__init__(keys, values, source=source)
        if values.ndim != 3 or values.shape[:2] != (len(self.keys), VIEWS):
            raise DataError(
                f"{source}: expected features of shape ({len(self.keys)}, {VIEWS}, D), found {values.shape}"
            )
        if values.dtype not in (np.float16, np.float32):
            raise DataError(f"{source}: expected float16 or float32 features, found {values.dtype}")

    @classmethod
    def from_mapping(cls, panoramas: Mapping[str, NDArray[Any]], *, source: str) -> ArrayFeatures:
        """Copy a dict from `<scene>_<viewpoint>` to features (36, D) into one single-precision array."""
        if not panoramas:
            raise DataError(f"{source}: no features given")
        width = np.shape(next(iter(panoramas.values())))[-1]
        checked = [check_panorama(value, key, source, width=width) for key, value in panoramas.items()]
        return cls(panoramas, np.stack(checked), source=source)

    def _prepare_row(self, row: int) -> None:
        _check_finite(self._values[row], self.keys[row], self.source)


class PackedFeatures(FeatureStore):
    """Features in a file `NAME.npy` from `pack`, with its index `NAME.json`, mapped into memory.

    The checksum of a viewpoint is verified at its first use. The file may be larger than RAM: data that
    is not in RAM is read when it is used, all viewpoints of a batch at once.
    """

    def __init__(self, path: str | Path) -> None:
        """Map the file `path` without reading it, and read its index."""
        self._path, index_path = Path(path), Path(path).with_suffix(".json")
        index = read_json(index_path, _PackedIndex)
        if index.format != FORMAT:
            raise DataError(f"{index_path}: format '{index.format}', expected '{FORMAT}'; {PACK_AGAIN}")
        if len(index.crc32) != len(index.keys):
            raise DataError(
                f"{index_path}: {len(index.crc32)} checksums for {len(index.keys)} keys; {PACK_AGAIN}"
            )
        values = map_array(self._path, advice=PACK_AGAIN)
        if values.shape != (len(index.keys), VIEWS, index.width) or values.dtype != np.float16:
            raise DataError(
                f"{path}: shape {values.shape} of {values.dtype} does not fit its index, which names "
                f"{len(index.keys)} viewpoints of width {index.width} in float16; {PACK_AGAIN}"
            )
        super().__init__(index.keys, values, source=index.source, files=[self._path, index_path])
        self._crc32, self._num_bytes = index.crc32, VIEWS * index.width * values.itemsize
        self._descriptor = os.open(self._path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._offset = os.fstat(self._descriptor).st_size - values.nbytes

    def _prepare(self, rows: NDArray[np.integer]) -> None:
        # Page faults would read one viewpoint after the other, each with megabytes of its neighbours.
        if hasattr(os, "posix_fadvise"):  # not on macOS
            for row in rows.tolist():
                start = self._offset + row * self._num_bytes
                os.posix_fadvise(self._descriptor, start, self._num_bytes, os.POSIX_FADV_WILLNEED)
        super()._prepare(rows)

    def _prepare_row(self, row: int) -> None:
        if zlib.crc32(self._values[row]) != self._crc32[row]:
            raise DataError(
                f"{self._path}: '{self.keys[row]}' does not have the checksum in the index; the file is "
                f"damaged or has the index of another file; {PACK_AGAIN}"
            )
        _check_finite(self._values[row], self.keys[row], str(self._path))


class Hdf5Features(FeatureStore):
    """Published HDF5 feature file. The features of a viewpoint are read at their first use and then cached.

    `width` is the number of features per view to read; by default all. Published files append 1000 classifier
    scores to the features; a smaller `width` leaves the scores out.
    """

    def __init__(self, path: str | Path, *, width: int | None = None) -> None:
        """Open the file `path` and read its keys."""
        path = Path(path)
        self._file = _open_hdf5(path)
        with _hdf5_errors(f"{path}: not a complete HDF5 file"):
            keys = sorted(self._file)
            if not keys:
                raise DataError(f"{path}: holds no features")
            if width is None:
                width = (get_dataset(self._file, keys[0], path).shape or (1,))[-1]
        if not 1 <= width <= MAX_WIDTH:
            raise DataError(f"{path}: features of width {width}; expected 1 to {MAX_WIDTH}")
        if (size := len(keys) * VIEWS * width * 4) > expansion_limit(path):
            raise DataError(
                f"{path}: declares {size} bytes of features, more than {MAX_EXPANSION} times its size; "
                "fetch it again"
            )
        # zeros() allocates lazily: unread viewpoints take no memory.
        values = np.zeros((len(keys), VIEWS, width), dtype=np.float32)
        super().__init__(keys, values, source=str(path), files=[path])

    def panorama(self, key: str) -> NDArray[np.float32]:
        """Return the features (36, D) of all views of one viewpoint, without caching them."""
        row = int(self.locate([key])[0])
        return self._values[row].copy() if self._is_ready[row] else self._read(row)

    def _prepare_row(self, row: int) -> None:
        self._values[row] = self._read(row)

    def _read(self, row: int) -> NDArray[np.float32]:
        key = self.keys[row]
        with _hdf5_errors(f"{self.source}: '{key}' cannot be read"):
            stored = get_dataset(self._file, key, self.source)
            _check_layout(stored.shape, stored.dtype, key, self.source, width=self.width)
            values = stored[:, : self.width]
        return check_panorama(values, key, self.source, width=self.width)


def open_features(path: str | Path, *, width: int | None = None) -> FeatureStore:
    """Open a feature file: `.hdf5` or `.h5` as published, `.npy` as written by `pack`.

    `width` is the number of features per view to read; by default all.
    """
    path = Path(path)
    if path.suffix == ".npy":
        store = PackedFeatures(path)
        if width not in (None, store.width):
            raise DataError(
                f"{path}: holds features of width {store.width}, not {width}; pack them again with that width"
            )
        return store
    if path.suffix in HDF5_SUFFIXES:
        return Hdf5Features(path, width=width)
    raise DataError(f"{path}: expected a feature file ending in .hdf5, .h5 or .npy")


def pack(
    source: FeatureStore,
    out: str | Path,
    *,
    progress: Callable[[Iterable[str]], Iterable[str]] = lambda keys: keys,
) -> Path:
    """Write features as a half-precision array `out` (.npy) and its index (.json), atomically.

    Several processes can map the file and share its memory. `DataError` is raised for non-finite values. The
    index holds a checksum per viewpoint, by which a damaged array, or an array that belongs to another index,
    is detected.
    """
    out, checksums = Path(out).with_suffix(".npy"), list[int]()
    with atomic_open(out) as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (len(source), VIEWS, source.width)}
        np.lib.format.write_array_header_1_0(file, header)
        for key in progress(source.keys):
            data = _to_half_precision(source.panorama(key), key, source.source).tobytes()
            checksums.append(zlib.crc32(data))
            file.write(data)
        name = Path(source.source).name
        index = _PackedIndex(FORMAT, source.width, name, list(source.keys), checksums)
        file.flush()
        os.fsync(file.fileno())  # then the index and the array are replaced in one go
        write_json(out.with_suffix(".json"), index)
    return out


def write_features(
    out: str | Path,
    panoramas: Iterable[tuple[str, NDArray[Any]]],
    *,
    camera: Camera | None = None,
    num_views: int = VIEWS,
) -> Path:
    """Write (`<scene>_<viewpoint>`, features (36, D)) pairs to an HDF5 file of the published format.

    The file appears only when it is complete. All panoramas must have the same width and finite values. Equal
    input gives equal bytes. The attributes of every panorama describe `camera`, by default the camera of the
    published files. Files with another number of views than 36 are for other programs; `open_features`
    refuses them.
    """
    camera = camera or Camera()
    image = {
        "image_w": camera.width,
        "image_h": camera.height,
        "vfov": int(degrees) if (degrees := round(math.degrees(camera.vfov), 9)).is_integer() else degrees,
    }
    out, width = Path(out), None
    # HDF5 opens the file by name: with a Python file object, an interruption would crash it.
    with atomic_path(out) as part, h5py.File(part, "w") as file:
        for key, features in panoramas:
            scene, _, viewpoint = key.rpartition("_")
            if not scene or not viewpoint or key in file:
                fault = "occurs twice" if key in file else "is not '<scene>_<viewpoint>'"
                raise DataError(f"{out}: key '{key}' {fault}")
            checked = check_panorama(features, key, str(out), num_views=num_views)
            if checked.shape[1] != (width or checked.shape[1]):
                raise DataError(f"{out}: '{key}' has {checked.shape[1]} numbers a view, others {width}")
            width = checked.shape[1]
            # HDF5 crashes where a write fails. It writes late, so the space is checked beforehand.
            require_space(part, file.id.get_filesize() + checked.nbytes + HDF5_MARGIN)
            stored = file.create_dataset(key, data=checked, **HDF5_STORAGE)
            stored.attrs.update(scanId=scene, viewpointId=viewpoint, **image)
        if width is None:
            raise DataError(f"{out}: no features to write")
    return out


def check_panorama(
    stored: NDArray[Any], key: str, source: str, *, width: int | None = None, num_views: int = VIEWS
) -> NDArray[np.float32]:
    """Return the first `width` features of every view as float32, (36, width); by default all features.

    Raises `DataError`, which names `key` and `source`, if the shape is wrong or a value is not finite.
    """
    stored = np.asarray(stored)
    _check_layout(stored.shape, stored.dtype, key, source, width=width, num_views=num_views)
    with np.errstate(over="ignore"):  # values beyond single precision become infinite, an error below
        features = stored[:, :width].astype(np.float32)
    _check_finite(features, key, source)
    return features


def map_array(path: Path, *, advice: str) -> NDArray[Any]:
    """Map a `.npy` file of floating-point numbers into memory without reading it.

    Raises `DataError`, which ends with `advice`, if the file is incomplete, holds anything else, or is stored
    by columns (Fortran order).
    """
    try:
        with np.errstate(over="raise"):  # the size of a declared shape may overflow
            values = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except NPY_ERRORS as error:
        reason = _one_line(error).partition(". ")[0]  # then numpy suggests to trust the file
        raise DataError(f"{path}: not a complete .npy file ({reason}); {advice}") from None
    if values.dtype.kind != "f" or not values.flags.c_contiguous:
        order = "rows" if values.flags.c_contiguous else "columns"
        raise DataError(f"{path}: expected rows of floats, found {order} of {values.dtype}; {advice}")
    # A plain array of the map, because operations on the memmap subclass are slower.
    return np.asarray(values)


def get_dataset(file: h5py.File, key: str, source: object) -> h5py.Dataset:
    """Return the array `key` of an HDF5 file; raise `DataError` if it is a group, a link or external."""
    if not isinstance(file.get(key, getlink=True), h5py.HardLink):
        raise DataError(f"{source}: '{key}' is a link; expected an array under '<scene>_<viewpoint>'")
    stored = file[key]
    if not isinstance(stored, h5py.Dataset):
        kind = type(stored).__name__.lower()
        raise DataError(f"{source}: '{key}' is a {kind}; expected an array under '<scene>_<viewpoint>'")
    if stored.is_virtual or stored.external:
        raise DataError(f"{source}: '{key}' is stored in another file; expected an array in this one")
    return stored


class _PackedIndex(msgspec.Struct):
    """Content of the index file (.json) beside a file that `pack` wrote."""

    format: str
    width: int
    source: PrintableText
    keys: list[PrintableText]
    crc32: list[int] = msgspec.field(default_factory=list)
    """CRC-32 of the features of each viewpoint, as stored in the array."""


def _check_layout(
    shape: tuple[int, ...] | None,
    dtype: np.dtype[Any],
    key: str,
    source: str,
    *,
    width: int | None,
    num_views: int = VIEWS,
) -> None:
    """Raise `DataError` if shape and type are not those of a panorama with at least `width` features."""
    if shape is None or len(shape) != 2 or shape[0] != num_views or not (width or 1) <= shape[1] <= MAX_WIDTH:
        raise DataError(f"{source}: '{key}' has shape {shape}, expected ({num_views}, at least {width or 1})")
    if dtype.kind not in "fiu":
        raise DataError(f"{source}: '{key}' holds {dtype}, expected numbers")


def _check_finite(features: NDArray[Any], key: str, source: str) -> None:
    if features.dtype == np.float16:  # numpy's isfinite is nine times slower for half precision
        is_finite = (features.view(np.uint16) & HALF_EXPONENT) != HALF_EXPONENT
    else:
        is_finite = np.isfinite(features)
    if not is_finite.all():
        view = int(np.argwhere(~is_finite)[0, 0])
        raise DataError(f"{source}: '{key}' holds NaN or infinity in view {view}; extract it again")


def _open_hdf5(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except PermissionError:
        raise DataError(f"{path}: cannot be read (Permission denied)") from None
    except OSError as error:
        raise DataError(f"{path}: not a complete HDF5 file ({_one_line(error)}); fetch it again") from None


@contextmanager
def _hdf5_errors(message: str) -> Iterator[None]:
    """Convert exceptions of h5py to a `DataError` that begins with `message`."""
    try:
        yield
    except HDF5_ERRORS as error:
        raise DataError(f"{message} ({_one_line(error)}); fetch the file again") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _to_half_precision(features: NDArray[np.float32], key: str, source: str) -> NDArray[np.float16]:
    largest = float(np.abs(features).max())
    if largest > float(np.finfo(np.float16).max):
        raise DataError(
            f"{source}: '{key}' holds {largest:g}, which half precision cannot; use the HDF5 file"
        )
    return features.astype("<f2")


def _view_front(buffer: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the first elements of `buffer`, reshaped to `shape`; raise `WorldError` if it is too small."""
    size = int(np.prod(shape))
    if buffer.size < size or not buffer.flags.c_contiguous or buffer.dtype != np.float32:
        raise WorldError(f"out must be a contiguous float32 array of at least {size} numbers, for {shape}")
    return buffer.reshape(-1)[:size].reshape(shape)


def _gather_half_precision(
    table: NDArray[np.float16], indices: NDArray[np.integer], out: NDArray[np.float32]
) -> None:
    """Copy the rows `indices` of a half-precision table to `out`, in single precision.

    torch converts thirty times faster than numpy, but is imported only when it is needed. Rows are copied in
    blocks that fit into the processor cache.
    """
    import torch

    block = np.empty((min(ROWS_AT_ONCE, len(indices)), table.shape[1]), dtype=np.float16)
    for begin in range(0, len(indices), ROWS_AT_ONCE):
        rows = indices[begin : begin + ROWS_AT_ONCE]
        halves = table.take(rows, axis=0, out=block[: len(rows)], mode="clip")
        torch.from_numpy(out[begin : begin + ROWS_AT_ONCE]).copy_(torch.from_numpy(halves))
