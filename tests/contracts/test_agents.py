"""The contract of all agents (`esceme.agents.base`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents import AGENTS, HAMT
from esceme.agents.base import Agent, Decision, PrivilegedInfo, State, TokenBatch, num_choices
from esceme.agents.duet import DuetConfig
from esceme.agents.seq2seq import Seq2SeqConfig
from esceme.agents.tdstp import TdstpConfig
from esceme.agents.tokens import HamtConfig
from esceme.observation import Observation
from fixtures.random_observations import (
    SMALL_NETWORK,
    WIDTH,
    random_building,
    random_observation,
    random_order,
    random_words,
    reordered,
    with_padding,
)

pytestmark = pytest.mark.usefixtures("no_gradients")

VOCABULARY = 50
HAMT_SIZES: dict[str, Any] = {**SMALL_NETWORK, "max_steps": 8, "initial_std": 0.3}
SMALL: dict[str, tuple[Any, ...]] = {
    "hamt": (
        HamtConfig(**HAMT_SIZES),
        HamtConfig(**HAMT_SIZES, language_cross_attention=False, encode_panorama=False),
    ),
    "tdstp": (
        TdstpConfig(**HAMT_SIZES),
        TdstpConfig(**HAMT_SIZES, language_cross_attention=False, encode_panorama=False, structured=True),
        TdstpConfig(
            **HAMT_SIZES, history_layers=1, map_history=False, candidate_position_source="agent", grid=2
        ),
        TdstpConfig(**HAMT_SIZES, allow_backtracking=False, grid=0, context_views=False),
    ),
    "duet": (
        DuetConfig(**HAMT_SIZES),
        DuetConfig(**HAMT_SIZES, fusion="avg", graph_bias=False, revisit=True, context_views=False),
        DuetConfig(**HAMT_SIZES, grounding=8, clause_ends=(3,)),
    ),
    "seq2seq": (Seq2SeqConfig(vocabulary=VOCABULARY, word_width=8, hidden=16, feature_width=WIDTH),),
}
"""Small configurations, one or more per agent; other agents use their defaults."""
CASES = [(name, variant) for name in AGENTS for variant in range(len(SMALL.get(name, (None,))))]
COUNTS = [(4, 1, 7, 3), (2, 5, 1, 6), (3, 3, 8, 2)]
"""Numbers of candidates of four episodes at three steps."""
ATLAS = random_building()
GOALS = np.array([[3, 8], [11, 11], [20, 5], [39, 0]])


def small(name: str, variant: int) -> Agent[Any]:
    """A small agent in evaluation mode."""
    torch.manual_seed(0)
    kind = AGENTS[name]
    config = SMALL[name][variant] if name in SMALL else kind.Config()
    return kind(config).eval()


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@cache
def shared(name: str, variant: int) -> Agent[Any]:
    """One agent for all tests: nothing that they call changes its weights."""
    return small(name, variant)


@pytest.fixture
def agent(case: tuple[str, int]) -> Agent[Any]:
    return shared(*case)


@cache
def observations() -> list[Observation]:
    return [random_observation(counts, seed=step) for step, counts in enumerate(COUNTS)]


def actions_of(batches: Sequence[Observation]) -> list[Tensor]:
    """An action per row and step: candidates and sometimes STOP, no backtracking."""
    return [
        (torch.arange(len(batch)) + step) % (batch.num_candidates + 1) for step, batch in enumerate(batches)
    ]


def begin(
    agent: Agent[Any], words: TokenBatch, observation: Observation, rows: Sequence[int] = range(4)
) -> State:
    """The initial state; `rows` selects the goals."""
    return agent.begin(words, observation.viewpoint, PrivilegedInfo(ATLAS, GOALS[list(rows)]))


def roll_out(
    agent: Agent[Any], state: State, batches: Sequence[Observation], actions: Sequence[Tensor]
) -> tuple[State, list[Decision]]:
    """Take `actions`; returns the final state and the decisions."""
    decisions = []
    for observation, action in zip(batches, actions, strict=True):
        decision = agent.decide(state, observation)
        state = agent.advance(decision.state or state, observation, action)
        decisions.append(decision)
    return state, decisions


def decisions_of(agent: Agent[Any]) -> list[Decision]:
    """The decisions at three steps of four episodes."""
    seen = observations()
    return roll_out(agent, begin(agent, random_words(), seen[0]), seen, actions_of(seen))[1]


def assert_close(some: Decision, others: Decision) -> None:
    """Compare decisions up to the padding of their choices and the order of their routes."""
    pair = [split_logits(decision)[0] for decision in (some, others)]
    longest = max(logits.shape[1] for logits in pair)
    padded = [functional.pad(logits, (0, longest - logits.shape[1]), value=-torch.inf) for logits in pair]
    torch.testing.assert_close(*padded, atol=1e-5, rtol=0)
    for one, other in zip(route_scores(some), route_scores(others), strict=True):
        assert [viewpoint for viewpoint, _ in one] == [viewpoint for viewpoint, _ in other]
        torch.testing.assert_close(
            torch.tensor([score for _, score in one]),
            torch.tensor([score for _, score in other]),
            atol=1e-5,
            rtol=0,
        )
    for one, other in ((some.value, others.value), (some.goal_logits, others.goal_logits)):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def split_logits(decision: Decision) -> tuple[Tensor, Tensor]:
    """Logits of candidates and STOP, and those of backtracking (empty for most agents)."""
    first = decision.logits.shape[1] if decision.routes is None else decision.routes.first_action
    return decision.logits[:, :first], decision.logits[:, first:]


def route_scores(decision: Decision) -> list[list[tuple[int, float]]]:
    """Viewpoints of a decision's routes with their scores, sorted, for each row."""
    if decision.routes is None:
        return [[] for _ in decision.logits]
    pairs = zip(decision.routes.viewpoints.tolist(), split_logits(decision)[1].tolist(), strict=True)
    return [sorted((v, s) for v, s in zip(*row, strict=True) if v >= 0) for row in pairs]


class RouteEnds(NamedTuple):
    """Destinations of some rows of a decision's routes."""

    first_action: int
    viewpoints: Tensor

    def shortest_path(self, row: int, action: int) -> list[tuple[int, int]]:
        raise NotImplementedError


def select(decision: Decision, rows: Sequence[int]) -> Decision:
    """Some rows of a decision."""
    value, goal_logits = (
        None if tensor is None else tensor[list(rows)] for tensor in (decision.value, decision.goal_logits)
    )
    routes = decision.routes
    if routes is not None:
        routes = RouteEnds(routes.first_action, routes.viewpoints[list(rows)])
    return Decision(decision.logits[list(rows)], value, routes, goal_logits=goal_logits)


def test_the_same_seed_gives_the_same_decisions(case: tuple[str, int]) -> None:
    for one, other in zip(decisions_of(small(*case)), decisions_of(small(*case)), strict=True):
        assert torch.equal(one.logits, other.logits)


def test_exactly_candidates_stop_and_routes_have_finite_logits(agent: Agent[Any]) -> None:
    """A candidate that was visited before may be closed."""
    seen = observations()
    for step, (decision, observation) in enumerate(zip(decisions_of(agent), seen, strict=True)):
        assert decision.logits.dtype == observation.features.dtype
        assert decision.value is None or decision.value.shape == (len(observation),)
        forward, back = split_logits(decision)
        possible = torch.arange(forward.shape[1]) <= observation.num_candidates[:, None]
        if decision.routes is None:
            assert forward.shape == (len(observation), num_choices(observation)) and not back.numel()
        else:
            assert forward.shape == observation.token_type.shape
            assert back.shape == decision.routes.viewpoints.shape
            possible = torch.cat([possible, decision.routes.viewpoints >= 0], 1)
            earlier = torch.stack([-2 - observation.viewpoint, *(o.viewpoint for o in seen[:step])], 1)
            was_visited = (observation.neighbour[:, :, None] == earlier[:, None]).any(2)
            optional = functional.pad(was_visited, (0, back.shape[1]))
            possible = possible & (decision.logits.isfinite() | ~optional)
        assert torch.equal(decision.logits.isfinite(), possible)
        assert (decision.logits[~possible] == -torch.inf).all()


def test_routes_end_only_at_viewpoints_seen_before(agent: Agent[Any]) -> None:
    seen = observations()
    for step, decision in enumerate(decisions_of(agent)):
        if decision.routes is None:
            continue
        for row, viewpoints in enumerate(decision.routes.viewpoints.tolist()):
            previous = {
                viewpoint
                for observation in seen[:step]
                for viewpoint in (int(observation.viewpoint[row]), *observation.neighbour[row].tolist())
            }
            assert {index for index in viewpoints if index >= 0} <= previous - {
                int(seen[step].viewpoint[row])
            }


def test_text_attention_is_a_distribution_over_the_words(agent: Agent[Any]) -> None:
    words, seen = random_words(), observations()
    state, _ = roll_out(agent, begin(agent, words, seen[0]), seen[:2], actions_of(seen)[:2])
    before = agent.decide(state, seen[2]).logits
    attention = agent.text_attention(state, seen[2])
    assert torch.equal(agent.decide(state, seen[2]).logits, before)
    if attention is not None:
        assert attention.shape == words.ids.shape and (attention >= 0).all()
        assert not attention[~words.valid].any()
        torch.testing.assert_close(attention.sum(1), torch.ones(len(attention)))


def test_grounding_head_points_to_a_clause_per_step() -> None:
    """Its initial pace gives clause i most weight at step i."""
    torch.manual_seed(0)
    agent = HAMT(HamtConfig(**HAMT_SIZES, grounding=8, clause_ends=(7,))).eval()
    torch.nn.init.zeros_(agent.grounding.query.weight)
    torch.nn.init.zeros_(agent.grounding.query.bias)
    ids = torch.tensor([[3, 4, 7, 5, 6, 7, 8, 9]])
    seen = [random_observation((3,), seed=step) for step in range(3)]
    state = agent.begin(TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool)), seen[0].viewpoint)
    for expected, observation in zip(([0, 1, 2], [3, 4, 5], [6, 7]), seen, strict=True):
        (attention,) = agent.text_attention(state, observation)
        assert set(attention.topk(len(expected)).indices.tolist()) == set(expected)
        state = agent.advance(state, observation, torch.zeros(1, dtype=torch.int64))


def test_advance_works_without_a_previous_decide(agent: Agent[Any]) -> None:
    seen, state = observations(), begin(agent, random_words(), observations()[0])
    for observation, action, decision in zip(seen, actions_of(seen), decisions_of(agent), strict=True):
        assert_close(agent.decide(state, observation), decision)
        state = agent.advance(state, observation, action)


def test_padding_of_words_and_tokens_does_not_matter(agent: Agent[Any]) -> None:
    words, seen = random_words(), observations()
    longer = TokenBatch(functional.pad(words.ids, (0, 3), value=7), functional.pad(words.valid, (0, 3)))
    padded = [with_padding(observation, 4) for observation in seen]
    decisions = roll_out(agent, begin(agent, longer, padded[0]), padded, actions_of(padded))[1]
    for plain, other in zip(decisions_of(agent), decisions, strict=True):
        assert_close(plain, other)


def test_permuting_candidates_permutes_logits(agent: Agent[Any]) -> None:
    seen = observations()
    orders = [random_order(observation, seed=step) for step, observation in enumerate(seen)]
    shuffled = [reordered(observation, order) for observation, order in zip(seen, orders, strict=True)]
    actions = [
        order.argsort(1).gather(1, action[:, None]).squeeze(1)
        for order, action in zip(orders, actions_of(seen), strict=True)
    ]
    decisions = roll_out(agent, begin(agent, random_words(), seen[0]), shuffled, actions)[1]
    for plain, other, order in zip(decisions_of(agent), decisions, orders, strict=True):
        forward, back = split_logits(plain)
        expected = torch.cat([forward.gather(1, order[:, : forward.shape[1]]), back], 1)
        assert_close(plain._replace(logits=expected), other)


def test_decisions_do_not_depend_on_other_rows(agent: Agent[Any]) -> None:
    words, seen, together = random_words(), observations(), decisions_of(agent)
    for row in range(4):
        single = [observation.select(torch.tensor([row])) for observation in seen]
        state = begin(agent, TokenBatch(words.ids[[row]], words.valid[[row]]), single[0], [row])
        decisions = roll_out(agent, state, single, [action[[row]] for action in actions_of(seen)])[1]
        for batch, alone in zip(together, decisions, strict=True):
            assert_close(select(batch, [row]), alone)


def test_concatenated_states_decide_like_the_parts(agent: Agent[Any]) -> None:
    """Two rows are two steps ahead of the others, whose instructions are longer."""
    words, seen, actions = random_words((2, 3, 9, 4)), observations(), actions_of(observations())
    first, second = torch.tensor([0, 1]), torch.tensor([2, 3])
    short = TokenBatch(words.ids[first, :3], words.valid[first, :3])
    old = begin(agent, short, seen[0].select(first), [0, 1])
    old, _ = roll_out(
        agent,
        old,
        [observation.select(first) for observation in seen[:2]],
        [action[first] for action in actions[:2]],
    )
    long = TokenBatch(words.ids[second], words.valid[second])
    new = begin(agent, long, seen[2].select(second), [2, 3])

    both = agent.decide(old.concat(new), seen[2])
    for state, rows in ((old, first), (new, second)):
        assert_close(select(both, rows.tolist()), agent.decide(state, seen[2].select(rows)))
    after, rows = agent.advance(old.concat(new), seen[2], actions[2]), torch.tensor([3, 0])
    decision = agent.decide(after.select(rows), seen[1].select(rows))
    for index, (state, row, within) in enumerate([(new, 3, 1), (old, 0, 0)]):
        at = torch.tensor([row])
        part = agent.advance(state.select(torch.tensor([within])), seen[2].select(at), actions[2][at])
        assert_close(select(decision, [index]), agent.decide(part, seen[1].select(at)))


def test_an_emptied_batch_can_be_refilled(agent: Agent[Any]) -> None:
    seen, actions = observations(), actions_of(observations())
    after, _ = roll_out(agent, begin(agent, random_words(), seen[0]), seen[:1], actions[:1])
    new = begin(agent, random_words(), seen[0])
    refilled = after.select(torch.tensor([], dtype=torch.int64)).concat(new)
    for state in (refilled, agent.advance(refilled, seen[0], actions[0])):
        expected = new if state is refilled else agent.advance(new, seen[0], actions[0])
        assert_close(agent.decide(state, seen[1]), agent.decide(expected, seen[1]))


def test_advance_does_not_modify_the_state(agent: Agent[Any]) -> None:
    seen = observations()[0]
    state = begin(agent, random_words(), seen)
    before = agent.decide(state, seen)
    agent.advance(state, seen, actions_of([seen])[0])
    assert torch.equal(agent.decide(state, seen).logits, before.logits)
