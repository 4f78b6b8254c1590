"""What HAMT and those built on it share: text, history and sight as tokens, and the layers between them.

A subclass says which tokens vision has, and what is read of the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from esceme.agents.base import Agent, State, TokenBatch
from esceme.agents.grounding import Grounding, Instruction, number_clauses
from esceme.agents.layers import (
    ActionHead,
    Attention,
    Critic,
    CrossLayer,
    Groups,
    KeyValue,
    LinearNorm,
    OutputPositions,
    Tokens,
    initialise,
)
from esceme.agents.tokens import HamtConfig, HistoryEncoder, ObservationEncoder, TextEncoder, layer_of
from esceme.observation import Observation
from esceme.world.atlas import STOP
from esceme.world.geometry import COLUMNS, VIEWS

KNOWN_TEXTS = 20_000
"""How many instructions are kept that were read once."""


@dataclass(frozen=True)
class CrossModalState(State):
    """What such an agent carries from step to step."""

    words: Tensor
    """(B, L, H): the encoded instruction."""
    heard: Tensor
    """(B, L) bool: True but for padding."""
    named: Tensor
    """(B, L, G): what each word looks like, for the grounding head."""
    clause: Tensor
    """(B, L) int64: how many clauses ended before each word."""
    spoken: Tensor
    """(B, X, 2, L, H): keys and values of the text for the first X cross layers, which never change: for one
    where text attends to vision, for all where it does not."""
    history: Tensor
    """(B, S, H): the global token and one per step."""
    lived: Tensor
    """(B,): how many history tokens count; the step number is one less."""
    groups: Groups | None = None
    """Where agents stand for steps of known walks: which of them share an instruction, kept once for all."""
    panoramas: dict[int, Tensor] = field(default_factory=dict, compare=False)
    """Encoded panoramas by viewpoint and faced column: in evaluation each is encoded once."""


S = TypeVar("S", bound=CrossModalState)


class CrossModal(Agent[S]):
    """The modules of HAMT, and how tokens are made and related."""

    config: HamtConfig

    def __init__(self, config: HamtConfig | None = None) -> None:
        """Build the network, drawing weights as BERT does."""
        super().__init__()
        self.config = config = config or HamtConfig()
        self.text = TextEncoder(config)
        self.sight = ObservationEncoder(config)
        self.history = HistoryEncoder(config)
        self.history_layers = nn.ModuleList(layer_of(config) for _ in range(config.history_layers))
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
        if config.grounding:
            sizes = (config.vocabulary, config.feature_width, config.angle_width, config.hidden)
            self.grounding = Grounding(*sizes, width=config.grounding, steps=config.max_steps)
        self.apply(lambda module: initialise(module, config.initial_std))
        if config.attention_dropout is not None:
            for module in (each for each in self.modules() if isinstance(each, Attention)):
                module.weight_dropout = config.attention_dropout
        if config.initial_bias_std:
            for described in (each for each in self.modules() if isinstance(each, LinearNorm)):
                nn.init.normal_(described.linear.bias, std=config.initial_bias_std)
        if config.grounding:
            self.grounding.initialise()
        self.critic = Critic(config.hidden, config.critic_inner, dropout=config.critic_dropout)
        if config.freeze_text:
            self.text.layers.requires_grad_(False)
        self._known_texts: dict[tuple[int, ...], Tensor] = {}

    # -- text --------------------------------------------------------------------------------------------

    def read(self, words: TokenBatch, *, everything: bool = False) -> Tensor:
        """The encoded instruction, (B, L, H)."""
        if self.config.read_once and not everything:
            return self._recite(words)
        encoded = self.text(words, everything=everything)
        return encoded.detach() if self.config.freeze_text else encoded

    def _recite(self, words: TokenBatch) -> Tensor:
        """Instructions as they were read the first time, each by itself, so that it does not matter when."""
        told = []
        for ids, valid in zip(words.ids, words.valid, strict=True):
            key = tuple(ids[valid].tolist())
            if key not in self._known_texts:
                if len(self._known_texts) >= KNOWN_TEXTS:
                    self._known_texts.pop(next(iter(self._known_texts)))
                self._known_texts[key] = self._read_alone(ids[valid])
            told.append(self._known_texts[key])
        return nn.utils.rnn.pad_sequence(told, batch_first=True)

    def _load_from_state_dict(self, *loading: Any) -> None:
        """Forget what was read with other weights."""
        self._known_texts.clear()
        super()._load_from_state_dict(*loading)

    def _read_alone(self, ids: Tensor) -> Tensor:
        """One instruction, (L,) -> (L, H), without dropout."""
        learning = self.text.training
        self.text.eval()
        with torch.inference_mode(False), torch.no_grad():  # or training could not use what evaluation read
            encoded = self.text(TokenBatch(ids[None], torch.ones_like(ids[None], dtype=torch.bool)))[0]
        self.text.train(learning)
        return encoded

    @property
    def looks_around(self) -> bool:
        """Whether views that lead nowhere become tokens: as the configuration says."""
        return self.config.context_views

    @property
    def undecayed(self) -> list[nn.Parameter]:
        """The marks of text and sight: a text that is read once must not change by weight decay."""
        return list(self.text.kinds.parameters()) if self.config.read_once else []

    def text_of_layers(self, encoded: Tensor, heard: Tensor, *, everything: bool = False) -> list[Tensor]:
        """What each cross layer reads without language cross-attention: T0, then G0(T0), G1(T0), ….

        Each is one layer's language half applied to T0, never chained; that of the last layer is not read.
        """
        tokens = Tokens.of(encoded, heard, everything=everything)
        halves = [layer.text for layer in self._layers[:-1]]
        return [encoded, *(half(tokens).padded for half in halves)]

    def _name(self, words: TokenBatch) -> Tensor:
        """What the words look like, (B, L, G); nothing without a grounding head."""
        if not self.config.grounding:
            return torch.zeros(*words.ids.shape, 0, device=words.ids.device)
        return self.grounding.words(words.ids)

    def _speak(self, encoded: Tensor, heard: Tensor) -> Tensor:
        """Keys and values of the text for those layers that read it unchanged by vision."""
        alone = not self.config.language_cross_attention
        texts = self.text_of_layers(encoded, heard) if alone else [encoded]
        pairs = [
            torch.stack([layer.across.key(text), layer.across.value(text)], 1)
            for layer, text in zip(self._layers, texts, strict=alone)
        ]
        return torch.stack(pairs, 1)

    def _hear(self, words: TokenBatch) -> dict[str, Any]:
        """What a state holds of instructions, and the beginning of a history."""
        encoded = self.read(words)
        history = self.history.begin(len(encoded))
        return {
            "words": encoded,
            "heard": words.valid,
            "named": self._name(words),
            "clause": number_clauses(words.ids, self.config.clause_ends),
            "spoken": self._speak(encoded, words.valid),
            "history": history.detach() if self.config.freeze_history else history,
            "lived": torch.ones(len(encoded), dtype=torch.int64, device=encoded.device),
        }

    # -- vision ------------------------------------------------------------------------------------------

    def _recall(self, state: S, *, everything: bool) -> tuple[Tensor, Tensor]:
        """The tokens of what happened so far, related to each other, (B, S, H), and which count, (B, S)."""
        history, counts = self._history(state)
        for layer in self.history_layers:
            history = layer(Tokens.of(history, counts, everything=everything)).padded
        return history, counts

    def _history(self, state: S) -> tuple[Tensor, Tensor]:
        """The tokens of what happened so far, (B, S, H), and which of them count, (B, S)."""
        history = state.history[:, : int(state.lived.max())]
        return history, torch.arange(history.shape[1], device=history.device) < state.lived[:, None]

    def _describe(self, state: S, observation: Observation) -> Tensor:
        """The tokens of what is seen now, (B, N, H)."""
        said = None
        if self.config.grounding:
            told = Instruction(state.words, state.heard, state.named, state.clause, state.groups)
            said = self.grounding(observation, state.history, state.lived - 1, told)
        seen = self.sight(observation, self.text.kinds.weight[1], said)
        return seen.detach() if self.config.freeze_observation else seen

    def _look(self, observation: Observation) -> Observation:
        """What becomes tokens of an observation: all of it unless the configuration says otherwise."""
        if not self.looks_around:
            observation = observation.choices()
        if self.config.stop_shows == "panorama":
            stop = (observation.kind == STOP)[..., None]
            around = observation.around()[:, None]
            observation = observation.with_features(torch.where(stop, around, observation.features))
        return observation

    def _recount(
        self, observation: Observation, chosen: Tensor, step: Tensor, around: Tensor | None
    ) -> Tensor:
        token = self.history(observation.faced(), observation.angle_of(chosen), step, around)
        return token.detach() if self.config.freeze_history else token

    def _around(self, state: S, observation: Observation) -> Tensor:
        """The encoded panoramas, (B, H); where nothing is learned, each is encoded only once."""
        if self.training or torch.is_grad_enabled():
            return self.history.encode_panorama(observation.panorama(), observation.panorama_angles())
        keys = (observation.viewpoint * VIEWS + observation.facing % COLUMNS).tolist()
        new = {key: row for row, key in enumerate(keys) if key not in state.panoramas}
        if new:
            fresh = observation.only(torch.tensor(list(new.values()), device=observation.viewpoint.device))
            encoded = self.history.encode_panorama(fresh.panorama(), fresh.panorama_angles())
            state.panoramas.update(zip(new, encoded, strict=True))
        return torch.stack([state.panoramas[key] for key in keys])

    # -- both --------------------------------------------------------------------------------------------

    @property
    def _layers(self) -> list[CrossLayer]:
        return cast(list[CrossLayer], list(self.cross_layers))

    def _relate(
        self,
        state: S,
        vision: Tokens,
        read: OutputPositions | None,
        *,
        everything: bool,
        mask: Tensor | None = None,
    ) -> tuple[Tokens, Tokens]:
        """Both streams after all cross layers; of the last one only what will be read.

        `mask` (B, M, M) says which tokens of vision may attend to which.
        """
        text = Tokens.of(state.words, state.heard, everything=everything)
        first = None if read is None else OutputPositions(read.columns[:1], read.wanted[:, :1])
        for depth, layer in enumerate(self._layers):
            last = depth == len(self._layers) - 1
            known = self._known(state, depth, text.layout.mask)
            if self.config.language_cross_attention:
                ends = {"read_text": first, "read_vision": read} if last else {}
                text, vision = layer(text, vision, spoken=known, mask=mask, **ends)
            else:
                vision = layer.vision(layer.across(vision, known), read=read if last else None, mask=mask)
        return text, vision

    def _known(self, state: S, depth: int, mask: Tensor | None) -> KeyValue | None:
        """What vision knows of the text at a layer, where that was fixed at the beginning."""
        if depth >= state.spoken.shape[1]:
            return None
        spoken = state.spoken[:, depth]  # (B, 2, L, H)
        keys, values = spoken.view(*spoken.shape[:3], self.config.heads, -1).transpose(2, 3).unbind(1)
        return KeyValue(keys, values, mask, state.groups)

    def _factor(self, told: Tensor, lived: Tensor) -> Tensor:
        """What tokens are multiplied with before they are scored, (B, H) (spec B.7)."""
        chosen_by = torch.ones_like(lived)
        if not self.config.language_cross_attention:
            return chosen_by
        factors = {"ob": chosen_by, "ob_txt": told, "ob_hist": lived, "ob_txt_hist": told + lived}
        return factors[self.config.action_input]

    def _score(self, tokens: Tensor) -> Tensor:
        """A score for each token, (B, N, H) -> (B, N)."""
        with torch.autocast(tokens.device.type, enabled=False):  # halves would make choices equal
            return cast(Tensor, self.action(tokens.to(self.text.kinds.weight.dtype))).squeeze(2)
