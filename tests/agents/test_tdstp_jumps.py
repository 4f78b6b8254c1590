"""Backtracking of TD-STP: routes, history, repeat penalty, batches (spec D.5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from esceme.agents import TDSTP, BacktrackRoutes, Decision, TdstpConfig
from esceme.agents.base import TokenBatch
from esceme.agents.tdstp import REVERSED_JUMP_PENALTY, TdstpState
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.world import Atlas, Pose
from fixtures.random_observations import random_words
from fixtures.toy_atlas import VOCABULARY, WIDTH, build, build_toy_atlas

pytestmark = pytest.mark.usefixtures("no_gradients")

ROUND = build(
    {
        "round": {
            name: (np.cos(angle), np.sin(angle), 0) for name, angle in zip("abcde", range(5), strict=True)
        }
    },
    {"round": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]},
)
"""Five viewpoints on a ring: from d, the path to a through e is shorter than through c and b."""


def small(**changes: Any) -> TDSTP:
    torch.manual_seed(0)
    sizes = {"hidden": 16, "heads": 2, "feed_forward": 24, "text_layers": 1, "cross_layers": 2}
    sizes |= {"vocabulary": VOCABULARY, "positions": 16, "feature_width": WIDTH, "panorama_layers": 1}
    return TDSTP(TdstpConfig(**{**sizes, "max_steps": 12, "initial_std": 0.2, **changes})).eval()


class Episode:
    """One agent in a scene that is moved by name."""

    def __init__(self, agent: TDSTP, atlas: Atlas, start: str, *, words: TokenBatch | None = None) -> None:
        self.agent, self.atlas, self.scene = agent, atlas, next(iter(atlas.graphs))
        self.pose = atlas.begin(atlas.locate(self.scene, [start]), [1.0])
        self.state = agent.begin(words or random_words((6,), vocabulary=VOCABULARY), torch.zeros(1))
        self.views: list[int] = []
        """The facing view at each decision."""

    @property
    def observation(self) -> Observation:
        return Observation.from_atlas(self.atlas, self.pose)

    @property
    def decision(self) -> Decision:
        return self.agent.decide(self.state, self.observation)

    def index(self, name: str) -> int:
        return int(self.atlas.locate(self.scene, [name])[0])

    def candidate(self, name: str) -> int:
        """The action that moves to this neighbour."""
        return self.observation.neighbour[0].tolist().index(self.index(name))

    def backtrack(self, node: int) -> int:
        """The action that returns to the viewpoint of the `node`-th decision, counted from 1."""
        return self.observation.token_type.shape[1] + node

    def route(self, node: int) -> list[str]:
        return [self.atlas.name(viewpoint)[1] for viewpoint, _ in self.path(node)]

    def path(self, node: int) -> list[tuple[int, int]]:
        """Viewpoints and views on the route back to a decision."""
        return routes_of(self.decision).shortest_path(0, self.backtrack(node))

    def move(self, *names: str) -> Episode:
        """Move along neighbours."""
        for name in names:
            action = self.candidate(name)
            self._advance(action)
            self.pose = self.atlas.step(self.pose, [action])
        return self

    def jump(self, node: int) -> list[str]:
        """Return to the viewpoint of a decision; returns the names on the route."""
        path, route = self.path(node), self.route(node)
        self._advance(self.backtrack(node))
        self.pose = Pose(*np.array([path[-1]]).T)
        return route

    def _advance(self, action: int) -> None:
        self.views.append(int(self.pose.view[0]))
        state = self.decision.state
        assert isinstance(state, TdstpState)
        self.state = self.agent.advance(state, self.observation, torch.tensor([action]))


def routes_of(decision: Decision) -> BacktrackRoutes:
    assert decision.routes is not None
    return decision.routes


# -- routes -----------------------------------------------------------------------------------------------


def test_a_route_back_has_the_fewest_steps() -> None:
    episode = Episode(small(), build_toy_atlas(), "garden").move("door", "hall", "kitchen", "pantry")
    assert {node: episode.route(node) for node in (1, 2, 3, 4)} == {
        1: ["hall", "door", "garden"],  # not through the kitchen, where the agent came from
        2: ["hall", "door"],
        3: ["hall"],
        4: ["kitchen"],
    }
    for node in (1, 2, 3, 4):
        *between, last = [view for _, view in episode.path(node)]
        assert between == [-1] * len(between)  # no view on intermediate viewpoints
        assert last == episode.views[node - 1]


def test_routes_pass_only_through_visited_viewpoints() -> None:
    episode = Episode(small(), ROUND, "a").move("b", "c", "d")
    assert episode.route(1) == ["c", "b", "a"]
    assert episode.move("e").route(1) == ["a"]


def test_the_final_view_is_that_of_the_chosen_visit() -> None:
    episode = Episode(small(), build_toy_atlas(), "hall").move("kitchen", "pantry", "hall", "door")
    assert episode.views[0] != episode.views[3]
    for node in (1, 4):
        assert episode.path(node) == [(episode.index("hall"), episode.views[node - 1])]


def test_routes_are_still_known_after_a_jump() -> None:
    episode = Episode(small(), build_toy_atlas(), "garden").move("door", "hall", "landing", "attic")
    assert episode.jump(2) == ["landing", "hall", "door"]
    assert int(episode.pose.viewpoint[0]) == episode.index("door")
    assert episode.jump(5) == ["hall", "landing", "attic"]


def test_an_unreachable_viewpoint_raises() -> None:
    routes = BacktrackRoutes(
        first_action=3,
        viewpoints=torch.tensor([[-1, 7, 8]]),
        views=torch.tensor([[0, 4, 5]]),
        current_edge_rank=torch.tensor([[0, 0, 1]]),
        edge_rank=torch.eye(3, dtype=torch.int64)[None],
    )
    assert routes.shortest_path(0, 5) == [(8, 5)]
    with pytest.raises(WorldError, match="no known path leads back to viewpoint 7"):
        routes.shortest_path(0, 4)


# -- history and penalty ----------------------------------------------------------------------------------


def test_the_history_token_of_a_jump_has_no_direction() -> None:
    episode = Episode(small(), build_toy_atlas(), "garden").move("door", "hall")
    observation, state = episode.observation, episode.decision.state
    assert isinstance(state, TdstpState)
    stop = int(observation.num_candidates)
    jump, stopped, moved = (
        episode.agent.advance(state, observation, torch.tensor([action])).history[0, -1]
        for action in (episode.backtrack(1), stop, 0)
    )
    assert torch.equal(jump, stopped)
    assert not torch.allclose(moved, stopped, atol=1e-3)


@pytest.mark.parametrize("enabled", [True, False])
def test_reversing_a_jump_is_penalised(enabled: bool) -> None:
    """At u, every action that moves to v loses 100 per previous jump from v to u."""
    episode = Episode(small(penalise_reversed_jumps=enabled), build_toy_atlas(), "door")
    episode.move("hall", "kitchen")
    plain = Episode(small(penalise_reversed_jumps=False), build_toy_atlas(), "door")
    for jumps in (1, 2):
        episode.jump(2)  # from the kitchen to its neighbour, the hall
        plain.pose, plain.state = episode.pose, episode.state
        penalty = (plain.decision.logits - episode.decision.logits)[0].nan_to_num()
        expected = torch.zeros_like(penalty)
        previous = [episode.backtrack(2 * jump + 1) for jump in range(1, jumps + 1)]
        expected[[episode.candidate("kitchen"), *previous]] = REVERSED_JUMP_PENALTY * jumps * enabled
        torch.testing.assert_close(penalty, expected, atol=1e-4, rtol=0)
        episode.move("kitchen")
    assert (episode.decision.logits.nan_to_num(neginf=0.0) > -50).all()  # no jump ended at the kitchen


def test_moves_are_not_penalised() -> None:
    episode = Episode(small(), build_toy_atlas(), "hall").move("kitchen", "hall", "kitchen", "hall")
    assert (episode.decision.logits.nan_to_num(neginf=0.0) > -50).all()


# -- batches -----------------------------------------------------------------------------------------------


def test_a_batch_of_episodes_with_jumps_decides_like_single_episodes() -> None:
    agent = small(structured=True)
    episodes = [
        Episode(
            agent, build_toy_atlas(), start, words=random_words((length,), vocabulary=VOCABULARY, seed=length)
        )
        for start, length in (("garden", 4), ("hall", 7), ("attic", 5))
    ]
    first, second, third = episodes
    first.move("door", "hall", "kitchen").jump(1)
    first.move("door")
    second.move("kitchen", "pantry").jump(1)
    state = first.state.concat(second.state).concat(third.state)
    poses = [episode.pose for episode in episodes]
    pose = Pose(*(np.concatenate([getattr(single, part) for single in poses]) for part in Pose._fields))
    observation = Observation.from_atlas(build_toy_atlas(), pose)
    batch = agent.decide(state, observation)
    width = observation.token_type.shape[1]
    for row, episode in enumerate(episodes):
        single, own = episode.decision, episode.observation.token_type.shape[1]
        nodes = single.logits.shape[1] - own
        logits = torch.cat([batch.logits[row, :own], batch.logits[row, width : width + nodes]])
        torch.testing.assert_close(logits, single.logits[0], atol=1e-5, rtol=0)
        for node in range(1, nodes):
            if routes_of(single).viewpoints[0, node] >= 0:
                assert routes_of(batch).shortest_path(row, width + node) == episode.path(node)
    chosen = torch.tensor([width + 2, 0, int(third.observation.num_candidates)])
    assert isinstance(batch.state, TdstpState)
    rows = torch.tensor([2, 0])
    after = agent.advance(batch.state, observation, chosen).select(rows)
    assert after.history_length.tolist() == [2, 7] and after.jump_from[1, 6] > 0
    last = agent.advance(first.decision.state, first.observation, torch.tensor([first.backtrack(2)]))  # type: ignore[arg-type]
    later, single = agent.decide(after, observation.select(rows)), agent.decide(last, first.observation)
    own = first.observation.token_type.shape[1]
    torch.testing.assert_close(later.logits[1, :own], single.logits[0, :own], atol=1e-5, rtol=0)
    torch.testing.assert_close(later.logits[1, width:], single.logits[0, own:], atol=1e-5, rtol=0)


def test_edges_connect_neighbours_and_visits_of_the_same_viewpoint() -> None:
    episode = Episode(small(), build_toy_atlas(), "hall").move("kitchen", "hall", "door", "garden")
    visited = ["hall", "kitchen", "hall", "door"]
    edges = {frozenset(edge) for edge in [("hall", "door"), ("door", "garden"), ("hall", "kitchen")]}
    expected = [[one == other or frozenset((one, other)) in edges for other in visited] for one in visited]
    assert (episode.state.edge_rank[0, 1:, 1:] > 0).tolist() == expected
    assert not episode.state.edge_rank[0, 0].any() and not episode.state.edge_rank[0, :, 0].any()


def test_a_jump_does_not_modify_the_previous_state() -> None:
    episode = Episode(small(), build_toy_atlas(), "garden").move("door", "hall")
    before, observation, decision = episode.state, episode.observation, episode.decision
    episode.jump(1)
    assert torch.equal(episode.agent.decide(before, observation).logits, decision.logits)
