"""A first look around: make the embedded world, examine it, walk it in several ways, score and draw it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from esceme.errors import DataError
from esceme.files import write_json, write_text
from esceme.metrics import score
from esceme.report import Route, draw_scene
from esceme.synth.dataset import Order, Size, Watch, embedded_world, sights_of_world
from esceme.synth.reader import read_episodes
from esceme.synth.sights import Sights
from esceme.tasks.catalogue import TASKS
from esceme.tasks.doctor import examine
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.gym import NavigationEnv
from esceme.tasks.submission import Prediction, Stand, match, read_predictions, write_submission
from esceme.world import Atlas

TASK, SPLIT = "r2r", "val_unseen"
DRAWN = ("reader, no memory", "reader, cold memory")
"""The walkers that are drawn."""
WANDERED_STEPS = 5
"""How far the random walker goes: as far as the random baseline of R2R."""

Choose = Callable[[Episode, Mapping[str, Any]], int]
"""What to do next in an episode, given the environment's `info`: a candidate's number, or theirs for STOP."""


@dataclass(frozen=True)
class Outcome:
    """What the demo has made, and where it lies."""

    world: Path
    annotations: Path
    connectivity: Path
    predictions: Mapping[str, Path]
    """Walker -> its prediction file."""
    drawing: Path
    drawn: Episode
    sound: int
    """How many files the data doctor found in order."""
    scores: Mapping[str, Mapping[str, float | int]]
    """Walker -> the means of its scores."""


def look_around(
    out: Path, *, size: Size = "small", seed: int = 0, watch: Watch = lambda numbers, label: numbers
) -> Outcome:
    """Make the world and everything below `out`: the walkers' predictions, their scores and a drawing.

    Raises `DataError` should the data doctor find a fault in the world just made.
    """
    order = Order(size=size, seed=seed)
    folder = DataFolder(embedded_world(order, watch=watch))
    sound = _examined(folder.root)
    annotations = folder.splits(TASK)[SPLIT]
    episodes = TASKS[TASK].read(annotations)
    scenes = {episode.scene_id for episode in episodes}
    atlas = Atlas.read(folder.connectivity, features=folder.features[0], scenes=scenes)
    sights = sights_of_world(order, SPLIT)
    walkers: dict[str, Callable[[], dict[str, Prediction]]] = {
        "shortest path": lambda: walk(atlas, episodes, follow_shortest_path(atlas)),
        "random": lambda: walk(atlas, episodes, wander(np.random.default_rng(seed))),
        "reader, no memory": lambda: _read(sights, episodes, "none", seed),
        "reader, cold memory": lambda: _read(sights, episodes, "cold", seed),
        "reader, full memory": lambda: _read(sights, episodes, "full", seed),
    }

    files, walked, scores = {}, {}, {}
    for name, live in walkers.items():
        files[name] = out / "predictions" / f"{name.replace(', ', '_').replace(' ', '_')}.json"
        pairs = match(episodes, live(), file=name)
        write_submission(files[name], TASKS[TASK], pairs, atlas.graphs)
        walked[name] = read_predictions(files[name])
        scores[name] = score(match(episodes, walked[name], file=files[name]), atlas).means()
    write_json(out / "scores.json", scores, indent=2)

    drawn = _telling(episodes, walked)
    drawing = out / "episode.svg"
    routes = {name: walked[name][drawn.episode_id] for name in DRAWN}
    write_text(drawing, draw_episode(atlas, drawn, routes))
    return Outcome(
        world=folder.root,
        annotations=annotations,
        connectivity=folder.connectivity,
        predictions=files,
        drawing=drawing,
        drawn=drawn,
        sound=sound,
        scores=scores,
    )


def _read(
    sights: Mapping[str, Sights],
    episodes: Sequence[Episode],
    memory: Literal["none", "cold", "full"],
    seed: int,
) -> dict[str, Prediction]:
    return read_episodes(sights, episodes, memory, np.random.default_rng(seed))


def _telling(episodes: Sequence[Episode], walked: Mapping[str, Mapping[str, Prediction]]) -> Episode:
    """The episode in which memory saved the most steps."""
    without, cold = (walked[name] for name in DRAWN)
    return max(
        episodes, key=lambda each: len(without[each.episode_id].path) - len(cold[each.episode_id].path)
    )


def _examined(root: Path) -> int:
    findings = examine(root)
    if faults := [finding for finding in findings if finding.level == "fault"]:
        raise DataError(f"{root / faults[0].file}: {faults[0].text}")
    return sum(finding.level == "ok" for finding in findings)


# -- walking ---------------------------------------------------------------------------------------------


def walk(atlas: Atlas, episodes: Sequence[Episode], choose: Choose) -> dict[str, Prediction]:
    """Live every episode in the gymnasium environment; gives the predictions by episode id."""
    env = NavigationEnv(atlas, episodes, max_steps=TASKS[TASK].max_steps)
    predictions = {}
    for episode in episodes:
        _, info = env.reset(options={"episode": episode.episode_id})
        ended = False
        while not ended:
            _, _, terminated, truncated, info = env.step(choose(episode, info))
            ended = terminated or truncated
        trajectory = tuple(Stand(*stand) for stand in info["trajectory"])
        predictions[episode.episode_id] = Prediction(episode.episode_id, trajectory)
    return predictions


def follow_shortest_path(atlas: Atlas) -> Choose:
    """A walker that knows the goal and goes there the shortest way."""

    def choose(episode: Episode, info: Mapping[str, Any]) -> int:
        graph, here = atlas.graph(episode.scene_id), info["viewpoint"]
        choices = [candidate.viewpoint for candidate in graph.candidates(here)]
        if here == episode.goal:
            return len(choices)
        return choices.index(graph.shortest_path(here, episode.goal)[1])

    return choose


def wander(generator: np.random.Generator) -> Choose:
    """A walker that takes five steps to random candidates and stops."""

    def choose(episode: Episode, info: Mapping[str, Any]) -> int:
        candidates = int(info["action_mask"].sum()) - 1  # STOP is allowed, too
        return candidates if info["step"] >= WANDERED_STEPS else int(generator.integers(candidates))

    return choose


def draw_episode(atlas: Atlas, episode: Episode, walked: Mapping[str, Prediction]) -> str:
    """An episode from above: the reference path and where each walker went, as SVG."""
    return draw_scene(
        atlas.graph(episode.scene_id),
        [
            Route("reference path", episode.reference_path, "reference"),
            *(Route(name, prediction.path, "predicted") for name, prediction in walked.items()),
        ],
        title=f"{episode.scene_id}, episode {episode.episode_id}",
        caption=episode.instruction,
    )
