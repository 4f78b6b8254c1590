"""Dropout: rate, scale, independence and reproducibility."""

from __future__ import annotations

import pytest
import torch

from esceme.dropout import Dropout, dropout

SIZE = 1_000_002
"""Number of elements, not a multiple of the four that one random number decides about."""


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
def test_rate_and_mean(rate: float) -> None:
    torch.manual_seed(1)
    dropped = dropout(torch.ones(SIZE), rate)
    assert abs(float((dropped == 0).double().mean()) - rate) < 0.003
    assert abs(float(dropped.double().mean()) - 1.0) < 0.01


def test_neighbouring_elements_are_independent() -> None:
    torch.manual_seed(1)
    survives = (dropout(torch.ones(SIZE), 0.5) > 0).double()
    for distance in range(1, 9):
        both = float((survives[distance:] * survives[:-distance]).mean())
        assert abs(both - 0.25) < 0.003, distance


def test_same_seed_same_mask_and_gradient_follows_the_mask() -> None:
    values = torch.ones(7, 3, requires_grad=True)
    torch.manual_seed(2)
    first = dropout(values, 0.3)
    first.sum().backward()
    assert torch.equal(values.grad, first.detach())
    torch.manual_seed(2)
    assert torch.equal(dropout(values, 0.3), first)
    assert not torch.equal(dropout(values, 0.3), first)


def test_extremes_and_evaluation() -> None:
    values = torch.ones(10)
    assert dropout(values, 0.0) is values
    assert not dropout(values, 1.0).any()
    module = Dropout(0.5)
    assert module.eval()(values) is values
    assert (module.train()(torch.ones(100)) == 0).any()
