"""HAMT: known walks at once equal stepping, and nothing that is left out or kept changes a score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esceme.agents import HAMT, HamtConfig
from esceme.agents.base import Decision, StepIndex, TokenBatch, num_choices
from esceme.agents.hamt import HamtState
from esceme.agents.tokens import ActionInput
from esceme.errors import ConfigError
from esceme.observation import Observation
from fixtures.random_observations import SMALL_NETWORK, joined, random_observation, random_words, with_padding

COUNTS = [(4, 1, 7, 3), (2, 5, 1, 6), (3, 3, 8, 2), (1, 4, 2, 5)]
"""Candidates of four agents at four steps."""
LENGTHS = (4, 1, 3, 2)
"""How many decisions each of them makes."""
SWITCHES: list[dict[str, Any]] = [
    {},
    {"language_cross_attention": False},
    {"encode_panorama": False, "history_layers": 1},
    {"language_cross_attention": False, "history_layers": 2, "cross_layers": 3},
]


def small(seed: int = 0, **changes: Any) -> HAMT:
    sizes = {**SMALL_NETWORK, "initial_std": 0.3}
    torch.manual_seed(seed)
    agent = HAMT(HamtConfig(**(sizes | changes)))
    with torch.no_grad():  # a trained network has biases; without, STOP would be zeros, and normalised zeros
        for module in agent.modules():
            if isinstance(module, nn.Linear):
                module.bias.normal_(std=0.3)
    return agent.eval()


def sights() -> list[Observation]:
    return [random_observation(counts, seed=step) for step, counts in enumerate(COUNTS)]


def choices(observation: Observation, step: int) -> Tensor:
    return (torch.arange(len(observation)) + step) % observation.num_candidates


@pytest.fixture(params=SWITCHES, ids=lambda each: "-".join(each) or "plain")
def agent(request: pytest.FixtureRequest) -> HAMT:
    return small(**request.param)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def stepped(agent: HAMT, words: TokenBatch) -> list[Decision]:
    """The decisions of all four at each of four steps."""
    state = agent.begin(words, sights()[0].viewpoint)
    decisions = []
    for step, seen in enumerate(sights()):
        decisions.append(agent.decide(state, seen))
        state = agent.advance(state, seen, choices(seen, step))
    return decisions


def ragged() -> tuple[Observation, Tensor, StepIndex]:
    """What walks of different lengths saw and chose, in a mixed order of rows."""
    rows = [(walk, step) for step in range(4) for walk in (2, 0, 3, 1) if step < LENGTHS[walk]]
    alone = [sights()[step].select(torch.tensor([walk])) for walk, step in rows]
    longest = max(each.token_type.shape[1] for each in alone)
    seen = joined([with_padding(each, longest - each.token_type.shape[1]) for each in alone])
    chosen = torch.stack([choices(sights()[step], step)[walk] for walk, step in rows])
    walks, steps = torch.tensor(rows).T
    return seen, chosen, StepIndex(walks, steps)


def assert_finite_equal(some: Tensor, other: Tensor, *, within: float = 1e-5) -> None:
    assert torch.equal(some.isfinite(), other.isfinite())
    torch.testing.assert_close(some, other, atol=within, rtol=0)


# -- all at once -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_gradients")
def test_deciding_all_at_once_equals_stepping(agent: HAMT) -> None:
    words = random_words()
    one_by_one = stepped(agent, words)
    seen, chosen, when = ragged()
    together = agent.decide_all(agent.begin(words, sights()[0].viewpoint), seen, chosen, when)
    assert together.logits.shape == (sum(LENGTHS), num_choices(seen))
    assert together.value is not None
    for row, (walk, step) in enumerate(zip(when.episode.tolist(), when.step.tolist(), strict=True)):
        alone = one_by_one[step]
        count = int(sights()[step].num_candidates[walk]) + 1
        assert_finite_equal(together.logits[row, :count], alone.logits[walk, :count])
        assert (together.logits[row, count:] == -torch.inf).all()
        assert alone.value is not None
        torch.testing.assert_close(together.value[row], alone.value[walk], atol=1e-5, rtol=0)


@pytest.mark.parametrize("language_cross_attention", [True, False])
def test_gradients_of_all_at_once_are_those_of_stepping(language_cross_attention: bool) -> None:
    settings = {"language_cross_attention": language_cross_attention}
    agents = [small(freeze_text=False, freeze_history=False, **settings) for _ in range(2)]
    words, losses = random_words(), []
    seen, chosen, when = ragged()
    together = agents[0].decide_all(agents[0].begin(words, sights()[0].viewpoint), seen, chosen, when)
    losses.append(together.logits.log_softmax(1)[torch.arange(len(chosen)), chosen].sum())
    steps = stepped(agents[1], words)
    losses.append(
        torch.stack(
            [
                steps[step].logits[walk].log_softmax(0)[choices(sights()[step], step)[walk]]
                for walk, length in enumerate(LENGTHS)
                for step in range(length)
            ]
        ).sum()
    )
    for loss in losses:
        loss.backward()
    for (name, one), other in zip(agents[0].named_parameters(), agents[1].parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4, msg=name)


# -- what is left out, kept, or padded changes nothing -------------------------------------------------------


@pytest.mark.usefixtures("no_gradients")
def test_computing_everything_gives_the_same_scores(agent: HAMT) -> None:
    words, state = random_words(), agent.begin(random_words(), sights()[0].viewpoint)
    compute_all = agent.encode_text(words, compute_all=True)
    torch.testing.assert_close(
        compute_all[words.valid], agent.encode_text(words)[words.valid], atol=1e-5, rtol=0
    )
    for step, seen in enumerate(sights()):
        packed, whole = agent.encode(state, seen), agent.encode(state, seen, compute_all=True)
        assert_finite_equal(packed.logits, whole.logits)
        torch.testing.assert_close(packed.critic_input, whole.critic_input, atol=1e-5, rtol=0)
        assert whole.observation.shape[:2] == seen.token_type.shape
        assert whole.history.shape[1] == step + 1
        state = agent.advance(state, seen, choices(seen, step))


def test_keeping_encoded_panoramas_changes_nothing(agent: HAMT) -> None:
    """In evaluation a panorama is encoded once per viewpoint and heading; with gradients at every visit."""
    words, seen = random_words(), sights()
    round_trip = [seen[0], seen[1], seen[0], seen[1]]

    def history() -> HamtState:
        state = agent.begin(words, seen[0].viewpoint)
        for step, each in enumerate(round_trip):
            state = agent.advance(state, each, choices(each, step))
        return state

    learning = history()
    with torch.inference_mode():
        evaluating = history()
    torch.testing.assert_close(learning.history.detach(), evaluating.history, atol=1e-5, rtol=0)
    assert learning.panorama_cache == {}
    places = len(
        {(int(v), int(f) % 12) for o in seen[:2] for v, f in zip(o.viewpoint, o.facing_view, strict=True)}
    )
    assert len(evaluating.panorama_cache) == (places if agent.config.encode_panorama else 0)


@pytest.mark.usefixtures("no_gradients")
def test_a_panorama_is_kept_by_heading_and_not_by_viewpoint_alone() -> None:
    agent, seen = small(), sights()[0]
    turned = replace(seen, facing_view=(seen.facing_view + 5) % 12 + 12)
    state = agent.begin(random_words(), seen.viewpoint)
    agent.advance(state, seen, choices(seen, 0))
    known = agent.advance(state, turned, choices(turned, 0))
    fresh = agent.advance(agent.begin(random_words(), seen.viewpoint), turned, choices(turned, 0))
    torch.testing.assert_close(known.history, fresh.history, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("no_gradients")
def test_a_slot_that_is_refilled_decides_as_a_walk_that_begins(agent: HAMT) -> None:
    """Two agents go on while two others, with longer instructions, take the places of those that ended."""
    words, seen = random_words((2, 3, 9, 4)), sights()
    first, second = torch.tensor([0, 1]), torch.tensor([2, 3])
    state = agent.begin(TokenBatch(words.ids[:2, :3], words.valid[:2, :3]), seen[0].viewpoint[:2])
    for step in (0, 1):
        state = agent.advance(state, seen[step].select(first), choices(seen[step], step)[first])
    fresh = agent.begin(TokenBatch(words.ids[2:], words.valid[2:]), seen[2].viewpoint[2:])
    kept = state.select(torch.tensor([1])).concat(fresh)
    rows = torch.tensor([1, 2, 3])
    together = agent.decide(kept, seen[2].select(rows)).logits
    old = agent.decide(state.select(torch.tensor([1])), seen[2].select(torch.tensor([1]))).logits
    new = agent.decide(fresh, seen[2].select(second)).logits
    assert_finite_equal(together[:1, : old.shape[1]], old)
    assert_finite_equal(together[1:, : new.shape[1]], new)
    after = agent.advance(kept, seen[2].select(rows), choices(seen[2], 2)[rows])
    assert after.history_length.tolist() == [4, 2, 2]
    alone = agent.advance(fresh, seen[2].select(second), choices(seen[2], 2)[second])
    later = agent.decide(after, seen[3].select(rows)).logits[1:]
    expected = agent.decide(alone, seen[3].select(second)).logits
    assert_finite_equal(later[:, : expected.shape[1]], expected)


@pytest.mark.usefixtures("no_gradients")
def test_a_batch_that_has_emptied_can_be_filled_again() -> None:
    agent, words, seen = small(), random_words(), sights()[0]
    state = agent.begin(words, seen.viewpoint)
    nobody = agent.advance(state, seen, choices(seen, 0)).select(torch.tensor([], dtype=torch.int64))
    again = nobody.concat(agent.begin(words, seen.viewpoint))
    assert torch.equal(agent.decide(again, seen).logits, agent.decide(state, seen).logits)


# -- heads, sizes, limits ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("action_input", ["ob", "ob_txt", "ob_hist", "ob_txt_hist"])
def test_the_action_head_reads_what_it_is_told_to(action_input: ActionInput) -> None:
    agent, seen = small(action_input=action_input), sights()[0]
    state = agent.begin(random_words(), seen.viewpoint)
    whole = agent.encode(state, seen, compute_all=True)
    told, lived = whole.text[:, :1], whole.history[:, :1]
    factor = {
        "ob": torch.ones_like(told),
        "ob_txt": told,
        "ob_hist": lived,
        "ob_txt_hist": told + lived,
    }[action_input]
    logits = agent.action(whole.observation * factor).squeeze(2)[:, : num_choices(seen)]
    possible = torch.arange(num_choices(seen)) <= seen.num_candidates[:, None]
    torch.testing.assert_close(whole.logits[possible], logits[possible], atol=1e-5, rtol=0)
    value = agent.critic(whole.text[:, 0] * whole.history[:, 0]).squeeze(1)
    torch.testing.assert_close(agent.decide(state, seen).value, value, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("no_gradients")
def test_without_language_cross_attention_tokens_are_scored_as_they_are() -> None:
    """And the critic reads the history's global token alone (spec B.7)."""
    logits = []
    for action_input in ("ob", "ob_txt"):
        agent, seen = small(action_input=action_input, language_cross_attention=False), sights()[0]
        state = agent.begin(random_words(), seen.viewpoint)
        whole = agent.encode(state, seen, compute_all=True)
        assert torch.equal(whole.critic_input, whole.history[:, 0])
        logits.append(whole.logits)
    assert torch.equal(*logits)


@pytest.mark.usefixtures("no_gradients")
def test_text_of_each_layer_is_never_chained() -> None:
    agent, words = small(language_cross_attention=False, cross_layers=3), random_words()
    encoded = agent.encode_text(words)
    texts = agent.text_per_layer(encoded, words.valid)
    assert len(texts) == 3 and torch.equal(texts[0], encoded)
    agent.cross_layers[0].text.load_state_dict(agent.cross_layers[1].text.state_dict())  # type: ignore[union-attr]
    first, second = agent.text_per_layer(encoded, words.valid)[1:]
    assert torch.equal(first, second)  # the same half of a layer, applied to the same text


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("width", [3, 40])
def test_features_need_not_be_as_wide_as_the_network(width: int) -> None:
    agent, seen = small(feature_width=width), random_observation(width=width)
    state = agent.begin(random_words(), seen.viewpoint)
    after = agent.advance(state, seen, choices(seen, 0))
    assert after.history.shape == (4, 2, 24)
    assert agent.decide(after, seen).logits.shape == (4, 8)


@pytest.mark.usefixtures("no_gradients")
def test_more_steps_than_the_table_holds_are_refused() -> None:
    agent, seen = small(max_steps=2), sights()[0]
    state = agent.begin(random_words(), seen.viewpoint)
    for step in (0, 1):
        state = agent.advance(state, seen, choices(seen, step))
    agent.decide(state, seen)  # a third decision needs no third token
    with pytest.raises(ConfigError, match="step 2 is beyond the 2 steps.*smaller max_steps"):
        agent.advance(state, seen, choices(seen, 2))


def test_an_instruction_longer_than_the_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="an instruction of 21 ids.*20 positions.*max_tokens"):
        small().begin(random_words((21,)), torch.tensor([0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 25}, "25 is not divisible by 3 heads"),
        ({"max_steps": 0}, "max_steps: expected at least 1"),
        ({"cross_layers": 0}, "cross_layers: expected at least 1"),
        ({"vocabulary": 0}, "vocabulary: expected at least 1"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)
