"""Which parameters of HAMT, TD-STP and the reader receive gradients (spec B.9, D.7)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from esceme.agents import HAMT, TDSTP, HamtConfig, TdstpConfig
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank
from esceme.navigator import Navigator
from fixtures.random_observations import (
    SMALL_NETWORK,
    WIDTH,
    random_building,
    random_observation,
    random_words,
)

SIZES: dict[str, Any] = {**SMALL_NETWORK, "text_layers": 2, "cross_layers": 3, "critic_inner": 8}
R4R = {"language_cross_attention": False, "freeze_text": False, "freeze_history": False}
TEXT = ("agent.text.words", "agent.text.positions", "agent.text.norm", "agent.text.layers")
TD_STP = ("agent.position_encoder", "agent.history_mapper", "agent.goal_head")
ALWAYS = ("agent.text.kinds", "agent.sight", "agent.action", "agent.critic", "reader")


def backward(navigator: Navigator, *, width: int = WIDTH, auxiliary: bool = True) -> Navigator:
    """Backward pass from all outputs of three decisions with a non-empty memory."""
    memory = MemoryBank(width)
    memory.bind(random_building())
    observations = [random_observation(width=width, seed=seed) for seed in (0, 1, 2)]
    memory.remember_observation(observations[1])
    state, losses = navigator.begin(random_words(), observations[0].viewpoint), []
    for observation in observations:
        seen = navigator.observe(observation, memory)
        decision = navigator.decide(state, seen)
        assert decision.value is not None
        losses.append(decision.value.square().sum() - decision.logits.log_softmax(1)[:, 0].sum())
        loss = navigator.agent.auxiliary_loss(decision, torch.randn(4, 3) * 9)
        if auxiliary and loss is not None:
            losses.append(loss.sum())
        state = navigator.advance(decision.state or state, seen, torch.zeros(4, dtype=torch.int64))
    torch.stack(losses).sum().backward()
    return navigator


def navigator_of(agent: str, *, training: bool = False, **options: Any) -> Navigator:
    torch.manual_seed(0)
    network = (
        HAMT(HamtConfig(**SIZES, **options)) if agent == "hamt" else TDSTP(TdstpConfig(**SIZES, **options))
    )
    return Navigator(network, CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH))).train(training)


def has_gradient(navigator: Navigator, *prefixes: str) -> set[bool]:
    """Whether the parameters with these prefixes have gradients."""
    return {
        parameter.grad is not None
        for name, parameter in navigator.named_parameters()
        if name.startswith(prefixes)
    }


@pytest.mark.parametrize("training", [False, True])
def test_frozen_text_and_history_of_hamt_get_no_gradient(training: bool) -> None:
    navigator = backward(navigator_of("hamt", training=training))
    assert has_gradient(navigator, *TEXT, "agent.history.") == {False}
    assert not any(parameter.requires_grad for parameter in navigator.agent.text.layers.parameters())
    assert has_gradient(navigator, *ALWAYS, "agent.cross_layers") == {True}, (
        "including the text of the last layer"
    )
    text, vision = navigator.agent.text.kinds.weight.grad  # one table of token types for both
    assert not text.any() and vision.any()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("agent", ["hamt", "tdstp"])
def test_without_language_cross_attention_only_the_last_text_layer_gets_no_gradient(
    agent: str, training: bool
) -> None:
    navigator = backward(navigator_of(agent, training=training, **R4R))
    names = [name for name, _ in navigator.named_parameters()]
    last = f"agent.cross_layers.{SIZES['cross_layers'] - 1}.text"
    without = {name for name, parameter in navigator.named_parameters() if parameter.grad is None}
    assert without == {name for name in names if name.startswith(last)} != set()
    text, vision = navigator.agent.text.kinds.weight.grad
    assert text.any() and vision.any()


def test_frozen_text_of_td_stp_gets_no_gradient() -> None:
    navigator = backward(navigator_of("tdstp"))
    assert has_gradient(navigator, *TEXT) == {False}
    assert has_gradient(navigator, *ALWAYS, *TD_STP, "agent.history.", "agent.cross_layers") == {True}


def test_freezing_options_of_td_stp() -> None:
    assert has_gradient(backward(navigator_of("tdstp", freeze_text=False)), "") == {True}
    assert has_gradient(backward(navigator_of("tdstp", freeze_history=True)), "agent.history.") == {False}


@pytest.mark.parametrize(("agent", "options"), [("hamt", {}), ("hamt", R4R), ("tdstp", {})])
def test_gradients_are_not_zero(agent: str, options: dict[str, bool]) -> None:
    """Except for key biases, which shift all scores of a query equally."""
    for name, parameter in backward(navigator_of(agent, **options)).named_parameters():
        if parameter.grad is not None and not name.endswith("key.bias"):
            assert parameter.grad.abs().max() >= 1e-12, name


def test_the_goal_head_learns_from_the_auxiliary_loss_alone() -> None:
    navigator = backward(navigator_of("tdstp"), auxiliary=False)
    assert has_gradient(navigator, "agent.goal_head") == {False}
    assert has_gradient(navigator, "agent.position_encoder", "agent.history_mapper") == {True}


def test_gradients_of_td_stp_flow_through_time() -> None:
    """The last decision depends on the first target tokens through all steps between (spec D.4)."""
    agent = navigator_of("tdstp").agent
    observations = [random_observation(seed=seed) for seed in (0, 1, 2)]
    state = agent.begin(random_words(), observations[0].viewpoint)
    first = state.target
    first.retain_grad()
    for observation in observations:
        decision = agent.decide(state, observation)
        state = agent.advance(decision.state, observation, torch.zeros(4, dtype=torch.int64))
    decision.goal_logits[:, 0].sum().backward()
    assert first.grad is not None and first.grad.abs().sum() > 0
