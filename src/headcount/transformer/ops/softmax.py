"""Softmax of a row, stable, with its Jacobian applied rather than built.

Forward. For a row s of S scores and m = max_j s_j:

    a_j = exp(s_j - m) / sum_k exp(s_k - m)

The shift by m cancels between numerator and denominator, so it changes nothing but the range: the largest exponent is
exp(0) = 1. Without it float32 overflows above ln(FLT_MAX) = 88.72 and inf / inf is NaN.

Backward. d a_i / d s_j = a_i (delta_ij - a_j), so for an upstream gradient da:

    ds_j = sum_i da_i a_i (delta_ij - a_j) = a_j (da_j - sum_k a_k da_k)

Only a is saved. Each row of ds sums to zero, because sum_j a_j = 1 whatever s is.

Policy (tested): a row of -inf alone (every key masked) gives zeros and a zero gradient, not NaN; a row that holds
NaN or +inf gives NaN: it has no limit, and hiding it would poison a result silently.

float16 and bfloat16 rows are computed in float32 and rounded once.

Shapes: x (..., S) -> (..., S). Source: Bridle 1990; the shift is folklore (Goodfellow, Bengio, Courville 2016, 4.1).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen


class Saved(NamedTuple):
    """What the backward reads: the probabilities, and the dimension they sum to one along."""

    a: Tensor
    dim: int


def forward(x: Tensor, *, dim: int = -1) -> tuple[Tensor, Saved]:
    """Return ``(a, saved)`` with a = exp(x - max x) / sum exp(x - max x) along ``dim``."""
    if x.shape[dim] == 0:
        return x.clone(), Saved(x, dim)
    wide = widen(x)
    m = wide.detach().amax(dim, keepdim=True)
    e = torch.exp(wide - m.masked_fill(m == -torch.inf, 0.0))
    total = e.sum(dim, keepdim=True)
    a = (e / total.masked_fill(total == 0, 1.0)).to(x.dtype)
    return a, Saved(a, dim)


def backward(saved: Saved, d_a: Tensor) -> tuple[Tensor]:
    """Return ds = a * (da - sum_k a_k da_k): the vector-Jacobian product, row by row."""
    a = widen(saved.a)
    weighted = a * widen(d_a)
    d_x = torch.addcmul(weighted, a, weighted.sum(saved.dim, keepdim=True), value=-1)
    return (d_x.to(saved.a.dtype),)


SOFTMAX = Operation(
    "softmax",
    forward=forward,
    backward=backward,
    formula="a = exp(s - max s) / sum exp(s - max s)",
    gradient="ds = a * (da - sum a da)",
)


def softmax(x: Float[Tensor, "*rows"], *, dim: int = -1) -> Float[Tensor, "*rows"]:
    """Softmax of x along ``dim``; rows of -inf give zeros (module docstring: equation, gradient, policy)."""
    a: Tensor = SOFTMAX(x, dim=dim)
    return a


def naive_softmax(x: Float[Tensor, "*rows"], *, dim: int = -1) -> Float[Tensor, "*rows"]:
    """The textbook line without the shift, kept to show its NaN: exp(x) / sum exp(x) overflows past 88.72 in float32."""
    e = torch.exp(x)
    return e / e.sum(dim, keepdim=True)
