"""Observation: tokens, masks, panoramas, selection, removal and addition of tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from esceme.observation import TOKEN_FIELDS, Observation
from esceme.world import CANDIDATE, CONTEXT, STOP
from esceme.world.geometry import panorama_angles
from fixtures.toy_atlas import build_toy_atlas

ATLAS = build_toy_atlas()
EVERYWHERE = np.arange(len(ATLAS))
FACING_VIEWS = np.array([0, 13, 35, 12, 24, 7, 30, 16, 23])


def observe() -> Observation:
    pose = ATLAS.begin(EVERYWHERE, np.zeros(len(ATLAS)))
    return Observation.from_atlas(ATLAS, pose._replace(view=FACING_VIEWS))


def test_tokens_are_candidates_stop_other_views_and_padding() -> None:
    observation = observe()
    panoramas = torch.from_numpy(ATLAS.panorama_features(EVERYWHERE))
    for row, (scene, name) in enumerate(ATLAS.names):
        candidates = ATLAS.graph(scene).candidates(name)
        others = sorted(set(range(36)) - {candidate.view for candidate in candidates})
        views = [*(candidate.view for candidate in candidates), -1, *others]
        kinds = [CANDIDATE] * len(candidates) + [STOP] + [CONTEXT] * len(others)
        padding = observation.token_type.shape[1] - len(views)
        assert observation.view[row].tolist() == views + [-1] * padding
        assert observation.token_type[row].tolist() == kinds + [CONTEXT] * padding
        assert observation.valid[row].tolist() == [True] * len(views) + [False] * padding
        names = [ATLAS.name(index)[1] for index in observation.neighbour[row, : len(candidates)].tolist()]
        assert names == [candidate.viewpoint for candidate in candidates]
        assert observation.neighbour[row, len(candidates) :].eq(-1).all()
        for token, view in enumerate(views):
            expected = panoramas[row, view] if view >= 0 else torch.zeros(panoramas.shape[2])
            assert torch.equal(observation.features[row, token], expected)
    assert observation.features is observation.raw_features


def test_masks_partition_the_valid_tokens() -> None:
    observation = observe()
    assert len(observation) == len(ATLAS)
    assert observation.num_candidates.tolist() == ATLAS.degrees.tolist()
    masks = (observation.is_candidate, observation.is_context_view, observation.token_type == STOP)
    assert torch.equal(sum(mask.int() for mask in masks), observation.valid.int())


def test_the_panorama_has_all_views_in_order() -> None:
    observation = observe()
    panoramas = torch.from_numpy(ATLAS.panorama_features(EVERYWHERE))
    assert torch.equal(observation.panorama_features(), panoramas)
    assert torch.equal(
        observation.facing_features(), panoramas[torch.arange(len(ATLAS)), torch.from_numpy(FACING_VIEWS)]
    )
    assert torch.equal(observation.panorama_angles(), torch.from_numpy(panorama_angles(FACING_VIEWS)))


def test_replacing_features_does_not_change_the_panorama() -> None:
    observation = observe()
    read = observation.with_features(torch.zeros(*observation.token_type.shape, 3))
    assert torch.equal(read.panorama_features(), observation.panorama_features())
    assert torch.equal(read.facing_features(), observation.facing_features())
    assert read.raw_features is observation.raw_features and read.features.shape[2] == 3


def test_action_angles_are_those_of_the_token_and_zero_for_stop() -> None:
    observation = observe()
    assert not observation.action_angles(observation.num_candidates).any()
    first = torch.zeros(len(ATLAS), dtype=torch.int64)
    assert torch.equal(observation.action_angles(first), observation.angles[:, 0])
    norms = observation.action_angles(first).square().sum(1)
    torch.testing.assert_close(norms, torch.full_like(norms, 2.0))  # two sines and cosines


def test_select_returns_rows() -> None:
    observation, rows = observe(), torch.tensor([4, 0, 4])
    some = observation.select(rows)
    assert some.features is some.raw_features
    assert torch.equal(some.panorama_features(), observation.panorama_features()[rows])
    assert some.viewpoint.tolist() == [4, 0, 4]
    read = observation.with_features(observation.raw_features + 1).select(rows)
    assert torch.equal(read.features, some.raw_features + 1)
    assert torch.equal(read.raw_features, some.raw_features)
    assert len(observation.select(torch.tensor([], dtype=torch.int64))) == 0


def test_a_batch_is_trimmed_to_its_longest_panorama() -> None:
    alone = Observation.from_atlas(ATLAS, ATLAS.begin(ATLAS.locate("shed", ["hall"]), [0.0]))
    assert alone.token_type.shape == (1, 37) and alone.valid.all()
    assert observe().token_type.shape[1] == 38


def test_removing_context_views_keeps_the_panorama() -> None:
    whole = observe()
    cut = whole.without_context_views()
    longest = int(whole.num_candidates.max()) + 1
    assert cut.token_type.shape == cut.features.shape[:2] == (len(whole), longest)
    assert torch.equal(cut.valid, whole.token_type[:, :longest] != CONTEXT)
    assert torch.equal(cut.num_candidates, whole.num_candidates)
    for name in ("features", "neighbour", "angles"):
        assert torch.equal(getattr(cut, name), getattr(whole, name)[:, :longest])
    for method in (Observation.facing_features, Observation.panorama_features, Observation.max_features):
        assert torch.equal(method(cut), method(whole))
        some = torch.tensor([2, 0])
        assert torch.equal(method(cut.select(some)), method(whole)[some])
    assert cut.without_context_views() is cut


def test_append_token_changes_no_other_token() -> None:
    for seen in (observe(), observe().without_context_views()):
        added = torch.arange(len(ATLAS) * 12.0).view(len(ATLAS), 12)
        longer, tokens = seen.append_token(added), seen.token_type.shape[1]
        for name in (*TOKEN_FIELDS, "features"):
            assert torch.equal(getattr(longer, name)[:, :tokens], getattr(seen, name))
            assert getattr(longer, name).shape[1] == tokens + 1
        assert torch.equal(longer.features[:, -1], added) and not longer.raw_features[:, -1].any()
        assert longer.token_type[:, -1].eq(CONTEXT).all() and longer.valid[:, -1].all()
        assert longer.neighbour[:, -1].eq(-1).all() and longer.view[:, -1].eq(-1).all()
        assert not longer.angles[:, -1].any() and longer.positions is not None
        assert torch.equal(longer.positions[:, -1], torch.from_numpy(ATLAS.positions).float())
        for method in (Observation.facing_features, Observation.panorama_features, Observation.max_features):
            assert torch.equal(method(longer), method(seen))
        cut = longer.without_context_views()
        assert torch.equal(cut.num_candidates, seen.num_candidates)
        some = torch.tensor([5, 2])
        assert torch.equal(longer.select(some).features, longer.features[some])
        assert torch.equal(longer.select(some).panorama_features(), seen.panorama_features()[some])


def test_removing_context_views_keeps_a_token_appended_afterwards() -> None:
    seen, added = observe(), torch.ones(len(ATLAS), 12)
    cut, longer = seen.without_context_views(), seen.append_token(added).without_context_views()
    for name in (*TOKEN_FIELDS, "features"):
        assert torch.equal(getattr(longer, name), getattr(cut, name))
    appended = cut.append_token(added)
    assert appended.without_context_views() is appended
    assert appended.full_observation is cut.full_observation


def test_append_token_without_positions_and_of_another_width() -> None:
    seen = replace(observe(), positions=None)
    read = seen.with_features(torch.zeros(*seen.token_type.shape, 3)).append_token(torch.ones(len(ATLAS), 3))
    assert read.positions is None and read.features.shape[2] == 3 and read.raw_features.shape[2] == 12
