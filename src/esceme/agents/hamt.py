"""HAMT, the History Aware Multimodal Transformer (Chen et al. 2021), the paper's first host (spec B).

Text, what happened so far, and what is seen now become tokens; a cross-modal encoder relates them; every
candidate and STOP gets a score.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from esceme.agents.base import Agent, Decision, Privileged, State, Timeline, Words, choices_of, is_choice
from esceme.agents.grounding import Grounding, Instruction, number_clauses
from esceme.agents.layers import (
    ActionHead,
    Attention,
    Critic,
    CrossLayer,
    Described,
    Groups,
    Known,
    Places,
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
class HamtState(State):
    """What HAMT carries from step to step."""

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


class Considered(NamedTuple):
    """What the cross-modal encoder makes of a state and an observation."""

    logits: Tensor
    """(B, C)"""
    states: Tensor
    """(B, H): what the critic reads."""
    text: Tensor
    """(B, L, H), or only the first token (B, 1, H)"""
    history: Tensor
    """(B, S, H), or only the global token (B, 1, H)"""
    sight: Tensor
    """(B, N, H), or only the choices (B, C, H)"""


class HAMT(Agent[HamtState]):
    """The published network; `esceme.checkpoints` fills it with published weights."""

    Config = HamtConfig

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
            for described in (each for each in self.modules() if isinstance(each, Described)):
                nn.init.normal_(described.linear.bias, std=config.initial_bias_std)
        if config.grounding:
            self.grounding.initialise()
        self.critic = Critic(config.hidden, config.critic_inner, dropout=config.critic_dropout)
        if config.freeze_text:
            self.text.layers.requires_grad_(False)
        self._known_texts: dict[tuple[int, ...], Tensor] = {}

    # -- the three methods -------------------------------------------------------------------------------

    def begin(self, words: Words, start: Tensor, privileged: Privileged | None = None) -> HamtState:
        """Read the instructions, once per episode."""
        encoded = self.read(words)
        history = self.history.begin(len(encoded))
        return HamtState(
            words=encoded,
            heard=words.valid,
            named=self._name(words),
            clause=number_clauses(words.ids, self.config.clause_ends),
            spoken=self._speak(encoded, words.valid),
            history=history.detach() if self.config.freeze_history else history,
            lived=torch.ones(len(encoded), dtype=torch.int64, device=encoded.device),
        )

    def decide(self, state: HamtState, observation: Observation) -> Decision:
        """A score for every candidate and for STOP."""
        considered = self.consider(state, observation)
        return Decision(considered.logits, self.critic(considered.states).squeeze(1))

    def advance(self, state: HamtState, observation: Observation, chosen: Tensor) -> HamtState:
        """Add what was seen and done to the history."""
        around = self._around(state, observation) if self.config.encode_panorama else None
        token = self._recount(observation, chosen, state.lived - 1, around)
        longest = int(state.lived.max())
        history = torch.cat([state.history[:, :longest], torch.zeros_like(state.history[:, :1])], 1)
        rows = torch.arange(len(token), device=token.device)
        return replace(state, history=history.index_put((rows, state.lived), token), lived=state.lived + 1)

    def decide_all(
        self, state: HamtState, observation: Observation, chosen: Tensor, when: Timeline
    ) -> Decision:
        """All decisions of walks that are known beforehand, (R, C), at once.

        `observation` and `chosen` have a row for each step of each walk; `state` is that of their beginning.
        """
        around = None
        if self.config.encode_panorama:
            around = self.history.encode_panorama(observation.panorama(), observation.panorama_angles())
        tokens = self._recount(observation, chosen, when.step, around)  # (R, H)
        lives = state.history.new_zeros(len(state.lived), int(when.step.max()) + 2, tokens.shape[1])
        lives[:, :1] = state.history[:, :1]
        lives = lives.index_put((when.episode, when.step + 1), tokens)  # (B, T + 1, H)
        groups: Groups | None = Groups(*when, (len(state.lived), int(when.step.max()) + 1))
        if self.config.language_cross_attention:  # which makes of an instruction another one at each step
            state, groups = state.only(when.episode), None
        then = replace(state, history=lives[when.episode, :-1], lived=when.step + 1, groups=groups)
        return self.decide(then, observation)

    @property
    def _layers(self) -> list[CrossLayer]:
        return cast(list[CrossLayer], list(self.cross_layers))

    # -- parts of them -----------------------------------------------------------------------------------

    def read(self, words: Words, *, everything: bool = False) -> Tensor:
        """The encoded instruction, (B, L, H)."""
        if self.config.read_once and not everything:
            return self._recite(words)
        encoded = self.text(words, everything=everything)
        return encoded.detach() if self.config.freeze_text else encoded

    def _recite(self, words: Words) -> Tensor:
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
            encoded = self.text(Words(ids[None], torch.ones_like(ids[None], dtype=torch.bool)))[0]
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

    def _name(self, words: Words) -> Tensor:
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

    def consider(self, state: HamtState, observation: Observation, *, everything: bool = False) -> Considered:
        """Relate text, history and sight; `everything` also computes what no head reads, padding included."""
        observation = self._look(observation)
        longest = int(state.lived.max())
        history = state.history[:, :longest]
        remembered = torch.arange(longest, device=history.device) < state.lived[:, None]  # (B, S)
        for layer in self.history_layers:
            history = layer(Tokens.of(history, remembered, everything=everything)).padded
        said = None
        if self.config.grounding:
            said = self.grounding(observation, state.history, state.lived - 1, _instruction(state))
        seen = self.sight(observation, self.text.kinds.weight[1], said)
        if self.config.freeze_observation:
            seen = seen.detach()
        valid = torch.cat([remembered, observation.valid], 1)
        vision = Tokens.of(torch.cat([history, seen], 1), valid, everything=everything)
        choices = choices_of(observation)
        read = None if everything else _read(observation, longest, choices)
        text, vision = self._relate(state, vision, read, everything=everything)
        split = longest if everything else 1
        told, lived, sight = text.padded, vision.padded[:, :split], vision.padded[:, split:]
        return self._judge(observation, told, lived, sight, choices)

    def _look(self, observation: Observation) -> Observation:
        """What becomes tokens of an observation: all of it unless the configuration says otherwise."""
        if not self.looks_around:
            observation = observation.choices()
        if self.config.stop_shows == "panorama":
            stop = (observation.kind == STOP)[..., None]
            around = observation.around()[:, None]
            observation = observation.with_features(torch.where(stop, around, observation.features))
        return observation

    def _relate(
        self, state: HamtState, vision: Tokens, read: Places | None, *, everything: bool
    ) -> tuple[Tokens, Tokens]:
        """Both streams after all cross layers; of the last one only what will be read."""
        text = Tokens.of(state.words, state.heard, everything=everything)
        first = None if read is None else Places(read.columns[:1], read.wanted[:, :1])
        for depth, layer in enumerate(self._layers):
            last = depth == len(self._layers) - 1
            known = self._known(state, depth, text.layout.mask)
            if self.config.language_cross_attention:
                ends = {"read_text": first, "read_vision": read} if last else {}
                text, vision = layer(text, vision, spoken=known, **ends)
            else:
                vision = layer.vision(layer.across(vision, known), read=read if last else None)
        return text, vision

    def _known(self, state: HamtState, depth: int, mask: Tensor | None) -> Known | None:
        """What vision knows of the text at a layer, where that was fixed at the beginning."""
        if depth >= state.spoken.shape[1]:
            return None
        spoken = state.spoken[:, depth]  # (B, 2, L, H)
        keys, values = spoken.view(*spoken.shape[:3], self.config.heads, -1).transpose(2, 3).unbind(1)
        return Known(keys, values, mask, state.groups)

    def _judge(
        self, observation: Observation, text: Tensor, history: Tensor, sight: Tensor, choices: int
    ) -> Considered:
        """Scores of the choices and the state that the critic reads (spec B.7)."""
        told, lived = text[:, 0], history[:, 0]  # (B, H)
        chosen_by, states = torch.ones_like(lived), lived
        if self.config.language_cross_attention:
            states = told * lived
            factors = {"ob": chosen_by, "ob_txt": told, "ob_hist": lived, "ob_txt_hist": told + lived}
            chosen_by = factors[self.config.action_input]
        scored = sight[:, :choices] * chosen_by[:, None]  # (B, C, H)
        with torch.autocast(scored.device.type, enabled=False):  # halves would make choices equal
            logits = self.action(scored.to(self.text.kinds.weight.dtype)).squeeze(2)
        return Considered(
            logits.masked_fill(~is_choice(observation, choices), -torch.inf), states, text, history, sight
        )

    def _recount(
        self, observation: Observation, chosen: Tensor, step: Tensor, around: Tensor | None
    ) -> Tensor:
        token = self.history(observation.faced(), observation.angle_of(chosen), step, around)
        return token.detach() if self.config.freeze_history else token

    def _around(self, state: HamtState, observation: Observation) -> Tensor:
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


def _instruction(state: HamtState) -> Instruction:
    return Instruction(state.words, state.heard, state.named, state.clause, state.groups)


def _read(observation: Observation, before: int, choices: int) -> Places:
    """What the heads read of vision: the global token and, after `before` history tokens, the choices."""
    wanted = is_choice(observation, choices)
    columns = torch.arange(before, before + choices, device=wanted.device)
    return Places(
        torch.cat([columns.new_zeros(1), columns]), torch.cat([torch.ones_like(wanted[:, :1]), wanted], 1)
    )
