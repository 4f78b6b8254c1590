"""Readers: modules that fuse the memory of a scene into an observation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.errors import ConfigError, MemoryMismatch
from esceme.memory.bank import Memory
from esceme.memory.scene import Pooling
from esceme.observation import Observation
from esceme.settings import Positive, Size, check_settings
from esceme.world.atlas import STOP


@dataclass(frozen=True, kw_only=True)
class NoMemoryConfig:
    """Settings of `NoMemory`, which has none."""


@dataclass(frozen=True, kw_only=True)
class NoVisionConfig:
    """Settings of `NoVision`, which has none."""


class Reader(nn.Module, ABC):
    """Base class of readers, which fuse memory into an observation before the agent receives it."""

    Config: ClassVar[type]
    """Class of the reader's settings, a frozen dataclass."""
    config: Any
    uses_memory: ClassVar[bool] = False
    needs_map: ClassVar[bool] = False
    """Whether only agents with `keeps_map` can use what this reader adds."""

    def __init__(self, config: Any = None) -> None:
        """Set `self.config` to `config`, or to `Config()` if `config` is None."""
        super().__init__()
        self.config = self.Config() if config is None else config

    @property
    def pooling(self) -> Pooling:
        """Pooling that the memory must use for this reader."""
        return "max"

    @abstractmethod
    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the observation that the agent receives."""


class NoMemory(Reader):
    """Reader without memory, for baselines: the observation stays unchanged."""

    Config = NoMemoryConfig

    def forward(self, observation: Observation, memory: Memory | None = None) -> Observation:
        """Return `observation` unchanged."""
        return observation


class NoVision(Reader):
    """Reader that replaces all image features by zeros, as a control. Only directions remain."""

    Config = NoVisionConfig

    def forward(self, observation: Observation, memory: Memory | None = None) -> Observation:
        """Return the observation with zeros as features of tokens and panorama."""
        zeros = torch.zeros_like(observation.raw_features)
        full = None if observation.full_observation is None else self(observation.full_observation)
        return replace(observation, features=zeros, raw_features=zeros, full_observation=full)


class MemoryReader(Reader):
    """Base class of readers that require a memory with features of size `config.width`."""

    uses_memory = True

    @property
    def pooling(self) -> Pooling:
        """Pooling that the memory must use, as set in `config.pooling`."""
        return self.config.pooling

    def require_memory(self, memory: Memory | None) -> Memory:
        """Return `memory`. Raise `ConfigError` if it is None."""
        if memory is None:
            raise ConfigError("this reader needs a memory; to hide its contents, pass a ZeroRecallMemory")
        return memory

    def check_width(self, features: Tensor, owner: str) -> None:
        """Raise `MemoryMismatch` if the last axis of `features` does not have size `config.width`."""
        if features.shape[-1] != self.config.width:
            raise MemoryMismatch(
                f"{type(self).__name__} expects features of width {self.config.width}, {owner} has "
                f"{features.shape[-1]}; set the reader's width to {features.shape[-1]}"
            )


@dataclass(frozen=True, kw_only=True)
class CandidateEnhancingConfig:
    """Settings of candidate enhancing. The defaults match the released weights; see docs/fidelity.md."""

    width: Size = 768
    """Size of input and output features."""
    hidden: Size | None = None
    """Hidden size of the two-layer MLP; None for `width`."""
    pooling: Pooling = "max"
    """Pooling over the views that lead to candidates, whose result is remembered (Eq. 1)."""
    order: Literal["feature-memory", "memory-feature"] = "feature-memory"
    """Order in which feature and memory are concatenated. Eq. 3 of the paper writes the memory first."""
    context: Literal["itself", "zero", "untouched"] = "itself"
    """What views without a candidate use as their memory: `itself` for their own feature, `zero` for zeros
    (Eq. 2). With `untouched`, these views do not pass through the MLP."""
    stop: Literal["fused", "zero"] = "fused"
    """Features of STOP: `fused` passes its zeros through the MLP, `zero` keeps zeros as in the paper."""
    norm: bool = True
    """Whether a LayerNorm is between the two linear layers. The paper does not mention one."""
    shortcut: Literal["none", "feature", "both"] = "none"
    """Input that is added to the MLP's output: `none` as in the paper, the feature, or feature plus memory
    (`both`). With an addition, the last layer is initialised to zero. An agent trained without memory then
    starts with unchanged inputs."""
    epsilon: Positive = 1e-12
    """LayerNorm epsilon."""
    initial_std: Positive = 0.02
    """Standard deviation of the initial weights."""

    def __post_init__(self) -> None:
        check_settings(self)


class CandidateEnhancing(MemoryReader):
    """ESceme's reader: replace the feature of every token by MLP([feature; memory]) (Eq. 3).

    The memory of a candidate is the pooled feature of its viewpoint, or zeros if that viewpoint was never
    visited. The memory has no dropout and receives no gradient.
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
        """Return the observation with features fused with the memory of the candidates."""
        recalled = self.require_memory(memory).recall_at(observation.neighbour)
        return observation.with_features(self.fuse(observation, recalled))

    def recall(self, observation: Observation, memory: Memory | None) -> Tensor:
        """Return the memory of every token, (B, N, D) (docs/spec.md C.4).

        The memory is zero for STOP, padding and unvisited candidates. The memory of a context view is its own
        feature, unless `config.context` is "zero".
        """
        recalled = self.require_memory(memory).recall_at(observation.neighbour)
        if self.config.context == "zero":
            return recalled
        return torch.where(observation.is_context_view[..., None], observation.raw_features, recalled)

    def fuse(self, observation: Observation, recalled: Tensor) -> Tensor:
        """Return features (B, N, D) fused with the memory of candidates in `recalled` (B, N, D).

        Candidates, context views and STOP pass the first layer separately, to avoid multiplying by zeros.
        """
        self.check_width(observation.features, "the observation")
        self.check_width(recalled, "the memory")
        is_candidate, is_context_view = observation.is_candidate, observation.is_context_view
        is_stop = observation.token_type == STOP
        groups = [self._first_layer_candidates(observation.features[is_candidate], recalled[is_candidate])]
        masks = [is_candidate]
        if self.config.context != "untouched":
            groups.append(self._first_layer_context(observation, is_context_view))
            masks.append(is_context_view)
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
            return torch.where(is_context_view[..., None], observation.features, fused)
        return fused

    def _first_layer_candidates(self, features: Tensor, recalled: Tensor) -> Tensor:
        """Return the first layer's output for T candidates, from features and memories (T, D): (T, hidden).

        Candidates without memory skip the half of the weights that multiplies the memory.
        """
        feature_weight, memory_weight = self._split_weight()
        hidden = functional.linear(features, feature_weight, self.first.bias)
        visited = recalled.any(-1).nonzero().flatten()
        if len(visited) == 0:
            return hidden
        return hidden.index_add(0, visited, functional.linear(recalled[visited], memory_weight).to(hidden))

    def _first_layer_context(self, observation: Observation, is_context_view: Tensor) -> Tensor:
        """Return the first layer's output for T context views, (T, hidden).

        If feature and memory are equal, one product with the sum of both weight halves suffices.
        """
        feature_weight, memory_weight = self._split_weight()
        features = observation.features[is_context_view]
        if self.config.context == "zero":
            return functional.linear(features, feature_weight, self.first.bias)
        if observation.features is observation.raw_features:
            return functional.linear(features, feature_weight + memory_weight, self.first.bias)
        hidden = functional.linear(features, feature_weight, self.first.bias)
        return hidden + functional.linear(observation.raw_features[is_context_view], memory_weight)

    def _split_weight(self) -> tuple[Tensor, Tensor]:
        """Return the halves of the first layer's weight for features and for memories, (hidden, D) each."""
        front, back = torch.split(self.first.weight, self.config.width, dim=1)
        return (front, back) if self.config.order == "feature-memory" else (back, front)
