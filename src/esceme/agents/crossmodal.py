"""Base of HAMT and TD-STP: text, history and observation tokens, and the cross-modal encoder over them.

Vision tokens are the history and observation tokens. A subclass may add further vision tokens. The subclass
computes action scores from the encoder's outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from esceme.agents.base import State, TokenBatch, num_choices
from esceme.agents.grounding import GroundedText
from esceme.agents.layers import (
    ActionHead,
    Critic,
    CrossLayer,
    Groups,
    KeyValue,
    OutputPositions,
    Tokens,
)
from esceme.agents.tokens import (
    HamtConfig,
    HistoryEncoder,
    ObservationEncoder,
    TextEncoder,
    TransformerAgent,
    config_layer,
)
from esceme.observation import Observation
from esceme.world.atlas import STOP
from esceme.world.geometry import COLUMNS, VIEWS

TEXT_CACHE_SIZE = 20_000
"""Maximum number of encoded instructions in the cache of `HamtConfig.read_once`."""


@dataclass(frozen=True)
class CrossModalState(State):
    """State of B agents between two steps, for HAMT and TD-STP."""

    text: Tensor
    """(B, L, H): encoded instruction, one vector per token."""
    text_mask: Tensor
    """(B, L) bool: True for tokens of the instruction, False for padding."""
    word_grounding: Tensor
    """(B, L, G): embedding of each word for the grounding head; G is 0 without a grounding head."""
    word_key: Tensor
    """(B, L, H): keys of the words for the grounding head; the width is 0 without a grounding head."""
    clause: Tensor
    """(B, L) int64: number of clauses of the instruction that ended before each word."""
    text_kv: Tensor
    """(B, X, 2, L, H): precomputed keys and values of the text for the first X cross-modal layers. With
    language cross-attention X is 1, because the first layer changes the text; otherwise it is the number of
    layers."""
    history: Tensor
    """(B, S, H): history tokens: one learned global token, then one token per step."""
    history_length: Tensor
    """(B,) int64: number of valid history tokens, which is the step number plus 1."""
    groups: Groups | None = None
    """Groups of steps that share an instruction. Set by `decide_all` only; otherwise None."""
    panorama_cache: dict[int, Tensor] = field(default_factory=dict, compare=False)
    """Cache of encoded panoramas for evaluation. The key is `viewpoint * 36 + column of the faced view`."""


S = TypeVar("S", bound=CrossModalState)


class CrossModal(TransformerAgent[S]):
    """HAMT's modules and the parts of its forward pass that TD-STP shares."""

    config: HamtConfig

    def __init__(self, config: HamtConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        self.text = TextEncoder(config)
        self.sight = ObservationEncoder(config)
        self.history = HistoryEncoder(config)
        self.history_layers = nn.ModuleList(config_layer(config) for _ in range(config.history_layers))
        self.cross_layers = nn.ModuleList(
            CrossLayer(
                config.hidden,
                config.heads,
                config.feed_forward,
                dropout=config.dropout,
                epsilon=config.epsilon,
            )
            for _ in range(config.cross_layers)
        )
        self.action = ActionHead(config.hidden, dropout=config.head_dropout)
        self._initialise()
        self.critic = Critic(config.hidden, config.critic_inner, dropout=config.critic_dropout)
        if config.freeze_text:
            self.text.layers.requires_grad_(False)
        self._text_cache: dict[tuple[int, ...], Tensor] = {}

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critic."""
        return list(self.critic.parameters())

    @property
    def decision_layers(self) -> list[nn.Module]:
        """The cross-modal layers."""
        return list(self.cross_layers)

    @property
    def no_weight_decay(self) -> list[nn.Parameter]:
        """The token type embeddings if encoded text is cached, otherwise none.

        Weight decay would change these embeddings and so make the cache outdated.
        """
        return list(self.text.kinds.parameters()) if self.config.read_once else []

    # -- text --------------------------------------------------------------------------------------------

    def encode_text(self, instructions: TokenBatch, *, compute_all: bool = False) -> Tensor:
        """Return the encoded instructions, (B, L, H).

        With `compute_all` the cache is not used, and padding is encoded too.
        """
        if self.config.read_once and not compute_all:
            return self._cached_text(instructions)
        encoded = self.text(instructions, compute_all=compute_all)
        return encoded.detach() if self.config.freeze_text else encoded

    def _cached_text(self, instructions: TokenBatch) -> Tensor:
        """Return the encoded instructions, (B, L, H), from the cache, after encoding those that are missing.

        Each instruction is encoded alone, so that its encoding does not depend on the batch.
        """
        encoded = []
        for ids, valid in zip(instructions.ids, instructions.valid, strict=True):
            key = tuple(ids[valid].tolist())
            if key not in self._text_cache:
                if len(self._text_cache) >= TEXT_CACHE_SIZE:
                    self._text_cache.pop(next(iter(self._text_cache)))
                self._text_cache[key] = self._encode_instruction(ids[valid])
            encoded.append(self._text_cache[key])
        return nn.utils.rnn.pad_sequence(encoded, batch_first=True)

    def _encode_instruction(self, ids: Tensor) -> Tensor:
        """Return the encoding of one instruction, given its token ids, without dropout: (L,) -> (L, H)."""
        was_training = self.text.training
        self.text.eval()
        with torch.inference_mode(False), torch.no_grad():  # training may reuse what evaluation cached
            encoded = self.text(TokenBatch(ids[None], torch.ones_like(ids[None], dtype=torch.bool)))[0]
        self.text.train(was_training)
        return encoded

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load weights and clear the text cache, whose content was computed with the old weights."""
        self._text_cache.clear()
        super()._load_from_state_dict(*args)

    def text_per_layer(self, encoded: Tensor, valid: Tensor, *, compute_all: bool = False) -> list[Tensor]:
        """Return the text that each cross-modal layer reads if vision cannot change it: T, G0(T), G1(T), ….

        T is the encoded text, (B, L, H), and Gi the text half of layer i. Every Gi is applied to T itself,
        not to the output of another layer. The text half of the last layer is not needed.
        """
        tokens = Tokens.pack(encoded, valid, compute_all=compute_all)
        return [encoded, *(layer.text(tokens).padded for layer in self._layers[:-1])]

    def _initial_fields(self, instructions: TokenBatch) -> tuple[dict[str, Any], Tokens]:
        """Return the fields of `CrossModalState` at the start of an episode, by name, and the last text.

        The last text is what the last cross-modal layer reads if vision cannot change the text; otherwise it
        is the encoded instruction.
        """
        ids, valid = instructions
        encoded = self.encode_text(instructions)
        tokens, is_fixed = Tokens.pack(encoded, valid), not self.config.language_cross_attention
        texts = [tokens, *(layer.text(tokens) for layer in self._layers[:-1])] if is_fixed else [tokens]
        pairs = [layer.across.stack(text) for layer, text in zip(self._layers, texts, strict=is_fixed)]
        history = self.history.begin(len(encoded))
        fields = {
            "text": encoded,
            "text_mask": valid,
            **self._word_fields(instructions, encoded),
            "text_kv": torch.stack(pairs, 1),
            "history": history.detach() if self.config.freeze_history else history,
            "history_length": torch.ones(len(encoded), dtype=torch.int64, device=encoded.device),
        }
        return fields, texts[-1]

    # -- vision ------------------------------------------------------------------------------------------

    def _valid_history(self, state: S) -> tuple[Tensor, Tensor]:
        """Return the history tokens, (B, S, H), cut to the longest history, and a validity mask, (B, S)."""
        history = state.history[:, : int(state.history_length.max())]
        return history, torch.arange(history.shape[1], device=history.device) < state.history_length[:, None]

    def _encode_history(self, state: S, *, compute_all: bool) -> tuple[Tensor, Tensor]:
        """Return the outputs of the history layers, (B, S, H), and a mask of valid history tokens, (B, S)."""
        history, valid = self._valid_history(state)
        for layer in self.history_layers:
            history = layer(Tokens.pack(history, valid, compute_all=compute_all)).padded
        return history, valid

    def _prepare_observation(self, observation: Observation) -> Observation:
        """Return the observation as the settings `context_views` and `stop_features` require it."""
        if not self.uses_context_views:
            observation = observation.without_context_views()
        if self.config.stop_features == "panorama-max":
            is_stop = (observation.token_type == STOP)[..., None]
            panorama = observation.max_features()[:, None]
            observation = observation.with_features(torch.where(is_stop, panorama, observation.features))
        return observation

    def _encode_observation(self, state: S, observation: Observation, *, compute_all: bool) -> Tensor:
        """Return the observation tokens, (B, N, H)."""
        grounded = None
        if self.config.grounding:
            grounded = self.grounding(
                observation, state.history, state.history_length - 1, _grounded_text(state)
            )
        vision_type = self.text.kinds.weight[1]
        tokens = self.sight(observation, vision_type, grounded, compute_all=compute_all)
        return tokens.detach() if self.config.freeze_observation else tokens

    def _history_token(
        self, observation: Observation, actions: Tensor, step: Tensor, panorama: Tensor | None
    ) -> Tensor:
        """Return the history token of one step, (B, H).

        `step` (B,) are the step numbers, and `panorama` (B, H) the encoded panoramas, or None without them.
        """
        token = self.history(
            observation.facing_features(), observation.action_angles(actions), step, panorama
        )
        return token.detach() if self.config.freeze_history else token

    def _encode_panorama(self, state: S, observation: Observation) -> Tensor:
        """Return the encoded panoramas, (B, H). In evaluation, they are cached in `state.panorama_cache`."""
        if self.training or torch.is_grad_enabled():
            return self.history.encode_panorama(
                observation.panorama_features(), observation.panorama_angles()
            )
        cache = state.panorama_cache
        keys = (observation.viewpoint * VIEWS + observation.facing_view % COLUMNS).tolist()
        missing = {key: row for row, key in enumerate(keys) if key not in cache}
        if missing:
            rows = torch.tensor(list(missing.values()), device=observation.viewpoint.device)
            new = observation.select(rows)
            encoded = self.history.encode_panorama(new.panorama_features(), new.panorama_angles())
            cache.update(zip(missing, encoded, strict=True))
        return torch.stack([cache[key] for key in keys])

    def text_attention(self, state: S, observation: Observation) -> Tensor:
        """Return the attention to the words, (B, L).

        With a grounding head, the result is the importance that the head gives to each word. Otherwise it is
        the attention of candidates and STOP in the last cross-modal layer, averaged over heads and weighted
        with the probability of each action.
        """
        if self.config.grounding:
            text = _grounded_text(state)
            return self.grounding.importance(state.history, state.history_length - 1, text).softmax(1)
        across, calls = self._layers[-1].across, list[tuple[Tokens, KeyValue]]()
        hook = across.register_forward_pre_hook(lambda module, arguments: calls.append(arguments))
        try:
            decision = self.decide(state, observation)
        finally:
            hook.remove()
        weights = across.weights(*calls[-1])  # (B, M, L): the last call is that of the vision tokens
        choices = num_choices(observation)
        first = int(state.history_length.max())  # history tokens precede those of the observation
        probability = decision.logits[:, :choices].softmax(1)
        return (probability[:, None] @ weights[:, first : first + choices]).squeeze(1)

    # -- text and vision ---------------------------------------------------------------------------------

    @property
    def _layers(self) -> list[CrossLayer]:
        return cast(list[CrossLayer], list(self.cross_layers))

    def _cross_encode(
        self,
        state: S,
        vision: Tokens,
        outputs: OutputPositions | None,
        *,
        compute_all: bool,
        mask: Tensor | None = None,
    ) -> tuple[Tokens, Tokens]:
        """Run all cross-modal layers and return the text tokens and the vision tokens.

        The last layer computes only the vision tokens at `outputs`, or all of them if `outputs` is None.
        `mask` (B, M, M) bool masks the self-attention of the M vision tokens. Without language
        cross-attention, the returned text is the encoded instruction.
        """
        text = Tokens.pack(state.text, state.text_mask, compute_all=compute_all)
        first = None if outputs is None else OutputPositions(outputs.columns[:1], outputs.valid[:, :1])
        for depth, layer in enumerate(self._layers):
            is_last = depth == len(self._layers) - 1
            text_kv = self._layer_text_kv(state, depth, text.layout.mask)
            if self.config.language_cross_attention:
                ends = {"text_outputs": first, "vision_outputs": outputs} if is_last else {}
                text, vision = layer(text, vision, text_kv=text_kv, mask=mask, **ends)
            else:
                attended = layer.across(vision, text_kv)
                vision = layer.vision(attended, outputs=outputs if is_last else None, mask=mask)
        return text, vision

    def _layer_text_kv(self, state: S, depth: int, mask: Tensor | None) -> KeyValue | None:
        """Return the precomputed keys and values of the text for layer `depth`, or None if there are none."""
        if depth >= state.text_kv.shape[1]:
            return None
        return KeyValue.unstack(state.text_kv[:, depth], self.config.heads, mask, state.groups)

    def _action_factor(self, text: Tensor, history: Tensor) -> Tensor:
        """Return the vector (B, H) that multiplies every token before the action head (docs/spec.md B.7)."""
        ones = torch.ones_like(history)
        if not self.config.language_cross_attention:
            return ones
        factors = {"ob": ones, "ob_txt": text, "ob_hist": history, "ob_txt_hist": text + history}
        return factors[self.config.action_input]

    def _score(self, tokens: Tensor) -> Tensor:
        """Return the action head's score of every token, (B, N, H) -> (B, N)."""
        with torch.autocast(tokens.device.type, enabled=False):  # half precision would produce ties
            return cast(Tensor, self.action(tokens.to(self.text.kinds.weight.dtype))).squeeze(2)


def _grounded_text(state: CrossModalState) -> GroundedText:
    """Return the inputs of the grounding head from the instructions."""
    return GroundedText(
        state.text, state.text_mask, state.word_grounding, state.word_key, state.clause, state.groups
    )
