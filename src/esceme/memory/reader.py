"""How a memory reaches an agent: a reader takes an observation and gives back an observation."""

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
from esceme.world.atlas import STOP


class Reader(nn.Module, ABC):
    """Combines what is seen with what is remembered, before any agent looks at it."""

    Config: ClassVar[type]
    """A frozen dataclass of its settings; the constructor takes one and keeps it as `config`."""
    config: Any
    uses_memory: ClassVar[bool]

    @abstractmethod
    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """The observation as an agent shall see it."""


@dataclass(frozen=True, kw_only=True)
class NoMemoryConfig:
    """Nothing to set."""


class NoMemory(Reader):
    """The baseline: an agent sees what is there."""

    Config: ClassVar[type[NoMemoryConfig]] = NoMemoryConfig
    uses_memory = False

    def __init__(self, config: NoMemoryConfig | None = None) -> None:
        """Have no parameters."""
        super().__init__()
        self.config = config or self.Config()

    def forward(self, observation: Observation, memory: Memory | None = None) -> Observation:
        """The observation itself."""
        return observation


@dataclass(frozen=True, kw_only=True)
class NoVisionConfig(NoMemoryConfig):
    """No settings."""


class NoVision(NoMemory):
    """A control: an agent that sees no pictures, only in which directions it can go."""

    Config = NoVisionConfig

    def forward(self, observation: Observation, memory: Memory | None = None) -> Observation:
        """The observation without its features, neither those of now nor those that a history keeps."""
        nothing = torch.zeros_like(observation.plain)
        whole = None if observation.whole is None else self(observation.whole)
        return replace(observation, features=nothing, plain=nothing, whole=whole)


@dataclass(frozen=True, kw_only=True)
class CandidateEnhancingConfig:
    """Defaults are those of the released weights; what the paper says otherwise is the other choice."""

    width: int = 768
    """Of the features, and of what comes out."""
    hidden: int | None = None
    """Width between the two layers; None: the width of the features."""
    pooling: Pooling = "max"
    """How what is seen at a place becomes its memory (Eq. 1)."""
    order: Literal["feature-memory", "memory-feature"] = "feature-memory"
    """What comes first in the input; the paper's Eq. 3 writes the memory first."""
    context: Literal["itself", "zero", "untouched"] = "itself"
    """The memory of views that lead nowhere: their own feature, or nothing (Eq. 2); or they stay as seen."""
    stop: Literal["fused", "zero"] = "fused"
    """STOP goes through the layers as zeros, or stays zero, as the paper has it."""
    norm: bool = True
    """Whether a LayerNorm stands between the layers; the paper mentions none."""
    shortcut: Literal["none", "feature", "both"] = "none"
    """What the layers' outcome is added to: nothing, as in the paper, so that an agent has to learn to see
    anew; what is seen; or the sum of what is seen and remembered. In the last two it begins as zeros: an
    agent that was trained without a memory begins where it was."""
    epsilon: float = 1e-12
    initial_std: float = 0.02

    def __post_init__(self) -> None:
        """Raise `ConfigError` where a value is out of range."""
        choices = {
            "pooling": ("max", "mean"),
            "order": ("feature-memory", "memory-feature"),
            "context": ("itself", "zero", "untouched"),
            "stop": ("fused", "zero"),
            "shortcut": ("none", "feature", "both"),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} '{value}': expected one of {', '.join(allowed)}")
        if self.width < 1 or (self.hidden is not None and self.hidden < 1):
            raise ConfigError(f"width {self.width}, hidden {self.hidden}: expected 1 or more")


class CandidateEnhancing(Reader):
    """ESceme's reader: every token becomes MLP([feature; memory]) (Eq. 3, spec C.5).

    A candidate's memory is what was seen there, zeros where nobody has been; it is never dropped, and no
    gradient leaves the layers through it.
    """

    Config = CandidateEnhancingConfig
    uses_memory = True

    def __init__(self, config: CandidateEnhancingConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or CandidateEnhancingConfig()
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
        """The observation, its features fused with what `memory` holds of the candidates."""
        return observation.with_features(self.fuse(observation, self._asked(observation, memory)))

    def recall(self, observation: Observation, memory: Memory | None) -> Tensor:
        """The memory of every token, (B, N, D) (spec C.4).

        Zeros for STOP, padding and candidates nobody has been to; a context view remembers itself unless the
        paper's zeros are asked for.
        """
        recalled = self._asked(observation, memory)
        if self.config.context == "zero":
            return recalled
        return torch.where(observation.is_context[..., None], observation.plain, recalled)

    def fuse(self, observation: Observation, recalled: Tensor) -> Tensor:
        """Features fused with the candidates' memories, `recalled` (B, N, D) -> (B, N, D); padding is zero.

        Only candidates are looked up in `recalled`: what other tokens remember follows from the
        configuration. Nothing is multiplied by zeros: tokens go through the first layer in three groups.
        """
        self._require_width(observation.features, "the observation has")
        self._require_width(recalled, "the memory holds")
        candidates, context = observation.is_candidate, observation.is_context
        stop = observation.kind == STOP
        groups = [self._candidates(observation.features[candidates], recalled[candidates])]
        places = [candidates]
        if self.config.context != "untouched":
            groups.append(self._context(observation, context))
            places.append(context)
        if self.config.stop == "fused":
            groups.append(self.first.bias.to(groups[0]).expand(int(stop.sum()), -1))
            places.append(stop)
        hidden = torch.cat(groups)  # (T, hidden)
        out: Tensor = self.second(self.norm(functional.relu(hidden)))  # (T, D)
        at = torch.cat([place.flatten().nonzero().flatten() for place in places])
        fused = out.new_zeros(observation.kind.numel(), self.config.width).index_copy_(0, at, out)
        fused = fused.view(*observation.kind.shape, -1)
        if self.config.shortcut != "none":
            known = recalled * candidates[..., None] if self.config.shortcut == "both" else 0.0
            return observation.features + known + fused
        if self.config.context == "untouched":
            return torch.where(context[..., None], observation.features, fused)
        return fused

    def _candidates(self, features: Tensor, recalled: Tensor) -> Tensor:
        """The first layer for candidates, (T, D) each -> (T, hidden)."""
        for_feature, for_memory = self._halves()
        hidden = functional.linear(features, for_feature, self.first.bias)
        known = recalled.any(-1).nonzero().flatten()
        if len(known) == 0:
            return hidden
        return hidden.index_add(0, known, functional.linear(recalled[known], for_memory).to(hidden))

    def _context(self, observation: Observation, context: Tensor) -> Tensor:
        """The first layer for views that lead nowhere: [f; f] is f through the sum of both halves."""
        for_feature, for_memory = self._halves()
        features = observation.features[context]
        if self.config.context == "zero":
            return functional.linear(features, for_feature, self.first.bias)
        if observation.features is observation.plain:
            return functional.linear(features, for_feature + for_memory, self.first.bias)
        hidden = functional.linear(features, for_feature, self.first.bias)
        return hidden + functional.linear(observation.plain[context], for_memory)

    def _halves(self) -> tuple[Tensor, Tensor]:
        """The first layer's weights for features and for memories, (hidden, D) each."""
        front, back = torch.split(self.first.weight, self.config.width, dim=1)
        return (front, back) if self.config.order == "feature-memory" else (back, front)

    def _asked(self, observation: Observation, memory: Memory | None) -> Tensor:
        if memory is None:
            raise ConfigError("this reader needs a memory; to see it without one, give it a Masked memory")
        return memory.recall_at(observation.neighbour)

    def _require_width(self, features: Tensor, who: str) -> None:
        if features.shape[-1] != self.config.width:
            raise MemoryMismatch(
                f"this reader fuses features of width {self.config.width}, {who} {features.shape[-1]}; "
                f"make it with width={features.shape[-1]}"
            )
