"""SceneMemory: remember, recall, forget, merge; GrowingMatrix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory import GrowingMatrix, Pooling, SceneMemory, pool

WIDTH = 3
NUMBERS = st.integers(-4, 4).map(float)
VIEWS = st.lists(st.lists(NUMBERS, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=4).map(torch.tensor)
VIEWPOINTS = st.sampled_from("abcdef")
VISITS = st.lists(st.tuples(VIEWPOINTS, VIEWS, st.lists(VIEWPOINTS, max_size=4, unique=True)), max_size=8)
Visit = tuple[str, Tensor, list[str]]


def scene_memory(visits: list[Visit], pooling: Pooling = "max") -> SceneMemory:
    memory = SceneMemory(WIDTH, pooling=pooling)
    for visit in visits:
        memory.remember(*visit)
    return memory


def content(memory: SceneMemory) -> dict[str, tuple[list[float], tuple[str, ...]]]:
    return {
        name: (memory.recall([name])[0].tolist(), memory.neighbours_of(name)) for name in memory.viewpoints
    }


def merged(*memories: SceneMemory) -> SceneMemory:
    result = SceneMemory(memories[0].width, pooling=memories[0].pooling)
    for memory in memories:
        result.merge(memory)
    return result


@given(VISITS)
def test_recall_returns_the_pooled_views_of_the_first_visit(visits: list[Visit]) -> None:
    memory = scene_memory(visits)
    first = {viewpoint: views for viewpoint, views, _ in reversed(visits)}
    assert memory.viewpoints == first.keys()
    for viewpoint, views in first.items():
        assert torch.equal(memory.recall([viewpoint])[0], views.max(0).values)


@given(VISITS, VIEWS)
def test_a_revisit_changes_nothing(visits: list[Visit], other: Tensor) -> None:
    memory = scene_memory(visits)
    before = content(memory)
    assert not any(memory.remember(viewpoint, other, ["z"]) for viewpoint, _, _ in visits)
    assert content(memory) == before


@pytest.mark.parametrize("pooling", ["max", "mean"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 1e200])
def test_non_finite_views_are_refused_and_change_nothing(pooling: Pooling, value: float) -> None:
    memory = SceneMemory(WIDTH, pooling=pooling)
    views = torch.ones(2, WIDTH, dtype=torch.float64)
    views[1, 2] = value
    with pytest.raises(MemoryMismatch, match="viewpoint 'a': expected finite features"):
        memory.remember("a", views, ["b", "c"])
    assert len(memory) == 0 and "a" not in memory


def test_mean_pooling_counts_a_shared_view_twice() -> None:
    memory = SceneMemory(1, pooling="mean")
    memory.remember("a", torch.tensor([[3.0], [3.0], [0.0]]), ["b", "c", "d"])
    assert memory.recall(["a"]).tolist() == [[2.0]]


def test_unvisited_viewpoints_recall_as_zeros() -> None:
    memory = scene_memory([("a", torch.ones(2, WIDTH), ["b", "c"])])
    assert memory.recall(["b", "a", "z"]).tolist() == [[0] * WIDTH, [1] * WIDTH, [0] * WIDTH]
    assert memory.recall([]).shape == (0, WIDTH)


def test_edges_connect_only_remembered_viewpoints() -> None:
    memory = scene_memory([("b", torch.ones(2, WIDTH), ["a", "c"])])
    assert memory.edges == set()
    memory.remember("a", torch.ones(1, WIDTH), [])  # one of the two lists the other
    assert memory.edges == {("a", "b")}
    assert memory.neighbours_of("b") == ("a", "c")


def test_memory_copies_what_it_stores_and_what_it_returns() -> None:
    views = torch.ones(1, WIDTH, requires_grad=True)
    memory = scene_memory([("a", views, ["b"])])
    views.detach().zero_()
    assert not memory.recall(["a"]).requires_grad
    memory.recall(["a", "b"]).fill_(7.0)
    assert memory.recall(["a", "b"]).tolist() == [[1.0] * WIDTH, [0.0] * WIDTH]


def test_memory_written_in_inference_mode_can_be_used_in_training() -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    with torch.inference_mode():
        memory = scene_memory([("a", torch.ones(1, WIDTH), ["b"])])
    memory.remember("b", torch.ones(1, WIDTH), ["a"])
    (memory.recall(["a", "b"]) * weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * WIDTH


def test_forget_empties_the_memory() -> None:
    memory = scene_memory([("a", torch.ones(1, WIDTH), ["b"]), ("b", torch.ones(1, WIDTH), ["a"])])
    memory.forget()
    assert (len(memory), memory.nbytes, memory.edges, content(memory)) == (0, 0, set(), {})
    assert not memory.recall(["a", "b"]).any()
    assert memory.remember("a", torch.full((1, WIDTH), 5.0), ["b"])
    assert memory.recall(["a"]).tolist() == [[5.0] * WIDTH]


@pytest.mark.parametrize("pooling", ["max", "mean"])
@given(st.tuples(VISITS, VISITS, VISITS))
def test_merging_is_commutative_associative_and_idempotent(
    pooling: Pooling, visits: tuple[list[Visit], ...]
) -> None:
    a, b, c = (scene_memory(part, pooling) for part in visits)
    assert content(merged(a, b)) == content(merged(b, a))
    assert content(merged(merged(a, b), c)) == content(merged(a, merged(b, c)))
    a.merge(b)
    merged_once = content(a)
    a.merge(b)
    a.merge(a)
    assert content(a) == merged_once


@given(VISITS, st.integers(0, 8))
def test_merging_parts_equals_remembering_everything(visits: list[Visit], cut: int) -> None:
    first = {viewpoint: (viewpoint, views, neighbours) for viewpoint, views, neighbours in visits}
    visits = [
        first[viewpoint] for viewpoint, _, _ in visits
    ]  # every visit of a viewpoint sees the same views
    whole, parts = scene_memory(visits), merged(scene_memory(visits[:cut]), scene_memory(visits[cut:]))
    assert content(parts) == content(whole)
    assert parts.edges == whole.edges
    assert parts.viewpoints == whole.viewpoints


@pytest.mark.parametrize("other", [SceneMemory(WIDTH + 1), SceneMemory(WIDTH, pooling="mean")])
def test_merging_memories_of_another_width_or_pooling_is_refused(other: SceneMemory) -> None:
    with pytest.raises(MemoryMismatch, match=f"width {other.width} and {other.pooling} pooling"):
        SceneMemory(WIDTH).merge(other)


@pytest.mark.parametrize("shape", [(2, WIDTH + 1), (WIDTH,), (0, WIDTH), (1, 2, WIDTH)])
def test_views_of_another_shape_are_refused_and_not_stored(shape: tuple[int, ...]) -> None:
    memory = SceneMemory(WIDTH)
    with pytest.raises(MemoryMismatch, match="viewpoint 'a': .* with the width of your features"):
        memory.remember("a", torch.ones(shape), ["b"])
    assert len(memory) == 0 and "a" not in memory


def test_views_may_be_a_numpy_array() -> None:
    """The environments return arrays."""
    memory = SceneMemory(WIDTH)
    assert memory.remember("hall", np.ones((2, WIDTH), np.float32), ["door"])
    assert memory.recall(["hall"]).tolist() == [[1.0] * WIDTH]


def test_a_single_string_is_not_a_list_of_viewpoints() -> None:
    memory = SceneMemory(WIDTH)
    with pytest.raises(MemoryMismatch, match=r"expected a list of viewpoints.*write \['door'\]"):
        memory.recall("door")
    with pytest.raises(MemoryMismatch, match="expected a list of viewpoints"):
        memory.remember("hall", torch.ones(4, WIDTH), "door")
    assert len(memory) == 0


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sum': expected 'max' or 'mean'"):
        pool(torch.ones(2, 2), "sum")  # type: ignore[arg-type]


@given(st.lists(st.integers(-3, 5), max_size=12))
def test_rows_keep_their_values_while_others_are_added_and_freed(changes: list[int]) -> None:
    rows, held, stamp = GrowingMatrix(2), {}, 0.0
    for change in changes:
        if change < 0:
            freed = list(held)[:-change]
            rows.free(freed)
            held = {row: value for row, value in held.items() if row not in freed}
            continue
        values = [stamp + offset + 1 for offset in range(change)]
        stamp += change
        added = rows.append(torch.tensor(values)[:, None].expand(-1, 2))
        assert not set(added) & {0, *held}
        held |= dict(zip(added, values, strict=True))
    assert all(rows.matrix[row].tolist() == [value, value] for row, value in held.items())
    assert rows.matrix[0].tolist() == [0.0, 0.0]
    assert (len(rows), rows.nbytes) == (len(held), len(held) * 8)


def test_freed_rows_are_reused_before_the_matrix_grows() -> None:
    rows = GrowingMatrix(1)
    rows.append(torch.ones(100, 1))
    size = len(rows.matrix)
    for _ in range(50):
        rows.free(rows.append(torch.ones(1, 1)))
        assert len(rows.matrix) <= 2 * size
