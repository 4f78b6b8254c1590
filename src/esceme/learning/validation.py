"""How well a navigator does in the middle of its training, under a declared memory protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from esceme.evaluation.protocol import (
    MemoryLifetime,
    Protocol,
    TourPosition,
    open_memory,
    tour_episodes,
    tour_positions,
)
from esceme.evaluation.result import trajectory_of
from esceme.evaluation.schedule import Lanes
from esceme.learning.distributed import ProcessGroup
from esceme.learning.training_config import ValidationConfig
from esceme.memory import MemoryBank
from esceme.metrics import score
from esceme.navigator import Navigator
from esceme.rollout import roll_out
from esceme.tasks.catalogue import TASKS
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.submission import Prediction, TrajectoryPoint
from esceme.tasks.tours import Tour
from esceme.trajectory import Trajectory, greedy
from esceme.world.atlas import Atlas

SLOTS = 16
"""How many scenes are walked side by side; the scores do not depend on it."""


def validate(
    navigator: Navigator,
    atlas: Atlas,
    episodes: Sequence[Episode],
    memory: str,
    *,
    task: str,
    encode: InstructionEncoder,
    max_steps: int,
    leaking: MemoryBank | None = None,
    process_group: ProcessGroup | None = None,
    tours: Sequence[Tour] | None = None,
    oracle_phases: bool = False,
) -> dict[str, float]:
    """The mean scores of some episodes; every process walks some of the scenes.

    With `memory` 'leaking' they are lived with the bank of that name, which keeps what they add to it. With
    `tours`, those are lived that are on them, in their order.
    """
    process_group = process_group or ProcessGroup()
    episodes = episodes if tours is None else tour_episodes(tours, episodes)
    scenes = sorted({episode.scene_id for episode in episodes})[process_group.rank :: process_group.size]
    mine = [episode for episode in episodes if episode.scene_id in scenes]
    places = tour_positions(tours or (), episodes)
    lifetime, passes = _lifetime(navigator, atlas, memory, leaking, places, oracle_phases=oracle_phases)
    learning = navigator.training
    navigator.eval()
    walks: list[Trajectory] = []
    for number in range(passes):
        walks = _live(navigator, atlas, mine, lifetime, number, encode=encode, max_steps=max_steps)
    navigator.train(learning)
    if leaking is not None and process_group.size > 1:
        told = process_group.all_gather(leaking.visited.nonzero().flatten().tolist())
        leaking.remember_at(
            sorted({place for visited in told for place in visited} - {*told[process_group.rank]})
        )
    paths = {walk.episode.episode_id: trajectory_of(walk, atlas) for walk in walks}
    walked = {name: path for part in process_group.all_gather(paths) for name, path in part.items()}
    return _scores(episodes, walked, atlas, task, tours)


def mark(scores: dict[str, float], validation: ValidationConfig) -> float:
    """The score by which weights are chosen (spec E.9), or the sum of two."""
    return sum(scores[name] for name in validation.best.split("+"))


def some_of(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """At most `limit` episodes, spread evenly; all of them where it is 0."""
    if not limit or len(episodes) <= limit:
        return list(episodes)
    return [episodes[place * len(episodes) // limit] for place in range(limit)]


def some_tours(tours: Sequence[Tour], limit: int) -> list[Tour]:
    """The beginnings of all tours, the same share of each: about `limit` episodes, at least one of each tour.

    >>> tours = [Tour("attic", tuple("abcdef")), Tour("barn", tuple("ghi"))]
    >>> ["".join(tour.episode_ids) for tour in some_tours(tours, 3)]
    ['ab', 'g']
    """
    total = sum(map(len, tours))
    if not limit or total <= limit:
        return list(tours)
    return [
        replace(tour, episode_ids=tour.episode_ids[: max(1, len(tour) * limit // total)]) for tour in tours
    ]


def _lifetime(
    navigator: Navigator,
    atlas: Atlas,
    memory: str,
    leaking: MemoryBank | None,
    places: Mapping[str, TourPosition],
    *,
    oracle_phases: bool,
) -> tuple[MemoryLifetime, int]:
    """A memory, and how often the episodes are lived with it."""
    if not navigator.reader.uses_memory:
        return MemoryLifetime("none", atlas, None), 1
    if memory == "leaking":
        return MemoryLifetime("cold", atlas, leaking, tours=places, oracle_phases=oracle_phases), 1
    protocol: Protocol = memory  # type: ignore[assignment]  # checked by ValidationConfig
    lifetime = open_memory(
        protocol,
        navigator.reader,
        atlas,
        tours=places,
        oracle_phases=oracle_phases,
        device=navigator.device,
    )
    return lifetime, 2 if memory == "two-pass" else 1


def _live(
    navigator: Navigator,
    atlas: Atlas,
    episodes: Sequence[Episode],
    lifetime: MemoryLifetime,
    number: int,
    *,
    encode: InstructionEncoder,
    max_steps: int,
) -> list[Trajectory]:
    lanes = Lanes(atlas, episodes, lifetime, slots=SLOTS, lived=number)
    with torch.inference_mode():
        steps = roll_out(navigator, atlas, lanes, lifetime.memory, greedy, encode=encode, max_steps=max_steps)
        return [walk for step in steps for walk in step.finished]


def _scores(
    episodes: Sequence[Episode],
    paths: dict[str, list[tuple[str, float, float]]],
    atlas: Atlas,
    task: str,
    tours: Sequence[Tour] | None,
) -> dict[str, float]:
    pairs = [
        (
            each,
            Prediction(each.episode_id, tuple(TrajectoryPoint(*stand) for stand in paths[each.episode_id])),
        )
        for each in episodes
    ]
    scores = score(pairs, atlas, success_rule=TASKS[task].success_rule, tours=tours)
    return {name: float(value) for name, value in scores.means().items()}
