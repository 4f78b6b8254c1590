"""Training in several processes of one thread, and what they lose to each other, by the clock on the wall."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from esceme.config import Experiment
from esceme.learning import ProcessGroup, Trainer, TrainingCallback
from esceme.training import prepare

T = TypeVar("T")


class Spent(NamedTuple):
    """Seconds of an iteration by the clock on the wall."""

    whole: float
    waiting: float
    """Of these: for the other process to come as far."""
    exchanging: float
    """Of these: with the other process."""


@dataclass(frozen=True)
class Clocked(ProcessGroup):
    """Processes that take the time they spend on each other, waiting before they exchange anything."""

    waited: list[float] = field(default_factory=list)
    exchanged: list[float] = field(default_factory=list)

    def all_reduce_sum(self, values: Sequence[float], device: torch.device | str = "cpu") -> list[float]:
        """Sum every value over the processes."""
        with self._clock():
            return super().all_reduce_sum(values, device)

    def all_gather(self, value: T) -> list[T]:
        """Collect the values of all processes."""
        with self._clock():
            return super().all_gather(value)

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over processes."""
        with self._clock():
            super().all_reduce_gradients(parameters)

    def spent(self, whole: float) -> Spent:
        """What an iteration took that has just ended; the next one begins."""
        told = Spent(whole, sum(self.waited), sum(self.exchanged))
        self.waited.clear()
        self.exchanged.clear()
        return told

    @contextmanager
    def _clock(self) -> Iterator[None]:
        begin = time.perf_counter()
        if self.size > 1:
            dist.barrier()
        middle = time.perf_counter()
        yield
        self.waited.append(middle - begin)
        self.exchanged.append(time.perf_counter() - middle)


def lost(alone: Spent, both: Spent) -> str:
    """Why it is not twice as fast, in words."""
    waiting, exchanging = (100 * each / both.whole for each in (both.waiting, both.exchanging))
    own = (both.whole - both.waiting - both.exchanging) / alone.whole
    return (
        f"half a batch takes {own:.2f} of the time of a whole one; {waiting:.0f} % waiting for each other, "
        f"{exchanging:.0f} % exchanging"
    )


def best(rounds: Sequence[Sequence[Spent]]) -> Spent:
    """The mean over iterations, each as it was in its quickest round."""
    quickest = [min(each, key=lambda spent: spent.whole) for each in zip(*rounds, strict=True)]
    return Spent(*(sum(each) / len(quickest) for each in zip(*quickest, strict=True)))


def in_company(
    size: int, experiments: Sequence[Experiment], data: Path, *, warm_up: int, measured: int
) -> list[list[Spent]]:
    """What the iterations of each experiment took in so many processes: the mean over processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(size, get_context("spawn")) as pool:
        started = [
            pool.submit(learn, rank, size, port, experiments, data, warm_up, measured) for rank in range(size)
        ]
        told = [each.result() for each in started]
    return [
        [Spent(*np.mean(ranks, axis=0).tolist()) for ranks in zip(*of_experiment, strict=True)]
        for of_experiment in zip(*told, strict=True)
    ]


def learn(
    rank: int,
    size: int,
    port: int,
    experiments: Sequence[Experiment],
    data: Path,
    warm_up: int,
    measured: int,
) -> list[list[Spent]]:
    """What iterations of each experiment take, after those to warm up; for a process of its own."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    process_group = Clocked.from_environment()
    assert isinstance(process_group, Clocked)
    found = []
    for experiment in experiments:
        course = prepare(
            experiment, data, Path("nowhere"), callback=TrainingCallback(), process_group=process_group
        )
        course.atlas.panorama_features(np.arange(len(course.atlas)))  # so that they need not be read later
        lived = [iterate(course.trainer, process_group, number) for number in range(warm_up + measured)]
        found.append(lived[warm_up:])
    process_group.destroy()
    return found


def iterate(trainer: Trainer, process_group: Clocked, iteration: int) -> Spent:
    """What one iteration takes, begun by all process_group."""
    process_group.all_gather(None)
    process_group.spent(0.0)
    begin = time.perf_counter()
    trainer.training_step(iteration)
    return process_group.spent(time.perf_counter() - begin)
