"""Encoding a remembered graph: counting what is alike, against the paper's tensor of all pairs.

The obvious side writes appendix A down: a tensor of n x n x (1 + 768), three MLPs over all of it, a sum. Ours
encodes every viewpoint once, an edge and a gap, and counts them. Both read the same bank, standing at the
same place, and are asserted to give the same token.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import REPEATS, Found, Ratio, both_sides, line, seconds
from esceme.memory import GraphEncoding, GraphEncodingConfig, MemoryBank
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, SceneGraph
from esceme.world.geometry import VIEWS

WIDTH = 768
ASKED, WANTED = 200, 10.0
SIZES = (25, 50, 100, 200, 400, 800, 1600)
WAYS = 4
"""Edges of a viewpoint, about as many as in the public scenes."""
ROOM = 3e9
"""Bytes that the obvious side may take: it stops where the tensor and the layers' outcomes need more."""
ROUNDS = 3
Result = Ratio | Found


def run(_data: Path | None = None) -> Iterator[Result]:
    torch.set_num_threads(1)
    reader = drawn_reader()
    curve = {size: measured(size, reader) for size in SIZES}
    slow, fast = curve[ASKED]
    assert slow is not None
    bound = "the layers over viewpoints that did not change since the last step"
    yield Ratio(f"graph of {ASKED} viewpoints, width {WIDTH}", slow, fast, WANTED, bound)
    for size, (slow, fast) in curve.items():
        dense = f"not tried, about {feature_buffer(size) / 1e9:.0f} GB" if slow is None else f"{slow:.3f} s"
        yield Found(f"growth: {size} viewpoints", f"{fast * 1000:.1f} ms", f"all pairs: {dense}")


def measured(size: int, reader: GraphEncoding) -> tuple[float | None, float]:
    """Seconds of both sides for a graph of so many viewpoints; None where the obvious one has no room."""
    bank, observation = remembered(size)
    with torch.inference_mode():
        ours = reader(observation, bank).features[:, -1]
        if feature_buffer(size) > ROOM:
            return None, min(seconds(lambda: reader(observation, bank)) for _ in range(ROUNDS * REPEATS))
        obvious = all_pairs(reader, bank, observation)
        assert float((ours - obvious).abs().max()) < 1e-4 * float(obvious.abs().max())
        rounds = ROUNDS if size <= ASKED else 1
        return both_sides(
            lambda: all_pairs(reader, bank, observation), lambda: reader(observation, bank), rounds
        )


def drawn_reader() -> GraphEncoding:
    """A reader of the paper's size, with biases: so that gaps count as well."""
    torch.manual_seed(0)
    reader = GraphEncoding(GraphEncodingConfig(width=WIDTH, bias=True))
    for weight in reader.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    return reader.eval()


def remembered(size: int) -> tuple[MemoryBank, Observation]:
    """A scene of which everything is remembered, and what an agent sees there after a walk of four places."""
    rng = np.random.default_rng(size)
    names = [f"v{index}" for index in range(size)]
    edges = {(names[a], names[int(rng.integers(a))]) for a in range(1, size) for _ in range(WAYS // 2)}
    places = dict(zip(names, rng.uniform(-50, 50, (size, 3)).tolist(), strict=True))
    graph = SceneGraph.build("scene", places, sorted(edges))
    pictures = np.broadcast_to(rng.normal(size=(size, 1, WIDTH)).astype(np.float32), (size, VIEWS, WIDTH))
    atlas = Atlas([graph], ArrayFeatures(tuple(f"scene_{name}" for name in names), pictures, source="noise"))
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    bank.remember_all()
    walk = rng.choice(size, (1, 5), replace=False)
    return bank, Observation.from_atlas(
        atlas, atlas.begin(walk[:, 0], np.zeros(1)), previous_viewpoints=walk[:, 1:]
    )


def all_pairs(reader: GraphEncoding, bank: MemoryBank, observation: Observation) -> Tensor:
    """Appendix A to the letter, agent by agent, (B, D)."""
    assert observation.previous_viewpoints is not None
    tokens = []
    for here, past in zip(observation.viewpoint, observation.previous_viewpoints, strict=True):
        around = bank.scene_subgraph(here[None])
        masked = torch.isin(around.viewpoints, torch.cat([here[None], past]))
        kept = (~masked).nonzero().flatten()
        tensor = torch.zeros(len(masked), len(masked), 1 + WIDTH)
        one, other = around.edges
        tensor[one, other, 0] = tensor[other, one, 0] = 1
        every = torch.arange(len(masked))
        tensor[every, every, 1:] = around.features
        tensor = tensor[kept][:, kept]  # (n, n, 1 + D)
        first, second, third = (mlp(tensor) for mlp in reader.mlps)
        encoded = torch.cat([first * second, third], -1)  # (n, n, D)
        tokens.append(encoded.sum((0, 1)) / len(kept) + reader.mark)
    return torch.stack(tokens)


def feature_buffer(size: int) -> float:
    """Bytes of the tensor of all pairs, twice, and of what the layers make of it."""
    return 4 * size**2 * (2 * (1 + WIDTH) + 3 * WIDTH)


if __name__ == "__main__":
    results = list(run())
    print("\n".join(line(result.row()) for result in results))
    sys.exit(not all(result.met for result in results))
