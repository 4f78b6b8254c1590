"""Grounding head: relates words to observed features. The published networks do not have it.

It helps small networks trained from scratch, which hardly learn from trajectories alone that a word and an
image feature mean the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esceme.agents.layers import Groups
from esceme.observation import Observation

NUM_CLAUSES = 32
"""Clauses of an instruction that are distinguished; later ones count as the last."""
PACE_SCALE = 30.0
"""Factor on `pace`, so that it learns faster than other weights."""


class GroundedText(NamedTuple):
    """Instructions as the grounding head reads them: one per agent, or one per group of agents."""

    encoded: Tensor
    """(B, L, H): encoded words."""
    valid: Tensor
    """(B, L) bool: False for padding."""
    word_grounding: Tensor
    """(B, L, G): words in the grounding space."""
    clause: Tensor
    """(B, L) int64: number of clauses that ended before each word."""
    groups: Groups | None

    def matmul(self, per_agent: Tensor, per_text: Tensor) -> Tensor:
        """Multiply (R, N, K) of each agent by (B, K, M) of its instruction: (R, N, M)."""
        if self.groups is None:
            return per_agent @ per_text
        return self.groups.split(self.groups.join(per_agent) @ per_text)

    def expand(self, per_text: Tensor) -> Tensor:
        """Repeat a tensor of the instructions, (B, …), for each agent, (R, …)."""
        return per_text if self.groups is None else per_text[self.groups.group]


class Grounding(nn.Module):
    """Add to each token what the instruction says, at this step, about its appearance and direction.

    Words, image features and directions are mapped to one space of width G. The latest history token and the
    step number decide which words matter now. A token receives the words that are close to it in this space
    and matter now, and a vector scaled by how well these words match it.
    """

    def __init__(
        self, vocabulary: int, features: int, angles: int, hidden: int, *, width: int, steps: int
    ) -> None:
        """Build the word table and the projections into a space of `width`."""
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.picture = nn.Linear(features, width, bias=False)
        self.direction = nn.Linear(angles, width, bias=False)
        self.kinds = nn.Embedding(3, width)
        self.key = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)
        self.match = nn.Parameter(torch.zeros(hidden))
        """(H,): direction of the match score."""
        distance = torch.arange(steps + 1)[:, None] - torch.arange(NUM_CLAUSES)
        self.pace = nn.Parameter(-distance.abs() / PACE_SCALE)
        """(steps + 1, clauses): importance of each clause at each step; initially one clause per step."""

    def initialise(self) -> None:
        """Draw the weights whose outputs should have unit scale."""
        for weight in (self.words.weight, self.picture.weight, self.direction.weight):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        nn.init.normal_(self.match, std=len(self.match) ** -0.5)

    def forward(self, observation: Observation, history: Tensor, step: Tensor, text: GroundedText) -> Tensor:
        """Ground the tokens of agents at steps (R,) with histories (R, S, H): (R, N, H)."""
        # Importance of each word now, (R, L): by the latest history token and by the pace of the clauses.
        latest = history[torch.arange(len(step), device=step.device), step]  # (R, H)
        query = self.query(latest)[:, None] * latest.shape[1] ** -0.5
        importance = text.matmul(query, self.key(text.encoded).transpose(1, 2)).squeeze(1)
        importance = importance + PACE_SCALE * self.pace[step[:, None], text.expand(text.clause)]
        importance = importance.masked_fill(~text.expand(text.valid), -torch.inf)
        # Similarity of each token and word, (R, N, L).
        tokens = self.picture(observation.features) + self.direction(observation.angles)  # (R, N, G)
        tokens = tokens + self.kinds(observation.token_type)
        similarity = text.matmul(tokens, text.word_grounding.transpose(1, 2))
        joint = similarity + importance[:, None]
        match_score = joint.logsumexp(2) - importance.logsumexp(1)[:, None]  # (R, N)
        matched_words = text.matmul(joint.softmax(2), text.encoded)  # (R, N, H)
        return self.out(matched_words) + match_score[..., None] * self.match


def number_clauses(ids: Tensor, ends: Sequence[int]) -> Tensor:
    """Count the clauses that ended before each word, given ids that end a clause: (B, L) -> (B, L).

    >>> number_clauses(torch.tensor([[7, 1, 8, 9, 1]]), ends=[1])
    tensor([[0, 0, 1, 1, 1]])
    """
    end_ids = torch.tensor(tuple(ends), dtype=torch.int64, device=ids.device)
    is_end = torch.isin(ids, end_ids).long()
    return (is_end.cumsum(1) - is_end).clamp(max=NUM_CLAUSES - 1)
