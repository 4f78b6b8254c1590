"""Scripted agents in the unseen houses of the embedded world: are instructions sufficient, does memory help?

`random` moves five times to a random candidate, as R2R's baseline does. `shortest path` knows the goal. The
`reader` parses the instruction and gets the rendered objects of each view, in three versions: without memory,
with a memory that is empty at the first episode of a house and grows over the episodes of the file, and with
a memory of every viewpoint. The memory of a viewpoint holds the objects in its candidate views.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks.instruction_follower import FollowerMemory, InstructionFollower, world_visibility
from benchmarks.measure import AgentScores, print_results
from esceme.metrics import Scores, score
from esceme.synth.dataset import WorldConfig, embedded_world
from esceme.synth.visibility import Visibility
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.world import Atlas, read_scenes

CONFIG = WorldConfig("small")
SPLIT = "val_unseen"
SEEDS, DRAWS = 5, 1000
"""Number of seeds of the agents, and number of bootstrap samples."""
RANDOM_STEPS = 5
"""Number of moves of the random agent."""

AgentFunction = Callable[[Visibility, Sequence[Episode], np.random.Generator], Iterator[list[int]]]
"""Runs the episodes of one house in order; yields the path of each."""


def run(_data: Path | None = None) -> Iterator[AgentScores]:
    episodes, visibility = load_world()
    atlas = Atlas(house.graph for house in visibility.values())
    results = {name: score_agent(agent, episodes, visibility, atlas) for name, agent in AGENTS.items()}
    sr = {name: _mean(scores, "sr") for name, scores in results.items()}
    spl = {name: _mean(scores, "spl") for name, scores in results.items()}
    expected = {
        "random": ("SR < 10", sr["random"] < 10),
        "shortest path": ("SR = 100", sr["shortest path"] == 100),
        "reader, no memory": (
            "SPL <= full - 10",
            spl["reader, no memory"] <= spl["reader, full memory"] - 10,
        ),
        "reader, cold memory": (
            "SPL >= none + 5",
            spl["reader, cold memory"] >= spl["reader, no memory"] + 5,
        ),
        "reader, full memory": ("SR >= 90", sr["reader, full memory"] >= 90),
    }
    for name, scores in results.items():
        yield AgentScores.from_seeds(name, scores, *expected[name], draws=DRAWS)


def load_world() -> tuple[list[Episode], dict[str, Visibility]]:
    """Return the unseen episodes of the embedded world and the visibility of their houses."""
    folder = DataFolder(embedded_world(CONFIG))
    visibility = world_visibility(CONFIG, SPLIT)
    for scene, graph in read_scenes(folder.connectivity, list(visibility)).items():
        generated = visibility[scene].graph
        is_same = generated.viewpoints == graph.viewpoints and np.allclose(
            generated.positions, graph.positions
        )
        assert is_same, f"{scene}: the cached house differs from the generated one; remove the cached world"
    return read_r2r(folder.splits("r2r")[SPLIT]), visibility


def score_agent(
    agent: AgentFunction, episodes: Sequence[Episode], visibility: Mapping[str, Visibility], atlas: Atlas
) -> list[Scores]:
    """Return the scores of an agent for each seed."""
    results = []
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        pairs = []
        for scene, group in groupby(episodes, key=lambda episode: episode.scene_id):
            group = list(group)
            names = visibility[scene].graph.viewpoints
            for episode, path in zip(group, agent(visibility[scene], group, generator), strict=True):
                points = tuple(TrajectoryPoint(names[viewpoint]) for viewpoint in path)
                pairs.append((episode, Prediction(episode.episode_id, points)))
        results.append(score(pairs, atlas))
    return results


def _mean(scores: Sequence[Scores], measure: str) -> float:
    return 100 * float(np.mean([result.values[measure].mean() for result in scores]))


# -- agents ----------------------------------------------------------------------------------------------


def move_randomly(
    visibility: Visibility, episodes: Sequence[Episode], generator: np.random.Generator
) -> Iterator[list[int]]:
    graph = visibility.graph
    for episode in episodes:
        path = [graph.index(episode.start)]
        for _ in range(RANDOM_STEPS):
            neighbours = graph.neighbours[path[-1], : graph.degrees[path[-1]]]
            path.append(int(generator.choice(neighbours)))
        yield path


def follow_shortest_path(
    visibility: Visibility, episodes: Sequence[Episode], generator: np.random.Generator
) -> Iterator[list[int]]:
    graph = visibility.graph
    for episode in episodes:
        yield [graph.index(name) for name in graph.shortest_path(episode.start, episode.goal)]


def follow_instructions(remember: Callable[[Visibility], FollowerMemory]) -> AgentFunction:
    def run_episodes(
        visibility: Visibility, episodes: Sequence[Episode], generator: np.random.Generator
    ) -> Iterator[list[int]]:
        reader = InstructionFollower(visibility, remember(visibility))
        for episode in episodes:
            start = visibility.graph.index(episode.start)
            yield reader.follow(episode.instruction, start, episode.heading, generator)

    return run_episodes


def no_memory(_: Visibility) -> FollowerMemory:
    return FollowerMemory(frozen=True)


def cold_memory(_: Visibility) -> FollowerMemory:
    return FollowerMemory()


def full_memory(visibility: Visibility) -> FollowerMemory:
    return FollowerMemory(set(range(len(visibility.graph))), frozen=True)


AGENTS: Mapping[str, AgentFunction] = {
    "random": move_randomly,
    "shortest path": follow_shortest_path,
    "reader, no memory": follow_instructions(no_memory),
    "reader, cold memory": follow_instructions(cold_memory),
    "reader, full memory": follow_instructions(full_memory),
}


if __name__ == "__main__":
    sys.exit(print_results(run()))
