"""Small encoder: fixed features of colours, brightness and edges, without weights."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from esceme.perception.views import WIDTH

TONE_STEPS = 26
"""Number of steps from one pure colour to another. All mixtures of red, green and blue give 378 tones."""
TONE_CELLS = 104
"""Number of cells per axis of the (red, green) histogram, whose counts are then distributed over tones."""
BRIGHTNESS_LEVELS, ROUGH_TONE_STEPS = 6, 2
"""Number of brightness levels, and of steps between pure colours, which give 6 rough tones."""
BRIGHTNESS_CELLS, ROUGH_CELLS = 24, 16
"""Number of cells of the (brightness, red, green) histogram along brightness, and along red and green."""
ROWS, COLUMNS = 3, 4
"""Rows and columns of the coarse grid in which colours and edges of a view are averaged."""
HALF_SHARE = 0.003
"""Share of a view that a tone must cover for its feature to be one half."""
HALF_EDGE = 60.0
"""Difference between neighbouring pixels (sum over channels, 0 to 765) at which a feature is one half."""
WEIGHT_SUM = 256
"""Sum of the weights of a cell. Weights are integers, so that results do not depend on the order of sums."""


class SmallEncoder:
    """Soft histograms of tones and brightness, mean colours of a grid and edge directions: 498 features.

    A tone is the share of red, green and blue in a colour; it does not depend on brightness. All features are
    between 0 and 1. An object that covers a hundredth of a view changes the features clearly, so that the
    maximum over several views still contains the objects of every view.
    """

    name = "small"
    view_width = WIDTH

    def __init__(self) -> None:
        self.tone_weights, self.light_weights = _tone_weights(), _brightness_weights()
        self.width = self.tone_weights.shape[0] + self.light_weights.shape[0] + ROWS * COLUMNS * (3 + 4)

    def encode(self, views: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the features (N, width) of view images (N, h, w, 3)."""
        colours = (_grid_cell_means(views).reshape(len(views), -1) / 255).astype(np.float32)
        return np.concatenate([*self._histograms(views), colours, _edge_features(views)], axis=1)

    def _histograms(self, views: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
        """Return soft histograms of tones (N, 378) and of brightness by rough tone (N, 36)."""
        pixels = views.reshape(len(views), -1, 3)
        total = _channel_sum(pixels)
        # Adding 1 to each channel makes black grey and reduces the noise of dark pixels.
        scale = (np.float32(1) / np.arange(3, 3 * 256 + 1, dtype=np.float32))[total]
        red, green = ((pixels[..., channel] + np.float32(1)) * scale for channel in (0, 1))
        tone = _cell_index(red, TONE_CELLS) * TONE_CELLS + _cell_index(green, TONE_CELLS)
        light = _cell_index(red, ROUGH_CELLS) * ROUGH_CELLS + _cell_index(green, ROUGH_CELLS)
        light += total.astype(np.int32) * BRIGHTNESS_CELLS // (3 * 255 + 1) * ROUGH_CELLS**2
        return [_soft_histogram(tone, self.tone_weights), _soft_histogram(light, self.light_weights)]


def _cell_index(share: NDArray[np.float32], cells: int) -> NDArray[np.int32]:
    """Return the index, from 0, of the cell of equal width that contains each share in [0, 1)."""
    return (share * np.float32(cells)).astype(np.int32)


def _soft_histogram(cells: NDArray[np.int32], weights: csr_array[np.float32]) -> NDArray[np.float32]:
    """Return histograms (N, bins), given the cell index of every pixel (N, pixels).

    `weights` (bins, cells) distributes every cell over bins.
    """
    count, num_pixels = cells.shape
    num_cells = weights.shape[1]
    cells += np.arange(count, dtype=np.int32)[:, None] * num_cells
    counts = np.bincount(cells.ravel(), minlength=count * num_cells).reshape(count, num_cells)
    return _saturate((weights @ counts.T.astype(np.float32)).T, HALF_SHARE * WEIGHT_SUM * num_pixels)


def _edge_features(views: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the mean change of brightness in four directions for every grid cell, (N, grid cells * 4)."""
    bright = _channel_sum(views)
    centre = bright[:, 1:-1, 1:-1]
    neighbours = (bright[:, 1:-1, 2:], bright[:, 2:, 1:-1], bright[:, 2:, 2:], bright[:, 2:, :-2])
    strength = [_grid_cell_means(np.abs(centre - neighbour)) for neighbour in neighbours]
    return _saturate(np.stack(strength, axis=-1).reshape(len(views), -1), HALF_EDGE)


def _channel_sum(pixels: NDArray[np.uint8]) -> NDArray[np.int16]:
    total = pixels[..., 0].astype(np.int16)
    total += pixels[..., 1]
    total += pixels[..., 2]
    return total


def _saturate(amount: NDArray[Any], half: float) -> NDArray[np.float32]:
    """Map non-negative amounts to the range from 0 to 1; the amount `half` is mapped to one half."""
    return (amount / (amount + half)).astype(np.float32)


def _grid_cell_means(image: NDArray[Any]) -> NDArray[np.float64]:
    """Return the mean of every grid cell: (N, h, w, ...) -> (N, ROWS, COLUMNS, ...)."""
    rows = np.linspace(0, image.shape[1], ROWS + 1).astype(int)
    columns = np.linspace(0, image.shape[2], COLUMNS + 1).astype(int)
    sums = np.add.reduceat(np.add.reduceat(image, rows[:-1], 1, np.int32), columns[:-1], 2, np.int64)
    sizes = np.diff(rows)[:, None] * np.diff(columns)
    return sums / sizes.reshape(ROWS, COLUMNS, *[1] * (image.ndim - 3))


@cache
def _tone_weights() -> csr_array[np.float32]:
    """Return weights (378, cells) that distribute every (red, green) cell over at most three tones."""
    return csr_array(np.rint(_barycentric_weights(TONE_CELLS, TONE_STEPS).T * WEIGHT_SUM).astype(np.float32))


@cache
def _brightness_weights() -> csr_array[np.float32]:
    """Return weights (36, cells) that distribute cells over 6 levels of brightness x 6 rough tones."""
    level = (np.arange(BRIGHTNESS_CELLS) + 0.5) / BRIGHTNESS_CELLS * (BRIGHTNESS_LEVELS - 1)
    light = np.maximum(1 - np.abs(level[:, None] - np.arange(BRIGHTNESS_LEVELS)), 0)
    weights = np.kron(light, _barycentric_weights(ROUGH_CELLS, ROUGH_TONE_STEPS))
    return csr_array(np.rint(weights.T * WEIGHT_SUM).astype(np.float32))


def _barycentric_weights(cells: int, steps: int) -> NDArray[np.float64]:
    """Return weights (cells * cells, tones) that distribute every (red, green) cell over the nearest tones.

    Tones are all partitions of `steps` into red, green and blue. They are the corners of triangles that tile
    the plane; a cell is distributed over the corners of its triangle.
    """
    share = (np.arange(cells) + 0.5) / cells * steps
    tones = np.array([(red, green) for red in range(steps + 1) for green in range(steps + 1 - red)])
    red, green = share[:, None, None] - tones[:, 0], share[None, :, None] - tones[:, 1]
    distance = np.maximum(np.maximum(np.abs(red), np.abs(green)), np.abs(red + green))
    return np.maximum(1 - distance, 0).reshape(cells * cells, -1)
