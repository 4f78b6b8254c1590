"""Encoding a remembered graph: equal entries counted once, against the paper's tensor of all pairs.

The baseline follows appendix A: a tensor of n x n x (1 + 768), three MLPs over all entries, and a sum. Our
implementation encodes every viewpoint, one edge and one missing edge, and multiplies by their numbers. Both
read the same memory at the same viewpoint; the benchmark asserts that they return the same token.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import REPEATS, Measurement, Ratio, both_sides, print_results, seconds
from esceme.memory import GraphEncoding, GraphEncodingConfig, MemoryBank
from esceme.observation import Observation
from esceme.world import ArrayFeatures, Atlas, SceneGraph
from esceme.world.geometry import VIEWS

WIDTH = 768
TARGET_SIZE, TARGET_RATIO = 200, 10.0
SIZES = (25, 50, 100, 200, 400, 800, 1600)
NUM_EDGES = 4
"""Edges per viewpoint, about as many as in the public scenes."""
MAX_BYTES = 3e9
"""Memory limit of the baseline; larger graphs are measured without it."""
ROUNDS = 3
Result = Ratio | Measurement


def run(_data: Path | None = None) -> Iterator[Result]:
    torch.set_num_threads(1)
    reader = random_reader()
    curve = {size: measure_size(size, reader) for size in SIZES}
    slow, fast = curve[TARGET_SIZE]
    assert slow is not None
    bound = "the layers over viewpoints that did not change since the last step"
    yield Ratio(f"graph of {TARGET_SIZE} viewpoints, width {WIDTH}", slow, fast, TARGET_RATIO, bound)
    for size, (slow, fast) in curve.items():
        dense = f"not measured, about {pair_bytes(size) / 1e9:.0f} GB" if slow is None else f"{slow:.3f} s"
        yield Measurement(f"growth: {size} viewpoints", f"{fast * 1000:.1f} ms", f"all pairs: {dense}")


def measure_size(size: int, reader: GraphEncoding) -> tuple[float | None, float]:
    """Return the seconds of the baseline and of ours; None for a baseline above `MAX_BYTES`."""
    bank, observation = remembered_scene(size)
    with torch.inference_mode():
        ours = reader(observation, bank).features[:, -1]
        if pair_bytes(size) > MAX_BYTES:
            return None, min(seconds(lambda: reader(observation, bank)) for _ in range(ROUNDS * REPEATS))
        baseline = all_pairs(reader, bank, observation)
        assert float((ours - baseline).abs().max()) < 1e-4 * float(baseline.abs().max())
        rounds = ROUNDS if size <= TARGET_SIZE else 1
        return both_sides(
            lambda: all_pairs(reader, bank, observation), lambda: reader(observation, bank), rounds
        )


def random_reader() -> GraphEncoding:
    """Build a reader of the paper's size; its biases make missing edges contribute to the token."""
    torch.manual_seed(0)
    reader = GraphEncoding(GraphEncodingConfig(width=WIDTH, bias=True))
    for weight in reader.parameters():
        torch.nn.init.normal_(weight, std=0.02)
    return reader.eval()


def remembered_scene(size: int) -> tuple[MemoryBank, Observation]:
    """Return a complete memory of a random scene, and an observation with four previous viewpoints."""
    rng = np.random.default_rng(size)
    names = [f"v{index}" for index in range(size)]
    edges = {(names[a], names[int(rng.integers(a))]) for a in range(1, size) for _ in range(NUM_EDGES // 2)}
    positions = dict(zip(names, rng.uniform(-50, 50, (size, 3)).tolist(), strict=True))
    graph = SceneGraph.build("scene", positions, sorted(edges))
    features = np.broadcast_to(rng.normal(size=(size, 1, WIDTH)).astype(np.float32), (size, VIEWS, WIDTH))
    atlas = Atlas([graph], ArrayFeatures(tuple(f"scene_{name}" for name in names), features, source="noise"))
    bank = MemoryBank.from_atlas(atlas, pooling="mean")
    bank.remember_all()
    path = rng.choice(size, (1, 5), replace=False)
    return bank, Observation.from_atlas(
        atlas, atlas.begin(path[:, 0], np.zeros(1)), previous_viewpoints=path[:, 1:]
    )


def all_pairs(reader: GraphEncoding, bank: MemoryBank, observation: Observation) -> Tensor:
    """Compute the tokens (B, D) exactly as in appendix A, one agent at a time."""
    assert observation.previous_viewpoints is not None
    tokens = []
    for current, previous in zip(observation.viewpoint, observation.previous_viewpoints, strict=True):
        subgraph = bank.scene_subgraph(current[None])
        masked = torch.isin(subgraph.viewpoints, torch.cat([current[None], previous]))
        visible = (~masked).nonzero().flatten()
        tensor = torch.zeros(len(masked), len(masked), 1 + WIDTH)
        start, end = subgraph.edges
        tensor[start, end, 0] = tensor[end, start, 0] = 1
        diagonal = torch.arange(len(masked))
        tensor[diagonal, diagonal, 1:] = subgraph.features
        tensor = tensor[visible][:, visible]  # (n, n, 1 + D)
        first, second, third = (mlp(tensor) for mlp in reader.mlps)
        encoded = torch.cat([first * second, third], -1)  # (n, n, D)
        tokens.append(encoded.sum((0, 1)) / len(visible) + reader.mark)
    return torch.stack(tokens)


def pair_bytes(size: int) -> float:
    """Return the bytes of two tensors of all pairs and of the outputs of the three MLPs."""
    return 4 * size**2 * (2 * (1 + WIDTH) + 3 * WIDTH)


if __name__ == "__main__":
    sys.exit(print_results(run()))
