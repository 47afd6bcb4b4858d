"""Gated product of a feed-forward layer: act(gate) * up, entry by entry (SwiGLU, GeGLU, ReGLU, GLU).

Forward:  y = act(g) * u,  where g = x W_gate^T and u = x W_up^T are the two projections of the token.

Backward. The product rule, with act' from the activation's own module:

    dg = dy * u * act'(g)          du = dy * act(g)

Saved: g and u; act(g) and act'(g) are computed again, so the widest tensor of a block is kept twice, not three times.

Shapes: gate (..., F), up (..., F) -> (..., F). Source: Shazeer 2020 (GLU variants); Dauphin et al. 2017 (GLU).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError, UnknownNameError
from headcount.transformer.ops import gelu, relu, silu
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import entrywise


def _sigmoid_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(x)
    return s, torch.addcmul(s, s, s, value=-1)


# Name -> (value, value and slope).
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], tuple[Tensor, Tensor]]]] = {
    "silu": (silu.value, silu.value_and_slope),
    "gelu": (gelu.value_exact, gelu.value_and_slope_exact),
    "gelu_tanh": (gelu.value_tanh, gelu.value_and_slope_tanh),
    "relu": (torch.relu, relu.value_and_slope),
    "sigmoid": (torch.sigmoid, _sigmoid_and_slope),
}


class Saved(NamedTuple):
    """What the backward reads: both projections, and the activation's name."""

    gate: Tensor
    up: Tensor
    activation: str


def forward(gate: Tensor, up: Tensor, *, activation: str = "silu") -> tuple[Tensor, Saved]:
    """Return ``(act(gate) * up, saved)``."""
    if activation not in ACTIVATIONS:
        raise UnknownNameError(what="activation", given=activation, allowed=ACTIVATIONS)
    bind("gated", gate=(gate, "... F"), up=(up, "... F"))
    if gate.shape != up.shape:
        raise OperandError(f"gated: gate {tuple(gate.shape)} and up {tuple(up.shape)} must have one shape")
    value = ACTIVATIONS[activation][0]
    (y,) = entrywise(lambda g, u: (value(g) * u,), gate, up)
    return y, Saved(gate, up, activation)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor, Tensor]:
    """Return dg = dy u act'(g) and du = dy act(g)."""
    both = ACTIVATIONS[saved.activation][1]

    def gradients(gate: Tensor, up: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = both(gate)
        return slope.mul_(up).mul_(d), value * d

    d_gate, d_up = entrywise(gradients, saved.gate, saved.up, d_y, outputs=2)
    return d_gate, d_up


GATED = Operation(
    "gated",
    forward=forward,
    backward=backward,
    formula="y = act(g) u",
    gradient="dg = dy u act'(g), du = dy act(g)",
)


def gated(
    gate: Float[Tensor, "*batch F"], up: Float[Tensor, "*batch F"], *, activation: str = "silu"
) -> Float[Tensor, "*batch F"]:
    """act(gate) * up; ``activation`` is one of ``ACTIVATIONS``: silu (SwiGLU), gelu (GeGLU), gelu_tanh, relu, sigmoid."""
    y: Tensor = GATED(gate, up, activation=activation)
    return y
