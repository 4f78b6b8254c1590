"""All buildings' memories: names and integers see the same thing, whoever writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esceme.errors import MemoryMismatch
from esceme.memory import MaskedMemory, MemoryBank, Pooling, load_bank, save_bank
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, SceneGraph

SCENES = {
    "house": {"a": (0, 0, 0), "b": (0, 3, 0), "c": (3, 0, 0), "d": (3, 3, 0)},
    "barn": {"a": (0, 0, 0), "b": (4, 0, 0)},
}
EDGES = {"house": [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], "barn": [("a", "b")]}
WIDTH = 5


def small_atlas(*, source: str = "features/seen.hdf5", width: int = WIDTH) -> Atlas:
    graphs = [SceneGraph.build(scene, SCENES[scene], EDGES[scene]) for scene in SCENES]
    rng = np.random.default_rng(0)
    keys = [f"{scene}_{place}" for scene, places in SCENES.items() for place in places]
    panoramas = {key: rng.normal(size=(36, width)) for key in keys}
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source=source))


ATLAS = small_atlas()
EVERYWHERE = torch.arange(len(ATLAS))


def sight(viewpoints: list[int]) -> Observation:
    return Observation.from_atlas(ATLAS, ATLAS.begin(viewpoints, np.zeros(len(viewpoints))))


def remember_by_name(bank: MemoryBank, index: int) -> None:
    """What someone does who knows graphs and features, and nothing of atlases."""
    scene, place = ATLAS.name(index)
    candidates = ATLAS.graph(scene).candidates(place)
    views = ATLAS.panorama_features(np.array([index]))[0][[each.view for each in candidates]]
    bank.remember(scene, place, torch.from_numpy(views), [each.viewpoint for each in candidates])


def by_name(bank: MemoryBank) -> Tensor:
    """What names recall, in the order of the atlas."""
    return torch.cat([bank.recall(scene, [place]) for scene, place in ATLAS.names])


def test_a_remembered_vector_is_the_pooled_feature_bit_for_bit(toy_root: Path) -> None:
    atlas = Atlas.read(toy_root / "connectivity", features=toy_root / "features" / "toy.hdf5")
    bank = MemoryBank.from_atlas(atlas)
    at = np.arange(len(atlas))
    observation = Observation.from_atlas(atlas, atlas.begin(at, np.zeros(len(at))))
    dropped = torch.nn.functional.dropout(observation.raw_features, 0.4)
    bank.remember_observation(
        observation.with_features(dropped)
    )  # as in training: what is dropped is not kept
    for index, panorama in enumerate(atlas.panorama_features(at)):
        pooled = panorama[atlas.views[index, : atlas.degrees[index]]].max(0)
        assert np.array_equal(bank.recall_at(torch.tensor(index)).numpy(), pooled)


@pytest.mark.parametrize("pooling", ["max", "mean"])
@given(batches=st.lists(st.lists(st.integers(0, len(ATLAS) - 1), min_size=1, max_size=4), max_size=4))
def test_batches_and_names_write_and_read_the_same_memory(pooling: Pooling, batches: list[list[int]]) -> None:
    batched, named = (
        MemoryBank.from_atlas(ATLAS, pooling=pooling),
        MemoryBank.from_atlas(ATLAS, pooling=pooling),
    )
    for batch in batches:
        batched.remember_observation(sight(batch))
        for index in batch:
            remember_by_name(named, index)
    for bank in (batched, named):
        assert torch.equal(bank.recall_at(EVERYWHERE), by_name(bank))
        assert bank.visited.nonzero().flatten().tolist() == sorted({at for batch in batches for at in batch})
        assert len(bank) == int(bank.visited.sum())
    assert torch.equal(by_name(batched), by_name(named))
    assert all(batched[scene].edges == named[scene].edges for scene in ATLAS.scenes)


@given(st.lists(st.one_of(st.integers(0, len(ATLAS) - 1), st.sampled_from([*ATLAS.scenes, "all", "merge"]))))
def test_integers_and_names_agree_after_any_life(life: list[int | str]) -> None:
    bank, other = MemoryBank.from_atlas(ATLAS), MemoryBank.from_atlas(ATLAS)
    other.remember_observation(sight([1, 4]))
    for turn, event in enumerate(life):
        if isinstance(event, int):
            bank.remember_observation(sight([event])) if turn % 2 else remember_by_name(bank, event)
        elif event == "merge":
            bank.merge(other)
        else:
            bank.forget(None if event == "all" else event)
    assert torch.equal(bank.recall_at(EVERYWHERE), by_name(bank))
    assert [scene for scene in sorted(ATLAS.scenes) if len(bank[scene])] == list(bank.scenes)
    assert bank.nbytes == sum(bank[scene].nbytes for scene in bank.scenes) == len(bank) * WIDTH * 4


def test_nowhere_and_new_places_recall_as_zeros_in_any_shape() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_observation(sight([0]))
    recalled = bank.recall_at(torch.tensor([[0, -1, 1], [5, 0, -1]]))
    assert recalled.shape == (2, 3, WIDTH)
    assert recalled.any(-1).tolist() == [[True, False, False], [False, True, False]]


def test_a_full_memory_leaves_nowhere_empty() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_all()
    assert not bank.recall_at(torch.tensor([-1])).any()


def test_remembering_everything_is_standing_everywhere() -> None:
    oracle, walked = MemoryBank.from_atlas(ATLAS), MemoryBank.from_atlas(ATLAS)
    oracle.remember_all()
    walked.remember_observation(sight(EVERYWHERE.tolist()))
    assert oracle.visited.all()
    assert torch.equal(oracle.recall_at(EVERYWHERE), walked.recall_at(EVERYWHERE))
    assert oracle["house"].edges == set(EDGES["house"])


def test_remembering_at_a_viewpoint_is_standing_there() -> None:
    placed, walked = MemoryBank.from_atlas(ATLAS), MemoryBank.from_atlas(ATLAS)
    placed.remember_at([4, 1, 4])
    walked.remember_observation(sight([1, 4]))
    assert torch.equal(placed.recall_at(EVERYWHERE), walked.recall_at(EVERYWHERE))
    assert placed["house"].neighbours_of("b") == walked["house"].neighbours_of("b") != ()


def test_a_memory_made_by_name_settles_in_an_atlas(tmp_path: Path) -> None:
    bank = MemoryBank(WIDTH, source="seen.hdf5")
    for index in (0, 5):
        remember_by_name(bank, index)
    save_bank(bank, tmp_path / "bank")
    for each in (bank, load_bank(tmp_path / "bank")):
        each.bind(ATLAS)
        assert each.visited.nonzero().flatten().tolist() == [0, 5]
        assert torch.equal(each.recall_at(EVERYWHERE), by_name(each))


def test_scenes_that_the_atlas_lacks_are_kept_by_name() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember("castle", "a", torch.ones(1, WIDTH), ["b"])
    assert bank.scenes == ("castle",) and not bank.visited.any()
    assert bank.recall("castle", ["a"]).tolist() == [[1.0] * WIDTH]


def test_scenes_do_not_share_places_of_the_same_name() -> None:
    bank = MemoryBank(WIDTH)
    bank.remember("house", "a", torch.ones(1, WIDTH), ["b"])
    assert not bank.recall("barn", ["a"]).any()
    bank.forget("barn")
    assert len(bank) == 1


def test_asking_about_a_scene_does_not_make_it_one() -> None:
    bank = MemoryBank(WIDTH)
    bank.recall("house", ["a"])
    assert bank.scenes == ()


def test_what_an_evaluation_remembered_in_an_atlas_can_be_trained_on() -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    with torch.inference_mode():
        bank = MemoryBank.from_atlas(ATLAS)
        bank.remember_observation(sight([0, 1]))
    bank.remember_observation(sight([2]))
    (bank.recall_at(EVERYWHERE) * weight).sum().backward()
    assert weight.grad is not None and weight.grad.any()


@pytest.mark.parametrize(
    "other",
    [
        MemoryBank(WIDTH + 1, source="seen.hdf5"),
        MemoryBank(WIDTH, source="other.hdf5"),
        MemoryBank(WIDTH, source="seen.hdf5", pooling="mean"),
    ],
)
def test_banks_of_other_features_are_not_merged_even_if_empty(other: MemoryBank) -> None:
    with pytest.raises(MemoryMismatch):
        MemoryBank.from_atlas(ATLAS).merge(other)


def test_a_bank_does_not_settle_among_other_features() -> None:
    with pytest.raises(MemoryMismatch, match=r"width 6 from 'seen.hdf5', the atlas has width 5"):
        MemoryBank(6, source="seen.hdf5").bind(ATLAS)
    with pytest.raises(MemoryMismatch, match=r"from 'seen.hdf5', the atlas .* from 'other.hdf5'"):
        MemoryBank.from_atlas(ATLAS).bind(small_atlas(source="other.hdf5"))


def test_the_folder_of_a_feature_file_does_not_matter() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.bind(small_atlas(source="elsewhere/seen.hdf5"))
    assert bank.source == "seen.hdf5"


def test_integers_mean_nothing_before_settling() -> None:
    with pytest.raises(MemoryMismatch, match=r"call bind\(atlas\) first"):
        MemoryBank(WIDTH).recall_at(torch.tensor([0]))
    with pytest.raises(MemoryMismatch, match="no features to remember"):
        MemoryBank.from_atlas(Atlas(ATLAS.graphs.values()))


def test_a_masked_memory_is_written_but_not_read() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    masked = MaskedMemory(bank)
    masked.remember_observation(sight([3]))
    assert bank.recall_at(torch.tensor([3])).any()
    assert masked.recall_at(torch.tensor([[3]])).tolist() == [[[0.0] * WIDTH]]


# -- the graph around agents -------------------------------------------------------------------------------


@given(visited=st.sets(st.integers(0, 5)), standing=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_surroundings_are_what_names_know_of_the_scenes(visited: set[int], standing: list[int]) -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at(sorted(visited))
    around = bank.scene_subgraph(torch.tensor(standing))
    assert torch.equal(around.features, bank.recall_at(around.viewpoints))
    places = [ATLAS.name(each) for each in around.viewpoints.tolist()]
    scenes = {ATLAS.name(each)[0] for each in standing}
    assert len(places) == len(set(places))
    assert set(places) == {(scene, name) for scene in scenes for name in bank[scene].viewpoints}
    edges = {(places[a][0], *sorted((places[a][1], places[b][1]))) for a, b in around.edges.T.tolist()}
    assert len(edges) == around.edges.shape[1]
    assert edges == {(scene, *pair) for scene in scenes for pair in bank[scene].edges}
    for known, here in zip(around.known.tolist(), standing, strict=True):
        assert known == [scene == ATLAS.name(here)[0] for scene, _ in places]


def test_surroundings_follow_what_is_remembered_and_forgotten() -> None:
    bank, here = MemoryBank.from_atlas(ATLAS), torch.tensor([0, 4])
    assert bank.scene_subgraph(here).known.shape == (2, 0) and bank.scene_subgraph(here).edges.shape == (2, 0)
    bank.remember_observation(sight([0, 1]))
    assert bank.scene_subgraph(here).known.tolist() == [[True, True], [False, False]]
    bank.remember_observation(sight([4]))
    assert bank.scene_subgraph(here).known.tolist() == [[True, True, False], [False, False, True]]
    bank.forget("house")
    assert bank.scene_subgraph(here).viewpoints.tolist() == [4]
    assert bank.scene_subgraph(torch.tensor([2])).known.shape == (1, 0)


def test_a_masked_memory_has_no_surroundings() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_all()
    assert not MaskedMemory(bank).scene_subgraph(EVERYWHERE).known.any()
    assert bank.scene_subgraph(EVERYWHERE).known.any()


def test_surroundings_need_an_atlas() -> None:
    with pytest.raises(MemoryMismatch, match="bind"):
        MemoryBank(WIDTH).scene_subgraph(torch.tensor([0]))


def test_parts_of_surroundings_are_found_by_viewpoint_and_by_edge() -> None:
    """House: a - b, a - c, b - d, c - d; all but c are remembered."""
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at([0, 1, 3])
    around = bank.scene_subgraph(torch.tensor([2, 2]))
    assert around.viewpoints.tolist() == [0, 1, 3]
    assert around.contains(torch.tensor([[3, -1], [2, 0]])).tolist() == [
        [False, False, True],
        [True, False, False],
    ]
    some = torch.tensor([[True, False, False], [False, True, False]])
    assert around.neighbours(some).tolist() == [[False, True, False], [True, False, True]]
    assert around.restrict(some).known.tolist() == some.tolist()
    assert around.restrict(some[0]).known.tolist() == [some[0].tolist()] * 2
