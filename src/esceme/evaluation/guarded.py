"""`GuardedNavigator`: decisions in low precision; those that low precision may change are computed again.

The agent's decision layers run in int8. If the two best scores of a decision are closer than a margin, the
decision is computed again in single precision. `esceme.evaluation.calibration` measures the margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents.base import Decision, PrivilegedInfo, State, TokenBatch
from esceme.engine import PrecisionSwitch
from esceme.errors import DataError
from esceme.files import read_json
from esceme.navigator import Navigator
from esceme.observation import Observation

GUARD, FORMAT = "guard.json", "esceme-guard-1"


class GuardCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Calibration of a run, as stored in `guard.json` of its folder."""

    format: str = FORMAT
    weights: str
    """SHA-256 of the weights."""
    margin: Annotated[float, msgspec.Meta(gt=0)]
    """Decisions whose two best scores are closer are computed again."""
    largest_error: Annotated[float, msgspec.Meta(ge=0)]
    """Largest error of the difference between the best score and any other score, caused by low precision."""
    decisions: Annotated[int, msgspec.Meta(ge=1)]
    """Number of decisions that were compared."""


def read_guard(folder: Path, weights: str) -> GuardCalibration | None:
    """Return the calibration in a run folder; None if there is none for these weights (SHA-256)."""
    path = folder / GUARD
    guard = read_json(path, GuardCalibration) if path.is_file() else None
    if guard is not None and guard.format != FORMAT:
        raise DataError(f"{path}: format '{guard.format}', expected '{FORMAT}'; remove it to calibrate again")
    return guard if guard is not None and guard.weights == weights else None


class LoggedStep(NamedTuple):
    """A decision in low precision, from which it can be computed again."""

    observation: Observation
    row: int
    """Batch index in `observation`."""
    action: int | None = None
    """The action that was taken; None before it is known."""


@dataclass(frozen=True)
class GuardedState(State):
    """State of B agents between two steps, in low precision, and what is needed to compute it exactly.

    If scores do not return to the state, `latest` is exact and no steps are logged.
    """

    latest: State
    exact: State
    """State in single precision before the logged steps."""
    steps: Sequence[tuple[LoggedStep, ...]]
    """Steps since `exact`, for every agent."""

    def select(self, rows: Tensor) -> Self:
        """Return the states of the agents whose batch indices are in `rows`."""
        steps = [self.steps[row] for row in rows.tolist()]
        return replace(self, latest=self.latest.select(rows), exact=self.exact.select(rows), steps=steps)

    def concat(self, other: Self) -> Self:
        """Return the states of `self`, then those of `other`."""
        return replace(
            self,
            latest=self.latest.concat(other.latest),
            exact=self.exact.concat(other.exact),
            steps=[*self.steps, *other.steps],
        )


class GuardedNavigator(Navigator):
    """Makes the same decisions as a navigator in single precision, most of them in low precision."""

    def __init__(self, navigator: Navigator, switch: PrecisionSwitch, margin: float) -> None:
        """Guard `navigator`, whose precision `switch` selects; repeat decisions closer than `margin`."""
        super().__init__(navigator.agent, navigator.reader, feature_dropout=navigator.feature_dropout)
        self._switch, self.margin = switch, margin

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> GuardedState:
        """Return the initial state, in single precision."""
        state = self.agent.begin(instructions, start, privileged)
        return GuardedState(state, state, [()] * len(start))

    def decide(self, state: State, observation: Observation) -> Decision:
        """Return the scores in low precision, or in single precision for close decisions."""
        assert isinstance(state, GuardedState)
        with self._switch.low():
            decision = self.agent.decide(state.latest, observation)
        is_close = ~(best_margin(decision.logits) >= self.margin)
        rows = is_close.nonzero().flatten()
        logits, latest, exact, steps = decision.logits, decision.state, state.exact, list(state.steps)
        if len(rows):
            before = self._replay(state.select(rows))
            again = self.agent.decide(before, observation.select(rows))
            missing = logits.shape[1] - again.logits.shape[1]
            logits = logits.index_copy(0, rows, functional.pad(again.logits, (0, missing), value=-torch.inf))
            if latest is not None and again.state is not None:
                latest, exact = replace_rows(latest, rows, again.state), replace_rows(exact, rows, before)
                for row in rows.tolist():
                    steps[row] = ()
        if latest is None:
            guarded = state
        else:
            steps = [(*logged, LoggedStep(observation, row)) for row, logged in enumerate(steps)]
            guarded = GuardedState(latest, exact, steps)
        return decision._replace(logits=logits, state=guarded, recomputed=is_close)

    def advance(self, state: State, observation: Observation, actions: Tensor) -> GuardedState:
        """Return the state after the agents took `actions` (B,)."""
        assert isinstance(state, GuardedState)
        latest = self.agent.advance(state.latest, observation, actions)
        if not any(state.steps):
            return GuardedState(latest, latest, state.steps)
        steps = [
            (*logged[:-1], logged[-1]._replace(action=action))
            for logged, action in zip(state.steps, actions.tolist(), strict=True)
        ]
        return replace(state, latest=latest, steps=steps)

    def final_paths(self, state: State) -> list[list[int]] | None:
        """Return where the agents go after their episodes; computed exactly if the choice is close."""
        assert isinstance(state, GuardedState)
        latest, margin = state.latest, self.agent.final_margin(state.latest)
        if margin is not None:
            # The log probability of an action errs at most as much as the difference of two scores.
            rows = (~(margin >= 2 * self.margin)).nonzero().flatten()
            if len(rows):
                latest = replace_rows(latest, rows, self._replay(state.select(rows)))
        return self.agent.final_paths(latest)

    def _replay(self, state: GuardedState) -> State:
        """Return the state after all logged steps in single precision, computed agent by agent."""
        if not any(state.steps):
            return state.exact
        states = []
        for row, steps in enumerate(state.steps):
            exact = state.exact.select(torch.tensor([row]))
            for step in steps:
                observation = step.observation.select(torch.tensor([step.row]))
                exact = self.agent.decide(exact, observation).state or exact
                if step.action is not None:
                    exact = self.agent.advance(exact, observation, torch.tensor([step.action]))
            states.append(exact)
        joined: State = states[0]
        for other in states[1:]:
            joined = joined.concat(other)
        return joined


def best_margin(logits: Tensor) -> Tensor:
    """Return the differences of the two highest scores, (B, C) -> (B,); infinite with a single action."""
    best = functional.pad(logits, (0, 1), value=-torch.inf).topk(2, 1).values
    return best[:, 0] - best[:, 1]


def replace_rows(state: Any, rows: Tensor, new: Any) -> Any:
    """Return the states of B agents in which those with indices `rows` (R,) are the R agents of `new`."""
    batch = max(len(tensor) for tensor in state._tensors().values())
    order = torch.arange(batch)
    order[rows] = batch + torch.arange(len(rows))
    return state.concat(new).select(order)
