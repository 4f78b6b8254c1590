"""The recurrent baseline (Anderson et al. 2018, with panoramas after Fried et al. 2018).

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
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.world.atlas import STOP


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig(BaseAgentConfig):
    """Settings of the recurrent baseline."""

    vocabulary: int = 30522
    """Number of token ids."""
    word_width: int = 256
    """Width of the word embeddings."""
    hidden: int = 512
    """Width H of encoder and decoder states; even."""
    feature_width: int = 768
    """Width D of the image features."""
    angle_width: int = 4
    """Width A of the angle features: sine and cosine of heading and elevation."""
    dropout: float = 0.5
    """Dropout of words and of scored vectors."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "word_width", "hidden", "feature_width", "angle_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if self.hidden % 2:
            raise ConfigError(f"hidden: expected an even number, half per direction, found {self.hidden}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected a share from 0 to below 1, found {self.dropout}")

    @property
    def limits(self) -> InputLimits:
        """Sizes of the word embedding and of the features."""
        return InputLimits(vocabulary=self.vocabulary, feature_width=self.feature_width)


@dataclass(frozen=True)
class Seq2SeqState(State):
    """State of the decoder between steps."""

    text: Tensor
    """(B, L, H): encoded instruction."""
    text_mask: Tensor
    """(B, L) bool: False for padding."""
    hidden: Tensor
    """(B, H)"""
    cell: Tensor
    """(B, H)"""
    previous_action: Tensor
    """(B, D + A): token chosen last; zeros at the start."""


class Seq2Seq(Agent[Seq2SeqState]):
    """Encoder, decoder, and attention between them.

    Dropout applies to words and scored vectors, never inside the recurrence: `decide` and `advance` must
    compute the same hidden state.
    """

    Config = Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig | None = None) -> None:
        """Build the network."""
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
        """(D + A): added to STOP's zeros."""
        self.critic = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(config.dropout)

    @property
    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters of the critic."""
        return list(self.critic.parameters())

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> Seq2SeqState:
        """Encode the instructions without their padding."""
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
        """Score every candidate and STOP by the decoder state and the attended words."""
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
        """Run the decoder and store the chosen token."""
        tokens = self._tokens(observation)
        hidden, cell = self._decoder_step(state, observation, tokens)
        rows = torch.arange(len(tokens), device=tokens.device)
        return replace(state, hidden=hidden, cell=cell, previous_action=tokens[rows, actions])

    def _tokens(self, observation: Observation) -> Tensor:
        """Concatenated image and angle features, (B, N, D + A)."""
        tokens = torch.cat([observation.features, observation.angles], 2)
        return tokens + (observation.token_type == STOP)[..., None] * self.stop

    def _decoder_step(
        self, state: Seq2SeqState, observation: Observation, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Hidden and cell state after the previous action and the attended views."""
        is_view = observation.valid & (observation.token_type != STOP)
        views = _attend(self.view_query(state.hidden), tokens, is_view)
        return self.decoder(torch.cat([state.previous_action, views], 1), (state.hidden, state.cell))


def _attend(query: Tensor, values: Tensor, valid: Tensor) -> Tensor:
    """Dot-product attention of a query (B, W) over `values` (B, N, W), which are also the keys: (B, W)."""
    weights = _dot(query, values).masked_fill(~valid, -torch.inf).softmax(1)
    return (weights[:, None] @ values).squeeze(1)


def _dot(query: Tensor, values: Tensor) -> Tensor:
    """Dot products of a query (B, W) with (B, N, W): (B, N)."""
    return (values @ query[..., None]).squeeze(2)
