"""MemoryBank: access by name and by viewpoint index, merging, binding, subgraphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esceme.errors import MemoryMismatch
from esceme.memory import MemoryBank, Pooling, ZeroRecallMemory, load_bank, save_bank
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, SceneGraph

SCENES = {
    "house": {"a": (0, 0, 0), "b": (0, 3, 0), "c": (3, 0, 0), "d": (3, 3, 0)},
    "barn": {"a": (0, 0, 0), "b": (4, 0, 0)},
}
EDGES = {"house": [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")], "barn": [("a", "b")]}
WIDTH = 5


def small_atlas(*, source: str = "features/seen.hdf5") -> Atlas:
    graphs = [SceneGraph.build(scene, SCENES[scene], EDGES[scene]) for scene in SCENES]
    rng = np.random.default_rng(0)
    keys = [f"{scene}_{name}" for scene, positions in SCENES.items() for name in positions]
    panoramas = {key: rng.normal(size=(36, WIDTH)) for key in keys}
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source=source))


ATLAS = small_atlas()
EVERYWHERE = torch.arange(len(ATLAS))


def observe(viewpoints: list[int]) -> Observation:
    return Observation.from_atlas(ATLAS, ATLAS.begin(viewpoints, np.zeros(len(viewpoints))))


def remember_by_name(bank: MemoryBank, index: int) -> None:
    """Remember a viewpoint by its names, without indices of the atlas."""
    scene, name = ATLAS.name(index)
    candidates = ATLAS.graph(scene).candidates(name)
    views = ATLAS.panorama_features(np.array([index]))[0][[candidate.view for candidate in candidates]]
    bank.remember(scene, name, torch.from_numpy(views), [candidate.viewpoint for candidate in candidates])


def recall_by_name(bank: MemoryBank) -> Tensor:
    """Recall all viewpoints by name, in the order of the atlas."""
    return torch.cat([bank.recall(scene, [name]) for scene, name in ATLAS.names])


@pytest.mark.parametrize("pooling", ["max", "mean"])
@given(batches=st.lists(st.lists(st.integers(0, len(ATLAS) - 1), min_size=1, max_size=4), max_size=4))
def test_batches_and_names_write_and_read_the_same_memory(pooling: Pooling, batches: list[list[int]]) -> None:
    batched, named = (
        MemoryBank.from_atlas(ATLAS, pooling=pooling),
        MemoryBank.from_atlas(ATLAS, pooling=pooling),
    )
    for batch in batches:
        batched.remember_observation(observe(batch))
        for index in batch:
            remember_by_name(named, index)
    for bank in (batched, named):
        assert torch.equal(bank.recall_at(EVERYWHERE), recall_by_name(bank))
        assert bank.visited.nonzero().flatten().tolist() == sorted(
            {index for batch in batches for index in batch}
        )
        assert len(bank) == int(bank.visited.sum())
    assert torch.equal(recall_by_name(batched), recall_by_name(named))
    assert all(batched[scene].edges == named[scene].edges for scene in ATLAS.scenes)


@given(st.lists(st.one_of(st.integers(0, len(ATLAS) - 1), st.sampled_from([*ATLAS.scenes, "all", "merge"]))))
def test_indices_and_names_agree_after_any_events(events: list[int | str]) -> None:
    bank, other = MemoryBank.from_atlas(ATLAS), MemoryBank.from_atlas(ATLAS)
    other.remember_observation(observe([1, 4]))
    for number, event in enumerate(events):
        if isinstance(event, int):
            bank.remember_observation(observe([event])) if number % 2 else remember_by_name(bank, event)
        elif event == "merge":
            bank.merge(other)
        else:
            bank.forget(None if event == "all" else event)
    assert torch.equal(bank.recall_at(EVERYWHERE), recall_by_name(bank))
    assert [scene for scene in sorted(ATLAS.scenes) if len(bank[scene])] == list(bank.scenes)
    assert bank.nbytes == sum(bank[scene].nbytes for scene in bank.scenes) == len(bank) * WIDTH * 4


def test_unvisited_and_absent_viewpoints_recall_as_zeros_in_any_shape() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at([0])
    recalled = bank.recall_at(torch.tensor([[0, -1, 1], [5, 0, -1]]))
    assert recalled.shape == (2, 3, WIDTH)
    assert recalled.any(-1).tolist() == [[True, False, False], [False, True, False]]
    bank.remember_all()
    assert not bank.recall_at(torch.tensor([-1])).any()


def test_remember_all_and_remember_at_equal_remembering_observations() -> None:
    full, some, observed = (MemoryBank.from_atlas(ATLAS) for _ in range(3))
    some.remember_at([4, 1, 4])
    observed.remember_observation(observe([1, 4]))
    assert torch.equal(some.recall_at(EVERYWHERE), observed.recall_at(EVERYWHERE))
    assert some["house"].neighbours_of("b") == observed["house"].neighbours_of("b") != ()
    full.remember_all()
    observed.remember_observation(observe(EVERYWHERE.tolist()))
    assert full.visited.all()
    assert torch.equal(full.recall_at(EVERYWHERE), observed.recall_at(EVERYWHERE))
    assert full["house"].edges == set(EDGES["house"])


def test_bank_written_by_name_can_be_bound_to_an_atlas(tmp_path: Path) -> None:
    bank = MemoryBank(WIDTH, source="seen.hdf5")
    for index in (0, 5):
        remember_by_name(bank, index)
    save_bank(bank, tmp_path / "bank")
    for unbound in (bank, load_bank(tmp_path / "bank")):
        unbound.bind(ATLAS)
        assert unbound.visited.nonzero().flatten().tolist() == [0, 5]
        assert torch.equal(unbound.recall_at(EVERYWHERE), recall_by_name(unbound))


def test_scenes_outside_the_atlas_are_accessible_by_name() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember("castle", "a", torch.ones(1, WIDTH), ["b"])
    assert bank.scenes == ("castle",) and not bank.visited.any()
    assert bank.recall("castle", ["a"]).tolist() == [[1.0] * WIDTH]


def test_scenes_do_not_share_viewpoints_of_the_same_name() -> None:
    bank = MemoryBank(WIDTH)
    bank.remember("house", "a", torch.ones(1, WIDTH), ["b"])
    assert not bank.recall("barn", ["a"]).any()
    assert bank.scenes == ("house",)  # recalling adds no scene
    bank.forget("barn")
    assert len(bank) == 1


def test_bank_written_in_inference_mode_can_be_used_in_training() -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    with torch.inference_mode():
        bank = MemoryBank.from_atlas(ATLAS)
        bank.remember_observation(observe([0, 1]))
    bank.remember_observation(observe([2]))
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
def test_merging_a_bank_of_other_features_is_refused(other: MemoryBank) -> None:
    with pytest.raises(MemoryMismatch):
        MemoryBank.from_atlas(ATLAS).merge(other)


def test_binding_checks_width_and_file_name_of_the_features() -> None:
    with pytest.raises(MemoryMismatch, match=r"width 6 from 'seen.hdf5', the atlas has width 5"):
        MemoryBank(6, source="seen.hdf5").bind(ATLAS)
    bank = MemoryBank.from_atlas(ATLAS)
    with pytest.raises(MemoryMismatch, match=r"from 'seen.hdf5', the atlas .* from 'other.hdf5'"):
        bank.bind(small_atlas(source="other.hdf5"))
    bank.bind(small_atlas(source="another_folder/seen.hdf5"))
    assert bank.source == "seen.hdf5"


def test_viewpoint_indices_need_a_bound_atlas_with_features() -> None:
    with pytest.raises(MemoryMismatch, match=r"call bind\(atlas\) first"):
        MemoryBank(WIDTH).recall_at(torch.tensor([0]))
    with pytest.raises(MemoryMismatch, match="bind"):
        MemoryBank(WIDTH).scene_subgraph(torch.tensor([0]))
    with pytest.raises(MemoryMismatch, match="no features to remember"):
        MemoryBank.from_atlas(Atlas(ATLAS.graphs.values()))


def test_masked_memory_is_written_but_not_read() -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    masked = ZeroRecallMemory(bank)
    masked.remember_observation(observe([3]))
    assert bank.recall_at(torch.tensor([3])).any()
    assert masked.recall_at(torch.tensor([[3]])).tolist() == [[[0.0] * WIDTH]]
    assert bank.scene_subgraph(EVERYWHERE).known.any()
    assert not masked.scene_subgraph(EVERYWHERE).known.any()


# -- scene subgraphs --------------------------------------------------------------------------------------


@given(visited=st.sets(st.integers(0, 5)), current=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_subgraph_equals_the_scene_memories_by_name(visited: set[int], current: list[int]) -> None:
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at(sorted(visited))
    subgraph = bank.scene_subgraph(torch.tensor(current))
    assert torch.equal(subgraph.features, bank.recall_at(subgraph.viewpoints))
    nodes = [ATLAS.name(index) for index in subgraph.viewpoints.tolist()]
    scenes = {ATLAS.name(index)[0] for index in current}
    assert len(nodes) == len(set(nodes))
    assert set(nodes) == {(scene, name) for scene in scenes for name in bank[scene].viewpoints}
    edges = {(nodes[a][0], *sorted((nodes[a][1], nodes[b][1]))) for a, b in subgraph.edges.T.tolist()}
    assert len(edges) == subgraph.edges.shape[1]
    assert edges == {(scene, *pair) for scene in scenes for pair in bank[scene].edges}
    for known, here in zip(subgraph.known.tolist(), current, strict=True):
        assert known == [scene == ATLAS.name(here)[0] for scene, _ in nodes]


def test_subgraph_follows_remembering_and_forgetting() -> None:
    bank, here = MemoryBank.from_atlas(ATLAS), torch.tensor([0, 4])
    assert bank.scene_subgraph(here).known.shape == (2, 0) and bank.scene_subgraph(here).edges.shape == (2, 0)
    bank.remember_observation(observe([0, 1]))
    assert bank.scene_subgraph(here).known.tolist() == [[True, True], [False, False]]
    bank.remember_observation(observe([4]))
    assert bank.scene_subgraph(here).known.tolist() == [[True, True, False], [False, False, True]]
    bank.forget("house")
    assert bank.scene_subgraph(here).viewpoints.tolist() == [4]
    assert bank.scene_subgraph(torch.tensor([2])).known.shape == (1, 0)


def test_subgraph_contains_neighbours_and_restrict() -> None:
    """House: a - b, a - c, b - d, c - d; all but c are remembered."""
    bank = MemoryBank.from_atlas(ATLAS)
    bank.remember_at([0, 1, 3])
    subgraph = bank.scene_subgraph(torch.tensor([2, 2]))
    assert subgraph.viewpoints.tolist() == [0, 1, 3]
    assert subgraph.contains(torch.tensor([[3, -1], [2, 0]])).tolist() == [
        [False, False, True],
        [True, False, False],
    ]
    some = torch.tensor([[True, False, False], [False, True, False]])
    assert subgraph.neighbours(some).tolist() == [[False, True, False], [True, False, True]]
    assert subgraph.restrict(some).known.tolist() == some.tolist()
    assert subgraph.restrict(some[0]).known.tolist() == [some[0].tolist()] * 2
