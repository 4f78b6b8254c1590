"""Whether the embedded world is a fair task, and one that needs memory: scripted agents in its unseen houses.

`random` walks five times to a random candidate, as R2R's baseline does. `shortest path` knows the goal. The
`reader` parses the instruction and sees what the renderer drew in each view, in three versions: without
memory, with one that is empty when it enters a house and grows as the episodes of the file follow each other,
and with one of every viewpoint. What it remembers of a viewpoint is what that one's candidate views show.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks.measure import Agent, line
from esceme.metrics import Scores, score
from esceme.synth.dataset import WorldConfig, embedded_world, world_visibility
from esceme.synth.instruction_follower import FollowerMemory, InstructionFollower
from esceme.synth.visibility import Visibility
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.r2r import read_r2r
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.world import Atlas, read_scenes

CONFIG = WorldConfig("small")
SPLIT = "val_unseen"
SEEDS, DRAWS = 5, 1000
"""Of the agents' randomness, and of the bootstrap."""
WANDERED = 5
"""How far the random agent goes."""

Walker = Callable[[Visibility, Sequence[Episode], np.random.Generator], Iterator[list[int]]]
"""Lives the episodes of one house in order; gives the places of each walk."""


def run(_data: Path | None = None) -> Iterator[Agent]:
    episodes, visibility = world()
    atlas = Atlas(each.graph for each in visibility.values())
    found = {name: trial(walker, episodes, visibility, atlas) for name, walker in WALKERS.items()}
    sr = {name: _mean(scores, "sr") for name, scores in found.items()}
    spl = {name: _mean(scores, "spl") for name, scores in found.items()}
    wanted = {
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
    for name, scores in found.items():
        yield Agent.of(name, scores, *wanted[name], draws=DRAWS)


def world() -> tuple[list[Episode], dict[str, Visibility]]:
    """The unseen episodes of the embedded world and the visibility of their houses."""
    folder = DataFolder(embedded_world(CONFIG))
    visibility = world_visibility(CONFIG, SPLIT)
    for scene, graph in read_scenes(folder.connectivity, list(visibility)).items():
        again = visibility[scene].graph
        is_same = again.viewpoints == graph.viewpoints and np.allclose(again.positions, graph.positions)
        assert is_same, f"{scene}: the cached house differs from the generated one; remove the cached world"
    return read_r2r(folder.splits("r2r")[SPLIT]), visibility


def trial(
    walker: Walker, episodes: Sequence[Episode], visibility: Mapping[str, Visibility], atlas: Atlas
) -> list[Scores]:
    """The scores of one agent, one per seed."""
    found = []
    for seed in range(SEEDS):
        generator = np.random.default_rng(seed)
        pairs = []
        for scene, group in groupby(episodes, key=lambda episode: episode.scene_id):
            told = list(group)
            names = visibility[scene].graph.viewpoints
            for episode, places in zip(told, walker(visibility[scene], told, generator), strict=True):
                stands = tuple(TrajectoryPoint(names[place]) for place in places)
                pairs.append((episode, Prediction(episode.episode_id, stands)))
        found.append(score(pairs, atlas))
    return found


def _mean(scores: Sequence[Scores], measure: str) -> float:
    return 100 * float(np.mean([each.values[measure].mean() for each in scores]))


# -- agents ----------------------------------------------------------------------------------------------


def wander(
    visibility: Visibility, episodes: Sequence[Episode], generator: np.random.Generator
) -> Iterator[list[int]]:
    graph = visibility.graph
    for episode in episodes:
        places = [graph.index(episode.start)]
        for _ in range(WANDERED):
            around = graph.neighbours[places[-1], : graph.degrees[places[-1]]]
            places.append(int(generator.choice(around)))
        yield places


def go_straight(
    visibility: Visibility, episodes: Sequence[Episode], generator: np.random.Generator
) -> Iterator[list[int]]:
    graph = visibility.graph
    for episode in episodes:
        yield [graph.index(name) for name in graph.shortest_path(episode.start, episode.goal)]


def read_with(remember: Callable[[Visibility], FollowerMemory]) -> Walker:
    def read(
        visibility: Visibility, episodes: Sequence[Episode], generator: np.random.Generator
    ) -> Iterator[list[int]]:
        reader = InstructionFollower(visibility, remember(visibility))
        for episode in episodes:
            start = visibility.graph.index(episode.start)
            yield reader.follow(episode.instruction, start, episode.heading, generator)

    return read


def no_memory(_: Visibility) -> FollowerMemory:
    return FollowerMemory(frozen=True)


def cold_memory(_: Visibility) -> FollowerMemory:
    return FollowerMemory()


def full_memory(visibility: Visibility) -> FollowerMemory:
    return FollowerMemory(set(range(len(visibility.graph))), frozen=True)


WALKERS: Mapping[str, Walker] = {
    "random": wander,
    "shortest path": go_straight,
    "reader, no memory": read_with(no_memory),
    "reader, cold memory": read_with(cold_memory),
    "reader, full memory": read_with(full_memory),
}


def main() -> int:
    found = list(run())
    for agent in found:
        print(line(agent.row()))
    return 0 if all(agent.met for agent in found) else 1


if __name__ == "__main__":
    sys.exit(main())
