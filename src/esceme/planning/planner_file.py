"""Planners in run folders: RUN/planner holds a speaker, a matcher, fitted beliefs, and their settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import safetensors
from safetensors.numpy import load_file, save

from esceme import __version__
from esceme.errors import ConfigError, DataError
from esceme.files import atomic_open, read_bytes, read_json, write_json
from esceme.memory.bank import Memory
from esceme.navigator import Navigator
from esceme.planning.belief import Belief
from esceme.planning.choice import UTILITIES, Exploration
from esceme.planning.matcher import RouteMatcher, read_matcher
from esceme.planning.planner import Planner
from esceme.planning.route_prior import RoutePrior
from esceme.planning.routes import ROUTES, RouteLimits
from esceme.planning.scoring import SCORERS, FollowerScorer, MatcherScorer, Scorer, SpeakerScorer
from esceme.planning.speaker import Speaker
from esceme.settings import LARGEST, Size

FORMAT = "esceme-planner-3"
FOLDER = "planner"
PLANNER_FILE = "planner.json"
SPEAKER_FILE = "speaker.safetensors"
MATCHER_FILE = "matcher.safetensors"
ADVICE = "train the planner again (`esceme train-planner`)"


Weight = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]


class RouteModels(NamedTuple):
    """Models that score routes, besides the agent."""

    speaker: Speaker
    matcher: RouteMatcher | None = None


class PlannerHeader(msgspec.Struct, frozen=True):
    """Format of a planner file."""

    format: str = ""


class StoredBelief(msgspec.Struct, frozen=True):
    """Fitted weights of a belief, by name of the column, and its mean loss on the samples of the fit."""

    weights: dict[str, Weight]
    loss: float


class StoredExploration(msgspec.Struct, frozen=True):
    """Fitted exploration weights for maps that are kept, and for maps that are cleared per episode."""

    persistent: Exploration
    cleared: Exploration


class StoredPlanner(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a planner except its models."""

    format: str = FORMAT
    version: str = __version__
    routes: str
    """Name of the route generator."""
    limits: RouteLimits
    prior: RoutePrior | None = None
    """Prior of routes, for the route generator `k-best`."""
    utility: str
    """Name of the metric whose expectation the choice maximises."""
    scorers: list[str]
    beliefs: dict[str, StoredBelief]
    """Beliefs by name: `full`, and controls that read only some of the columns."""
    exploration: StoredExploration
    max_moves: Size
    features: str
    """Name of the feature file."""
    digests: dict[str, str]
    """SHA-256 of the speaker, of the matcher, of the follower's weights, and of the data of the fit."""
    fit: dict[str, Any]
    """Settings of the fit, held-out scenes, and their SPL for every exploration weight that was tried."""


def save_planner(run: str | Path, planner: StoredPlanner, speaker: Speaker) -> None:
    """Write the planner of a run folder. `planner.json` is written last: it marks a complete planner."""
    folder = Path(run) / FOLDER
    write_speaker(folder / SPEAKER_FILE, speaker)
    write_json(folder / PLANNER_FILE, planner, indent=2)


def write_speaker(path: Path, speaker: Speaker) -> None:
    """Write the tables of a speaker."""
    with atomic_open(path) as file:
        file.write(save({name: np.ascontiguousarray(array) for name, array in speaker.digest_arrays.items()}))


def file_digest(path: Path) -> str:
    """Return the SHA-256 of the file of a model."""
    return hashlib.sha256(read_bytes(path)).hexdigest()


def read_speaker(path: Path) -> Speaker:
    """Return the speaker in a file; raise `DataError` if there is none or if it is damaged."""
    if not path.is_file():
        raise DataError(f"{path}: no speaker here; {ADVICE}")
    try:
        arrays: Mapping[str, Any] = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(f"{path}: not a complete speaker ({error}); {ADVICE}") from None
    return Speaker.from_arrays(arrays)


def load_planner(run: str | Path) -> tuple[StoredPlanner, RouteModels]:
    """Return the planner of a run folder; raise `ConfigError` if the run has no fitted planner."""
    folder = Path(run) / FOLDER
    path = folder / PLANNER_FILE
    if not path.is_file():
        raise ConfigError(f"{run}: has no fitted planner; run `esceme train-planner {run}` first")
    header = read_json(path, PlannerHeader)
    if header.format != FORMAT:
        raise DataError(f"{path}: format '{header.format}', expected '{FORMAT}'; {ADVICE}")
    planner = read_json(path, StoredPlanner)
    for name, value, known in (
        ("routes", [planner.routes], ROUTES),
        ("utility", [planner.utility], UTILITIES),
        ("scorers", planner.scorers, SCORERS),
        ("beliefs", ["full"], planner.beliefs),
    ):
        if unknown := [entry for entry in value if entry not in known]:
            expected = ", ".join(known)
            raise DataError(f"{path}: {name}: expected one of {expected}, found '{unknown[0]}'; {ADVICE}")
    if (planner.routes == "k-best") != (planner.prior is not None):
        raise DataError(f"{path}: prior: expected one for routes 'k-best' and only for these; {ADVICE}")
    speaker, matcher = read_speaker(folder / SPEAKER_FILE), None
    if "matcher" in planner.scorers:
        matcher = read_matcher(folder / MATCHER_FILE)
    for name, model in (("speaker", speaker), ("matcher", matcher)):
        file = folder / f"{name}.safetensors"
        if model is not None and file_digest(file) != planner.digests.get(name):
            raise DataError(f"{file}: not the {name} of {PLANNER_FILE}; {ADVICE}")
    return planner, RouteModels(speaker, matcher)


def build_planner(
    stored: StoredPlanner,
    models: RouteModels,
    navigator: Navigator,
    memory: Memory | None,
    *,
    belief: str = "full",
    choice: str = "bayes",
    is_cleared: bool = False,
) -> Planner:
    """Return the planner of a run folder.

    `belief` is the name of a fitted belief. With `is_cleared`, the map is cleared before each episode.
    """
    if belief not in stored.beliefs:
        raise ConfigError(f"belief '{belief}': this planner has {', '.join(stored.beliefs)}")
    weights = stored.beliefs[belief].weights
    return Planner(
        make_scorers(stored.scorers, models, navigator, memory, set(weights)),
        Belief(tuple(weights), tuple(weights.values())),
        exploration=stored.exploration.cleared if is_cleared else stored.exploration.persistent,
        routes=stored.routes,
        limits=stored.limits,
        prior=stored.prior,
        utility=stored.utility,
        choice=choice,
        max_moves=stored.max_moves,
    )


def make_scorers(
    names: list[str],
    models: RouteModels,
    navigator: Navigator,
    memory: Memory | None,
    columns: set[str] | None = None,
) -> list[Scorer]:
    """Return the scorers of these names; with `columns`, only those that give one of these columns."""
    makers: dict[str, Any] = {
        "follower": lambda: FollowerScorer(navigator, memory),
        "speaker": lambda: SpeakerScorer(models.speaker),
    }
    if models.matcher is not None:
        makers["matcher"] = partial(MatcherScorer, models.matcher)
    if unknown := [name for name in names if name not in makers]:
        raise ConfigError(f"scorer '{unknown[0]}': expected one of {', '.join(makers)}")
    scorers: list[Scorer] = [makers[name]() for name in names]
    if columns is None:
        return scorers
    return [scorer for scorer in scorers if columns & set(scorer.columns)]
