"""Most probable routes under a prior: exact, within limits, and found where paths are not shortest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from esceme.errors import ConfigError
from esceme.learning.planner_fitting import fit_route_prior
from esceme.learning.speaker_fitting import Description, SpeakerConfig, fit_speaker, path_steps
from esceme.memory.codebook import Codebook
from esceme.memory.scene_map import MapBank, SceneMap
from esceme.metrics import PaddedPaths, dtw, ndtw
from esceme.planner_training import described_route, route_shape
from esceme.planning.belief import Belief
from esceme.planning.planner import Planner, PlanRequest
from esceme.planning.route_prior import STEP_COLUMNS, TURN_COLUMNS, RoutePrior, step_columns
from esceme.planning.routes import Neighbourhood, RouteLimits, Start, best_routes, get_routes
from esceme.planning.scoring import SpeakerScorer
from esceme.tasks.episode import Episode
from esceme.world.atlas import Atlas
from esceme.world.features import ArrayFeatures
from esceme.world.geometry import VIEW_HEADINGS, VIEWS
from fixtures.toy_atlas import build, build_toy_atlas, encode, make_episode

SIDE = 5


def random_prior(seed: int, *, revisit: float | None) -> RoutePrior:
    weights = np.random.default_rng(seed).normal(size=len(STEP_COLUMNS))
    return RoutePrior(tuple(weights.tolist()), revisit)


def all_walks(area: Neighbourhood, start: Start, limits: RouteLimits, prior: RoutePrior):  # type: ignore[no-untyped-def]
    """Every route with its log-prior, by plain recursion, as {(edges, ends at the frontier): [...]}."""
    origin = area.place(start.node)
    found: dict[tuple[int, bool], list[tuple[float, tuple[int, ...]]]] = {}

    def extend(path: tuple[int, ...], view: int, score: float) -> None:
        here = path[-1]
        if len(path) > 1:
            found.setdefault((len(path) - 1, not area.visited[here]), []).append((score, path))
        if not area.visited[here] or len(path) > limits.max_moves:
            return
        onward = np.flatnonzero(area.slot[here] >= 0)
        if prior.revisit is None:
            onward = onward[~np.isin(onward, [origin, *path[-2:-1]])]
        away = area.distances[origin, onward] - area.distances[origin, here]
        turns = area.heading[here, onward] - VIEW_HEADINGS[view]
        scores = step_columns(turns, area.lengths[here, onward], away) @ np.array(prior.steps)
        scores -= np.log(np.exp(scores).sum()) if len(scores) else 0.0
        for there, step in zip(onward.tolist(), scores.tolist(), strict=True):
            if there not in path:
                extend((*path, there), int(area.view[here, there]), score + step)
            elif prior.revisit is not None:
                extend((*path, there), int(area.view[here, there]), score + step + prior.revisit)

    extend((origin,), start.view, 0.0)
    return found


@pytest.mark.parametrize("revisit", [None, 0.0, -0.7])
@pytest.mark.parametrize("visited", [None, ("hall", "door", "kitchen"), ("garden",)])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_best_routes_are_exactly_those_of_brute_force(
    revisit: float | None, visited: tuple[str, ...] | None, count: int
) -> None:
    atlas = build_toy_atlas()
    maps = MapBank.from_atlas(atlas)
    names = visited or atlas.graph("cottage").viewpoints
    maps.remember_at(atlas.locate("cottage", names).tolist())
    scene_map = maps["cottage"]
    compare_with_brute_force(scene_map, names[0], RouteLimits(2, 6), revisit, count)


def test_best_routes_are_exact_where_partial_routes_are_cut_off() -> None:
    """In a grid, the first search misses routes that the second one finds."""
    maps = MapBank.from_atlas(grid())
    maps.remember_all()
    for revisit in (None, -1.0):
        compare_with_brute_force(maps["cottage"], "1,1", RouteLimits(0, 7), revisit, 5)


def compare_with_brute_force(
    scene_map: SceneMap, name: str, limits: RouteLimits, revisit: float | None, count: int
) -> None:
    start = Start(scene_map.node(name), 14)
    for seed in range(3):
        prior = random_prior(seed, revisit=revisit)
        routes = best_routes(scene_map, start, limits, prior, count)
        area, log_prior = routes.area, routes.log_prior
        assert log_prior is not None and routes.num_moves[0] == 0 and routes.parents is None
        expected = all_walks(area, start, limits, prior)
        for moves in range(1, limits.max_moves + 1):
            for frontier in (False, True):
                rows = np.flatnonzero((routes.num_moves == moves) & (routes.is_visited != frontier))
                rows = rows[rows > 0]
                wanted = sorted(expected.get((moves, frontier), []), reverse=True)[:count]
                if moves < limits.min_moves and not frontier:
                    wanted = []
                assert log_prior[rows] == pytest.approx([score for score, _ in wanted], abs=1e-9)
                if count >= 1000:
                    found = {tuple(routes.places[row, : moves + 1].tolist()) for row in rows}
                    assert found == {path for _, path in wanted} and len(found) == len(rows)


def grid() -> Atlas:
    """A square grid of viewpoints, each with a look of its own."""
    positions = {
        f"{row},{column}": (2.0 * row + 0.1 * column, 2.1 * column, 0)
        for row in range(SIDE)
        for column in range(SIDE)
    }
    edges = [
        (f"{row},{column}", f"{row + down},{column + right}")
        for row in range(SIDE)
        for column in range(SIDE)
        for down, right in ((0, 1), (1, 0))
        if row + down < SIDE and column + right < SIDE
    ]
    atlas = build({"cottage": positions}, {"cottage": edges})
    looks = np.eye(SIDE * SIDE)
    panoramas = {
        f"cottage_{name}": np.repeat(looks[number : number + 1], VIEWS, 0)
        for number, name in enumerate(positions)
    }
    return Atlas([atlas.graph("cottage")], ArrayFeatures.from_mapping(panoramas, source="grid.hdf5"))


def wandering_paths(atlas: Atlas, size: int, seed: int) -> list[Episode]:
    """Episodes whose paths mostly turn left or right, and never visit a viewpoint twice.

    Words are the numbers of the viewpoints after the start.
    """
    graph, generator, episodes = atlas.graph("cottage"), np.random.default_rng(seed), list[Episode]()
    while len(episodes) < size:
        path = [str(generator.choice(graph.viewpoints))]
        for _ in range(8):
            (index,) = atlas.locate("cottage", path[-1:])
            near = [atlas.names[other][1] for other in atlas.neighbours[index, : atlas.degrees[index]]]
            near = [name for name in near if name not in path]
            if near:
                before = place(path[-2]) if len(path) > 1 else place(path[-1])
                ahead = 2 * place(path[-1]) - before
                weights = np.array([1.0 if (place(name) == ahead).all() else 9.0 for name in near])
                path.append(str(generator.choice(near, p=weights / weights.sum())))
        if len(path) == 9:
            words = tuple(2 + graph.index(name) for name in path[1:])
            episode = make_episode(*path, name=f"{len(episodes)}_0")
            episodes.append(replace(episode, tokens=words))
    return episodes


def place(name: str) -> np.ndarray:
    return np.array([int(number) for number in name.split(",")])


def similarity(atlas: Atlas, path: list[str], reference: tuple[str, ...]) -> float:
    walked, expected = (
        PaddedPaths.from_paths([atlas.locate("cottage", names)]) for names in (path, reference)
    )
    costs = atlas.distance(walked.viewpoints[:, None], expected.viewpoints[None])
    return float(ndtw(dtw(costs, walked.count, expected.count), expected.count)[0])


def test_planner_with_best_routes_follows_paths_that_wander() -> None:
    atlas = grid()
    train, test = wandering_paths(atlas, 150, 0), wandering_paths(atlas, 20, 1)
    codebook = Codebook(np.eye(SIDE * SIDE))
    shape = route_shape(atlas, train, "sdtw", codebook)
    assert shape.routes == "k-best" and shape.limits == RouteLimits(8, 8) and shape.shares["two"] < 0.9
    assert shape.prior is not None and shape.prior.revisit is None
    maps = MapBank.from_atlas(atlas, codebook=codebook, keeps_features=False)
    maps.remember_all()
    scene_map = maps["cottage"]
    speaker = fit_speaker(
        maps,
        [("cottage", path_steps(scene_map, episode.reference_path, 0.0)) for episode in train],
        [Description(row, np.array(encode(episode))) for row, episode in enumerate(train)],
        num_words=2 + SIDE * SIDE,
        config=SpeakerConfig(prior=0.1),
    )
    uniform = RoutePrior((0.0,) * len(STEP_COLUMNS))
    scores = {}
    for label, name, prior in (
        ("fitted", "k-best", shape.prior),
        ("uniform", "k-best", uniform),
        ("two-leg", "two-leg", None),
        ("shortest", "shortest", None),
    ):
        planner = Planner(
            [SpeakerScorer(speaker)],
            Belief(("speaker",), (2.0,)),
            routes=name,
            limits=shape.limits,
            prior=prior,
            utility="sdtw",
        )
        found = []
        for episode in test:
            request = PlanRequest(np.array(encode(episode)), [scene_map.node(episode.start)], 12)
            plan = planner.plan(scene_map, request)
            path = [episode.start, *(scene_map.name(node) for node, _ in plan.path)]
            is_same = path == list(episode.reference_path)
            found.append((is_same, similarity(atlas, path, episode.reference_path)))
        scores[label] = np.mean(found, 0)
    assert scores["fitted"][0] >= 0.7 and scores["shortest"][0] <= 0.1
    for other in ("uniform", "two-leg", "shortest"):
        assert (scores["fitted"] > scores[other] + 0.1).all(), scores


def test_prior_is_that_of_the_steps_of_the_paths() -> None:
    """Paths that go straight on give the greatest weight to straight on; revisits are learned as well."""
    atlas = grid()
    maps = MapBank.from_atlas(atlas)
    maps.remember_all()
    straight = [
        make_episode(*(f"{row},{number}" for number in range(SIDE)), name=f"{row}") for row in range(SIDE)
    ]
    weights = dict(zip(STEP_COLUMNS, fit_route_prior(maps, atlas, straight).steps, strict=True))
    assert max(TURN_COLUMNS, key=lambda name: weights[name]) == "straight"
    back = [make_episode("0,0", "0,1", "0,2", "0,1", name="back"), *straight]
    prior = fit_route_prior(maps, atlas, back)
    assert prior.revisit is not None and prior.revisit < 0


def test_a_prior_is_needed_for_best_routes_only() -> None:
    prior = random_prior(0, revisit=None)
    for name, given in (("k-best", None), ("shortest", prior)):
        with pytest.raises(ConfigError, match=f"routes '{name}': expected .* prior"):
            get_routes(name, given)
    with pytest.raises(ConfigError, match="revisit: expected"):
        RoutePrior(prior.steps, 1.0)
    with pytest.raises(ConfigError, match="steps: expected"):
        RoutePrior(prior.steps[:3])


def test_a_path_longer_than_all_routes_is_not_among_them() -> None:
    atlas = grid()
    maps = MapBank.from_atlas(atlas)
    maps.remember_all()
    scene_map, (episode,) = maps["cottage"], wandering_paths(atlas, 1, 0)
    for name, prior in (("k-best", random_prior(0, revisit=None)), ("two-leg", None)):
        start = Start(scene_map.node(episode.start), 12)
        routes = get_routes(name, prior)(scene_map, start, RouteLimits(0, 5))
        assert described_route(scene_map, routes, episode) is None
