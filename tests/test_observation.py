"""What a batch sees: tokens that agree with the building, and the same views wherever they are asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from esceme.observation import TOKENS, Observation
from esceme.world import CANDIDATE, CONTEXT, STOP
from esceme.world.geometry import panorama_angles
from fixtures.toy_atlas import cottage

ATLAS = cottage()
EVERYWHERE = np.arange(len(ATLAS))
VIEWS_FACED = np.array([0, 13, 35, 12, 24, 7, 30, 16, 23])


def sight() -> Observation:
    pose = ATLAS.begin(EVERYWHERE, np.zeros(len(ATLAS)))
    return Observation.of(ATLAS, pose._replace(view=VIEWS_FACED))


def test_tokens_are_candidates_stop_other_views_and_padding() -> None:
    observation = sight()
    panoramas = torch.from_numpy(ATLAS.panorama_features(EVERYWHERE))
    for row, (scene, name) in enumerate(ATLAS.names):
        candidates = ATLAS.graph(scene).candidates(name)
        others = sorted(set(range(36)) - {each.view for each in candidates})
        views = [*(each.view for each in candidates), -1, *others]
        kinds = [CANDIDATE] * len(candidates) + [STOP] + [CONTEXT] * len(others)
        padding = observation.kind.shape[1] - len(views)
        assert observation.view[row].tolist() == views + [-1] * padding
        assert observation.kind[row].tolist() == kinds + [CONTEXT] * padding
        assert observation.valid[row].tolist() == [True] * len(views) + [False] * padding
        led = [ATLAS.name(each)[1] for each in observation.neighbour[row, : len(candidates)].tolist()]
        assert led == [each.viewpoint for each in candidates]
        assert observation.neighbour[row, len(candidates) :].eq(-1).all()
        for token, view in enumerate(views):
            expected = panoramas[row, view] if view >= 0 else torch.zeros(panoramas.shape[2])
            assert torch.equal(observation.features[row, token], expected)
    assert observation.features is observation.plain


def test_counts_and_masks_agree() -> None:
    observation = sight()
    assert len(observation) == len(ATLAS)
    assert observation.candidate_count.tolist() == ATLAS.degrees.tolist()
    together = (
        observation.is_candidate.int() + observation.is_context.int() + (observation.kind == STOP).int()
    )
    assert torch.equal(together, observation.valid.int())


def test_the_panorama_is_all_views_in_order_and_the_faced_one_is_among_them() -> None:
    observation = sight()
    panoramas = torch.from_numpy(ATLAS.panorama_features(EVERYWHERE))
    assert torch.equal(observation.panorama(), panoramas)
    assert torch.equal(
        observation.faced(), panoramas[torch.arange(len(ATLAS)), torch.from_numpy(VIEWS_FACED)]
    )
    assert torch.equal(observation.panorama_angles(), torch.from_numpy(panorama_angles(VIEWS_FACED)))


def test_what_a_reader_makes_of_features_does_not_change_what_is_seen() -> None:
    observation = sight()
    read = observation.with_features(torch.zeros(*observation.kind.shape, 3))
    assert torch.equal(read.panorama(), observation.panorama())
    assert torch.equal(read.faced(), observation.faced())
    assert read.plain is observation.plain and read.features.shape[2] == 3


def test_the_angle_of_a_choice_is_that_of_its_token_and_zero_for_stop() -> None:
    observation = sight()
    assert not observation.angle_of(observation.candidate_count).any()
    first = torch.zeros(len(ATLAS), dtype=torch.int64)
    assert torch.equal(observation.angle_of(first), observation.angles[:, 0])
    norms = observation.angle_of(first).square().sum(1)
    torch.testing.assert_close(norms, torch.full_like(norms, 2.0))  # two sines and cosines


def test_some_agents_see_what_they_saw_among_all() -> None:
    observation, rows = sight(), torch.tensor([4, 0, 4])
    some = observation.only(rows)
    assert some.features is some.plain
    assert torch.equal(some.panorama(), observation.panorama()[rows])
    assert some.viewpoint.tolist() == [4, 0, 4]
    read = observation.with_features(observation.plain + 1).only(rows)
    assert torch.equal(read.features, some.plain + 1) and torch.equal(read.plain, some.plain)
    assert len(observation.only(torch.tensor([], dtype=torch.int64))) == 0


def test_a_batch_is_trimmed_to_its_longest_panorama() -> None:
    alone = Observation.of(ATLAS, ATLAS.begin(ATLAS.locate("shed", ["hall"]), [0.0]))
    assert alone.kind.shape == (1, 37) and alone.valid.all()
    assert sight().kind.shape[1] == 38


def test_choices_alone_are_tokens_but_all_around_is_still_known() -> None:
    whole = sight()
    cut = whole.choices()
    longest = int(whole.candidate_count.max()) + 1
    assert cut.kind.shape == cut.features.shape[:2] == (len(whole), longest)
    assert torch.equal(cut.valid, whole.kind[:, :longest] != CONTEXT)
    assert torch.equal(cut.candidate_count, whole.candidate_count)
    for names in ("features", "neighbour", "angles"):
        assert torch.equal(getattr(cut, names), getattr(whole, names)[:, :longest])
    for told in (Observation.faced, Observation.panorama, Observation.around):
        assert torch.equal(told(cut), told(whole))
        some = torch.tensor([2, 0])
        assert torch.equal(told(cut.only(some)), told(whole)[some])
    assert cut.choices() is cut


def test_one_more_token_comes_last_and_changes_nothing_that_is_seen() -> None:
    for seen in (sight(), sight().choices()):
        added = torch.arange(len(ATLAS) * 12.0).view(len(ATLAS), 12)
        longer, tokens = seen.with_token(added), seen.kind.shape[1]
        for name in (*TOKENS, "features"):
            assert torch.equal(getattr(longer, name)[:, :tokens], getattr(seen, name))
            assert getattr(longer, name).shape[1] == tokens + 1
        assert torch.equal(longer.features[:, -1], added) and not longer.plain[:, -1].any()
        assert longer.kind[:, -1].eq(CONTEXT).all() and longer.valid[:, -1].all()
        assert longer.neighbour[:, -1].eq(-1).all() and longer.view[:, -1].eq(-1).all()
        assert not longer.angles[:, -1].any() and longer.positions is not None
        assert torch.equal(longer.positions[:, -1], torch.from_numpy(ATLAS.positions).float())
        for told in (Observation.faced, Observation.panorama, Observation.around):
            assert torch.equal(told(longer), told(seen))
        cut = longer.choices()
        assert torch.equal(cut.candidate_count, seen.candidate_count)
        some = torch.tensor([5, 2])
        assert torch.equal(longer.only(some).features, longer.features[some])
        assert torch.equal(longer.only(some).panorama(), seen.panorama()[some])


def test_choices_are_the_same_with_one_more_token_before_them() -> None:
    seen = sight()
    cut, longer = seen.choices(), seen.with_token(torch.ones(len(ATLAS), 12)).choices()
    for name in (*TOKENS, "features"):
        assert torch.equal(getattr(longer, name), getattr(cut, name))
    added = cut.with_token(torch.ones(len(ATLAS), 12))
    assert added.choices() is added and added.whole is cut.whole  # asked for again, it stays


def test_one_more_token_needs_no_positions_and_may_be_of_another_width() -> None:
    seen = replace(sight(), positions=None)
    read = seen.with_features(torch.zeros(*seen.kind.shape, 3)).with_token(torch.ones(len(ATLAS), 3))
    assert read.positions is None and read.features.shape[2] == 3 and read.plain.shape[2] == 12
