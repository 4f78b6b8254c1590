"""TD-STP goes back: where it may, by which way, and what it remembers of having done so (spec D.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme.agents import TDSTP, BacktrackRoutes, Decision, TdstpConfig
from esceme.agents.base import TokenBatch
from esceme.agents.tdstp import REPEAT_PENALTY, TdstpState
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.world import Atlas, Pose
from fixtures.random_observations import random_words
from fixtures.toy_atlas import VOCABULARY, WIDTH, build, build_toy_atlas

ROUND = build(
    {
        "round": {
            name: (np.cos(angle), np.sin(angle), 0) for name, angle in zip("abcde", range(5), strict=True)
        }
    },
    {"round": [("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")]},
)
"""Five places around a pond: from d, it is nearer to a by e than by c and b."""


def small(**changes: Any) -> TDSTP:
    torch.manual_seed(0)
    sizes = {"hidden": 16, "heads": 2, "feed_forward": 24, "text_layers": 1, "cross_layers": 2}
    sizes |= {"vocabulary": VOCABULARY, "positions": 16, "feature_width": WIDTH, "panorama_layers": 1}
    return TDSTP(TdstpConfig(**{**sizes, "max_steps": 12, "initial_std": 0.2, **changes})).eval()


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class Walker:
    """One agent in a building, which is told where to go."""

    def __init__(self, agent: TDSTP, atlas: Atlas, start: str, *, words: TokenBatch | None = None) -> None:
        self.agent, self.atlas, self.scene = agent, atlas, next(iter(atlas.graphs))
        self.pose = atlas.begin(atlas.locate(self.scene, [start]), [1.0])
        self.state = agent.begin(words or random_words((6,), vocabulary=VOCABULARY), torch.zeros(1))
        self.faced: list[int] = []
        """The view at each decision."""

    @property
    def seen(self) -> Observation:
        return Observation.from_atlas(self.atlas, self.pose)

    @property
    def decision(self) -> Decision:
        return self.agent.decide(self.state, self.seen)

    def at(self, name: str) -> int:
        return int(self.atlas.locate(self.scene, [name])[0])

    def choice(self, name: str) -> int:
        """The candidate that leads there."""
        return self.seen.neighbour[0].tolist().index(self.at(name))

    def back(self, place: int) -> int:
        """The choice of the place of the walk's decision with this number, counted from 1."""
        return self.seen.token_type.shape[1] + place

    def go(self, *names: str) -> Walker:
        """Walk along neighbours."""
        for name in names:
            choice = self.choice(name)
            self._advance(choice)
            self.pose = self.atlas.step(self.pose, [choice])
        return self

    def jump(self, place: int) -> list[tuple[int, int]]:
        """Go back to a place of the walk; gives the way."""
        choice = self.back(place)
        way = routes_of(self.decision).shortest_path(0, choice)
        self._advance(choice)
        self.pose = Pose(*np.array([way[-1]]).T)
        return way

    def _advance(self, choice: int) -> None:
        self.faced.append(int(self.pose.view[0]))
        state = self.decision.state
        assert isinstance(state, TdstpState)
        self.state = self.agent.advance(state, self.seen, torch.tensor([choice]))


def routes_of(decision: Decision) -> BacktrackRoutes:
    assert decision.routes is not None
    return decision.routes


def names_of(walker: Walker, way: Sequence[tuple[int, int]]) -> list[str]:
    return [walker.atlas.name(viewpoint)[1] for viewpoint, _ in way]


# -- by which way ------------------------------------------------------------------------------------------


def test_a_way_back_is_walked_node_by_node_with_the_fewest_steps() -> None:
    walker = Walker(small(), build_toy_atlas(), "garden").go("door", "hall", "kitchen", "pantry")
    routes = routes_of(walker.decision)
    ways = {place: routes.shortest_path(0, walker.back(place)) for place in (1, 2, 3, 4)}
    assert {place: names_of(walker, way) for place, way in ways.items()} == {
        1: ["hall", "door", "garden"],  # not by the kitchen, from which the agent came
        2: ["hall", "door"],
        3: ["hall"],
        4: ["kitchen"],
    }
    for place, way in ways.items():
        *between, last = [view for _, view in way]
        assert between == [-1] * len(between)  # nobody turns on the way
        assert last == walker.faced[place - 1]


def test_no_way_leads_through_places_where_the_walk_has_not_been() -> None:
    walker = Walker(small(), ROUND, "a").go("b", "c", "d")
    way = routes_of(walker.decision).shortest_path(0, walker.back(1))
    assert names_of(walker, way) == ["c", "b", "a"]
    assert names_of(walker, routes_of(walker.go("e").decision).shortest_path(0, walker.back(1))) == ["a"]


def test_a_place_that_was_met_twice_is_faced_as_the_choice_says() -> None:
    walker = Walker(small(), build_toy_atlas(), "hall").go("kitchen", "pantry", "hall", "door")
    routes = routes_of(walker.decision)
    assert walker.faced[0] != walker.faced[3]
    for place in (1, 4):
        assert routes.shortest_path(0, walker.back(place)) == [(walker.at("hall"), walker.faced[place - 1])]


def test_ways_go_on_being_known_after_a_jump() -> None:
    walker = Walker(small(), build_toy_atlas(), "garden").go("door", "hall", "landing", "attic")
    assert names_of(walker, walker.jump(2)) == ["landing", "hall", "door"]
    assert int(walker.pose.viewpoint[0]) == walker.at("door")
    assert names_of(walker, routes_of(walker.decision).shortest_path(0, walker.back(5))) == [
        "hall",
        "landing",
        "attic",
    ]
    assert names_of(walker, walker.jump(5)) == ["hall", "landing", "attic"]


def test_a_place_to_which_nothing_leads_is_an_error() -> None:
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


# -- what is remembered of it ------------------------------------------------------------------------------


def test_the_history_of_a_jump_has_no_direction() -> None:
    walker = Walker(small(), build_toy_atlas(), "garden").go("door", "hall")
    seen, state = walker.seen, walker.decision.state
    assert isinstance(state, TdstpState)

    def told(choice: int) -> Tensor:
        return walker.agent.advance(state, seen, torch.tensor([choice])).history[0, -1]

    stop = int(seen.num_candidates)
    assert torch.equal(told(walker.back(1)), told(stop))
    assert not torch.allclose(told(0), told(stop), atol=1e-3)


@pytest.mark.parametrize("reweigh", [True, False])
def test_a_jump_back_makes_returning_by_it_unlikely(reweigh: bool) -> None:
    """At u, whatever leads to v loses 100 for every jump that came to u from v."""
    walker = Walker(small(reweigh=reweigh), build_toy_atlas(), "door").go("hall", "kitchen")
    lost = Walker(small(reweigh=False), build_toy_atlas(), "door")
    for jumps in (1, 2):
        walker.jump(2)  # from the kitchen to the hall, beside which it lies
        lost.pose, lost.state = walker.pose, walker.state
        less = (lost.decision.logits - walker.decision.logits)[0].nan_to_num()
        expected = torch.zeros_like(less)
        to_kitchen = [walker.choice("kitchen"), *(walker.back(2 * jump + 1) for jump in range(1, jumps + 1))]
        expected[to_kitchen] = REPEAT_PENALTY * jumps * reweigh
        torch.testing.assert_close(less, expected, atol=1e-4, rtol=0)
        walker.go("kitchen")
    assert (walker.decision.logits.nan_to_num(neginf=0.0) > -50).all()  # at the kitchen nothing is repeated


def test_only_jumps_make_returning_unlikely() -> None:
    walker = Walker(small(), build_toy_atlas(), "hall").go("kitchen", "hall", "kitchen", "hall")
    assert (walker.decision.logits.nan_to_num(neginf=0.0) > -50).all()


# -- company -----------------------------------------------------------------------------------------------


def test_walks_with_jumps_decide_together_as_they_would_alone() -> None:
    agent = small(structured=True)
    words = [random_words((length,), vocabulary=VOCABULARY, seed=length) for length in (4, 7, 5)]
    alone = [
        Walker(agent, build_toy_atlas(), start, words=each)
        for start, each in zip(("garden", "hall", "attic"), words, strict=True)
    ]
    alone[0].go("door", "hall", "kitchen").jump(1)
    alone[0].go("door")
    alone[1].go("kitchen", "pantry").jump(1)
    state = alone[0].state.concat(alone[1].state).concat(alone[2].state)
    pose = Pose(*(np.concatenate([getattr(each.pose, part) for each in alone]) for part in Pose._fields))
    seen = Observation.from_atlas(build_toy_atlas(), pose)
    together = agent.decide(state, seen)
    width = seen.token_type.shape[1]
    for row, walker in enumerate(alone):
        single = walker.decision
        own, lived = walker.seen.token_type.shape[1], single.logits.shape[1] - walker.seen.token_type.shape[1]
        torch.testing.assert_close(
            torch.cat([together.logits[row, :own], together.logits[row, width : width + lived]]),
            single.logits[0],
            atol=1e-5,
            rtol=0,
        )
        for place in range(1, lived):
            if routes_of(single).viewpoints[0, place] >= 0:
                ways = (
                    routes_of(together).shortest_path(row, width + place),
                    routes_of(single).shortest_path(0, own + place),
                )
                assert ways[0] == ways[1]
    chosen = torch.tensor([width + 2, 0, int(alone[2].seen.num_candidates)])
    assert isinstance(together.state, TdstpState)
    after = agent.advance(together.state, seen, chosen).select(torch.tensor([2, 0]))
    assert after.history_length.tolist() == [2, 7] and after.jump_from[1, 6] > 0
    last = agent.advance(alone[0].decision.state, alone[0].seen, torch.tensor([alone[0].back(2)]))  # type: ignore[arg-type]
    later = agent.decide(after, seen.select(torch.tensor([2, 0])))
    single = agent.decide(last, alone[0].seen)
    own = alone[0].seen.token_type.shape[1]
    torch.testing.assert_close(later.logits[1, :own], single.logits[0, :own], atol=1e-5, rtol=0)
    torch.testing.assert_close(later.logits[1, width:], single.logits[0, own:], atol=1e-5, rtol=0)


def test_neighbours_are_those_of_the_building() -> None:
    """Structure: places are linked where a way leads from one to the other, or where they are the same."""
    walker = Walker(small(), build_toy_atlas(), "hall").go("kitchen", "hall", "door", "garden")
    walked = ["hall", "kitchen", "hall", "door"]
    ways = {frozenset(way) for way in [("hall", "door"), ("door", "garden"), ("hall", "kitchen")]}
    expected = [[one == other or frozenset((one, other)) in ways for other in walked] for one in walked]
    assert (walker.state.edge_rank[0, 1:, 1:] > 0).tolist() == expected
    assert not walker.state.edge_rank[0, 0].any() and not walker.state.edge_rank[0, :, 0].any()


def test_the_state_before_a_jump_stays_as_it_was() -> None:
    walker = Walker(small(), build_toy_atlas(), "garden").go("door", "hall")
    before, seen, decision = walker.state, walker.seen, walker.decision
    walker.jump(1)
    assert torch.equal(walker.agent.decide(before, seen).logits, decision.logits)
