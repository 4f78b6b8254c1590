"""One building's memory: what it keeps, what it gives back, and the algebra of merging."""

from __future__ import annotations

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
PLACES = st.sampled_from("abcdef")
VISITS = st.lists(st.tuples(PLACES, VIEWS, st.lists(PLACES, max_size=4, unique=True)), max_size=8)
Visit = tuple[str, Tensor, list[str]]


def lived(visits: list[Visit], pooling: Pooling = "max") -> SceneMemory:
    memory = SceneMemory(WIDTH, pooling=pooling)
    for visit in visits:
        memory.remember(*visit)
    return memory


def content(memory: SceneMemory) -> dict[str, tuple[list[float], tuple[str, ...]]]:
    """All that a memory knows."""
    return {
        place: (memory.recall([place])[0].tolist(), memory.neighbours_of(place))
        for place in memory.viewpoints
    }


def merged(*memories: SceneMemory) -> SceneMemory:
    result = SceneMemory(memories[0].width, pooling=memories[0].pooling)
    for memory in memories:
        result.merge(memory)
    return result


@given(VISITS)
def test_a_place_is_recalled_as_the_pool_of_its_first_visit(visits: list[Visit]) -> None:
    memory = lived(visits)
    first = {place: views for place, views, _ in reversed(visits)}
    assert memory.viewpoints == first.keys()
    for place, views in first.items():
        assert torch.equal(memory.recall([place])[0], views.max(0).values)


@given(VISITS, VIEWS)
def test_a_revisit_changes_nothing(visits: list[Visit], other: Tensor) -> None:
    memory = lived(visits)
    before = content(memory)
    assert not any(memory.remember(place, other, ["z"]) for place, _, _ in visits)
    assert content(memory) == before


def test_mean_pooling_counts_a_shared_view_twice() -> None:
    memory = SceneMemory(1, pooling="mean")
    memory.remember("a", torch.tensor([[3.0], [3.0], [0.0]]), ["b", "c", "d"])
    assert memory.recall(["a"]).tolist() == [[2.0]]


def test_places_never_visited_recall_as_zeros() -> None:
    memory = lived([("a", torch.ones(2, WIDTH), ["b", "c"])])
    assert memory.recall(["b", "a", "nowhere"]).tolist() == [[0] * WIDTH, [1] * WIDTH, [0] * WIDTH]
    assert memory.recall([]).shape == (0, WIDTH)


def test_edges_join_remembered_neighbours_only() -> None:
    memory = lived([("b", torch.ones(2, WIDTH), ["a", "c"])])
    assert memory.edges == set()
    memory.remember("a", torch.ones(1, WIDTH), [])  # it is enough that one of them lists the other
    assert memory.edges == {("a", "b")}
    assert memory.neighbours_of("b") == ("a", "c")


def test_the_views_given_may_change_afterwards() -> None:
    views = torch.ones(1, WIDTH)
    memory = lived([("a", views, ["b"])])
    views.zero_()
    assert memory.recall(["a"]).tolist() == [[1.0] * WIDTH]


def test_what_is_recalled_may_be_changed() -> None:
    memory = lived([("a", torch.ones(1, WIDTH), ["b"])])
    memory.recall(["a", "b"]).fill_(7.0)
    assert memory.recall(["a", "b"]).tolist() == [[1.0] * WIDTH, [0.0] * WIDTH]


def test_no_gradient_flows_into_a_memory() -> None:
    memory = lived([("a", torch.ones(1, WIDTH, requires_grad=True), ["b"])])
    assert not memory.recall(["a"]).requires_grad


def test_what_an_evaluation_remembered_can_be_trained_on() -> None:
    weight = torch.ones(WIDTH, requires_grad=True)
    with torch.inference_mode():
        memory = lived([("a", torch.ones(1, WIDTH), ["b"])])
    memory.remember("b", torch.ones(1, WIDTH), ["a"])
    (memory.recall(["a", "b"]) * weight).sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * WIDTH


def test_after_forgetting_a_memory_is_as_new() -> None:
    memory = lived([("a", torch.ones(1, WIDTH), ["b"]), ("b", torch.ones(1, WIDTH), ["a"])])
    memory.forget()
    assert (len(memory), memory.nbytes, memory.edges, content(memory)) == (0, 0, set(), {})
    assert not memory.recall(["a", "b"]).any()
    assert memory.remember("a", torch.full((1, WIDTH), 5.0), ["b"])
    assert memory.recall(["a"]).tolist() == [[5.0] * WIDTH]


@pytest.mark.parametrize("pooling", ["max", "mean"])
@given(first=VISITS, second=VISITS)
def test_it_does_not_matter_who_is_merged_into_whom(
    pooling: Pooling, first: list[Visit], second: list[Visit]
) -> None:
    a, b = lived(first, pooling), lived(second, pooling)
    assert content(merged(a, b)) == content(merged(b, a))


@pytest.mark.parametrize("pooling", ["max", "mean"])
@given(first=VISITS, second=VISITS, third=VISITS)
def test_it_does_not_matter_what_is_merged_first(
    pooling: Pooling, first: list[Visit], second: list[Visit], third: list[Visit]
) -> None:
    a, b, c = (lived(visits, pooling) for visits in (first, second, third))
    assert content(merged(merged(a, b), c)) == content(merged(a, merged(b, c)))


@pytest.mark.parametrize("pooling", ["max", "mean"])
@given(first=VISITS, second=VISITS)
def test_merging_again_changes_nothing(pooling: Pooling, first: list[Visit], second: list[Visit]) -> None:
    a, b = lived(first, pooling), lived(second, pooling)
    a.merge(b)
    once = content(a)
    a.merge(b)
    a.merge(a)
    assert content(a) == once


@given(VISITS, st.integers(0, 8))
def test_merged_parts_of_a_life_are_the_memory_of_the_whole(visits: list[Visit], cut: int) -> None:
    looks = {place: (place, views, neighbours) for place, views, neighbours in visits}
    visits = [looks[place] for place, _, _ in visits]  # a place looks the same at every visit
    whole, parts = lived(visits), merged(lived(visits[:cut]), lived(visits[cut:]))
    assert content(parts) == content(whole)
    assert parts.edges == whole.edges
    assert parts.viewpoints == whole.viewpoints


@pytest.mark.parametrize("other", [SceneMemory(WIDTH + 1), SceneMemory(WIDTH, pooling="mean")])
def test_memories_of_another_kind_are_not_merged(other: SceneMemory) -> None:
    with pytest.raises(MemoryMismatch, match=f"width {other.width} and {other.pooling} pooling"):
        SceneMemory(WIDTH).merge(other)


@pytest.mark.parametrize("shape", [(2, WIDTH + 1), (WIDTH,), (0, WIDTH), (1, 2, WIDTH)])
def test_views_of_another_shape_are_refused_and_nothing_is_kept(shape: tuple[int, ...]) -> None:
    memory = SceneMemory(WIDTH)
    with pytest.raises(MemoryMismatch, match="viewpoint 'a': .* with the width of your features"):
        memory.remember("a", torch.ones(shape), ["b"])
    assert len(memory) == 0 and "a" not in memory


def test_an_unknown_pooling_is_refused() -> None:
    with pytest.raises(ConfigError, match="'sum': expected 'max' or 'mean'"):
        pool(torch.ones(2, 2), "sum")  # type: ignore[arg-type]


@given(st.lists(st.integers(-3, 5), max_size=12))
def test_rows_keep_their_vectors_while_others_come_and_go(changes: list[int]) -> None:
    rows, held, stamp = GrowingMatrix(2), {}, 0.0
    for change in changes:
        if change < 0:
            gone = list(held)[:-change]
            rows.free(gone)
            held = {row: value for row, value in held.items() if row not in gone}
            continue
        values = [stamp + each + 1 for each in range(change)]
        stamp += change
        placed = rows.append(torch.tensor(values)[:, None].expand(-1, 2))
        assert not set(placed) & {0, *held}
        held |= dict(zip(placed, values, strict=True))
    assert all(rows.matrix[row].tolist() == [value, value] for row, value in held.items())
    assert rows.matrix[0].tolist() == [0.0, 0.0]
    assert (len(rows), rows.nbytes) == (len(held), len(held) * 8)


def test_freed_rows_are_used_before_the_matrix_grows() -> None:
    rows = GrowingMatrix(1)
    rows.append(torch.ones(100, 1))
    size = len(rows.matrix)
    for _ in range(50):
        rows.free(rows.append(torch.ones(1, 1)))
        assert len(rows.matrix) <= 2 * size


def test_a_scene_of_92_viewpoints_takes_less_than_a_third_of_a_megabyte() -> None:
    memory = SceneMemory(768)
    for place in range(92):
        memory.remember(f"{place:032x}", torch.rand(4, 768), [f"{place + 1:032x}"])
    assert memory.nbytes == 92 * 768 * 4 <= 0.3e6
