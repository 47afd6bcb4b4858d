"""SiLU (swish): x times its own sigmoid.

Forward:  y = x s,  s = sigmoid(x) = 1 / (1 + exp(-x)).

Backward. s' = s (1 - s), so

    dy/dx = s + x s (1 - s) = s + y (1 - s)

Saved: the slope dy/dx, as large as x and all that the backward needs: one product instead of a second sigmoid.
Half-precision inputs are computed in float32 and rounded where they are stored.

Shapes: (...) -> (...). Source: Elfwing, Uchibe, Doya 2017; Ramachandran, Zoph, Le 2017 (swish).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import entrywise


class Saved(NamedTuple):
    """What the backward reads: dy/dx."""

    slope: Tensor


def forward(x: Tensor) -> tuple[Tensor, Saved]:
    """Return ``(x sigmoid(x), saved)``."""
    y, slope = entrywise(value_and_slope, x, outputs=2)
    return y, Saved(slope)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor]:
    """Return dy * dy/dx."""
    return (d_y * saved.slope,)


SILU = Operation(
    "silu",
    forward=forward,
    backward=backward,
    formula="y = x sigmoid(x)",
    gradient="dx = dy (s + y (1 - s)), s = sigmoid(x)",
)


def silu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """x sigmoid(x), entry by entry."""
    y: Tensor = SILU(x)
    return y


def value(x: Tensor) -> Tensor:
    """Return x sigmoid(x)."""
    return x * torch.sigmoid(x)


def value_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return y = x s and its slope s + y (1 - s)."""
    s = torch.sigmoid(x)
    y = x * s
    return y, torch.addcmul(s, y, 1 - s)
