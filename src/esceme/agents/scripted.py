"""Agents that learn nothing: one stops at once, one wanders, one knows the way. They frame every result."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esceme.agents.base import Agent, Decision, PrivilegedInfo, State, TokenBatch, choice_mask, num_choices
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.world.atlas import Atlas

NEVER = -1e4
"""The score of what can be done but never is: a probability of exactly 0 in single precision."""


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    """Nothing to set."""


class StopAtOnce(Agent[State]):
    """Stays where it is."""

    Config = StopConfig
    scripted = True

    def __init__(self, config: StopConfig | None = None) -> None:
        """Build an agent without parameters."""
        super().__init__()
        self.config = config or StopConfig()

    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> State:
        """Nothing to carry."""
        return State()

    def decide(self, state: State, observation: Observation) -> Decision:
        """STOP."""
        stays = observation.neighbour[:, : num_choices(observation)] < 0
        return _decision(observation, torch.where(stays, 0.0, NEVER))

    def advance(self, state: State, observation: Observation, chosen: Tensor) -> State:
        """Nothing changes."""
        return state


@dataclass(frozen=True, kw_only=True)
class RandomConfig:
    """How a wanderer is seeded."""

    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed: expected 0 or more, found {self.seed}")


@dataclass(frozen=True)
class RandomState(State):
    """What makes one random walk differ from another."""

    key: Tensor
    """(B,) int64: the seed, the instruction and the start in one number."""
    step: Tensor
    """(B,) int64"""


class RandomAgent(Agent[RandomState]):
    """Draws one of the candidates and STOP, each as likely as the others.

    A score is Gumbel noise that depends on the seed, the instruction, the start, the step and where a
    candidate leads, and on nothing else: so the best choice is a fair draw, and the same episode is walked
    the same way in any batch.
    """

    Config = RandomConfig
    scripted = True

    def __init__(self, config: RandomConfig | None = None) -> None:
        """Build an agent without parameters."""
        super().__init__()
        self.config = config or RandomConfig()

    def begin(
        self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> RandomState:
        """Tell the walks apart."""
        ids, valid = _array(words.ids), words.valid.cpu().numpy()
        seed = np.full(len(ids), self.config.seed, dtype=np.uint64)
        key = _mixed(_mixed(np.zeros_like(seed), seed), _array(start))
        for column in range(ids.shape[1]):
            key = np.where(valid[:, column], _mixed(key, ids[:, column]), key)
        return RandomState(torch.from_numpy(key.view(np.int64)).to(start.device), torch.zeros_like(start))

    def decide(self, state: RandomState, observation: Observation) -> Decision:
        """Gumbel noise for each choice."""
        neighbour = _array(observation.neighbour[:, : num_choices(observation)])
        drawn = _mixed(_mixed(_array(state.key), _array(state.step))[:, None], neighbour)  # (B, C)
        uniform = ((drawn >> np.uint64(12)).astype(np.float64) + 0.5) / 2**52
        return _decision(observation, torch.from_numpy(-np.log(-np.log(uniform))))

    def advance(self, state: RandomState, observation: Observation, chosen: Tensor) -> RandomState:
        """Draw anew in the next step."""
        return replace(state, step=state.step + 1)


@dataclass(frozen=True, kw_only=True)
class ShortestPathConfig:
    """Nothing to set."""


@dataclass(frozen=True)
class ShortestPathState(State):
    """Where to go."""

    goals: Tensor
    """(B, G) int64"""
    known: Tensor
    """(B, G) bool: False where `goals` is padding."""
    atlas: Atlas


class ShortestPath(Agent[ShortestPathState]):
    """Knows the way: walks a shortest path to the nearest goal and stops there."""

    Config = ShortestPathConfig
    needs_goals = True
    scripted = True

    def __init__(self, config: ShortestPathConfig | None = None) -> None:
        """Build an agent without parameters."""
        super().__init__()
        self.config = config or ShortestPathConfig()

    def begin(
        self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> ShortestPathState:
        """Look up the goals; raises `ConfigError` where they are withheld."""
        if privileged is None:
            raise ConfigError(
                "the shortest-path agent expects to be told the goals, and none came: give `begin` a "
                "Privileged(atlas, goals), or choose another agent where goals are withheld (test splits)"
            )
        goals = torch.tensor(privileged.goals, device=start.device)
        return ShortestPathState(goals, torch.ones_like(goals, dtype=torch.bool), privileged.atlas)

    def decide(self, state: ShortestPathState, observation: Observation) -> Decision:
        """How many metres each choice loses to the best one, as a negative number."""
        goals = torch.where(state.known, state.goals, state.goals[:, :1]).cpu().numpy()  # (B, G)
        here = observation.viewpoint.cpu().numpy()[:, None]
        there = observation.neighbour[:, : num_choices(observation)].cpu().numpy()
        ahead = np.where(there < 0, here, there)  # (B, C): who stops goes nowhere
        left = state.atlas.distance(ahead[..., None], goals[:, None]).min(2)
        way = np.minimum(state.atlas.distance(here, ahead) + left, -2 * NEVER)
        way[(there < 0) & (left > 0)] = -NEVER
        return _decision(observation, torch.from_numpy(way.min(1, keepdims=True) - way))

    def advance(
        self, state: ShortestPathState, observation: Observation, chosen: Tensor
    ) -> ShortestPathState:
        """The goals stay."""
        return state


def _decision(observation: Observation, scores: Tensor) -> Decision:
    """Scores (B, C) in the observation's precision and place, -inf beyond STOP."""
    impossible = ~choice_mask(observation, scores.shape[1])
    return Decision(scores.to(observation.angles).masked_fill(impossible, -torch.inf))


def _array(numbers: Tensor) -> NDArray[np.uint64]:
    """Whole numbers as the bits they are."""
    return numbers.cpu().to(torch.int64).numpy().view(np.uint64)


def _mixed(key: NDArray[np.uint64], number: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A new key for each pair: as good as random, and always the same (the finish of SplitMix64)."""
    key = (key ^ number) + np.uint64(0x9E3779B97F4A7C15)
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return key ^ (key >> np.uint64(31))
