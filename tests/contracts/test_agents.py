"""What every agent keeps to, whatever it is made of (`esceme.agents.base`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents import AGENTS
from esceme.agents.base import Agent, Decision, PrivilegedInfo, State, TokenBatch, num_choices
from esceme.agents.seq2seq import Seq2SeqConfig
from esceme.agents.tdstp import TdstpConfig
from esceme.agents.tokens import HamtConfig
from esceme.observation import Observation
from fixtures.random_observations import (
    WIDTH,
    random_building,
    random_observation,
    random_order,
    random_words,
    reordered,
    with_padding,
)

VOCABULARY = 50
HAMT_SIZES: dict[str, Any] = {
    "vocabulary": VOCABULARY,
    "positions": 20,
    "hidden": 16,
    "heads": 2,
    "feed_forward": 32,
    "text_layers": 1,
    "cross_layers": 2,
    "panorama_layers": 1,
    "feature_width": WIDTH,
    "max_steps": 8,
    "initial_std": 0.3,
}
SMALL: dict[str, tuple[Any, ...]] = {
    "hamt": (
        HamtConfig(**HAMT_SIZES),
        HamtConfig(**HAMT_SIZES, language_cross_attention=False, encode_panorama=False),
    ),
    "tdstp": (
        TdstpConfig(**HAMT_SIZES),
        TdstpConfig(**HAMT_SIZES, language_cross_attention=False, encode_panorama=False, structured=True),
        TdstpConfig(**HAMT_SIZES, history_layers=1, map_history=False, candidate_positions="here", grid=2),
        TdstpConfig(**HAMT_SIZES, go_back=False, grid=0, context_views=False),
    ),
    "seq2seq": (Seq2SeqConfig(vocabulary=VOCABULARY, word_width=8, hidden=16, feature_width=WIDTH),),
}
"""Sizes for tests, one or more per agent; an agent that is not here is built as it comes."""
CASES = [(name, variant) for name in AGENTS for variant in range(len(SMALL.get(name, (None,))))]
COUNTS = [(4, 1, 7, 3), (2, 5, 1, 6), (3, 3, 8, 2)]
"""Candidates of four agents at three steps."""
ATLAS = random_building()
GOALS = np.array([[3, 8], [11, 11], [20, 5], [39, 0]])


def small(name: str, variant: int = 0, *, seed: int = 0) -> Agent[Any]:
    """An agent in a small size, as it decides in evaluation."""
    torch.manual_seed(seed)
    kind = AGENTS[name]
    config = SMALL[name][variant] if name in SMALL else kind.Config()
    return kind(config).eval()


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@pytest.fixture
def agent(case: tuple[str, int]) -> Agent[Any]:
    return small(*case)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def sights() -> list[Observation]:
    return [random_observation(counts, seed=step) for step, counts in enumerate(COUNTS)]


def choices(observations: Sequence[Observation]) -> list[Tensor]:
    """Some choice for each agent at each step: mostly candidates, here and there STOP; never a way back."""
    return [
        (torch.arange(len(each)) + step) % (each.num_candidates + 1) for step, each in enumerate(observations)
    ]


def begun(
    agent: Agent[Any], words: TokenBatch, observation: Observation, rows: Sequence[int] = range(4)
) -> State:
    """The state of agents that have not seen anything yet; `rows` says which goals are theirs."""
    return agent.begin(words, observation.viewpoint, PrivilegedInfo(ATLAS, GOALS[list(rows)]))


def live(
    agent: Agent[Any], state: State, observations: Sequence[Observation], chosen: Sequence[Tensor]
) -> tuple[State, list[Decision]]:
    """The decisions at each step, whatever is decided `chosen` is done, and the state after that."""
    decisions = []
    for observation, choice in zip(observations, chosen, strict=True):
        decision = agent.decide(state, observation)
        state = agent.advance(thought(decision, state), observation, choice)
        decisions.append(decision)
    return state, decisions


def thought(decision: Decision, state: State) -> State:
    """What agents carry after a decision: their state of before unless deciding has changed it."""
    return state if decision.state is None else decision.state


def lived(agent: Agent[Any]) -> list[Decision]:
    """What the agent decides in three steps of four episodes."""
    seen = sights()
    return live(agent, begun(agent, random_words(), seen[0]), seen, choices(seen))[1]


def assert_same(some: Decision, others: Decision) -> None:
    """Both say the same of every choice, however much room each has for choices that nobody has."""
    for mine, theirs in zip(scores(some), scores(others), strict=True):
        longest = max(mine.shape[1], theirs.shape[1])
        torch.testing.assert_close(*(widened(each, longest) for each in (mine, theirs)), atol=1e-5, rtol=0)
    for one, other in ((some.value, others.value), (some.goal_logits, others.goal_logits)):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def scores(decision: Decision) -> tuple[Tensor, Tensor]:
    """Those of candidates and STOP, and those of ways back; none of the latter for most agents."""
    first = decision.logits.shape[1] if decision.routes is None else decision.routes.first_action
    return decision.logits[:, :first], decision.logits[:, first:]


def widened(logits: Tensor, width: int) -> Tensor:
    return functional.pad(logits, (0, width - logits.shape[1]), value=-torch.inf)


def rows_of(decision: Decision, rows: Sequence[int]) -> Decision:
    """The decisions of some agents."""
    value, guess = (
        None if each is None else each[list(rows)] for each in (decision.value, decision.goal_logits)
    )
    return Decision(decision.logits[list(rows)], value, decision.routes, goal_logits=guess)


def test_the_same_seed_gives_the_same_decisions(case: tuple[str, int]) -> None:
    for one, other in zip(lived(small(*case)), lived(small(*case)), strict=True):
        assert torch.equal(one.logits, other.logits)


def test_candidates_and_stop_are_scored_and_what_routes_lead_to(agent: Agent[Any]) -> None:
    for decision, observation in zip(lived(agent), sights(), strict=True):
        assert decision.logits.dtype == observation.features.dtype
        here, back = scores(decision)
        assert here.shape[1] in (num_choices(observation), observation.token_type.shape[1])
        possible = torch.arange(here.shape[1]) <= observation.num_candidates[:, None]
        if decision.routes is None:
            assert here.shape == (len(observation), num_choices(observation)) and not back.numel()
        else:
            assert (
                here.shape == observation.token_type.shape and back.shape == decision.routes.viewpoints.shape
            )
            possible = torch.cat([possible, decision.routes.viewpoints >= 0], 1)
        assert torch.equal(decision.logits.isfinite(), possible)
        assert (decision.logits[~possible] == -torch.inf).all()


def test_routes_lead_only_to_where_an_agent_decided_before(agent: Agent[Any]) -> None:
    seen = sights()
    for step, decision in enumerate(lived(agent)):
        if decision.routes is None:
            continue
        for row, places in enumerate(decision.routes.viewpoints.tolist()):
            been = {int(each.viewpoint[row]) for each in seen[:step]}
            assert {place for place in places if place >= 0} <= been - {int(seen[step].viewpoint[row])}


def test_advancing_needs_no_decision_before_it(agent: Agent[Any]) -> None:
    """Who advances from a state that was not decided from yet decides by itself, and comes to the same."""
    seen, state = sights(), begun(agent, random_words(), sights()[0])
    for observation, choice, decision in zip(seen, choices(seen), lived(agent), strict=True):
        assert_same(agent.decide(state, observation), decision)
        state = agent.advance(state, observation, choice)


def test_an_expected_return_is_one_number_per_agent(agent: Agent[Any]) -> None:
    for decision, observation in zip(lived(agent), sights(), strict=True):
        assert decision.value is None or decision.value.shape == (len(observation),)


def test_padding_of_words_and_tokens_changes_nothing(agent: Agent[Any]) -> None:
    words, seen = random_words(), sights()
    # What stands where nothing is said must not matter, so it is a word here.
    longer = TokenBatch(functional.pad(words.ids, (0, 3), value=7), functional.pad(words.valid, (0, 3)))
    padded = [with_padding(each, 4) for each in seen]
    decisions = live(agent, begun(agent, longer, padded[0]), padded, choices(padded))[1]
    for plain, other in zip(lived(agent), decisions, strict=True):
        assert_same(plain, other)


def test_permuting_candidates_permutes_logits(agent: Agent[Any]) -> None:
    seen = sights()
    orders = [random_order(each, seed=step) for step, each in enumerate(seen)]
    shuffled = [reordered(each, order) for each, order in zip(seen, orders, strict=True)]
    moved = [
        order.argsort(1).gather(1, choice[:, None]).squeeze(1)
        for order, choice in zip(orders, choices(seen), strict=True)
    ]
    decisions = live(agent, begun(agent, random_words(), seen[0]), shuffled, moved)[1]
    for plain, other, order in zip(lived(agent), decisions, orders, strict=True):
        here, back = scores(plain)
        moved_along = torch.cat([here.gather(1, order[:, : here.shape[1]]), back], 1)
        assert_same(plain._replace(logits=moved_along), other)


@pytest.mark.parametrize("row", range(4))
def test_decisions_do_not_depend_on_who_else_is_in_the_batch(agent: Agent[Any], row: int) -> None:
    words, seen, chosen = random_words(), sights(), choices(sights())
    alone = [each.select(torch.tensor([row])) for each in seen]
    state = begun(agent, TokenBatch(words.ids[[row]], words.valid[[row]]), alone[0], [row])
    decisions = live(agent, state, alone, [choice[[row]] for choice in chosen])[1]
    for together, single in zip(lived(agent), decisions, strict=True):
        assert_same(rows_of(together, [row]), single)


def test_joined_batches_decide_as_they_would_apart(agent: Agent[Any]) -> None:
    """Two agents are two steps ahead of two others, whose instructions are longer."""
    words, seen, chosen = random_words((2, 3, 9, 4)), sights(), choices(sights())
    first, second = torch.tensor([0, 1]), torch.tensor([2, 3])
    halves = [
        TokenBatch(words.ids[first, :3], words.valid[first, :3]),
        TokenBatch(words.ids[second], words.valid[second]),
    ]
    old = begun(agent, halves[0], seen[0].select(first), [0, 1])
    old, _ = live(agent, old, [each.select(first) for each in seen[:2]], [each[first] for each in chosen[:2]])
    new = begun(agent, halves[1], seen[2].select(second), [2, 3])

    here = seen[2]
    both = agent.decide(old.concat(new), here)
    for state, rows in ((old, first), (new, second)):
        assert_same(rows_of(both, rows.tolist()), agent.decide(state, here.select(rows)))
    together = agent.advance(old.concat(new), here, chosen[2])
    kept = torch.tensor([3, 0])
    decision = agent.decide(together.select(kept), seen[1].select(kept))
    for place, (state, row, within) in enumerate([(new, 3, 1), (old, 0, 0)]):
        at, index = torch.tensor([row]), torch.tensor([within])
        apart = agent.advance(state.select(index), here.select(at), chosen[2][at])
        assert_same(rows_of(decision, [place]), agent.decide(apart, seen[1].select(at)))


def test_advancing_leaves_the_state_before_as_it_was(agent: Agent[Any]) -> None:
    seen, chosen = sights(), choices(sights())
    state = begun(agent, random_words(), seen[0])
    before = agent.decide(state, seen[0])
    agent.advance(state, seen[0], chosen[0])
    assert torch.equal(agent.decide(state, seen[0]).logits, before.logits)
