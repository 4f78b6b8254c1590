"""Base class of agents: `begin` reads an instruction, `decide` scores actions, `advance` follows one.

Agents never import memory. The observation that reaches them already holds what the reader recalled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents.grounding import Grounding
from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.world.atlas import CONTEXT, Atlas


class TokenBatch(NamedTuple):
    """A padded batch of instructions as token ids."""

    ids: Tensor
    """(B, L) int64"""
    valid: Tensor
    """(B, L) bool: False for padding."""


class PrivilegedInfo(NamedTuple):
    """Ground truth that only scripted agents may use."""

    atlas: Atlas
    goals: NDArray[np.int64]
    """(B, G): viewpoints at which stopping counts as success, padded by repeating the last viewpoint."""


class BacktrackRoutes(NamedTuple):
    """Actions beyond candidates and STOP: return to a node of the trajectory along known edges.

    A node is one visit of a viewpoint. An agent has at most S nodes; several may be at the same viewpoint.
    """

    first_action: int
    """Action that leads to node 0; action `first_action + s` leads to node s."""
    viewpoints: Tensor
    """(B, S) int64: viewpoint of each node, -1 for none."""
    views: Tensor
    """(B, S) int64: view that was faced at the node and is faced again on return."""
    current_edge_rank: Tensor
    """(B, S) int64: search rank of the edge from the agent's viewpoint to each node, from 1; 0: no edge."""
    edge_rank: Tensor
    """(B, S, S) int64: search rank of the edge from each node to each node, from 1; 0: no edge."""

    def shortest_path(self, row: int, action: int) -> list[tuple[int, int]]:
        """Return the path with the fewest edges to the node of an action, as (viewpoint, view) poses.

        `row` is the agent's row in the batch. The path ends with the node; the view of all poses before it
        is -1. Among equally short paths the edge ranks decide. Raises `WorldError` if no known path exists.
        """
        viewpoints = self.viewpoints[row].tolist()
        target = viewpoints[action - self.first_action]
        previous: dict[int, int | None] = {}
        queue: deque[int] = deque()

        def expand(ranks: list[int], node: int | None) -> None:
            found = {viewpoints[earlier] for earlier in previous}
            for _, neighbour in sorted((rank, other) for other, rank in enumerate(ranks) if rank):
                if viewpoints[neighbour] >= 0 and viewpoints[neighbour] not in found:
                    found.add(viewpoints[neighbour])
                    previous[neighbour] = node
                    queue.append(neighbour)

        expand(self.current_edge_rank[row].tolist(), None)
        while queue:
            node = queue.popleft()
            if viewpoints[node] == target:
                path = [(target, int(self.views[row, action - self.first_action]))]
                while (node_before := previous[node]) is not None:
                    node = node_before
                    path.append((viewpoints[node], -1))
                return path[::-1]
            expand(self.edge_rank[row, node].tolist(), node)
        raise WorldError(f"no known path leads back to viewpoint {target}")


class Decision(NamedTuple):
    """Output of `Agent.decide`."""

    logits: Tensor
    """(B, C): scores of the candidates in order, then STOP; -inf for actions that do not exist."""
    value: Tensor | None = None
    """(B,): expected return, if the agent has a critic."""
    routes: BacktrackRoutes | None = None
    """Meaning of the actions beyond STOP, if there are any."""
    state: State | None = None
    """Updated state, for agents whose `decide` changes it; pass it to `advance` instead of the old state."""
    goal_logits: Tensor | None = None
    """(B, G): further scores for the agent's own `auxiliary_loss`."""
    auxiliary_loss: Tensor | None = None
    """(B,): set by training from `Agent.auxiliary_loss`."""


class StepIndex(NamedTuple):
    """Trajectory and step number of each of R observations; the steps of a trajectory are 0, 1, … ."""

    episode: Tensor
    """(R,) int64: index of the trajectory in the batch."""
    step: Tensor
    """(R,) int64: step number within the trajectory."""


class InputLimits(NamedTuple):
    """Input sizes that a network accepts; None: any."""

    vocabulary: int | None = None
    """Number of token ids."""
    feature_width: int | None = None
    max_tokens: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True)
class State:
    """Agent state between steps.

    Tensors are batch-first; other axes are zero-padded. Other fields belong to the whole batch.
    """

    def select(self, rows: Tensor) -> Self:
        """Select the states of some agents by row index."""
        return replace(self, **{name: tensor[rows] for name, tensor in self._tensors().items()})

    def concat(self, other: Self) -> Self:
        """Concatenate two batches of agents, padding their tensors to common sizes."""
        tensors, others = self._tensors(), other._tensors()
        return replace(self, **{name: _concat(tensors[name], others[name]) for name in tensors})

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


S = TypeVar("S", bound=State)


@dataclass(frozen=True, kw_only=True)
class BaseAgentConfig:
    """Base class of agent settings; used as it is by agents without settings."""

    @property
    def limits(self) -> InputLimits:
        """Input sizes that the configured network accepts; by default any."""
        return InputLimits()


class Agent(nn.Module, ABC, Generic[S]):
    """Base class of agents: `begin`, `decide` and `advance`, and optional members with defaults.

    Decisions are deterministic given the seed, padding has no effect, and permuting candidates permutes their
    logits; `tests/contracts` checks every agent.
    """

    Config: ClassVar[type] = BaseAgentConfig
    """Frozen dataclass of settings, a subclass of `BaseAgentConfig`."""
    config: Any
    needs_goals: ClassVar[bool] = False
    """Whether `begin` requires `PrivilegedInfo`."""
    is_scripted: ClassVar[bool] = False
    """Whether the agent has no parameters; evaluation then needs only its name."""
    supports_decide_all: ClassVar[bool] = False
    """Whether `decide_all` is implemented."""

    def __init__(self, config: Any = None) -> None:
        """Keep `config`, by default `Config()`."""
        super().__init__()
        self.config = self.Config() if config is None else config

    @abstractmethod
    def begin(self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> S:
        """Return the initial state for B instructions at viewpoints `start` (B,)."""

    @abstractmethod
    def decide(self, state: S, observation: Observation) -> Decision:
        """Score the possible actions of B agents, given their states and observations."""

    @abstractmethod
    def advance(self, state: S, observation: Observation, actions: Tensor) -> S:
        """Return the state after `actions` (B,) at `observation`."""

    def decide_all(self, state: S, observation: Observation, actions: Tensor, index: StepIndex) -> Decision:
        """Compute the decisions of all R steps of known trajectories in one pass, logits (R, C).

        `observation` and `actions` have one row per step; `state` is the initial one, with a row per
        trajectory. Only agents whose history is not recurrent can implement it.
        """
        raise NotImplementedError(f"{type(self).__name__} decides step by step")

    def auxiliary_loss(self, decision: Decision, goals: Tensor) -> Tensor | None:
        """Return an additional loss per decision, (B,), given goal positions (B, 3), or None."""
        return None

    @property
    def uses_context_views(self) -> bool:
        """Whether views without a candidate become tokens; otherwise they are removed from observations."""
        return True

    @property
    def no_weight_decay(self) -> list[nn.Parameter]:
        """Parameters without weight decay."""
        return []

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critic, which is optimised and clipped on its own."""
        return []

    @property
    def grounding_head(self) -> Grounding | None:
        """Head that can be initialised from word vectors, if there is one."""
        return None


def num_choices(observation: Observation) -> int:
    """Return the number of actions C of a batch: its largest number of candidates, plus one for STOP."""
    return int(observation.num_candidates.max()) + 1


def choice_mask(observation: Observation, choices: int) -> Tensor:
    """Return a mask (B, C) that is True for the candidates and STOP of each agent, False for padding."""
    return observation.token_type[:, :choices] != CONTEXT


def _concat(above: Tensor, below: Tensor) -> Tensor:
    """Concatenate along axis 0 after padding all other axes with zeros to the larger size."""
    if not len(above):
        return below
    if above.shape[1:] != below.shape[1:]:
        sizes = [max(pair) for pair in zip(above.shape[1:], below.shape[1:], strict=True)]
        above, below = _pad(above, sizes), _pad(below, sizes)
    return torch.cat([above, below])


def _pad(tensor: Tensor, sizes: list[int]) -> Tensor:
    missing = [size - current for size, current in zip(sizes, tensor.shape[1:], strict=True)]
    return functional.pad(tensor, [n for width in reversed(missing) for n in (0, width)])
