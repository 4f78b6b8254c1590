"""`PlanningNavigator`: a navigator that walks planned routes. `roll_out` uses it like any other navigator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from esceme.agents.base import Decision, PrivilegedInfo, State, TokenBatch, num_choices
from esceme.memory.bank import Memory
from esceme.memory.scene_map import MapBank
from esceme.navigator import Navigator
from esceme.observation import Observation
from esceme.planning.planner import Planner, PlanRequest, RoutePlan
from esceme.world.atlas import Atlas

TRACED_ROUTES = 5
"""Number of routes that a trace keeps per plan."""


@dataclass(frozen=True)
class PlanningState(State):
    """State of B planning agents between two steps."""

    words: Tensor
    """(B, L) int64: token ids of the instructions."""
    valid: Tensor
    """(B, L) bool: False for padding."""
    start_view: Tensor
    """(B,) int64: view that each agent faced at the start; -1 before the first decision."""
    stops: Tensor
    """(B,) bool: whether the agent stops at its next decision, at the end of a route."""


class PlannedRoutes(NamedTuple):
    """The planned route of each agent, as one further action."""

    first_action: int
    """Index of the action that walks the planned route."""
    viewpoints: Tensor
    """(B, 1) int64: viewpoint at the end of each planned route; -1 for an agent that stops."""
    paths: list[list[tuple[int, int]]]
    """Poses (viewpoint, view) after each move, for every agent; empty for an agent that stops."""

    def shortest_path(self, row: int, action: int) -> list[tuple[int, int]]:
        """Return the planned poses of the agent with batch index `row`."""
        return self.paths[row]


class PlanningNavigator(Navigator):
    """Walks the routes of a planner in the maps of `maps`, which it extends by every viewpoint it visits."""

    def __init__(self, navigator: Navigator, planner: Planner, maps: MapBank, atlas: Atlas) -> None:
        """Plan for an agent, which may be one of the planner's scorers. `atlas` gives viewpoints names."""
        super().__init__(navigator.agent, navigator.reader, feature_dropout=navigator.feature_dropout)
        self.planner, self.maps, self._names = planner, maps, atlas.names
        self.plans: list[RoutePlan | None] = []
        """Plans of the last decision, one per agent; None for an agent that stopped as planned before."""

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> PlanningState:
        """Return the initial state. Privileged information is discarded: a planner cannot read goals."""
        unknown = torch.full_like(start, -1)
        return PlanningState(instructions.ids, instructions.valid, unknown, torch.zeros_like(start).bool())

    def observe(self, observation: Observation, memory: Memory | None) -> Observation:
        """Add the agents' viewpoints to the maps and return the observation unchanged."""
        self.maps.remember_observation(observation)
        return observation

    def decide(self, state: State, observation: Observation) -> Decision:
        """Plan for every agent. The logit of the chosen action is 0, those of all other actions are -inf."""
        assert isinstance(state, PlanningState) and observation.previous_viewpoints is not None
        start_view = torch.where(state.start_view < 0, observation.facing_view, state.start_view)
        self.plans, paths = [], []
        for row in range(len(observation)):
            previous = observation.previous_viewpoints[row]
            indices = [*previous[previous >= 0].tolist(), int(observation.viewpoint[row])]
            plan = None
            if not state.stops[row]:
                plan = self._plan(indices, state.words[row][state.valid[row]], int(start_view[row]))
            self.plans.append(plan)
            paths.append([] if plan is None else self._poses(indices[0], plan))
        # One further action walks the planned route; an empty route is STOP.
        first_action = num_choices(observation)
        walks = torch.tensor([bool(path) for path in paths], device=observation.viewpoint.device)
        actions = torch.where(walks, first_action, observation.num_candidates)
        logits = torch.full((len(observation), first_action + 1), -torch.inf, device=actions.device)
        logits.scatter_(1, actions[:, None], 0.0)
        stops = torch.tensor([plan is None or plan.stops for plan in self.plans], device=actions.device)
        then = replace(state, start_view=start_view, stops=stops)
        ends = torch.tensor([[path[-1][0] if path else -1] for path in paths], device=actions.device)
        return Decision(logits, routes=PlannedRoutes(first_action, ends, paths), state=then)

    def advance(self, state: State, observation: Observation, actions: Tensor) -> State:
        """Return the state, which `decide` has already updated."""
        return state

    def final_paths(self, state: State) -> None:
        """Return None: agents stay at the end of their planned routes."""

    def decision_details(self, row: int) -> dict[str, Any]:
        """Return the best routes of the latest plan of an agent, with their scores; empty without a plan."""
        plan = self.plans[row]
        if plan is None:
            return {}
        best = np.argsort(-plan.utilities, kind="stable")[:TRACED_ROUTES].tolist()
        scene_map, nodes = plan.routes.area.scene_map, plan.routes.area.nodes
        return {
            "compared": len(plan.routes),
            "routes": [
                {
                    "path": [scene_map.name(int(nodes[place])) for place in places if place >= 0],
                    "visited": bool(plan.routes.is_visited[route]),
                    "probability": round(float(plan.belief[route]), 5),
                    "utility": round(float(plan.utilities[route]), 5),
                    "scores": dict(
                        zip(self.planner.score_columns, plan.table[route].round(3).tolist(), strict=False)
                    ),
                }
                for route in best
                for places in [plan.routes.places[route].tolist()]
            ],
        }

    def _plan(self, indices: list[int], words: Tensor, start_view: int) -> RoutePlan:
        names = [self._names[index] for index in indices]
        scene_map = self.maps[names[0][0]]
        nodes = [scene_map.node(name) for _, name in names]
        return self.planner.plan(
            scene_map, PlanRequest(words.cpu().numpy().astype(np.int64), nodes, start_view)
        )

    def _poses(self, index: int, plan: RoutePlan) -> list[tuple[int, int]]:
        """Return the path of a plan with atlas indices, in the scene of the viewpoint `index`."""
        scene_map = self.maps[self._names[index][0]]
        viewpoints = scene_map.indices([node for node, _ in plan.path])
        return [(viewpoint, view) for viewpoint, (_, view) in zip(viewpoints, plan.path, strict=True)]
