"""Views of a viewpoint, cut as perspective images from an equirectangular panorama or a skybox.

The 36 standard views have the camera of R2R agents: aspect 4:3, vertical field of view 60°, in the order of
`world.geometry`. A panorama is twice as wide as high; its centre has heading 0 and elevation 0, and headings
grow to the right. A skybox is the six faces of a cube.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError, prefix_errors
from esceme.files import MAX_EXPANSION, expansion_limit, read_bytes
from esceme.world.camera import Camera
from esceme.world.geometry import VIEW_ELEVATIONS, VIEW_HEADINGS, VIEWS, Direction

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png")
IMAGE_FORMATS = ("JPEG", "PNG")
MAX_PLAIN_PIXELS = 4096 * 2048
"""Number of pixels up to which a picture may be compressed without limit."""
WIDTH = 112
"""Default width of a view in pixels."""
MIN_HEIGHT = 32
"""Minimum height of a panorama in pixels; views of a smaller panorama would exceed its border."""
SUBPIXEL_STEPS = 8
"""Number of positions between two neighbouring pixels at which bilinear interpolation is evaluated."""
COLOUR_SHIFTS = (0, 16, 32)
"""Bit offsets of red, green and blue in one 64-bit word, so that one addition adds all three colours."""
STANDARD_VIEWS = tuple(zip(VIEW_HEADINGS.tolist(), VIEW_ELEVATIONS.tolist(), strict=True))
"""Heading and elevation of the 36 standard views, in radians."""
SKYBOX_AXES = np.array(
    [
        [(0, -1, 0), (-1, 0, 0), (0, 0, -1)],
        [(0, 0, -1), (-1, 0, 0), (0, 1, 0)],
        [(-1, 0, 0), (0, 0, 1), (0, 1, 0)],
        [(0, 0, 1), (1, 0, 0), (0, 1, 0)],
        [(1, 0, 0), (0, 0, -1), (0, 1, 0)],
        [(0, 1, 0), (-1, 0, 0), (0, 0, 1)],
    ],
    dtype=np.float64,
)
"""(6, 3, 3): for every face of a skybox its middle, and the directions in which columns and rows grow.

Coordinates are right, down and forward of the camera.
"""
ROUNDING_TERM = np.uint64(sum(128 << shift for shift in COLOUR_SHIFTS))
"""64-bit word that is added before the lower bits are dropped, so that colours are rounded, not cut off."""


def find_panoramas(folder: Path) -> dict[str, Path]:
    """Return a dict from `<scene>_<viewpoint>` to the image file of this viewpoint.

    Files are named `<scene>_<viewpoint>`, or `<viewpoint>` in a folder `<scene>`. Raises `DataError` if there
    is no image, two images of a viewpoint, or a wrong name.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    panoramas: dict[str, Path] = {}
    for path in sorted(folder.glob("*")) + sorted(folder.glob("*/*")):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            continue
        key = path.stem if path.parent == folder else f"{path.parent.name}_{path.stem}"
        if "_" not in key.strip("_"):
            raise DataError(
                f"{path}: expected '<scene>_<viewpoint>' as its name, or a folder named by the scene"
            )
        if key in panoramas:
            raise DataError(f"{path}: '{key}' has another picture, {panoramas[key]}")
        panoramas[key] = path
    if not panoramas:
        raise DataError(f"{folder}: no pictures <scene>/<viewpoint>.jpg or <scene>_<viewpoint>.jpg in it")
    return panoramas


def read_panorama(path: Path) -> NDArray[np.uint8]:
    """Read the colours (H, 2H, 3) of an equirectangular image file."""
    return _read_colours(path, _check_panorama_shape)


def read_skybox(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Read the faces (6, S, S, 3) of a skybox: one image of six squares side by side, or six images.

    The order of the faces is that of Matterport3D: up, back, left, forward, right, down. These directions are
    relative to the camera's pose.
    """
    if len(paths) == 1:
        strip = _read_colours(paths[0], lambda shape: _check_skybox_shape(shape, faces=6))
        return np.stack(np.split(strip, 6, axis=1))
    faces = [_read_colours(path, lambda shape: _check_skybox_shape(shape, faces=1)) for path in paths]
    if len({face.shape for face in faces}) > 1:
        raise DataError(f"{paths[0]}: its size differs from that of another face of the skybox")
    return np.stack(faces)


def _read_colours(path: Path, check_shape: Callable[[tuple[int, int]], None]) -> NDArray[np.uint8]:
    """Read the colours (height, width, 3) of an image file. `check_shape` raises if the size is wrong."""
    from PIL import Image

    try:
        # Other formats are not opened: for some of them, PIL starts other programs.
        with Image.open(io.BytesIO(read_bytes(path)), formats=IMAGE_FORMATS) as image:
            with prefix_errors(file=path):
                check_shape((image.height, image.width))
            if 3 * image.width * image.height > max(3 * MAX_PLAIN_PIXELS, expansion_limit(path)):
                raise DataError(
                    f"{path}: {image.width} x {image.height} pixels are more than {MAX_EXPANSION} times its "
                    "size; if you trust it, save it smaller"
                )
            return np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: not a whole picture ({error}); fetch it again") from None


def skybox_panorama(faces: NDArray[np.uint8], pose: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Convert the faces (6, S, S, 3) of a skybox to an equirectangular panorama (2S, 4S, 3).

    `pose` (4, 4) is the camera's pose in the scene: its x axis is right, y down and z forward of the camera.
    """
    size = faces.shape[1]
    heading = (np.arange(4 * size) + 0.5) / (2 * size) * np.pi - np.pi
    elevation = (np.pi / 2 - (np.arange(2 * size) + 0.5) / (2 * size) * np.pi)[:, None]
    parts = (np.cos(elevation) * np.sin(heading), np.cos(elevation) * np.cos(heading), np.sin(elevation))
    scene = np.stack(np.broadcast_arrays(*parts), axis=-1)  # (2S, 4S, 3)
    camera = scene @ pose[:3, :3]  # coordinates along the axes of the camera
    along = camera @ SKYBOX_AXES[:, 0].T  # (2S, 4S, 6)
    face = along.argmax(axis=-1)
    ahead = np.take_along_axis(along, face[..., None], axis=-1)[..., 0]
    column, row = (
        ((camera * SKYBOX_AXES[face, axis]).sum(axis=-1) / ahead + 1) / 2 * size for axis in (1, 2)
    )
    row, column = (position.astype(np.int64).clip(0, size - 1) for position in (row, column))
    return faces[face, row, column]


@dataclass(frozen=True)
class ViewGrid:
    """Camera and directions (heading, elevation) in radians of the views of every panorama."""

    camera: Camera
    views: tuple[tuple[float, float], ...] = STANDARD_VIEWS

    @classmethod
    def regular(
        cls, camera: Camera, num_headings: int = 12, elevations: Sequence[float] = (-30.0, 0.0, 30.0)
    ) -> ViewGrid:
        """Return rows of views at `elevations` in degrees, with headings from 0 at equal distances.

        Raises `ConfigError` if a number is out of range.
        """
        degrees = float(np.degrees(camera.vfov))
        for name, value, low, high in (
            ("width", camera.width, 8, 8192),
            ("height", camera.height, 8, 8192),
            ("vfov", degrees, 1, 170),
            ("headings", num_headings, 1, 360),
            ("elevations", len(elevations), 1, 180),
            *(("elevations", elevation, -90, 90) for elevation in elevations),
        ):
            if not low <= value <= high:
                raise ConfigError(f"{name}: expected {low} to {high}, found {value:g}")
        turns = [2 * np.pi / num_headings * number for number in range(num_headings)]
        return cls(camera, tuple((turn, float(np.radians(row))) for row in elevations for turn in turns))

    def cut(self, panorama: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Cut the views of a colour panorama: (H, 2H, 3) -> (N, camera height, camera width, 3)."""
        return cut_packed(pack_panorama(panorama, self.camera), self.camera, self.views)


def cut_views(panorama: NDArray[np.uint8], *, width: int = WIDTH) -> NDArray[np.uint8]:
    """Cut the 36 views of a colour panorama: (H, 2H, 3) -> (36, 3/4 width, width, 3)."""
    return ViewGrid(standard_camera(width)).cut(panorama)


def cut_ids(panorama: NDArray[Any], *, width: int = WIDTH) -> NDArray[Any]:
    """Cut the 36 views of a panorama of ids, which cannot be blended: (H, 2H) -> (36, h, width).

    Every pixel has the value of the nearest pixel of the panorama.
    """
    _check_panorama_shape(panorama.shape)
    return panorama.reshape(-1, *panorama.shape[2:])[_nearest_pixels(len(panorama), width)]


def standard_camera(width: int = WIDTH) -> Camera:
    """Return the camera of the 36 standard views for images of `width` pixels across."""
    if width < 4 or width % 4:
        raise ConfigError(f"a view of {width} pixels across; the width must be a multiple of 4")
    return Camera(width, width * 3 // 4)


def view_directions(width: int = WIDTH) -> Direction:
    """Return heading and elevation of every pixel of every view, in radians, (36, 3/4 width, width)."""
    directions = [pixel_directions(standard_camera(width), *view) for view in STANDARD_VIEWS]
    return Direction(*(np.stack(angles) for angles in zip(*directions, strict=True)))


def pixel_directions(camera: Camera, heading: float, elevation: float) -> Direction:
    """Return heading and elevation of every pixel (h, w) of a camera that looks along a direction."""
    if not 0 < camera.vfov < np.pi:
        raise ConfigError(f"a field of view of {np.degrees(camera.vfov):g}°; an image needs 0 to 180°")
    focal = _focal_length(camera)
    right = (np.arange(camera.width) + 0.5 - camera.width / 2) / focal
    up = ((camera.height / 2 - 0.5 - np.arange(camera.height)) / focal)[:, None]
    forward = np.cos(elevation) - np.sin(elevation) * up
    turned = heading + np.arctan2(right, forward)
    raised = np.arctan2(np.sin(elevation) + np.cos(elevation) * up, np.hypot(right, forward))
    return Direction(turned, raised)


def _focal_length(camera: Camera) -> float:
    """Return the focal length in pixels: the image is 2 * focal length * tan(vfov / 2) pixels high."""
    return float(camera.height / 2 / np.tan(camera.vfov / 2))


class PackedPanorama(NamedTuple):
    """Colour panorama in the resolution of a camera, prepared for `cut_packed`."""

    words: NDArray[np.uint64]
    """One word per pixel, see `_pack_colours`."""
    height: int
    blur: bool


def pack_panorama(panorama: NDArray[np.uint8], camera: Camera) -> PackedPanorama:
    """Prepare a colour panorama (H, 2H, 3) for a camera.

    A panorama with a higher resolution than the camera is averaged, which avoids aliasing.
    """
    _check_panorama_shape(panorama.shape)
    if panorama.ndim != 3 or panorama.shape[2] != 3 or panorama.dtype != np.uint8:
        raise DataError(f"expected colours (H, 2H, 3) as uint8, found {panorama.shape} as {panorama.dtype}")
    shrink, blur = _choose_averaging(len(panorama), _focal_length(camera))
    words = _pack_colours(_shrink_panorama(panorama, shrink), blur=blur)
    return PackedPanorama(words, len(panorama) // shrink, blur)


def cut_packed(
    panorama: PackedPanorama, camera: Camera, views: Sequence[tuple[float, float]], *, cache: bool = True
) -> NDArray[np.uint8]:
    """Cut views (heading, elevation) in radians as images (N, camera height, camera width, 3), bilinearly.

    With `cache`, the positions of the pixels are kept for the next panorama.
    """
    words = panorama.words
    corners = [words.ravel()[start:] for start in (0, 1, words.shape[1], words.shape[1] + 1)]
    interpolate = _interpolation if cache else _interpolation.__wrapped__
    images = np.empty((len(views), camera.height, camera.width, 3), np.uint8)
    for image, view in zip(images, views, strict=True):
        interpolation = interpolate(panorama.height, camera, view, panorama.blur)
        total = np.full(interpolation.pixel.shape, ROUNDING_TERM)
        for corner, weight in zip(corners, interpolation.weights, strict=True):
            total += corner.take(interpolation.pixel, mode="clip") * weight
        for colour, shift in enumerate(COLOUR_SHIFTS):
            # Each colour has 16 bits of the word and is weighted by 256: the upper 8 bits are the mean.
            image[..., colour] = (total >> np.uint64(shift + 8)).astype(np.uint8).reshape(image.shape[:2])
    return images


class _Interpolation(NamedTuple):
    """Bilinear interpolation of view pixels: the position in the panorama, and weights of 4 neighbours."""

    pixel: NDArray[np.int32]
    """(h * w,): index of the upper left neighbour in the panorama."""
    weights: NDArray[np.uint8]
    """(4, h * w); the weights of a pixel sum to `SUBPIXEL_STEPS` squared."""


@lru_cache(maxsize=4 * VIEWS)
def _interpolation(height: int, camera: Camera, view: tuple[float, float], blur: bool) -> _Interpolation:
    """Return the interpolation of one view (heading, elevation) in a panorama `height` pixels high."""
    # The mean of two by two pixels is centred half a pixel further than the first of them.
    positions = (
        position - blur / 2 for position in _panorama_positions(height, pixel_directions(camera, *view))
    )
    row, column = (np.rint(position * SUBPIXEL_STEPS).astype(np.int32) for position in positions)
    row = row.clip(0, (height - 1 - blur) * SUBPIXEL_STEPS)  # the poles
    column %= 2 * height * SUBPIXEL_STEPS
    row_length = 2 * height + (1 if blur else 2)  # see `_pack_colours`
    pixel = row // SUBPIXEL_STEPS * row_length + column // SUBPIXEL_STEPS
    down, along = row % SUBPIXEL_STEPS, column % SUBPIXEL_STEPS
    weights = [y * x for y in (SUBPIXEL_STEPS - down, down) for x in (SUBPIXEL_STEPS - along, along)]
    return _Interpolation(pixel.ravel(), np.stack(weights).astype(np.uint8).reshape(4, -1))


@lru_cache(maxsize=4)
def _nearest_pixels(height: int, width: int) -> NDArray[np.int32]:
    """Return the index of the panorama pixel nearest to every pixel of the 36 views."""
    positions = _panorama_positions(height, view_directions(width))
    row, column = (np.rint(position).astype(np.int32) for position in positions)
    return row * 2 * height + column % (2 * height)


def _panorama_positions(
    height: int, directions: Direction
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the panorama row and column of directions; integers are centres of panorama pixels."""
    return (
        (np.pi / 2 - directions.elevation) / np.pi * height - 0.5,
        (directions.heading + np.pi) / np.pi * height - 0.5,
    )


def _choose_averaging(height: int, focal: float) -> tuple[int, bool]:
    """Return the factor by which to shrink a panorama, and whether to average 2 x 2 pixels of the result.

    `height` is the height of the panorama in pixels, and `focal` the focal length of the camera.

    >>> focal = _focal_length(standard_camera(112))
    >>> _choose_averaging(512, focal), _choose_averaging(2048, focal), _choose_averaging(512, 6 * focal)
    ((1, True), (4, True), (1, False))
    """
    finer = height / np.pi / focal  # panorama pixels per view pixel
    shrink = max(number for number in range(1, max(int(finer / 1.5), 1) + 1) if height % number == 0)
    return shrink, bool(finer / shrink >= 1.5)


def _shrink_panorama(panorama: NDArray[np.uint8], factor: int) -> NDArray[np.integer]:
    """Return the means of `factor` x `factor` pixels."""
    if factor == 1:
        return panorama
    height, width, colours = panorama.shape
    blocks = panorama.reshape(height // factor, factor, width // factor, factor, colours)
    return (blocks.sum(axis=(1, 3), dtype=np.uint32) + factor**2 // 2) // factor**2


def _pack_colours(panorama: NDArray[np.integer], *, blur: bool) -> NDArray[np.uint64]:
    """Pack the colours of every pixel, multiplied by four, into one 64-bit word per pixel.

    With `blur`, a word holds the sum of 2 x 2 pixels instead. The first columns are repeated after the last
    columns, so that interpolation can cross the border of the panorama.
    """
    height, width, _ = panorama.shape
    words = np.zeros((height, width + 2), np.uint64)
    for colour, shift in enumerate(COLOUR_SHIFTS):
        words[:, :width] |= panorama[..., colour].astype(np.uint64) << np.uint64(shift)
    words[:, width:] = words[:, :2]
    if not blur:
        return words << np.uint64(2)
    pairs = words[:, :-1] + words[:, 1:]
    return pairs[:-1] + pairs[1:]


def _check_panorama_shape(shape: tuple[int, ...]) -> None:
    if len(shape) < 2 or shape[1] != 2 * shape[0] or shape[0] < MIN_HEIGHT:
        size = " x ".join(map(str, shape[:2][::-1]))
        raise DataError(
            f"a picture of {size} pixels; an equirectangular panorama is twice as wide as high, "
            f"at least {2 * MIN_HEIGHT} x {MIN_HEIGHT}"
        )


def _check_skybox_shape(shape: tuple[int, int], *, faces: int) -> None:
    if shape[1] != faces * shape[0] or 2 * shape[0] < MIN_HEIGHT:
        raise DataError(
            f"a picture of {shape[1]} x {shape[0]} pixels; expected {faces} squares side by side, "
            f"each of at least {MIN_HEIGHT // 2} pixels"
        )
