"""Which parts of HAMT and of the reader learn, by configuration: the table of spec B.9."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from esceme.agents import HAMT, HamtConfig
from esceme.checkpoints import names_of, navigator_from, read_weights
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank
from esceme.navigator import Navigator
from fixtures.original_checkpoints import stored_norms
from fixtures.random_observations import random_building, random_observation, random_words

R2R = HamtConfig(
    vocabulary=50,
    positions=16,
    hidden=16,
    heads=2,
    feed_forward=24,
    text_layers=2,
    cross_layers=3,
    panorama_layers=1,
    feature_width=12,
    max_steps=4,
    critic_inner=8,
)
R4R = HamtConfig(
    **{
        **vars(R2R),
        "language_cross_attention": False,
        "freeze_text": False,
        "freeze_history": False,
    }
)
TEXT_TABLES = ("agent.text.words", "agent.text.positions", "agent.text.norm")
LEARNS_ALWAYS = ("agent.text.kinds", "agent.sight", "agent.action", "agent.critic", "reader")


def learn(navigator: Navigator, *, width: int) -> Navigator:
    """One walk of two decisions, with something remembered, and a backward pass from all that comes out."""
    memory = MemoryBank(width)
    memory.bind(random_building())
    first, second = (random_observation(width=width, seed=seed) for seed in (0, 1))
    memory.remember_observation(second)
    state = navigator.begin(random_words(), first.viewpoint)
    seen = navigator.observe(first, memory)
    before = navigator.decide(state, seen)
    state = navigator.advance(state, seen, torch.zeros_like(first.num_candidates))
    after = navigator.decide(state, navigator.observe(second, memory))
    for decision in (before, after):
        assert decision.value is not None
        chosen = torch.log_softmax(decision.logits, 1)[:, 0]
        (chosen.sum() + decision.value.square().sum()).backward(retain_graph=True)
    return navigator


def lived(config: HamtConfig, *, training: bool = False) -> Navigator:
    torch.manual_seed(0)
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=config.feature_width))
    return learn(Navigator(HAMT(config), reader).train(training), width=config.feature_width)


def learners(navigator: Navigator, *parts: str) -> set[bool]:
    """Whether the parameters of these parts have gradients."""
    named = [each for name, each in navigator.named_parameters() if name.startswith(parts)]
    assert named, f"no parameters in {parts}"
    return {each.grad is not None for each in named}


@pytest.mark.parametrize("training", [False, True])
def test_r2r_learns_neither_text_nor_history(training: bool) -> None:
    navigator = lived(R2R, training=training)
    assert learners(navigator, *TEXT_TABLES) == {False}
    assert learners(navigator, "agent.text.layers") == {False}
    assert not any(each.requires_grad for each in navigator.agent.text.layers.parameters())
    assert learners(navigator, "agent.history.") == {False}
    assert learners(navigator, *LEARNS_ALWAYS) == {True}
    assert learners(navigator, "agent.cross_layers") == {True}, "the text's half of the last layer included"


def test_r2r_marks_only_what_is_seen_in_the_shared_table_of_kinds() -> None:
    read, seen = lived(R2R).agent.text.kinds.weight.grad
    assert not read.any() and seen.any()


@pytest.mark.parametrize("training", [False, True])
def test_r4r_learns_all_but_the_last_layers_half_for_text(training: bool) -> None:
    navigator = lived(R4R, training=training)
    assert learners(navigator, *TEXT_TABLES, "agent.text.layers", "agent.history.") == {True}
    assert learners(navigator, *LEARNS_ALWAYS) == {True}
    last = R4R.cross_layers - 1
    for depth in range(R4R.cross_layers):
        layer = f"agent.cross_layers.{depth}"
        assert learners(navigator, f"{layer}.vision", f"{layer}.across") == {True}
        assert learners(navigator, f"{layer}.text") == {depth != last}
    read, seen = navigator.agent.text.kinds.weight.grad
    assert read.any() and seen.any()


@pytest.mark.parametrize("config", [R2R, R4R], ids=["r2r", "r4r"])
def test_gradients_are_not_just_zeros(config: HamtConfig) -> None:
    """Only the keys' biases have none to speak of: they change all scores of a query alike."""
    navigator = lived(config)
    idle = {
        name
        for name, each in navigator.named_parameters()
        if each.grad is not None and each.grad.abs().max() < 1e-12
    }
    assert all(name.endswith("key.bias") for name in idle), idle


@pytest.mark.real
@pytest.mark.parametrize("folder", ["hamt", "hamt_esceme"])
def test_the_same_parameters_learn_as_in_the_original(vectors_root: Path, folder: str) -> None:
    root = vectors_root / folder
    weights = read_weights(root / "vln_bert.safetensors", critic=root / "critic.safetensors")
    navigator, _ = navigator_from(weights.network, weights.critic, heads=4)
    learn(navigator, width=navigator.agent.config.feature_width)
    norms = stored_norms(root)
    theirs = names_of(navigator)
    for name, each in navigator.named_parameters():
        assert (each.grad is not None) == (norms[theirs[name]] is not None), name
