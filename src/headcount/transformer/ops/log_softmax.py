"""Log-softmax of a row: log-probabilities without forming the probabilities first.

Forward. For a row s of S scores and m = max_j s_j:

    a_j = s_j - lse(s),   lse(s) = m + log sum_k exp(s_k - m),   computed as (s_j - m) - log sum_k exp(s_k - m)

log(softmax(s)) would be log(0) = -inf wherever exp(s_j - m) underflows (below -104 in float32); this keeps s_j - lse.

Backward. d lse / d s_j = p_j = exp(a_j), so d a_i / d s_j = delta_ij - p_j and

    ds_j = da_j - p_j sum_i da_i

Saved: a; p = exp(a) is computed again.

Policy (tested): a row of -inf alone has no distribution; its log-probabilities are -inf (the logarithms of the zeros that
softmax gives) and its gradient is zero. A row that holds NaN or +inf gives NaN. Half-precision inputs are computed in
float32 and rounded once.

Shapes: x (..., S) -> (..., S).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen


class Saved(NamedTuple):
    """What the backward reads: the log-probabilities, the rows without any, and the dimension."""

    a: Tensor
    dead: Tensor
    dim: int


def forward(x: Tensor, *, dim: int = -1) -> tuple[Tensor, Saved]:
    """Return ``(a, saved)`` with a = (x - max x) - log sum exp(x - max x) along ``dim``."""
    if x.shape[dim] == 0:
        return x.clone(), Saved(x, x.new_zeros(0, dtype=torch.bool), dim)
    wide = widen(x)
    m = wide.detach().amax(dim, keepdim=True)
    dead = m == -torch.inf
    shifted = wide - m.masked_fill(dead, 0.0)
    total = torch.exp(shifted).sum(dim, keepdim=True)
    a = (shifted - total.masked_fill(dead, 1.0).log()).masked_fill(dead, -torch.inf).to(x.dtype)
    return a, Saved(a, dead, dim)


def backward(saved: Saved, d_a: Tensor) -> tuple[Tensor]:
    """Return ds = da - p sum da, and zero in rows of -inf."""
    if d_a.shape[saved.dim] == 0:
        return (d_a.clone(),)
    wide = widen(d_a)
    d_s = torch.addcmul(wide, widen(saved.a).exp(), wide.sum(saved.dim, keepdim=True), value=-1)
    return (d_s.masked_fill_(saved.dead, 0.0).to(d_a.dtype),)


LOG_SOFTMAX = Operation(
    "log_softmax",
    forward=forward,
    backward=backward,
    formula="a = s - lse(s)",
    gradient="ds = da - exp(a) sum da",
)


def log_softmax(x: Float[Tensor, "*rows"], *, dim: int = -1) -> Float[Tensor, "*rows"]:
    """Log-softmax of x along ``dim``; rows of -inf stay -inf (module docstring: equation, gradient, policy)."""
    a: Tensor = LOG_SOFTMAX(x, dim=dim)
    return a
