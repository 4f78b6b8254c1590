"""Train the planner of a run: its models on training scenes, then the planner on held-out training scenes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from esceme.config import Experiment, from_json
from esceme.errors import CheckpointError, ConfigError
from esceme.files import folder_lock, read_bytes, read_json
from esceme.learning.matcher_fitting import (
    MatcherConfig,
    MatchSample,
    StartRoutes,
    draw_routes,
    fit_matcher,
    pool_views,
)
from esceme.learning.planner_fitting import (
    FitData,
    PlannerFitConfig,
    Sample,
    belief_columns,
    fit_route_prior,
    initial_belief,
    planner_rollout,
    sample_partial_maps,
)
from esceme.learning.speaker_fitting import (
    Description,
    SpeakerConfig,
    fit_codebook,
    fit_speaker,
    path_steps,
)
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank, SceneMap
from esceme.navigator import Navigator
from esceme.planning.belief import Belief, fit_belief
from esceme.planning.choice import Exploration
from esceme.planning.matcher import RouteMatcher, matcher_key, read_matcher, write_matcher
from esceme.planning.planner import Planner
from esceme.planning.planner_file import (
    FOLDER,
    MATCHER_FILE,
    SPEAKER_FILE,
    RouteModels,
    StoredBelief,
    StoredExploration,
    StoredPlanner,
    file_digest,
    make_scorers,
    save_planner,
    write_speaker,
)
from esceme.planning.route_prior import RoutePrior
from esceme.planning.routes import MAX_MOVES, RouteGenerator, RouteLimits, RouteSet, Start, get_routes
from esceme.planning.speaker import Speaker, StepArrays
from esceme.runs import Run, load_run
from esceme.source_digest import PLANNER_MODULES, source_digest
from esceme.tasks.catalogue import TASKS, Task, get_task
from esceme.tasks.episode import Episode
from esceme.tasks.folder import DataFolder
from esceme.tasks.split import InstructionEncoder
from esceme.training import EXPERIMENT_FILE, HELD_OUT, load_training_data
from esceme.world.atlas import Atlas
from esceme.world.geometry import nearest_view

UTILITIES = {"r4r": "sdtw", "rxr": "sdtw", "cvdn": "gp"}
"""Task -> metric whose expectation its planners maximise, if this is not SPL."""
PARTS = {"r4r": "r2r"}
"""Task -> task whose paths are joined to paths of this task."""
ALIGNMENT_ITERATIONS = 3
"""Number of iterations in which only the alignment of a speaker is learned."""
SHORTEST_SHARE = 0.9
"""Least share of reference paths that must be shortest paths (or two of them) for the route generator."""
PRIOR_PATHS = 3000
"""Greatest number of training paths to which a prior of routes is fitted; they are drawn at random."""
SAME_LENGTH = 1e-3
"""Greatest difference in metres of paths that count as equally long."""
MOVES = (0.001, 0.999)
"""Quantiles of the number of edges of training paths that limit routes."""
SHORTEST_MOVES = (7, 10)
"""Least and greatest limit of the number of edges of shortest routes."""
MORE_WEIGHTS = 2
"""Greatest number of larger exploration weights that are tried while the largest one is the best."""
Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PlannerTrainingConfig:
    """Settings of a planner: of its speaker, of its matcher, and of its fit."""

    speaker: SpeakerConfig = SpeakerConfig()
    matcher: MatcherConfig = MatcherConfig()
    fit: PlannerFitConfig = PlannerFitConfig()


DEFAULT = PlannerTrainingConfig()


class PlannerData(NamedTuple):
    """A run with the scenes that it was trained on, and those that were held out."""

    run: Run
    atlas: Atlas
    train: Sequence[Episode]
    held_out: Sequence[Episode]
    """Episodes of the fit: in held-out scenes, or those of another task; see `load_planner_data`."""
    encode: InstructionEncoder
    digests: dict[str, str]
    """SHA-256 of the annotations of training, and of those of the fit if these are others."""
    task: Task
    """Task of the fit."""
    fit_encode: InstructionEncoder
    max_steps: int
    parts: Sequence[Episode] = ()
    """Episodes in the same scenes of the task whose paths are parts of the paths of this task, if any."""


def load_planner_data(
    run: str | Path,
    data: str | Path,
    *,
    features: str | None = None,
    task: str | None = None,
    split: str | None = None,
) -> PlannerData:
    """Load a run and its training data; raise `ConfigError` if it was trained without held-out scenes.

    With `task` and `split`, the fit uses this split of another task, whose scenes must be training scenes.
    """
    if (task is None) != (split is None):
        raise ConfigError(
            "--task and --split: give both, to fit a planner on a split of another task, or none"
        )
    loaded = load_run(run)
    path = Path(run) / EXPERIMENT_FILE
    if not path.is_file():
        raise ConfigError(f"{run}: no {EXPERIMENT_FILE}; a planner needs a run of `esceme train`")
    try:
        experiment = from_json(read_json(path, dict[str, Any])["experiment"], Experiment)
    except (ConfigError, KeyError) as error:
        raise CheckpointError(f"{path}: not an experiment of this version ({error}); train again") from None
    if not experiment.hold_out:
        raise ConfigError(
            f"{run}: was trained on all training scenes, and a planner is fitted on scenes that its agent "
            "has not seen; train the run with --hold-out 10"
        )
    validation = replace(experiment.validation, splits=(HELD_OUT,), best_split=HELD_OUT)
    experiment = replace(experiment, validation=validation, features=features or experiment.features)
    found = load_training_data(experiment, DataFolder(data))
    config, source, folder = loaded.config, found.dataset.splits[0], found.dataset.folder
    encode = fit_encode = loaded.instruction_encoder(folder, episodes=source.episodes)
    digests = {"annotations": hashlib.sha256(read_bytes(source.annotations)).hexdigest()}
    train, parts, held_out = found.train[0], list[Episode](), found.validation[HELD_OUT]
    fit_task, max_steps = get_task(task or config.task), config.max_steps
    if task is not None and split is not None:
        annotations = folder.require(task, split)
        held_out = list(fit_task.read(annotations))
        if other := {episode.scene_id for episode in held_out} - set(found.dataset.atlas.scenes):
            raise ConfigError(
                f"{annotations}: scene '{min(other)}' is no training scene of the run; planners are fitted "
                "on training scenes only"
            )
        digests["fit"] = hashlib.sha256(read_bytes(annotations)).hexdigest()
        max_steps = fit_task.max_steps
        fit_encode = loaded.instruction_encoder(
            folder,
            task=task,
            max_tokens=min(fit_task.max_tokens, config.agent.limits.max_tokens or fit_task.max_tokens),
            keep=fit_task.keep,
            episodes=held_out,
        )
    if config.task in PARTS:
        scenes = {episode.scene_id for episode in train}
        annotations = folder.require(PARTS[config.task], "train")
        parts = [e for e in TASKS[PARTS[config.task]].read(annotations) if e.scene_id in scenes]
    return PlannerData(
        loaded,
        found.dataset.atlas,
        train,
        held_out,
        encode,
        digests,
        fit_task,
        fit_encode,
        max_steps,
        parts,
    )


class RouteShape(NamedTuple):
    """What the reference paths of the training scenes look like."""

    routes: str
    """Name of the route generator whose routes contain most of them."""
    limits: RouteLimits
    shares: dict[str, float]
    """Share of paths that are one shortest path (`one`), and that consist of at most two (`two`)."""
    prior: RoutePrior | None = None

    @property
    def generate(self) -> RouteGenerator:
        """The route generator."""
        return get_routes(self.routes, self.prior)


def route_shape(atlas: Atlas, episodes: Sequence[Episode], utility: str, codebook: Codebook) -> RouteShape:
    """Return the route generator that suits the reference paths of episodes.

    Where only the end of a trajectory counts, routes are shortest, whatever the paths look like.
    """
    paths = {(episode.scene_id, episode.reference_path): episode for episode in episodes}
    located = atlas.locate_all(paths)
    moves, parts = [], []
    for path in located:
        nodes = np.array([path[0], *(there for here, there in pairwise(path) if here != there)])
        metres = np.concatenate([[0.0], np.cumsum(atlas.distance(nodes[:-1], nodes[1:]))])
        there = atlas.distance(np.full_like(nodes, nodes[0]), nodes) >= metres - SAME_LENGTH
        back = atlas.distance(nodes, np.full_like(nodes, nodes[-1])) >= metres[-1] - metres - SAME_LENGTH
        moves.append(len(nodes) - 1)
        parts.append(1 if there[-1] else 2 if (there & back).any() else 3)
    shares = {name: float(np.mean(np.array(parts) <= most)) for name, most in (("one", 1), ("two", 2))}
    least, greatest = np.quantile(moves, MOVES, method="inverted_cdf").astype(int).tolist()
    if utility != "sdtw" or shares["one"] >= SHORTEST_SHARE:
        longest = int(np.clip(greatest, *SHORTEST_MOVES))
        return RouteShape("shortest", RouteLimits(max_moves=longest), shares)
    limits = RouteLimits(least, min(greatest, MAX_MOVES))
    if shares["two"] >= SHORTEST_SHARE:
        return RouteShape("two-leg", limits, shares)
    drawn = _draw([*paths.values()], PRIOR_PATHS, seed=0)
    maps = MapBank.from_atlas(atlas, codebook=codebook, keeps_features=False)
    for episode in drawn:
        maps.remember_at(atlas.locate(episode.scene_id, episode.reference_path).tolist())
    return RouteShape("k-best", limits, shares, fit_route_prior(maps, atlas, drawn))


def train_speaker(data: PlannerData, config: SpeakerConfig, *, note: Note = lambda message: None) -> Speaker:
    """Fit the codebook and the speaker on the training scenes, without held-out scenes.

    If paths of the task are joined paths of another task, words are learned from the other task, and only
    their alignment from this one.
    """
    largest = data.run.config.agent.limits.vocabulary
    maps, speaker = None, None
    for episodes in filter(None, (data.parts, data.train)):
        episodes = _draw(episodes, config.max_instructions, config.seed)
        located = data.atlas.locate_all((episode.scene_id, episode.reference_path) for episode in episodes)
        viewpoints = sorted({index for path in located for index in path})
        if maps is None:
            codebook = fit_codebook(data.atlas, viewpoints, config)
            maps = MapBank.from_atlas(data.atlas, codebook=codebook, keeps_features=False)
        maps.remember_at(viewpoints)
        paths: list[tuple[str, StepArrays]] = []
        descriptions, number_of = [], dict[tuple[Any, ...], int]()
        for episode in episodes:
            key = (episode.scene_id, episode.reference_path, episode.heading)
            if key not in number_of:
                number_of[key] = len(paths)
                steps = path_steps(maps[episode.scene_id], episode.reference_path, episode.heading)
                paths.append((episode.scene_id, steps))
            descriptions.append(Description(number_of[key], np.array(data.encode(episode), dtype=np.int64)))
        speaker = fit_speaker(
            maps,
            paths,
            descriptions,
            num_words=largest or max(int(item.words.max()) for item in descriptions) + 1,
            config=config if speaker is None else replace(config, iterations=ALIGNMENT_ITERATIONS),
            words=None if speaker is None else speaker.tables,
            on_iteration=lambda number, perplexity: note(
                f"speaker, iteration {number}: perplexity {perplexity:.2f}"
            ),
        )
    assert speaker is not None
    return speaker


def train_matcher(
    data: PlannerData,
    speaker: Speaker,
    shape: RouteShape,
    config: MatcherConfig,
    *,
    note: Note = lambda message: None,
) -> RouteMatcher:
    """Train a matcher on the training scenes, without held-out scenes, in maps of all their viewpoints.

    If paths of the task are joined paths of another task, it learns from both tasks.
    """
    viewpoints = atlas_viewpoints(data.atlas, {episode.scene_id for episode in data.train})
    maps = MapBank.from_atlas(data.atlas, codebook=speaker.codebook, keeps_features=False)
    maps.remember_at(viewpoints)
    pooled_row = np.full(len(data.atlas), -1)
    pooled_row[viewpoints] = np.arange(len(viewpoints))
    rows_of = {scene: pooled_row[maps[scene].indices(range(len(maps[scene])))] for scene in maps.scenes}
    starts: list[StartRoutes] = []
    samples: list[MatchSample] = []
    parts = RouteShape("shortest", RouteLimits(max_moves=SHORTEST_MOVES[0]), {})
    for episodes, of in ((data.parts, parts), (data.train, shape)):
        by_start: dict[tuple[str, str, int], list[Episode]] = {}
        for episode in _draw(episodes, config.max_instructions, config.seed):
            key = (episode.scene_id, episode.start, int(nearest_view(episode.heading)))
            by_start.setdefault(key, []).append(episode)
        for (scene_id, viewpoint, view), described in by_start.items():
            scene_map = maps[scene_id]
            routes = of.generate(scene_map, Start(scene_map.node(viewpoint), view), of.limits)
            found = {
                number: row
                for number, episode in enumerate(described)
                if (row := described_route(scene_map, routes, episode)) is not None
            }
            if found:
                routes, rows = draw_routes(routes, list(found.values()), config.seed)
                for number, row in zip(found, rows.tolist(), strict=True):
                    words = np.array(data.encode(described[number]), dtype=np.int64)
                    samples.append(MatchSample(words, len(starts), row))
                starts.append(StartRoutes.of(routes, rows_of[scene_id]))
    note(f"matcher: {len(samples)} instructions, {len(starts)} starts")
    return fit_matcher(
        pool_views(data.atlas, viewpoints),
        starts,
        samples,
        num_words=speaker.num_words,
        config=config,
        on_epoch=lambda number, loss: note(f"matcher, epoch {number}: loss {loss:.3f}"),
    )


def described_route(scene_map: SceneMap, routes: RouteSet, episode: Episode) -> int | None:
    """Return the row of the route to the goal of an episode; of several, that along the reference path."""
    rows = np.flatnonzero(routes.area.nodes[routes.ends] == scene_map.find(episode.goal))
    if len(rows) > 1:
        path = path_steps(scene_map, episode.reference_path, episode.heading).nodes
        rows = rows[routes.num_moves[rows] == len(path) - 1]  # none if the path is longer than all routes
        if len(rows):
            rows = rows[(routes.area.nodes[routes.places[rows, : len(path)]] == path).all(1)]
    return int(rows[0]) if len(rows) else None


def _draw(episodes: Sequence[Episode], most: int, seed: int) -> Sequence[Episode]:
    """Return at most `most` random episodes, in their order."""
    if len(episodes) <= most:
        return episodes
    order = np.random.default_rng([seed, 2]).permutation(len(episodes))
    return [episodes[row] for row in sorted(order[:most].tolist())]


def atlas_viewpoints(atlas: Atlas, scenes: Collection[str]) -> list[int]:
    """Return the atlas indices of all viewpoints of scenes."""
    bounds = zip(atlas.scenes, atlas.first[:-1].tolist(), atlas.first[1:].tolist(), strict=True)
    return [index for scene, first, last in bounds if scene in scenes for index in range(first, last)]


def train_planner(
    run: str | Path,
    data: str | Path,
    config: PlannerTrainingConfig = DEFAULT,
    *,
    features: str | None = None,
    task: str | None = None,
    split: str | None = None,
    note: Note = lambda message: None,
) -> StoredPlanner:
    """Train the speaker and the matcher and fit the planner of a run; write all to RUN/planner.

    With `task` and `split`, it is fitted on a split of another task; see `load_planner_data`.
    Equal inputs give equal files. A matcher that an interrupted training has written is not trained again.
    Raise `DataError` if another process trains the planner of this run.
    """
    loaded = load_planner_data(run, data, features=features, task=task, split=split)
    folder = Path(run) / FOLDER
    with folder_lock(folder, "training of a planner"):
        speaker, matcher = train_speaker(loaded, config.speaker, note=note), None
        write_speaker(folder / SPEAKER_FILE, speaker)
        digests = {
            "speaker": file_digest(folder / SPEAKER_FILE),
            "weights": loaded.run.weights_hash,
            **loaded.digests,
            "code": source_digest(PLANNER_MODULES),
        }
        utility, own = (UTILITIES.get(name, "spl") for name in (loaded.task.name, loaded.run.config.task))
        shape = matched = route_shape(loaded.atlas, loaded.train, own, speaker.codebook)
        if split is not None:
            shape = route_shape(loaded.atlas, loaded.held_out, utility, speaker.codebook)
        if config.matcher.epochs:
            inputs = [digests["speaker"], digests["annotations"], digests["code"], matched, config.matcher]
            key = hashlib.sha256(msgspec.json.encode(inputs)).hexdigest()
            if matcher_key(folder / MATCHER_FILE) != key:
                matcher = train_matcher(loaded, speaker, matched, config.matcher, note=note)
                write_matcher(folder / MATCHER_FILE, matcher, key)
            matcher = read_matcher(folder / MATCHER_FILE)
            digests["matcher"] = file_digest(folder / MATCHER_FILE)
        with torch.inference_mode():
            stored = fit_planner(loaded, RouteModels(speaker, matcher), shape, utility, config.fit, note=note)
        fit = {**stored.fit, "task": loaded.task.name, "split": split or HELD_OUT, "settings": asdict(config)}
        stored = msgspec.structs.replace(stored, digests=digests, fit=fit)
        save_planner(run, stored, speaker)
    return stored


def fit_planner(
    data: PlannerData,
    models: RouteModels,
    shape: RouteShape,
    utility: str,
    config: PlannerFitConfig,
    *,
    note: Note = lambda message: None,
) -> StoredPlanner:
    """Fit beliefs and exploration weights on the held-out scenes."""
    navigator = data.run.navigator.eval()
    scenes = sorted({episode.scene_id for episode in data.held_out})
    maps = MapBank.from_atlas(data.atlas, codebook=models.speaker.codebook)
    maps.remember_at(atlas_viewpoints(data.atlas, scenes))
    fit_data = FitData(data.atlas, data.held_out, data.fit_encode, maps, data.task, data.max_steps)
    scorers = ["speaker"] if shape.routes != "shortest" else ["follower", "speaker"]
    scorers += [] if models.matcher is None else ["matcher"]
    planner = Planner(
        make_scorers(scorers, models, navigator, None),
        Belief((), ()),
        routes=shape.routes,
        limits=shape.limits,
        prior=shape.prior,
        utility=utility,
        max_moves=max(data.max_steps, 2 * shape.limits.max_moves),
    )
    note(f"routes: {shape.routes}, {shape.limits}, by expected {planner.utility}")
    columns = planner.columns
    planner.belief = initial_belief(columns)
    # Belief: random partial maps, then the planner's own maps.
    samples: list[Sample] = sample_partial_maps(planner, fit_data, config)
    planner.belief, loss = fit_belief(samples, columns, columns)
    note(f"{len(samples)} partial maps: loss {loss:.3f}")
    for number in range(config.rounds):
        rollout = planner_rollout(
            planner, navigator, fit_data, per_scene=config.episodes_per_scene, shuffle=number + 1
        )
        samples += rollout.samples
        planner.belief, loss = fit_belief(samples, columns, columns)
        score = f"{planner.utility} {rollout.score:.4f}"
        note(f"round {number + 1}: {score}, {len(samples)} samples, loss {loss:.3f}")
    fitted = {name: fit_belief(samples, columns, use) for name, use in belief_columns(planner).items()}
    exploration, tried = fit_exploration(planner, navigator, fit_data, config, note=note)
    return StoredPlanner(
        routes=shape.routes,
        limits=shape.limits,
        prior=shape.prior,
        utility=planner.utility,
        scorers=scorers,
        beliefs={
            name: StoredBelief(dict(zip(belief.columns, belief.weights, strict=True)), loss)
            for name, (belief, loss) in fitted.items()
        },
        exploration=exploration,
        max_moves=planner.max_moves,
        features=Path(data.atlas.features.source).name if data.atlas.features else "",
        digests={},
        fit={
            "held_out": scenes,
            "shortest_paths": shape.shares,
            "samples": len(samples),
            "exploration": tried,
        },
    )


def fit_exploration(
    planner: Planner,
    navigator: Navigator,
    data: FitData,
    config: PlannerFitConfig,
    *,
    note: Note = lambda message: None,
) -> tuple[StoredExploration, list[dict[str, Any]]]:
    """Return the exploration weights with the best score on held-out scenes, and all that were tried."""
    tried: list[dict[str, Any]] = []

    @cache
    def score_with(exploration: Exploration, *, is_cleared: bool) -> float:
        planner.exploration = exploration
        found = planner_rollout(
            planner,
            navigator,
            data,
            protocol="episodic" if is_cleared else "cold",
            per_scene=config.cleared_episodes_per_scene if is_cleared else config.episodes_per_scene,
        )
        tried.append({"cleared": is_cleared, **asdict(exploration), planner.utility: found.score})
        note(f"exploration {tried[-1]}")
        return found.score

    def best(weights: Sequence[float], make: Callable[[float], Exploration], *, is_cleared: bool) -> float:
        if len(weights) == 1:  # nothing to choose from
            return weights[0]
        candidates = sorted(weights)
        while True:
            chosen = max(candidates, key=lambda weight: score_with(make(weight), is_cleared=is_cleared))
            if chosen < candidates[-1] or len(candidates) == len(weights) + MORE_WEIGHTS:
                return chosen
            candidates.append(2 * chosen)

    default = Exploration()
    late = best(config.late, lambda weight: replace(default, late=weight), is_cleared=False)
    early = best(config.early, lambda weight: replace(default, late=late, early=weight), is_cleared=False)
    cleared = best(config.cleared, lambda weight: Exploration(early=weight, late=weight), is_cleared=True)
    found = Exploration(early=early, late=late), Exploration(early=cleared, late=cleared)
    return StoredExploration(*found), tried
