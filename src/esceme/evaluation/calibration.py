"""Calibration of `--precision guarded`: how much low precision changes the scores of a run's decisions.

Episodes of the training split are run by decisions in single precision. Beside each, the decision in low
precision is computed, from a state in low precision. The margin follows from the largest difference. It is
stored in the run folder, so that all evaluations and processes use the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from esceme.agents.base import Decision, PrivilegedInfo, State, TokenBatch
from esceme.engine import PrecisionSwitch
from esceme.errors import ConfigError, EscemeError
from esceme.evaluation.context import EvaluationConfig, EvaluationContext, load_context
from esceme.evaluation.guarded import GUARD, GuardCalibration
from esceme.evaluation.inference import evaluation_steps
from esceme.evaluation.schedule import Lanes
from esceme.files import write_json
from esceme.navigator import Navigator
from esceme.observation import Observation

SPLIT, NUM_EPISODES = "train", 64
SAFETY = 1.5
"""Ratio of the margin to the largest difference that the calibration finds."""


@dataclass(frozen=True)
class PairedState(State):
    """States of the same B agents in single and in low precision."""

    exact: State
    low: State

    def select(self, rows: Tensor) -> Self:
        """Return the states of the agents whose batch indices are in `rows`."""
        return replace(self, exact=self.exact.select(rows), low=self.low.select(rows))

    def concat(self, other: Self) -> Self:
        """Return the states of `self`, then those of `other`."""
        return replace(self, exact=self.exact.concat(other.exact), low=self.low.concat(other.low))


class CalibratingNavigator(Navigator):
    """Decides in single precision, and measures by how much low precision changes differences of scores."""

    def __init__(self, navigator: Navigator, switch: PrecisionSwitch) -> None:
        """Measure `navigator`, whose precision `switch` selects."""
        super().__init__(navigator.agent, navigator.reader, feature_dropout=navigator.feature_dropout)
        self._switch = switch
        self.errors: list[float] = []
        """Largest change per decision of the differences between the best score and the others."""

    def begin(
        self, instructions: TokenBatch, start: Tensor, privileged: PrivilegedInfo | None = None
    ) -> PairedState:
        """Return the initial states, which are equal."""
        state = self.agent.begin(instructions, start, privileged)
        return PairedState(state, state)

    def decide(self, state: State, observation: Observation) -> Decision:
        """Return the scores in single precision, and record how much those in low precision differ."""
        assert isinstance(state, PairedState)
        exact = self.agent.decide(state.exact, observation)
        with self._switch.low():
            low = self.agent.decide(state.low, observation)
        best = low.logits.argmax(1, keepdim=True)
        change = (low.logits - low.logits.gather(1, best)) - (exact.logits - exact.logits.gather(1, best))
        self.errors += change.nan_to_num(0.0).abs().amax(1).tolist()  # NaN: actions that do not exist
        return exact._replace(state=PairedState(exact.state or state.exact, low.state or state.low))

    def advance(self, state: State, observation: Observation, actions: Tensor) -> PairedState:
        """Return both states after the agents took `actions` (B,)."""
        assert isinstance(state, PairedState)
        exact = self.agent.advance(state.exact, observation, actions)
        return PairedState(exact, self.agent.advance(state.low, observation, actions))

    def final_paths(self, state: State) -> list[list[int]] | None:
        """Return where the agents go after their episodes, from the state in single precision."""
        assert isinstance(state, PairedState)
        return self.agent.final_paths(state.exact)


def with_margin(context: EvaluationContext, note: Callable[[str], None]) -> EvaluationContext:
    """Return the context with a margin, if its precision is `guarded`; calibrate the run if it has none."""
    if context.config.precision != "guarded" or context.margin is not None:
        return context
    note(f"calibrating --precision guarded on {NUM_EPISODES} episodes of {SPLIT}; the run keeps the result")
    guard = calibrate(context)
    write_json(context.run.folder / GUARD, guard, indent=2)
    return replace(context, margin=guard.margin)


def calibrate(context: EvaluationContext) -> GuardCalibration:
    """Return the margin of a run, from episodes that are spread over the training split."""
    config, reader = context.config, context.run.navigator.reader
    training = EvaluationConfig(
        run=config.run,
        data=config.data,
        split=SPLIT,
        memory="cold" if reader.uses_memory else "none",
        task=config.task,
        batch=config.batch,
        features=config.features,
        max_steps=config.max_steps,
        max_tokens=config.max_tokens,
        precision="guarded",
        engine=config.engine,
    )
    try:
        train = load_context(training, run=context.run, hashes=context.hashes)
    except EscemeError as error:
        raise ConfigError(f"--precision guarded: is calibrated on episodes of {SPLIT}: {error}") from None
    episodes = list(train.episodes)[:: max(1, len(train.episodes) // NUM_EPISODES)][:NUM_EPISODES]
    lifetime = train.lifetime()
    navigator = CalibratingNavigator(context.run.navigator, context.switch).eval()
    for _ in evaluation_steps(
        navigator,
        train.atlas,
        Lanes(train.atlas, episodes, lifetime, num_slots=config.batch),
        lifetime.memory,
        encode=train.encode,
        max_steps=train.limits.max_steps,
    ):
        pass
    largest = max(navigator.errors)
    return GuardCalibration(
        weights=context.run.weights_hash,
        margin=max(SAFETY * largest, torch.finfo(torch.float32).eps),
        largest_error=largest,
        decisions=len(navigator.errors),
    )
