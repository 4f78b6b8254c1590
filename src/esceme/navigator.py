"""`Navigator`: an agent and its memory reader, which are trained and saved together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from esceme.agents.base import Agent, Decision, PrivilegedInfo, State, TokenBatch
from esceme.dropout import dropout
from esceme.errors import ConfigError
from esceme.memory.bank import Memory
from esceme.memory.reader import Reader
from esceme.observation import Observation


class Navigator(nn.Module):
    """An agent and a reader of scene memory in one module.

    A step consists of `observe`, `decide` and `advance`. The caller writes to the memory.
    """

    def __init__(self, agent: Agent[Any], reader: Reader, *, feature_dropout: float = 0.4) -> None:
        """Combine an agent and a reader. `feature_dropout` is the training dropout of image features."""
        super().__init__()
        if not 0 <= feature_dropout < 1:
            raise ConfigError(f"feature_dropout: expected a share from 0 to below 1, found {feature_dropout}")
        if reader.needs_map and not agent.keeps_map:
            raise ConfigError(
                f"{type(reader).__name__} gives agents a remembered map, and {type(agent).__name__} keeps "
                "none; expected an agent that keeps a map"
            )
        self.agent = agent
        self.reader = reader
        self.feature_dropout = feature_dropout

    @property
    def device(self) -> torch.device:
        """Device of the parameters; the CPU for an agent without parameters."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> State:
        """Return the initial state for B instructions and start viewpoints `start` (B,)."""
        return self.agent.begin(instructions, start, privileged)

    def observe(self, observation: Observation, memory: Memory | None) -> Observation:
        """Return the observation after feature dropout (in training only) and after the memory reader.

        Dropout applies to observed features, never to remembered features. With feature f and dropout d, the
        reader receives [d(f); f] for a context view, and [d(f); m] for a candidate with memory m
        (docs/spec.md C.5).
        """
        if not self.agent.uses_context_views:
            observation = observation.without_context_views()
        if self.training and self.feature_dropout:
            features = dropout(observation.raw_features, self.feature_dropout)
            observation = replace(observation, features=features, feature_dropout=self.feature_dropout)
        return self.reader(observation, memory)

    def decide(self, state: State, observation: Observation) -> Decision:
        """Return the scores of the possible actions of B agents; `observation` is an output of `observe`."""
        return self.agent.decide(state, observation)

    def advance(self, state: State, observation: Observation, actions: Tensor) -> State:
        """Return the state after the agents took `actions` (B,) at `observation`."""
        return self.agent.advance(state, observation, actions)

    def final_paths(self, state: State) -> list[list[int]] | None:
        """Return the viewpoints through which each agent goes after its episode; see `Agent.final_paths`."""
        return self.agent.final_paths(state)

    def decision_details(self, row: int) -> dict[str, Any]:
        """Return JSON values that describe the latest decision of the agent with batch index `row`.

        Traces of evaluations store them. The default is none.
        """
        return {}
