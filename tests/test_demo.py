"""The demo: five walkers, and everything they leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from esceme.demo import DRAWN, Outcome, follow_shortest_path, look_around, walk, wander
from esceme.metrics import score
from esceme.tasks.episode import Episode
from esceme.tasks.r2r import read_r2r
from esceme.tasks.submission import match, read_predictions
from esceme.world import Atlas


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return look_around(tmp_path_factory.mktemp("demo"), size="tiny")


@pytest.fixture(scope="module")
def unseen(toy_root: Path) -> tuple[Atlas, list[Episode]]:
    atlas = Atlas.read(toy_root / "connectivity", features=toy_root / "features/toy.hdf5", width=32)
    return atlas, read_r2r(toy_root / "R2R/R2R_val_unseen.json")


def test_who_knows_the_way_follows_it_exactly(unseen: tuple[Atlas, list[Episode]]) -> None:
    atlas, episodes = unseen
    walked = walk(atlas, episodes, follow_shortest_path(atlas))
    for episode in episodes:
        path = walked[episode.episode_id].path
        assert (path[0], path[-1]) == (episode.start, episode.goal)
        length = sum(
            atlas.graph(episode.scene_id).distance(a, b) for a, b in zip(path, path[1:], strict=False)
        )
        shortest = atlas.graph(episode.scene_id).distance(episode.start, episode.goal)
        assert length == pytest.approx(shortest)


def test_who_wanders_takes_five_steps_along_edges_and_repeats_them_with_the_seed(
    unseen: tuple[Atlas, list[Episode]],
) -> None:
    atlas, episodes = unseen
    first = walk(atlas, episodes, wander(np.random.default_rng(1)))
    assert first == walk(atlas, episodes, wander(np.random.default_rng(1)))
    assert first != walk(atlas, episodes, wander(np.random.default_rng(2)))
    for episode in episodes:
        path = first[episode.episode_id].path
        graph = atlas.graph(episode.scene_id)
        assert len(path) == 6
        assert all(graph.adjacent(a, b) for a, b in zip(path, path[1:], strict=False))


def test_written_predictions_score_as_the_demo_says(seen: Outcome) -> None:
    atlas = Atlas.read(seen.connectivity)
    episodes = read_r2r(seen.annotations)
    for name, file in seen.predictions.items():
        pairs = match(episodes, read_predictions(file), file=file)
        assert score(pairs, atlas).means() == seen.scores[name]
    stored = json.loads((seen.drawing.parent / "scores.json").read_text())
    assert stored == seen.scores


def test_knowing_the_way_beats_wandering(seen: Outcome) -> None:
    knows, wanders = seen.scores["shortest path"], seen.scores["random"]
    assert (knows["sr"], knows["ne"]) == (1.0, 0.0)
    assert knows["spl"] == pytest.approx(1.0)
    assert wanders["sr"] < 0.2 and wanders["ndtw"] < knows["ndtw"]


def test_who_remembers_walks_less(seen: Outcome) -> None:
    without, cold, full = (seen.scores[f"reader, {memory} memory"] for memory in ("no", "cold", "full"))
    assert without["spl"] + 0.05 < cold["spl"] <= full["spl"]
    assert full["sr"] >= 0.9


def test_the_drawing_shows_the_episode_with_and_without_memory(seen: Outcome) -> None:
    drawing = seen.drawing.read_text()
    assert drawing.startswith("<svg")
    for words in (seen.drawn.episode_id, "reference path", *DRAWN):
        assert words in drawing


def test_the_same_seed_leaves_the_same_files(seen: Outcome, tmp_path: Path) -> None:
    again = look_around(tmp_path, size="tiny")
    root = seen.drawing.parent
    names = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
    assert names == {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert all((root / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)
    assert again.scores == seen.scores
