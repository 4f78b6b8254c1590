"""Progress of training on standard error: a progress bar, with validation scores above it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from esceme.cli.console import format_metric
from esceme.learning import TrainingCallback
from esceme.metrics import TOUR_METRICS
from esceme.tasks.catalogue import TASKS

WINDOW = 20
"""Number of last iterations over which the displayed losses are averaged."""


def reported_metrics(task: str, means: Mapping[str, float]) -> tuple[str, ...]:
    """Return the metrics that papers report for a task, and the metrics of tours if `means` has them."""
    return TASKS[task].primary_metrics + tuple(name for name in TOUR_METRICS if name in means)


class SpeedColumn(ProgressColumn):
    """Column of a progress bar that shows iterations per second."""

    def render(self, task: Task) -> Text:
        """Return the speed as text; empty while the speed is unknown."""
        return Text("" if task.speed is None else f"{task.speed:.2f} it/s")


class TrainingProgress(TrainingCallback):
    """Training callback that shows a progress bar with mean losses, and a line for every validation."""

    def __init__(self, label: str, task: str) -> None:
        """Show `label` beside the bar, and the metrics that papers report for `task`."""
        self._label, self._task = label, task
        self._recent: deque[Mapping[str, float]] = deque(maxlen=WINDOW)
        column = Column(no_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}", table_column=column),
            BarColumn(bar_width=10, table_column=column),
            MofNCompleteColumn(table_column=column),
            SpeedColumn(table_column=column),
            TimeRemainingColumn(table_column=column),
            TextColumn("left", table_column=column),
            TextColumn("{task.fields[metrics]}", table_column=Column(no_wrap=True, ratio=1)),
            console=Console(stderr=True, highlight=False),
            expand=True,
            refresh_per_second=2,
            speed_estimate_period=60,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar.task_ids:
            self._bar.stop()

    def on_train_begin(self, iteration: int, num_iterations: int) -> None:
        """Show the progress bar."""
        if iteration:
            self.on_note(f"resumes after iteration {iteration}")
        self._bar.start()
        self._bar.add_task(self._label, total=num_iterations, completed=iteration, metrics="")

    def on_iteration_end(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Advance the progress bar, and show the mean losses of the last `WINDOW` iterations."""
        self._recent.append(metrics)
        means = {
            name: fmean(recent.get(name, value) for recent in self._recent) for name, value in metrics.items()
        }
        shown_apart = ("gradient_norm", "learning_rate")
        parts = [f"{name} {value:.3g}" for name, value in means.items() if name not in shown_apart]
        parts.insert(0, f"rate {metrics['learning_rate']:.1e}")
        self._bar.update(self._bar.task_ids[0], completed=iteration, metrics=" ".join(parts))

    def on_validation_end(
        self, iteration: int, scores: Mapping[str, Mapping[str, float]], *, is_best: bool
    ) -> None:
        """Print the scores of a validation above the progress bar."""
        parts = [f"{split} {_format_scores(means, self._task)}" for split, means in scores.items()]
        self.on_note(f"iteration {iteration}: {'; '.join(parts)}{' (best so far)' if is_best else ''}")

    def on_note(self, message: str) -> None:
        """Print a line above the progress bar."""
        self._bar.console.print(message, markup=False, soft_wrap=True)


def _format_scores(means: Mapping[str, float], task: str) -> str:
    return ", ".join(
        f"{name.upper()} {format_metric(name, means[name])}" for name in reported_metrics(task, means)
    )
