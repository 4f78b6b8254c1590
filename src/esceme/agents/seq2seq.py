"""The recurrent baseline of the field (Anderson et al. 2018, with panoramas after Fried et al. 2018).

An LSTM reads the instruction both ways; another one walks, looking at words and views by attention.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from esceme.agents.base import Agent, Decision, PrivilegedInfo, State, TokenBatch, choice_mask, num_choices
from esceme.errors import ConfigError
from esceme.observation import Observation
from esceme.world.atlas import STOP


@dataclass(frozen=True, kw_only=True)
class Seq2SeqConfig:
    """The sizes of the recurrent baseline."""

    vocabulary: int = 30522
    word_width: int = 256
    hidden: int = 512
    feature_width: int = 768
    angle_width: int = 4
    dropout: float = 0.5

    def __post_init__(self) -> None:
        for name in ("vocabulary", "word_width", "hidden", "feature_width", "angle_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, found {getattr(self, name)}")
        if self.hidden % 2:
            raise ConfigError(
                f"hidden: expected an even number, half for each direction, found {self.hidden}"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected a share from 0 to below 1, found {self.dropout}")


@dataclass(frozen=True)
class Seq2SeqState(State):
    """What the baseline carries from step to step."""

    words: Tensor
    """(B, L, H): the encoded instruction."""
    heard: Tensor
    """(B, L) bool: True but for padding."""
    hidden: Tensor
    """(B, H)"""
    cell: Tensor
    """(B, H)"""
    taken: Tensor
    """(B, D + A): what was chosen last; zeros at the start."""


class Seq2Seq(Agent[Seq2SeqState]):
    """Encoder, decoder, and attention between them.

    Dropout is on words and on what is scored, never inside the recurrence: `decide` and `advance` must come
    to the same hidden state.
    """

    Config = Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig | None = None) -> None:
        """Build the network with fresh weights."""
        super().__init__()
        self.config = config = config or Seq2SeqConfig()
        hidden, token = config.hidden, config.feature_width + config.angle_width
        self.embedding = nn.Embedding(config.vocabulary, config.word_width)
        self.encoder = nn.LSTM(config.word_width, hidden // 2, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(hidden, hidden)
        self.look = nn.Linear(hidden, token)
        self.decoder = nn.LSTMCell(2 * token, hidden)
        self.listen = nn.Linear(hidden, hidden, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.prefer = nn.Linear(hidden, token)
        self.stop = nn.Parameter(torch.randn(token) / token**0.5)
        """What STOP looks like, added to its zeros."""
        self.critic = nn.Linear(hidden, 1)
        self.dropout = nn.Dropout(config.dropout)

    def begin(
        self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> Seq2SeqState:
        """Read the instructions both ways; padding is not read."""
        embedded = self.dropout(self.embedding(words.ids))
        lengths = words.valid.sum(1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        read, (last, cell) = self.encoder(packed)  # last, cell: (2, B, H / 2)
        encoded, _ = pad_packed_sequence(read, batch_first=True, total_length=words.ids.shape[1])
        return Seq2SeqState(
            words=self.dropout(encoded),
            heard=words.valid,
            hidden=self.bridge(torch.cat([*last], 1)).tanh(),
            cell=torch.cat([*cell], 1),
            taken=encoded.new_zeros(len(encoded), len(self.stop)),
        )

    def decide(self, state: Seq2SeqState, observation: Observation) -> Decision:
        """A score for every candidate and for STOP: how well each fits what the words ask for now."""
        tokens = self._tokens(observation)
        hidden = self.dropout(self._walk(state, observation, tokens)[0])
        told = _attend(self.listen(hidden), state.words, state.heard)
        intent = self.dropout(self.combine(torch.cat([told, hidden], 1)).tanh())  # (B, H)
        choices = num_choices(observation)
        logits = _scores(self.prefer(intent), tokens[:, :choices])
        impossible = ~choice_mask(observation, choices)
        return Decision(logits.masked_fill(impossible, -torch.inf), self.critic(intent).squeeze(1))

    def advance(self, state: Seq2SeqState, observation: Observation, chosen: Tensor) -> Seq2SeqState:
        """Keep the hidden state that decided, and what was chosen."""
        tokens = self._tokens(observation)
        hidden, cell = self._walk(state, observation, tokens)
        rows = torch.arange(len(tokens), device=tokens.device)
        return replace(state, hidden=hidden, cell=cell, taken=tokens[rows, chosen])

    def _tokens(self, observation: Observation) -> Tensor:
        """Pictures and angles side by side, (B, N, D + A)."""
        described = torch.cat([observation.features, observation.angles], 2)
        return described + (observation.kind == STOP)[..., None] * self.stop

    def _walk(self, state: Seq2SeqState, observation: Observation, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the decoder, fed with the last choice and the part of the panorama it looks at."""
        views = observation.valid & (observation.kind != STOP)
        seen = _attend(self.look(state.hidden), tokens, views)
        return self.decoder(torch.cat([state.taken, seen], 1), (state.hidden, state.cell))


def _attend(query: Tensor, things: Tensor, present: Tensor) -> Tensor:
    """The mean of what is present (B, N, W), weighed by how well it fits the query (B, W)."""
    weights = _scores(query, things).masked_fill(~present, -torch.inf).softmax(1)
    return (weights[:, None] @ things).squeeze(1)


def _scores(query: Tensor, things: Tensor) -> Tensor:
    """How well each of (B, N, W) fits the query (B, W), as (B, N)."""
    return (things @ query[..., None]).squeeze(2)
