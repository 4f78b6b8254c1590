"""The trained whole: an agent, how it reads its memory, and what is dropped from its sight in training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents.base import Agent, Decision, PrivilegedInfo, State, TokenBatch
from esceme.errors import ConfigError
from esceme.memory.bank import Memory
from esceme.memory.reader import Reader
from esceme.observation import Observation


class Navigator(nn.Module):
    """An agent and a reader of scene memory, used as one.

    A step is: `see` what is there, with what is remembered of it; `decide`; `advance`. Remembering is left to
    whoever owns the memory.
    """

    def __init__(self, agent: Agent[Any], reader: Reader, *, feature_dropout: float = 0.4) -> None:
        """Join the two; in training, this share of every picture's features is dropped before reading."""
        super().__init__()
        if not 0 <= feature_dropout < 1:
            raise ConfigError(f"feature_dropout: expected a share from 0 to below 1, found {feature_dropout}")
        self.agent = agent
        self.reader = reader
        self.feature_dropout = feature_dropout

    @property
    def device(self) -> torch.device:
        """Where the parameters are; the processor for an agent that has none."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> State:
        """The state of agents that were given `words` and stand at viewpoints `start` (B,)."""
        return self.agent.begin(words, start, privileged)

    def see(self, observation: Observation, memory: Memory | None) -> Observation:
        """What is seen, enhanced by what is remembered; in training some features are dropped first.

        Features are dropped from what the agent sees, never from what is remembered: the fusion input of a
        context view is [drop(f); f], that of a candidate [drop(f); m] (spec C.5).
        """
        if not self.agent.looks_around:
            observation = observation.choices()
        if self.training and self.feature_dropout:
            dropped = functional.dropout(observation.plain, self.feature_dropout)
            observation = replace(observation, features=dropped, dropout=self.feature_dropout)
        return self.reader(observation, memory)

    def decide(self, state: State, seen: Observation) -> Decision:
        """Scores over what can be done next."""
        return self.agent.decide(state, seen)

    def advance(self, state: State, seen: Observation, chosen: Tensor) -> State:
        """The state after choosing `chosen` (B,)."""
        return self.agent.advance(state, seen, chosen)
