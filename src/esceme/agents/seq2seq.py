"""Recurrent baseline of VLN (Anderson et al. 2018, with panoramas as in Fried et al. 2018).

A bidirectional LSTM encodes the instruction. An LSTM decoder attends to words and views at every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from esceme.agents.base import (
    Agent,
    BaseAgentConfig,
    Decision,
    InputLimits,
    PrivilegedInfo,
    State,
    TokenBatch,
    choice_mask,
    num_choices,
)
from esceme.dropout import Dropout
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.settings import DropoutRate, Size, check_settings
from esceme.world.atlas import STOP


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(BaseAgentConfig):
    """Settings of the recurrent baseline."""

    vocabulary: Size = 30522
    """Number of token ids."""
    word_width: Size = 256
    """Width of the word embeddings."""
    hidden: Size = 512
    """Hidden size H of encoder and decoder; must be even."""
    feature_width: Size = 768
    """Width D of the image features."""
    angle_width: Size = 4
    """Width A of the angle features: sine and cosine of heading and elevation."""
    dropout: DropoutRate = 0.5
    """Dropout of word embeddings and of the vector that scores the actions."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.hidden % 2:
            raise ConfigError(f"hidden: expected an even number, half per direction, found {self.hidden}")

    @property
    def limits(self) -> InputLimits:
        """Number of token ids and feature width that a network with these settings accepts."""
        return InputLimits(vocabulary=self.vocabulary, feature_width=self.feature_width)


@dataclass(frozen=True)
class Seq2SeqState(State):
    """State of B decoders between two steps; D is the feature width, A the angle width."""

    text: Tensor
    """(B, L, H): encoded instruction."""
    text_mask: Tensor
    """(B, L) bool: True for tokens of the instruction, False for padding."""
    hidden: Tensor
    """(B, H): hidden state of the decoder."""
    cell: Tensor
    """(B, H): cell state of the decoder."""
    previous_action: Tensor
    """(B, D + A): image and angle features of the action chosen last; zeros at the start."""


class Seq2Seq(Agent[Seq2SeqState]):
    """LSTM encoder of the instruction and LSTM decoder of the actions, with attention between them.

    The recurrence has no dropout, because `decide` and `advance` must compute the same hidden state.
    """

    Config = Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig | None = None) -> None:
        super().__init__(config)
        config = self.config
        hidden, token = config.hidden, config.feature_width + config.angle_width
        self.embedding = nn.Embedding(config.vocabulary, config.word_width)
        self.encoder = nn.LSTM(config.word_width, hidden // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(hidden, hidden)
        self.view_query = nn.Linear(hidden, token)
        self.decoder = nn.LSTMCell(2 * token, hidden)
        self.text_query = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.action_query = nn.Linear(hidden, token)
        self.stop = nn.Parameter(torch.randn(token) / token**0.5)
        """(D + A): learned features of STOP, whose observed features are zero."""
        self.critic = nn.Linear(hidden, 1)
        self.dropout = Dropout(config.dropout)

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critic."""
        return list(self.critic.parameters())

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> Seq2SeqState:
        """Return the initial state, which contains the encoded instructions."""
        embedded = self.dropout(self.embedding(instructions.ids))
        lengths = instructions.valid.sum(1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        outputs, (last, cell) = self.encoder(packed)  # last, cell: (2, B, H / 2)
        encoded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=instructions.ids.shape[1])
        return Seq2SeqState(
            text=self.dropout(encoded),
            text_mask=instructions.valid,
            hidden=self.bridge(torch.cat([*last], 1)).tanh(),
            cell=torch.cat([*cell], 1),
            previous_action=encoded.new_zeros(len(encoded), len(self.stop)),
        )

    def decide(self, state: Seq2SeqState, observation: Observation) -> Decision:
        """Return the scores of every candidate and STOP, computed from decoder state and attended words."""
        tokens = self._tokens(observation)
        hidden = self.dropout(self._decoder_step(state, observation, tokens)[0])
        text = _attend(self.text_query(hidden), state.text, state.text_mask)
        combined = self.dropout(self.combine(torch.cat([text, hidden], 1)).tanh())  # (B, H)
        choices = num_choices(observation)
        logits = _dot(self.action_query(combined), tokens[:, :choices])
        is_impossible = ~choice_mask(observation, choices)
        value = self.critic(combined).squeeze(1)
        return Decision(logits.masked_fill(is_impossible, -torch.inf), value)

    def advance(self, state: Seq2SeqState, observation: Observation, actions: Tensor) -> Seq2SeqState:
        """Return the decoder state after this step, with the features of the chosen action."""
        tokens = self._tokens(observation)
        hidden, cell = self._decoder_step(state, observation, tokens)
        rows = torch.arange(len(tokens), device=tokens.device)
        return replace(state, hidden=hidden, cell=cell, previous_action=tokens[rows, actions])

    def text_attention(self, state: Seq2SeqState, observation: Observation) -> Tensor:
        """Return the attention of the decoder to the words, (B, L)."""
        hidden, _ = self._decoder_step(state, observation, self._tokens(observation))
        return _attention_weights(self.text_query(hidden), state.text, state.text_mask)

    def _tokens(self, observation: Observation) -> Tensor:
        """Return the concatenated image and angle features of the observation, (B, N, D + A)."""
        tokens = torch.cat([observation.features, observation.angles], 2)
        return tokens + (observation.token_type == STOP)[..., None] * self.stop

    def _decoder_step(
        self, state: Seq2SeqState, observation: Observation, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the decoder's hidden and cell state after reading the previous action and the views."""
        is_view = observation.valid & (observation.token_type != STOP)
        views = _attend(self.view_query(state.hidden), tokens, is_view)
        return self.decoder(torch.cat([state.previous_action, views], 1), (state.hidden, state.cell))


def _attend(query: Tensor, values: Tensor, valid: Tensor) -> Tensor:
    """Return the dot-product attention (B, W) of `query` (B, W) over keys and values `values` (B, N, W)."""
    return (_attention_weights(query, values, valid)[:, None] @ values).squeeze(1)


def _attention_weights(query: Tensor, keys: Tensor, valid: Tensor) -> Tensor:
    """Return the weights (B, N) of dot-product attention of `query` (B, W) to the valid `keys` (B, N, W)."""
    return _dot(query, keys).masked_fill(~valid, -torch.inf).softmax(1)


def _dot(query: Tensor, values: Tensor) -> Tensor:
    """Return the dot products (B, N) of `query` (B, W) with `values` (B, N, W)."""
    return (values @ query[..., None]).squeeze(2)
