"""Descriptions of routes by the speaker of a run's planner: typical words, and generated instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from esceme.errors import ConfigError
from esceme.learning.speaker_fitting import path_steps
from esceme.memory.scene_map import MapBank
from esceme.planner_training import atlas_viewpoints, load_planner_data
from esceme.planning.planner_file import load_planner
from esceme.planning.routes import RouteLimits, Start, shortest_routes
from esceme.runs import Run, load_run
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import R2RRecord
from esceme.tasks.split import load_features
from esceme.tasks.text import SPECIAL, Vocabulary
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEW_HEADINGS, nearest_view

RARE_WORD = 1e-3
"""Added to the probability of a word in all instructions, so that rare words do not count as typical."""


def describe_route(
    run: str | Path,
    data: str | Path,
    scene: str,
    viewpoints: Sequence[str],
    *,
    features: str | None = None,
    heading: float = 0.0,
    num_words: int = 8,
) -> list[tuple[str, list[str]]]:
    """Return the words that the speaker of a run expects at each step of a route, most typical first.

    Typical words are those whose probability at a step exceeds that in all instructions the most.
    """
    speaker = load_planner(run)[1].speaker
    loaded, folder = load_run(run), DataFolder(data)
    tokenizer = _vocabulary(run, loaded, folder)
    store = load_features(folder, features, name=loaded.config.feature_source, width=speaker.codebook.width)
    atlas = Atlas.read(folder.connectivity, features=store, scenes=[scene])
    maps = MapBank.from_atlas(atlas, codebook=speaker.codebook, keeps_features=False)
    maps.remember_at(atlas.locate(scene, viewpoints).tolist())
    steps = path_steps(maps[scene], viewpoints, heading)
    everything = np.arange(speaker.num_words)
    lift = speaker.emissions(maps[scene], steps, everything) / (speaker.tables.background + RARE_WORD)
    lift[:, : len(SPECIAL)] = 0
    best = np.argsort(-lift, axis=1, kind="stable")[:, :num_words]
    names = [maps[scene].name(int(node)) for node in steps.nodes]
    words = [[tokenizer.entries[word] for word in row] for row in best.tolist()]
    return list(zip(names, words, strict=True))


def generate_instructions(
    run: str | Path,
    data: str | Path,
    num_paths: int,
    *,
    features: str | None = None,
    seed: int = 0,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[R2RRecord]:
    """Return random shortest paths of the scenes that a run was trained on, with generated instructions.

    Each word describes a random step by the speaker's alignment, or is one of its background; the number of
    words is that of a random training instruction. Equal inputs give equal paths and instructions.
    """
    loaded, speaker = load_planner_data(run, data, features=features), load_planner(run)[1].speaker
    vocabulary = _vocabulary(run, loaded.run, DataFolder(data))
    scenes = sorted({episode.scene_id for episode in loaded.train})
    maps = MapBank.from_atlas(loaded.atlas, codebook=speaker.codebook, keeps_features=False)
    maps.remember_at(atlas_viewpoints(loaded.atlas, scenes))
    generator, records = np.random.default_rng([seed, 7]), list[R2RRecord]()
    least, greatest = speaker.tables.num_moves
    everything, share = np.arange(speaker.num_words), speaker.tables.background_share
    while len(records) < num_paths:
        scene = scenes[int(generator.integers(len(scenes)))]
        scene_map = maps[scene]
        names = scene_map.viewpoints
        heading = float(VIEW_HEADINGS[int(generator.integers(len(VIEW_HEADINGS)))])
        start = Start(scene_map.node(names[int(generator.integers(len(names)))]), int(nearest_view(heading)))
        routes = shortest_routes(scene_map, start, RouteLimits(max_moves=greatest))
        rows = np.flatnonzero(routes.num_moves >= min(least, routes.num_moves.max()))
        places = routes.places[int(rows[generator.integers(len(rows))])]
        path = [scene_map.name(int(node)) for node in routes.area.nodes[places[places >= 0]]]
        emissions = speaker.emissions(scene_map, path_steps(scene_map, path, heading), everything)
        example = loaded.train[int(generator.integers(len(loaded.train)))]
        alignment = speaker.alignment(len(emissions), len(loaded.encode(example)))
        chances = (1 - share) * (alignment.T @ emissions) + share * speaker.tables.background  # (L, V)
        chances[:, : len(SPECIAL)] = 0
        totals = np.cumsum(chances, 1)
        words = (totals < generator.random(len(totals))[:, None] * totals[:, -1:]).sum(1)
        text = " ".join(vocabulary.entries[word] for word in words.tolist())
        records.append(
            R2RRecord(
                scan=scene,
                path_id=f"speaker-{seed}-{len(records)}",
                path=path,
                heading=heading,
                instructions=[text],
            )
        )
        on_progress(len(records), num_paths)
    return records


def _vocabulary(run: str | Path, loaded: Run, folder: DataFolder) -> Vocabulary:
    tokenizer = loaded.tokenizer(folder)
    if not isinstance(tokenizer, Vocabulary):
        raise ConfigError(f"{run}: has no vocabulary of words of its own to describe routes with")
    return tokenizer
