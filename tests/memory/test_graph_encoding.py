"""Graph Encoding against the paper's dense sum, and every option; the combined reader."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme.errors import MemoryMismatch
from esceme.memory import (
    CandidateEnhancing,
    CombinedReader,
    CombinedReaderConfig,
    GraphEncoding,
    GraphEncodingConfig,
    MemoryBank,
    ZeroRecallMemory,
)
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, SceneGraph

WIDTH = 10
WINDOWS = ("path", "hops", "path+hops", "none")
DIVISORS = ("none", "viewpoints", "pairs")
PRODUCTS = ("element-wise", "matrix")


def random_graph(scene: str, size: int, generator: np.random.Generator) -> SceneGraph:
    """A connected graph with random positions and edges."""
    names = [f"v{index}" for index in range(size)]
    positions = generator.uniform(-9, 9, (size, 3)) * [1, 1, 0.1]
    edges = [(names[index], names[int(generator.integers(index))]) for index in range(1, size)]
    edges += [(a, b) for a in names for b in names if a < b and generator.random() < 0.1]
    return SceneGraph.build(scene, dict(zip(names, positions.tolist(), strict=True)), edges)


def noise_atlas(seed: int = 0, sizes: Sequence[int] = (17, 6), width: int = WIDTH) -> Atlas:
    """Scenes of these sizes with random features."""
    generator = np.random.default_rng(seed)
    graphs = [random_graph(f"scene{index}", size, generator) for index, size in enumerate(sizes)]
    panoramas = {
        f"{graph.scene_id}_{name}": generator.normal(size=(36, width))
        for graph in graphs
        for name in graph.viewpoints
    }
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source="noise"))


def observe(atlas: Atlas, seed: int = 0) -> Observation:
    """Six agents in both scenes with zero to three previous viewpoints."""
    generator = np.random.default_rng([seed, 1])
    at = np.array([*generator.choice(17, 4, replace=False), *(17 + generator.choice(6, 2, replace=False))])
    past = np.where(at[:, None] < 17, generator.integers(17, size=(6, 3)), generator.integers(17, 23, (6, 3)))
    past[np.arange(3) >= np.array([3, 1, 0, 2, 3, 1])[:, None]] = -1
    return Observation.from_atlas(atlas, atlas.begin(at, np.zeros(6)), previous_viewpoints=past)


def bank_of(atlas: Atlas, viewpoints: Sequence[int] | None = None, seed: int = 0) -> MemoryBank:
    """A mean-pooling bank with these viewpoints, by default a random 60 %."""
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    generator = np.random.default_rng([seed, 2])
    chosen = np.flatnonzero(generator.random(len(atlas)) < 0.6).tolist() if viewpoints is None else viewpoints
    bank.remember_at(chosen)
    return bank


@pytest.fixture
def atlas() -> Atlas:
    return noise_atlas()


@pytest.fixture
def bank(atlas: Atlas) -> MemoryBank:
    return bank_of(atlas)


@pytest.fixture
def observation(atlas: Atlas) -> Observation:
    return observe(atlas)


def trained(seed: int = 0, **options: Any) -> GraphEncoding:
    """A reader with random, non-zero parameters."""
    torch.manual_seed(seed)
    reader = GraphEncoding(GraphEncodingConfig(width=WIDTH, **options))
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return reader


# -- the dense formula -------------------------------------------------------------------------------------


def dense(reader: GraphEncoding, memories: Tensor, edges: set[tuple[int, int]]) -> Tensor:
    """Appendix A as printed: encode all pairs (n, n, 1 + D) and sum them."""
    size, width = memories.shape
    pairs = torch.zeros(size, size, 1 + width)
    for i, j in edges:
        pairs[i, j, 0] = pairs[j, i, 0] = 1
    pairs[range(size), range(size), 1:] = memories
    first, second, third = (mlp(pairs) for mlp in reader.mlps)
    if reader.config.product == "matrix":
        product = torch.einsum("ikc,kjc->ijc", first, second)  # a matrix product per channel
    else:
        product = first * second
    encoded = torch.cat([product, third], -1)  # (n, n, D)
    divisor = {"none": 1, "viewpoints": max(1, size), "pairs": max(1, size**2)}[reader.config.divide_by]
    token = encoded.sum((0, 1)) / divisor
    return token if reader.mark is None else token + reader.mark


def outside_window(
    reader: GraphEncoding, atlas: Atlas, bank: MemoryBank, observation: Observation
) -> list[str]:
    """Names of the remembered viewpoints of the first agent's scene that the window does not mask."""
    config = reader.config
    scene, current = atlas.name(int(observation.viewpoint[0]))
    remembered = list(bank[scene].viewpoints)
    masked: set[str] = set()
    if "path" in config.window:
        assert observation.previous_viewpoints is not None
        previous = observation.previous_viewpoints[0].tolist()
        masked |= {current, *(atlas.name(index)[1] for index in previous if index >= 0)}
    if "hops" in config.window:
        near = {current}
        for _ in range(config.hops):
            expanded = near & {current, *remembered}
            near |= {edge.viewpoint for name in expanded for edge in atlas.graph(scene).candidates(name)}
        masked |= near
    return [viewpoint for viewpoint in remembered if viewpoint not in masked]


def by_formula(reader: GraphEncoding, atlas: Atlas, bank: MemoryBank, observation: Observation) -> Tensor:
    """The token of every agent, (B, D), from names and from the scenes' edges."""
    tokens = []
    for row in range(len(observation)):
        single = observation.select(torch.tensor([row]))
        memory = bank[atlas.name(int(single.viewpoint[0]))[0]]
        nodes = outside_window(reader, atlas, bank, single)
        index = {viewpoint: number for number, viewpoint in enumerate(nodes)}
        edges = {(index[a], index[b]) for a, b in memory.edges if a in index and b in index}
        tokens.append(dense(reader, memory.recall(nodes), edges))
    return torch.stack(tokens)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("window", "divide_by", "bias", "mark"),
    list(itertools.product(WINDOWS, DIVISORS, [True, False], [True, False])),
)
def test_token_equals_the_dense_sum(window: str, divide_by: str, bias: bool, mark: bool, seed: int) -> None:
    atlas = noise_atlas(seed)
    bank, observation = bank_of(atlas, seed=seed), observe(atlas, seed)
    for hops in (1, 2, 3) if "hops" in window else (1,):
        for product in PRODUCTS:
            options = {"window": window, "divide_by": divide_by, "bias": bias, "mark": mark, "hops": hops}
            reader = trained(**options, product=product, hidden=7)
            with torch.no_grad():
                expected = by_formula(reader, atlas, bank, observation)
                found = reader(observation, bank).features[:, -1]
            assert float((found - expected).abs().max()) < 1e-5 * max(1, float(expected.abs().max()))


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("divide_by", DIVISORS)
def test_gradients_equal_those_of_the_dense_sum(
    product: str, bias: bool, divide_by: str, atlas: Atlas, bank: MemoryBank, observation: Observation
) -> None:
    counted, literal = (trained(bias=bias, divide_by=divide_by, product=product) for _ in range(2))
    counted(observation, bank).features[:, -1].pow(2).sum().backward()
    by_formula(literal, atlas, bank, observation).pow(2).sum().backward()
    for ours, theirs in zip(counted.parameters(), literal.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.grad.any()
        assert (ours.grad - theirs.grad).abs().max() < 1e-5 * theirs.grad.abs().max()


def test_at_paper_size_the_token_equals_the_dense_sum_within_a_hundred_thousandth() -> None:
    torch.manual_seed(0)
    reader = GraphEncoding(GraphEncodingConfig(bias=True, divide_by="none"))
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    atlas = noise_atlas(sizes=[40], width=768)
    subgraph = bank_of(atlas, range(40)).scene_subgraph(torch.tensor([0]))
    assert subgraph.edges.shape[1] == atlas.graph("scene0").num_edges > 0
    with torch.no_grad():
        literal = dense(reader, subgraph.features, {(a, b) for a, b in subgraph.edges.T.tolist()})
        found = reader.encode(subgraph)[0]
    assert float((found - literal).abs().max()) < 1e-5 * float(literal.abs().max())


# -- small memories ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("divide_by", DIVISORS)
def test_an_empty_memory_gives_only_the_mark(
    divide_by: str, atlas: Atlas, bank: MemoryBank, observation: Observation
) -> None:
    reader = trained(divide_by=divide_by, bias=True)
    for memory in (MemoryBank.from_atlas(atlas), ZeroRecallMemory(bank)):
        token = reader(observation, memory).features[:, -1]
        assert reader.mark is not None and torch.equal(token, reader.mark.expand(len(observation), -1))
    unmarked = trained(divide_by=divide_by, bias=True, mark=False)
    token = unmarked(observation, MemoryBank.from_atlas(atlas)).features[:, -1]
    assert not token.any()
    token.sum().backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in unmarked.parameters())


def test_a_single_remembered_viewpoint_is_encoded_without_edges(
    atlas: Atlas, observation: Observation
) -> None:
    reader, bank = trained(window="none", bias=True, mark=False), bank_of(atlas, [3])
    token = reader(observation, bank).features[:, -1]
    expected = reader.transform(torch.cat([torch.zeros(1), bank.recall_at(torch.tensor(3))]))
    in_first = observation.viewpoint < 17
    torch.testing.assert_close(token[in_first], expected.expand(int(in_first.sum()), -1))
    assert not token[~in_first].any()


def test_the_current_viewpoint_is_masked(atlas: Atlas, observation: Observation) -> None:
    single = observation.select(torch.tensor([0]))
    bank = bank_of(atlas, single.viewpoint.tolist())
    assert not trained(mark=False)(single, bank).features[:, -1].any()
    assert trained(mark=False, window="none")(single, bank).features[:, -1].any()


# -- invariances and windows ------------------------------------------------------------------------------


def test_the_order_of_viewpoints_does_not_matter(
    atlas: Atlas, bank: MemoryBank, observation: Observation
) -> None:
    reader = trained()
    reverse = bank_of(atlas, bank.visited.nonzero().flatten().tolist()[::-1])
    subgraph = bank.scene_subgraph(observation.viewpoint)
    order = torch.randperm(len(subgraph.viewpoints), generator=torch.Generator().manual_seed(0))
    shuffled = subgraph._replace(
        viewpoints=subgraph.viewpoints[order],
        features=subgraph.features[order],
        edges=order.argsort()[subgraph.edges.flip(0)],
        known=subgraph.known[:, order],
    )
    torch.testing.assert_close(reader(observation, reverse).features, reader(observation, bank).features)
    torch.testing.assert_close(reader.encode(shuffled), reader.encode(subgraph))
    without_edges = subgraph._replace(edges=subgraph.edges[:, :0])
    assert not torch.allclose(reader.encode(subgraph)[0], reader.encode(without_edges)[0])


def test_other_scenes_do_not_matter(bank: MemoryBank, observation: Observation) -> None:
    reader, in_first = trained(), observation.viewpoint < 17
    before = reader(observation, bank).features[in_first, -1]
    bank.forget("scene1")
    after = reader(observation, bank).features[in_first, -1]
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-5)


def test_layers_run_once_per_viewpoint_for_the_whole_batch(atlas: Atlas) -> None:
    """Five agents in a scene of 17 viewpoints: 17 rows, an edge and a gap instead of 5 x 17 x 17."""
    reader, rows = trained(window="none"), list[int]()
    reader.mlps[0].register_forward_hook(lambda module, given, out: rows.append(len(out)))
    observation = Observation.from_atlas(atlas, atlas.begin(np.arange(5), np.zeros(5)))
    reader(observation, bank_of(atlas, range(len(atlas))))
    assert rows == [17 + 2]


def test_windows_mask_the_path_or_the_neighbours(atlas: Atlas, observation: Observation) -> None:
    subgraph = bank_of(atlas, range(len(atlas))).scene_subgraph(observation.viewpoint)
    masked = {window: trained(window=window).in_window(observation, subgraph) for window in WINDOWS}
    current = subgraph.viewpoints == observation.viewpoint[:, None]
    assert observation.previous_viewpoints is not None and not masked["none"].any()
    visited = (subgraph.viewpoints == observation.previous_viewpoints[:, :, None]).any(1)
    candidates = (subgraph.viewpoints == observation.neighbour[:, :, None]).any(1)
    assert torch.equal(masked["path"], current | visited)
    assert torch.equal(masked["hops"], current | candidates)
    assert torch.equal(masked["path+hops"], current | visited | candidates)
    two_hops = trained(window="hops", hops=2).in_window(observation, subgraph)
    assert (two_hops & ~masked["hops"]).any() and not (masked["hops"] & ~two_hops).any()
    without_path = replace(observation, previous_viewpoints=None)
    assert torch.equal(trained().in_window(without_path, subgraph), current)


def test_hops_pass_only_through_remembered_viewpoints() -> None:
    """Two hops from v1 reach v3 through v2, but only if v2 is remembered."""
    positions = {f"v{index}": (2.0 * index, 0, 0) for index in range(4)}
    graph = SceneGraph.build("row", positions, [("v0", "v1"), ("v1", "v2"), ("v2", "v3")])
    panoramas = {f"row_{name}": np.ones((36, WIDTH)) for name in positions}
    atlas = Atlas([graph], ArrayFeatures.from_mapping(panoramas, source="noise"))
    observation = Observation.from_atlas(atlas, atlas.begin([1], [0.0]))
    bank, reader = MemoryBank.from_atlas(atlas), trained(window="hops", hops=2)
    bank.remember_at([3])
    assert reader.in_window(observation, bank.scene_subgraph(observation.viewpoint)).tolist() == [[False]]
    bank.remember_at([2])
    subgraph = bank.scene_subgraph(observation.viewpoint)
    assert reader.in_window(observation, subgraph).tolist() == [[True, True]]
    hidden = subgraph.restrict(torch.tensor([False, True]))  # v2 is remembered, but not known
    assert reader.in_window(observation, hidden)[0, 1].tolist() is False


def test_without_biases_unconnected_pairs_encode_to_zero() -> None:
    gap = torch.zeros(1 + WIDTH)
    assert not trained().transform(gap).any() and trained(bias=True).transform(gap).any()
    assert {name.split(".")[-1] for name, _ in trained(mark=False).named_parameters()} == {"weight"}


# -- weights, precision, errors ----------------------------------------------------------------------------


def test_initial_weights_have_the_papers_sizes_and_scale() -> None:
    torch.manual_seed(0)
    reader = GraphEncoding(GraphEncodingConfig(bias=True))
    shapes = [tuple(weight.shape) for weight in reader.mlps[0].parameters()]
    assert shapes == [(384, 769), (384,), (384, 384), (384,)]
    assert float(reader.mlps[2][0].weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert reader.mark is not None and float(reader.mark.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert not any(reader.mlps[index][layer].bias.any() for index in range(3) for layer in (0, 2))
    assert sum(weight.numel() for weight in GraphEncoding().parameters()) == 3 * 384 * (769 + 384) + 768
    assert GraphEncoding(GraphEncodingConfig(width=5)).transform(torch.ones(2, 6)).shape == (2, 5)


def test_autocast_sums_in_full_precision(bank: MemoryBank, observation: Observation) -> None:
    reader = trained(bias=True, divide_by="none")
    exact = reader(observation, bank).features[:, -1]
    with torch.autocast("cpu", torch.bfloat16):
        rough = reader(observation, bank).features[:, -1]
    assert float((rough - exact).detach().abs().max()) < 0.02 * float(exact.detach().abs().max())


def test_features_of_another_width_are_refused(bank: MemoryBank, observation: Observation) -> None:
    with pytest.raises(MemoryMismatch, match="width 768, the observation has 10; set the reader's width"):
        GraphEncoding()(observation, bank)
    wider = observation.with_features(torch.zeros(*observation.token_type.shape, 12))
    with pytest.raises(MemoryMismatch, match="width 12, the memory has 10"):
        GraphEncoding(GraphEncodingConfig(width=12))(wider, bank)


# -- the combined reader -----------------------------------------------------------------------------------


def test_combined_reader_equals_its_two_readers(bank: MemoryBank, observation: Observation) -> None:
    torch.manual_seed(0)
    both = CombinedReader(
        CombinedReaderConfig(width=WIDTH, pooling="mean", hidden=6, initial_std=0.3, order="memory-feature")
    )
    enhancing, encoding = both.readers
    assert isinstance(enhancing, CandidateEnhancing) and isinstance(encoding, GraphEncoding)
    features = both(observation, bank).features
    assert torch.equal(features[:, :-1], enhancing(observation, bank).features)
    assert torch.equal(features[:, -1], encoding(observation, bank).features[:, -1])


def test_combined_reader_shares_pooling_and_width() -> None:
    assert CombinedReaderConfig().pooling == "max"
    both = CombinedReader(
        CombinedReaderConfig(width=WIDTH, pooling="mean", stop="zero", window="hops", hops=2)
    )
    for reader in both.readers:
        assert (reader.config.pooling, reader.config.width) == ("mean", WIDTH)
    assert (both.readers[0].config.stop, both.readers[1].config.hops) == ("zero", 2)
