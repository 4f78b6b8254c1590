"""Which parts of TD-STP and of the reader learn, and how many numbers they have (spec D.1, D.7, J.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from esceme.agents import TDSTP, TdstpConfig
from esceme.agents.tdstp import TdstpState
from esceme.checkpoints import names_of, navigator_from, read_weights
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank, NoMemory
from esceme.navigator import Navigator
from fixtures.original_checkpoints import stored_norms
from fixtures.random_observations import random_building, random_observation, random_words

SIZES: dict[str, Any] = {
    "vocabulary": 50,
    "positions": 16,
    "hidden": 16,
    "heads": 2,
    "feed_forward": 24,
    "text_layers": 2,
    "cross_layers": 3,
    "panorama_layers": 1,
    "feature_width": 12,
    "max_steps": 4,
    "critic_inner": 8,
}
OWN = ("agent.position_encoder", "agent.history_mapper", "agent.goal_head")
LEARNS_ALWAYS = ("agent.text.kinds", "agent.sight", "agent.action", "agent.critic", "reader", *OWN)
TEXT = ("agent.text.words", "agent.text.positions", "agent.text.norm", "agent.text.layers")


def learn(navigator: Navigator, *, width: int, guesses: bool = True) -> Navigator:
    """One walk of three decisions, with something remembered, and a backward pass from all that comes out."""
    memory = MemoryBank(width)
    memory.bind(random_building())
    sights = [random_observation(width=width, seed=seed) for seed in (0, 1, 2)]
    memory.remember_observation(sights[1])
    state, losses = navigator.begin(random_words(), sights[0].viewpoint), []
    for sight in sights:
        seen = navigator.observe(sight, memory)
        decision = navigator.decide(state, seen)
        assert decision.value is not None and isinstance(decision.state, TdstpState)
        losses.append(decision.value.square().sum() - decision.logits.log_softmax(1)[:, 0].sum())
        aside = navigator.agent.auxiliary_loss(decision, torch.randn(4, 3) * 9)
        if guesses and aside is not None:
            losses.append(aside.sum())
        state = navigator.advance(decision.state, seen, torch.zeros(4, dtype=torch.int64))
    torch.stack(losses).sum().backward()
    return navigator


def lived(*, guesses: bool = True, **switches: Any) -> Navigator:
    torch.manual_seed(0)
    agent = TDSTP(TdstpConfig(**SIZES, **switches))
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=12))
    return learn(Navigator(agent, reader).eval(), width=12, guesses=guesses)


def learners(navigator: Navigator, *parts: str) -> set[bool]:
    """Whether the parameters of these parts have gradients."""
    named = [each for name, each in navigator.named_parameters() if name.startswith(parts)]
    assert named, f"no parameters in {parts}"
    return {each.grad is not None for each in named}


def test_all_learns_but_the_frozen_text() -> None:
    navigator = lived()
    assert learners(navigator, *TEXT) == {False}
    assert learners(navigator, *LEARNS_ALWAYS, "agent.history.", "agent.cross_layers") == {True}
    idle = {
        name
        for name, each in navigator.named_parameters()
        if each.grad is not None and each.grad.abs().max() < 1e-12
    }
    assert all(name.endswith("key.bias") for name in idle), idle


def test_text_learns_where_it_is_not_frozen() -> None:
    navigator = lived(freeze_text=False)
    assert learners(navigator, "") == {True}


def test_a_frozen_history_learns_nothing() -> None:
    assert learners(lived(freeze_history=True), "agent.history.") == {False}


def test_without_language_cross_attention_only_the_last_half_for_text_is_idle() -> None:
    navigator = lived(freeze_text=False, language_cross_attention=False)
    last = f"agent.cross_layers.{SIZES['cross_layers'] - 1}.text"
    idle = {name for name, each in navigator.named_parameters() if each.grad is None}
    assert idle == {name for name, _ in navigator.named_parameters() if name.startswith(last)}


def test_the_head_for_guesses_learns_by_guessing_alone() -> None:
    navigator = lived(guesses=False)
    assert learners(navigator, "agent.goal_head") == {False}
    assert learners(navigator, "agent.position_encoder", "agent.history_mapper") == {True}


def test_gradients_flow_through_time() -> None:
    """What a walk comes to depends on its first panorama through every thought since (spec D.4)."""
    torch.manual_seed(0)
    agent = TDSTP(TdstpConfig(**SIZES))
    seen = [random_observation(width=12, seed=seed) for seed in (0, 1, 2)]
    state = agent.begin(random_words(), seen[0].viewpoint)
    first = state.target
    first.retain_grad()
    for sight in seen:
        decision = agent.decide(state, sight)
        assert isinstance(decision.state, TdstpState) and decision.goal_logits is not None
        state = agent.advance(decision.state, sight, torch.zeros(4, dtype=torch.int64))
    decision.goal_logits[:, 0].sum().backward()
    assert first.grad is not None and first.grad.abs().sum() > 0


@pytest.mark.parametrize(("memory", "tensors"), [(False, 399), (True, 405)])
def test_networks_of_the_papers_size_have_the_published_counts(memory: bool, tensors: int) -> None:
    with torch.device("meta"):
        navigator = Navigator(TDSTP(), CandidateEnhancing() if memory else NoMemory())

    def parameters(*parts: str) -> int:
        return sum(each.numel() for name, each in navigator.named_parameters() if name.startswith(parts))

    assert parameters(*OWN) == 1_481_473
    assert parameters("agent.critic") == 394_241
    assert parameters("agent.") - parameters(*OWN, "agent.critic") == 170_393_089
    assert parameters("reader.") == (1_772_544 if memory else 0)
    apart = [name for name in navigator.state_dict() if not name.startswith("agent.critic")]
    assert len(apart) == tensors


@pytest.mark.real
@pytest.mark.parametrize("folder", ["tdstp", "tdstp_esceme"])
def test_the_same_parameters_learn_as_in_the_original(vectors_root: Path, folder: str) -> None:
    root = vectors_root / folder
    weights = read_weights(root / "vln_bert.safetensors", critic=root / "critic.safetensors")
    navigator, _ = navigator_from(weights.network, weights.critic, heads=4)
    learn(navigator, width=navigator.agent.config.feature_width)
    norms = stored_norms(root)
    theirs = names_of(navigator)
    assert set(theirs.values()) == set(norms)
    for name, each in navigator.named_parameters():
        assert (each.grad is not None) == (norms[theirs[name]] is not None), name
