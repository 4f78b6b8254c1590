"""TD-STP, Target-Driven Structured Transformer Planner (Zhao et al. 2022; docs/spec.md D).

TD-STP extends HAMT in four ways. All tokens have positions. Target tokens on a coarse grid predict the goal's
position. One action can return to any visited viewpoint. History and target tokens are recurrent: the outputs
of a step are the inputs of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents.base import BacktrackRoutes, Decision, PrivilegedInfo, TokenBatch, choice_mask, num_choices
from esceme.agents.crossmodal import CrossModal, CrossModalState
from esceme.agents.layers import EPSILON, Layer, OutputPositions, Tokens
from esceme.agents.tokens import HamtConfig
from esceme.observation import Observation
from esceme.settings import NonNegative, Positive

LATE_RANK, SELF_RANK = 1_000, 1_000_000
"""Offsets of edge ranks, the order in which a path search tries edges. Edges found after the first visit of a
viewpoint come after its candidates. The edge from a node to itself comes last."""
REVERSED_JUMP_PENALTY = 100.0
"""Amount subtracted from an action's logit for each earlier jump (return in one action) that the action
reverses."""


@dataclass(frozen=True, kw_only=True)
class TdstpConfig(HamtConfig):
    """Settings of TD-STP. The defaults are those of the code that the ESceme authors released."""

    freeze_history: bool = False
    """Whether to exclude the encoder of history tokens from training."""
    grid: Annotated[int, Meta(ge=0, le=100)] = 5
    """Number of points per side of a square grid, whose points are possible goal positions; 0 for no grid."""
    spacing: Positive = 6.0
    """Distance between neighbouring points of the goal grid in metres."""
    target_weight: NonNegative = 0.1
    """Weight of the loss that trains the prediction of the goal's position."""
    map_history: bool = True
    """Whether the token of a visited viewpoint passes through a two-layer MLP before the action head."""
    history_positions: bool = True
    """Whether history tokens include the position of their viewpoint."""
    candidate_position_source: Literal["candidate", "agent"] = "candidate"
    """Position of a candidate token: that of the candidate's viewpoint, or that of the agent."""
    allow_backtracking: bool = True
    """Whether the agent can return to any visited viewpoint in one action, which is called a jump."""
    penalise_reversed_jumps: bool = True
    """Whether an action's score is reduced for each earlier jump (return to a visited viewpoint) that it
    reverses."""
    structured: bool = False
    """Whether a history token attends only to those history tokens whose viewpoints are adjacent. TD-STP's
    own code does so. ESceme's released code computes this mask but does not use it."""
    history_mask: Literal["real", "as-released"] = "real"
    """Tokens that the history layers attend to. `real`: only valid tokens. `as-released`: also padding, with
    a slightly lower score, as in the released code; decisions then depend on the batch. The setting has no
    effect with 0 history layers, as published."""


@dataclass(frozen=True, kw_only=True)
class TdstpState(CrossModalState):
    """State of B agents between two steps, for TD-STP.

    The first history token is the global token. Every other history token is a node: one visit to a
    viewpoint. Viewpoint indices are stored plus one, so that the padding value 0 means "no viewpoint".
    """

    summary: Tensor
    """(B, H): first text token as read by the last layer. Without language cross-attention, target outputs
    are multiplied by this vector before they are scored."""
    target: Tensor
    """(B, G, H): target tokens, one per point of the target grid."""
    origin: Tensor
    """(B, 3): position of the start in metres; set at the first observation."""
    node_viewpoint: Tensor
    """(B, S) int64: viewpoint of each history token, plus one; 0 for the global token and padding."""
    node_view: Tensor
    """(B, S) int64: view (0 to 35) that the agent faced at each history token."""
    edge_rank: Tensor
    """(B, S, S) int64: rank of the edge from node i (axis 1) to node j (axis 2); 0 if there is no edge. Path
    search tries lower ranks first: candidates of the first visit in their order, then edges found later."""
    jump_from: Tensor
    """(B, S) int64: viewpoint at which a return to a node (jump) was chosen, plus one; 0 for other steps."""
    jump_to: Tensor
    """(B, S) int64: viewpoint to which the jump led, plus one; 0 for other steps."""
    is_decided: Tensor
    """(B,) bool: whether `decide` has updated this state for the current observation."""


class TdstpOutput(NamedTuple):
    """Outputs of the cross-modal encoder and of the heads for B agents; H is the hidden size."""

    logits: Tensor
    """(B, N): scores of the N observation tokens; -inf for all tokens except candidates and STOP."""
    node_logits: Tensor
    """(B, S): scores of the history tokens as places to return to; -inf for the global token and padding."""
    critic_input: Tensor
    """(B, H): vector from which the critic predicts the expected return."""
    goal_logits: Tensor
    """(B, G): scores of the points of the target grid as goal positions."""
    text: Tensor
    """(B, L, H): text tokens, or (B, 1, H): only the first text token."""
    history: Tensor
    """(B, S, H): history tokens."""
    observation: Tensor
    """(B, N, H): observation tokens, or (B, C, H): only candidates and STOP."""
    target: Tensor
    """(B, G, H): target tokens, one per possible goal position."""


class TDSTP(CrossModal[TdstpState]):
    """The TD-STP network. `esceme.checkpoints` loads the published weights into it."""

    Config = TdstpConfig
    config: TdstpConfig

    def __init__(self, config: TdstpConfig | None = None) -> None:
        super().__init__(config)
        config, hidden = self.config, self.config.hidden
        self.position_encoder = nn.Sequential(nn.Linear(3, hidden), nn.LayerNorm(hidden, eps=EPSILON))
        if config.map_history:
            self.history_mapper = nn.Sequential(
                nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
            )
        self.goal_head = nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), nn.Linear(hidden // 2, 1))

    @property
    def grid_points(self) -> Tensor:
        """(G, 3): points of the target grid in metres, relative to the start of the episode."""
        return grid_points(self.config.grid, self.config.spacing).to(next(self.position_encoder.parameters()))

    # -- agent contract ----------------------------------------------------------------------------------

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> TdstpState:
        """Return the initial state, which contains the encoded instructions and the target tokens."""
        fields, last_text = self._initial_fields(instructions)
        text: Tensor = fields["text"]
        none = torch.zeros(len(text), 1, dtype=torch.int64, device=text.device)
        return TdstpState(
            **fields,
            summary=last_text.padded[:, 0],
            target=self.position_encoder(self.grid_points)[None] * text[:, :1],
            origin=text.new_zeros(len(text), 3),
            node_viewpoint=none,
            node_view=none,
            edge_rank=none[..., None],
            jump_from=none,
            jump_to=none,
            is_decided=torch.zeros_like(none[:, 0], dtype=torch.bool),
        )

    def decide(self, state: TdstpState, observation: Observation) -> Decision:
        """Return the scores of every candidate, STOP and every return to an earlier visit (node)."""
        # Positions are relative to the first observation.
        is_start = (state.history_length == 1)[:, None]
        position = observation.agent_positions().to(state.origin)
        state = replace(state, origin=torch.where(is_start, position, state.origin))
        # Recurrence: history and target outputs replace the tokens.
        output = self.encode(state, observation)
        state = replace(
            state,
            history=output.history,
            target=output.target,
            is_decided=torch.ones_like(state.is_decided),
        )
        # Global action space: candidates, STOP, then nodes.
        routes = self._routes(state, observation)
        node_logits = output.node_logits.masked_fill(routes.viewpoints < 0, -torch.inf)
        logits = torch.cat([output.logits, node_logits], 1)
        if self.config.penalise_reversed_jumps:
            logits = logits - REVERSED_JUMP_PENALTY * self._count_reversed_jumps(state, observation, routes)
        value = self.critic(output.critic_input).squeeze(1)
        return Decision(logits, value, routes=routes, state=state, goal_logits=output.goal_logits)

    def advance(self, state: TdstpState, observation: Observation, actions: Tensor) -> TdstpState:
        """Return the state with this step's history token, a new node, appended.

        If `decide` has not updated `state` for this observation, it is called first.
        """
        if not state.is_decided.all():
            state = self.decide(state, observation).state  # type: ignore[assignment]
        token = self._step_token(state, observation, actions)
        rows = torch.arange(len(token), device=token.device)
        width, num_tokens = state.history.shape[1], observation.token_type.shape[1]
        is_jump = actions >= num_tokens
        here = observation.viewpoint + 1
        goal = state.node_viewpoint[rows, (actions - num_tokens).clamp(min=0)]

        def append(values: Tensor, new: Tensor) -> Tensor:
            padded = torch.cat([values[:, :width], torch.zeros_like(values[:, :1])], 1)
            return padded.index_put((rows, state.history_length), new.to(values.dtype))

        return replace(
            state,
            history=append(state.history, token),
            history_length=state.history_length + 1,
            node_viewpoint=append(state.node_viewpoint, here),
            node_view=append(state.node_view, observation.facing_view),
            edge_rank=self._append_edges(state, observation),
            jump_from=append(state.jump_from, here * is_jump),
            jump_to=append(state.jump_to, goal * is_jump),
            is_decided=torch.zeros_like(state.is_decided),
        )

    def auxiliary_loss(self, decision: Decision, goals: Tensor) -> Tensor | None:
        """Return the weighted cross-entropy (B,) of the grid point horizontally nearest to the goal."""
        logits, state = decision.goal_logits, decision.state
        if not self.config.grid or logits is None or not isinstance(state, TdstpState):
            return None
        offsets = (goals - state.origin)[:, None, :2] - self.grid_points[:, :2]  # (B, G, 2)
        nearest = offsets.square().sum(2).argmin(1)
        return self.config.target_weight * functional.cross_entropy(logits, nearest, reduction="none")

    # -- forward pass ------------------------------------------------------------------------------------

    def encode(
        self, state: TdstpState, observation: Observation, *, compute_all: bool = False
    ) -> TdstpOutput:
        """Run the network and return its outputs. Positions are taken relative to `state.origin`.

        With `compute_all`, outputs are also computed for padding and for tokens that no head reads.
        """
        # Vision tokens: history, observation with positions, target.
        num_tokens, observation = observation.token_type.shape[1], self._prepare_observation(observation)
        history, history_mask = self._encode_history(state, compute_all=compute_all)
        tokens = self._encode_observation(state, observation, compute_all=compute_all)
        positions = self._token_positions(observation) - state.origin[:, None]
        tokens = tokens + self.position_encoder(positions)
        target_mask = torch.ones_like(state.target[..., 0]).bool()
        valid = torch.cat([history_mask, observation.valid, target_mask], 1)
        vision = Tokens.pack(torch.cat([history, tokens, state.target], 1), valid, compute_all=compute_all)
        # Cross-modal encoder; the heads read history, candidates, STOP and target.
        length, num_points = history.shape[1], state.target.shape[1]
        mask = choice_mask(observation, num_choices(observation))  # (B, C)
        outputs = None if compute_all else _head_positions(valid, length, mask, num_points)
        attention_mask = None
        if self.config.structured and length > 1:
            attention_mask = self._structured_mask(state, valid, length)
        text, vision = self._cross_encode(
            state, vision, outputs, compute_all=compute_all, mask=attention_mask
        )
        shown = observation.token_type.shape[1] if compute_all else mask.shape[1]
        history, tokens, target = torch.split(vision.padded, [length, shown, num_points], 1)
        # Action head over observation and nodes; goal head over target tokens (docs/spec.md D.3, D.5).
        uses_text = self.config.language_cross_attention
        first_text, global_token = text.padded[:, 0], history[:, 0]  # (B, H)
        factor = self._action_factor(first_text, global_token)[:, None]
        logits = self._score(tokens[:, : mask.shape[1]] * factor).masked_fill(~mask, -torch.inf)
        is_node = history_mask.clone()
        is_node[:, 0] = False  # the global token
        nodes = self.history_mapper(history) if self.config.map_history else history
        summary = first_text if uses_text else state.summary
        return TdstpOutput(
            logits=functional.pad(logits, (0, num_tokens - mask.shape[1]), value=-torch.inf),
            node_logits=self._score(nodes * factor).masked_fill(~is_node, -torch.inf),
            critic_input=first_text * global_token if uses_text else global_token,
            goal_logits=self.goal_head(target * summary[:, None]).squeeze(2),
            text=text.padded,
            history=history,
            observation=tokens,
            target=target,
        )

    def _encode_history(self, state: TdstpState, *, compute_all: bool) -> tuple[Tensor, Tensor]:
        """Return the outputs of the history layers, (B, S, H), and a mask of valid history tokens, (B, S)."""
        if not len(self.history_layers) or self.config.history_mask == "real":
            return super()._encode_history(state, compute_all=compute_all)
        history, valid = self._valid_history(state)
        # As released, the 0/1 mask is added to the scores instead of excluding padding.
        scores = valid[:, None].to(history.dtype).expand(-1, valid.shape[1], -1)
        for layer in self.history_layers:
            assert isinstance(layer, Layer)
            history = layer(Tokens.pack(history, torch.ones_like(valid)), mask=scores).padded
        return history, valid

    def _token_positions(self, observation: Observation) -> Tensor:
        """Return the positions of the tokens, (B, N, 3), or one position for all tokens, (B, 1, 3)."""
        agent = observation.agent_positions()[:, None]
        if observation.positions is None or self.config.candidate_position_source == "agent":
            return agent
        return observation.positions

    def _step_token(self, state: TdstpState, observation: Observation, actions: Tensor) -> Tensor:
        """Return the history token of one step, (B, H), without feature dropout; a jump has angle 0."""
        observation = replace(observation, feature_dropout=0.0)
        panorama = self._encode_panorama(state, observation) if self.config.encode_panorama else None
        is_step = actions < observation.token_type.shape[1]
        angles = observation.action_angles(torch.where(is_step, actions, 0)) * is_step[:, None]
        token = self.history(observation.facing_features(), angles, state.history_length - 1, panorama)
        if self.config.history_positions:
            token = token + self.position_encoder(observation.agent_positions() - state.origin)
        return token.detach() if self.config.freeze_history else token

    def _structured_mask(self, state: TdstpState, valid: Tensor, length: int) -> Tensor:
        """Return the self-attention mask (B, M, M) of M vision tokens.

        Among history tokens, each visited viewpoint attends only to adjacent ones (docs/spec.md D.6).
        """
        mask = valid[:, None] & valid[:, :, None]
        mask[:, 1:length, 1:length] &= state.edge_rank[:, 1:length, 1:length] > 0
        diagonal = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
        return mask | diagonal  # padding attends to itself: a softmax over nothing is NaN

    # -- graph of the trajectory -------------------------------------------------------------------------

    def _edge_ranks_from_agent(self, state: TdstpState, observation: Observation) -> Tensor:
        """Return ranks (B, S) of edges from the agent's viewpoint to the nodes, as in `TdstpState.edge_rank`.

        If the agent was at this viewpoint before, the ranks are those of that visit. Otherwise they follow
        the order of the candidates.
        """
        nodes = state.node_viewpoint[:, : state.history.shape[1]]
        is_here = nodes == observation.viewpoint[:, None] + 1
        leads_to = (nodes[:, :, None] == observation.neighbour[:, None] + 1) & (nodes > 0)[..., None]
        by_candidate = torch.where(leads_to.any(2), 1 + leads_to.int().argmax(2), 0)
        rows = torch.arange(len(nodes), device=nodes.device)
        stored = state.edge_rank[rows, is_here.int().argmax(1), : nodes.shape[1]]
        ranks = torch.where(is_here.any(1, keepdim=True), stored, by_candidate)
        return ranks.masked_fill(is_here, SELF_RANK)

    def _append_edges(self, state: TdstpState, observation: Observation) -> Tensor:
        """Return `state.edge_rank` with the agent's viewpoint added as a new node, (B, S + 1, S + 1)."""
        outgoing = self._edge_ranks_from_agent(state, observation)  # (B, S)
        is_here, width = outgoing == SELF_RANK, outgoing.shape[1]
        rows = torch.arange(len(outgoing), device=outgoing.device)
        # Edges to the new node: those of an earlier visit, else ranked after all known edges.
        stored = state.edge_rank[rows, :width, is_here.int().argmax(1)]
        found = torch.where(outgoing > 0, LATE_RANK + state.history_length[:, None], 0)
        incoming = torch.where(is_here.any(1, keepdim=True), stored, found).masked_fill(is_here, SELF_RANK)
        new, others = state.history_length, torch.arange(width, device=outgoing.device)
        ranks = functional.pad(state.edge_rank[:, :width, :width], (0, 1, 0, 1))
        ranks = ranks.index_put((rows[:, None], new[:, None], others), outgoing)
        ranks = ranks.index_put((rows[:, None], others, new[:, None]), incoming)
        return ranks.index_put((rows, new, new), torch.full_like(new, SELF_RANK))

    def _routes(self, state: TdstpState, observation: Observation) -> BacktrackRoutes:
        """Return the backtracking actions: one per node that is not at the agent's viewpoint."""
        width = state.history.shape[1]
        viewpoints = state.node_viewpoint[:, :width] - 1
        is_here = viewpoints == observation.viewpoint[:, None]
        is_closed = is_here if self.config.allow_backtracking else torch.ones_like(is_here)
        return BacktrackRoutes(
            first_action=observation.token_type.shape[1],
            viewpoints=viewpoints.masked_fill(is_closed, -1),
            views=state.node_view[:, :width],
            current_edge_rank=self._edge_ranks_from_agent(state, observation),
            edge_rank=state.edge_rank[:, :width, :width],
        )

    def _count_reversed_jumps(
        self, state: TdstpState, observation: Observation, routes: BacktrackRoutes
    ) -> Tensor:
        """Return, for each action, how often it reverses an earlier jump, (B, N + S).

        An action reverses a jump that led from the action's viewpoint to the agent's current viewpoint.
        """
        leads_to = torch.cat([observation.neighbour, routes.viewpoints], 1) + 1
        came_from = torch.where(state.jump_to == observation.viewpoint[:, None] + 1, state.jump_from, -1)
        is_repeat = (leads_to[:, :, None] == came_from[:, None]) & (leads_to > 0)[..., None]  # (B, N + S, S)
        return is_repeat.sum(2).to(state.origin)


def grid_points(size: int, spacing: float) -> Tensor:
    """Return the points (size², 3) of a horizontal square grid centred at 0; `spacing` is in metres.

    >>> grid_points(2, 6.0).tolist()
    [[-3.0, -3.0, 0.0], [-3.0, 3.0, 0.0], [3.0, -3.0, 0.0], [3.0, 3.0, 0.0]]
    """
    line = (torch.arange(size, dtype=torch.float32) - (size - 1) / 2) * spacing
    flat = torch.cartesian_prod(line, line).reshape(-1, 2) if size else torch.zeros(0, 2)
    return functional.pad(flat, (0, 1))


def _head_positions(valid: Tensor, length: int, mask: Tensor, num_points: int) -> OutputPositions:
    """Return the positions of the vision tokens that the heads read: history, candidates, STOP and target.

    `length` is the number of history tokens. `mask` (B, C) is True for candidates and STOP. `num_points` is
    the number of target tokens.
    """
    columns, end = torch.arange(valid.shape[1], device=valid.device), valid.shape[1] - num_points
    columns = torch.cat([columns[: length + mask.shape[1]], columns[end:]])
    return OutputPositions(columns, torch.cat([valid[:, :length], mask, valid[:, end:]], 1))
