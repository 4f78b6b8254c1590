"""Data-parallel training: several processes compute the same gradients as one process.

Every rank rolls out its part of each batch. Losses are divided by counts over all ranks. The sum of the
gradients of all ranks is therefore the gradient of the whole batch.
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
from torch import nn

from esceme.errors import ConfigError, TrainingError

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)
"""Time limit of a collective. It is long because other ranks may be writing a checkpoint or validating."""


@dataclass(frozen=True)
class ProcessGroup:
    """The processes of a training run. A group of one process, the default, communicates with no other."""

    rank: int = 0
    size: int = 1

    @classmethod
    def from_environment(cls, device: torch.device | str = "cpu") -> ProcessGroup:
        """Return the group of processes that `torchrun` started, or a group of one without `torchrun`."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1 and "RANK" not in os.environ:
            return cls()
        device = local_device(device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            try:
                dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
            except (ValueError, RuntimeError) as error:
                raise ConfigError(
                    f"the {size} processes did not find each other ({_first_line(error)}); "
                    "start them with torchrun"
                ) from None
        return cls(dist.get_rank(), dist.get_world_size())

    def destroy(self) -> None:
        """Release the connections to the other processes."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_main(self) -> bool:
        """Whether this process is the main process, which writes files and reports progress."""
        return self.rank == 0

    def shard(self, batch: Sequence[T]) -> list[T]:
        """Return this rank's contiguous part of `batch`. Raise `ConfigError` if parts are not equal."""
        if len(batch) % self.size:
            raise ConfigError(
                f"batch {len(batch)} cannot be divided evenly among {self.size} processes; "
                f"give --batch a multiple of {self.size}"
            )
        shard_size = len(batch) // self.size
        return list(batch[self.rank * shard_size : (self.rank + 1) * shard_size])

    def all_reduce_sum(self, values: Sequence[float], device: torch.device | str = "cpu") -> list[float]:
        """Return the sum of each value over all ranks."""
        if self.size == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=device)
        with self._collective_errors():
            dist.all_reduce(sums)
        return sums.tolist()

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, ordered by rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        with self._collective_errors():
            dist.all_gather_object(gathered, value)
        return gathered

    def assert_equal(self, value: T) -> T:
        """Return `value`. Raise `TrainingError` if it differs between ranks."""
        gathered = self.all_gather(value)
        if any(other != value for other in gathered):
            values = ", ".join(f"process {rank} {other}" for rank, other in enumerate(gathered))
            raise TrainingError(
                f"the processes start from different iterations: {values}; do all of them see the same disk?"
            )
        return value

    def all_reduce_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over all ranks. A parameter that has no gradient on any rank keeps None."""
        if self.size == 1:
            return
        device = parameters[0].device
        counts = torch.tensor([parameter.grad is not None for parameter in parameters], device=device).int()
        with self._collective_errors():
            dist.all_reduce(counts)
        trained = [parameter for parameter, count in zip(parameters, counts.tolist(), strict=True) if count]
        if not trained:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in trained])
        with self._collective_errors():
            dist.all_reduce(flat)
        for parameter, part in zip(trained, torch.split(flat, [p.numel() for p in trained]), strict=True):
            parameter.grad = part.view_as(parameter)

    @contextmanager
    def _collective_errors(self) -> Iterator[None]:
        """Raise `TrainingError` if a collective fails inside this context."""
        try:
            yield
        except RuntimeError as error:
            raise TrainingError(
                f"process {self.rank} of {self.size} lost the connection ({_first_line(error)}): another "
                "process ended, and its output has the reason, or it does not answer; start all processes "
                "again to resume from the last checkpoint"
            ) from None


def local_device(device: torch.device | str) -> torch.device:
    """Return the device of this process: for `cuda` under `torchrun`, the GPU of its local rank."""
    if str(device) == "cuda" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return torch.device(device)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
