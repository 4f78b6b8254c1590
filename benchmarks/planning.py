"""Planning: cost of a plan against a step of the agent, growth with the size of the map, bytes per viewpoint.

python -m benchmarks planning
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import Amount
from esceme.agents import HAMT
from esceme.agents.base import TokenBatch
from esceme.memory import NoMemory
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank, SceneMap, VisitedViewpoint
from esceme.navigator import Navigator
from esceme.planning.belief import Belief
from esceme.planning.matcher import RouteMatcher
from esceme.planning.planner import Planner, PlanRequest
from esceme.planning.planner_file import RouteModels, make_scorers
from esceme.planning.route_prior import RoutePrior
from esceme.planning.routes import RouteLimits
from esceme.planning.speaker import FIRST_CODE, Speaker, SpeakerTables
from esceme.recipes import RECIPES
from esceme.world.geometry import VIEWS, nearest_view

WIDTH, CODES, WORDS = 331, 400, 1200
SPACING = 2.2
"""Distance of neighbouring viewpoints in metres, about that of Matterport3D."""

ALL = ["follower", "speaker", "matcher"]
"""Names of all scorers."""


def grid_map(size: int, *, keeps_features: bool = True) -> tuple[SceneMap, MapBank]:
    """Return a map of `size` visited viewpoints on a square grid, each with up to four candidates."""
    rng = np.random.default_rng(0)
    side = int(np.ceil(np.sqrt(size)))
    bank = MapBank(WIDTH, source="random", codebook=random_codebook(), keeps_features=keeps_features)
    scene_map = bank["grid"]
    places = [(number // side, number % side) for number in range(size)]
    known = set(places)
    for row, column in places:
        moves = [(0, 1), (1, 0), (0, -1), (-1, 0)]
        moves = [(x, y) for x, y in moves if (row + x, column + y) in known]
        headings = np.array([np.arctan2(x, y) for x, y in moves], np.float32)
        features = rng.normal(size=(VIEWS, WIDTH)).astype(np.float16)
        record = VisitedViewpoint(
            position=np.array([row, column, 0], np.float32) * SPACING,
            neighbours=tuple(f"{row + x},{column + y}" for x, y in moves),
            views=nearest_view(headings).astype(np.int8),
            headings=headings,
            elevations=np.zeros(len(moves), np.float32),
            lengths=np.full(len(moves), SPACING, np.float32),
            features=features if keeps_features else None,
            codes=rng.integers(CODES, size=VIEWS).astype(np.int16),
        )
        scene_map.remember(f"{row},{column}", record)
    return scene_map, bank


def random_codebook() -> Codebook:
    """Return a codebook of random centroids."""
    return Codebook(np.random.default_rng(1).normal(size=(CODES, WIDTH)))


def random_speaker() -> Speaker:
    """Return a speaker with random tables of the sizes of real R2R."""
    rng = np.random.default_rng(2)
    concepts = FIRST_CODE + CODES
    tables = SpeakerTables(
        words=rng.dirichlet(np.full(WORDS, 0.1), concepts),
        alignment=rng.dirichlet(np.ones(8), 12).T,
        groups=np.array([0.4, 0.4, 0.2]),
        background=rng.dirichlet(np.full(WORDS, 1.0)),
        background_share=0.2,
        unknown=rng.dirichlet(np.ones(concepts), 2),
        num_moves=(4, 6),
    )
    return Speaker(tables, random_codebook())


def small_follower() -> Navigator:
    """Return the network of `r2r-semantic-small` with random weights."""
    settings = vars(RECIPES["r2r-semantic-small"].navigator.agent)
    config = HAMT.Config(**{**settings, "vocabulary": WORDS, "feature_width": WIDTH})
    return Navigator(HAMT(config), NoMemory()).eval()


def milliseconds(function: Callable[[], object], *, repeat: int = 5) -> float:
    """Return the least processor time of a call in milliseconds."""
    times = []
    for _ in range(repeat):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def make_planner(scorers: list[str], follower: Navigator, **settings: Any) -> Planner:
    """Return a planner with a random speaker and matcher whose belief has equal weights."""
    torch.manual_seed(0)
    models = RouteModels(random_speaker(), RouteMatcher(WORDS, WIDTH).eval())
    planner = Planner(make_scorers(scorers, models, follower, None), Belief((), ()), **settings)
    planner.belief = Belief(planner.columns, (0.1,) * len(planner.columns))
    return planner


def run(data: Path | None) -> Iterator[Amount]:
    """Measure a plan in maps of 100 to 10,000 viewpoints, and the bytes of a viewpoint."""
    torch.set_num_threads(1)
    follower, words = small_follower(), np.random.default_rng(3).integers(WORDS, size=30)
    planner = make_planner(ALL, follower)
    costs: dict[int, float] = {}
    for size in (100, 1000, 10_000):
        scene_map, _ = grid_map(size)
        side = int(np.ceil(np.sqrt(size)))
        request = PlanRequest(words, [scene_map.node(f"{side // 2},{side // 2}")], 12)
        routes = planner.plan(scene_map, request).routes
        costs[size] = milliseconds(partial(planner.plan, scene_map, request))
        bound = "one pass of the agent over all routes, then speaker and matcher"
        name = f"plan over {len(routes)} routes, map of {size:,} viewpoints"
        yield Amount(name, costs[size], "ms", 150, bound)
    bound = "routes have at most 7 edges, so their number does not grow with the map"
    yield Amount("plan in 10,000 viewpoints, relative to 1,000", costs[10_000] / costs[1000], "", 1.5, bound)
    step = milliseconds(partial(one_step, follower, scene_map, request))
    yield Amount("the same plan in single steps of the agent", costs[10_000] / step, "steps", 40, "as above")
    for scorers, aims in ((ALL, (8, 12)), (ALL[1:], (3, 4)), (ALL[2:], (3, 3))):
        for edges, aim in zip((4, 5), aims, strict=True):
            shorter = make_planner(scorers, follower, limits=RouteLimits(max_moves=edges))
            routes = shorter.plan(scene_map, request).routes
            cost = milliseconds(partial(shorter.plan, scene_map, request))
            name = f"plan over {len(routes)} routes by {', '.join(scorers)}, in steps of the agent"
            yield Amount(name, cost / step, "steps", aim, scorers[0])
    scene_map, _ = grid_map(100, keeps_features=False)
    two_leg = make_planner(["speaker"], follower, routes="two-leg", limits=RouteLimits(8, 15), utility="sdtw")
    request = PlanRequest(np.tile(words, 2), [scene_map.node("5,5")], 12)
    routes = two_leg.plan(scene_map, request).routes
    cost = milliseconds(partial(two_leg.plan, scene_map, request))
    yield Amount(
        f"plan over {len(routes):,} two-leg routes", cost, "ms", 150, "the speaker, then DTW of 120 routes"
    )
    prior = RoutePrior((1.0, 0.5, 0.3, -0.5, -2.0, 0.0, -0.3))  # mostly straight on, and no viewpoint twice
    k_best = make_planner(
        ["speaker"], follower, routes="k-best", limits=RouteLimits(4, 12), prior=prior, utility="sdtw"
    )
    routes = k_best.plan(scene_map, request).routes
    cost = milliseconds(partial(k_best.plan, scene_map, request))
    yield Amount(f"plan over {len(routes):,} k-best routes", cost, "ms", 400, "two searches, then as above")
    for name, limit, keeps_features in (("features", 25_000, True), ("codes", 100, False)):
        scene_map, _ = grid_map(100, keeps_features=keeps_features)
        bound = (
            "2 bytes per feature of 36 views" if keeps_features else "9 bits per code, 10 bytes per candidate"
        )
        yield Amount(f"viewpoint in a map of {name}", scene_map.nbytes / 100, "bytes", limit, bound)


def one_step(follower: Navigator, scene_map: SceneMap, request: PlanRequest) -> None:
    """Let the agent read the instruction and decide once."""
    ids, nodes = torch.from_numpy(request.words)[None], np.array(request.trajectory)
    with torch.inference_mode():
        state = follower.begin(TokenBatch(ids, ids >= 0), torch.tensor([0]))
        observation = scene_map.observe(nodes, np.array([12]), np.zeros((1, 0), np.int64))
        follower.decide(state, follower.observe(observation, None))
