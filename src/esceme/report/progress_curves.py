"""Curves of scores over the progress of a split: share of episodes, or number of the visit to a scene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from esceme.errors import ConfigError, DataError
from esceme.evaluation.result import Result
from esceme.metrics import COUNTS, METRES
from esceme.report.charts import Curve

ProgressAxis = Literal["share", "visit"]
AXIS_LABELS: dict[ProgressAxis, str] = {
    "share": "share of episodes (%)",
    "visit": "visit to the scene (number of its episode)",
}
BANDWIDTH = {"share": 0.06, "visit": 0.25}
"""Standard deviation of the smoothing kernel: of the share, and of the natural logarithm of the visit."""
POINTS = 41
"""Number of points of a curve."""
DRAWS, LEVEL = 500, 0.95
"""Number of bootstrap samples, and level of the interval."""

Array = NDArray[np.float64]


def measure_label(measure: str) -> str:
    """Return the name of a measure in capital letters, with its unit."""
    unit = " (m)" if measure in METRES else "" if measure in COUNTS else " (%)"
    return f"{measure.upper()}{unit}"


def progress_curve(
    name: str,
    result: Result,
    *,
    measure: str = "spl",
    axis: ProgressAxis = "share",
    draws: int = DRAWS,
    seed: int = 0,
) -> Curve:
    """Return the smoothed mean of a measure over the progress of an evaluation, with a 95 % interval.

    On the axis `share`, the position of an episode is the share of the scene's episodes that were run before
    it, from 0 to 100 %. On the axis `visit`, it is the episode's number in the scene or tour. Every point of
    the curve is a mean over all episodes with Gaussian weights by distance on the axis (of logarithms for
    `visit`). The interval is a bootstrap over paths. Fractions become per cent.
    """
    if axis not in AXIS_LABELS:
        raise ConfigError(f"axis '{axis}': expected one of {', '.join(AXIS_LABELS)}")
    if not result.means:
        raise DataError("these results have no scores, because the goals are withheld; no curve")
    if missing := [episode for episode in result.episodes if measure not in episode.scores]:
        known = ", ".join(missing[0].scores)
        raise ConfigError(f"no measure '{measure}' of every episode; there are {known}")
    factor = 1.0 if measure in METRES | COUNTS else 100.0
    values = factor * np.array([episode.scores[measure] for episode in result.episodes])
    positions, points, shown = _positions(result, axis)
    weights = np.exp(-0.5 * ((points[:, None] - positions) / BANDWIDTH[axis]) ** 2)  # (points, E)
    paths = np.unique([episode.path for episode in result.episodes], return_inverse=True)[1]
    low, high = _bootstrap_band(weights, values, paths, draws=draws, seed=seed)
    mean = (weights @ values) / weights.sum(axis=1)
    return Curve(name=name, xs=shown.tolist(), ys=mean.tolist(), low=low.tolist(), high=high.tolist())


def _positions(result: Result, axis: ProgressAxis) -> tuple[Array, Array, Array]:
    """Return positions on the axis: of all episodes, of the points of a curve, and these as displayed."""
    visits = np.array([episode.visit for episode in result.episodes], dtype=np.float64)
    if axis == "visit":
        shown: Array = np.unique(np.round(np.geomspace(1, visits.max(), POINTS))).astype(np.float64)
        return np.log(visits), np.log(shown), shown
    scenes = np.unique([episode.scene for episode in result.episodes], return_inverse=True)[1]
    order = np.zeros(len(visits))
    for scene in range(int(scenes.max()) + 1):
        members = np.flatnonzero(scenes == scene)  # results are in the order of the evaluation
        order[members] = (np.arange(len(members)) + 0.5) / len(members)
    points = np.linspace(0, 1, POINTS)
    return order, points, 100 * points


def _bootstrap_band(
    weights: Array, values: Array, paths: NDArray[np.integer], *, draws: int, seed: int
) -> tuple[Array, Array]:
    """Return the bounds of the interval at every point; all episodes of a path are resampled together."""
    num_paths = int(paths.max()) + 1
    totals, sizes = (
        np.stack([np.bincount(paths, weights=row, minlength=num_paths) for row in rows])  # (points, paths)
        for rows in (weights * values, weights)
    )
    generator = np.random.default_rng(seed)
    times = generator.multinomial(num_paths, np.full(num_paths, 1 / num_paths), size=draws).T.astype(float)
    samples = (totals @ times) / np.maximum(sizes @ times, 1e-12)  # (points, draws)
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return low, high


def progress_curves(
    names: Sequence[str],
    results: Sequence[Result],
    *,
    measure: str = "spl",
    axis: ProgressAxis = "share",
    draws: int = DRAWS,
) -> list[Curve]:
    """Return the curve of every result; see `progress_curve`."""
    return [
        progress_curve(name, result, measure=measure, axis=axis, draws=draws)
        for name, result in zip(names, results, strict=True)
    ]
