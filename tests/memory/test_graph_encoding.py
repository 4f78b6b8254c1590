"""Graph Encoding: the counted sum against the paper's dense tensor, and every option."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory import (
    CandidateEnhancing,
    CombinedReader,
    CombinedReaderConfig,
    GraphEncoding,
    GraphEncodingConfig,
    MaskedMemory,
    MemoryBank,
)
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, SceneGraph

WIDTH = 10
WINDOWS = ("path", "hops", "path+hops", "none")
DIVISORS = ("none", "viewpoints", "pairs")


def building(scene: str, size: int, generator: np.random.Generator) -> SceneGraph:
    """A connected scene of random places and ways."""
    names = [f"v{index}" for index in range(size)]
    places = generator.uniform(-9, 9, (size, 3)) * [1, 1, 0.1]
    edges = [(names[index], names[int(generator.integers(index))]) for index in range(1, size)]
    edges += [(a, b) for a in names for b in names if a < b and generator.random() < 0.1]
    return SceneGraph.build(scene, dict(zip(names, places.tolist(), strict=True)), edges)


def town(seed: int = 0) -> Atlas:
    """Two scenes whose features are noise."""
    generator = np.random.default_rng(seed)
    graphs = [building("large", 17, generator), building("small", 6, generator)]
    panoramas = {
        f"{graph.scene_id}_{name}": generator.normal(size=(36, WIDTH))
        for graph in graphs
        for name in graph.viewpoints
    }
    return Atlas(graphs, ArrayFeatures.from_mapping(panoramas, source="noise"))


def sight(atlas: Atlas, seed: int = 0) -> Observation:
    """Agents in both scenes who have been at up to three places before, one of them nowhere."""
    generator = np.random.default_rng([seed, 1])
    at = np.array([*generator.choice(17, 4, replace=False), *(17 + generator.choice(6, 2, replace=False))])
    past = np.where(at[:, None] < 17, generator.integers(17, size=(6, 3)), generator.integers(17, 23, (6, 3)))
    past[np.arange(3) >= np.array([3, 1, 0, 2, 3, 1])[:, None]] = -1
    return Observation.from_atlas(atlas, atlas.begin(at, np.zeros(6)), previous_viewpoints=past)


def remembering(atlas: Atlas, share: float = 0.6, seed: int = 0) -> MemoryBank:
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    generator = np.random.default_rng([seed, 2])
    bank.remember_at(np.flatnonzero(generator.random(len(atlas)) < share).tolist())
    return bank


def trained(seed: int = 0, **options: Any) -> GraphEncoding:
    """A reader whose every parameter matters."""
    torch.manual_seed(seed)
    reader = GraphEncoding(GraphEncodingConfig(width=WIDTH, **options))
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return reader


# -- the literal formula -----------------------------------------------------------------------------------


def dense(reader: GraphEncoding, memories: Tensor, edges: set[tuple[int, int]]) -> Tensor:
    """Appendix A to the letter: the tensor of all pairs (n, n, 1 + D), encoded entry by entry, and summed."""
    size = len(memories)
    tensor = torch.zeros(size, size, 1 + WIDTH)
    for i, j in edges:
        tensor[i, j, 0] = tensor[j, i, 0] = 1
    for i in range(size):
        tensor[i, i, 1:] = memories[i]
    first, second, third = reader.mlps
    encoded = torch.cat([first(tensor) * second(tensor), third(tensor)], -1)  # (n, n, D)
    divisor = {"none": 1, "viewpoints": max(1, size), "pairs": max(1, size**2)}[reader.config.divide_by]
    token = encoded.sum((0, 1)) / divisor
    return token if reader.mark is None else token + reader.mark


def outside(reader: GraphEncoding, atlas: Atlas, bank: MemoryBank, observation: Observation) -> list[str]:
    """The remembered viewpoints of one agent's scene that no window masks, by name."""
    config, here = reader.config, int(observation.viewpoint[0])
    scene, standing = atlas.name(here)
    remembered = list(bank[scene].viewpoints)
    masked: set[str] = set()
    if "path" in config.window:
        assert observation.previous_viewpoints is not None
        masked |= {
            standing,
            *(atlas.name(each)[1] for each in observation.previous_viewpoints[0].tolist() if each >= 0),
        }
    if "hops" in config.window:
        near = {standing}
        for _ in range(config.hops):
            steps = [atlas.graph(scene).candidates(place) for place in near & {standing, *remembered}]
            near |= {candidate.viewpoint for each in steps for candidate in each}
        masked |= near
    return [viewpoint for viewpoint in remembered if viewpoint not in masked]


def by_formula(reader: GraphEncoding, atlas: Atlas, bank: MemoryBank, observation: Observation) -> Tensor:
    """The token of every agent, (B, D), by names and from the scenes' own edges."""
    tokens = []
    for row in range(len(observation)):
        alone = observation.select(torch.tensor([row]))
        memory = bank[atlas.name(int(alone.viewpoint[0]))[0]]
        kept = outside(reader, atlas, bank, alone)
        number = {viewpoint: index for index, viewpoint in enumerate(kept)}
        edges = {(number[a], number[b]) for a, b in memory.edges if a in number and b in number}
        tokens.append(dense(reader, memory.recall(kept), edges))
    return torch.stack(tokens)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("window", "divide_by", "bias", "mark"), list(product(WINDOWS, DIVISORS, [True, False], [True, False]))
)
def test_counting_gives_the_dense_sum(window: str, divide_by: str, bias: bool, mark: bool, seed: int) -> None:
    atlas = town(seed)
    bank, observation = remembering(atlas, seed=seed), sight(atlas, seed)
    for hops in (1, 2, 3) if "hops" in window else (1,):
        reader = trained(window=window, divide_by=divide_by, bias=bias, mark=mark, hops=hops, hidden=7)
        with torch.no_grad():
            expected = by_formula(reader, atlas, bank, observation)
            found = reader(observation, bank).features[:, -1]
        assert float((found - expected).abs().max()) < 1e-5 * max(1, float(expected.abs().max()))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("divide_by", DIVISORS)
def test_gradients_are_those_of_the_dense_sum(bias: bool, divide_by: str) -> None:
    atlas = town()
    bank, observation = remembering(atlas), sight(atlas)
    counted, literal = (trained(bias=bias, divide_by=divide_by) for _ in range(2))
    counted(observation, bank).features[:, -1].pow(2).sum().backward()
    by_formula(literal, atlas, bank, observation).pow(2).sum().backward()
    for ours, theirs in zip(counted.parameters(), literal.parameters(), strict=True):
        assert ours.grad is not None and theirs.grad is not None and ours.grad.any()
        assert (ours.grad - theirs.grad).abs().max() < 1e-5 * theirs.grad.abs().max()


def test_at_paper_size_counting_gives_the_dense_sum_within_a_hundred_thousandth_of_its_range() -> None:
    torch.manual_seed(0)
    reader = GraphEncoding(GraphEncodingConfig(bias=True, divide_by="none"))
    for parameter in reader.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    bank, atlas = paper_size(40)
    around = bank.scene_subgraph(torch.tensor([0]))
    one, other = around.edges
    tensor = torch.diag_embed(around.features.T).permute(1, 2, 0)  # (n, n, D)
    joined = torch.zeros(40, 40, 1)
    joined[one, other] = joined[other, one] = 1
    assert int(joined.sum()) == 2 * atlas.graph("large").num_edges > 0
    with torch.no_grad():
        literal = reader.transform(torch.cat([joined, tensor], 2)).sum((0, 1)) + reader.mark
        found = reader.encode(around)[0]
    assert float((found - literal).abs().max()) < 1e-5 * float(literal.abs().max())


def paper_size(places: int) -> tuple[MemoryBank, Atlas]:
    generator = np.random.default_rng(0)
    graph = building("large", places, generator)
    panoramas = {f"large_{name}": generator.normal(size=(36, 768)) for name in graph.viewpoints}
    atlas = Atlas([graph], ArrayFeatures.from_mapping(panoramas, source="noise"))
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    bank.remember_all()
    return bank, atlas


# -- small memories ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("divide_by", DIVISORS)
def test_an_empty_memory_gives_the_mark_alone(divide_by: str) -> None:
    atlas = town()
    observation, reader = sight(atlas), trained(divide_by=divide_by, bias=True)
    for memory in (MemoryBank.from_atlas(atlas), MaskedMemory(remembering(atlas))):
        token = reader(observation, memory).features[:, -1]
        assert reader.mark is not None and torch.equal(token, reader.mark.expand(len(observation), -1))
    unmarked = trained(divide_by=divide_by, bias=True, mark=False)
    token = unmarked(observation, MemoryBank.from_atlas(atlas)).features[:, -1]
    assert not token.any()
    token.sum().backward()
    assert all(each.grad is not None and not each.grad.any() for each in unmarked.parameters())


def test_one_remembered_viewpoint_is_encoded_by_itself() -> None:
    atlas, reader = town(), trained(window="none", bias=True, mark=False)
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    bank.remember_at([3])
    observation = sight(atlas)
    token = reader(observation, bank).features[:, -1]
    alone = reader.transform(torch.cat([torch.zeros(1), bank.recall_at(torch.tensor(3))]))
    in_large = observation.viewpoint < 17
    torch.testing.assert_close(token[in_large], alone.expand(int(in_large.sum()), -1))
    assert not token[~in_large].any()  # whose scene nobody has been to


def test_where_an_agent_stands_alone_is_remembered_nothing_is_left() -> None:
    atlas, reader = town(), trained(mark=False)
    bank, observation = MemoryBank.from_atlas(atlas, pooling="mean"), sight(atlas).select(torch.tensor([0]))
    bank.remember_observation(observation)
    assert not reader(observation, bank).features[:, -1].any()
    assert trained(mark=False, window="none")(observation, bank).features[:, -1].any()


# -- what changes nothing, and what does -------------------------------------------------------------------


def test_the_order_of_viewpoints_changes_nothing() -> None:
    atlas, reader = town(), trained()
    bank, observation = remembering(atlas), sight(atlas)
    visited = bank.visited.nonzero().flatten().tolist()
    backwards = MemoryBank.from_atlas(atlas, pooling="mean")
    backwards.remember_at(visited[::-1])
    around = bank.scene_subgraph(observation.viewpoint)
    order = torch.randperm(len(around.viewpoints), generator=torch.Generator().manual_seed(0))
    shuffled = around._replace(
        viewpoints=around.viewpoints[order],
        features=around.features[order],
        edges=order.argsort()[around.edges.flip(0)],
        known=around.known[:, order],
    )
    expected = reader(observation, bank).features
    torch.testing.assert_close(reader(observation, backwards).features, expected)
    torch.testing.assert_close(reader.encode(shuffled), reader.encode(around))


def test_other_agents_and_other_scenes_change_nothing() -> None:
    atlas, reader = town(), trained()
    bank, observation = remembering(atlas), sight(atlas)
    together = reader(observation, bank).features[:, -1]
    for row in range(len(observation)):
        alone = reader(observation.select(torch.tensor([row])), bank).features[0, -1]
        torch.testing.assert_close(alone, together[row], atol=1e-6, rtol=1e-5)
    before = reader(observation, bank).features[observation.viewpoint < 17, -1]
    bank.forget("small")
    after = reader(observation, bank).features[observation.viewpoint < 17, -1]
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-5)


def test_each_viewpoint_goes_through_the_layers_once_for_the_whole_batch() -> None:
    """Five agents in a scene of seventeen places: not 5 x 17 x 17 entries, but 17, an edge and a gap."""
    atlas, reader, rows = town(), trained(window="none"), list[int]()
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    bank.remember_all()
    reader.mlps[0].register_forward_hook(lambda module, given, out: rows.append(len(out)))
    reader(Observation.from_atlas(atlas, atlas.begin(np.arange(5), np.zeros(5))), bank)
    assert rows == [17 + 2]


def test_everything_else_stays_as_it_was_seen() -> None:
    atlas, reader = town(), trained()
    bank, observation = remembering(atlas), sight(atlas)
    for seen in (observation, observation.without_context_views()):
        read, tokens = reader(seen, bank), seen.token_type.shape[1]
        assert read.token_type.shape[1] == tokens + 1
        for name in (
            "features",
            "raw_features",
            "angles",
            "token_type",
            "valid",
            "neighbour",
            "view",
            "positions",
        ):
            assert torch.equal(getattr(read, name)[:, :tokens], getattr(seen, name)), name
        assert read.valid[:, -1].all() and torch.equal(read.num_candidates, seen.num_candidates)


def test_the_window_leaves_out_what_it_says() -> None:
    atlas = town()
    bank, observation = MemoryBank.from_atlas(atlas, pooling="mean"), sight(atlas)
    bank.remember_all()
    around = bank.scene_subgraph(observation.viewpoint)
    masked = {window: trained(window=window).in_window(observation, around) for window in WINDOWS}
    here = around.viewpoints == observation.viewpoint[:, None]
    assert observation.previous_viewpoints is not None and not masked["none"].any()
    walked = (around.viewpoints == observation.previous_viewpoints[:, :, None]).any(1)
    candidates = (around.viewpoints == observation.neighbour[:, :, None]).any(1)
    assert torch.equal(masked["path"], here | walked)
    assert torch.equal(masked["hops"], here | candidates)
    assert torch.equal(masked["path+hops"], here | walked | candidates)
    farther = trained(window="hops", hops=2).in_window(observation, around)
    assert (farther & ~masked["hops"]).any() and not (masked["hops"] & ~farther).any()


def test_hops_go_through_what_is_remembered_alone() -> None:
    """From v1 two hops lead to v3 by way of v2, but not while nobody remembers v2."""
    places = {f"v{index}": (2.0 * index, 0, 0) for index in range(4)}
    graph = SceneGraph.build("row", places, [("v0", "v1"), ("v1", "v2"), ("v2", "v3")])
    panoramas = {f"row_{name}": np.ones((36, WIDTH)) for name in places}
    atlas = Atlas([graph], ArrayFeatures.from_mapping(panoramas, source="noise"))
    observation = Observation.from_atlas(atlas, atlas.begin([1], [0.0]))
    bank, reader = MemoryBank.from_atlas(atlas), trained(window="hops", hops=2)
    bank.remember_at([3])
    assert reader.in_window(observation, bank.scene_subgraph(observation.viewpoint)).tolist() == [[False]]
    bank.remember_at([2])
    around = bank.scene_subgraph(observation.viewpoint)
    assert reader.in_window(observation, around).tolist() == [[True, True]]
    without = around.restrict(torch.tensor([False, True]))  # v2 is remembered, but not shown
    assert reader.in_window(observation, without)[0, 1].tolist() is False


def test_who_does_not_say_where_it_has_been_is_masked_where_it_stands_alone() -> None:
    atlas, reader = town(), trained()
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    bank.remember_all()
    observation = replace(sight(atlas), previous_viewpoints=None)
    around = bank.scene_subgraph(observation.viewpoint)
    assert reader.in_window(observation, around).sum(1).tolist() == [1] * len(observation)


def test_the_divisor_divides_the_sum() -> None:
    atlas = town()
    bank, observation = remembering(atlas), sight(atlas)
    whole, each, pairs = (
        trained(divide_by=by, mark=False)(observation, bank).features[:, -1] for by in DIVISORS
    )
    reader = trained()
    around = bank.scene_subgraph(observation.viewpoint)
    size = (around.known & ~reader.in_window(observation, around)).sum(1, keepdim=True)
    assert int(size.min()) > 1
    torch.testing.assert_close(each * size, whole)
    torch.testing.assert_close(pairs * size**2, whole)


def test_without_biases_pairs_that_no_edge_joins_are_nothing() -> None:
    gap = torch.zeros(1 + WIDTH)
    assert not trained().transform(gap).any() and trained(bias=True).transform(gap).any()
    assert {name.split(".")[-1] for name, _ in trained(mark=False).named_parameters()} == {"weight"}


def test_the_mark_is_added_to_the_token() -> None:
    atlas = town()
    bank, observation = remembering(atlas), sight(atlas)
    marked = trained()
    unmarked = GraphEncoding(replace(marked.config, mark=False))
    unmarked.load_state_dict({k: v for k, v in marked.state_dict().items() if k != "mark"})
    assert marked.mark is not None
    token = unmarked(observation, bank).features[:, -1] + marked.mark
    torch.testing.assert_close(marked(observation, bank).features[:, -1], token)


def test_edges_matter() -> None:
    atlas, reader = town(), trained()
    bank, observation = remembering(atlas), sight(atlas)
    around = bank.scene_subgraph(observation.viewpoint)
    lonely = around._replace(edges=around.edges[:, :0])
    assert not torch.allclose(reader.encode(around)[0], reader.encode(lonely)[0])


# -- weights, precision, refusals --------------------------------------------------------------------------


def test_weights_begin_small_and_the_paper_size_is_known() -> None:
    torch.manual_seed(0)
    reader = GraphEncoding(GraphEncodingConfig(bias=True))
    assert [tuple(each.shape) for each in reader.mlps[0].parameters()] == [
        (384, 769),
        (384,),
        (384, 384),
        (384,),
    ]
    assert float(reader.mlps[2][0].weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert reader.mark is not None and float(reader.mark.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert not any(reader.mlps[index][layer].bias.any() for index in range(3) for layer in (0, 2))
    assert sum(each.numel() for each in GraphEncoding().parameters()) == 3 * 384 * (769 + 384) + 768
    assert GraphEncoding(GraphEncodingConfig(width=5)).transform(torch.ones(2, 6)).shape == (2, 5)


def test_no_gradient_leaves_through_the_memory() -> None:
    atlas, reader = town(), trained()
    bank, observation = remembering(atlas), sight(atlas)
    before = bank.recall_at(torch.arange(len(atlas)))
    reader(observation, bank).features.pow(2).sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in reader.parameters())
    assert torch.equal(bank.recall_at(torch.arange(len(atlas))), before) and not before.requires_grad


def test_half_precision_counts_exactly() -> None:
    atlas, reader = town(), trained(bias=True, divide_by="none")
    bank, observation = remembering(atlas), sight(atlas)
    exact = reader(observation, bank).features[:, -1]
    with torch.autocast("cpu", torch.bfloat16):
        rough = reader(observation, bank).features[:, -1]
    assert float((rough - exact).detach().abs().max()) < 0.02 * float(exact.detach().abs().max())


def test_reading_without_a_memory_points_to_the_masked_one() -> None:
    with pytest.raises(ConfigError, match="Masked"):
        trained()(sight(town()), None)


def test_features_of_another_width_are_refused() -> None:
    atlas = town()
    bank, observation = remembering(atlas), sight(atlas)
    with pytest.raises(MemoryMismatch, match="width 768, the observation has 10; set the reader's width"):
        GraphEncoding()(observation, bank)
    wider = observation.with_features(torch.zeros(*observation.token_type.shape, 12))
    with pytest.raises(MemoryMismatch, match="width 12, the memory has 10"):
        GraphEncoding(GraphEncodingConfig(width=12))(wider, bank)


@pytest.mark.parametrize("config", [GraphEncodingConfig, CombinedReaderConfig])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"window": "near"}, "window 'near': expected one of path, hops, path\\+hops, none"),
        ({"divide_by": "n"}, "divide_by 'n': expected one of none, viewpoints, pairs"),
        ({"pooling": "sum"}, "pooling 'sum'"),
        ({"width": 1}, "expected 2 and 1 or more"),
        ({"hidden": 0}, "1 or more"),
        ({"hops": 0}, "hops: expected 1 or more, found 0"),
    ],
)
def test_settings_out_of_range_are_refused(config: type, option: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**option)


# -- both readers together ---------------------------------------------------------------------------------


def test_both_readers_do_what_each_does_alone() -> None:
    atlas = town()
    bank, observation = remembering(atlas), sight(atlas)
    torch.manual_seed(0)
    both = CombinedReader(
        CombinedReaderConfig(width=WIDTH, pooling="mean", hidden=6, initial_std=0.3, order="memory-feature")
    )
    enhancing, encoding = both.readers
    assert isinstance(enhancing, CandidateEnhancing) and isinstance(encoding, GraphEncoding)
    read = both(observation, bank).features
    assert torch.equal(read[:, :-1], enhancing(observation, bank).features)
    assert torch.equal(read[:, -1], encoding(observation, bank).features[:, -1])


def test_both_readers_share_a_pooling_and_keep_their_own_settings() -> None:
    assert CombinedReaderConfig().pooling == "max"
    both = CombinedReader(
        CombinedReaderConfig(width=WIDTH, pooling="mean", stop="zero", window="hops", hops=2)
    )
    for reader in both.readers:
        assert (reader.config.pooling, reader.config.width) == ("mean", WIDTH)
    assert (both.readers[0].config.stop, both.readers[1].config.hops) == ("zero", 2)
    with pytest.raises(ConfigError, match="stop 'fuse': expected one of fused, zero"):
        CombinedReaderConfig(stop="fuse")
