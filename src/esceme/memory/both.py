"""Readers one after the other: each is given the observation that the one before it made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from esceme.memory.bank import Memory
from esceme.memory.graph_encoding import GraphEncoding, GraphEncodingConfig
from esceme.memory.reader import CandidateEnhancing, CandidateEnhancingConfig, Reader
from esceme.observation import Observation


class SequentialReaders(Reader):
    """Several readers of one memory; a subclass says which, and joins their settings by inheriting them."""

    parts: ClassVar[tuple[type[Any], ...]]
    """Readers in the order in which they read, each made with the joint settings."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.config = config or self.Config()
        self.readers = nn.ModuleList(part(self.config) for part in self.parts)

    def forward(self, observation: Observation, memory: Memory | None) -> Observation:
        """The observation as all readers together make it."""
        for reader in self.readers:
            observation = reader(observation, memory)
        return observation


@dataclass(frozen=True, kw_only=True)
class BothConfig(CandidateEnhancingConfig, GraphEncodingConfig):
    """The settings of both; those of the same name (width, hidden, pooling, initial_std) are shared.

    One memory has one pooling: by default that of candidate enhancing.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` where either reader would."""
        CandidateEnhancingConfig.__post_init__(self)
        GraphEncodingConfig.__post_init__(self)


class Both(SequentialReaders):
    """Candidates know what was seen behind them, and one more token the whole graph."""

    Config = BothConfig
    uses_memory = True
    parts = (CandidateEnhancing, GraphEncoding)
