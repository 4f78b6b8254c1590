"""Candidate Enhancing: the folded fusion against its formula, and every option."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.errors import MemoryMismatch
from esceme.memory import (
    CandidateEnhancing,
    CandidateEnhancingConfig,
    MemoryBank,
    NoMemory,
)
from esceme.memory.reader import NoVision
from esceme.observation import Observation
from esceme.world import STOP, ArrayFeatures, Atlas, SceneGraph

WIDTH = 24
POSITIONS = {"a": (0, 0, 0), "b": (0, 3, 0), "c": (3, 0, 0), "d": (3, 3, 0), "e": (0.2, 6, 0)}
EDGES = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("b", "e"), ("d", "e"), ("a", "e")]
OPTIONS = [
    {"order": order, "context": context, "stop": stop, "norm": norm, "hidden": hidden}
    for order, context, stop, norm, hidden in product(
        ["feature-memory", "memory-feature"], ["itself", "zero"], ["fused", "zero"], [True, False], [None, 10]
    )
]


@pytest.fixture
def atlas() -> Atlas:
    rng = np.random.default_rng(1)
    features = {f"house_{name}": rng.normal(size=(36, WIDTH)) for name in POSITIONS}
    graph = SceneGraph.build("house", POSITIONS, EDGES)
    return Atlas([graph], ArrayFeatures.from_mapping(features, source="noise"))


@pytest.fixture
def observation(atlas: Atlas) -> Observation:
    """One row per viewpoint. b and e lie in one view of a, so that row has one more token."""
    observation = Observation.from_atlas(atlas, atlas.begin(np.arange(len(atlas)), np.zeros(len(atlas))))
    assert not observation.valid.all(), "the fixture needs padding"
    return observation


@pytest.fixture
def bank(atlas: Atlas, observation: Observation) -> MemoryBank:
    bank = MemoryBank.from_atlas(atlas)
    bank.remember_observation(observation.select(torch.tensor([0, 3])))
    return bank


def trained(seed: int = 0, **options: Any) -> CandidateEnhancing:
    """A reader with random, non-zero parameters."""
    torch.manual_seed(seed)
    reader = CandidateEnhancing(CandidateEnhancingConfig(width=WIDTH, **options))
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return reader


def with_dropout(observation: Observation) -> Observation:
    torch.manual_seed(7)
    return observation.with_features(functional.dropout(observation.raw_features, 0.4))


def by_formula(reader: CandidateEnhancing, observation: Observation, memory: MemoryBank) -> Tensor:
    """Spec C.4 and C.5, token by token."""
    config, fused = reader.config, torch.zeros_like(observation.features)
    for row, token in observation.valid.nonzero().tolist():
        feature, remembered = observation.features[row, token], torch.zeros(WIDTH)
        if observation.is_candidate[row, token]:
            remembered = memory.recall_at(observation.neighbour[row, token])
        elif observation.token_type[row, token] == STOP:
            assert not feature.any()
            if config.stop == "zero":
                continue
        elif config.context == "itself":
            remembered = observation.raw_features[row, token]
        both = [feature, remembered] if config.order == "feature-memory" else [remembered, feature]
        fused[row, token] = reader.second(reader.norm(functional.relu(reader.first(torch.cat(both)))))
    return fused


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: " ".join(map(str, options.values())))
@pytest.mark.parametrize("training", [False, True])
def test_fusion_equals_the_formula(
    options: dict[str, Any], training: bool, observation: Observation, bank: MemoryBank
) -> None:
    seen = with_dropout(observation) if training else observation
    reader = trained(**options)
    torch.testing.assert_close(
        reader(seen, bank).features, by_formula(reader, seen, bank), atol=1e-5, rtol=1e-5
    )


def test_at_paper_size_fusion_equals_the_formula_within_a_millionth() -> None:
    torch.manual_seed(0)
    rng, width = np.random.default_rng(2), 768
    features = {f"house_{name}": rng.normal(size=(36, width)) for name in POSITIONS}
    atlas = Atlas(
        [SceneGraph.build("house", POSITIONS, EDGES)], ArrayFeatures.from_mapping(features, source="noise")
    )
    bank, reader = MemoryBank.from_atlas(atlas), CandidateEnhancing()
    bank.remember_at([0, 1])
    observation = Observation.from_atlas(atlas, atlas.begin([1, 3], [0.0, 0.0]))
    both = torch.cat([observation.features, reader.recall(observation, bank)], -1)
    literal = reader.second(reader.norm(functional.relu(reader.first(both)))) * observation.valid[..., None]
    fused = reader(observation, bank).features
    assert float((fused - literal).detach().abs().max()) < 1e-6 * float(literal.detach().abs().max())


def test_initial_weights_are_small_and_biases_zero() -> None:
    torch.manual_seed(0)
    reader = CandidateEnhancing()
    assert float(reader.first.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(reader.second.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert not reader.first.bias.any() and not reader.second.bias.any()
    assert isinstance(reader.norm, torch.nn.LayerNorm) and reader.norm.eps == 1e-12


def test_memory_vectors_by_token_type(observation: Observation, bank: MemoryBank) -> None:
    recalled = trained().recall(observation, bank)
    known = torch.isin(observation.neighbour, torch.tensor([0, 3]))
    assert torch.equal(recalled[known], bank.recall_at(observation.neighbour[known]))
    assert torch.equal(
        recalled[observation.is_context_view], observation.raw_features[observation.is_context_view]
    )
    assert not recalled[~known & ~observation.is_context_view].any()
    assert known.any() and (observation.is_candidate & ~known).any()
    assert not trained(context="zero").recall(observation, bank)[~known].any()


def test_feature_dropout_does_not_apply_to_the_memory(observation: Observation, bank: MemoryBank) -> None:
    seen = with_dropout(observation)
    assert torch.equal(trained().recall(seen, bank), trained().recall(observation, bank))
    assert not torch.equal(trained()(seen, bank).features, trained()(observation, bank).features)


def test_gradients_equal_those_of_the_formula(observation: Observation, bank: MemoryBank) -> None:
    folded, literal = trained(), trained()
    folded(observation, bank).features.pow(2).sum().backward()
    by_formula(literal, observation, bank).pow(2).sum().backward()
    for ours, theirs in zip(folded.parameters(), literal.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None
        assert (ours.grad - theirs.grad).abs().max() < 1e-5 * theirs.grad.abs().max()


def test_autocast_reads_within_half_precision(observation: Observation, bank: MemoryBank) -> None:
    reader = trained()
    exact = reader(observation, bank).features
    with torch.autocast("cpu", torch.bfloat16):
        rough = reader(observation, bank).features
    torch.testing.assert_close(rough.float(), exact, atol=0.3, rtol=0.1)


def test_no_memory_returns_the_observation(observation: Observation) -> None:
    assert NoMemory()(observation, None) is observation
    assert not list(NoMemory().parameters())


def test_no_vision_zeroes_all_features_and_keeps_angles(observation: Observation) -> None:
    for visible in (observation, observation.without_context_views()):
        blind = NoVision()(visible)
        for features in (
            blind.features,
            blind.raw_features,
            blind.facing_features(),
            blind.panorama_features(),
            blind.max_features(),
        ):
            assert not features.any()
        assert torch.equal(blind.angles, visible.angles)


def test_features_of_another_width_are_refused(observation: Observation, bank: MemoryBank) -> None:
    with pytest.raises(MemoryMismatch, match="width 768, the observation has 24; set the reader's width"):
        CandidateEnhancing()(observation, bank)
    with pytest.raises(MemoryMismatch, match="width 24, the memory has 3"):
        trained().fuse(observation, torch.zeros(*observation.token_type.shape, 3))
