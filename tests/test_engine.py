"""Linear layers in other layouts and precisions, and their place in a navigator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from esceme.agents import DUET, HAMT, DuetConfig, HamtConfig
from esceme.agents.layers import Attention, FeedForward, PreNormLayer
from esceme.agents.seq2seq import Seq2Seq
from esceme.engine import (
    Int8Linear,
    PackedLinear,
    PrecisionSwitch,
    SwitchedLinear,
    apply_engine,
    check_packing,
)
from esceme.errors import ConfigError
from esceme.memory import NoMemory
from esceme.navigator import Navigator

SMALL = {"hidden": 16, "heads": 2, "feed_forward": 32, "text_layers": 1, "vocabulary": 20, "feature_width": 8}


def linear_and_rows(rows: int = 7) -> tuple[nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(48, 32)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(32, 48, generator=generator))
        linear.bias.copy_(torch.randn(32, generator=generator))
    return linear, torch.randn(2, rows, 48, generator=generator)


def navigator(agent: str = "hamt") -> Navigator:
    built = HAMT(HamtConfig(**SMALL)) if agent == "hamt" else DUET(DuetConfig(**SMALL))
    return Navigator(built, NoMemory()).eval()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.3)])
def test_packed_layers_compute_linear_layers(dtype: torch.dtype, tolerance: float) -> None:
    linear, values = linear_and_rows()
    with torch.inference_mode():
        packed, plain = PackedLinear(linear, dtype)(values), linear(values)
    assert packed.dtype == torch.float32
    error = (packed - plain).abs().max()
    assert error < tolerance
    assert dtype == torch.float32 or error > 1e-4


def test_int8_layers_are_close_and_compute_rows_independently() -> None:
    linear, values = linear_and_rows()
    low = Int8Linear(linear)
    with torch.inference_mode():
        error = (low(values) - linear(values)).abs().max()
        single = low(values[1, 3])
        scaled = low(torch.cat([values[1, 3:4], 1000 * values[0]]))[0]
    assert 1e-4 < error < 0.3
    assert torch.equal(single, low(values)[1, 3])
    assert torch.equal(single, scaled)


def test_int8_layers_accept_zeros() -> None:
    linear, values = linear_and_rows()
    linear.weight.data[3] = 0
    outputs = Int8Linear(linear)(torch.zeros_like(values))
    assert torch.equal(outputs, linear.bias.detach().expand_as(outputs))


def test_switches_are_reset_after_errors() -> None:
    linear, values = linear_and_rows()
    switch = PrecisionSwitch()
    layer = SwitchedLinear(linear, Int8Linear(linear), switch)
    with pytest.raises(ValueError), switch.low():
        assert not torch.equal(layer(values), linear(values))
        raise ValueError
    assert torch.equal(layer(values), linear(values))


@pytest.mark.parametrize("agent", ["hamt", "duet"])
def test_packing_frees_the_unpacked_weights(agent: str) -> None:
    prepared = navigator(agent)
    apply_engine(prepared, "packed", "fp32")
    kinds = Attention | FeedForward | PreNormLayer | nn.MultiheadAttention
    blocks = [module for module in prepared.modules() if isinstance(module, kinds)]
    assert len(blocks) > 8
    linears = [child for block in blocks for child in block.children() if isinstance(child, nn.Linear)]
    assert not linears
    assert not any(name.endswith("in_proj_weight") for name, _ in prepared.named_parameters())


def test_guarded_layers_are_those_that_decide() -> None:
    prepared = navigator()
    apply_engine(prepared, "packed", "guarded")
    names = {
        name.split(".")[1] for name, module in prepared.named_modules() if isinstance(module, SwitchedLinear)
    }
    assert names == {"cross_layers"}
    prepared = navigator("duet")
    apply_engine(prepared, "eager", "guarded")
    names = {
        name.split(".")[1] for name, module in prepared.named_modules() if isinstance(module, SwitchedLinear)
    }
    assert names == {"view_layers", "map_layers"}


def test_eager_single_precision_changes_nothing() -> None:
    prepared = navigator()
    before = list(prepared.modules())
    apply_engine(prepared, "eager", "fp32")
    assert list(prepared.modules()) == before


def test_agents_without_transformer_layers_are_refused() -> None:
    recurrent = Navigator(Seq2Seq(), NoMemory())
    with pytest.raises(ConfigError, match="Seq2Seq has no transformer layers; use engine eager"):
        apply_engine(recurrent, "packed", "fp32")


def test_packing_is_checked_before_use(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packing()
    monkeypatch.setattr(PackedLinear, "forward", lambda self, values: values[..., :16] * torch.nan)
    with pytest.raises(ConfigError, match="wrong results .* use --engine eager"):
        check_packing()
    monkeypatch.setattr("esceme.engine._operators", lambda: object())
    with pytest.raises(ConfigError, match="cannot pack weights"):
        check_packing()
