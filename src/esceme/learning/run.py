"""A training run from its start, or from its last checkpoint, to its end.

RUN/
  navigator.json, weights.safetensors …    the final navigator: a run folder
  best/                                    the navigator with the best validation: a run folder
  state/                                   checkpoints: the last two states from which a run can resume
  log.jsonl, tensorboard/                  metrics and scores

Only the main process writes. A checkpoint is written after the log lines and the best weights of its
iteration. A resumed run repeats the iterations after its checkpoint and writes the same files again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import torch

from esceme.errors import CheckpointError
from esceme.files import folder_lock
from esceme.learning.trainer import Trainer
from esceme.learning.training_config import ValidationConfig
from esceme.learning.training_log import LOG_FILE, LineKind, LogValues, TrainingLog, read_log
from esceme.learning.validation import selection_score, subsample_episodes, subsample_tours, validate
from esceme.runs import NAVIGATOR_FILE, NavigatorConfig
from esceme.tasks.episode import Episode
from esceme.tasks.split import InstructionEncoder
from esceme.tasks.tours import Tour
from esceme.torch_files import load_tensors, save_tensors
from esceme.world.atlas import Atlas

BEST_FOLDER = "best"
STATES_FOLDER = "state"
STATE_FORMAT = "esceme-state-3"
NUM_STATES = 2
"""Number of checkpoints that are kept: the latest, and one more in case the latest is damaged."""
LOG_EVERY = 10
"""Number of iterations whose mean metrics form one line of the log."""


class TrainingCallback:
    """Base class of callbacks for the events of a training run. All methods do nothing by default.

    `iteration` is the number of completed iterations: 1 after the first iteration.
    """

    def on_train_begin(self, iteration: int, num_iterations: int) -> None:
        """Called when training starts or resumes after `iteration` of `num_iterations` iterations."""

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Called after every iteration with its metrics by name."""

    def on_validation_end(
        self, iteration: int, scores: Mapping[str, Mapping[str, float]], *, is_best: bool
    ) -> None:
        """Called after every validation with the scores by split and metric."""

    def on_note(self, message: str) -> None:
        """Called with a message for the user."""


@dataclass
class TrainingRun:
    """A training run: a trainer with its validation, checkpoints and log."""

    trainer: Trainer
    folder: Path
    navigator_config: NavigatorConfig
    validation: ValidationConfig
    validation_sets: Mapping[str, Sequence[Episode]]
    """Episodes of each validation split, by name of the split."""
    tours: Mapping[str, Sequence[Tour]]
    """Tours of each validation split, by name of the split; empty unless validation follows tours."""
    atlas: Atlas
    objects: Mapping[str, frozenset[str]] | None
    """Names of the objects visible from each viewpoint, for tasks whose metrics need them; otherwise None."""
    encode: InstructionEncoder
    fingerprint: str
    """Digest of the experiment and of the sizes of its data. Checkpoints with another one are not loaded."""
    resumable_fingerprints: Sequence[str]
    """Digests of the same experiment with fewer iterations, whose checkpoints are loaded as well."""
    write_experiment: Callable[[], None]
    """Function that writes the experiment's settings to the run folder; called after the folder is locked."""
    save_navigator: Callable[[Path], None]
    """Function that writes the navigator to the given run folder."""
    callback: TrainingCallback
    _best: float | None = field(default=None, init=False)
    """Validation score of the best weights so far; None before the first validation."""
    _metrics: list[dict[str, float]] = field(default_factory=list, init=False)
    """Metrics of each iteration since the last line of the log."""
    _log: TrainingLog | None = field(default=None, init=False)
    """Log of the main process; None in other processes."""

    def run(self) -> None:
        """Train until the last iteration, starting from the last checkpoint if there is one."""
        is_main = self.trainer.process_group.is_main
        with ExitStack() as stack:
            if is_main:
                stack.enter_context(folder_lock(self.folder, "training"))
                self.write_experiment()
            iteration = self._resume()
            if is_main:
                log = TrainingLog(self.folder, after=iteration, note=self.callback.on_note)
                self._log = stack.enter_context(log)
            self._train(iteration)
            if is_main:
                self.save_navigator(self.folder)

    def _resume(self) -> int:
        """Load the last readable checkpoint, if any, and return the number of completed iterations."""
        fingerprints = (self.fingerprint, *self.resumable_fingerprints)
        state = load_state(self.folder, fingerprints, use=self.restore, note=self.callback.on_note)
        if state is None:
            self._require_no_lost_states()
        iteration = 0 if state is None else int(state["iteration"])
        self.trainer.process_group.assert_equal(iteration)
        return iteration

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint. An exception of any type is raised if it does not fit this run."""
        self.trainer.load_state_dict(state)
        self._best = msgspec.convert(state["best"], float | None)
        self._metrics = msgspec.convert(state["metrics"], list[dict[str, float]])

    def _require_no_lost_states(self) -> None:
        """Raise `CheckpointError` if the folder has no checkpoints, but other files show that it had some.

        A run that was interrupted before its first checkpoint starts again; the callback receives a note.
        """
        path = self.folder / LOG_FILE
        iterations = [line["iteration"] for line in read_log(path)] if path.exists() else []
        config = self.trainer.config
        periods = [config.iterations, config.checkpoint_every]
        first_state = min([*periods, self.validation.every] if self.validation_sets else periods)
        last = max(iterations, default=0)
        has_weights = (self.folder / BEST_FOLDER).exists() and not iterations
        if last > first_state or has_weights or (self.folder / NAVIGATOR_FILE).exists():
            raise CheckpointError(
                f"{self.folder}: holds results of training (its log ends at iteration {last}), but no state "
                f"to resume from; restore {STATES_FOLDER}/, or give another --out"
            )
        if iterations:
            self.callback.on_note(
                f"{self.folder}: interrupted before its first state, so training starts over"
            )

    def _train(self, start: int) -> None:
        num_iterations = self.trainer.config.iterations
        self.callback.on_train_begin(start, num_iterations)
        if start == 0 and self.validation.before_training and self.validation_sets:
            self._validate(0)
        for iteration in range(start, num_iterations):
            metrics = self.trainer.training_step(iteration)
            self._after_step(iteration + 1, metrics, is_last=iteration + 1 == num_iterations)

    def _after_step(self, iteration: int, metrics: dict[str, float], *, is_last: bool) -> None:
        """Log, validate and save a checkpoint, each if due after `iteration` completed iterations."""
        self._metrics.append(metrics)
        if iteration % LOG_EVERY == 0 or is_last:
            self._write_log("train", iteration, _mean_metrics(self._metrics))
            self._metrics = []
        self.callback.on_iteration_end(iteration, metrics)
        validates = bool(self.validation_sets) and (iteration % self.validation.every == 0 or is_last)
        saves = validates or is_last or iteration % self.trainer.config.checkpoint_every == 0
        if saves:
            self.trainer.check_finite(iteration)
        if validates:
            self._validate(iteration)
        if saves and self.trainer.process_group.is_main:
            state = {**self.trainer.state_dict(), "best": self._best, "metrics": self._metrics}
            save_state(self.folder, iteration, {"experiment": self.fingerprint, **state})

    def _validate(self, iteration: int) -> None:
        config, memory = self.validation, self.trainer.memory
        tours = {split: subsample_tours(tours, config.limit) for split, tours in self.tours.items()}
        scores = {
            split: validate(
                self.trainer.navigator,
                self.atlas,
                episodes if split in tours else subsample_episodes(episodes, config.limit),
                config.memory,
                task=self.navigator_config.task,
                encode=self.encode,
                max_steps=self.navigator_config.max_steps,
                objects=self.objects,
                leaking=memory.bank if memory is not None and config.memory == "leaking" else None,
                process_group=self.trainer.process_group,
                tours=tours.get(split),
                oracle_phases=config.oracle_phases,
            )
            for split, episodes in self.validation_sets.items()
        }
        score = selection_score(scores[config.best_split], config)
        is_best = self._best is None or score >= self._best
        self._write_log("validation", iteration, scores)
        if is_best:
            self._best = score
            if self.trainer.process_group.is_main:
                self.save_navigator(self.folder / BEST_FOLDER)
        self.callback.on_validation_end(iteration, scores, is_best=is_best)

    def _write_log(self, kind: LineKind, iteration: int, values: LogValues) -> None:
        if self._log is not None:
            self._log.write(kind, iteration, values)


def _mean_metrics(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of every metric over the iterations that report it.

    >>> _mean_metrics([{"loss": 0.1}] * 10)  # sum() / 10 is 0.09999999999999999 below Python 3.12
    {'loss': 0.1}
    """
    names = dict.fromkeys(name for step in metrics for name in step)
    values = {name: [step[name] for step in metrics if name in step] for name in names}
    return {name: fmean(numbers) for name, numbers in values.items()}


# -- checkpoints -------------------------------------------------------------------------------------------


def save_state(folder: Path, iteration: int, state: dict[str, Any]) -> None:
    """Write a checkpoint. Keep the last checkpoint of an earlier iteration and delete all others."""
    path = folder / STATES_FOLDER / f"{iteration:08d}.pt"
    save_tensors({"format": STATE_FORMAT, "iteration": iteration, **state}, path)
    earlier = [other for other in _state_files(folder) if int(other.stem) < iteration]
    for other in {*_state_files(folder)} - {path, *earlier[: NUM_STATES - 1]}:
        other.unlink(missing_ok=True)


def load_state(
    folder: Path,
    fingerprints: Sequence[str],
    *,
    use: Callable[[dict[str, Any]], object] = lambda state: None,
    note: Callable[[str], None] = lambda message: None,
) -> dict[str, Any] | None:
    """Return the latest usable checkpoint with one of these fingerprints, or None without checkpoints.

    A checkpoint is usable if `use` raises no exception for it. `note` receives a message for every checkpoint
    that is damaged or of another run. Raise `CheckpointError` if no checkpoint remains.
    """
    for path in (paths := _state_files(folder)):
        try:
            state = _read_state(path, fingerprints)
            _use_state(state, use, path)
            return state
        except CheckpointError as error:
            note(f"{path}: skipped ({str(error).removeprefix(f'{path}: ')}); trying the one before")
    if paths:
        raise CheckpointError(
            f"{folder / STATES_FOLDER}: none of its {len(paths)} states can be resumed from; restore one, or "
            "give another --out"
        )
    return None


def _read_state(path: Path, fingerprints: Sequence[str]) -> dict[str, Any]:
    state = load_tensors(path)
    found = state if isinstance(state, dict) else {}
    fingerprint = next((known for known in fingerprints if known == found.get("experiment")), fingerprints[0])
    facts = {"format": STATE_FORMAT, "iteration": int(path.stem), "experiment": fingerprint}
    differing = [name for name, value in facts.items() if repr(found.get(name)) != repr(value)]
    if differing:
        what = "a state of another run" if differing == ["experiment"] else "not a state of this version"
        raise CheckpointError(f"{path}: {what}; it differs in {', '.join(differing)}")
    if not _is_finite([found.get("weights"), found.get("optimizer")]):
        raise CheckpointError(f"{path}: non-finite weights or optimizer averages, which are never saved")
    return found


def _use_state(state: dict[str, Any], use: Callable[[dict[str, Any]], object], path: Path) -> None:
    try:
        use(state)
    except Exception as error:  # other names, shapes and types cause many exception types
        raise CheckpointError(f"{path}: does not fit this run ({type(error).__name__})") from None


def _is_finite(value: Any) -> bool:
    """Whether all tensors in nested dicts and lists are finite."""
    if isinstance(value, torch.Tensor):
        return bool(value.float().isfinite().all())
    values = list(value.values()) if isinstance(value, dict) else value
    return not isinstance(values, list | tuple) or all(map(_is_finite, values))


def _state_files(folder: Path) -> list[Path]:
    """Return the paths of the checkpoints of a run, the latest first."""
    paths = (folder / STATES_FOLDER).glob("*.pt")
    return sorted((path for path in paths if path.stem.isdigit()), reverse=True)
