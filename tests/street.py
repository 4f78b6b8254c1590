"""A street of very small houses as a data folder: for tests that need many scenes and short walks.

Every house has a dozen viewpoints at random; features and instructions are noise. The R2R file takes turns
between the houses, so that the order of a scene's episodes is not the order of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from drawn_runs import drawn_run
from esceme.evaluation.context import EvaluationContext, load_context
from esceme.evaluation.options import EvaluationConfig
from esceme.files import write_json, write_text
from esceme.tasks.r2r import Record, read_r2r
from esceme.tasks.text import build_wordpiece
from esceme.tasks.tours import make_tours, write_tours
from esceme.world import SceneGraph, read_scenes
from esceme.world.features import write_features
from esceme.world.geometry import VIEWS

SPLIT = "val_unseen"
WIDTH = 12
VIEWPOINTS = 12
WALKS = (3, 1, 2, 1, 1)
"""How many walks each house has; each is told twice."""
EPISODES = 2 * sum(WALKS)
WEIGHTS = 23
"""A draw of weights whose walks have all lengths, some up to the limit, and to which memory matters."""
WORDS = ("go", "turn", "left", "right", "past", "the", "sofa", "lamp", "door", "wait")


class Street(NamedTuple):
    """A data folder and a small network for it."""

    root: Path
    run: Path

    def plan(self, memory: str = "cold", **changes: object) -> EvaluationConfig:
        """An evaluation here."""
        settings = {"run": str(self.run), "data": str(self.root), "split": SPLIT, "batch": 3} | changes
        return EvaluationConfig(memory=memory, **settings)  # type: ignore[arg-type]

    def stage(self, memory: str = "cold", **changes: object) -> EvaluationContext:
        """An evaluation here, loaded."""
        return load_context(self.plan(memory, **changes))

    @property
    def tours(self) -> str:
        """The file of tours, three episodes each at most."""
        return str(self.root / "tours" / "tours_iVLN.json")


def write_street(root: Path, *, seed: int = 0) -> Street:
    """Write the houses below `root/data` and a run that fits them to `root/run`."""
    rng, data = np.random.default_rng(seed), root / "data"
    scenes = [f"number-{house}" for house in range(len(WALKS))]
    for scene in scenes:
        _write_house(data, scene, rng)
    graphs = read_scenes(data / "connectivity")
    panoramas = {
        f"{scene}_{name}": rng.normal(size=(VIEWS, WIDTH))
        for scene, graph in graphs.items()
        for name in graph.viewpoints
    }
    write_features(data / "features" / "street.hdf5", panoramas.items())
    write_text(data / "tokenizer" / "vocab.txt", "\n".join(build_wordpiece([" ".join(WORDS)])) + "\n")
    turns = [
        scene
        for turn in range(max(WALKS))
        for scene, walks in zip(scenes, WALKS, strict=True)
        if turn < walks
    ]
    annotations = data / "R2R" / f"R2R_{SPLIT}.json"
    write_json(annotations, [_record(graphs[scene], number, rng) for number, scene in enumerate(turns)])
    write_tours(data / "tours" / "tours_iVLN.json", {SPLIT: make_tours(read_r2r(annotations), longest=3)})
    return Street(data, drawn_run(root / "run", data, seed=WEIGHTS))


def _write_house(data: Path, scene: str, rng: np.random.Generator) -> None:
    places = rng.uniform(0, 8, (VIEWPOINTS, 3)) * [1, 1, 0.3]
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
    joined = gaps < 3
    joined |= np.eye(VIEWPOINTS, k=1, dtype=bool) | np.eye(VIEWPOINTS, k=-1, dtype=bool)
    np.fill_diagonal(joined, False)
    records = [
        {
            "image_id": f"{scene[-1]}{chr(97 + index)}",
            "pose": [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1],
            "included": True,
            "unobstructed": joined[index].tolist(),
        }
        for index, (x, y, z) in enumerate(places.tolist())
    ]
    write_json(data / "connectivity" / f"{scene}_connectivity.json", records)


def _record(graph: SceneGraph, number: int, rng: np.random.Generator) -> Record:
    """A walk of two moves or more, told in two ways."""
    while True:
        start, goal = rng.choice(graph.viewpoints, 2, replace=False).tolist()
        if len(path := graph.shortest_path(start, goal)) > 2:
            break
    told = [" ".join(rng.choice(WORDS, int(rng.integers(3, 12)))) for _ in range(2)]
    heading = float(rng.uniform(0, 2 * np.pi))
    return Record(scan=graph.scene_id, path_id=number, path=path, heading=heading, instructions=told)
