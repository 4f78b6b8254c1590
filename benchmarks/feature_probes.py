"""Linear probes of the small encoder's features on unseen houses: which objects does a view show?

Viewpoints are captured as for the dataset, including JPEG compression. One probe predicts the objects that
cover at least one hundredth of a view from the view's features. The other predicts the objects in any
candidate view of a viewpoint from the maximum of their features, which is what the scene memory stores.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Quality, print_results
from esceme.perception.encoders import Encoder, make_encoder
from esceme.synth.capture import capture_viewpoint
from esceme.synth.furniture import CATALOGUE
from esceme.synth.house import build_graph, generate_house
from esceme.synth.render import Renderer
from esceme.synth.visibility import MIN_COVERAGE

NUM_TRAIN, NUM_UNSEEN, NUM_VIEWPOINTS = 16, 6, 20
"""Houses to fit on, houses to test in, and viewpoints captured in each."""
RIDGE = 3.0
"""Weight of the L2 penalty of both probes."""
MIN_POSITIVES = 5
"""A kind is scored if at least this many test views (or viewpoints) show it."""
KINDS = tuple(CATALOGUE.kinds)


class Samples(NamedTuple):
    """Features (N, D) and the visible furniture kinds (N, K)."""

    features: NDArray[np.float32]
    labels: NDArray[np.bool_]


def run(_data: Path | None = None) -> Iterator[Quality]:
    encoder = make_encoder("small")
    train = capture_samples(range(NUM_TRAIN), encoder)
    unseen = capture_samples(range(NUM_TRAIN, NUM_TRAIN + NUM_UNSEEN), encoder)
    bound = "objects that cover half to two hundredths; then the number of training houses"
    names = ("features of a view -> visible objects", "maximum over the candidate views -> visible objects")
    for name, target, fitted, tested in zip(names, (0.9, 0.8), train, unseen, strict=True):
        value, chance, kinds = mean_average_precision(fit(fitted)(tested.features), tested.labels)
        count = f"{len(tested.features):,} in {NUM_UNSEEN} unseen houses, {kinds} kinds"
        yield Quality(f"{name} ({count}), mAP", value, target, chance, bound)


def capture_samples(seeds: Sequence[int], encoder: Encoder) -> tuple[Samples, Samples]:
    """Return samples of single views, and of the pooled candidate views of the same viewpoints."""
    views: list[Samples] = []
    pooled: list[Samples] = []
    for seed in seeds:
        house = generate_house("probing", seed)
        renderer, graph = Renderer(house), build_graph(house)
        kind_of = np.array([[item.name == kind for kind in KINDS] for item in house.furniture], np.float32)
        for index in np.linspace(0, len(house.viewpoints) - 1, NUM_VIEWPOINTS).astype(int).tolist():
            capture = capture_viewpoint(house, renderer, index, encoder)
            labels = np.greater_equal(capture.coverage @ kind_of, MIN_COVERAGE)
            row = graph.index(house.viewpoints[index].viewpoint_id)
            candidates = graph.views[row, : graph.degrees[row]]
            views.append(Samples(capture.features, labels))
            features = capture.features[candidates].max(axis=0)[None]
            pooled.append(Samples(features, labels[candidates].any(axis=0)[None]))
    return _concatenate(views), _concatenate(pooled)


def _concatenate(parts: list[Samples]) -> Samples:
    return Samples(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def fit(samples: Samples) -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
    """Fit linear scores of every kind, (N, D) -> (N, K), by ridge regression."""
    mean = samples.features.mean(axis=0, dtype=np.float64)
    centred = samples.features - mean
    square = centred.T @ centred + RIDGE * np.eye(centred.shape[1])
    weights = np.linalg.solve(square, centred.T @ (samples.labels - samples.labels.mean(axis=0)))
    return lambda features: (features - mean) @ weights


def mean_average_precision(
    scores: NDArray[np.float64], labels: NDArray[np.bool_]
) -> tuple[float, float, int]:
    """Return mean average precision over kinds, its value for random scores, and the number of kinds."""
    scored = np.flatnonzero(labels.sum(axis=0) >= MIN_POSITIVES)
    right = np.take_along_axis(labels, np.argsort(-scores, axis=0, kind="stable"), axis=0)[:, scored]
    share = right.cumsum(axis=0) / np.arange(1, len(right) + 1)[:, None]
    precisions = (share * right).sum(axis=0) / right.sum(axis=0)
    return float(precisions.mean()), float(right.mean()), len(scored)


if __name__ == "__main__":
    sys.exit(print_results(run()))
