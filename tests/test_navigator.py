"""The trained whole: what is dropped in training, and from what it is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esceme.agents.base import TokenBatch
from esceme.agents.scripted import StopAtOnce
from esceme.errors import ConfigError
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MaskedMemory, MemoryBank, NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from fixtures.toy_atlas import VOCABULARY, WIDTH, build_toy_atlas, small_navigator

ATLAS = build_toy_atlas()


def sight() -> Observation:
    return Observation.from_atlas(ATLAS, ATLAS.begin(np.arange(5), np.linspace(0, 3, 5)))


def test_an_evaluated_navigator_drops_nothing() -> None:
    navigator, bank, observation = small_navigator(), MemoryBank.from_atlas(ATLAS), sight()
    seen = navigator.observe(observation, bank)
    assert seen.feature_dropout == 0 and seen.raw_features is observation.raw_features
    assert torch.equal(seen.features, navigator.observe(observation, bank).features)
    blind = Navigator(StopAtOnce(), NoMemory()).eval()
    assert blind.observe(observation, None) is observation


@pytest.mark.parametrize("share", [0.2, 0.4, 0.7])
def test_in_training_a_share_of_features_is_dropped_and_the_rest_grows(share: float) -> None:
    navigator = Navigator(StopAtOnce(), NoMemory(), feature_dropout=share).train()
    observation = sight()
    torch.manual_seed(0)
    seen = navigator.observe(observation, None)
    pictures = observation.view >= 0
    gone = seen.features[pictures] == 0
    assert float(gone.float().mean()) == pytest.approx(share, abs=0.05)
    kept = seen.features[pictures][~gone]
    torch.testing.assert_close(kept, observation.raw_features[pictures][~gone] / (1 - share))
    # What is remembered and what others see stays as it was.
    assert torch.equal(seen.raw_features, sight().raw_features) and torch.equal(
        observation.features, sight().features
    )


def test_what_history_reads_is_dropped_too_and_each_time_anew() -> None:
    navigator = Navigator(StopAtOnce(), NoMemory(), feature_dropout=0.4).train()
    seen = navigator.observe(sight(), None)
    assert seen.feature_dropout == 0.4
    for look in (seen.facing_features, seen.panorama_features):
        one, other = look(), look()
        assert not torch.equal(one, other)
        assert 0.3 < float((one == 0).float().mean()) < 0.5
    assert seen.select(torch.tensor([1, 3])).feature_dropout == 0.4


def test_without_a_share_training_sees_what_evaluation_does() -> None:
    navigator, bank, observation = (
        small_navigator(feature_dropout=0.0).train(),
        MemoryBank.from_atlas(ATLAS),
        sight(),
    )
    seen = navigator.observe(observation, bank)
    assert seen.feature_dropout == 0
    torch.testing.assert_close(seen.features, navigator.eval().observe(observation, bank).features)


def test_what_becomes_no_token_need_not_be_read() -> None:
    navigator, bank = (
        small_navigator(context_views=False, stop_shows="panorama"),
        MemoryBank.from_atlas(ATLAS),
    )
    bank.remember_observation(sight())
    words = TokenBatch(torch.randint(1, VOCABULARY, (5, 7)), torch.ones(5, 7, dtype=torch.bool))
    state = navigator.begin(words, sight().viewpoint)
    seen, whole = navigator.observe(sight(), bank), navigator.reader(sight(), bank)
    assert seen.token_type.shape[1] < whole.token_type.shape[1]
    one, other = navigator.decide(state, seen), navigator.decide(state, whole)
    torch.testing.assert_close(one.logits, other.logits)
    chosen = one.logits.argmax(1)
    after = [navigator.advance(state, each, chosen).history for each in (seen, whole)]
    torch.testing.assert_close(*after)


def test_a_masked_memory_is_an_empty_one() -> None:
    navigator, bank = small_navigator(), MemoryBank.from_atlas(ATLAS)
    empty = navigator.observe(sight(), bank).features
    bank.remember_all()
    torch.testing.assert_close(navigator.observe(sight(), MaskedMemory(bank)).features, empty)
    assert not torch.allclose(navigator.observe(sight(), bank).features, empty, atol=1e-2)


def test_no_gradient_leaves_through_the_memory() -> None:
    navigator, bank = small_navigator().train(), MemoryBank.from_atlas(ATLAS)
    bank.remember_all()
    navigator.observe(sight(), bank).features.sum().backward()
    assert not bank.recall_at(torch.arange(len(ATLAS))).requires_grad


def test_parameters_of_both_parts_are_the_navigators() -> None:
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH))
    navigator = small_navigator(reader)
    assert {name.split(".")[0] for name in navigator.state_dict()} == {"agent", "reader"}
    assert navigator.device == torch.device("cpu")
    assert Navigator(StopAtOnce(), NoMemory()).device == torch.device("cpu")


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="feature_dropout"):
        Navigator(StopAtOnce(), NoMemory(), feature_dropout=share)
