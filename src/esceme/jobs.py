"""Trainings and evaluations as jobs of worker processes, with progress."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from esceme.config import Experiment
from esceme.errors import EscemeError
from esceme.evaluation import EvaluationConfig, Result, evaluate
from esceme.learning import TrainingCallback
from esceme.training import train

LOSS_WINDOW = 20
"""Number of last iterations whose mean loss is reported."""


class JobProgress(NamedTuple):
    """Progress of a training or evaluation, or a note.

    `done` and `total` are numbers of iterations or episodes; `loss` is the mean loss of the last iterations.
    """

    done: int = 0
    total: int = 0
    loss: float | None = None
    note: str = ""
    """A line of text. If it is not empty, the other fields have no meaning."""


SendProgress = Callable[[JobProgress], None]
"""Sends progress from a worker process to the parent process."""
OnProgress = Callable[[str, JobProgress], None]
"""Callback that gets the name of a job and its progress."""


@contextmanager
def prefix_errors_with_job(name: str) -> Iterator[None]:
    """Convert an `EscemeError` raised in the `with` block to one that begins with the name of the job."""
    try:
        yield
    except EscemeError as error:
        raise EscemeError(f"{name}: {error}") from None


def run_training_job(name: str, experiment: Experiment, data: Path, folder: Path, send: SendProgress) -> None:
    """Train in a worker process; see `train`. Errors name the job."""
    with prefix_errors_with_job(name):
        train(experiment, data, folder, callback=ProgressSender(send))


class ProgressSender(TrainingCallback):
    """Training callback that sends progress to the parent process."""

    def __init__(self, send: SendProgress) -> None:
        """Call `send` with the progress after every iteration, and with notes."""
        self._send, self._total = send, 0
        self._losses: deque[float] = deque(maxlen=LOSS_WINDOW)

    def on_train_begin(self, iteration: int, num_iterations: int) -> None:
        """Send the number of iterations."""
        self._total = num_iterations
        self._send(JobProgress(iteration, num_iterations))

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Send the number of completed iterations and the mean imitation loss."""
        self._losses.append(metrics["imitation"])
        self._send(JobProgress(iteration, self._total, fmean(self._losses)))

    def on_validation_end(
        self, iteration: int, scores: Mapping[str, Mapping[str, float]], *, is_best: bool
    ) -> None:
        """Send SPL on every split as a note."""
        values = ", ".join(f"{split} {100 * means['spl']:.1f}" for split, means in scores.items())
        self.on_note(f"iteration {iteration}: SPL {values}")

    def on_note(self, message: str) -> None:
        """Send a note."""
        self._send(JobProgress(note=message))


def run_evaluation_job(
    name: str, config: EvaluationConfig, folder: Path, send: SendProgress, *, trace: bool = False
) -> Result:
    """Evaluate in a worker process; see `evaluate`. Errors name the job."""
    with prefix_errors_with_job(name):
        return evaluate(
            config,
            folder,
            trace=trace,
            on_progress=lambda done, total: send(JobProgress(done, total)),
            note=lambda message: send(JobProgress(note=message)),
        )
