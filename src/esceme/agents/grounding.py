"""Grounding head: relates words to image features. The published networks do not have this module.

The grounding head helps small networks that are trained from scratch. Trajectories alone hardly teach such a
network which words and image features have the same meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esceme.agents.layers import Groups, PackedLayout, Tokens
from esceme.observation import Observation

NUM_CLAUSES = 32
"""Number of clauses of an instruction that are distinguished. Later clauses count as the last of them."""
PACE_SCALE = 30.0
"""Factor on the parameter `Grounding.pace`, so that it learns faster than other weights."""


class GroundedText(NamedTuple):
    """Inputs of the grounding head from B instructions, each read by one agent or by a group of agents.

    L is the number of words, H the hidden size, G the size of the space shared by words and image features.
    """

    encoded: Tensor
    """(B, L, H): output of the text encoder."""
    valid: Tensor
    """(B, L) bool: True for words, False for padding."""
    word_grounding: Tensor
    """(B, L, G): word embeddings in the space shared with image features."""
    word_key: Tensor
    """(B, L, H): result of `Grounding.key`, by which history tokens find the important words."""
    clause: Tensor
    """(B, L) int64: number of clauses that ended before each word."""
    groups: Groups | None

    def matmul(self, rows: Tensor, per_text: Tensor, layout: PackedLayout) -> Tensor:
        """Multiply packed tokens (T, K) of R agents by the matrix (B, K, M) of their instruction: (T, M)."""
        joined = layout.grouped(self.groups)
        return joined.pack(joined.pad(rows) @ per_text)

    def expand(self, per_text: Tensor) -> Tensor:
        """Repeat a tensor with one entry per instruction, (B, …), for each agent that reads it: (R, …)."""
        return per_text if self.groups is None else per_text.index_select(0, self.groups.group)


class Grounding(nn.Module):
    """Compute, for each observation token, an encoding of the words that match its view at this step.

    Words, image features and directions are mapped to one space of width G. The latest history token and the
    step number determine the importance of each word. The output for a token is the average of the encoded
    words, weighted by importance and by similarity to the token, plus a vector scaled by the match score.
    """

    def __init__(
        self, vocabulary: int, features: int, angles: int, hidden: int, *, width: int, steps: int
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.picture = nn.Linear(features, width, bias=False)
        self.direction = nn.Linear(angles, width, bias=False)
        self.kinds = nn.Embedding(3, width)
        self.key = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.match = nn.Parameter(torch.zeros(hidden))
        """(H,): vector that is scaled by the match score of a token and added to the output."""
        distance = torch.arange(steps + 1)[:, None] - torch.arange(NUM_CLAUSES)
        self.pace = nn.Parameter(-distance.abs() / PACE_SCALE)
        """(steps + 1, clauses): importance of each clause at each step, initially highest for clause i at
        step i."""

    def initialise(self) -> None:
        """Initialise the word table and the projections so that their outputs have unit scale."""
        for weight in (self.words.weight, self.picture.weight, self.direction.weight):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        nn.init.normal_(self.match, std=len(self.match) ** -0.5)

    def word_keys(self, encoded: Tensor, valid: Tensor) -> Tensor:
        """Return `GroundedText.word_key` (B, L, H) of encoded instructions (B, L, H), once per episode."""
        tokens = Tokens.pack(encoded, valid)
        return tokens.layout.pad(self.key(tokens.rows))

    def forward(self, observation: Observation, history: Tensor, step: Tensor, text: GroundedText) -> Tokens:
        """Return vectors of width H to be added to the valid observation tokens of R agents.

        `step` (R,) are the step numbers, `history` (R, S, H) the history tokens.
        """
        importance, layout = self.importance(history, step, text), PackedLayout(observation.valid)
        # Similarity of each of T tokens to the words of its instruction, (T, L).
        tokens = self.picture(layout.pack(observation.features))  # (T, G)
        tokens = tokens + self.direction(layout.pack(observation.angles))
        tokens = tokens + self.kinds(layout.pack(observation.token_type))
        similarity = text.matmul(tokens, text.word_grounding.transpose(1, 2), layout)
        agent = layout.sequence
        joint = similarity + importance.index_select(0, agent)
        match_score = joint.logsumexp(1) - importance.logsumexp(1).index_select(0, agent)  # (T,)
        matched_words = text.matmul(joint.softmax(1), text.encoded, layout)  # (T, H)
        return Tokens(self.out(matched_words) + match_score[:, None] * self.match, layout)

    def importance(self, history: Tensor, step: Tensor, text: GroundedText) -> Tensor:
        """Return the importance of each word at this step as logits, (R, L); -inf for padding.

        The importance depends on the latest history token and on `pace`, the importance of each clause at
        each step.
        """
        latest = history[torch.arange(len(step), device=step.device), step]  # (R, H)
        query, one_each = self.query(latest) * latest.shape[1] ** -0.5, PackedLayout(step[:, None] >= 0)
        importance = text.matmul(query, text.word_key.transpose(1, 2), one_each)
        importance = importance + PACE_SCALE * self.pace[step[:, None], text.expand(text.clause)]
        return importance.masked_fill(~text.expand(text.valid), -torch.inf)


def number_clauses(ids: Tensor, ends: Sequence[int]) -> Tensor:
    """Return the number of clauses that ended before each word, (B, L) -> (B, L); an id in `ends` ends one.

    >>> number_clauses(torch.tensor([[7, 1, 8, 9, 1]]), ends=[1])
    tensor([[0, 0, 1, 1, 1]])
    """
    end_ids = torch.tensor(tuple(ends), dtype=torch.int64, device=ids.device)
    is_end = torch.isin(ids, end_ids).long()
    return (is_end.cumsum(1) - is_end).clamp(max=NUM_CLAUSES - 1)
