"""The original numbering of DUET's actions: STOP is 0, then closed nodes of the map, then open ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from esceme.agents.base import Decision
from esceme.agents.duet import DuetState
from esceme.observation import Observation
from esceme.trajectory import Trajectory
from esceme.world.atlas import Atlas


@dataclass(frozen=True)
class MapOrder:
    """The original numbering of one agent's map tokens, which begin with STOP."""

    nodes: list[int]
    """Our nodes in the original order, without STOP."""
    closed_flags: list[bool]
    """Whether each map token is closed; STOP is not."""
    viewpoints: list[int]
    """Viewpoint index of each node."""

    @classmethod
    def of(cls, state: DuetState, is_closed: Tensor, row: int) -> MapOrder:
        """Return the numbering of the map of the agent in `row`, given closed nodes (B, K) bool."""
        nodes = (state.node[row] > 0).nonzero().flatten().tolist()
        nodes.sort(key=lambda node: not is_closed[row, node])
        flags = [False, *(bool(is_closed[row, node]) for node in nodes)]
        return cls(nodes, flags, [int(state.node[row, node]) - 1 for node in nodes])

    @classmethod
    def of_decision(cls, decision: Decision, row: int) -> MapOrder:
        """Return the numbering of the map of the agent in `row` if visited nodes are closed."""
        assert isinstance(decision.state, DuetState)
        return cls.of(decision.state, decision.state.is_visited, row)

    def number(self, goal: int | None) -> int:
        """Return the original number of the action that leads to a viewpoint; 0, STOP, for None."""
        return 0 if goal is None else 1 + self.viewpoints.index(goal)


def action_viewpoint(action: int, decision: Decision, observation: Observation, row: int) -> int | None:
    """Return the viewpoint to which an action of the agent in `row` leads; None for STOP."""
    assert decision.routes is not None
    first = decision.routes.first_action
    if action >= first:
        return int(decision.routes.viewpoints[row, action - first])
    goal = int(observation.neighbour[row, action])
    return None if goal < 0 else goal


def action_to(goal: int, decision: Decision, observation: Observation, row: int) -> int:
    """Return our number of the action of the agent in `row` that leads to a viewpoint."""
    assert decision.routes is not None
    candidates = observation.neighbour[row].tolist()
    if goal in candidates:
        return candidates.index(goal)
    return decision.routes.first_action + decision.routes.viewpoints[row].tolist().index(goal)


@dataclass
class Segments:
    """Trajectories as the original records them: cut at decisions, with the way back as the last part."""

    atlas: Atlas
    boundaries: dict[Trajectory, list[int]] = field(default_factory=dict)
    """Number of poses of each trajectory at each of its decisions."""

    def add_decision(self, trajectory: Trajectory) -> None:
        """Record that a trajectory is at a decision."""
        self.boundaries.setdefault(trajectory, []).append(len(trajectory.poses))

    def of(self, trajectory: Trajectory, *, with_way_back: bool = True) -> list[list[str]]:
        """Return the viewpoint ids of a trajectory, a list per decision that moved."""
        names = [self.atlas.name(viewpoint)[1] for viewpoint, _ in trajectory.poses]
        cuts = [0, *self.boundaries[trajectory]] + ([len(names)] if with_way_back else [])
        pieces = [names[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]
        return [piece for piece in pieces if piece]
