"""Grounding head: relates words to image features. The published networks do not have this module.

The grounding head helps small networks that are trained from scratch. Trajectories alone hardly teach such a
network which words and image features have the same meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esceme.agents.layers import Groups
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
    clause: Tensor
    """(B, L) int64: number of clauses that ended before each word."""
    groups: Groups | None

    def matmul(self, per_agent: Tensor, per_text: Tensor) -> Tensor:
        """Multiply each agent's matrix (R, N, K) by the matrix (B, K, M) of its instruction: (R, N, M)."""
        if self.groups is None:
            return per_agent @ per_text
        return self.groups.split(self.groups.join(per_agent) @ per_text)

    def expand(self, per_text: Tensor) -> Tensor:
        """Repeat a tensor with one entry per instruction, (B, …), for each agent that reads it: (R, …)."""
        return per_text if self.groups is None else per_text[self.groups.group]


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

    def forward(self, observation: Observation, history: Tensor, step: Tensor, text: GroundedText) -> Tensor:
        """Return vectors (R, N, H) to be added to the N observation tokens of R agents.

        `step` (R,) are the step numbers, `history` (R, S, H) the history tokens.
        """
        importance = self.importance(history, step, text)
        # Similarity of each token and word, (R, N, L).
        tokens = self.picture(observation.features) + self.direction(observation.angles)  # (R, N, G)
        tokens = tokens + self.kinds(observation.token_type)
        similarity = text.matmul(tokens, text.word_grounding.transpose(1, 2))
        joint = similarity + importance[:, None]
        match_score = joint.logsumexp(2) - importance.logsumexp(1)[:, None]  # (R, N)
        matched_words = text.matmul(joint.softmax(2), text.encoded)  # (R, N, H)
        return self.out(matched_words) + match_score[..., None] * self.match

    def importance(self, history: Tensor, step: Tensor, text: GroundedText) -> Tensor:
        """Return the importance of each word at this step as logits, (R, L); -inf for padding.

        The importance depends on the latest history token and on `pace`, the importance of each clause at
        each step.
        """
        latest = history[torch.arange(len(step), device=step.device), step]  # (R, H)
        query = self.query(latest)[:, None] * latest.shape[1] ** -0.5
        importance = text.matmul(query, self.key(text.encoded).transpose(1, 2)).squeeze(1)
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
