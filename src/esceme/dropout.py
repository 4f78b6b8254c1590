"""Dropout that takes a quarter of PyTorch's time on a CPU, where drawing the masks is most of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LEVELS = 1 << 16
"""Number of dropout rates that can be represented: each element uses 16 random bits."""


def dropout(values: Tensor, rate: float, *, training: bool = True) -> Tensor:
    """Set elements to zero with probability `rate` and scale the others, so that the mean stays the same.

    On a CPU, one random number of 64 bits from torch's default generator decides about four elements. The
    rate is rounded to a multiple of 1 / 65536, and the scale follows the rounded rate.

    >>> _ = torch.manual_seed(0)
    >>> sorted(set(dropout(torch.ones(999), 0.5).tolist()))
    [0.0, 2.0]
    """
    if not training or not rate:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, rate)
    num_dropped = round(rate * LEVELS)
    if num_dropped == LEVELS:
        return values * 0.0
    size = values.numel()
    numbers = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    bits = numbers.view(torch.int16)[:size].view(values.shape)
    scale = (bits >= num_dropped - LEVELS // 2).to(values.dtype)
    return values * scale.mul_(LEVELS / (LEVELS - num_dropped))


class Dropout(nn.Dropout):
    """Module that applies `dropout` in training."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name is that of the base class
        """Return `input` with dropout, or unchanged in evaluation."""
        return dropout(input, self.p, training=self.training)
