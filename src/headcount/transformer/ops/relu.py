"""ReLU, the activation of the original feed-forward layer.

Forward:  y = max(x, 0).   Backward:  dx = dy where y > 0, else 0.

At x = 0 the function has no derivative; 0 is taken, as everywhere. The output says all the backward needs
(y > 0 exactly where x > 0), so the input is not kept: the next linear map keeps y anyway.

The slope is sign(y), which is 0 or 1 for y >= 0, and one multiplication by it is cheaper than a masked write.

Shapes: (...) -> (...). Source: Nair, Hinton 2010; Vaswani et al. 2017, 3.3.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from headcount.transformer.ops.operation import Operation


class Saved(NamedTuple):
    """What the backward reads: the output."""

    y: Tensor


def forward(x: Tensor) -> tuple[Tensor, Saved]:
    """Return ``(max(x, 0), saved)``."""
    y = x.clamp_min(0)
    return y, Saved(y)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor]:
    """Return dy * [y > 0]."""
    # Not a product with the sign: a dead unit must stop an infinite gradient too.
    return (d_y.masked_fill(saved.y <= 0, 0.0),)


RELU = Operation(
    "relu", forward=forward, backward=backward, formula="y = max(x, 0)", gradient="dx = dy [y > 0]"
)


def relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """max(x, 0), entry by entry."""
    y: Tensor = RELU(x)
    return y


def value_and_slope(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return max(x, 0) and its slope, 1 where x > 0, else 0."""
    y = x.clamp_min(0)
    return y, y.sign()
