"""The 36 standard views of a viewpoint, cut as perspective pictures from one equirectangular panorama.

The camera is the simulator's: 4:3 with a vertical field of 60°, views in the order of `world.geometry`. A
panorama is twice as wide as high; its middle looks along heading 0 at the horizon, and right is clockwise.
"""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError, prefix_errors
from esceme.files import read_bytes
from esceme.world.geometry import TURN, VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, Direction

PICTURES = (".jpg", ".jpeg", ".png")
WIDTH = 112
"""Pixels across a view where nothing else is asked for."""
LOWEST = 32
"""A panorama has at least so many rows; with fewer the views would reach over its edge."""
STEPS = 8
"""How finely a place between two pixels is told apart when neighbours are blended."""
PARTS = (0, 16, 32)
"""Where red, green and blue begin in the 64-bit word that holds all three: one addition adds them all."""
HALVES = np.uint64(sum(128 << start for start in PARTS))
"""One half of each colour's last unit, to round and not to cut off."""


def find_panoramas(folder: Path) -> dict[str, Path]:
    """The pictures of a folder by `<scene>_<viewpoint>`: named so, or `<viewpoint>` in a folder `<scene>`."""
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*")) + sorted(folder.glob("*/*")):
        if path.suffix.lower() not in PICTURES:
            continue
        key = path.stem if path.parent == folder else f"{path.parent.name}_{path.stem}"
        if "_" not in key.strip("_"):
            raise DataError(
                f"{path}: expected '<scene>_<viewpoint>' as its name, or a folder named by the scene"
            )
        if key in found:
            raise DataError(f"{path}: '{key}' has another picture, {found[key]}")
        found[key] = path
    if not found:
        raise DataError(f"{folder}: no pictures <scene>/<viewpoint>.jpg or <scene>_<viewpoint>.jpg in it")
    return found


def read_panorama(path: Path) -> NDArray[np.uint8]:
    """The colours (H, 2H, 3) of an equirectangular picture."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(read_bytes(path))) as picture:
            colours = np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a whole picture ({error}); fetch it again") from None
    with prefix_errors(file=path):
        _check(colours)
    return colours


def cut_views(picture: NDArray[np.uint8], *, width: int = WIDTH) -> NDArray[np.uint8]:
    """The 36 views of a colour panorama (H, 2H, 3): pictures (36, 3/4 width, width, 3).

    A panorama finer than its views is averaged before four neighbours are blended: thin things fade, they do
    not flicker.
    """
    _check(picture)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise DataError(f"expected colours (H, 2H, 3) as uint8, found {picture.shape} as {picture.dtype}")
    shrink, blur = _averaging(len(picture), width)
    words = _pack(_shrunk(picture, shrink), blur=blur)
    corners = [words.ravel()[start:] for start in (0, 1, words.shape[1], words.shape[1] + 1)]
    blend = _blend(len(picture) // shrink, width, blur)
    views = np.empty((VIEWS, width * 3 // 4, width, 3), np.uint8)
    for view in range(VIEWS):
        total = np.full(blend.place.shape[1], HALVES)
        for corner, weight in zip(corners, blend.weights, strict=True):
            total += corner.take(blend.place[view], mode="clip") * weight[view]
        for colour, start in enumerate(PARTS):
            # A colour has 16 bits of the word and was counted 256 times: the upper 8 bits are the mean.
            views[view, ..., colour] = (
                (total >> np.uint64(start + 8)).astype(np.uint8).reshape(views.shape[1:3])
            )
    return views


def cut_ids(picture: NDArray[Any], *, width: int = WIDTH) -> NDArray[Any]:
    """The 36 views of numbers that cannot be blended, object ids for one: (H, 2H) -> (36, 3/4 width, width).

    Every pixel takes the value that the panorama has in its direction.
    """
    _check(picture)
    return picture.reshape(-1, *picture.shape[2:])[_nearest(len(picture), width)]


def view_directions(width: int = WIDTH) -> Direction:
    """Heading and elevation of every pixel of every view, each (36, 3/4 width, width)."""
    if width < 4 or width % 4:
        raise ConfigError(f"a view of {width} pixels across; the width must be a multiple of 4")
    height = width * 3 // 4
    focal = height / 2 / np.tan(TURN)
    right = (np.arange(width) + 0.5 - width / 2) / focal
    up = ((height / 2 - 0.5 - np.arange(height)) / focal)[:, None]
    elevation = VIEW_ELEVATIONS[:, None, None]
    forward = np.cos(elevation) - np.sin(elevation) * up
    heading = VIEW_HEADINGS[:, None, None] + np.arctan2(right, forward)
    raised = np.arctan2(np.sin(elevation) + np.cos(elevation) * up, np.hypot(right, forward))
    return Direction(heading, raised)


class _Blend(NamedTuple):
    """How each pixel (36, h * w) is made: its upper left neighbour, and what its four neighbours count."""

    place: NDArray[np.int32]
    weights: NDArray[np.uint8]
    """(4, 36, h * w); they add up to `STEPS` squared."""


@lru_cache(maxsize=4)
def _blend(height: int, width: int, blur: bool) -> _Blend:
    # The mean of two by two pixels lies half a pixel further than the first of them.
    places = (place - blur / 2 for place in _places(height, width))
    row, column = (np.rint(place * STEPS).astype(np.int32) for place in places)
    column %= 2 * height * STEPS
    place = row // STEPS * _row_length(height, blur) + column // STEPS
    down, along = row % STEPS, column % STEPS
    weights = [y * x for y in (STEPS - down, down) for x in (STEPS - along, along)]
    return _Blend(place.reshape(VIEWS, -1), np.stack(weights).astype(np.uint8).reshape(4, VIEWS, -1))


@lru_cache(maxsize=4)
def _nearest(height: int, width: int) -> NDArray[np.int32]:
    row, column = (np.rint(place).astype(np.int32) for place in _places(height, width))
    return row * 2 * height + column % (2 * height)


def _places(height: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Row and column of the panorama that each pixel of each view looks at; pixel centres are whole."""
    seen = view_directions(width)
    return (
        (np.pi / 2 - seen.elevation) / np.pi * height - 0.5,
        (seen.heading + np.pi) / np.pi * height - 0.5,
    )


def _averaging(height: int, width: int) -> tuple[int, bool]:
    """By what whole number to shrink a panorama first, and whether to average two by two pixels then.

    >>> _averaging(512, 112), _averaging(2048, 112), _averaging(512, 640)
    ((1, True), (4, True), (1, False))
    """
    finer = height / np.pi / (width * 3 / 8 / np.tan(TURN))  # pixels of the panorama to one of a view
    shrink = max(number for number in range(1, max(int(finer / 1.5), 1) + 1) if height % number == 0)
    return shrink, bool(finer / shrink >= 1.5)


def _shrunk(picture: NDArray[np.uint8], by: int) -> NDArray[np.integer]:
    if by == 1:
        return picture
    height, width, colours = picture.shape
    blocks = picture.reshape(height // by, by, width // by, by, colours)
    return (blocks.sum(axis=(1, 3), dtype=np.uint32) + by * by // 2) // (by * by)


def _pack(picture: NDArray[np.integer], *, blur: bool) -> NDArray[np.uint64]:
    """Four times each pixel's colours, or the sum of two by two pixels, as three 16-bit parts of one word.

    The first columns follow the last once more, so that blending need not care about the seam.
    """
    height, width, _ = picture.shape
    words = np.zeros((height, width + 2), np.uint64)
    for colour, start in enumerate(PARTS):
        words[:, :width] |= picture[..., colour].astype(np.uint64) << np.uint64(start)
    words[:, width:] = words[:, :2]
    if not blur:
        return words << np.uint64(2)
    pairs = words[:, :-1] + words[:, 1:]
    return pairs[:-1] + pairs[1:]


def _row_length(height: int, blur: bool) -> int:
    return 2 * height + (1 if blur else 2)


def _check(picture: NDArray[Any]) -> None:
    if picture.ndim < 2 or picture.shape[1] != 2 * picture.shape[0] or len(picture) < LOWEST:
        shape = " x ".join(map(str, picture.shape[:2][::-1]))
        raise DataError(
            f"a picture of {shape} pixels; an equirectangular panorama is twice as wide as high, "
            f"at least {2 * LOWEST} x {LOWEST}"
        )
