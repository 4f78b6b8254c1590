"""Graph Encoding: all that is remembered of a scene becomes one more token (the paper's appendix A).

The paper writes a memory of n viewpoints as a tensor G of n x n x (1 + D): [0; m_i] where i = j, [1; 0] where
i and j are neighbours, zeros elsewhere. G' = [MLP1(G) * MLP2(G); MLP3(G)] is summed over all n x n. But what
is alike comes out alike: computed here are n viewpoints, one edge and one gap, each counted as often as it is
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory.bank import Memory, MemorySubgraph
from esceme.memory.reader import Reader
from esceme.memory.scene import Pooling
from esceme.observation import Observation


@dataclass(frozen=True, kw_only=True)
class GraphEncodingConfig:
    """Where the paper is silent there is a choice; docs/fidelity.md has the reasons for the defaults."""

    width: int = 768
    """Of the features, and of the token."""
    hidden: int | None = None
    """Width between the two layers of each MLP; None: half the width of the features, as what comes out."""
    pooling: Pooling = "mean"
    """How what is seen at a place becomes its memory (Eq. 1); the paper's row has the mean."""
    window: Literal["path", "hops", "path+hops", "none"] = "path"
    """What is left out of the graph besides where the agent stands: where it has been in this episode, which
    its history tells already; what lies within some hops; both; or nothing, not even where it stands."""
    hops: int = 1
    """How many steps far a window of hops reaches: to candidates first, then along remembered edges."""
    divide_by: Literal["none", "viewpoints", "pairs"] = "viewpoints"
    """What the sum is divided by: nothing, as the paper writes it; n; or n x n."""
    bias: bool = False
    """Whether the layers have biases; with them each of the many pairs that no edge joins counts, too."""
    mark: bool = True
    """Whether a vector is learned and added that tells the token from a view, and an empty memory from
    nothing at all."""
    initial_std: float = 0.02

    def __post_init__(self) -> None:
        """Raise `ConfigError` where a value is out of range."""
        choices = {
            "pooling": ("max", "mean"),
            "window": ("path", "hops", "path+hops", "none"),
            "divide_by": ("none", "viewpoints", "pairs"),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} '{value}': expected one of {', '.join(allowed)}")
        if self.width < 2 or (self.hidden is not None and self.hidden < 1):
            raise ConfigError(f"width {self.width}, hidden {self.hidden}: expected 2 and 1 or more")
        if self.hops < 1:
            raise ConfigError(f"hops: expected 1 or more, found {self.hops}; for no window: window none")


class GraphEncoding(Reader):
    """Adds one token to what is seen: the remembered graph, without the window around the agent.

    An agent sees it as a view that leads nowhere. A memory of nothing gives a token, too: the mark alone.
    """

    Config = GraphEncodingConfig
    uses_memory = True

    def __init__(self, config: GraphEncodingConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or GraphEncodingConfig()
        half = config.width // 2
        self.maps = nn.ModuleList(self._mlp(half) for half in (half, half, config.width - half))
        """W1 to W3; the outcomes of the first two are multiplied."""
        self.mark: Tensor | None = nn.Parameter(torch.empty(config.width)) if config.mark else None
        for weight in self.parameters():
            nn.init.normal_(weight, std=config.initial_std)
        for layer in (each for each in self.modules() if isinstance(each, nn.Linear) and config.bias):
            nn.init.zeros_(layer.bias)

    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """The observation with one more token, which holds what `memory` does of the scene."""
        if memory is None:
            raise ConfigError("this reader needs a memory; to see it without one, give it a Masked memory")
        around = memory.surroundings(observation.viewpoint)
        self._require_width(observation.features, "the observation has")
        self._require_width(around.features, "the memory holds")
        return observation.with_token(self.encode(around.limited(~self.masked(observation, around))))

    def masked(self, observation: Observation, around: MemorySubgraph) -> Tensor:
        """Which remembered viewpoints lie in the window of each agent, (B, M)."""
        window, here = self.config.window, observation.viewpoint[:, None]
        if window == "none":
            return torch.zeros_like(around.known)
        hidden = around.among(here)
        if window != "hops" and observation.past is not None:
            hidden = hidden | around.among(observation.past)
        if window != "path":
            near = around.among(torch.cat([here, observation.neighbour], 1))
            for _ in range(self.config.hops - 1):
                near = near | around.beside(near & around.known)
            hidden = hidden | near
        return hidden

    def encode(self, around: MemorySubgraph) -> Tensor:
        """The graphs that agents know, (B, D): the sum of G' over all pairs, and the mark."""
        somebodys = around.known.any(0)
        outcomes = self.transform(self._entries(around.features[somebodys]))  # (M' + 2, D)
        one, other = around.edges
        viewpoints = around.known.sum(1, keepdim=True)  # (B, 1)
        edges = 2 * (around.known[:, one] & around.known[:, other]).sum(1, keepdim=True)
        gaps = viewpoints**2 - viewpoints - edges
        weight = next(self.parameters())
        counts = torch.cat([around.known[:, somebodys], edges, gaps], 1).to(weight.dtype)  # (B, M' + 2)
        with torch.autocast(weight.device.type, enabled=False):  # halves cannot count so far
            total = counts @ outcomes.to(weight.dtype)
        divisors = {"none": torch.ones_like(viewpoints), "viewpoints": viewpoints, "pairs": viewpoints**2}
        total = total / divisors[self.config.divide_by].clamp(min=1)
        return total if self.mark is None else total + self.mark

    def transform(self, entries: Tensor) -> Tensor:
        """G' of entries of G, (..., 1 + D) -> (..., D)."""
        one, other, beside = (each(entries) for each in self.maps)
        return torch.cat([one * other, beside], -1)

    def _entries(self, memories: Tensor) -> Tensor:
        """The distinct entries of G: viewpoints (M, D), an edge, a gap; (M + 2, 1 + D)."""
        rows, width = memories.shape
        entries = memories.new_zeros(rows + 2, 1 + width)
        entries[:rows, 1:] = memories
        entries[rows, 0] = 1
        return entries

    def _mlp(self, out: int) -> nn.Sequential:
        between = self.config.hidden or self.config.width // 2
        first = nn.Linear(1 + self.config.width, between, bias=self.config.bias)
        return nn.Sequential(first, nn.ReLU(), nn.Linear(between, out, bias=self.config.bias))

    def _require_width(self, features: Tensor, who: str) -> None:
        if features.shape[-1] != self.config.width:
            raise MemoryMismatch(
                f"this reader encodes features of width {self.config.width}, {who} {features.shape[-1]}; "
                f"make it with width={features.shape[-1]}"
            )
