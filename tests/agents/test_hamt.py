"""HAMT: decide_all, packing, caches, heads, limits, and the read-once text encoder."""

from __future__ import annotations

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
from fixtures.random_observations import (
    assert_close,
    padded_batch,
    random_observation,
    random_words,
    small_network,
)

COUNTS = [(4, 1, 7, 3), (2, 5, 1, 6), (3, 3, 8, 2), (1, 4, 2, 5)]
"""Numbers of candidates of four episodes at four steps."""
LENGTHS = (4, 1, 3, 2)
"""Numbers of decisions of the four episodes."""
SWITCHES: list[dict[str, Any]] = [
    {},
    {"language_cross_attention": False},
    {"encode_panorama": False, "history_layers": 1},
    {"language_cross_attention": False, "history_layers": 2, "cross_layers": 3},
]


def small(**settings: Any) -> HAMT:
    return small_network(HAMT, HamtConfig, **({"initial_std": 0.3} | settings))


def observations() -> list[Observation]:
    return [random_observation(counts, seed=step) for step, counts in enumerate(COUNTS)]


def choices(observation: Observation, step: int) -> Tensor:
    return (torch.arange(len(observation)) + step) % observation.num_candidates


@pytest.fixture(params=SWITCHES, ids=lambda switches: "-".join(switches) or "plain")
def agent(request: pytest.FixtureRequest) -> HAMT:
    return small(**request.param)


def decide_stepwise(agent: HAMT, words: TokenBatch) -> list[Decision]:
    """The decisions (4, C) at four steps."""
    state = agent.begin(words, observations()[0].viewpoint)
    decisions = []
    for step, seen in enumerate(observations()):
        decisions.append(agent.decide(state, seen))
        state = agent.advance(state, seen, choices(seen, step))
    return decisions


def ragged() -> tuple[Observation, Tensor, StepIndex]:
    """Observations and choices of episodes of different lengths, in a mixed order of rows."""
    rows = [(episode, step) for step in range(4) for episode in (2, 0, 3, 1) if step < LENGTHS[episode]]
    seen = padded_batch([observations()[step].select(torch.tensor([episode])) for episode, step in rows])
    chosen = torch.stack([choices(observations()[step], step)[episode] for episode, step in rows])
    return seen, chosen, StepIndex(*torch.tensor(rows).T)


# -- decide_all ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_gradients")
def test_decide_all_equals_stepping(agent: HAMT) -> None:
    words = random_words()
    stepwise = decide_stepwise(agent, words)
    seen, chosen, index = ragged()
    decision = agent.decide_all(agent.begin(words, observations()[0].viewpoint), seen, chosen, index)
    assert decision.logits.shape == (sum(LENGTHS), num_choices(seen))
    assert decision.value is not None
    for row, (episode, step) in enumerate(zip(index.episode.tolist(), index.step.tolist(), strict=True)):
        expected = stepwise[step]
        count = int(observations()[step].num_candidates[episode]) + 1
        assert_close(decision.logits[row, :count], expected.logits[episode, :count])
        assert (decision.logits[row, count:] == -torch.inf).all()
        assert expected.value is not None
        assert_close(decision.value[row], expected.value[episode])


@pytest.mark.parametrize("language_cross_attention", [True, False])
def test_gradients_of_decide_all_equal_those_of_stepping(language_cross_attention: bool) -> None:
    settings = {"language_cross_attention": language_cross_attention}
    agents = [small(freeze_text=False, freeze_history=False, **settings) for _ in range(2)]
    words = random_words()
    seen, chosen, index = ragged()
    decision = agents[0].decide_all(agents[0].begin(words, observations()[0].viewpoint), seen, chosen, index)
    decision.logits.log_softmax(1)[torch.arange(len(chosen)), chosen].sum().backward()
    decisions = decide_stepwise(agents[1], words)
    losses = [
        decisions[step].logits[episode].log_softmax(0)[choices(observations()[step], step)[episode]]
        for episode, length in enumerate(LENGTHS)
        for step in range(length)
    ]
    torch.stack(losses).sum().backward()
    for (name, one), other in zip(agents[0].named_parameters(), agents[1].parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4, msg=name)


# -- packing and caching ---------------------------------------------------------


@pytest.mark.usefixtures("no_gradients")
def test_compute_all_gives_the_same_logits(agent: HAMT) -> None:
    words, state = random_words(), agent.begin(random_words(), observations()[0].viewpoint)
    compute_all = agent.encode_text(words, compute_all=True)
    assert_close(compute_all[words.valid], agent.encode_text(words)[words.valid])
    for step, seen in enumerate(observations()):
        packed, whole = agent.encode(state, seen), agent.encode(state, seen, compute_all=True)
        assert_close(packed.logits, whole.logits)
        assert_close(packed.critic_input, whole.critic_input)
        assert whole.observation.shape[:2] == seen.token_type.shape
        assert whole.history.shape[1] == step + 1
        state = agent.advance(state, seen, choices(seen, step))


def test_caching_encoded_panoramas_does_not_change_the_history(agent: HAMT) -> None:
    """Inference caches panoramas per viewpoint and heading; with gradients nothing is cached."""
    words, seen = random_words(), observations()[:2]

    def history() -> HamtState:
        state = agent.begin(words, seen[0].viewpoint)
        for step, observation in enumerate([*seen, *seen]):
            state = agent.advance(state, observation, choices(observation, step))
        return state

    training = history()
    with torch.inference_mode():
        inference = history()
    assert_close(training.history.detach(), inference.history)
    assert training.panorama_cache == {}
    keys = {
        (viewpoint, view % 12)
        for observation in seen
        for viewpoint, view in zip(
            observation.viewpoint.tolist(), observation.facing_view.tolist(), strict=True
        )
    }
    assert len(inference.panorama_cache) == (len(keys) if agent.config.encode_panorama else 0)


@pytest.mark.usefixtures("no_gradients")
def test_the_panorama_cache_distinguishes_headings() -> None:
    agent, seen = small(), observations()[0]
    turned = replace(seen, facing_view=(seen.facing_view + 5) % 12 + 12)
    state = agent.begin(random_words(), seen.viewpoint)
    agent.advance(state, seen, choices(seen, 0))
    cached = agent.advance(state, turned, choices(turned, 0))
    fresh = agent.advance(agent.begin(random_words(), seen.viewpoint), turned, choices(turned, 0))
    torch.testing.assert_close(cached.history, fresh.history, atol=1e-6, rtol=0)


# -- heads, sizes, limits ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("action_input", ["ob", "ob_txt", "ob_hist", "ob_txt_hist"])
def test_action_input_selects_the_factor_of_the_action_head(action_input: ActionInput) -> None:
    agent, seen = small(action_input=action_input), observations()[0]
    state = agent.begin(random_words(), seen.viewpoint)
    whole = agent.encode(state, seen, compute_all=True)
    text, history = whole.text[:, :1], whole.history[:, :1]
    factor = {
        "ob": torch.ones_like(text),
        "ob_txt": text,
        "ob_hist": history,
        "ob_txt_hist": text + history,
    }[action_input]
    logits = agent.action(whole.observation * factor).squeeze(2)[:, : num_choices(seen)]
    possible = torch.arange(num_choices(seen)) <= seen.num_candidates[:, None]
    assert_close(whole.logits[possible], logits[possible])
    value = agent.critic(whole.text[:, 0] * whole.history[:, 0]).squeeze(1)
    assert_close(agent.decide(state, seen).value, value)


@pytest.mark.usefixtures("no_gradients")
def test_without_language_cross_attention_the_action_input_has_no_effect() -> None:
    """The critic reads the global history token alone (spec B.7)."""
    logits = []
    for action_input in ("ob", "ob_txt"):
        agent, seen = small(action_input=action_input, language_cross_attention=False), observations()[0]
        state = agent.begin(random_words(), seen.viewpoint)
        whole = agent.encode(state, seen, compute_all=True)
        assert torch.equal(whole.critic_input, whole.history[:, 0])
        logits.append(whole.logits)
    assert torch.equal(*logits)


@pytest.mark.usefixtures("no_gradients")
def test_text_layers_are_applied_to_the_same_text() -> None:
    agent, words = small(language_cross_attention=False, cross_layers=3), random_words()
    encoded = agent.encode_text(words)
    texts = agent.text_per_layer(encoded, words.valid)
    assert len(texts) == 3 and torch.equal(texts[0], encoded)
    agent.cross_layers[0].text.load_state_dict(agent.cross_layers[1].text.state_dict())  # type: ignore[union-attr]
    first, second = agent.text_per_layer(encoded, words.valid)[1:]
    assert torch.equal(first, second)  # equal weights applied to the same text


@pytest.mark.usefixtures("no_gradients")
def test_more_steps_or_words_than_the_tables_hold_are_refused() -> None:
    agent, seen = small(max_steps=2), observations()[0]
    state = agent.begin(random_words(), seen.viewpoint)
    for step in (0, 1):
        state = agent.advance(state, seen, choices(seen, step))
    agent.decide(state, seen)  # a third decision needs no third token
    with pytest.raises(ConfigError, match="step 2 is beyond the 2 steps.*smaller max_steps"):
        agent.advance(state, seen, choices(seen, 2))
    with pytest.raises(ConfigError, match="an instruction of 21 ids.*20 positions.*max_tokens"):
        agent.begin(random_words((21,)), torch.tensor([0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 25}, "25 is not divisible by 3 heads"),
        ({"read_once": True, "freeze_text": False}, "freeze_text"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)


# -- read_once ---------------------------------------------------------------------------------------------

WORDS = random_words((4, 3))


def reading_once(**settings: Any) -> HAMT:
    return small(**({"text_layers": 2, "dropout": 0.1, "read_once": True} | settings)).train()


def test_read_once_encodes_without_dropout_in_training() -> None:
    agent = reading_once()
    first = agent.encode_text(WORDS)
    assert torch.equal(first, agent.encode_text(WORDS))
    plain = reading_once(read_once=False)
    assert not torch.equal(plain.encode_text(WORDS), first)
    assert_close(first, plain.eval().encode_text(WORDS))
    assert agent.training and agent.text.training


def test_read_once_encodes_an_instruction_once_in_any_batch() -> None:
    agent, calls = reading_once(), []
    agent.text.register_forward_hook(lambda *_: calls.append(1))
    batch = agent.encode_text(WORDS)
    single = agent.encode_text(TokenBatch(WORDS.ids[1:, :3], WORDS.valid[1:, :3]))
    assert len(calls) == 2 and torch.equal(single, batch[1:, :3])


def test_read_once_encodes_again_after_new_weights() -> None:
    agent = reading_once()
    before = agent.encode_text(WORDS)
    agent.load_state_dict({name: 2 * tensor for name, tensor in agent.state_dict().items()})
    assert not torch.equal(agent.encode_text(WORDS), before)


def test_text_read_in_inference_mode_can_be_used_in_training() -> None:
    agent = reading_once()
    with torch.inference_mode():
        agent.encode_text(WORDS)
    layer = nn.Linear(24, 1)
    layer(agent.encode_text(WORDS)).sum().backward()
    assert layer.weight.grad is not None


def test_read_once_excludes_the_token_types_from_weight_decay() -> None:
    agent = reading_once()
    (parameter,) = agent.no_weight_decay
    assert parameter is agent.text.kinds.weight
    assert not reading_once(read_once=False).no_weight_decay
