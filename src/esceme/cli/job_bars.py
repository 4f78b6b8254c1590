"""Progress bars of jobs in worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from esceme.jobs import JobProgress, OnProgress


@contextmanager
def job_bars(*, hide_finished: bool = False) -> Iterator[OnProgress]:
    """Show a progress bar per job on standard error; yield the callback that updates the bars.

    A job is a training or an evaluation. Bars appear at the first call of the callback. With `hide_finished`,
    the bars of finished jobs disappear.
    """
    tasks: dict[str, TaskID] = {}
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left {task.fields[loss]}"),
        console=Console(stderr=True, highlight=False),
        speed_estimate_period=60,
        refresh_per_second=2,
    )

    def on_progress(name: str, job: JobProgress) -> None:
        bars.start()
        if job.note:
            bars.console.print(f"{name}, {job.note}", markup=False, soft_wrap=True)
            return
        if name not in tasks:
            tasks[name] = bars.add_task(name, completed=job.done, total=job.total, loss="")
        loss = "" if job.loss is None else f"loss {job.loss:.3g}"
        is_hidden = hide_finished and job.done == job.total
        bars.update(tasks[name], completed=job.done, total=job.total, loss=loss, visible=not is_hidden)

    try:
        yield on_progress
    finally:
        if bars.live.is_started:
            bars.stop()
