"""Base class of agents: `begin` reads an instruction, `decide` scores actions, `advance` takes an action.

Agents never import memory. The features that a memory adds are already part of the observation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

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
    """A batch of B instructions as token ids, padded to the length L of the longest instruction."""

    ids: Tensor
    """(B, L) int64: token ids."""
    valid: Tensor
    """(B, L) bool: True for tokens of the instruction, False for padding."""


class PrivilegedInfo(NamedTuple):
    """Ground truth that only scripted agents may use."""

    atlas: Atlas
    goals: NDArray[np.int64]
    """(B, G) int64: viewpoints at which stopping counts as success. Padding repeats a viewpoint."""


KEEP_VIEW, FACE_FORWARD = -1, -2
"""Views of poses on a route: the view faced before the move, or the view that leads to this pose."""


class Routes(Protocol):
    """Actions that follow candidates and STOP: each leads to a viewpoint along edges that the agent knows."""

    @property
    def first_action(self) -> int:
        """Index of the first of these actions."""

    @property
    def viewpoints(self) -> Tensor:
        """(B, S) int64: viewpoint to which each action leads; -1 if the action does not exist."""

    def shortest_path(self, row: int, action: int) -> list[tuple[int, int]]:
        """Return the poses (viewpoint, view) to which `action` of the agent in `row` leads, in order.

        A view is 0 to 35, `KEEP_VIEW` or `FACE_FORWARD`.
        """


class BacktrackRoutes(NamedTuple):
    """Backtracking actions, which follow candidates and STOP: each returns to a node of the trajectory.

    A node is one visit to a viewpoint. A batch of B agents has up to S nodes per agent. Several nodes may be
    at the same viewpoint. A return follows edges that the agent has seen.
    """

    first_action: int
    """Index of the action that leads to node 0. Action `first_action + s` leads to node s."""
    viewpoints: Tensor
    """(B, S) int64: viewpoint of each node; -1 for a node to which the agent cannot return."""
    views: Tensor
    """(B, S) int64: view (0 to 35) that the agent faced at the node and faces again on return."""
    current_edge_rank: Tensor
    """(B, S) int64: rank of the edge from the agent's viewpoint to each node; 0 means that there is no edge.
    The breadth-first search in `shortest_path` tries edges in ascending rank, starting at 1."""
    edge_rank: Tensor
    """(B, S, S) int64: rank of the edge from node (axis 1) to node (axis 2), as in `current_edge_rank`."""

    def shortest_path(self, row: int, action: int) -> list[tuple[int, int]]:
        """Return the shortest path of a backtracking `action`, in edges, as (viewpoint, view) poses.

        `row` is the agent's index in the batch. The last pose is the node (earlier visit) to which the agent
        returns. All earlier poses have view `KEEP_VIEW`. Among equally short paths, the edge ranks decide.
        Raise `WorldError` if there is no known path.
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
                    path.append((viewpoints[node], KEEP_VIEW))
                return path[::-1]
            expand(self.edge_rank[row, node].tolist(), node)
        raise WorldError(f"no known path leads back to viewpoint {target}")


class Decision(NamedTuple):
    """Scores of the possible actions of B agents, as returned by `Agent.decide`."""

    logits: Tensor
    """(B, C): score of each action: the candidates in order, then STOP, then the actions of `routes` if it is
    set. The score of an action that does not exist is -inf."""
    value: Tensor | None = None
    """(B,): expected return in the sense of reinforcement learning; None if the agent has no critic."""
    routes: Routes | None = None
    """Actions beyond candidates and STOP, such as backtracking; None if there are none."""
    state: State | None = None
    """Updated agent state, for agents whose `decide` changes the state; otherwise None. If set, pass this
    state to `advance` instead of the state that `decide` received."""
    goal_logits: Tensor | None = None
    """(B, G): scores of G possible goal positions, which only the agent's `auxiliary_loss` reads."""
    recomputed: Tensor | None = None
    """(B,) bool: whether the scores were computed again in full precision; None without low precision."""
    auxiliary_loss: Tensor | None = None
    """(B,): result of `Agent.auxiliary_loss`. Training sets this field; `decide` leaves it None."""


class StepIndex(NamedTuple):
    """Index of R observations from several trajectories: trajectory and step number of each observation."""

    episode: Tensor
    """(R,) int64: index of the observation's trajectory in the batch."""
    step: Tensor
    """(R,) int64: step number of the observation in its trajectory, starting at 0."""


class InputLimits(NamedTuple):
    """Largest input sizes that a network accepts; None means that any size is accepted."""

    vocabulary: int | None = None
    """Number of different token ids."""
    feature_width: int | None = None
    max_tokens: int | None = None
    max_steps: int | None = None


@dataclass(frozen=True)
class State:
    """State of B agents between two steps; subclasses add fields.

    The first axis of every tensor is the batch. All other axes may be padded with zeros. A field that is not
    a tensor applies to the whole batch.
    """

    def select(self, rows: Tensor) -> Self:
        """Return the states of the agents whose batch indices are in `rows` (int64)."""
        return replace(
            self, **{name: tensor.index_select(0, rows) for name, tensor in self._tensors().items()}
        )

    def concat(self, other: Self) -> Self:
        """Return the states of `self`, then those of `other`, zero-padded to common tensor sizes."""
        tensors, others = self._tensors(), other._tensors()
        return replace(self, **{name: _concat(tensors[name], others[name]) for name in tensors})

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


S = TypeVar("S", bound=State)


@dataclass(frozen=True, kw_only=True)
class BaseAgentConfig:
    """Base class of agent settings. Agents without settings use this class directly."""

    @property
    def limits(self) -> InputLimits:
        """Largest input sizes that a network with these settings accepts. The default is no limit."""
        return InputLimits()


class Agent(nn.Module, ABC, Generic[S]):
    """Base class of agents. Subclasses implement `begin`, `decide` and `advance`; the rest has defaults.

    Decisions must be deterministic given the seed. Padding must not change them. Permuting the candidates
    must permute the logits in the same way. `tests/contracts` checks these rules for every agent.
    """

    Config: ClassVar[type] = BaseAgentConfig
    """Class of the agent's settings: a frozen dataclass derived from `BaseAgentConfig`."""
    config: Any
    needs_goals: ClassVar[bool] = False
    """Whether `begin` requires `privileged`, which contains the goal viewpoints."""
    is_scripted: ClassVar[bool] = False
    """Whether the agent has no parameters. Evaluation then needs only the agent's name, not a saved run."""
    supports_decide_all: ClassVar[bool] = False
    """Whether the agent implements `decide_all`."""
    supports_decide_tree: ClassVar[bool] = False
    """Whether the agent implements `decide_tree`."""
    keeps_map: ClassVar[bool] = False
    """Whether the agent adds `Observation.remembered` to a map of its episode."""
    stops_at_limit: ClassVar[bool] = False
    """Whether the last decision that an episode allows is always STOP. If False, it may be a move."""

    def __init__(self, config: Any = None) -> None:
        """Set `self.config` to `config`, or to `Config()` if `config` is None."""
        super().__init__()
        self.config = self.Config() if config is None else config

    @abstractmethod
    def begin(self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> S:
        """Return the initial state of B agents, given their instructions and viewpoints (B,) `start`."""

    @abstractmethod
    def decide(self, state: S, observation: Observation) -> Decision:
        """Return the scores of all possible actions of B agents, given their states and observations."""

    @abstractmethod
    def advance(self, state: S, observation: Observation, actions: Tensor) -> S:
        """Return the state after the agents took `actions` (B,) int64 at `observation`."""

    def decide_all(self, state: S, observation: Observation, actions: Tensor, index: StepIndex) -> Decision:
        """Return the decisions of all R steps of B known trajectories in one forward pass; logits are (R, C).

        `observation` and `actions` have R entries, one per step; `index` assigns each step to its trajectory.
        `state` is the initial state of the B trajectories. Recurrent agents cannot implement this.
        """
        raise NotImplementedError(f"{type(self).__name__} decides step by step")

    def decide_tree(self, state: S, observation: Observation, parents: Tensor, actions: Tensor) -> Decision:
        """Return the decisions at R nodes of a tree of trajectories in one forward pass; logits are (R, C).

        `state` is the initial state of one agent. `observation` has R entries, of which the first is at the
        root. The agent reached node i from the node `parents[i]` < i by `actions[i]`; both are -1 at the
        root. Recurrent agents cannot implement this.
        """
        raise NotImplementedError(f"{type(self).__name__} decides step by step")

    def auxiliary_loss(self, decision: Decision, goals: Tensor) -> Tensor | None:
        """Return an additional training loss per decision, (B,), or None if the agent has no such loss.

        `goals` (B, 3) are the goal positions in metres.
        """
        return None

    def text_attention(self, state: S, observation: Observation) -> Tensor | None:
        """Return how much each token of the instruction counts in the decision of `decide`, (B, L).

        Rows sum to 1; padding has 0. None, the default, means that the agent has no attention over its
        instruction. Traces of evaluations store this; it does not affect decisions.
        """
        return None

    def final_paths(self, state: S) -> list[list[int]] | None:
        """Return the viewpoints through which each agent goes after its episode has ended, without decisions.

        The last of them is where the agent ends; an agent with an empty list stays. `state` is the state
        after the last `decide`. None, the default, means that all agents stay.
        """
        return None

    def final_margin(self, state: S) -> Tensor | None:
        """Return the margin by which the end chosen by `final_paths` exceeds the second best one, (B,).

        It is a difference of log probabilities. None, the default, means that nothing is chosen.
        """
        return None

    @property
    def uses_context_views(self) -> bool:
        """Whether the agent reads views without a candidate. If False, observations omit these views."""
        return True

    @property
    def no_weight_decay(self) -> list[nn.Parameter]:
        """Parameters that the optimizer must exclude from weight decay."""
        return []

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critic. Gradient clipping excludes them."""
        return []

    @property
    def decision_layers(self) -> list[nn.Module]:
        """Transformer layers of `decide`, which `--precision guarded` computes in low precision."""
        return []

    @property
    def grounding_head(self) -> Grounding | None:
        """Module that relates words to image features and can be initialised from word vectors, or None."""
        return None


def num_choices(observation: Observation) -> int:
    """Return the number of actions C in a batch: the largest number of candidates, plus one for STOP."""
    return int(observation.num_candidates.max()) + 1


def choice_mask(observation: Observation, choices: int) -> Tensor:
    """Return a mask (B, C) that is True for the candidates and STOP of each agent and False elsewhere.

    C is `choices`, the number of actions.
    """
    return observation.token_type[:, :choices] != CONTEXT


def _concat(above: Tensor, below: Tensor) -> Tensor:
    """Return both tensors concatenated along axis 0, with all other axes zero-padded to the larger size."""
    if not len(above):
        return below
    if above.shape[1:] != below.shape[1:]:
        sizes = [max(pair) for pair in zip(above.shape[1:], below.shape[1:], strict=True)]
        above, below = _pad(above, sizes), _pad(below, sizes)
    return torch.cat([above, below])


def _pad(tensor: Tensor, sizes: list[int]) -> Tensor:
    """Return a tensor padded with zeros at the end of its axes to `sizes`, without axis 0."""
    missing = [size - current for size, current in zip(sizes, tensor.shape[1:], strict=True)]
    return functional.pad(tensor, [n for width in reversed(missing) for n in (0, width)])
