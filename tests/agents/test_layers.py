"""Attention with a learned bias, and pre-norm layers on valid tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from esceme.agents import layers
from esceme.agents.layers import BiasedAttention, Layer, PreNormLayer, Tokens


def test_biased_attention_equals_pytorch() -> None:
    torch.manual_seed(3)
    queries, keys, values = (torch.randn(3, 2, length, 4, requires_grad=True) for length in (5, 7, 7))
    slope, lengths = torch.tensor(0.3, requires_grad=True), torch.tensor([7, 4, 1])
    distance, is_key = torch.rand(3, 1, 5, 7), (torch.arange(7) < lengths[:, None])[:, None, None]
    is_query = torch.arange(5) < torch.tensor([[5], [3], [1]])
    gradient = torch.randn(3, 2, 5, 4) * is_query[:, None, :, None]

    def run(attend: Callable[[Tensor], Tensor]) -> list[Tensor]:
        attended = attend((slope * distance).masked_fill(~is_key, -torch.inf))
        inputs = (queries, keys, values, slope)
        return [attended * is_query[:, None, :, None], *torch.autograd.grad(attended, inputs, gradient)]

    expected = run(lambda bias: functional.scaled_dot_product_attention(queries, keys, values, bias))
    pairs = [[5, 7], [3, 4], [1, 1]]
    actual = run(lambda bias: BiasedAttention.apply(queries, keys, values, bias, pairs))
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_attention_with_a_learned_bias_is_the_same_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    layer = Layer(8, 2, 16, dropout=0.0)
    padded, valid = torch.randn(2, 6, 8), torch.arange(6) < torch.tensor([[6], [3]])
    slope = torch.tensor(0.3, requires_grad=True)
    bias = (slope * torch.rand(2, 6, 6)).masked_fill(~valid[:, None], -torch.inf)

    def run() -> list[Tensor]:
        output = layer(Tokens.pack(padded, valid), mask=bias).rows
        weights = [slope, *layer.parameters()]
        return [output, *torch.autograd.grad(output.square().sum(), weights, retain_graph=True)]

    expected = run()
    monkeypatch.setattr(layers, "MIN_BIASED", 1)
    for ours, theirs in zip(run(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("is_separate", [False, True])
def test_pre_norm_layers_on_valid_tokens_equal_those_of_pytorch(is_separate: bool) -> None:
    torch.manual_seed(5)
    layer = PreNormLayer(8, 2, 16, dropout=0.1).eval()
    padded, valid = torch.randn(2, 6, 8), torch.arange(6) < torch.tensor([[6], [3]])
    expected = layer(padded, src_key_padding_mask=~valid)
    if is_separate:
        layer.separate_projection()
    outputs = layer.infer(Tokens.pack(padded, valid))
    torch.testing.assert_close(outputs.rows, expected[valid])
