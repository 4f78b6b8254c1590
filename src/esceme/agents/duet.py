"""DUET, Dual-scale Graph Transformer (Chen et al. 2022; docs/spec.md I).

Every episode grows a map of visited viewpoints and those seen from them. The coarse branch scores all nodes
of the map, the fine branch the candidates of the current panorama. A learned gate determines the weights of
both. An action leads to any node that is not visited yet. The agent ends at the visited viewpoint at which
STOP was most probable.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from esceme.agents.base import Decision, InputLimits, PrivilegedInfo, TokenBatch, num_choices
from esceme.agents.graph_map import GraphMap, MapRoutes
from esceme.agents.grounding import GroundedText
from esceme.agents.layers import (
    EPSILON,
    Attention,
    KeyValue,
    Layer,
    LinearNorm,
    OutputPositions,
    PreNormLayer,
    Tokens,
)
from esceme.agents.remembered_map import remembered_maps
from esceme.agents.tokens import TextEncoder, TransformerAgent, TransformerConfig, config_layer
from esceme.dropout import Dropout
from esceme.errors import ConfigError
from esceme.observation import Observation, RememberedPanoramas
from esceme.settings import Size
from esceme.world.atlas import STOP
from esceme.world.geometry import COLUMNS, TURN, VIEWS

LOCATION_WIDTH = 7
"""Numbers that locate a panorama token (angles and size) or a map node (angles, distances, edges)."""
CACHE_SIZE = 1_500
"""Maximum number of encoded panoramas that an evaluation keeps: 200 MB at the published size."""

PanoramaKey = tuple[int, bytes]
"""`viewpoint * 36 + faced view`, and a digest of the features if a reader has changed them."""


@dataclass(frozen=True, kw_only=True)
class DuetConfig(TransformerConfig):
    """Settings of DUET. The defaults are those of the published R2R script."""

    max_steps: Size = 100
    """Number of step embeddings. The first one is for nodes that were not visited. An episode may therefore
    have at most `max_steps` - 1 decisions."""
    freeze_text: bool = False
    """Whether to exclude the text encoder and its embeddings from training (`fix_lang_embedding`)."""
    fusion: Literal["dynamic", "avg"] = "dynamic"
    """Weights of the branches: a learned gate, or one half each."""
    graph_bias: bool = True
    """Whether distances between nodes bias the attention of the coarse branch (`graph_sprels`)."""
    revisit: bool = False
    """Whether actions may lead to visited nodes (`act_visited_nodes`). Only the current node is closed."""

    @property
    def limits(self) -> InputLimits:
        """Sizes of the embedding tables and of the feature projection."""
        return super().limits._replace(max_steps=self.max_steps - 1)


@dataclass(frozen=True, kw_only=True)
class DuetState(GraphMap):
    """State of B agents between two steps, for DUET: the map of the episode and the encoded instruction."""

    text: Tensor
    """(B, L, H): encoded instruction. L is 0 without a grounding head, the only reader of this field."""
    text_mask: Tensor
    """(B, L) bool: True for tokens of the instruction, False for padding."""
    word_grounding: Tensor
    """(B, L, G): embedding of each word for the grounding head."""
    word_key: Tensor
    """(B, L, H): keys of the words for the grounding head."""
    clause: Tensor
    """(B, L) int64: number of clauses that ended before each word."""
    text_kv: Tensor
    """(B, X, 2, L, H): keys and values of the text for the layers of the fine, then of the coarse branch."""
    num_decisions: Tensor
    """(B,) int64: number of decisions before the current one."""
    start: Tensor
    """(B,) int64: node at which the episode began."""
    current: Tensor
    """(B,) int64: node of the latest decision."""
    is_decided: Tensor
    """(B,) bool: whether the map contains the current observation."""
    panorama_cache: dict[PanoramaKey, Tensor] = field(default_factory=dict, compare=False)
    """Encoded panoramas (N, H) of an evaluation."""


class MapTokens(NamedTuple):
    """Inputs of the coarse branch: the STOP token, then the nodes of the map."""

    embedding: Tensor
    """(B, 1 + K, H): node embeddings; zeros for STOP."""
    step_id: Tensor
    """(B, 1 + K) int64: `GraphMap.step_id`; 0 for STOP."""
    position: Tensor
    """(B, 1 + K, 7): position features."""
    distance: Tensor
    """(B, 1 + K, 1 + K): metres between nodes; 0 for STOP and padding."""
    valid: Tensor
    """(B, 1 + K) bool: True for STOP and nodes, False for padding."""


class ViewTokens(NamedTuple):
    """Inputs of the fine branch: the tokens of the panorama, with a token for STOP."""

    embedding: Tensor
    """(B, N, H): encoded panorama; zeros for STOP."""
    position: Tensor
    """(B, N, 14): position features of the start node in every row, then those of a candidate or zeros."""
    valid: Tensor
    """(B, N) bool"""
    stop: Tensor
    """(B,) int64: token index of STOP."""


class DuetInputs(NamedTuple):
    """Inputs of both branches for one decision, and the updated map."""

    state: DuetState
    map_tokens: MapTokens
    view_tokens: ViewTokens
    candidates: Tensor
    """(B, C) int64: viewpoints of the candidates, -1 for padding; they are the first view tokens."""
    candidate_node: Tensor
    """(B, C) int64: nodes of the candidates, -1 for padding."""
    is_open: Tensor
    """(B, K) bool: nodes to which an action may lead."""


class BranchOutput(NamedTuple):
    """Outputs of both branches. Tokens that were not requested, and padding, are zero."""

    map_tokens: Tensor
    """(B, 1 + K, H)"""
    view_tokens: Tensor
    """(B, N, H)"""
    gate: Tensor
    """(B, 1): weight of the coarse branch."""
    map_scores: Tensor
    """(B, 1 + K): weighted scores of STOP and of the nodes."""
    view_scores: Tensor
    """(B, N): weighted scores of the panorama's tokens."""


class DUET(TransformerAgent[DuetState]):
    """The DUET network. `esceme.checkpoints` loads the published weights into it."""

    Config = DuetConfig
    config: DuetConfig
    keeps_map = True
    stops_at_limit = True

    def __init__(self, config: DuetConfig | None = None) -> None:
        super().__init__(config)
        config, hidden = self.config, self.config.hidden
        self.text = TextEncoder(config)
        self.panorama = PanoramaEncoder(config)
        self.view_positions = LinearNorm(2 * LOCATION_WIDTH, hidden)
        self.view_layers = nn.ModuleList(GraphLayer(config) for _ in range(config.cross_layers))
        self.map_positions = LinearNorm(LOCATION_WIDTH, hidden)
        self.steps = nn.Embedding(config.max_steps, hidden)
        self.map_layers = nn.ModuleList(GraphLayer(config) for _ in range(config.cross_layers))
        if config.graph_bias:
            self.distance_bias = nn.Linear(1, 1)
        self.map_head = ScoreHead(hidden, hidden)
        self.view_head = ScoreHead(hidden, hidden)
        if config.fusion == "dynamic":
            self.gate = ScoreHead(2 * hidden, hidden)
        self._initialise()
        if config.freeze_text:
            self.text.requires_grad_(False)

    @property
    def decision_layers(self) -> list[nn.Module]:
        """The layers of both branches."""
        return list(self._layers)

    # -- agent contract ----------------------------------------------------------------------------------

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> DuetState:
        """Return the initial state, which contains the encoded instructions and an empty map."""
        ids, valid = instructions
        encoded = self.encode_text(instructions)
        tokens = Tokens.pack(encoded, valid)
        return DuetState(
            **GraphMap.empty_fields(len(ids), self.config.hidden, encoded),
            text=encoded if self.config.grounding else encoded[:, :0],
            text_mask=valid,
            **self._word_fields(instructions, encoded),
            text_kv=torch.stack([layer.across.stack(tokens) for layer in self._layers], 1),
            num_decisions=torch.zeros_like(start),
            start=torch.zeros_like(start),
            current=torch.zeros_like(start),
            is_decided=torch.zeros_like(start, dtype=torch.bool),
        )

    def decide(self, state: DuetState, observation: Observation) -> Decision:
        """Return the scores of every open candidate, STOP and every other open node of the map."""
        num_tokens, stop = observation.token_type.shape[1], observation.num_candidates
        inputs = self.encode(state, observation)
        state, candidate_node, is_open = inputs.state, inputs.candidate_node, inputs.is_open
        fused = self.fuse(inputs, self.score(inputs))
        # STOP probability of the current node; actions in the order candidates, STOP, other open nodes.
        stop_probability = fused.detach().softmax(1)[:, 0]
        state = replace(
            state,
            stop_probability=state.stop_probability.index_put(
                (_rows(state.current), state.current), stop_probability
            ),
        )
        nodes = fused[:, 1:]
        logits = nodes.gather(1, candidate_node.clamp(min=0)).masked_fill(candidate_node < 0, -torch.inf)
        logits = functional.pad(logits, (0, num_tokens - logits.shape[1]), value=-torch.inf)
        logits = logits.scatter(1, stop[:, None], fused[:, :1])
        elsewhere = is_open & (state.node[:, :, None] != inputs.candidates[:, None] + 1).all(2)
        routes = MapRoutes(
            num_tokens,
            (state.node - 1).masked_fill(~elsewhere, -1),
            state.current,
            state.node,
            state.middle,
        )
        logits = torch.cat([logits, nodes.masked_fill(~elsewhere, -torch.inf)], 1)
        return Decision(logits, routes=routes, state=state)

    def advance(self, state: DuetState, observation: Observation, actions: Tensor) -> DuetState:
        """Return the state after a move. If the map lacks this observation, `decide` is called first."""
        if not state.is_decided.all():
            state = self.decide(state, observation).state  # type: ignore[assignment]
        return replace(
            state,
            num_decisions=state.num_decisions + 1,
            is_decided=torch.zeros_like(state.is_decided),
        )

    def text_attention(self, state: DuetState, observation: Observation) -> Tensor | None:
        """Return the importance that the grounding head gives to each word, (B, L); None without a head."""
        if not self.config.grounding:
            return None
        return self.grounding.importance(*self._grounding_inputs(state)).softmax(1)

    def final_paths(self, state: DuetState) -> list[list[int]]:
        """Return each agent's way to the visited viewpoint at which STOP was most probable, as viewpoints."""
        return state.way_to_best_stop(state.current)

    def final_margin(self, state: DuetState) -> Tensor:
        """Return the difference of the two largest log probabilities of STOP at visited nodes, (B,)."""
        best = state.stop_probability.log().masked_fill(~state.is_visited, -torch.inf)
        best = functional.pad(best, (0, 1), value=-torch.inf).topk(2, 1).values
        return best[:, 0] - best[:, 1]

    # -- encoders ----------------------------------------------------------------------------------------

    def encode(
        self, state: DuetState, observation: Observation, *, tokens: Tensor | None = None
    ) -> DuetInputs:
        """Encode the panoramas, update the maps, and return the inputs of both branches.

        `tokens` (B, N, H) are encoded panoramas, if they are known; STOP and padding are zero.
        """
        if not self.uses_context_views:
            observation = observation.without_context_views()
        stop_token = None
        if tokens is None:
            tokens, stop_token = self._encode_observation(state, observation)
        candidates = observation.neighbour[:, : num_choices(observation) - 1]
        if observation.remembered is not None:
            state = self._remember(state, observation.remembered)
        state = self._update_map(state, observation, tokens, candidates)
        candidate_node = state.find(candidates)
        is_linked = state.distance[_rows(state.current), state.current].isfinite() & (state.node > 0)
        position = state.position_features(state.current, observation.facing_view)
        return DuetInputs(
            state,
            self._map_tokens(state, position, is_linked),
            self._view_tokens(observation, tokens, stop_token, position, state.start, candidate_node),
            candidates,
            candidate_node,
            is_linked & ~self._is_closed(state),
        )

    def encode_text(self, instructions: TokenBatch) -> Tensor:
        """Return the encoded instructions, (B, L, H)."""
        encoded: Tensor = self.text(instructions)
        return encoded.detach() if self.config.freeze_text else encoded

    def _encode_observation(self, state: DuetState, observation: Observation) -> tuple[Tensor, Tensor | None]:
        """Return the encoded panoramas (B, N, H), zero for STOP and padding, and the token of STOP (B, H).

        Without a grounding head, the token of STOP is None instead of zeros.
        """
        if self.config.grounding:
            grounded = self._ground(state, observation)
            stop = grounded[_rows(observation.viewpoint), observation.num_candidates]
            return self.encode_panorama(observation, grounded), stop
        if self.training or torch.is_grad_enabled():
            return self.encode_panorama(observation), None
        return self._cached_panoramas(state.panorama_cache, observation), None

    def _cached_panoramas(self, cache: dict[PanoramaKey, Tensor], observation: Observation) -> Tensor:
        """Return the encoded panoramas (B, N, H), after encoding those that are not in `cache`."""
        keys = _panorama_keys(observation)
        if missing := {key: row for row, key in enumerate(keys) if key not in cache}:
            rows = torch.tensor(list(missing.values()), device=observation.viewpoint.device)
            encoded = self.encode_panorama(observation.select(rows))
            valid = observation.valid[rows]
            cache.update(
                (key, tokens[is_valid]) for key, tokens, is_valid in zip(missing, encoded, valid, strict=True)
            )
        found = torch.cat([cache[key] for key in keys])
        if len(cache) > CACHE_SIZE:
            cache.clear()
        tokens = found.new_zeros(*observation.valid.shape, found.shape[1])
        tokens[observation.valid] = found  # padding may also precede the token of a memory reader
        return tokens

    def encode_panorama(self, observation: Observation, grounded: Tensor | None = None) -> Tensor:
        """Return the encoded tokens of panoramas, (B, N, H), with zeros for STOP and padding."""
        location = location_features(observation)
        is_view = observation.valid & (observation.token_type != STOP)
        return self.panorama(
            observation.features,
            location,
            observation.is_candidate.long(),
            is_view,
            self.text.kinds.weight[1],
            grounded,
        )

    def _ground(self, state: DuetState, observation: Observation) -> Tensor:
        """Return the grounding head's vector for each token, (B, N, H). STOP has the panorama's maximum."""
        is_stop = (observation.token_type == STOP)[..., None]
        shown = observation.with_features(
            torch.where(is_stop, observation.max_features()[:, None], observation.features)
        )
        return cast(Tokens, self.grounding(shown, *self._grounding_inputs(state))).padded

    def _grounding_inputs(self, state: DuetState) -> tuple[Tensor, Tensor, GroundedText]:
        """Return history tokens (B, S, H), step numbers (B,) and text for the grounding head.

        The history token of a step is the embedding of the node visited before, or zeros.
        """
        step = state.num_decisions
        is_latest = state.is_visited & (state.step_id == step[:, None])
        latest = (state.node_embedding * is_latest[..., None]).sum(1, keepdim=True)
        text = GroundedText(
            state.text, state.text_mask, state.word_grounding, state.word_key, state.clause, None
        )
        return latest.expand(-1, int(step.max()) + 1, -1), step, text

    # -- map ---------------------------------------------------------------------------------------------

    def _remember(self, state: DuetState, remembered: RememberedPanoramas) -> DuetState:
        """Return the state with the remembered panoramas added to the maps of episodes that begin.

        Panoramas are encoded anew, without dropout, grounding and gradients.
        """
        panoramas = remembered.panoramas
        if not self.uses_context_views:
            panoramas = panoramas.without_context_views()
        was_training = self.panorama.training
        self.panorama.eval()
        with torch.no_grad():
            cache = {} if was_training or torch.is_grad_enabled() else state.panorama_cache
            tokens = self._cached_panoramas(cache, panoramas)
        self.panorama.train(was_training)
        is_new = state.num_decisions == 0
        known = remembered.known & is_new[:, None]
        return state.add_disjoint(remembered_maps(RememberedPanoramas(panoramas, known), tokens))

    def _update_map(
        self, state: DuetState, observation: Observation, tokens: Tensor, candidates: Tensor
    ) -> DuetState:
        """Return the state with the current viewpoint and its candidates (B, C) in the map.

        The mean of `tokens` (B, N, H) becomes the embedding of the current node. The token of an unvisited
        candidate is added to the embedding of its node.
        """
        if int(state.num_decisions.max()) + 1 >= self.config.max_steps:
            raise ConfigError(
                f"step {int(state.num_decisions.max())} is beyond the {self.config.max_steps} step "
                "embeddings of this network; set a smaller max_steps"
            )
        positions = observation.positions
        here = observation.agent_positions()[:, None]
        assert positions is not None  # checked by agent_positions
        viewpoints = torch.cat([observation.viewpoint[:, None], candidates], 1)
        state = state.insert(viewpoints, torch.cat([here, positions[:, : candidates.shape[1]]], 1))
        nodes, rows = state.find(viewpoints), _rows(observation.viewpoint)
        current, neighbours = nodes[:, 0], nodes[:, 1:]
        state = state.connect(current, neighbours)
        is_passable = (neighbours >= 0) & state.is_observed[rows[:, None], neighbours.clamp(min=0)]
        if is_passable.any():  # edges to remembered nodes may link parts of the map
            state = state.begin_ways(current, neighbours.masked_fill(~is_passable, -1))
        state = state.relax(current)
        # Embeddings: glimpses of nodes whose own panorama was never seen, then the current panorama.
        num_views = (observation.valid & (observation.token_type != STOP)).sum(1)
        mean = tokens.sum(1) / num_views[:, None]
        is_observed = state.is_observed.index_put((rows, current), torch.ones_like(rows, dtype=torch.bool))
        glimpsed = (neighbours >= 0) & ~is_observed[rows[:, None], neighbours.clamp(min=0)]
        row, slot = glimpsed.nonzero(as_tuple=True)
        where = (row, neighbours[row, slot])
        embedding = state.embedding.index_put(where, tokens[row, slot].to(state.embedding), accumulate=True)
        sightings = state.num_sightings.index_put(where, torch.ones_like(row), accumulate=True)
        return replace(
            state,
            embedding=embedding.index_put((rows, current), mean.to(embedding)),
            num_sightings=sightings.index_put((rows, current), torch.ones_like(rows)),
            is_observed=is_observed,
            step_id=state.step_id.index_put((rows, current), state.num_decisions + 1),
            start=torch.where(state.num_decisions == 0, current, state.start),
            current=current,
            is_decided=torch.ones_like(state.is_decided),
        )

    def _is_closed(self, state: DuetState) -> Tensor:
        """Return (B, K) bool: True for nodes that no action may lead to."""
        if not self.config.revisit:
            return state.is_visited
        return torch.arange(state.node.shape[1], device=state.node.device) == state.current[:, None]

    def _map_tokens(self, state: DuetState, position: Tensor, is_linked: Tensor) -> MapTokens:
        distance = state.distance.masked_fill(~(is_linked[:, :, None] & is_linked[:, None]), 0.0)
        embedding = state.node_embedding
        stop = position.new_tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]).expand(len(position), 1, -1)
        return MapTokens(
            embedding=functional.pad(embedding, (0, 0, 1, 0)),
            step_id=functional.pad(state.step_id, (1, 0)),
            position=torch.cat([stop, position], 1).to(embedding),
            distance=functional.pad(distance, (1, 0, 1, 0)).float().to(embedding),
            valid=functional.pad(is_linked, (1, 0), value=True),
        )

    def _view_tokens(
        self,
        observation: Observation,
        tokens: Tensor,
        stop_token: Tensor | None,
        position: Tensor,
        start_node: Tensor,
        candidate_node: Tensor,
    ) -> ViewTokens:
        stop, rows = observation.num_candidates, _rows(observation.viewpoint)
        if stop_token is not None:
            tokens = tokens.index_put((rows, stop), stop_token.to(tokens))
        start = position[rows, start_node][:, None].expand(-1, tokens.shape[1], -1)
        ahead = position[rows[:, None], candidate_node.clamp(min=0)] * (candidate_node >= 0)[..., None]
        ahead = functional.pad(ahead, (0, 0, 0, tokens.shape[1] - ahead.shape[1]))
        return ViewTokens(tokens, torch.cat([start, ahead], 2).to(tokens), observation.valid, stop)

    # -- branches ----------------------------------------------------------------------------------------

    @property
    def _layers(self) -> list[GraphLayer]:
        return cast(list[GraphLayer], [*self.view_layers, *self.map_layers])

    def score(self, inputs: DuetInputs, *, compute_all: bool = False) -> BranchOutput:
        """Run both branches and their heads.

        The last layers compute only STOP, open nodes and candidates, unless `compute_all`.
        """
        map_tokens, view_tokens, text_mask = inputs.map_tokens, inputs.view_tokens, inputs.state.text_mask
        mask = None if text_mask.all() else text_mask[:, None, None]
        texts = [
            KeyValue.unstack(stacked, self.config.heads, mask) for stacked in inputs.state.text_kv.unbind(1)
        ]
        # Coarse branch; distances bias its self-attention.
        embedded = map_tokens.embedding + self.steps(map_tokens.step_id)
        embedded = embedded + self.map_positions(map_tokens.position)
        bias = embedded.new_zeros(()).masked_fill(~map_tokens.valid[:, None], -torch.inf)  # (B, 1, G)
        if self.config.graph_bias:
            bias = bias + self.distance_bias(map_tokens.distance[..., None]).squeeze(3)
        bias = bias.expand(-1, embedded.shape[1], -1)
        outputs = None if compute_all else _outputs(functional.pad(inputs.is_open, (1, 0), value=True))
        nodes = _run(
            self._layers[len(self.view_layers) :],
            Tokens.pack(embedded, map_tokens.valid),
            texts[len(self.view_layers) :],
            outputs,
            bias.to(embedded.dtype),
        )
        # Fine branch.
        embedded = view_tokens.embedding + self.view_positions(view_tokens.position)
        outputs = None
        if not compute_all:  # candidates and STOP, which are the first tokens of a row
            columns = torch.arange(inputs.candidates.shape[1] + 1, device=embedded.device)
            outputs = _outputs(columns <= view_tokens.stop[:, None])
        views = _run(
            self._layers[: len(self.view_layers)],
            Tokens.pack(embedded, view_tokens.valid),
            texts[: len(self.view_layers)],
            outputs,
            None,
        )
        # Heads in full precision: half precision would produce ties.
        with torch.autocast(nodes.device.type, enabled=False):
            nodes, views = (tokens.to(self.steps.weight.dtype) for tokens in (nodes, views))
            gate = torch.full_like(nodes[:, :1, 0], 0.5)
            if self.config.fusion == "dynamic":
                stops = torch.cat([nodes[:, 0], views[_rows(view_tokens.stop), view_tokens.stop]], 1)
                gate = self.gate(stops).sigmoid()
            map_scores = gate * self.map_head(nodes).squeeze(2)
            view_scores = (1 - gate) * self.view_head(views).squeeze(2)
        return BranchOutput(nodes, views, gate, map_scores, view_scores)

    def fuse(self, inputs: DuetInputs, output: BranchOutput) -> Tensor:
        """Return the fused scores of STOP and of the nodes, (B, 1 + K); -inf for nodes that are not open.

        The score of an open candidate is the sum of its scores in both branches. To reach any other open
        node, the agent goes back through closed candidates. The sum of their scores in the fine branch is
        added to the score of the node in the coarse branch.
        """
        candidate_node, is_open = inputs.candidate_node, inputs.is_open
        scores, nodes = output.view_scores[:, : candidate_node.shape[1]], candidate_node.clamp(min=0)
        is_back = (candidate_node >= 0) & ~is_open.gather(1, nodes)
        back = (scores * is_back).sum(1, keepdim=True).expand(-1, is_open.shape[1])
        row, slot = ((candidate_node >= 0) & ~is_back).nonzero(as_tuple=True)
        views = back.index_put((row, nodes[row, slot]), scores[row, slot])
        stop = output.map_scores[:, :1] + output.view_scores.gather(1, inputs.view_tokens.stop[:, None])
        return torch.cat([stop, (output.map_scores[:, 1:] + views).masked_fill(~is_open, -torch.inf)], 1)


class PanoramaEncoder(nn.Module):
    """Pre-norm transformer over the tokens of a panorama (docs/spec.md I.3)."""

    def __init__(self, config: DuetConfig) -> None:
        super().__init__()
        self.picture = LinearNorm(config.feature_width, config.hidden)
        self.location = LinearNorm(config.angle_width + 3, config.hidden)
        self.kinds = nn.Embedding(3, config.hidden)
        """Token types: 0 view, 1 candidate, 2 object (unused here)."""
        self.norm = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(
            PreNormLayer(config.hidden, config.heads, config.feed_forward, dropout=config.dropout)
            for _ in range(config.panorama_layers)
        )
        self.final_norm = nn.LayerNorm(config.hidden, eps=EPSILON)

    def forward(
        self,
        features: Tensor,
        location: Tensor,
        kinds: Tensor,
        valid: Tensor,
        vision_type: Tensor,
        grounded: Tensor | None = None,
    ) -> Tensor:
        """Return the encoded tokens (B, N, H), with zeros where `valid` (B, N) is False.

        Inputs are image features (B, N, D), location features (B, N, 7), token types (B, N), the embedding of
        the token type vision (H,), and vectors (B, N, H) of a grounding head.
        """
        embedded = self.picture(features) + self.location(location) + self.kinds(kinds) + vision_type
        tokens = self.dropout(self.norm(embedded if grounded is None else embedded + grounded))
        layers = cast(Iterable[PreNormLayer], self.layers)
        if not self.training and not torch.is_grad_enabled():
            packed = Tokens.pack(tokens, valid)
            for layer in layers:
                packed = layer.infer(packed)
            return packed.layout.pad(self.final_norm(packed.rows))
        for layer in layers:
            tokens = layer(tokens, src_key_padding_mask=~valid)
        return self.final_norm(tokens).masked_fill(~valid[..., None], 0.0)


class GraphLayer(nn.Module):
    """Cross-modal layer of one branch: its tokens attend to the text, then to each other."""

    def __init__(self, config: DuetConfig) -> None:
        super().__init__()
        self.across = Attention(config.hidden, config.heads, dropout=config.dropout, epsilon=config.epsilon)
        self.vision: Layer = config_layer(config)

    def forward(
        self, tokens: Tokens, text: KeyValue, *, outputs: OutputPositions | None, mask: Tensor | None
    ) -> Tokens:
        """Return the tokens at `outputs`, or all. `mask` (B, L, L) is added to self-attention scores."""
        attended = self.across(tokens, text)
        return cast(Tokens, self.vision(attended, outputs=outputs, mask=mask))


class ScoreHead(nn.Sequential):
    """Head that computes one score per token, (..., width) -> (..., 1), without dropout."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(
            nn.Linear(width, hidden), nn.ReLU(), nn.LayerNorm(hidden, eps=EPSILON), nn.Linear(hidden, 1)
        )


def _panorama_keys(observation: Observation) -> list[PanoramaKey]:
    """Return a key for each panorama; panoramas with equal keys have equal tokens."""
    poses = (observation.viewpoint * VIEWS + observation.facing_view).tolist()
    if observation.features is observation.raw_features:
        return [(pose, b"") for pose in poses]
    rows, valid = observation.features.float().cpu(), observation.valid.cpu()
    views = [row[is_valid].numpy() for row, is_valid in zip(rows, valid, strict=True)]
    digests = [hashlib.blake2b(view, digest_size=16).digest() for view in views]
    return list(zip(poses, digests, strict=True))


def location_features(observation: Observation) -> Tensor:
    """Return angles relative to the faced view and the size of each token, (B, N, 7); zeros for padding.

    Observations have absolute elevations; here they are relative as well. The size of a view is 1, 1, 1.
    """
    row = (observation.facing_view // COLUMNS - 1) * TURN
    sine, cosine = row.sin()[:, None, None], row.cos()[:, None, None]
    up, level = observation.angles[..., 2:3], observation.angles[..., 3:4]
    relative = [up * cosine - level * sine, level * cosine + up * sine]
    size = torch.ones_like(observation.angles[..., :3])
    features = torch.cat([observation.angles[..., :2], *relative, size], 2)
    return features.to(observation.angles) * observation.valid[..., None]


def _run(
    layers: list[GraphLayer],
    tokens: Tokens,
    texts: list[KeyValue],
    outputs: OutputPositions | None,
    mask: Tensor | None,
) -> Tensor:
    """Return the tokens after all layers of a branch, (B, L, H); the last computes only `outputs`."""
    for depth, (layer, text) in enumerate(zip(layers, texts, strict=True), 1):
        tokens = layer(tokens, text, outputs=outputs if depth == len(layers) else None, mask=mask)
    return tokens.padded


def _outputs(valid: Tensor) -> OutputPositions:
    """Return the first R token positions, with outputs computed where `valid` (B, R) is True."""
    return OutputPositions(torch.arange(valid.shape[1], device=valid.device), valid)


def _rows(values: Tensor) -> Tensor:
    """Return the batch indices 0 to B - 1 of a tensor whose first axis is the batch."""
    return torch.arange(len(values), device=values.device)
