"""Training in several processes as if it were one: the same batch, the same counts, the same memory.

Every process walks its share of each batch. Losses are divided by counts over all processes, so that the sum
of the gradients is that of the joint batch; and what one process remembers at a step, all of them do.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from esceme.errors import ConfigError
from esceme.learning.completeness import Foreseen, TrainingMemory
from esceme.observation import Observation

T = TypeVar("T")


@dataclass(frozen=True)
class Together:
    """The processes that train together; alone there is one."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device | str = "cpu") -> Together:
        """Join those that `torchrun` started, or be alone where it started none."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 and "RANK" not in os.environ:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if torch.device(device).type == "cuda" else "gloo")
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
        dist.all_reduce(numbers)
        return numbers.tolist()

    def gather(self, thing: T) -> list[T]:
        """What each process brings, in the order of their ranks."""
        if self.size == 1:
            return [thing]
        brought: list[Any] = [None] * self.size
        dist.all_gather_object(brought, thing)
        return brought

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over processes; a parameter that no process has a gradient for keeps none."""
        if self.size == 1:
            return
        has = torch.tensor([each.grad is not None for each in parameters], device=parameters[0].device).int()
        dist.all_reduce(has)
        trained = [each for each, count in zip(parameters, has.tolist(), strict=True) if count]
        for each in trained:
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        flat = torch.cat([each.grad.flatten() for each in trained if each.grad is not None])
        dist.all_reduce(flat)
        for each, part in zip(trained, torch.split(flat, [each.numel() for each in trained]), strict=True):
            each.grad = part.view_as(each)


class SharedMemory(TrainingMemory):
    """A memory that several processes keep alike: they tell each other at every step where they are.

    Everybody has to tell as often as everybody else; who has finished its walks tells nothing until all have.
    """

    together: Together = Together()

    def remember_seen(self, observation: Observation) -> None:
        """Remember where the agents of all processes stand."""
        super().remember_seen(observation)
        self._tell(observation.viewpoint.tolist())

    def finish(self) -> None:
        """Go on listening until everybody has finished."""
        while self._tell(None):
            pass

    def foresee(self, viewpoints: Tensor, steps: Tensor, *, at_once: bool = True) -> Foreseen:
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
