"""Scripted agents without parameters, for lower and upper bounds of metrics: stop, random, shortest path."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import (
    Agent,
    BaseAgentConfig,
    Decision,
    PrivilegedInfo,
    State,
    TokenBatch,
    choice_mask,
    num_choices,
)
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.settings import Seed, check_settings
from esceme.world.atlas import Atlas

NEVER = -1e4
"""Logit of an action that is possible but never taken. Its probability is exactly 0 in single precision."""


@dataclass(frozen=True, kw_only=True)
class StopConfig(BaseAgentConfig):
    """Settings of `StopAtOnce`, which has none."""


class StopAtOnce(Agent[State]):
    """Agent that stops at the first step."""

    Config = StopConfig
    is_scripted = True

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> State:
        """Return an empty state."""
        return State()

    def decide(self, state: State, observation: Observation) -> Decision:
        """Return the highest score for STOP."""
        is_stop = observation.neighbour[:, : num_choices(observation)] < 0
        return _decision(observation, torch.where(is_stop, 0.0, NEVER))

    def advance(self, state: State, observation: Observation, actions: Tensor) -> State:
        """Return `state` unchanged."""
        return state


@dataclass(frozen=True, kw_only=True)
class RandomConfig(BaseAgentConfig):
    """Settings of the random agent."""

    seed: Seed = 0
    """Seed of the random choices."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class RandomState(State):
    """State of B random agents between two steps."""

    key: Tensor
    """(B,) int64: hash of seed, instruction and start viewpoint."""
    step: Tensor
    """(B,) int64: step number."""


class RandomAgent(Agent[RandomState]):
    """Agent that chooses uniformly among candidates and STOP.

    The logits are Gumbel noise, so that their argmax is a uniform sample. The noise is a hash of seed,
    instruction, start, step and candidate viewpoint. Trajectories therefore do not depend on the batch.
    """

    Config = RandomConfig
    is_scripted = True

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> RandomState:
        """Return the initial state: a hash of seed, start and instruction."""
        ids, valid = _as_uint64(instructions.ids), instructions.valid.cpu().numpy()
        seed = np.full(len(ids), self.config.seed, dtype=np.uint64)
        key = _hash(_hash(np.zeros_like(seed), seed), _as_uint64(start))
        for column in range(ids.shape[1]):
            key = np.where(valid[:, column], _hash(key, ids[:, column]), key)
        return RandomState(torch.from_numpy(key.view(np.int64)).to(start.device), torch.zeros_like(start))

    def decide(self, state: RandomState, observation: Observation) -> Decision:
        """Return Gumbel noise as scores of candidates and STOP."""
        neighbour = _as_uint64(observation.neighbour[:, : num_choices(observation)])
        bits = _hash(_hash(_as_uint64(state.key), _as_uint64(state.step))[:, None], neighbour)  # (B, C)
        uniform = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52
        return _decision(observation, torch.from_numpy(-np.log(-np.log(uniform))))

    def advance(self, state: RandomState, observation: Observation, actions: Tensor) -> RandomState:
        """Return the state with the step number incremented."""
        return replace(state, step=state.step + 1)


@dataclass(frozen=True, kw_only=True)
class ShortestPathConfig(BaseAgentConfig):
    """Settings of `ShortestPath`, which has none."""


@dataclass(frozen=True)
class ShortestPathState(State):
    """Goals of B shortest-path agents."""

    goals: Tensor
    """(B, G) int64: viewpoints at which the agent may stop."""
    valid: Tensor
    """(B, G) bool: False for padding."""
    atlas: Atlas


class ShortestPath(Agent[ShortestPathState]):
    """Agent that follows a shortest path to the nearest goal and stops there."""

    Config = ShortestPathConfig
    needs_goals = True
    is_scripted = True

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> ShortestPathState:
        """Return the state with the goals. Raise `ConfigError` if `privileged` is None, as on test splits."""
        if privileged is None:
            raise ConfigError(
                "the shortest-path agent expects goals, and none came: pass PrivilegedInfo(atlas, goals) to "
                "`begin`, or choose another agent for splits without goals (test splits)"
            )
        goals = torch.tensor(privileged.goals, device=start.device)
        return ShortestPathState(goals, torch.ones_like(goals, dtype=torch.bool), privileged.atlas)

    def decide(self, state: ShortestPathState, observation: Observation) -> Decision:
        """Return the negated detour of each action in metres as its score; the best action has score 0."""
        goals = torch.where(state.valid, state.goals, state.goals[:, :1]).cpu().numpy()  # (B, G)
        here = observation.viewpoint.cpu().numpy()[:, None]
        neighbour = observation.neighbour[:, : num_choices(observation)].cpu().numpy()
        is_stop = neighbour < 0
        reached = np.where(is_stop, here, neighbour)  # (B, C)
        remaining = state.atlas.distance(reached[..., None], goals[:, None]).min(2)
        length = np.minimum(state.atlas.distance(here, reached) + remaining, -2 * NEVER)
        length[is_stop & (remaining > 0)] = -NEVER
        return _decision(observation, torch.from_numpy(length.min(1, keepdims=True) - length))

    def advance(
        self, state: ShortestPathState, observation: Observation, actions: Tensor
    ) -> ShortestPathState:
        """Return `state` unchanged."""
        return state


def _decision(observation: Observation, logits: Tensor) -> Decision:
    """Return a decision with `logits` (B, C), set to -inf for actions that do not exist."""
    is_impossible = ~choice_mask(observation, logits.shape[1])
    return Decision(logits.to(observation.angles).masked_fill(is_impossible, -torch.inf))


def _as_uint64(numbers: Tensor) -> NDArray[np.uint64]:
    return numbers.cpu().to(torch.int64).numpy().view(np.uint64)


def _hash(key: NDArray[np.uint64], number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return hashes of `key` and `number`, computed with the finaliser of SplitMix64."""
    key = (key ^ number) + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
