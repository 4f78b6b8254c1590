"""A run of training from its beginning, or from where it was interrupted, to its end.

RUN/
  experiment.json, weights.safetensors …   the navigator as it is now: a run folder
  best/                                    the navigator that validated best: a run folder
  state/                                   the last two states that a run can resume from
  log.jsonl, tensorboard/                  losses and scores
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esceme.learning.journal import TrainingLog
from esceme.learning.states import load_state, save_state
from esceme.learning.trainer import Trainer
from esceme.learning.training import Validation
from esceme.learning.validation import mark, some_of, validate
from esceme.runs import Setup
from esceme.tasks.episode import Episode
from esceme.walking import Encode
from esceme.world.atlas import Atlas

BEST = "best"
LOG_EVERY = 10
"""Iterations whose means make a line of the log."""


class Watch:
    """Someone who is told how training goes; this one ignores it."""

    def begin(self, done: int, total: int) -> None:
        """Training begins, with so many iterations done already."""

    def iterated(self, done: int, said: Mapping[str, float]) -> None:
        """An iteration has ended."""

    def validated(self, done: int, scores: Mapping[str, Mapping[str, float]], *, best: bool) -> None:
        """The navigator was validated."""

    def note(self, message: str) -> None:
        """Something to know."""


@dataclass
class Course:
    """Who learns, what is asked of it meanwhile, and where it is kept."""

    trainer: Trainer
    folder: Path
    setup: Setup
    validation: Validation
    sets: Mapping[str, Sequence[Episode]]
    """The validation splits, by name."""
    atlas: Atlas
    encode: Encode
    save: Callable[[Path], None]
    """Writes the navigator as a run folder."""
    watch: Watch

    def run(self) -> None:
        """Train to the end."""
        state = load_state(self.folder, note=self._note)
        done = 0 if state is None else int(state["iteration"])
        self._best: float | None = None
        self._window: list[dict[str, float]] = []
        if state is not None:
            self.trainer.resume(state)
            self._best, self._window = state["best"], state["window"]
        total = self.trainer.training.iterations
        self.watch.begin(done, total)
        with self._open_log(done) as self._log:
            if done == 0 and self.validation.first:
                self._validate(0)
            for iteration in range(done, total):
                said = self.trainer.iterate(iteration)
                self._after(iteration + 1, said, last=iteration + 1 == total)
        if self.trainer.together.leads:
            self.save(self.folder)

    def _after(self, done: int, said: dict[str, float], *, last: bool) -> None:
        """What follows an iteration: a line in the log, a validation, a checkpoint, each in its time."""
        self._window.append(said)
        if done % LOG_EVERY == 0 or last:
            self._write("train", done, **_means(self._window))
            self._window = []
        self.watch.iterated(done, said)
        validates = bool(self.sets) and (done % self.validation.every == 0 or last)
        if validates:
            self._validate(done)
        if validates or last or done % self.trainer.training.checkpoint_every == 0:
            self._checkpoint(done)

    def _validate(self, done: int) -> None:
        memory = self.trainer.memory
        leaks = self.validation.memory == "leaking" and memory is not None
        scores = {
            split: validate(
                self.trainer.navigator,
                self.atlas,
                some_of(episodes, self.validation.limit),
                self.validation.memory,
                task=self.setup.task,
                encode=self.encode,
                max_steps=self.setup.max_steps,
                leaking=memory.bank if leaks and memory is not None else None,
                together=self.trainer.together,
            )
            for split, episodes in self.sets.items()
        }
        reached = mark(scores[self.validation.best_split], self.validation)
        better = self._best is None or reached >= self._best
        self._write("validation", done, **scores)
        if better:
            self._best = reached
            if self.trainer.together.leads:
                self.save(self.folder / BEST)
        self.watch.validated(done, scores, best=better)

    def _checkpoint(self, done: int) -> None:
        if self.trainer.together.leads:
            state = {**self.trainer.state(), "best": self._best, "window": self._window}
            save_state(self.folder, done, state)

    def _open_log(self, done: int) -> Any:
        if self.trainer.together.leads:
            return TrainingLog(self.folder, after=done, note=self._note)
        return _Nowhere()

    def _write(self, kind: Any, done: int, **values: Any) -> None:
        self._log.write(kind, done, **values)

    def _note(self, message: str) -> None:
        if self.trainer.together.leads:
            self.watch.note(message)


class _Nowhere:
    """The log of a process that does not lead."""

    def __enter__(self) -> _Nowhere:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def write(self, kind: str, iteration: int, **values: object) -> None:
        """Write nothing."""


def _means(window: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of everything that was said, over those iterations that said it."""
    names = dict.fromkeys(name for said in window for name in said)
    told = {name: [said[name] for said in window if name in said] for name in names}
    return {name: sum(values) / len(values) for name, values in told.items()}
