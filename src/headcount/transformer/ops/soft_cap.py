"""Soft cap: a smooth bound on scores or logits, nearly the identity near 0.

Forward:  y = c tanh(s / c), within (-c, c).   Near 0, y = s - s^3 / (3 c^2) + ...

Backward. tanh' = 1 - tanh^2, and the c in front cancels the 1/c inside:

    ds = dy (1 - tanh(s / c)^2) = dy 4 g (1 - g),   g = sigmoid(-2 |s| / c)

The second form, from tanh u = 2 sigmoid(2u) - 1, keeps its digits near the cap, where 1 - tanh^2 would cancel.

Saved: s. Half-precision inputs are computed in float32 and rounded once.

Shapes: (...) -> (...). Source: Gemma 2 report 2024 (c = 50 on attention scores, 30 on logits); Bello et al. 2016.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import entrywise

# A larger cap overflows float32 on the way; it would not cap anything.
CAP_LIMIT = 1e30


class Saved(NamedTuple):
    """What the backward reads: the input, and the cap."""

    s: Tensor
    cap: float


def forward(s: Tensor, *, cap: float) -> tuple[Tensor, Saved]:
    """Return ``(c tanh(s / c), saved)``."""
    if not 0 < cap <= CAP_LIMIT:
        raise UsageError(f"soft cap c = {cap}; give c > 0, at most {CAP_LIMIT:g}")
    (y,) = entrywise(lambda each: (torch.tanh(each / cap) * cap,), s)
    return y, Saved(s, cap)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor, ...]:
    """Return dy 4 g (1 - g)."""
    cap = saved.cap

    def gradient(s: Tensor, d: Tensor) -> tuple[Tensor]:
        g = s.abs().mul_(-2 / cap).sigmoid_()
        return (g.addcmul_(g, g, value=-1).mul_(4).mul_(d),)

    return entrywise(gradient, saved.s, d_y)


SOFT_CAP = Operation(
    "soft_cap",
    forward=forward,
    backward=backward,
    formula="y = c tanh(s / c)",
    gradient="ds = dy (1 - tanh(s / c)^2)",
)


def soft_cap(s: Float[Tensor, "*shape"], cap: float) -> Float[Tensor, "*shape"]:
    """c tanh(s / c), entry by entry."""
    y: Tensor = SOFT_CAP(s, cap=cap)
    return y
