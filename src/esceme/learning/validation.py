"""Validation during training: the mean scores of episodes under a memory protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum

from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.protocol import (
    MemoryLifetime,
    TourPosition,
    open_memory,
    tour_episodes,
    tour_positions,
)
from esceme.evaluation.result import score_trajectories
from esceme.evaluation.schedule import Lanes
from esceme.learning.distributed import ProcessGroup
from esceme.learning.training_config import ValidationConfig, ValidationMemory
from esceme.memory import MemoryBank
from esceme.navigator import Navigator
from esceme.tasks.catalogue import get_task
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.tours import Tour
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas

NUM_SLOTS = 16
"""Number of scenes that are rolled out in parallel. The scores do not depend on it."""


def validate(
    navigator: Navigator,
    atlas: Atlas,
    episodes: Sequence[Episode],
    memory: ValidationMemory,
    *,
    task: str,
    encode: InstructionEncoder,
    max_steps: int,
    objects: Mapping[str, frozenset[str]] | None = None,
    leaking: MemoryBank | None = None,
    process_group: ProcessGroup | None = None,
    tours: Sequence[Tour] | None = None,
    oracle_phases: bool = False,
) -> dict[str, float]:
    """Return the mean score of `episodes` for every metric, as `esceme evaluate` computes it.

    The scenes are divided among the ranks. If `memory` is "leaking", validation reads `leaking`, the memory
    bank of training, and adds to it. With `tours`, only the episodes of these tours run, in the order of the
    tours. `objects` maps viewpoints to visible objects, as returned by `load_objects`.
    """
    process_group = process_group or ProcessGroup()
    episodes = episodes if tours is None else tour_episodes(tours, episodes)
    scenes = sorted({episode.scene_id for episode in episodes})[process_group.rank :: process_group.size]
    own = [episode for episode in episodes if episode.scene_id in scenes]
    positions = tour_positions(tours or (), episodes)
    lifetime = _open_validation_memory(
        navigator, atlas, memory, leaking, positions, oracle_phases=oracle_phases
    )
    num_passes = 2 if lifetime.protocol == "two-pass" else 1  # only the last one is scored
    was_training = navigator.training
    navigator.eval()
    finished: list[Trajectory] = []
    for number in range(num_passes):
        source = Lanes(atlas, own, lifetime, num_slots=NUM_SLOTS, previous_passes=number)
        steps = evaluation_steps(
            navigator, atlas, source, lifetime.memory, encode=encode, max_steps=max_steps
        )
        finished = [trajectory for step in steps for trajectory in step.finished]
    navigator.train(was_training)
    if leaking is not None and process_group.size > 1:
        visited = process_group.all_gather(leaking.visited.nonzero().flatten().tolist())
        others = {viewpoint for viewpoints in visited for viewpoint in viewpoints}
        leaking.remember_at(sorted(others - {*visited[process_group.rank]}))
    poses = {trajectory.episode.episode_id: trajectory.poses for trajectory in finished}
    all_poses = {name: path for part in process_group.all_gather(poses) for name, path in part.items()}
    trajectories = [Trajectory(episode, all_poses[episode.episode_id]) for episode in episodes]
    scores = score_trajectories(trajectories, atlas, get_task(task), objects=objects, tours=tours)
    return {name: float(mean) for name, mean in scores.means().items()}


def selection_score(scores: dict[str, float], validation: ValidationConfig) -> float:
    """Return the score that selects the best weights: one metric or the sum of two (docs/spec.md E.9)."""
    return fsum(scores[name] for name in validation.best.split("+"))


def subsample_episodes(episodes: Sequence[Episode], limit: int) -> list[Episode]:
    """Return `limit` episodes at equal intervals, or all episodes if `limit` is 0 or not exceeded."""
    if not limit or len(episodes) <= limit:
        return list(episodes)
    return [episodes[number * len(episodes) // limit] for number in range(limit)]


def subsample_tours(tours: Sequence[Tour], limit: int) -> list[Tour]:
    """Return the first episodes of each tour: about `limit` in total, but at least one per tour.

    >>> tours = [Tour("attic", tuple("abcdef")), Tour("barn", tuple("ghi"))]
    >>> ["".join(tour.episode_ids) for tour in subsample_tours(tours, 3)]
    ['ab', 'g']
    """
    total = sum(map(len, tours))
    if not limit or total <= limit:
        return list(tours)
    return [
        replace(tour, episode_ids=tour.episode_ids[: max(1, len(tour) * limit // total)]) for tour in tours
    ]


def _open_validation_memory(
    navigator: Navigator,
    atlas: Atlas,
    memory: ValidationMemory,
    leaking: MemoryBank | None,
    positions: Mapping[str, TourPosition],
    *,
    oracle_phases: bool,
) -> MemoryLifetime:
    """Return the memory of a validation, in its initial state."""
    if not navigator.reader.uses_memory:
        return MemoryLifetime("none", atlas, None)
    if memory == "leaking":
        return MemoryLifetime("cold", atlas, leaking, tours=positions, oracle_phases=oracle_phases)
    return open_memory(
        memory,
        navigator.reader,
        atlas,
        tours=positions,
        oracle_phases=oracle_phases,
        device=navigator.device,
    )
