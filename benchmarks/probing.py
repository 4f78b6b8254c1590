"""How much the features of the small encoder tell: linear probes for what a view shows, on unseen houses.

A place is photographed as for the dataset, JPEG included, and the encoder sees its pixels. One probe reads
from a view's features which things fill at least a hundredth of it. The other reads from the largest features
over a viewpoint's candidate views, which is all that the scene memory keeps of it, what any of these shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Quality, line
from esceme.perception.encode import Encoder, make_encoder
from esceme.synth.capture import capture
from esceme.synth.house import graph_of, make_house
from esceme.synth.palette import SHADES
from esceme.synth.render import Renderer
from esceme.synth.sights import NOTICED

TRAIN, UNSEEN, PLACES = 16, 6, 20
"""Houses to learn from, houses to be tested in, and places photographed in each."""
RIDGE = 3.0
"""What keeps the probes' weights small; one value for both."""
FEWEST = 5
"""A kind of thing is scored when at least so many views, or viewpoints, of the unseen houses show it."""
KINDS = tuple(SHADES)


class Seen(NamedTuple):
    """Features (N, D) and which kinds of things they come from (N, K)."""

    features: NDArray[np.float32]
    shown: NDArray[np.bool_]


def run(_data: Path | None = None) -> Iterator[Quality]:
    encoder = make_encoder("small")
    train = photograph(range(TRAIN), encoder)
    unseen = photograph(range(TRAIN, TRAIN + UNSEEN), encoder)
    bound = (
        "things that fill about a hundredth, half as much to twice; then the number of houses learned from"
    )
    names = ("a view's features -> what it shows", "largest of the candidate views -> what they show")
    for name, least, learned, tested in zip(names, (0.9, 0.8), train, unseen, strict=True):
        value, chance, kinds = mean_average_precision(fit(learned)(tested.features), tested.shown)
        count = f"{len(tested.features):,} in {UNSEEN} unseen houses, {kinds} kinds"
        yield Quality(f"{name} ({count}), mAP", value, least, chance, bound)


def photograph(seeds: Sequence[int], encoder: Encoder) -> tuple[Seen, Seen]:
    """Single views of some places of each house, and the same places as memory keeps them."""
    views: list[Seen] = []
    kept: list[Seen] = []
    for seed in seeds:
        house = make_house("probing", seed)
        renderer, graph = Renderer(house), graph_of(house)
        kind_of = np.array([[thing.name == kind for kind in KINDS] for thing in house.furniture], np.float32)
        for place in np.linspace(0, len(house.places) - 1, PLACES).astype(int).tolist():
            shot = capture(house, renderer, place, encoder)
            shown = np.greater_equal(shot.share @ kind_of, NOTICED)
            row = graph.index(house.places[place].viewpoint)
            leading = graph.views[row, : graph.degrees[row]]
            views.append(Seen(shot.features, shown))
            kept.append(Seen(shot.features[leading].max(axis=0)[None], shown[leading].any(axis=0)[None]))
    return _joined(views), _joined(kept)


def _joined(parts: list[Seen]) -> Seen:
    return Seen(*(np.concatenate(each) for each in zip(*parts, strict=True)))


def fit(seen: Seen) -> Callable[[NDArray[np.float32]], NDArray[np.float64]]:
    """Linear scores of every kind, (N, D) -> (N, K), by ridge regression on what was shown."""
    middle = seen.features.mean(axis=0, dtype=np.float64)
    centred = seen.features - middle
    square = centred.T @ centred + RIDGE * np.eye(centred.shape[1])
    weights = np.linalg.solve(square, centred.T @ (seen.shown - seen.shown.mean(axis=0)))
    return lambda features: (features - middle) @ weights


def mean_average_precision(scores: NDArray[np.float64], shown: NDArray[np.bool_]) -> tuple[float, float, int]:
    """The mean of the kinds' average precisions, what random scores would have, and how many kinds count.

    Average precision: walk down the list from the highest score; at each one that is right, note the share
    that was right so far; take the mean of the notes.
    """
    scored = np.flatnonzero(shown.sum(axis=0) >= FEWEST)
    right = np.take_along_axis(shown, np.argsort(-scores, axis=0, kind="stable"), axis=0)[:, scored]
    share = right.cumsum(axis=0) / np.arange(1, len(right) + 1)[:, None]
    precisions = (share * right).sum(axis=0) / right.sum(axis=0)
    return float(precisions.mean()), float(right.mean()), len(scored)


def main() -> int:
    found = list(run())
    for each in found:
        print(line(each.row()))
    return 0 if all(each.met for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
