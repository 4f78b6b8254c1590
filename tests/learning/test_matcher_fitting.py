"""Training a matcher: described routes score highest, and partial maps cut routes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from esceme.errors import ConfigError, DataError
from esceme.learning import matcher_fitting
from esceme.learning.matcher_fitting import (
    MatcherConfig,
    MatchSample,
    StartRoutes,
    draw_routes,
    fit_matcher,
    make_batch,
    pool_views,
)
from esceme.memory.scene_map import MapBank
from esceme.planning.matcher import RouteMatcher
from esceme.planning.routes import RouteLimits, Start, shortest_routes
from esceme.planning.scoring import MatcherScorer
from fixtures.toy_atlas import build_toy_atlas

CONFIG = MatcherConfig(epochs=30, hidden=16, batch_size=16, dropout=0.0, learning_rate=1e-2)
LIMITS = RouteLimits(max_moves=4)
PLACES = ("hall", "door", "garden", "kitchen", "pantry", "landing", "attic")


def training_data() -> tuple[MapBank, list[StartRoutes], list[MatchSample]]:
    """Routes from every viewpoint in two views; each is described by a word for its end, between fillers."""
    atlas = build_toy_atlas()
    maps = MapBank.from_atlas(atlas)
    maps.remember_all()
    scene_map, starts, samples = maps["cottage"], [], []
    rows = np.array(scene_map.indices(range(len(scene_map))))
    for place in PLACES:
        for view in (12, 18):
            routes = shortest_routes(scene_map, Start(scene_map.node(place), view), LIMITS)
            for row, end in enumerate(routes.area.nodes[routes.ends].tolist()):
                word = 10 + PLACES.index(scene_map.name(end))
                samples.append(MatchSample(np.array([1, 2, word, 3]), len(starts), row))
            starts.append(StartRoutes.of(routes, rows))
    return maps, starts, samples


def fitted(config: MatcherConfig = CONFIG) -> tuple[RouteMatcher, MapBank, list[float]]:
    maps, starts, samples = training_data()
    atlas, losses = build_toy_atlas(), list[float]()
    views = pool_views(atlas, range(len(atlas)))
    matcher = fit_matcher(
        views,
        starts,
        samples,
        num_words=30,
        config=config,
        on_epoch=lambda epoch, loss: losses.append(loss),
    )
    return matcher, maps, losses


def test_described_routes_score_highest() -> None:
    matcher, maps, losses = fitted()
    assert losses[-1] < 0.5 * losses[0]
    scene_map, right = maps["cottage"], 0
    routes = shortest_routes(scene_map, Start(scene_map.node("hall"), 15), LIMITS)
    for row, end in enumerate(routes.area.nodes[routes.ends].tolist()):
        words = np.array([1, 2, 10 + PLACES.index(scene_map.name(end)), 3])
        right += int(MatcherScorer(matcher).score(routes, words)[:, 0].argmax() == row)
    assert right >= 6, f"{right} of {len(routes)} routes from a view that was not trained"
    assert int(matcher.usual_steps) == 3


def test_equal_inputs_give_equal_weights_and_leave_the_global_generator_alone() -> None:
    config = replace(CONFIG, epochs=1)
    state = torch.random.get_rng_state()
    first, second = fitted(config)[0], fitted(config)[0]
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name
    other = fitted(replace(config, seed=1))[0]
    assert not torch.equal(first.key.weight, other.key.weight)


def test_partial_maps_cut_routes_where_a_real_one_does() -> None:
    """The routes of a batch are those that `shortest_routes` finds in a map of the same viewpoints."""
    maps, starts, samples = training_data()
    config, found = replace(CONFIG, partial=1.0), 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sample = samples[int(rng.integers(len(samples)))]
        start = starts[sample.start]
        batch = make_batch(starts, [sample], config, np.random.default_rng(seed), usual_steps=5)
        # The first draws of the generator decide what was visited.
        again = np.random.default_rng(seed)
        again.random()
        visited = again.random(len(PLACES)) < again.uniform(0.3, 1.0)
        visited[start.places[0, 0]] = True
        names = sorted(PLACES)  # places are numbered by name
        part = maps["cottage"].subset([name for name, seen in zip(names, visited, strict=True) if seen])
        routes = shortest_routes(part, Start(part.node(names[start.places[0, 0]]), 0), LIMITS)
        ends = sorted(zip(routes.num_moves.tolist(), (~routes.is_visited).tolist(), strict=True))
        is_route = batch.is_route[0]
        assert (
            sorted(
                zip(
                    batch.num_moves[0][is_route].tolist(),
                    batch.is_frontier[0][is_route].tolist(),
                    strict=True,
                )
            )
            == ends
        )
        found += int(batch.is_frontier[0, batch.right[0]])
        known = batch.inputs[2].targets[0] >= 0
        assert not known.all()
    assert 3 < found < 20, "some described routes end beyond the frontier, and some do not"


def test_more_routes_than_asked_for_are_drawn_with_the_right_one() -> None:
    _, starts, samples = training_data()
    for number, sample in enumerate(samples[:20]):
        config = replace(CONFIG, routes=3, partial=0.0)
        batch = make_batch(starts, [sample], config, np.random.default_rng(number), usual_steps=5)
        assert int(batch.is_route.sum()) == 3
        start = starts[sample.start]
        moves = int((start.places[sample.route] >= 0).sum()) - 1
        assert int(batch.num_moves[0, batch.right[0]]) == moves
        end = batch.inputs[3][0, batch.right[0], moves]
        assert batch.inputs[2].viewpoints[0, end] == start.inputs.viewpoints[start.ends[sample.route]]


def test_of_many_routes_those_like_the_described_ones_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_fitting, "MOST_ROUTES", 4)
    maps, _, _ = training_data()
    scene_map = maps["cottage"]
    routes = shortest_routes(scene_map, Start(scene_map.node("hall"), 12), LIMITS)
    ends = [scene_map.name(node) for node in routes.area.nodes[routes.ends].tolist()]
    described = [ends.index("attic")]
    part, rows = draw_routes(routes, described, seed=0)
    assert len(described) + 2 <= len(part) <= 5 < len(routes)
    assert np.array_equal(part.places[rows], routes.places[described])
    assert "landing" in [scene_map.name(node) for node in part.area.nodes[part.ends].tolist()]


def test_unsuitable_inputs_are_refused() -> None:
    with pytest.raises(DataError, match="needs instructions whose route"):
        fit_matcher(pool_views(build_toy_atlas(), [0]), [], [], num_words=3, config=CONFIG)
    with pytest.raises(ConfigError, match="dropout"):
        MatcherConfig(dropout=1.0)
