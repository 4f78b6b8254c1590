"""A run of training from its beginning, or from where it was interrupted, to its end.

RUN/
  navigator.json, weights.safetensors …    the navigator at the end: a run folder
  best/                                    the navigator that validated best: a run folder
  state/                                   the last two states that a run can resume from
  log.jsonl, tensorboard/                  losses and scores

Of several processes the first writes all of it. A state is written after the lines of the log and the best
weights that belong to it: what was written after the last state is written again, the same, by who resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from esceme.learning.train_state import alone_in, load_state, save_state
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import Validation
from esceme.learning.training_log import Kind, TrainingLog, Value
from esceme.learning.validation import mark, some_of, some_tours, validate
from esceme.runs import NavigatorConfig
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.tours import Tour
from esceme.world.atlas import Atlas

BEST = "best"
LOG_EVERY = 10
"""Iterations whose means make a line of the log."""


class TrainingCallback:
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
class TrainingRun:
    """Who learns, what is asked of it meanwhile, and where it is kept."""

    trainer: Trainer
    folder: Path
    config: NavigatorConfig
    validation: Validation
    sets: Mapping[str, Sequence[Episode]]
    """The validation splits, by name."""
    tours: Mapping[str, Sequence[Tour]]
    """Those that they follow, where validation follows tours."""
    atlas: Atlas
    encode: InstructionEncoder
    begin: Callable[[], None]
    """Writes down what is asked for, once the folder is ours."""
    save: Callable[[Path], None]
    """Writes the navigator as a run folder."""
    watch: TrainingCallback
    _best: float | None = field(default=None, init=False)
    """What the best weights so far have reached."""
    _window: list[dict[str, float]] = field(default_factory=list, init=False)
    """What was said since the last line of the log."""
    _log: TrainingLog | None = field(default=None, init=False)
    """None in a process that does not lead."""

    def run(self) -> None:
        """Train to the end."""
        leads = self.trainer.together.leads
        with ExitStack() as held:
            if leads:
                held.enter_context(alone_in(self.folder))
                self.begin()
            done = self._resume()
            if leads:
                self._log = held.enter_context(TrainingLog(self.folder, after=done, note=self.watch.note))
            self._learn(done)
            if leads:
                self.save(self.folder)

    def _resume(self) -> int:
        """Go on from the latest good state, if there is one; how many iterations are done."""
        state = load_state(self.folder, note=self.watch.note)
        done = self.trainer.together.agree(0 if state is None else int(state["iteration"]))
        if state is not None:
            self.trainer.resume(state)
            self._best, self._window = state["best"], state["window"]
        return done

    def _learn(self, done: int) -> None:
        total = self.trainer.training.iterations
        self.watch.begin(done, total)
        if done == 0 and self.validation.first and self.sets:
            self._validate(0)
        for iteration in range(done, total):
            said = self.trainer.iterate(iteration)
            self._after(iteration + 1, said, last=iteration + 1 == total)

    def _after(self, done: int, said: dict[str, float], *, last: bool) -> None:
        """What follows an iteration: a line in the log, a validation, a checkpoint, each in its time."""
        self._window.append(said)
        if done % LOG_EVERY == 0 or last:
            self._write("train", done, **_means(self._window))
            self._window = []
        self.watch.iterated(done, said)
        validates = bool(self.sets) and (done % self.validation.every == 0 or last)
        keeps = validates or last or done % self.trainer.training.checkpoint_every == 0
        if keeps:
            self.trainer.require_finite(done)
        if validates:
            self._validate(done)
        if keeps:
            self._checkpoint(done)

    def _validate(self, done: int) -> None:
        asked, memory = self.validation, self.trainer.memory
        tours = {split: some_tours(each, asked.limit) for split, each in self.tours.items()}
        scores = {
            split: validate(
                self.trainer.navigator,
                self.atlas,
                episodes if split in tours else some_of(episodes, asked.limit),
                asked.memory,
                task=self.config.task,
                encode=self.encode,
                max_steps=self.config.max_steps,
                leaking=memory.bank if memory is not None and asked.memory == "leaking" else None,
                together=self.trainer.together,
                tours=tours.get(split),
                oracle_phases=asked.oracle_phases,
            )
            for split, episodes in self.sets.items()
        }
        reached = mark(scores[asked.best_split], asked)
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

    def _write(self, kind: Kind, done: int, **values: Value) -> None:
        if self._log is not None:
            self._log.write(kind, done, **values)


def _means(window: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of everything that was said, over those iterations that said it."""
    names = dict.fromkeys(name for said in window for name in said)
    told = {name: [said[name] for said in window if name in said] for name in names}
    return {name: sum(values) / len(values) for name, values in told.items()}
