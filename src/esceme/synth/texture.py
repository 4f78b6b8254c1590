"""Textures: repeating brightness maps with mipmaps.

A brightness map has `MAP_SIZE` x `MAP_SIZE` texels of `TEXEL_SIZE` metres. It scales a surface's brightness
and does not change its hue. Distant surfaces use coarser mipmap levels; every level has half the size of the
level before.
"""

from __future__ import annotations

from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from esceme.synth.house_model import TextureName

TEXTURES: tuple[str, ...] = get_args(TextureName)
"""Texture names in the order of the indices that `sample_texture` takes."""
MAP_SIZE, TEXEL_SIZE = 512, 0.005
NUM_LEVELS = 10
STORED_UNIT = 160.0
"""Integer value (of 255) that stands for a brightness factor of 1."""

BrightnessMap = NDArray[np.float64]


def sample_texture(
    texture: NDArray[np.int32], u: NDArray[np.float32], v: NDArray[np.float32], footprint: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return brightness factors (about 1) at coordinates (u, v) of surfaces, in metres.

    `texture` holds indices of `TEXTURES`. `footprint` is the size in metres of an image pixel on the surface;
    it selects the mipmap level. All arrays have the same shape.
    """
    maps, starts = _build_mipmaps()
    scaled = np.ascontiguousarray(footprint * np.float32(1.3 / TEXEL_SIZE))
    level = np.clip((scaled.view(np.int32) >> 23) - 127, 0, NUM_LEVELS - 1)  # the exponent: floor of log2
    column = ((u * np.float32(1 / TEXEL_SIZE)).astype(np.int32) & (MAP_SIZE - 1)) >> level
    row = ((v * np.float32(1 / TEXEL_SIZE)).astype(np.int32) & (MAP_SIZE - 1)) >> level
    texel = (row << (NUM_LEVELS - 1 - level)) + column
    texel += starts[texture * NUM_LEVELS + level]
    return maps[texel]


@cache
def _build_mipmaps() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return all mipmap levels of all textures in one flat array, and their start indices.

    The start of a level is at index texture * `NUM_LEVELS` + level.
    """
    pieces, starts, length = [], [], 0
    for name in TEXTURES:
        image = _GENERATORS[name](np.random.default_rng(TEXTURES.index(name)))
        image = np.clip(np.rint(image * STORED_UNIT), 0, 255)
        for _ in range(NUM_LEVELS):
            pieces.append(np.rint(image).ravel() / STORED_UNIT)
            starts.append(length)
            length += image.size
            if image.size > 1:
                image = image.reshape(len(image) // 2, 2, -1, 2).mean(axis=(1, 3))
    return np.concatenate(pieces).astype(np.float32), np.array(starts, dtype=np.int32)


def _noise_map(generator: np.random.Generator, width: int, height: int) -> BrightnessMap:
    """Return smooth periodic noise from -1 to 1.

    There is one random value per `width` x `height` texels (powers of two), with interpolation in between.
    """
    coarse = generator.random((MAP_SIZE // height, MAP_SIZE // width)) * 2 - 1
    return _upsample(_upsample(coarse, height, 0), width, 1)


def _upsample(image: BrightnessMap, factor: int, axis: int) -> BrightnessMap:
    """Upsample a periodic map by an integer factor along an axis, with linear interpolation."""
    fraction = (np.arange(factor) / factor)[:, None] if axis == 0 else np.arange(factor) / factor
    shape = (image.shape[0] * factor, -1) if axis == 0 else (image.shape[0], image.shape[1] * factor)
    current, after = np.expand_dims(image, axis + 1), np.expand_dims(np.roll(image, -1, axis), axis + 1)
    return (current + (after - current) * fraction).reshape(shape)


def _block_pattern(
    width: int, height: int, shifts: NDArray[np.int64]
) -> tuple[BrightnessMap, BrightnessMap, NDArray[np.int64]]:
    """Return the pattern of a wall or floor made of rows of blocks (bricks, tiles, planks).

    The results are (`MAP_SIZE`, `MAP_SIZE`): every texel's distance to the ends of its block, its distance to
    the sides, and its block index. `width` and `height` of a block are in texels; every row of blocks is
    shifted by its entry in `shifts`.
    """
    row, column = np.mgrid[:MAP_SIZE, :MAP_SIZE]
    block_row = row // height
    shifted = (column + shifts[block_row]) % MAP_SIZE
    edge_along = np.minimum(shifted % width, width - 1 - shifted % width)
    edge_across = np.minimum(row % height, height - 1 - row % height)
    return (
        edge_along.astype(float),
        edge_across.astype(float),
        block_row * (MAP_SIZE // width) + shifted // width,
    )


def _draw_plain(generator: np.random.Generator) -> BrightnessMap:
    return 1 + 0.012 * _noise_map(generator, 4, 4) + 0.006 * _noise_map(generator, 64, 64)


def _draw_grain(generator: np.random.Generator) -> BrightnessMap:
    veins = (
        0.55 * _noise_map(generator, 256, 4)
        + 0.3 * _noise_map(generator, 128, 2)
        + 0.35 * _noise_map(generator, 256, 32)
    )
    return 0.98 + 0.14 * veins


def _draw_planks(generator: np.random.Generator) -> BrightnessMap:
    rows = MAP_SIZE // 32
    along, across, block = _block_pattern(256, 32, generator.integers(0, MAP_SIZE, rows))
    tone = (generator.random(rows * 2) * 2 - 1)[block]
    image = 1 + 0.09 * tone + 0.08 * (_noise_map(generator, 128, 2) + 0.6 * _noise_map(generator, 64, 4))
    return np.where((across < 1) | (along < 1), 0.66, image)


def _draw_tiles(generator: np.random.Generator) -> BrightnessMap:
    along, across, block = _block_pattern(64, 64, np.zeros(MAP_SIZE // 64, dtype=np.int64))
    image = 1.02 + 0.03 * (generator.random(64) * 2 - 1)[block] + 0.02 * _noise_map(generator, 32, 32)
    return np.where(np.minimum(along, across) < 1, 0.74, image)


def _draw_checks(generator: np.random.Generator) -> BrightnessMap:
    along, across, block = _block_pattern(64, 64, np.zeros(MAP_SIZE // 64, dtype=np.int64))
    dark = (block // 8 + block % 8) % 2 == 1
    image = np.where(dark, 0.70, 1.12) + 0.02 * _noise_map(generator, 32, 32)
    return np.where(np.minimum(along, across) < 1, 0.82, image)


def _draw_stripes(generator: np.random.Generator) -> BrightnessMap:
    wide = np.arange(MAP_SIZE) % 32
    line = np.where(wide < 16, 1.06, 0.84)
    return np.broadcast_to(line, (MAP_SIZE, MAP_SIZE)) + 0.012 * _noise_map(generator, 4, 8)


def _draw_bricks(generator: np.random.Generator) -> BrightnessMap:
    along, across, block = _block_pattern(64, 16, np.arange(MAP_SIZE // 16) % 2 * 32)
    tone = (generator.random(MAP_SIZE // 16 * 8) * 2 - 1)[block]
    image = 0.94 + 0.11 * tone + 0.05 * _noise_map(generator, 4, 4)
    return np.where(np.minimum(along, across) < 1, 1.15, image)


def _draw_fabric(generator: np.random.Generator) -> BrightnessMap:
    threads = _noise_map(generator, 16, 1) + _noise_map(generator, 1, 16)
    return 1 + 0.045 * threads + 0.05 * _noise_map(generator, 4, 4) + 0.03 * _noise_map(generator, 32, 32)


_GENERATORS = {
    "plain": _draw_plain,
    "planks": _draw_planks,
    "tiles": _draw_tiles,
    "checks": _draw_checks,
    "stripes": _draw_stripes,
    "bricks": _draw_bricks,
    "fabric": _draw_fabric,
    "grain": _draw_grain,
}
