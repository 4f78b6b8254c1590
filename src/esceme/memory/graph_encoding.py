"""Graph encoding: the remembered graph of a scene as one additional token (appendix A of the paper).

The paper writes a memory of n viewpoints as a tensor G of shape n x n x (1 + D). Entry (i, i) is [0; m_i]
with the feature m_i of viewpoint i. Entry (i, j) is [1; 0] for adjacent viewpoints and zero otherwise. G' =
[MLP1(G) * MLP2(G); MLP3(G)] is summed over all n x n entries. Equal entries have equal outputs. Therefore
only the n viewpoints, one edge and one zero entry are computed, weighted by how often they occur.

The block of Maron et al. (2019), which the paper cites, multiplies matrices instead: for every channel,
MLP1(G) MLP2(G) is a product of n x n matrices. The sum over all entries of a product is the product of column
sums and row sums, so that this is linear in viewpoints and edges too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn

from esceme.memory.bank import Memory, MemorySubgraph
from esceme.memory.reader import CandidateEnhancing, CandidateEnhancingConfig, MemoryReader
from esceme.memory.scene import Pooling
from esceme.observation import Observation
from esceme.settings import Positive, Size, check_settings


@dataclass(frozen=True, kw_only=True)
class GraphEncodingConfig:
    """Settings of graph encoding. docs/fidelity.md explains defaults that the paper does not specify."""

    width: Annotated[int, Meta(ge=2)] = 768
    """Width of the features and of the additional token."""
    hidden: Size | None = None
    """Hidden size of each two-layer MLP; None for half of `width`."""
    pooling: Pooling = "mean"
    """Pooling over the views that lead to candidates (Eq. 1); `mean` as in the paper's graph encoding."""
    window: Literal["path", "hops", "path+hops", "none"] = "path"
    """Viewpoints that are left out of the graph. `path`: those of this episode, which the history already
    contains. `hops`: those within `hops` edges of the agent. `path+hops`: both groups. `none`: no
    viewpoints."""
    hops: Annotated[int, Meta(ge=1, le=1000)] = 1
    """Radius in edges for the window `hops`. The first edge leads to a candidate; others are remembered."""
    product: Literal["element-wise", "matrix"] = "element-wise"
    """How MLP1(G) and MLP2(G) are multiplied: `element-wise` as the paper writes it, or as `matrix` products
    per channel, as in the 3-WL block that the paper cites."""
    divide_by: Literal["none", "viewpoints", "pairs"] = "viewpoints"
    """Divisor of the sum over all pairs: `none` as in the paper, n viewpoints, or n x n pairs."""
    bias: bool = False
    """Whether the linear layers have biases. With biases, pairs without an edge contribute to the sum too."""
    mark: bool = True
    """Whether to add a learned vector to the token. It distinguishes the token from views, and the token of
    an empty memory from zeros."""
    initial_std: Positive = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        check_settings(self)


class GraphEncoding(MemoryReader):
    """Reader that appends one context token, which encodes the remembered graph of the scene.

    `config.window` selects viewpoints near the agent that are left out. If the memory is empty, the token is
    `mark`.
    """

    Config = GraphEncodingConfig

    def __init__(self, config: GraphEncodingConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        half = config.width // 2
        self.mlps = nn.ModuleList(self._mlp(width) for width in (half, half, config.width - half))
        """MLP1, MLP2 and MLP3 of the paper. The outputs of MLP1 and MLP2 are multiplied."""
        self.mark: Tensor | None = nn.Parameter(torch.empty(config.width)) if config.mark else None
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=config.initial_std)
        for module in self.modules():
            if isinstance(module, nn.Linear) and config.bias:
                nn.init.zeros_(module.bias)

    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the observation with the graph token appended."""
        graph = self.require_memory(memory).scene_subgraph(observation.viewpoint)
        self.check_width(observation.features, "the observation")
        self.check_width(graph.features, "the memory")
        return observation.append_token(self.encode(graph.restrict(~self.in_window(observation, graph))))

    def in_window(self, observation: Observation, graph: MemorySubgraph) -> Tensor:
        """Return (B, M) bool: True for remembered viewpoints that `config.window` leaves out for an agent."""
        window, here = self.config.window, observation.viewpoint[:, None]
        if window == "none":
            return torch.zeros_like(graph.known)
        inside = graph.contains(here)
        if window != "hops" and observation.previous_viewpoints is not None:
            inside = inside | graph.contains(observation.previous_viewpoints)
        if window != "path":
            near = graph.contains(torch.cat([here, observation.neighbour], 1))
            for _ in range(self.config.hops - 1):
                near = near | graph.neighbours(near & graph.known)
            inside = inside | near
        return inside

    def encode(self, graph: MemorySubgraph) -> Tensor:
        """Return the graph token of each agent, (B, D): the sum of G' over all pairs, plus `mark`.

        G' is defined in the docstring of this module.
        """
        is_used, weight = graph.known.any(0), next(self.parameters())
        entries = self._entries(graph.features[is_used])  # (M' + 2, 1 + D)
        source, target = graph.edges
        num_viewpoints = graph.known.sum(1, keepdim=True)  # (B, 1)
        is_edge = graph.known[:, source] & graph.known[:, target]  # (B, E)
        num_edges = 2 * is_edge.sum(1, keepdim=True)
        num_gaps = num_viewpoints**2 - num_viewpoints - num_edges
        counts = torch.cat([graph.known[:, is_used], num_edges, num_gaps], 1).to(weight.dtype)  # (B, M' + 2)
        with torch.autocast(weight.device.type, enabled=False):  # half precision cannot represent the counts
            if self.config.product == "element-wise":
                total = counts @ self.transform(entries).to(weight.dtype)
            else:
                ones = is_edge.to(weight.dtype)
                degrees = torch.zeros_like(graph.known, dtype=weight.dtype)
                degrees = degrees.index_add(1, source, ones).index_add(1, target, ones)[:, is_used]  # (B, M')
                known = graph.known[:, is_used].to(weight.dtype)
                first, second, third = (mlp(entries.to(weight.dtype)) for mlp in self.mlps)
                sums = [_line_sums(outputs, known, degrees) for outputs in (first, second)]
                total = torch.cat([(known[..., None] * sums[0] * sums[1]).sum(1), counts @ third], 1)
        divisors = {
            "none": torch.ones_like(num_viewpoints),
            "viewpoints": num_viewpoints,
            "pairs": num_viewpoints**2,
        }
        total = total / divisors[self.config.divide_by].clamp(min=1)
        return total if self.mark is None else total + self.mark

    def transform(self, entries: Tensor) -> Tensor:
        """Return the outputs of the three MLPs for entries of the graph tensor, (..., 1 + D) -> (..., D)."""
        first, second, third = (mlp(entries) for mlp in self.mlps)
        return torch.cat([first * second, third], -1)

    def _entries(self, memories: Tensor) -> Tensor:
        """Return the MLP inputs of M viewpoints, an edge and a missing edge, (M, D) -> (M + 2, 1 + D)."""
        rows, width = memories.shape
        entries = memories.new_zeros(rows + 2, 1 + width)
        entries[:rows, 1:] = memories
        entries[rows, 0] = 1
        return entries

    def _mlp(self, out: int) -> nn.Sequential:
        hidden = self.config.hidden or self.config.width // 2
        first = nn.Linear(1 + self.config.width, hidden, bias=self.config.bias)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(hidden, out, bias=self.config.bias))


def _line_sums(outputs: Tensor, known: Tensor, degrees: Tensor) -> Tensor:
    """Return the sum of an encoded n x n matrix along the line of each viewpoint, (B, M, D).

    `outputs` (M + 2, D) are the encoded entries of M viewpoints, of an edge and of a gap. `known` (B, M) is 1
    for the n viewpoints of an agent's graph; `degrees` (B, M) are their numbers of edges in it. G is
    symmetric, so that sums of columns and of rows are equal.
    """
    viewpoints, edge, gap = outputs[:-2], outputs[-2], outputs[-1]
    gaps = known.sum(1, keepdim=True) - 1 - degrees
    return viewpoints + degrees[..., None] * edge + gaps[..., None] * gap


@dataclass(frozen=True, kw_only=True)
class CombinedReaderConfig(CandidateEnhancingConfig, GraphEncodingConfig):
    """Settings of candidate enhancing and of graph encoding. Fields with the same name have one value."""

    width: Annotated[int, Meta(ge=2)] = 768
    """Width of the features and of the token."""


class CombinedReader(MemoryReader):
    """Reader that applies candidate enhancing, then graph encoding, with the same memory."""

    Config = CombinedReaderConfig

    def __init__(self, config: CombinedReaderConfig | None = None) -> None:
        super().__init__(config)
        self.readers = nn.ModuleList([CandidateEnhancing(self.config), GraphEncoding(self.config)])

    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the observation with enhanced features and the graph token appended."""
        for reader in self.readers:
            observation = reader(observation, memory)
        return observation
