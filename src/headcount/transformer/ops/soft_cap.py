"""Soft cap: a smooth bound on scores or logits, nearly the identity near 0.

Forward:  y = c tanh(s / c), within (-c, c).   Near 0, y = s - s^3 / (3 c^2) + ...

Backward. tanh' = 1 - tanh^2, and the c in front cancels the 1/c inside:

    ds = dy (1 - tanh(s / c)^2) = dy (1 - (y / c)^2)

Saved: y alone, which the backward needs instead of s. Half-precision inputs are computed in float32 and rounded once;
the saved y is the unrounded one, else 1 - (y / c)^2 would lose its digits near the cap.

Shapes: (...) -> (...). Source: Gemma 2 report 2024 (c = 50 on attention scores, 30 on logits); Bello et al. 2016.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen


class Saved(NamedTuple):
    """What the backward reads: the capped values, and the cap."""

    y: Tensor
    cap: float


def forward(s: Tensor, *, cap: float) -> tuple[Tensor, Saved]:
    """Return ``(c tanh(s / c), saved)``."""
    if not cap > 0:
        raise UsageError(f"soft cap c = {cap}; give c > 0")
    y = torch.tanh(widen(s) / cap) * cap
    return y.to(s.dtype), Saved(y, cap)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor]:
    """Return dy (1 - (y / c)^2)."""
    bent = (saved.y * saved.y).mul_(-1 / saved.cap**2).add_(1)
    return (bent.mul_(d_y).to(d_y.dtype),)


SOFT_CAP = Operation(
    "soft_cap",
    forward=forward,
    backward=backward,
    formula="y = c tanh(s / c)",
    gradient="ds = dy (1 - (y / c)^2)",
)


def soft_cap(s: Float[Tensor, "*shape"], cap: float) -> Float[Tensor, "*shape"]:
    """c tanh(s / c), entry by entry."""
    y: Tensor = SOFT_CAP(s, cap=cap)
    return y
