"""A small agent that can go back to any place of its walk, and does what it is told, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import (
    Agent,
    BacktrackRoutes,
    Decision,
    PrivilegedInfo,
    State,
    TokenBatch,
    choice_mask,
)
from esceme.observation import Observation
from esceme.trajectory import ActionSelector, Trajectory
from esceme.world import Atlas

STAY = "stop"
BACK = "back to "


@dataclass(frozen=True)
class HomesickState(State):
    """Viewpoints are kept plus one, so that 0 is none."""

    place: Tensor
    """(B, S): where something was decided."""
    view: Tensor
    """(B, S): what was faced there."""
    beside: Tensor
    """(B, S, K): where ways lead from there."""
    walked: Tensor
    """(B,): how many places there are."""
    thoughts: Tensor
    """(B,): how often something was decided."""


@dataclass(frozen=True)
class HomesickConfig:
    """Nothing to set."""


class Homesick(Agent[HomesickState]):
    """Likes all choices alike."""

    Config = HomesickConfig

    def __init__(self) -> None:
        super().__init__()
        self.config = HomesickConfig()

    def begin(
        self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> HomesickState:
        nothing = torch.zeros(len(start), 0, dtype=torch.int64)
        return HomesickState(
            nothing, nothing, nothing[..., None].expand(-1, -1, 1), *torch.zeros(2, len(start)).long()
        )

    def decide(self, state: HomesickState, observation: Observation) -> Decision:
        here = observation.viewpoint[:, None] + 1
        routes = BacktrackRoutes(
            first=observation.kind.shape[1],
            viewpoint=state.place.masked_fill(state.place == here, 0) - 1,
            view=state.view,
            near=among(state.place, observation.neighbour + 1),
            linked=among(state.place[:, None], state.beside),
        )
        forward = choice_mask(observation, observation.kind.shape[1])
        possible = torch.cat([forward, routes.viewpoint >= 0], 1)
        logits = torch.zeros(possible.shape).masked_fill(~possible, -torch.inf)
        return Decision(logits, routes=routes, state=replace(state, thoughts=state.thoughts + 1))

    def advance(self, state: HomesickState, observation: Observation, chosen: Tensor) -> HomesickState:
        leads, rows = observation.neighbour + 1, torch.arange(len(chosen))
        wide = max(leads.shape[1], state.beside.shape[2])
        longer = {
            "place": functional.pad(state.place, (0, 1)),
            "view": functional.pad(state.view, (0, 1)),
            "beside": functional.pad(state.beside, (0, wide - state.beside.shape[2], 0, 1)),
        }
        longer["place"][rows, state.walked] = observation.viewpoint + 1
        longer["view"][rows, state.walked] = observation.facing
        longer["beside"][rows, state.walked, : leads.shape[1]] = leads
        return replace(state, **longer, walked=state.walked + 1)


def among(places: Tensor, leads: Tensor) -> Tensor:
    """Which places (..., S) are among those that ways lead to (..., K); 0 is none."""
    return ((places[..., None] == leads[..., None, :]) & (places[..., None] > 0)).any(-1).long()


def told(atlas: Atlas, orders: Mapping[str, Sequence[str]]) -> ActionSelector:
    """Choices by name: `kitchen`, `back to hall`, `stop`; for each episode in order."""

    def choose(decision: Decision, observation: Observation, walks: Sequence[Trajectory]) -> Tensor:
        chosen = []
        for row, walk in enumerate(walks):
            order = orders[walk.episode.episode_id][walk.decisions]
            scene, _ = atlas.name(walk.viewpoint)
            if order == STAY:
                chosen.append(int(observation.candidate_count[row]))
                continue
            (place,) = atlas.locate(scene, [order.removeprefix(BACK)]).tolist()
            if order.startswith(BACK):
                assert decision.routes is not None
                chosen.append(decision.routes.first + decision.routes.viewpoint[row].tolist().index(place))
            else:
                chosen.append(observation.neighbour[row].tolist().index(place))
        return torch.tensor(chosen)

    return choose
