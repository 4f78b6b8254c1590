"""Training in several processes as if it were one: the same batch, the same counts, the same memory.

Every process walks its share of each batch. Losses are divided by counts over all processes, so that the sum
of the gradients is that of the joint batch; and what one process remembers at a step, all of them do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from esceme.errors import ConfigError, TrainingError
from esceme.learning.memory_dropout import TimeIndexedMemory, TrainingMemory
from esceme.observation import Observation

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)
"""How long a process waits for the others, who may be writing a checkpoint or validating a large scene."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that train together; alone there is one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device | str = "cpu") -> ProcessGroup:
        """Join those that `torchrun` started, or be alone where it started none."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 and "RANK" not in os.environ:
            return cls()
        device = own_device(device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            try:
                dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
            except (ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"the {size} processes did not find each other ({_first_line(error)}); "
                    "start them with torchrun"
                ) from None
        return cls(dist.get_rank(), dist.get_world_size())

    def leave(self) -> None:
        """Part from the others."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def share(self, batch: Sequence[T]) -> list[T]:
        """This process's part of a batch, contiguous."""
        if len(batch) % self.size:
            raise ConfigError(
                f"batch {len(batch)} cannot be shared out evenly to {self.size} processes; "
                f"give --batch a multiple of {self.size}"
            )
        each = len(batch) // self.size
        return list(batch[self.rank * each : (self.rank + 1) * each])

    def sums(self, values: Sequence[float], device: torch.device | str = "cpu") -> list[float]:
        """Each of the values, summed over processes."""
        if self.size == 1:
            return list(values)
        numbers = torch.tensor(values, dtype=torch.float64, device=device)
        with self._in_touch():
            dist.all_reduce(numbers)
        return numbers.tolist()

    def gather(self, thing: T) -> list[T]:
        """What each process brings, in the order of their ranks."""
        if self.size == 1:
            return [thing]
        brought: list[Any] = [None] * self.size
        with self._in_touch():
            dist.all_gather_object(brought, thing)
        return brought

    def agree(self, thing: T) -> T:
        """What all processes bring; raises `TrainingError` where that is not the same."""
        brought = self.gather(thing)
        if any(each != thing for each in brought):
            told = ", ".join(f"process {rank} {each}" for rank, each in enumerate(brought))
            raise TrainingError(
                f"the processes do not begin alike: {told}; do all of them see the same disk?"
            )
        return thing

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over processes; a parameter that no process has a gradient for keeps none."""
        if self.size == 1:
            return
        has = torch.tensor([each.grad is not None for each in parameters], device=parameters[0].device).int()
        with self._in_touch():
            dist.all_reduce(has)
        trained = [each for each, count in zip(parameters, has.tolist(), strict=True) if count]
        if not trained:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
        with self._in_touch():
            dist.all_reduce(flat)
        for each, part in zip(trained, torch.split(flat, [each.numel() for each in trained]), strict=True):
            each.grad = part.view_as(each)

    @contextmanager
    def _in_touch(self) -> Iterator[None]:
        """Raise `TrainingError` where the others do not answer."""
        try:
            yield
        except RuntimeError as error:
            raise TrainingError(
                f"process {self.rank} of {self.size} has lost the others ({_first_line(error)}): one of them "
                "ended and says why, or does not answer; start all again to go on from the last checkpoint"
            ) from None


class SharedMemory(TrainingMemory):
    """A memory that several processes keep alike: they tell each other at every step where they are.

    Everybody has to tell as often as everybody else; who has finished its walks tells nothing until all have.
    """

    together: ProcessGroup = ProcessGroup()

    def remember_seen(self, observation: Observation) -> None:
        """Remember where the agents of all processes stand."""
        super().remember_seen(observation)
        self._tell(observation.viewpoint.tolist())

    def finish(self) -> None:
        """Go on listening until everybody has finished."""
        while self._tell(None):
            pass

    def foresee(self, viewpoints: Tensor, steps: Tensor, *, at_once: bool = True) -> TimeIndexedMemory:
        """The memory of a rollout that is known beforehand to all processes, each knowing its part."""
        told = self.together.gather((viewpoints.cpu(), steps.cpu()))
        places, times = (torch.cat(each).to(steps.device) for each in zip(*told, strict=True))
        return self._foresee(places, times, steps if at_once else None)

    def _tell(self, here: list[int] | None) -> bool:
        """Tell where this process's agents stand, None for finished; False when all have finished."""
        told = self.together.gather(here)
        for rank, places in enumerate(told):
            if places and rank != self.together.rank:
                self.remember_at(places)
        return any(places is not None for places in told)


def own_device(device: torch.device | str) -> torch.device:
    """The device of this process: where `torchrun` started several on a machine, each has its own GPU."""
    if str(device) == "cuda" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device(device)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
