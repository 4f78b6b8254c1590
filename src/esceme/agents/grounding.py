"""A head that ties words to what is seen: ours, for small networks that begin with drawn weights.

Those hardly learn from paths alone that a word and a picture mean the same thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from esceme.agents.layers import Groups
from esceme.observation import Observation

CLAUSES = 32
"""How many clauses of an instruction are told apart."""
PACE = 30.0
"""By how much faster than other weights those are learned that say when a clause matters."""


class Instruction(NamedTuple):
    """Instructions, one for each agent, or one for each group of agents."""

    words: Tensor
    """(B, L, H): encoded."""
    heard: Tensor
    """(B, L) bool: True but for padding."""
    named: Tensor
    """(B, L, G): what each word looks like."""
    clause: Tensor
    """(B, L) int64: how many clauses ended before each word."""
    groups: Groups | None

    def against(self, mine: Tensor, shared: Tensor) -> Tensor:
        """The matrix product of something of each agent (R, N, K) and of its instruction (B, K, M)."""
        if self.groups is None:
            return mine @ shared
        return self.groups.apart(self.groups.together(mine) @ shared)

    def of_agents(self, shared: Tensor) -> Tensor:
        """Something of the instructions, (B, …), for each agent, (R, …)."""
        return shared if self.groups is None else shared[self.groups.group]


class Grounding(nn.Module):
    """Tells every token what the instruction says, just now, of what it shows and where it lies.

    A word has a place in the space that pictures and directions are mapped into. What happened last, and the
    number of the step, say which words matter now; a token takes over those of them that are near to it, and
    how well they fit.
    """

    def __init__(
        self, vocabulary: int, features: int, angles: int, hidden: int, *, width: int, steps: int
    ) -> None:
        """Build the table of words and the maps into a space of `width` numbers."""
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.picture = nn.Linear(features, width, bias=False)
        self.direction = nn.Linear(angles, width, bias=False)
        self.kinds = nn.Embedding(3, width)
        self.key = nn.Linear(hidden, hidden)
        self.query = nn.Linear(hidden, hidden)
        self.tell = nn.Linear(hidden, hidden)
        self.fit = nn.Parameter(torch.zeros(hidden))
        """What a token gains by fitting well."""
        order = torch.arange(steps + 1)[:, None] - torch.arange(CLAUSES)
        self.pace = nn.Parameter(-order.abs() / PACE)
        """How much each clause matters at each step: to begin with, a clause a step."""

    def initialise(self) -> None:
        """Draw those weights whose outcome should be about 1."""
        for weight in (self.words.weight, self.picture.weight, self.direction.weight):
            nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        nn.init.normal_(self.fit, std=len(self.fit) ** -0.5)

    def forward(self, observation: Observation, history: Tensor, step: Tensor, told: Instruction) -> Tensor:
        """What is said of the tokens of agents at steps (R,) after histories (R, S, H): (R, N, H)."""
        latest = history[torch.arange(len(step), device=step.device), step]  # (R, H)
        asked = self.query(latest)[:, None] * latest.shape[1] ** -0.5
        matters = told.against(asked, self.key(told.words).transpose(1, 2)).squeeze(1)  # (R, L)
        matters = matters + PACE * self.pace[step[:, None], told.of_agents(told.clause)]
        matters = matters.masked_fill(~told.of_agents(told.heard), -torch.inf)
        shown = self.picture(observation.features) + self.direction(observation.angles)  # (R, N, G)
        likeness = told.against(shown + self.kinds(observation.kind), told.named.transpose(1, 2))
        joint = likeness + matters[:, None]  # (R, N, L)
        fits = joint.logsumexp(2) - matters.logsumexp(1)[:, None]  # (R, N)
        said = told.against(joint.softmax(2), told.words)  # (R, N, H)
        return self.tell(said) + fits[..., None] * self.fit


def number_clauses(ids: Tensor, ends: Sequence[int]) -> Tensor:
    """How many clauses ended before each word, by the ids of words that end one: (B, L) -> (B, L).

    >>> number_clauses(torch.tensor([[7, 1, 8, 9, 1]]), ends=[1])
    tensor([[0, 0, 1, 1, 1]])
    """
    marks = torch.tensor(tuple(ends), dtype=torch.int64, device=ids.device)
    over = torch.isin(ids, marks).long()
    return (over.cumsum(1) - over).clamp(max=CLAUSES - 1)
