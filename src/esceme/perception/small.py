"""The small encoder: a fixed description of a picture by its colours, its light and its edges; no weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.perception.views import WIDTH

TONES = 26
"""Steps from pure red to pure green, from green to blue, from blue to red: 378 tones on an even lattice."""
CELLS = 104
"""Steps in which the shares of red and of green are counted before cells are shared out among tones."""
LIGHTS, ROUGH_TONES = 6, 2
"""Levels of brightness, each for 6 rough tones: reds, yellows, greens, cyans, blues, magentas."""
LIGHT_CELLS, ROUGH_CELLS = 24, 16
ROWS, COLUMNS = 3, 4
"""The coarse grid of a view in which light and edges are averaged."""
NOTICED = 0.003
"""The share of a view at which a tone counts half of what it can ever count."""
STEEP = 60.0
"""The change between neighbouring pixels, of three colours with 255 levels each, that counts half."""
WHOLE = 256
"""What a cell has to share out: whole numbers, so that sums do not depend on their order."""


class Small:
    """Soft histograms of tones and of brightness, the layout of light, the direction of edges: 498 numbers.

    A tone is the share of red, green and blue in a colour; it stays what it is where a surface turns away
    from the light. All numbers lie between 0 and 1, and a hundredth of the view is plainly seen in them: the
    largest over several views still says what any of them shows.
    """

    name = "small"
    view_width = WIDTH

    def __init__(self) -> None:
        self.tones_of, self.lights_of = _tones_of_cell(), _lights_of_cell()
        self.width = self.tones_of.shape[0] + self.lights_of.shape[0] + ROWS * COLUMNS * (3 + 4)

    def encode(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features (N, width) of pictures (N, h, w, 3)."""
        return np.concatenate([*self._histograms(views), _layout(views), _edges(views)], axis=1)

    def _histograms(self, views: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
        """How much of each view every tone fills, and every brightness: (N, tones), (N, lights)."""
        pixels = views.reshape(len(views), -1, 3)
        total = _total(pixels)
        # One more of each colour: black is grey, and the noise of dark pixels says little about their tone.
        per_share = (np.float32(1) / np.arange(3, 3 * 256 + 1, dtype=np.float32))[total]
        red, green = ((pixels[..., colour] + np.float32(1)) * per_share for colour in (0, 1))
        tone = _cell(red, CELLS) * CELLS + _cell(green, CELLS)
        light = _cell(red, ROUGH_CELLS) * ROUGH_CELLS + _cell(green, ROUGH_CELLS)
        light += total.astype(np.int32) * LIGHT_CELLS // (3 * 255 + 1) * ROUGH_CELLS**2
        return [_shares(tone, self.tones_of), _shares(light, self.lights_of)]


def _cell(share: NDArray[np.float32], cells: int) -> NDArray[np.int32]:
    return (share * np.float32(cells)).astype(np.int32)


def _shares(cells: NDArray[np.int32], bins_of: csr_array[np.float32]) -> NDArray[np.float32]:
    """Pixels by cell (N, pixels) as a soft histogram (N, bins)."""
    count, pixels = cells.shape
    kinds = bins_of.shape[1]
    cells += np.arange(count, dtype=np.int32)[:, None] * kinds
    counts = np.bincount(cells.ravel(), minlength=count * kinds).reshape(count, kinds)
    return _saturated((bins_of @ counts.T.astype(np.float32)).T, NOTICED * WHOLE * pixels)


def _layout(views: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The mean colour of each part of a grid, (N, parts * 3)."""
    return (_parts(views).reshape(len(views), -1) / 255).astype(np.float32)


def _edges(views: NDArray[np.uint8]) -> NDArray[np.float32]:
    """How much brightness changes in four directions, in each part of a grid, (N, parts * 4)."""
    bright = _total(views)
    here = bright[:, 1:-1, 1:-1]
    others = (bright[:, 1:-1, 2:], bright[:, 2:, 1:-1], bright[:, 2:, 2:], bright[:, 2:, :-2])
    strength = [_parts(np.abs(here - other)) for other in others]
    return _saturated(np.stack(strength, axis=-1).reshape(len(views), -1), STEEP)


def _total(pixels: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Red, green and blue together."""
    total = pixels[..., 0].astype(np.int16)
    total += pixels[..., 1]
    total += pixels[..., 2]
    return total


def _saturated(amount: NDArray[Any], half: float) -> NDArray[np.float32]:
    """Amounts from 0 to infinity as numbers from 0 to 1; `half` becomes one half."""
    return (amount / (amount + half)).astype(np.float32)


def _parts(picture: NDArray[Any]) -> NDArray[np.float64]:
    """The means of a grid of parts: (N, h, w, ...) -> (N, ROWS, COLUMNS, ...)."""
    rows = np.linspace(0, picture.shape[1], ROWS + 1).astype(int)
    columns = np.linspace(0, picture.shape[2], COLUMNS + 1).astype(int)
    sums = np.add.reduceat(np.add.reduceat(picture, rows[:-1], 1, np.int32), columns[:-1], 2, np.int64)
    sizes = np.diff(rows)[:, None] * np.diff(columns)
    return sums / sizes.reshape(ROWS, COLUMNS, *[1] * (picture.ndim - 3))


@cache
def _tones_of_cell() -> csr_array[np.float32]:
    """How every cell of (red, green) is shared out among the tones, (378, cells): three of them at most."""
    return csr_array(np.rint(_corners(CELLS, TONES).T * WHOLE).astype(np.float32))


@cache
def _lights_of_cell() -> csr_array[np.float32]:
    """How every cell of (brightness, red, green) is shared out among lights and rough tones, (36, cells)."""
    place = (np.arange(LIGHT_CELLS) + 0.5) / LIGHT_CELLS * (LIGHTS - 1)
    light = np.maximum(1 - np.abs(place[:, None] - np.arange(LIGHTS)), 0)
    shares = np.kron(light, _corners(ROUGH_CELLS, ROUGH_TONES))
    return csr_array(np.rint(shares.T * WHOLE).astype(np.float32))


def _corners(cells: int, steps: int) -> NDArray[np.float64]:
    """How cells of (red, green) belong to the corners of the small triangle of tones that they lie in.

    Tones are all ways to deal `steps` parts to red, green and blue; their triangles tile the plane.
    """
    share = (np.arange(cells) + 0.5) / cells * steps
    deals = np.array([(red, green) for red in range(steps + 1) for green in range(steps + 1 - red)])
    red, green = share[:, None, None] - deals[:, 0], share[None, :, None] - deals[:, 1]
    apart = np.maximum(np.maximum(np.abs(red), np.abs(green)), np.abs(red + green))
    return np.maximum(1 - apart, 0).reshape(cells * cells, -1)
