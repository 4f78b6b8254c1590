"""Navigator: feature dropout, reading, parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esceme.agents.base import TokenBatch
from esceme.agents.scripted import StopAtOnce
from esceme.errors import ConfigError
from esceme.memory import CandidateEnhancing, CandidateEnhancingConfig, MemoryBank, NoMemory
from esceme.navigator import Navigator
from esceme.observation import Observation
from fixtures.toy_atlas import VOCABULARY, WIDTH, build_toy_atlas, small_navigator

ATLAS = build_toy_atlas()


def observe() -> Observation:
    return Observation.from_atlas(ATLAS, ATLAS.begin(np.arange(5), np.linspace(0, 3, 5)))


def test_evaluation_has_no_feature_dropout() -> None:
    navigator, bank, observation = small_navigator(), MemoryBank.from_atlas(ATLAS), observe()
    seen = navigator.observe(observation, bank)
    assert seen.feature_dropout == 0 and seen.raw_features is observation.raw_features
    assert torch.equal(seen.features, navigator.observe(observation, bank).features)
    blind = Navigator(StopAtOnce(), NoMemory()).eval()
    assert blind.observe(observation, None) is observation


@pytest.mark.parametrize("share", [0.2, 0.4, 0.7])
def test_training_drops_features_and_rescales_the_rest(share: float) -> None:
    navigator = Navigator(StopAtOnce(), NoMemory(), feature_dropout=share).train()
    observation = observe()
    torch.manual_seed(0)
    seen = navigator.observe(observation, None)
    has_view = observation.view >= 0
    dropped = seen.features[has_view] == 0
    assert float(dropped.float().mean()) == pytest.approx(share, abs=0.05)
    remaining = seen.features[has_view][~dropped]
    expected = observation.raw_features[has_view][~dropped] / (1 - share)
    torch.testing.assert_close(remaining, expected, rtol=1e-4, atol=1e-5)  # the rate has 16 bits
    assert torch.equal(seen.raw_features, observe().raw_features)
    assert torch.equal(observation.features, observe().features)


def test_panorama_features_are_dropped_anew_at_every_call() -> None:
    navigator = Navigator(StopAtOnce(), NoMemory(), feature_dropout=0.4).train()
    seen = navigator.observe(observe(), None)
    assert seen.feature_dropout == 0.4
    for method in (seen.facing_features, seen.panorama_features):
        one, other = method(), method()
        assert not torch.equal(one, other)
        assert 0.3 < float((one == 0).float().mean()) < 0.5
    assert seen.select(torch.tensor([1, 3])).feature_dropout == 0.4


def test_without_a_share_training_sees_what_evaluation_does() -> None:
    navigator, bank, observation = (
        small_navigator(feature_dropout=0.0).train(),
        MemoryBank.from_atlas(ATLAS),
        observe(),
    )
    seen = navigator.observe(observation, bank)
    assert seen.feature_dropout == 0
    torch.testing.assert_close(seen.features, navigator.eval().observe(observation, bank).features)


def test_views_that_become_no_tokens_are_not_read() -> None:
    navigator, bank = (
        small_navigator(context_views=False, stop_features="panorama-max"),
        MemoryBank.from_atlas(ATLAS),
    )
    bank.remember_observation(observe())
    words = TokenBatch(torch.randint(1, VOCABULARY, (5, 7)), torch.ones(5, 7, dtype=torch.bool))
    state = navigator.begin(words, observe().viewpoint)
    seen, whole = navigator.observe(observe(), bank), navigator.reader(observe(), bank)
    assert seen.token_type.shape[1] < whole.token_type.shape[1]
    one, other = navigator.decide(state, seen), navigator.decide(state, whole)
    torch.testing.assert_close(one.logits, other.logits)
    chosen = one.logits.argmax(1)
    after = [navigator.advance(state, observation, chosen).history for observation in (seen, whole)]
    torch.testing.assert_close(*after)


def test_the_navigator_has_the_parameters_of_agent_and_reader() -> None:
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH))
    navigator = small_navigator(reader)
    assert {name.split(".")[0] for name in navigator.state_dict()} == {"agent", "reader"}
    assert navigator.device == torch.device("cpu")
    assert Navigator(StopAtOnce(), NoMemory()).device == torch.device("cpu")


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_an_invalid_feature_dropout_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="feature_dropout"):
        Navigator(StopAtOnce(), NoMemory(), feature_dropout=share)
