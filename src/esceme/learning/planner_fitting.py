"""Fit a planner on held-out training scenes: random partial maps, then rollouts of the planner itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from esceme.errors import ConfigError, DataError
from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.protocol import MemoryLifetime, Protocol
from esceme.evaluation.result import score_trajectories
from esceme.evaluation.schedule import Lanes
from esceme.learning.speaker_fitting import path_steps
from esceme.memory.bank import MemoryBank
from esceme.memory.scene_map import MapBank, SceneMap
from esceme.metrics import PaddedPaths, dtw, ndtw
from esceme.navigator import Navigator
from esceme.planning.belief import Belief, fit_belief, length_columns
from esceme.planning.planner import Planner, PlanRequest
from esceme.planning.planning_navigator import PlanningNavigator
from esceme.planning.route_prior import STEP_COLUMNS, RoutePrior, step_columns
from esceme.planning.routes import RouteSet
from esceme.planning.scoring import SCORERS, FollowerScorer
from esceme.settings import Count, NonNegative, Size, check_settings
from esceme.tasks.catalogue import Task
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas
from esceme.world.geometry import VIEW_HEADINGS, nearest_view

MAX_PATHS = 100
"""Greatest number of paths in a random partial map."""
SHARPNESS, MIN_SIMILARITY = 20.0, 0.6
"""By SDTW, shares of right routes are proportional to exp(SHARPNESS nDTW) if one has the least nDTW."""
EMPTY_SHARE = 0.1
"""Share of random partial maps that hold only the path of the episode itself."""


Weights = tuple[NonNegative, ...]


@dataclass(frozen=True, kw_only=True)
class PlannerFitConfig:
    """Settings of the fit of a planner."""

    partial_maps: Size = 1000
    """Number of random partial maps of held-out scenes."""
    rounds: Count = 2
    """Number of rollouts of the planner whose plans are added to the samples (DAgger)."""
    episodes_per_scene: Size = 60
    """Number of episodes per held-out scene in a rollout whose map is kept."""
    cleared_episodes_per_scene: Size = 20
    """Number of episodes per held-out scene in a rollout whose map is cleared before each episode."""
    late: Weights = (2.0, 4.0, 7.0)
    """Exploration weights to try for later episodes in a building. If the last is best, larger ones too. An
    exploration weight multiplies the probability of routes to unvisited viewpoints."""
    early: Weights = (4.0, 10.0, 20.0)
    """Exploration weights that are tried for the first episodes in a building."""
    cleared: Weights = (1.0, 2.0, 4.0)
    """Exploration weights that are tried for maps that are cleared before each episode."""
    seed: Count = 0
    """Seed of all random choices."""

    def __post_init__(self) -> None:
        check_settings(self)
        if not (self.late and self.early and self.cleared):
            raise ConfigError("late, early and cleared: expected at least one exploration weight each")


Sample = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Columns of the belief for R routes, (R, F), and the shares of the right routes, (R,)."""


class FitData(NamedTuple):
    """Held-out scenes on which a planner is fitted."""

    atlas: Atlas
    episodes: Sequence[Episode]
    encode: InstructionEncoder
    maps: MapBank
    """Maps of all viewpoints of the held-out scenes."""
    task: Task
    max_steps: int


def belief_columns(planner: Planner) -> dict[str, tuple[str, ...]]:
    """Return the columns that each belief reads, by name of the belief.

    `full` reads all. The others are controls: `blind` reads no instruction, `no-lengths` reads no length of
    routes; `follower`, `speaker` and `matcher` read only one scorer and the lengths, `no-follower` and so on
    all but one. A scorer that a belief does not read is not computed.
    """
    lengths = length_columns(planner.limits.max_moves, planner.shape)
    scores = tuple(name for name in planner.columns if name not in lengths)
    found = {"full": planner.columns, "blind": lengths, "no-lengths": scores}
    for label, scorer in SCORERS.items():
        names = {*scorer.columns, f"frontier_{scorer.columns[0]}"}
        if names & set(scores):
            found[label] = (*(name for name in scores if name in names), *lengths)
            if set(scores) - names:
                found[f"no-{label}"] = tuple(name for name in planner.columns if name not in names)
    return found


def fit_route_prior(maps: MapBank, atlas: Atlas, episodes: Sequence[Episode]) -> RoutePrior:
    """Return the prior of routes under which the steps of the reference paths are most probable.

    The paths differ, and `maps` have visited all viewpoints on them. If no path visits a viewpoint twice,
    no route may do so.
    """
    samples: list[Sample] = []
    again = 0
    for episode in episodes:
        scene_map = maps[episode.scene_id]
        steps = path_steps(scene_map, episode.reference_path, episode.heading)
        for number, (node, view, slot) in enumerate(
            zip(*(part[:-1].tolist() for part in steps), strict=True)
        ):
            found = scene_map.candidates(np.array([node]))
            revisits = np.isin(found.neighbours, steps.nodes[: number + 1])
            again += int(revisits[slot])
            start, here, *there = scene_map.indices([steps.nodes[0], node, *found.neighbours])
            away = atlas.distance(np.full(len(there), start), np.array(there)) - atlas.distance(start, here)
            columns = step_columns(found.headings - VIEW_HEADINGS[view], found.lengths, away)
            samples.append((np.column_stack([columns, revisits]), np.eye(len(there))[slot]))
    if not samples:
        raise DataError("a prior of routes needs reference paths with edges")
    if not again:
        samples = [(table[table[:, -1] < 1], right[table[:, -1] < 1]) for table, right in samples]
    names = (*STEP_COLUMNS, "revisit")
    fitted, _ = fit_belief(samples, names, names if again else STEP_COLUMNS)
    *weights, last = fitted.weights
    return RoutePrior(tuple(weights), min(last, 0.0)) if again else RoutePrior(fitted.weights)


def right_routes(
    scene_map: SceneMap, routes: RouteSet, episode: Episode, atlas: Atlas, utility: str
) -> NDArray[np.float64] | None:
    """Return the shares of the right routes, (R,), which sum to 1; None if no route is right.

    By SPL and goal progress, the route to the goal is right, or, if the goal was not visited, the route to
    the first unvisited viewpoint on the way there. By SDTW, routes like the reference path are right, or
    routes like its part until the first unvisited viewpoint.
    """
    reference = episode.reference_path
    unvisited = [number for number, name in enumerate(reference) if name not in scene_map]
    if utility != "sdtw":
        target = episode.goal if episode.goal in scene_map or not unvisited else reference[unvisited[0]]
        found = routes.area.nodes[routes.ends] == scene_map.find(target)
        return np.eye(len(routes))[found.argmax()] if found.any() else None
    indices = np.array(scene_map.indices(routes.area.nodes.tolist()))
    for part, rows in (
        (reference if episode.goal in scene_map else (), np.flatnonzero(routes.is_visited)),
        (reference[: unvisited[0] + 1] if unvisited else (), np.flatnonzero(~routes.is_visited)),
    ):
        if len(part) < 2 or not len(rows):
            continue
        expected = atlas.locate(episode.scene_id, part)
        paths = PaddedPaths.from_paths(
            [routes.places[row, : routes.num_moves[row] + 1].tolist() for row in rows]
        )
        costs = atlas.distance(indices[paths.viewpoints][:, None], expected[None, :, None])
        length = np.full(len(rows), len(expected))
        similar = ndtw(dtw(costs, paths.count, length), length)
        if similar.max() >= MIN_SIMILARITY:
            shares = np.zeros(len(routes))
            shares[rows] = softmax(SHARPNESS * similar)
            return shares
    return None


def sample_partial_maps(planner: Planner, data: FitData, config: PlannerFitConfig) -> list[Sample]:
    """Return samples of random partial maps: of some paths of the scene, and of the start of the own path."""
    order = np.random.default_rng([config.seed, 3]).permutation(len(data.episodes))
    paths: dict[str, list[tuple[str, ...]]] = {}
    for episode in data.episodes:
        paths.setdefault(episode.scene_id, []).append(episode.reference_path)
    samples = []
    for number, row in enumerate(order[: config.partial_maps]):
        generator, episode = np.random.default_rng([config.seed, 4, number]), data.episodes[row]
        known = dict.fromkeys(
            episode.reference_path[: 1 + int(generator.integers(len(episode.reference_path)))]
        )
        if generator.random() >= EMPTY_SHARE:
            num_paths = int(np.exp(generator.uniform(0, np.log(MAX_PATHS))))
            others = paths[episode.scene_id]
            for other in generator.integers(len(others), size=num_paths):
                known.update(dict.fromkeys(others[other]))
        scene_map = data.maps[episode.scene_id].subset(known)
        _remember_for_reader(planner, data.atlas, episode.scene_id, list(known))
        words = np.array(data.encode(episode), dtype=np.int64)
        start = scene_map.node(episode.start)
        request = PlanRequest(words, [start], int(nearest_view(episode.heading)))
        routes, table = planner.compare(scene_map, request)
        right = right_routes(scene_map, routes, episode, data.atlas, planner.utility)
        if right is not None:
            samples.append((table, right))
    return samples


def _remember_for_reader(planner: Planner, atlas: Atlas, scene_id: str, viewpoints: Sequence[str]) -> None:
    """Let the follower's reader, if it has one, recall exactly these viewpoints."""
    for scorer in planner.scorers:
        if isinstance(scorer, FollowerScorer) and scorer.navigator.reader.uses_memory:
            bank = MemoryBank.from_atlas(atlas, pooling=scorer.navigator.reader.pooling)
            bank.remember_at(atlas.locate(scene_id, viewpoints).tolist())
            scorer.memory = bank


class PlannedRollout(NamedTuple):
    """Rollout of a planner over held-out scenes."""

    score: float
    """Mean of the planner's utility: SPL, SDTW or goal progress."""
    samples: list[Sample]
    """Sample of every plan whose right route was among the candidates."""


def planner_rollout(
    planner: Planner,
    navigator: Navigator,
    data: FitData,
    *,
    protocol: Protocol = "cold",
    per_scene: int,
    shuffle: int | None = None,
) -> PlannedRollout:
    """Run the planner on the first `per_scene` episodes of every scene, under a memory protocol.

    With `shuffle`, the episodes are permuted by this seed before.
    """
    episodes = list(data.episodes)
    if shuffle is not None:
        episodes = [episodes[row] for row in np.random.default_rng(shuffle).permutation(len(episodes))]
    counts = Counter[str]()
    chosen = []
    for episode in episodes:
        counts[episode.scene_id] += 1
        chosen += [episode] if counts[episode.scene_id] <= per_scene else []
    maps = MapBank.from_atlas(data.atlas, codebook=data.maps.codebook)
    bank = None
    if navigator.reader.uses_memory:
        bank = MemoryBank.from_atlas(data.atlas, pooling=navigator.reader.pooling)
        for scorer in planner.scorers:
            if isinstance(scorer, FollowerScorer):
                scorer.memory = bank
    lifetime = MemoryLifetime(protocol, data.atlas, bank, maps=maps)
    planning = PlanningNavigator(navigator, planner, maps, data.atlas).eval()
    source = Lanes(data.atlas, chosen, lifetime, num_slots=8)
    samples: list[Sample] = []
    finished: list[Trajectory] = []
    for step in evaluation_steps(
        planning, data.atlas, source, lifetime.memory, encode=data.encode, max_steps=data.max_steps
    ):
        for trajectory, plan in zip(step.trajectories, planning.plans, strict=True):
            scene_map = maps[trajectory.episode.scene_id]
            if plan is not None:
                episode, utility = trajectory.episode, planner.utility
                right = right_routes(scene_map, plan.routes, episode, data.atlas, utility)
                samples += [] if right is None else [(plan.table, right)]
        finished += step.finished
    scores = score_trajectories(finished, data.atlas, data.task, objects=None)
    return PlannedRollout(float(scores.values[planner.utility].mean()), samples)


def initial_belief(columns: Sequence[str]) -> Belief:
    """Return a belief in which all routes are equally probable."""
    return Belief(tuple(columns), (0.0,) * len(columns))
