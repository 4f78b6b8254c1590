"""Readers: modules that combine an observation with scene memory and return an observation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.errors import ConfigError, MemoryMismatch, check_choices
from esceme.memory.bank import Memory
from esceme.memory.scene import Pooling
from esceme.observation import Observation
from esceme.world.atlas import STOP


@dataclass(frozen=True, kw_only=True)
class NoMemoryConfig:
    """No settings."""


@dataclass(frozen=True, kw_only=True)
class NoVisionConfig:
    """No settings."""


class Reader(nn.Module, ABC):
    """Base class of readers: fuse an observation with memory before the agent sees it."""

    Config: ClassVar[type]
    """Frozen dataclass of settings."""
    config: Any
    uses_memory: ClassVar[bool] = False

    def __init__(self, config: Any = None) -> None:
        """Keep `config`, by default `Config()`."""
        super().__init__()
        self.config = self.Config() if config is None else config

    @property
    def pooling(self) -> Pooling:
        """Pooling of the memory that this reader expects."""
        return "max"

    @abstractmethod
    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the observation that the agent sees."""


class NoMemory(Reader):
    """Baseline: return the observation unchanged."""

    Config = NoMemoryConfig

    def forward(self, observation: Observation, memory: Memory | None = None) -> Observation:
        """Return `observation`."""
        return observation


class NoVision(Reader):
    """Control: replace all image features by zeros; only directions remain."""

    Config = NoVisionConfig

    def forward(self, observation: Observation, memory: Memory | None = None) -> Observation:
        """Zero the features of the tokens and of the panorama."""
        zeros = torch.zeros_like(observation.raw_features)
        full = None if observation.full_observation is None else self(observation.full_observation)
        return replace(observation, features=zeros, raw_features=zeros, full_observation=full)


class MemoryReader(Reader):
    """Base class of readers that require a memory of features with the width of `config.width`."""

    uses_memory = True

    @property
    def pooling(self) -> Pooling:
        """Pooling of the memory, from the settings."""
        return self.config.pooling

    def require_memory(self, memory: Memory | None) -> Memory:
        """Return `memory`; raise `ConfigError` for None."""
        if memory is None:
            raise ConfigError("this reader needs a memory; to hide its contents, pass a MaskedMemory")
        return memory

    def check_width(self, features: Tensor, owner: str) -> None:
        """Raise `MemoryMismatch` if the last axis of `features` is not `config.width`."""
        if features.shape[-1] != self.config.width:
            raise MemoryMismatch(
                f"{type(self).__name__} expects features of width {self.config.width}, {owner} has "
                f"{features.shape[-1]}; set the reader's width to {features.shape[-1]}"
            )


@dataclass(frozen=True, kw_only=True)
class CandidateEnhancingConfig:
    """Settings of candidate enhancing; defaults match the released weights, see docs/fidelity.md."""

    width: int = 768
    """Width of input and output features."""
    hidden: int | None = None
    """Width between the two layers; None: `width`."""
    pooling: Pooling = "max"
    """Pooling of the candidate views at a viewpoint (Eq. 1)."""
    order: Literal["feature-memory", "memory-feature"] = "feature-memory"
    """Order of the concatenated input; Eq. 3 of the paper writes the memory first."""
    context: Literal["itself", "zero", "untouched"] = "itself"
    """Memory of context views: their own feature, or zeros (Eq. 2); "untouched": they skip the MLP."""
    stop: Literal["fused", "zero"] = "fused"
    """Whether STOP's zeros pass through the MLP, or stay zeros as in the paper."""
    norm: bool = True
    """Whether a LayerNorm is between the layers; the paper mentions none."""
    shortcut: Literal["none", "feature", "both"] = "none"
    """Residual input that the MLP's output is added to: none, as in the paper; the feature; or the sum of
    feature and memory. With a residual the last layer starts at zero, so an agent trained without memory
    starts with unchanged inputs."""
    epsilon: float = 1e-12
    initial_std: float = 0.02

    def __post_init__(self) -> None:
        """Raise `ConfigError` if a value is out of range."""
        check_choices(self)
        if self.width < 1 or (self.hidden is not None and self.hidden < 1):
            raise ConfigError(f"width {self.width}, hidden {self.hidden}: expected 1 or more")


class CandidateEnhancing(MemoryReader):
    """ESceme's reader: replace every token's feature by MLP([feature; memory]) (Eq. 3).

    The memory of a candidate is the pooled feature of its viewpoint, zeros if that was never visited. It is
    never dropped out and receives no gradient.
    """

    Config = CandidateEnhancingConfig

    def __init__(self, config: CandidateEnhancingConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        hidden = config.hidden or config.width
        self.first = nn.Linear(2 * config.width, hidden)
        self.norm = nn.LayerNorm(hidden, eps=config.epsilon) if config.norm else nn.Identity()
        self.second = nn.Linear(hidden, config.width)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=config.initial_std)
            nn.init.zeros_(layer.bias)
        if config.shortcut != "none":
            nn.init.zeros_(self.second.weight)

    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """Fuse the features with what `memory` holds of the candidates."""
        recalled = self.require_memory(memory).recall_at(observation.neighbour)
        return observation.with_features(self.fuse(observation, recalled))

    def recall(self, observation: Observation, memory: Memory | None) -> Tensor:
        """Return the memory of every token, (B, N, D) (docs/spec.md C.4).

        Zeros for STOP, padding and unvisited candidates; a context view's own feature unless `context` is
        "zero".
        """
        recalled = self.require_memory(memory).recall_at(observation.neighbour)
        if self.config.context == "zero":
            return recalled
        return torch.where(observation.is_context[..., None], observation.raw_features, recalled)

    def fuse(self, observation: Observation, recalled: Tensor) -> Tensor:
        """Fuse the features with `recalled` (B, N, D), of which only candidates are read; padding is zero.

        Candidates, context views and STOP pass the first layer separately, which avoids products with zeros.
        """
        self.check_width(observation.features, "the observation")
        self.check_width(recalled, "the memory")
        is_candidate, is_context = observation.is_candidate, observation.is_context
        is_stop = observation.token_type == STOP
        groups = [self._first_layer_candidates(observation.features[is_candidate], recalled[is_candidate])]
        masks = [is_candidate]
        if self.config.context != "untouched":
            groups.append(self._first_layer_context(observation, is_context))
            masks.append(is_context)
        if self.config.stop == "fused":
            groups.append(self.first.bias.to(groups[0]).expand(int(is_stop.sum()), -1))
            masks.append(is_stop)
        hidden = torch.cat(groups)  # (T, hidden)
        out: Tensor = self.second(self.norm(functional.relu(hidden)))  # (T, D)
        rows = torch.cat([mask.flatten().nonzero().flatten() for mask in masks])
        fused = out.new_zeros(is_stop.numel(), self.config.width).index_copy_(0, rows, out)
        fused = fused.view(*is_stop.shape, -1)  # (B, N, D)
        if self.config.shortcut != "none":
            memory = recalled * is_candidate[..., None] if self.config.shortcut == "both" else 0.0
            return observation.features + memory + fused
        if self.config.context == "untouched":
            return torch.where(is_context[..., None], observation.features, fused)
        return fused

    def _first_layer_candidates(self, features: Tensor, recalled: Tensor) -> Tensor:
        """(T, D) features and memories -> (T, hidden); the memory half only where there is a memory."""
        feature_weight, memory_weight = self._split_weight()
        hidden = functional.linear(features, feature_weight, self.first.bias)
        visited = recalled.any(-1).nonzero().flatten()
        if len(visited) == 0:
            return hidden
        return hidden.index_add(0, visited, functional.linear(recalled[visited], memory_weight).to(hidden))

    def _first_layer_context(self, observation: Observation, is_context: Tensor) -> Tensor:
        """Context views -> (T, hidden); for [f; f] the two halves of the weight are added."""
        feature_weight, memory_weight = self._split_weight()
        features = observation.features[is_context]
        if self.config.context == "zero":
            return functional.linear(features, feature_weight, self.first.bias)
        if observation.features is observation.raw_features:
            return functional.linear(features, feature_weight + memory_weight, self.first.bias)
        hidden = functional.linear(features, feature_weight, self.first.bias)
        return hidden + functional.linear(observation.raw_features[is_context], memory_weight)

    def _split_weight(self) -> tuple[Tensor, Tensor]:
        """Halves of the first layer's weight for features and for memories, (hidden, D) each."""
        front, back = torch.split(self.first.weight, self.config.width, dim=1)
        return (front, back) if self.config.order == "feature-memory" else (back, front)
