"""How the linear layers of transformer agents are computed in inference: number format and weight layout.

`apply_engine` replaces the linear layers of a loaded navigator in place and frees the weights that are not
needed any more. The navigator can then only be used for inference on a CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from esceme.agents.layers import Attention, FeedForward, LinearNorm, PreNormLayer
from esceme.errors import ConfigError
from esceme.navigator import Navigator

EngineName = Literal["eager", "packed"]
"""`eager`: weights as stored. `packed`: weights in the memory layout that oneDNN's kernels read."""
Precision = Literal["fp32", "bf16", "int8", "guarded"]
"""`guarded`: the layers that only choose actions in int8, close decisions again in fp32."""
INT8_MAX = 127


class PackedLinear(nn.Module):
    """Linear layer with weights in oneDNN's blocked layout, as `torch.compile` with frozen weights has them.

    Both operators are private names of torch; `check_packing` tests that this torch has them.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype = torch.float32) -> None:
        """Pack the weights of `linear`; with bfloat16, inputs are rounded and outputs converted back."""
        super().__init__()
        self.weight = _operators()._reorder_linear_weight(linear.weight.detach().to(dtype))
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.dtype = dtype

    def forward(self, values: Tensor) -> Tensor:
        """Return the outputs in single precision, (..., width) -> (..., width')."""
        outputs = _operators()._linear_pointwise(
            values.to(self.dtype), self.weight, self.bias, "none", [], ""
        )
        return cast(Tensor, outputs).float()


class Int8Linear(nn.Module):
    """Linear layer in 8 bits: weights have one scale per output, inputs one scale per row.

    A row's output does not depend on the other rows of the batch.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Round the weights of `linear`, (N, K) -> (K, N)."""
        super().__init__()
        weight = linear.weight.detach()
        self.scale = (weight.abs().amax(1) / INT8_MAX).clamp(min=torch.finfo(weight.dtype).tiny)  # (N,)
        self.weight = (weight / self.scale[:, None]).round().to(torch.int8).t()
        self.bias = torch.zeros_like(self.scale) if linear.bias is None else linear.bias.detach()

    def forward(self, values: Tensor) -> Tensor:
        """Return the outputs in single precision, (..., K) -> (..., N)."""
        rows = values.reshape(-1, values.shape[-1])
        scale = (rows.abs().amax(1, keepdim=True) / INT8_MAX).clamp(min=torch.finfo(rows.dtype).tiny)
        products = torch._int_mm((rows / scale).round_().to(torch.int8), self.weight)
        outputs = products.float().mul_(scale).mul_(self.scale).add_(self.bias)
        return outputs.view(*values.shape[:-1], -1)


class PrecisionSwitch:
    """Selects which of two precisions the layers of a network compute in."""

    def __init__(self) -> None:
        self.is_low = False

    @contextmanager
    def low(self) -> Iterator[None]:
        """Compute in low precision inside the `with` block."""
        self.is_low = True
        try:
            yield
        finally:
            self.is_low = False


class SwitchedLinear(nn.Module):
    """Linear layer that exists in two precisions."""

    def __init__(self, exact: nn.Module, low: nn.Module, switch: PrecisionSwitch) -> None:
        super().__init__()
        self.exact, self.low, self.switch = exact, low, switch

    def forward(self, values: Tensor) -> Tensor:
        """Return the outputs of the layer that the switch selects."""
        return cast(Tensor, (self.low if self.switch.is_low else self.exact)(values))


class LayerPlace(NamedTuple):
    """Where a linear layer is in a navigator."""

    parent: nn.Module
    name: str
    is_deciding: bool
    """Whether the layer belongs to `Agent.decision_layers`."""


def apply_engine(navigator: Navigator, engine: EngineName, precision: Precision) -> PrecisionSwitch:
    """Replace the linear layers of a navigator in place, as `engine` and `precision` require.

    With `guarded`, the returned switch selects the precision of the agent's decision layers; otherwise it has
    no effect. Raise `ConfigError` if the agent, the device or this version of torch does not allow it.
    """
    switch = PrecisionSwitch()
    if (engine, precision) == ("eager", "fp32") or (engine, precision) == ("eager", "bf16"):
        return switch  # bf16 by autocast
    if navigator.device.type != "cpu":
        raise ConfigError(
            f"engine {engine}, precision {precision}: for CPUs only; use eager and fp32 or bf16"
        )
    for layer in navigator.agent.modules():
        if isinstance(layer, PreNormLayer):
            layer.separate_projection()
    places = list(_linear_layers(navigator))
    if not any(place.is_deciding for place in places):
        raise ConfigError(
            f"engine {engine}, precision {precision}: {type(navigator.agent).__name__} has no transformer "
            "layers; use engine eager and precision fp32"
        )
    if engine == "packed":
        check_packing()
    # Copies of the parameters that stay: they may share a file mapping with weights that are replaced.
    replaced = {id(getattr(place.parent, place.name).weight) for place in places}
    for parameter in navigator.parameters():
        if id(parameter) not in replaced:
            parameter.data = parameter.data.clone()
    for place in places:
        linear = getattr(place.parent, place.name)
        setattr(place.parent, place.name, _convert(linear, place, engine, precision, switch))
    return switch


def _convert(
    linear: nn.Linear, place: LayerPlace, engine: EngineName, precision: Precision, switch: PrecisionSwitch
) -> nn.Module:
    is_embedding = isinstance(place.parent, LinearNorm)
    if precision == "int8" and not is_embedding:
        return Int8Linear(linear)
    low = Int8Linear(linear) if precision == "guarded" and place.is_deciding else None
    exact: nn.Module = linear
    if engine == "packed":
        exact = PackedLinear(linear, torch.bfloat16 if precision == "bf16" else torch.float32)
    return exact if low is None else SwitchedLinear(exact, low, switch)


def _linear_layers(navigator: Navigator) -> Iterator[LayerPlace]:
    """Yield the linear layers of the agent's transformer layers and embeddings."""
    deciding = {id(module) for layers in navigator.agent.decision_layers for module in layers.modules()}
    for parent in navigator.agent.modules():
        if isinstance(parent, Attention | FeedForward | LinearNorm | PreNormLayer | nn.MultiheadAttention):
            for name, child in parent.named_children():
                if isinstance(child, nn.Linear):
                    yield LayerPlace(parent, name, id(parent) in deciding)


def check_packing() -> None:
    """Raise `ConfigError` unless this torch packs weights and computes correct products with them."""
    try:
        linear, values = nn.Linear(32, 16), torch.linspace(-1, 1, 96).view(3, 32)
        with torch.inference_mode():
            difference = (PackedLinear(linear)(values) - linear(values)).abs().max()
    except (AttributeError, RuntimeError) as error:
        raise ConfigError(f"engine packed: torch {torch.__version__} cannot pack weights: {error}") from None
    if not difference < 1e-5:
        raise ConfigError(f"engine packed: wrong results with torch {torch.__version__}; use --engine eager")


def _operators() -> Any:
    return torch.ops.mkldnn
