"""What an agent is: it begins with an instruction, decides from what it sees, and advances by what it chose.

Agents never import memory: what a memory adds is already in the observation when it reaches them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from esceme.errors import WorldError
from esceme.observation import Observation
from esceme.world.atlas import CONTEXT, Atlas


class TokenBatch(NamedTuple):
    """A batch of instructions as ids."""

    ids: Tensor
    """(B, L) int64"""
    valid: Tensor
    """(B, L) bool: True but for padding."""


class PrivilegedInfo(NamedTuple):
    """What only scripted agents may know."""

    atlas: Atlas
    goals: NDArray[np.int64]
    """(B, G): the viewpoints at which stopping is success, the last one repeated where there are fewer."""


class BacktrackRoutes(NamedTuple):
    """Choices beyond candidates and STOP: going back to places of the same walk, along ways already known.

    Places are numbered per agent; a walk may have been at the same viewpoint several times.
    """

    first: int
    """The choice that leads to place 0; place s is choice `first + s`."""
    viewpoint: Tensor
    """(B, S) int64: where each place is, -1 for none."""
    view: Tensor
    """(B, S) int64: what was faced there, and is faced again."""
    near: Tensor
    """(B, S) int64: where agents stand next to a place, its number in the order in which ways are tried,
    from 1 on; 0 elsewhere."""
    linked: Tensor
    """(B, S, S) int64: the same for who stands at each place."""

    def way(self, row: int, choice: int) -> list[tuple[int, int]]:
        """The places to walk by, viewpoint and view, with the fewest steps; the last is where it leads.

        Of ways as short, the one that is tried first. What is faced on the way is not told (-1).
        """
        goal, places = int(self.viewpoint[row, choice - self.first]), self.viewpoint[row].tolist()
        before: dict[int, int | None] = {}
        waiting: deque[int] = deque()

        def try_ways(order: list[int], here: int | None) -> None:
            known = {places[each] for each in before}
            for _, place in sorted((number, place) for place, number in enumerate(order) if number):
                if places[place] >= 0 and places[place] not in known:
                    known.add(places[place])
                    before[place] = here
                    waiting.append(place)

        try_ways(self.near[row].tolist(), None)
        while waiting:
            here = waiting.popleft()
            if places[here] == goal:
                faced = int(self.view[row, choice - self.first])
                return [*((places[each], -1) for each in _traced(here, before)[:-1]), (goal, faced)]
            try_ways(self.linked[row, here].tolist(), here)
        raise WorldError(f"no way leads back to viewpoint {goal} along what was walked")


class Decision(NamedTuple):
    """What an agent makes of what it sees."""

    logits: Tensor
    """(B, C): a score for each choice: the candidates in order, then STOP; -inf where there is none."""
    value: Tensor | None = None
    """(B,): the return the agent expects from here, where it has a critic."""
    routes: BacktrackRoutes | None = None
    """What further choices mean, where there are any."""
    state: State | None = None
    """What agents carry who have thought about this, where thinking changes it; `advance` takes this one."""
    guess: Tensor | None = None
    """(B, G): whatever else an agent says, for its own `aside`."""
    aside: Tensor | None = None
    """(B,): a loss of the agent's own, which only learning fills in."""


def _traced(last: int, before: dict[int, int | None]) -> list[int]:
    """The places from the first to the last, by which came before which."""
    way = [last]
    while (earlier := before[way[-1]]) is not None:
        way.append(earlier)
    return way[::-1]


class StepIndex(NamedTuple):
    """To which walk and which of its steps each of R observations belongs.

    The steps of a walk are complete from 0 on and in order.
    """

    episode: Tensor
    """(R,) int64: the row of the state."""
    step: Tensor
    """(R,) int64"""


@dataclass(frozen=True)
class State:
    """What agents carry from step to step. All tensors are batch-first; other axes are padded as needed.

    Fields that are no tensors belong to the whole batch.
    """

    def only(self, rows: Tensor) -> Self:
        """The states of some agents."""
        return replace(self, **{name: tensor[rows] for name, tensor in self._tensors().items()})

    def joined(self, others: Self) -> Self:
        """These agents and others after them."""
        mine, theirs = self._tensors(), others._tensors()
        return replace(self, **{name: _joined(mine[name], theirs[name]) for name in mine})

    def _tensors(self) -> dict[str, Tensor]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}


S = TypeVar("S", bound=State)


class Agent(nn.Module, ABC, Generic[S]):
    """Who decides; three methods make one.

    The same seed gives the same decisions, padding changes nothing, and the order of candidates matters only
    as the order of logits. `tests/contracts` holds every agent to that. An agent whose history is not
    recurrent may offer a fourth, `decide_all`, for walks that are known beforehand.
    """

    Config: ClassVar[type]
    """A frozen dataclass of its settings; the constructor takes one and keeps it as `config`."""
    config: Any
    needs_goals: ClassVar[bool] = False
    """Whether it cannot begin without what is `PrivilegedInfo`."""
    scripted: ClassVar[bool] = False
    """Whether there is nothing that it could learn; then its name is all that an evaluation needs."""

    @property
    def looks_around(self) -> bool:
        """Whether views that lead nowhere become tokens; where they do not, nobody need describe them."""
        return True

    @property
    def undecayed(self) -> list[nn.Parameter]:
        """Parameters that weight decay must not touch; there are none unless an agent says so."""
        return []

    def aside(self, decision: Decision, goals: Tensor) -> Tensor | None:
        """A loss of its own for each agent, (B,), given where goals lie, (B, 3), where it has one."""
        return None

    @abstractmethod
    def begin(self, words: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None) -> S:
        """The state of agents that were given `words` and stand at viewpoints `start` (B,)."""

    @abstractmethod
    def decide(self, state: S, observation: Observation) -> Decision:
        """Scores over what can be done next."""

    @abstractmethod
    def advance(self, state: S, observation: Observation, chosen: Tensor) -> S:
        """The state after choosing `chosen` (B,) where `observation` was seen."""


def num_choices(observation: Observation) -> int:
    """How many choices a batch has at most: its largest number of candidates, and STOP (C)."""
    return int(observation.candidate_count.max()) + 1


def choice_mask(observation: Observation, choices: int) -> Tensor:
    """(B, C): which of the first tokens can be chosen; candidates and STOP come first."""
    return observation.kind[:, :choices] != CONTEXT


def _joined(above: Tensor, below: Tensor) -> Tensor:
    """Two batches as one, both padded with zeros to the longer of each other axis."""
    if not len(above):
        return below
    if above.shape[1:] != below.shape[1:]:
        longest = [max(sizes) for sizes in zip(above.shape[1:], below.shape[1:], strict=True)]
        above, below = _padded(above, longest), _padded(below, longest)
    return torch.cat([above, below])


def _padded(tensor: Tensor, longest: list[int]) -> Tensor:
    missing = [wanted - size for wanted, size in zip(longest, tensor.shape[1:], strict=True)]
    return functional.pad(tensor, [n for each in reversed(missing) for n in (0, each)])
