"""Wall-clock time of training iterations in several single-threaded processes."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from esceme.config import Experiment
from esceme.learning import ProcessGroup, Trainer, TrainingCallback
from esceme.training import prepare
from esceme.workers import Job, run_jobs

T = TypeVar("T")


class IterationTime(NamedTuple):
    """Seconds of an iteration by the wall clock."""

    total: float
    waiting: float
    """Part of `total`: waiting for the other process to reach a collective."""
    exchanging: float
    """Part of `total`: collectives."""


@dataclass(frozen=True)
class TimedProcessGroup(ProcessGroup):
    """Measures the time of collectives; a barrier before each separates waiting from exchanging."""

    waited: list[float] = field(default_factory=list)
    exchanged: list[float] = field(default_factory=list)

    def all_reduce_sum(self, values: Sequence[float], device: torch.device | str = "cpu") -> list[float]:
        """Sum each value over all ranks."""
        with self._timed():
            return super().all_reduce_sum(values, device)

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks in the order of ranks."""
        with self._timed():
            return super().all_gather(value)

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over all ranks."""
        with self._timed():
            super().all_reduce_gradients(parameters)

    def pop_times(self, total: float) -> IterationTime:
        """Return the times since the last call, and reset them."""
        times = IterationTime(total, sum(self.waited), sum(self.exchanged))
        self.waited.clear()
        self.exchanged.clear()
        return times

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = time.perf_counter()
        if self.size > 1:
            dist.barrier()
        middle = time.perf_counter()
        yield
        self.waited.append(middle - begin)
        self.exchanged.append(time.perf_counter() - middle)


def explain_loss(single: IterationTime, double: IterationTime) -> str:
    """Describe why two processes are not twice as fast as one."""
    waiting, exchanging = (100 * part / double.total for part in (double.waiting, double.exchanging))
    own = (double.total - double.waiting - double.exchanging) / single.total
    return (
        f"half a batch takes {own:.2f} of the time of a whole one; {waiting:.0f} % waiting for each other, "
        f"{exchanging:.0f} % exchanging"
    )


def best_times(rounds: Sequence[Sequence[IterationTime]]) -> IterationTime:
    """Return the mean over iterations of their fastest round."""
    fastest = [min(times, key=lambda time: time.total) for times in zip(*rounds, strict=True)]
    return IterationTime(*np.mean(fastest, axis=0).tolist())


def measure_training(
    size: int, experiments: Sequence[Experiment], data: Path, *, num_warmup: int, num_measured: int
) -> list[list[IterationTime]]:
    """Return the times of the iterations of each experiment in `size` processes, averaged over ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (size, port, experiments, data, num_warmup, num_measured)
    jobs = [Job(f"rank {rank}", partial(_train_as_rank, rank, *arguments)) for rank in range(size)]
    ranks = run_jobs(jobs, processes=size)
    return [
        [IterationTime(*np.mean(times, axis=0).tolist()) for times in zip(*by_rank, strict=True)]
        for by_rank in zip(*ranks, strict=True)
    ]


def _train_as_rank(
    rank: int,
    size: int,
    port: int,
    experiments: Sequence[Experiment],
    data: Path,
    num_warmup: int,
    num_measured: int,
    _send: Callable[[object], None],
) -> list[list[IterationTime]]:
    """Return the times of one rank, without those of warm-up iterations."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    process_group = TimedProcessGroup.from_environment()
    assert isinstance(process_group, TimedProcessGroup)
    results = []
    for experiment in experiments:
        run = prepare(
            experiment, data, Path("unused"), callback=TrainingCallback(), process_group=process_group
        )
        run.atlas.panorama_features(np.arange(len(run.atlas)))  # loads all features now
        num_iterations = num_warmup + num_measured
        times = [_time_iteration(run.trainer, process_group, index) for index in range(num_iterations)]
        results.append(times[num_warmup:])
    process_group.destroy()
    return results


def _time_iteration(trainer: Trainer, process_group: TimedProcessGroup, iteration: int) -> IterationTime:
    process_group.all_gather(None)  # all ranks start together
    process_group.pop_times(0.0)
    begin = time.perf_counter()
    trainer.training_step(iteration)
    return process_group.pop_times(time.perf_counter() - begin)
