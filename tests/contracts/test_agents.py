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
from esceme.agents.base import Agent, Decision, Privileged, State, Words, choices_of
from esceme.agents.seq2seq import Seq2SeqConfig
from esceme.agents.tokens import HamtConfig
from esceme.observation import Observation
from sights import (
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
    """Some choice for each agent at each step: mostly candidates, here and there STOP."""
    return [
        (torch.arange(len(each)) + step) % (each.candidate_count + 1)
        for step, each in enumerate(observations)
    ]


def begun(agent: Agent[Any], words: Words, observation: Observation, rows: Sequence[int] = range(4)) -> State:
    """The state of agents that have not seen anything yet; `rows` says which goals are theirs."""
    return agent.begin(words, observation.viewpoint, Privileged(ATLAS, GOALS[list(rows)]))


def live(
    agent: Agent[Any], state: State, observations: Sequence[Observation], chosen: Sequence[Tensor]
) -> tuple[State, list[Decision]]:
    """The decisions at each step, whatever is decided `chosen` is done, and the state after that."""
    decisions = []
    for observation, choice in zip(observations, chosen, strict=True):
        decisions.append(agent.decide(state, observation))
        state = agent.advance(state, observation, choice)
    return state, decisions


def lived(agent: Agent[Any]) -> list[Decision]:
    """What the agent decides in three steps of four episodes."""
    seen = sights()
    return live(agent, begun(agent, random_words(), seen[0]), seen, choices(seen))[1]


def assert_same(some: Decision, others: Decision) -> None:
    torch.testing.assert_close(some.logits, others.logits, atol=1e-5, rtol=0)
    assert (some.value is None) == (others.value is None)
    if some.value is not None:
        torch.testing.assert_close(some.value, others.value, atol=1e-5, rtol=0)


def rows_of(decision: Decision, rows: Sequence[int], observation: Observation) -> Decision:
    """The decisions of some agents, who now see `observation`."""
    value = None if decision.value is None else decision.value[list(rows)]
    return Decision(decision.logits[list(rows), : choices_of(observation)], value)


def test_the_same_seed_gives_the_same_decisions(case: tuple[str, int]) -> None:
    for one, other in zip(lived(small(*case)), lived(small(*case)), strict=True):
        assert torch.equal(one.logits, other.logits)


def test_candidates_and_stop_are_scored_and_nothing_else(agent: Agent[Any]) -> None:
    for decision, observation in zip(lived(agent), sights(), strict=True):
        assert decision.logits.shape == (len(observation), choices_of(observation))
        assert decision.logits.dtype == observation.features.dtype
        places = torch.arange(choices_of(observation))
        possible = places <= observation.candidate_count[:, None]
        assert torch.equal(decision.logits.isfinite(), possible)
        assert (decision.logits[~possible] == -torch.inf).all()


def test_an_expected_return_is_one_number_per_agent(agent: Agent[Any]) -> None:
    for decision, observation in zip(lived(agent), sights(), strict=True):
        assert decision.value is None or decision.value.shape == (len(observation),)


def test_padding_of_words_and_tokens_changes_nothing(agent: Agent[Any]) -> None:
    words, seen = random_words(), sights()
    # What stands where nothing is said must not matter, so it is a word here.
    longer = Words(functional.pad(words.ids, (0, 3), value=7), functional.pad(words.valid, (0, 3)))
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
        expected = plain.logits.gather(1, order[:, : plain.logits.shape[1]])
        assert_same(plain._replace(logits=expected), other)


@pytest.mark.parametrize("row", range(4))
def test_decisions_do_not_depend_on_who_else_is_in_the_batch(agent: Agent[Any], row: int) -> None:
    words, seen, chosen = random_words(), sights(), choices(sights())
    alone = [each.only(torch.tensor([row])) for each in seen]
    state = begun(agent, Words(words.ids[[row]], words.valid[[row]]), alone[0], [row])
    decisions = live(agent, state, alone, [choice[[row]] for choice in chosen])[1]
    for together, single, observation in zip(lived(agent), decisions, alone, strict=True):
        assert_same(rows_of(together, [row], observation), single)


def test_joined_batches_decide_as_they_would_apart(agent: Agent[Any]) -> None:
    """Two agents are two steps ahead of two others, whose instructions are longer."""
    words, seen, chosen = random_words((2, 3, 9, 4)), sights(), choices(sights())
    first, second = torch.tensor([0, 1]), torch.tensor([2, 3])
    halves = [
        Words(words.ids[first, :3], words.valid[first, :3]),
        Words(words.ids[second], words.valid[second]),
    ]
    old = begun(agent, halves[0], seen[0].only(first), [0, 1])
    old, _ = live(agent, old, [each.only(first) for each in seen[:2]], [each[first] for each in chosen[:2]])
    new = begun(agent, halves[1], seen[2].only(second), [2, 3])

    here = seen[2]
    both = agent.decide(old.joined(new), here)
    for state, rows in ((old, first), (new, second)):
        assert_same(rows_of(both, rows.tolist(), here.only(rows)), agent.decide(state, here.only(rows)))
    together = agent.advance(old.joined(new), here, chosen[2])
    kept = torch.tensor([3, 0])
    decision = agent.decide(together.only(kept), seen[1].only(kept))
    for place, (state, row, within) in enumerate([(new, 3, 1), (old, 0, 0)]):
        at, index = torch.tensor([row]), torch.tensor([within])
        apart = agent.advance(state.only(index), here.only(at), chosen[2][at])
        assert_same(rows_of(decision, [place], seen[1].only(at)), agent.decide(apart, seen[1].only(at)))


def test_advancing_leaves_the_state_before_as_it_was(agent: Agent[Any]) -> None:
    seen, chosen = sights(), choices(sights())
    state = begun(agent, random_words(), seen[0])
    before = agent.decide(state, seen[0])
    agent.advance(state, seen[0], chosen[0])
    assert torch.equal(agent.decide(state, seen[0]).logits, before.logits)
