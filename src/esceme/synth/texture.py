"""Textures: repeating brightness maps with mipmaps.

A map has `SIZE` x `SIZE` texels of `TEXEL` metres. It scales the brightness of a surface and keeps its hue.
Distant surfaces use coarser levels; each level is half the size of the one before.
"""

from __future__ import annotations

from functools import cache
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from esceme.synth.house_model import Texture

TEXTURES: tuple[str, ...] = get_args(Texture)
"""Texture names in the order of the indices that `sample_texture` takes."""
SIZE, TEXEL = 512, 0.005
LEVELS = 10
UNIT = 160.0
"""Stored value of a brightness factor of 1."""

Image = NDArray[np.float64]


def sample_texture(
    texture: NDArray[np.int32], u: NDArray[np.float32], v: NDArray[np.float32], footprint: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return brightness factors (about 1) at surface coordinates; all lengths are in metres.

    `footprint` is the size of a pixel on the surface and selects the mipmap level.
    """
    maps, starts = _mipmaps()
    scaled = np.ascontiguousarray(footprint * np.float32(1.3 / TEXEL))
    level = np.clip((scaled.view(np.int32) >> 23) - 127, 0, LEVELS - 1)  # the exponent: floor of log2
    column = ((u * np.float32(1 / TEXEL)).astype(np.int32) & (SIZE - 1)) >> level
    row = ((v * np.float32(1 / TEXEL)).astype(np.int32) & (SIZE - 1)) >> level
    texel = (row << (LEVELS - 1 - level)) + column
    texel += starts[texture * LEVELS + level]
    return maps[texel]


@cache
def _mipmaps() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return all levels of all maps in one flat array, and the start of each (texture, level)."""
    pieces, starts, length = [], [], 0
    for name in TEXTURES:
        image = _GENERATORS[name](np.random.default_rng(TEXTURES.index(name)))
        image = np.clip(np.rint(image * UNIT), 0, 255)
        for _ in range(LEVELS):
            pieces.append(np.rint(image).ravel() / UNIT)
            starts.append(length)
            length += image.size
            if image.size > 1:
                image = image.reshape(len(image) // 2, 2, -1, 2).mean(axis=(1, 3))
    return np.concatenate(pieces).astype(np.float32), np.array(starts, dtype=np.int32)


def _noise(generator: np.random.Generator, along: int, across: int) -> Image:
    """Return smooth periodic noise from -1 to 1; `along` x `across` texels per sample (powers of two)."""
    coarse = generator.random((SIZE // across, SIZE // along)) * 2 - 1
    return _stretch(_stretch(coarse, across, 0), along, 1)


def _stretch(image: Image, times: int, axis: int) -> Image:
    """Upsample a periodic image along an axis by linear interpolation."""
    fraction = (np.arange(times) / times)[:, None] if axis == 0 else np.arange(times) / times
    shape = (image.shape[0] * times, -1) if axis == 0 else (image.shape[0], image.shape[1] * times)
    current, after = np.expand_dims(image, axis + 1), np.expand_dims(np.roll(image, -1, axis), axis + 1)
    return (current + (after - current) * fraction).reshape(shape)


def _blocks(width: int, height: int, shifts: NDArray[np.int64]) -> tuple[Image, Image, NDArray[np.int64]]:
    """Return each texel's distance to the ends and sides of its block, and the block, for shifted rows."""
    row, column = np.mgrid[:SIZE, :SIZE]
    block_row = row // height
    shifted = (column + shifts[block_row]) % SIZE
    edge_along = np.minimum(shifted % width, width - 1 - shifted % width)
    edge_across = np.minimum(row % height, height - 1 - row % height)
    return edge_along.astype(float), edge_across.astype(float), block_row * (SIZE // width) + shifted // width


def _plain(generator: np.random.Generator) -> Image:
    return 1 + 0.012 * _noise(generator, 4, 4) + 0.006 * _noise(generator, 64, 64)


def _grain(generator: np.random.Generator) -> Image:
    veins = (
        0.55 * _noise(generator, 256, 4) + 0.3 * _noise(generator, 128, 2) + 0.35 * _noise(generator, 256, 32)
    )
    return 0.98 + 0.14 * veins


def _planks(generator: np.random.Generator) -> Image:
    rows = SIZE // 32
    along, across, block = _blocks(256, 32, generator.integers(0, SIZE, rows))
    tone = (generator.random(rows * 2) * 2 - 1)[block]
    image = 1 + 0.09 * tone + 0.08 * (_noise(generator, 128, 2) + 0.6 * _noise(generator, 64, 4))
    return np.where((across < 1) | (along < 1), 0.66, image)


def _tiles(generator: np.random.Generator) -> Image:
    along, across, block = _blocks(64, 64, np.zeros(SIZE // 64, dtype=np.int64))
    image = 1.02 + 0.03 * (generator.random(64) * 2 - 1)[block] + 0.02 * _noise(generator, 32, 32)
    return np.where(np.minimum(along, across) < 1, 0.74, image)


def _checks(generator: np.random.Generator) -> Image:
    along, across, block = _blocks(64, 64, np.zeros(SIZE // 64, dtype=np.int64))
    dark = (block // 8 + block % 8) % 2 == 1
    image = np.where(dark, 0.70, 1.12) + 0.02 * _noise(generator, 32, 32)
    return np.where(np.minimum(along, across) < 1, 0.82, image)


def _stripes(generator: np.random.Generator) -> Image:
    wide = np.arange(SIZE) % 32
    line = np.where(wide < 16, 1.06, 0.84)
    return np.broadcast_to(line, (SIZE, SIZE)) + 0.012 * _noise(generator, 4, 8)


def _bricks(generator: np.random.Generator) -> Image:
    along, across, block = _blocks(64, 16, np.arange(SIZE // 16) % 2 * 32)
    tone = (generator.random(SIZE // 16 * 8) * 2 - 1)[block]
    image = 0.94 + 0.11 * tone + 0.05 * _noise(generator, 4, 4)
    return np.where(np.minimum(along, across) < 1, 1.15, image)


def _fabric(generator: np.random.Generator) -> Image:
    threads = _noise(generator, 16, 1) + _noise(generator, 1, 16)
    return 1 + 0.045 * threads + 0.05 * _noise(generator, 4, 4) + 0.03 * _noise(generator, 32, 32)


_GENERATORS = {
    "plain": _plain,
    "planks": _planks,
    "tiles": _tiles,
    "checks": _checks,
    "stripes": _stripes,
    "bricks": _bricks,
    "fabric": _fabric,
    "grain": _grain,
}
