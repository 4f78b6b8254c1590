"""Statistics of graphs and instructions of the embedded world, beside those of the real data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from benchmarks.measure import WorldStatistic, data_root, print_results
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.text import SPECIAL, Vocabulary
from esceme.world import SceneGraph, read_scenes

SPLITS = ("train", "val_seen", "val_unseen")


def run(data: Path | None = None) -> Iterator[WorldStatistic]:
    ours = describe(embedded_world(WorldConfig("small")))
    real = {} if data is None else describe(data)
    for name, value in ours.items():
        yield WorldStatistic(name, value, real.get(name, "not here"))


def describe(root: Path) -> dict[str, str]:
    """Return statistics of the graphs and of R2R's paths and instructions by name."""
    folder = DataFolder(root)
    graphs = read_scenes(folder.connectivity)
    degrees = np.concatenate([graph.degrees for graph in graphs.values()])
    lengths = np.concatenate([graph.lengths[graph.neighbours >= 0] for graph in graphs.values()])
    episodes = [episode for split in SPLITS for episode in read_r2r(folder.splits("r2r")[split])]
    paths = {episode.path_id: episode for episode in episodes}.values()
    texts = [episode.instruction for episode in episodes]
    return {
        "scenes": f"{len(graphs)}",
        "viewpoints per scene": _spread([len(graph) for graph in graphs.values()], 0),
        "candidates per viewpoint": _spread(degrees, 2),
        "dead ends": f"{np.mean(degrees == 1):.1%}",
        "metres per edge": _spread(lengths, 2),
        "paths": f"{len(paths):,}",
        "edges per path": _spread([len(path.reference_path) - 1 for path in paths], 2),
        "metres per path": _spread(
            [_metres(graphs[path.scene_id], path.reference_path) for path in paths], 1
        ),
        "instructions": f"{len(texts):,}",
        "words per instruction (by white space)": _spread([len(text.split()) for text in texts], 1),
        "different words": _vocabulary(texts, 1),
        "different words, used 5 times or more": _vocabulary(texts, 5),
    }


def _metres(graph: SceneGraph, path: tuple[str, ...]) -> float:
    return sum(graph.distance(a, b) for a, b in zip(path, path[1:], strict=False))


def _vocabulary(texts: list[str], min_count: int) -> str:
    return f"{Vocabulary.build(texts, min_count=min_count).size - len(SPECIAL):,}"


def _spread(values: ArrayLike, digits: int) -> str:
    """Return the mean, the standard deviation, and the range of the central 90 %."""
    low, high = np.quantile(values, [0.05, 0.95])
    return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


if __name__ == "__main__":
    sys.exit(print_results(run(data_root())))
