"""Planner: scores of routes, belief, choice, and rollouts that walk planned routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from esceme.agents import DUET, TDSTP, Seq2Seq
from esceme.agents.base import TokenBatch
from esceme.errors import ConfigError
from esceme.memory import NoMemory
from esceme.memory.scene_map import MapBank, SceneMap
from esceme.metrics import score_paths
from esceme.navigator import Navigator
from esceme.planning import planner as planner_module
from esceme.planning.belief import Belief, fit_belief, length_columns, route_columns, route_table
from esceme.planning.choice import (
    Exploration,
    lookahead_utilities,
    progress_utilities,
    sdtw_utilities,
    spl_utilities,
)
from esceme.planning.planner import Planner, PlanRequest
from esceme.planning.routes import RouteLimits, RouteSet, Start, shortest_routes, two_leg_routes
from esceme.planning.scoring import FollowerScorer, SpeakerScorer
from esceme.planning.speaker import END, UP, StepArrays, align, step_concepts
from esceme.world.atlas import Atlas
from fixtures.random_runs import SMALL_HAMT
from fixtures.toy_atlas import TOY_EPISODES, VOCABULARY, WIDTH, build_toy_atlas, make_episode, plain_navigator
from fixtures.toy_planner import random_planner, random_speaker, walk

WORDS = np.array([1, 5, 7, 9, 2], dtype=np.int64)


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    return build_toy_atlas()


def complete_map(atlas: Atlas, *names: str) -> SceneMap:
    maps = MapBank.from_atlas(atlas, codebook=random_speaker().codebook)
    maps.remember_at(atlas.locate("cottage", names or atlas.graph("cottage").viewpoints).tolist())
    return maps["cottage"]


def routes_from(scene_map: SceneMap, name: str = "garden") -> RouteSet:
    return shortest_routes(scene_map, Start(scene_map.node(name), 12), RouteLimits())


def navigator_of(agent_class: type, **settings: object) -> Navigator:
    torch.manual_seed(1)
    sizes = {"vocabulary": VOCABULARY, "feature_width": WIDTH, "max_steps": 20, **SMALL_HAMT, **settings}
    known = {name: value for name, value in sizes.items() if name in agent_class.Config.__dataclass_fields__}
    return Navigator(agent_class(agent_class.Config(**known)), NoMemory(), feature_dropout=0.4).eval()


# -- scoring ---------------------------------------------------------------------------------------------


def test_rehearsing_in_one_pass_equals_rehearsing_step_by_step(atlas: Atlas) -> None:
    scorer, routes = (
        FollowerScorer(plain_navigator()),
        routes_from(complete_map(atlas, "garden", "door", "hall")),
    )
    with torch.inference_mode():
        ids = torch.from_numpy(WORDS)[None]
        state = scorer.navigator.begin(TokenBatch(ids, ids > 0), torch.tensor([0]))
        one, stops = scorer._in_one_pass(routes, state)
        other, same = scorer._by_length(routes, state)
    visited = routes.is_visited
    assert stops[visited].tolist() == same[visited].tolist()
    is_action = np.arange(one.shape[1]) <= stops[visited][:, None]
    np.testing.assert_allclose(one[visited][is_action], other[visited][is_action], atol=1e-4)


@pytest.mark.parametrize("agent_class", [TDSTP, Seq2Seq, DUET])
def test_every_agent_can_rehearse(atlas: Atlas, agent_class: type) -> None:
    scorer, routes = FollowerScorer(navigator_of(agent_class)), routes_from(complete_map(atlas))
    with torch.inference_mode():
        found = scorer.score(routes, WORDS)
    assert found.shape == (len(routes), 2) and np.isfinite(found).all()
    assert (found[1:, 0] < 0).all() and found[0, 0] == 0 and (found[:, 1] < 0).all()


def test_walks_and_stops_of_a_follower_are_those_of_its_own_rollout(atlas: Atlas) -> None:
    """The probability of a rehearsed route is the product of the probabilities in a real rollout."""
    from fixtures.toy_atlas import run_batch

    episode, navigator = make_episode("garden", "door", "hall", "kitchen"), plain_navigator()
    scene_map = complete_map(atlas)
    routes = routes_from(scene_map)
    with torch.inference_mode():
        found = FollowerScorer(navigator).score(routes, np.array(episode.tokens, dtype=np.int64))
        logs = [
            torch.log_softmax(step.decision.logits, 1)[0, step.actions[0]].item()
            for step in run_batch(navigator, atlas, [episode], None)
        ]
    row = int(np.flatnonzero(routes.area.nodes[routes.ends] == scene_map.node("kitchen"))[0])
    assert found[row] == pytest.approx([sum(logs[:-1]), logs[-1]], abs=0.02)  # features in half precision


def test_speaker_prefers_the_route_of_its_words(atlas: Atlas) -> None:
    scene_map, speaker = complete_map(atlas), random_speaker()
    routes = routes_from(scene_map, "hall")
    landing = int(np.flatnonzero(routes.area.nodes[routes.ends] == scene_map.node("landing"))[0])
    words = np.full(6, int(speaker.tables.words[UP].argmax()))
    tables = replace(speaker.tables, groups=np.array([1.0, 0.0, 0.0]))
    scores = SpeakerScorer(type(speaker)(tables, speaker.codebook)).score(routes, words)
    one_move = np.flatnonzero((routes.num_moves == 1) & routes.is_visited)
    assert one_move[scores[one_move, 0].argmax()] == landing


def test_steps_have_concepts_of_turns_floors_ends_and_codes(atlas: Atlas) -> None:
    scene_map = complete_map(atlas)
    graph = atlas.graph("cottage")
    hall = scene_map.node("hall")
    row = graph.index("hall")
    slots = [graph.neighbours[row].tolist().index(graph.index(name)) for name in ("door", "landing")]
    steps = StepArrays(np.full(3, hall), np.full(3, 12), np.array([*slots, -1]))
    action, ahead, around = (matrix.toarray() for matrix in step_concepts(scene_map, steps, 20))
    assert action[0].argmax() == 0  # the door lies straight ahead
    assert action[1, UP] == pytest.approx(0.7)
    assert action[2, END] == 1
    for matrix in (action, ahead, around):
        np.testing.assert_allclose(matrix.sum(1), 1)
    assert not ahead[:, :11].any() and not around[:, :11].any()


def test_alignment_is_a_distribution_over_steps() -> None:
    table = np.random.default_rng(0).dirichlet(np.ones(8), 12).T
    for steps, words in ((1, 1), (7, 30), (3, 5)):
        aligned = align(table, steps, words)
        assert aligned.shape == (steps, words)
        np.testing.assert_allclose(aligned.sum(0), 1)


# -- belief and choice -----------------------------------------------------------------------------------


def test_fitted_belief_recovers_what_decides() -> None:
    rng = np.random.default_rng(0)
    columns, samples = ("a", "b", "c"), []
    for _ in range(300):
        table = rng.normal(size=(6, 3))
        scores = table @ [2.0, 0.0, -1.0] + rng.gumbel(size=6)
        samples.append((table, np.eye(6)[scores.argmax()]))
    belief, loss = fit_belief(samples, columns, columns)
    assert belief.weights == pytest.approx([2.0, 0.0, -1.0], abs=0.4)
    only, worse = fit_belief(samples, columns, ["b"])
    assert worse > loss and only.columns == ("b",)
    assert fit_belief(samples, columns, columns) == (belief, loss)


def test_belief_reads_only_its_columns(atlas: Atlas) -> None:
    routes = routes_from(complete_map(atlas, "garden", "door"))
    columns = route_columns([("x", "y")], 7)
    scores = np.random.default_rng(0).normal(size=(len(routes), 2))
    table = route_table(routes, [scores], 7)
    assert table.shape == (len(routes), len(columns))
    lengths = length_columns(7)
    blind = Belief(lengths, tuple(np.linspace(-1, 1, len(lengths)).tolist()))
    other = route_table(routes, [scores + 5], 7)
    np.testing.assert_array_equal(blind.probabilities(table, columns), blind.probabilities(other, columns))
    with pytest.raises(ConfigError, match="the belief reads z, which no scorer gives"):
        Belief(("z",), (1.0,)).probabilities(table, columns)
    with pytest.raises(ConfigError, match="finite weights"):
        Belief(("z",), (float("nan"),))


def test_expected_spl_prefers_the_middle_of_probable_ends(atlas: Atlas) -> None:
    """Kitchen and pantry are near each other: stopping at one of them is right for both."""
    scene_map = complete_map(atlas)
    routes = routes_from(scene_map, "hall")
    names = [scene_map.name(int(node)) for node in routes.area.nodes[routes.ends]]
    belief = np.zeros(len(names))
    for name, share in (("kitchen", 0.3), ("hall", 0.3), ("attic", 0.4)):
        belief[names.index(name)] = share
    hall, landing = (routes.area.place(scene_map.node(name)) for name in ("hall", "landing"))
    utilities = spl_utilities(routes, belief, [hall], 1.0)
    assert names[int(belief.argmax())] == "attic"
    assert utilities[names.index("attic")] == pytest.approx(0.4)
    longer = spl_utilities(routes, belief, [hall, landing, hall, landing, hall], 1.0)
    assert (longer <= utilities + 1e-9).all()


def test_lookahead_adds_what_can_still_be_reached_from_the_frontier(atlas: Atlas) -> None:
    scene_map = complete_map(atlas, "garden", "door")
    routes = routes_from(scene_map, "garden")
    belief = np.full(len(routes), 1 / len(routes))
    walked = [routes.area.place(scene_map.node("garden"))]
    plain = spl_utilities(routes, belief, walked, 1.2)
    ahead = lookahead_utilities(routes, belief, walked, 99.0)
    visited = routes.is_visited
    np.testing.assert_array_equal(ahead[visited], plain[visited])
    assert (ahead[~visited] > plain[~visited]).all()
    assert (ahead[~visited] - plain[~visited] <= plain[visited].max() + 1e-9).all()


def test_expected_sdtw_equals_the_metric_of_each_pair_of_routes(atlas: Atlas) -> None:
    scene_map = complete_map(atlas)
    routes = two_leg_routes(scene_map, Start(scene_map.node("garden"), 12), RouteLimits(3, 5))
    rng, scene = np.random.default_rng(0), "cottage"
    belief = rng.dirichlet(np.ones(len(routes)))
    origin = routes.area.place(scene_map.node("garden"))
    utilities = sdtw_utilities(routes, belief, [origin], 1.0)
    names = [
        [scene_map.name(int(routes.area.nodes[place])) for place in row if place >= 0]
        for row in routes.places
    ]
    compared = np.flatnonzero(utilities >= 0)
    assert len(compared) == min(len(routes), 120)
    for row in rng.choice(compared, 3, replace=False).tolist():
        expected = sum(
            belief[other]
            * score_paths(
                [make_episode(*names[other])], [atlas.locate(scene, names[row]).tolist()], atlas
            ).values["sdtw"][0]
            for other in compared.tolist()
            if len(names[other]) > 1
        )
        assert utilities[row] == pytest.approx(expected, abs=belief[routes.num_moves == 0].sum() + 1e-6)


def test_expected_progress_prefers_ends_near_probable_ends(atlas: Atlas) -> None:
    scene_map = complete_map(atlas)
    routes = routes_from(scene_map, "garden")
    names = [scene_map.name(int(node)) for node in routes.area.nodes[routes.ends]]
    belief = np.eye(len(names))[names.index("attic")]
    utilities = progress_utilities(routes, belief, [routes.area.place(scene_map.node("garden"))], 1.0)
    assert names[int(utilities.argmax())] == "attic" and utilities[names.index("garden")] == pytest.approx(0)


def test_exploration_is_larger_in_the_first_episodes() -> None:
    exploration = Exploration(early=10.0, late=4.0, num_early=15)
    assert [exploration.weight(episodes) for episodes in (1, 15, 16, 200)] == [10.0, 10.0, 4.0, 4.0]


# -- plans -----------------------------------------------------------------------------------------------


def test_planned_trajectories_follow_edges_and_the_limit_of_moves(atlas: Atlas) -> None:
    planner, speaker = random_planner()
    for episode, path in zip(TOY_EPISODES, walk(planner, speaker, atlas, TOY_EPISODES), strict=True):
        graph = atlas.graph(episode.scene_id)
        assert path[0] == episode.start and len(path) <= planner.max_moves + 1
        assert all(graph.adjacent(here, there) for here, there in zip(path, path[1:], strict=False))
    planner.max_moves = 1
    assert all(len(path) <= 2 for path in walk(planner, speaker, atlas, TOY_EPISODES))


def test_exploration_weight_decides_whether_the_map_grows(atlas: Atlas) -> None:
    planner, speaker = random_planner()
    sizes = []
    for weight in (0.0, 1000.0):
        planner.exploration = Exploration(weight, weight)
        maps = MapBank.from_atlas(atlas, codebook=speaker.codebook)
        walk(planner, speaker, atlas, TOY_EPISODES, maps)
        sizes.append(len(maps))
    assert sizes[0] < sizes[1] == len(atlas)


def test_unknown_names_are_refused() -> None:
    planner, _ = random_planner()
    for options, message in (
        ({"routes": "longest"}, "routes 'longest': expected one of shortest"),
        ({"choice": "worst"}, "choice 'worst'"),
    ):
        with pytest.raises(ConfigError, match=message):
            Planner(planner.scorers, planner.belief, **options)


def test_parts_of_a_map_without_a_known_connection_are_planned_apart(atlas: Atlas) -> None:
    """Routes never lead to visited viewpoints that no known edge connects with the start."""
    planner, _ = random_planner()
    scene_map = complete_map(atlas, "garden", "attic")
    plan = planner.plan(scene_map, PlanRequest(WORDS, [scene_map.node("garden")], 12))
    names = {scene_map.name(int(node)) for node in plan.routes.area.nodes[plan.routes.ends]}
    assert names == {"garden", "door"}


def test_the_first_scorer_selects_the_routes_that_others_score(
    atlas: Atlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene_map = complete_map(atlas, "hall", "garden", "door", "kitchen")
    request = PlanRequest(WORDS, [scene_map.node("garden")], 12)
    settings = {"scorers": ("speaker", "matcher"), "routes": "two-leg", "limits": RouteLimits(2, 6)}
    planner, _ = random_planner(**settings, utility="sdtw")
    routes, table = planner.compare(scene_map, request)
    monkeypatch.setattr(planner_module, "SELECTED", 2)
    part, selected = planner.compare(scene_map, request)
    assert len(part) == 4 < len(routes) and part.is_visited.sum() == 2
    speaker = planner.columns.index("speaker")
    for is_visited in (True, False):
        best = np.sort(table[routes.is_visited == is_visited][:, speaker])[-2:]
        rows = part.is_visited == is_visited
        assert np.array_equal(np.sort(selected[rows][:, speaker]), best)
    for row, places in enumerate(part.places):
        same = np.flatnonzero((routes.places == places).all(1))
        assert np.allclose(table[same[0]], selected[row], atol=1e-5)
    plan = planner.plan(scene_map, request)
    assert len(plan.routes) == 4 and plan.chosen in range(4)
