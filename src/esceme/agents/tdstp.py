"""TD-STP, Target-Driven Structured Transformer Planner (Zhao et al. 2022), the paper's second host (spec D).

HAMT's encoders and layers; besides, an agent knows where everything lies, guesses on a coarse grid where its
goal is, may go back to any place of its walk, and thinks on with what it thought at the step before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents.base import BacktrackRoutes, Decision, PrivilegedInfo, TokenBatch, choice_mask, num_choices
from esceme.agents.crossmodal import CrossModal, CrossModalState
from esceme.agents.layers import EPSILON, Layer, OutputPositions, Tokens
from esceme.agents.tokens import HamtConfig
from esceme.errors import ConfigError
from esceme.observation import Observation

FOUND_LATER, THE_SAME = 1_000, 1_000_000
"""Where places stand in the order of ways: those that were found after a place was, and the place itself."""
REPEATED = 100.0
"""By how much going back where one just came from by a jump is made less likely."""


@dataclass(frozen=True, kw_only=True)
class TdstpConfig(HamtConfig):
    """HAMT's sizes and switches, and TD-STP's own; by default those of the ESceme release."""

    freeze_history: bool = False
    grid: int = 5
    """Points of the target grid on each side; 0: no target is guessed."""
    spacing: float = 6.0
    """Metres between them."""
    target_weight: float = 0.1
    """Of the loss of guessing the goal's place on the grid."""
    map_history: bool = True
    """Whether what is left of a place passes through two layers before it is scored."""
    history_positions: bool = True
    """Whether history tokens know where they were."""
    candidate_positions: Literal["there", "here"] = "there"
    """Where a candidate lies: where it leads, or where the agent stands."""
    go_back: bool = True
    """Whether places of the walk are choices."""
    reweigh: bool = True
    """Whether going back and forth between two places by jumps is made unlikely."""
    structured: bool = False
    """Whether a history token attends only to places next to it, of other history tokens. So the original
    does; the ESceme release computes that mask and does not use it."""
    history_mask: Literal["real", "as-released"] = "real"
    """What history layers may attend to: to what is real, or to padding as well, which the original only
    makes a little less likely. It matters only with history layers, which the published network has not, and
    there only beside longer walks: then company changes decisions, so it is of use for comparing alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid < 0 or self.spacing <= 0:
            raise ConfigError(
                f"grid {self.grid}, spacing {self.spacing}: expected 0 or more points, some metres apart"
            )
        if self.target_weight < 0:
            raise ConfigError(f"target_weight: expected 0 or more, found {self.target_weight}")
        for name, allowed in (
            ("candidate_positions", ("there", "here")),
            ("history_mask", ("real", "as-released")),
        ):
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(f"{name} '{value}': expected one of {', '.join(allowed)}")


@dataclass(frozen=True, kw_only=True)
class TdstpState(CrossModalState):
    """What TD-STP carries from step to step.

    Places belong to history tokens, the first of which, the global one, is nowhere. Viewpoints are kept plus
    one, so that 0 is none.
    """

    summary: Tensor
    """(B, H): the instruction as a whole, which guesses are compared with where text does not look around."""
    target: Tensor
    """(B, G, H): the tokens of the target grid."""
    origin: Tensor
    """(B, 3): where the walk began, in metres; known from its first observation on."""
    place: Tensor
    """(B, S) int64: the viewpoint of each history token."""
    view: Tensor
    """(B, S) int64: what was faced there."""
    linked: Tensor
    """(B, S, S) int64: for who stands at one place, in which order the other is tried, 0 for those that are
    not next to it: those known at the first visit in the order of candidates, then others as found."""
    left: Tensor
    """(B, S) int64: where a jump that was decided at this place came from, which is this place."""
    reached: Tensor
    """(B, S) int64: where it led."""
    thought: Tensor
    """(B,) bool: whether this is what came out of a decision, after which nothing was done yet."""


class Planned(NamedTuple):
    """What the cross-modal encoder makes of a state and an observation."""

    logits: Tensor
    """(B, N): of the observation's tokens; -inf for those that are no choice."""
    back: Tensor
    """(B, S): of the history's tokens, the global one included; -inf for those that are no place."""
    states: Tensor
    """(B, H): what the critic reads."""
    guess: Tensor
    """(B, G): where on the grid the goal is."""
    text: Tensor
    """(B, L, H), or only the first token (B, 1, H)"""
    history: Tensor
    """(B, S, H)"""
    sight: Tensor
    """(B, N, H), or only the choices (B, C, H)"""
    target: Tensor
    """(B, G, H)"""


class TDSTP(CrossModal[TdstpState]):
    """The published network; `esceme.checkpoints` fills it with published weights."""

    Config = TdstpConfig
    config: TdstpConfig

    def __init__(self, config: TdstpConfig | None = None) -> None:
        """Build HAMT's modules and three more, those with PyTorch's own first weights."""
        super().__init__(config or TdstpConfig())
        self.draw_own()

    def draw_own(self) -> None:
        """Build what TD-STP has besides HAMT's modules anew."""
        config, hidden = self.config, self.config.hidden
        self.positions = nn.Sequential(nn.Linear(3, hidden), nn.LayerNorm(hidden, eps=EPSILON))
        if config.map_history:
            self.map = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.guess = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1))

    @property
    def points(self) -> Tensor:
        """(G, 3): of the target grid, seen from where a walk begins."""
        return grid_points(self.config.grid, self.config.spacing).to(next(self.positions.parameters()))

    # -- the three methods -------------------------------------------------------------------------------

    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> TdstpState:
        """Read the instructions, once per episode."""
        heard = self._hear(words)
        nowhere = torch.zeros(len(words.ids), 1, dtype=torch.int64, device=words.ids.device)
        return TdstpState(
            **heard,
            summary=self._sum_up(heard["words"], words.valid),
            target=self.positions(self.points)[None] * heard["words"][:, :1],
            origin=heard["words"].new_zeros(len(nowhere), 3),
            place=nowhere,
            view=nowhere,
            linked=nowhere[..., None],
            left=nowhere,
            reached=nowhere,
            thought=torch.zeros_like(nowhere[:, 0], dtype=torch.bool),
        )

    def decide(self, state: TdstpState, observation: Observation) -> Decision:
        """A score for every candidate, for STOP, and for every place of the walk so far."""
        state = self._located(state, observation)
        planned = self.plan(state, observation)
        thought = torch.ones_like(state.thought)
        kept = replace(state, history=planned.history, target=planned.target, thought=thought)
        routes = self._routes(kept, observation)
        back = planned.back.masked_fill(routes.viewpoint < 0, -torch.inf)
        logits = torch.cat([planned.logits, back], 1)
        if self.config.reweigh:
            logits = logits - REPEATED * self._repeated(kept, observation, routes)
        value = self.critic(planned.states).squeeze(1)
        return Decision(logits, value, routes=routes, state=kept, guess=planned.guess)

    def advance(self, state: TdstpState, observation: Observation, chosen: Tensor) -> TdstpState:
        """Add what was seen and done to the history."""
        if not state.thought.all():
            state = self.decide(state, observation).state  # type: ignore[assignment]
        token = self._told(state, observation, chosen)
        rows = torch.arange(len(token), device=token.device)
        at, wide = (rows, state.lived), state.history.shape[1]
        linked = self._link(state, observation)
        back = (chosen - observation.kind.shape[1]).clamp(min=0)
        here, goal = observation.viewpoint + 1, state.place[rows, back]
        jumps = chosen >= observation.kind.shape[1]

        def longer(kept: Tensor, new: Tensor) -> Tensor:
            padded = torch.cat([kept[:, :wide], torch.zeros_like(kept[:, :1])], 1)
            return padded.index_put(at, new.to(kept.dtype))

        return replace(
            state,
            history=longer(state.history, token),
            lived=state.lived + 1,
            place=longer(state.place, here),
            view=longer(state.view, observation.facing),
            linked=linked,
            left=longer(state.left, here * jumps),
            reached=longer(state.reached, goal * jumps),
            thought=torch.zeros_like(state.thought),
        )

    def aside(self, decision: Decision, goals: Tensor) -> Tensor | None:
        """How badly it guesses where on the grid its goal is: the nearest point, seen from above."""
        if not self.config.grid or decision.guess is None or not isinstance(decision.state, TdstpState):
            return None
        away = (goals - decision.state.origin)[:, None, :2] - self.points[:, :2]  # (B, G, 2)
        nearest = away.square().sum(2).argmin(1)
        return self.config.target_weight * functional.cross_entropy(decision.guess, nearest, reduction="none")

    # -- parts of them -----------------------------------------------------------------------------------

    def plan(self, state: TdstpState, observation: Observation, *, everything: bool = False) -> Planned:
        """Relate text, history, sight and target; `everything` also computes what no head reads.

        Places are seen from the state's `origin`.
        """
        width, observation = observation.kind.shape[1], self._look(observation)
        history, counts = self._recall(state, everything=everything)
        longest = history.shape[1]
        seen = self._describe(state, observation)
        seen = seen + self.positions(self._lying(observation) - state.origin[:, None])
        valid = torch.cat([counts, observation.valid, torch.ones_like(state.target[..., 0]).bool()], 1)
        vision = Tokens.of(torch.cat([history, seen, state.target], 1), valid, everything=everything)
        choices = num_choices(observation)
        read = (
            None
            if everything
            else _read(valid, longest, choice_mask(observation, choices), state.target.shape[1])
        )
        mask = self._structure(state, valid, longest) if self.config.structured and longest > 1 else None
        text, vision = self._relate(state, vision, read, everything=everything, mask=mask)
        shown = observation.kind.shape[1] if everything else choices
        parts = torch.split(vision.padded, [longest, shown, state.target.shape[1]], 1)
        return self._judge(state, observation, width, counts, text.padded, *parts)

    def _judge(
        self,
        state: TdstpState,
        observation: Observation,
        width: int,
        counts: Tensor,
        text: Tensor,
        history: Tensor,
        sight: Tensor,
        target: Tensor,
    ) -> Planned:
        """Scores of candidates, STOP, places and points of the grid (spec D.3, D.5)."""
        told, lived = text[:, 0], history[:, 0]
        factor, choices = self._factor(told, lived)[:, None], num_choices(observation)
        here = self._score(sight[:, :choices] * factor)
        here = here.masked_fill(~choice_mask(observation, choices), -torch.inf)
        mapped = self.map(history) if self.config.map_history else history
        places = counts.clone()
        places[:, 0] = False
        whole = told if self.config.language_cross_attention else state.summary
        back = self._score(mapped * factor).masked_fill(~places, -torch.inf)
        return Planned(
            logits=functional.pad(here, (0, width - choices), value=-torch.inf),
            back=back,
            states=told * lived if self.config.language_cross_attention else lived,
            guess=self.guess(target * whole[:, None]).squeeze(2),
            text=text,
            history=history,
            sight=sight,
            target=target,
        )

    def _sum_up(self, encoded: Tensor, heard: Tensor) -> Tensor:
        """The first token of the text that the last cross layer reads, (B, H)."""
        if self.config.language_cross_attention:
            return encoded[:, 0]
        return self.text_of_layers(encoded, heard)[-1][:, 0]

    def _recall(self, state: TdstpState, *, everything: bool) -> tuple[Tensor, Tensor]:
        """The tokens of what happened so far, (B, S, H), and which of them count, (B, S)."""
        if not len(self.history_layers) or self.config.history_mask == "real":
            return super()._recall(state, everything=everything)
        history, counts = self._history(state)
        a_little = counts[:, None].to(history.dtype).expand(-1, counts.shape[1], -1)
        for layer in self.history_layers:
            assert isinstance(layer, Layer)
            history = layer(Tokens.of(history, torch.ones_like(counts)), mask=a_little).padded
        return history, counts

    def _located(self, state: TdstpState, observation: Observation) -> TdstpState:
        """The state, knowing where the walk began once there is something to see."""
        standing = observation.standing().to(state.origin)
        return replace(state, origin=torch.where((state.lived == 1)[:, None], standing, state.origin))

    def _lying(self, observation: Observation) -> Tensor:
        """Where tokens lie, (B, N, 3), or all of them where the agents stand, (B, 1, 3)."""
        here = observation.standing()[:, None]
        if observation.positions is None or self.config.candidate_positions == "here":
            return here
        return observation.positions

    def _told(self, state: TdstpState, observation: Observation, chosen: Tensor) -> Tensor:
        """The history token of a step, (B, H): features are not dropped, and a jump has no direction."""
        plainly = replace(observation, dropout=0.0)
        around = self._around(state, plainly) if self.config.encode_panorama else None
        goes_on = chosen < observation.kind.shape[1]
        angle = observation.angle_of(torch.where(goes_on, chosen, 0)) * goes_on[:, None]
        token = self.history(plainly.faced(), angle, state.lived - 1, around)
        if self.config.history_positions:
            token = token + self.positions(observation.standing() - state.origin)
        return token.detach() if self.config.freeze_history else token

    def _beside(self, state: TdstpState, observation: Observation) -> Tensor:
        """In which order places are tried from where the agents stand, (B, S), as in `linked`."""
        places = state.place[:, : state.history.shape[1]]
        here = places == observation.viewpoint[:, None] + 1
        leads = (places[:, :, None] == observation.neighbour[:, None] + 1) & (places > 0)[..., None]
        fresh = torch.where(leads.any(2), 1 + leads.int().argmax(2), 0)
        rows = torch.arange(len(here), device=here.device)
        known = state.linked[rows, here.int().argmax(1), : here.shape[1]]
        return torch.where(here.any(1, keepdim=True), known, fresh).masked_fill(here, THE_SAME)

    def _link(self, state: TdstpState, observation: Observation) -> Tensor:
        """The links of all places when the present one is added, (B, S + 1, S + 1)."""
        beside = self._beside(state, observation)
        same, wide = beside == THE_SAME, beside.shape[1]
        rows = torch.arange(len(beside), device=beside.device)
        known = state.linked[rows, :wide, same.int().argmax(1)]
        found = torch.where(beside > 0, FOUND_LATER + state.lived[:, None], 0)
        there = torch.where(same.any(1, keepdim=True), known, found).masked_fill(same, THE_SAME)
        linked = functional.pad(state.linked[:, :wide, :wide], (0, 1, 0, 1))
        others = torch.arange(wide, device=beside.device)
        linked = linked.index_put((rows[:, None], state.lived[:, None], others), beside)
        linked = linked.index_put((rows[:, None], others, state.lived[:, None]), there)
        itself = torch.full_like(state.lived, THE_SAME)
        return linked.index_put((rows, state.lived, state.lived), itself)

    def _routes(self, state: TdstpState, observation: Observation) -> BacktrackRoutes:
        """The places one can go back to: all of the walk but where the agents stand."""
        wide = state.history.shape[1]
        places = state.place[:, :wide] - 1
        here = places == observation.viewpoint[:, None]
        shut = here if self.config.go_back else torch.ones_like(here)
        return BacktrackRoutes(
            first=observation.kind.shape[1],
            viewpoint=places.masked_fill(shut, -1),
            view=state.view[:, :wide],
            near=self._beside(state, observation),
            linked=state.linked[:, :wide, :wide],
        )

    def _repeated(self, state: TdstpState, observation: Observation, routes: BacktrackRoutes) -> Tensor:
        """How often the agents jumped to where they stand from where each choice leads, (B, N + S)."""
        leads = torch.cat([observation.neighbour, routes.viewpoint], 1) + 1
        came = torch.where(state.reached == observation.viewpoint[:, None] + 1, state.left, -1)  # (B, S)
        return ((leads[:, :, None] == came[:, None]) & (leads > 0)[..., None]).sum(2).to(state.origin)

    def _structure(self, state: TdstpState, valid: Tensor, longest: int) -> Tensor:
        """Which tokens of vision may attend to which, (B, M, M): of places, only neighbours (spec D.6)."""
        mask = valid[:, None] & valid[:, :, None]
        mask[:, 1:longest, 1:longest] &= state.linked[:, 1:longest, 1:longest] > 0
        itself = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
        return mask | itself  # padding attends to itself: to nothing at all gives no number


def grid_points(size: int, spacing: float) -> Tensor:
    """The points of a square grid around 0, (size², 3), row by row.

    >>> grid_points(2, 6.0).tolist()
    [[-3.0, -3.0, 0.0], [-3.0, 3.0, 0.0], [3.0, -3.0, 0.0], [3.0, 3.0, 0.0]]
    """
    line = (torch.arange(size, dtype=torch.float32) - (size - 1) / 2) * spacing
    flat = torch.cartesian_prod(line, line).reshape(-1, 2) if size else torch.zeros(0, 2)
    return functional.pad(flat, (0, 1))


def _read(valid: Tensor, before: int, choices: Tensor, after: int) -> OutputPositions:
    """What is read of vision: `before` tokens of history, the choices (B, C), and `after` of the grid."""
    columns, ends = torch.arange(valid.shape[1], device=valid.device), valid.shape[1] - after
    columns = torch.cat([columns[: before + choices.shape[1]], columns[ends:]])
    return OutputPositions(columns, torch.cat([valid[:, :before], choices, valid[:, ends:]], 1))
