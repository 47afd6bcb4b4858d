"""Layer normalisation: each token's vector to mean 0 and variance 1, then a learned scale and shift.

Forward, over the last dimension of size D, with mu = mean(x), c = x - mu, r = 1 / sqrt(mean(c^2) + eps):

    y = w * (c r) + b

The variance divides by D, not D - 1. It is taken from c, not as E[x^2] - mu^2, which cancels when |mu| >> sigma.

Backward. Write n = c r for the normalised vector and g = w * dy for its gradient. n depends on x_j in three ways:
directly, through mu and through r. d mu/d x_j = 1/D; d r/d x_j = -r^3 c_j / D (the mu inside c drops out, because
sum c = 0). Hence d n_i/d x_j = r (delta_ij - 1/D - n_i n_j / D), and

    dx = r (g - mean(g) - n mean(g n))          what is removed: the part of g along 1 and along n
    dw = sum_tokens dy n,    db = sum_tokens dy

So sum(dx) = 0, and sum(dx n) = 0 up to eps: a change along 1 or n is undone by the normalisation.

Saved: x, mu and r (two numbers per token), not n: x is the residual stream, which is kept anyway; n is one subtraction
away. Half-precision inputs are normalised in float32 and rounded once.

Shapes: x (..., D), weight (D), bias (D), both optional -> (..., D). Source: Ba, Kiros, Hinton 2016.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen


class Saved(NamedTuple):
    """What the backward reads."""

    x: Tensor
    mean: Tensor
    r: Tensor
    weight: Tensor | None
    shifted: bool


def forward(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Saved]:
    """Return ``(w * (x - mean) r + b, saved)``."""
    width = bind("layer_norm", x=(x, "... D"), weight=(weight, "D"), bias=(bias, "D"))["D"]
    wide = widen(x)
    mean = wide.mean(-1, keepdim=True)
    c = wide - mean
    length = torch.linalg.vector_norm(c, dim=-1, keepdim=True)
    r = (length * length).div_(width).add_(eps).rsqrt_()
    y = c * r
    if weight is not None:
        y = y * widen(weight) if bias is None else torch.addcmul(widen(bias), y, widen(weight))
    elif bias is not None:
        y = y + widen(bias)
    return y.to(x.dtype), Saved(x, mean, r, weight, bias is not None)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return dx = r (g - mean(g) - n mean(g n)), dw = sum dy n, db = sum dy, with n = (x - mean) r, g = w dy."""
    x, mean, r, weight, shifted = saved
    width = x.shape[-1]
    rows, d_rows = widen(x).reshape(-1, width), widen(d_y).reshape(-1, width)
    r = r.reshape(-1, 1)
    c = rows - mean.reshape(-1, 1)
    products = d_rows * c
    if weight is None:
        d_weight = None
        g = d_rows.clone()
        mean_g, mean_gc = d_rows.mean(-1, keepdim=True), products.mean(-1, keepdim=True)
    else:
        w = widen(weight)
        # Row and column sums are matrix-vector products: sum_tokens r (dy c), and sum_d (dy c) w / D.
        d_weight = (r.t() @ products).view(-1).to(weight.dtype)
        share = w / width
        g = d_rows * w
        mean_g, mean_gc = (d_rows @ share).view(-1, 1), (products @ share).view(-1, 1)
    d_x = g.sub_(mean_g).addcmul_(c, mean_gc.mul_(r).mul_(r), value=-1).mul_(r)
    return d_x.view(x.shape).to(x.dtype), d_weight, d_rows.sum(0).to(d_y.dtype) if shifted else None


LAYER_NORM = Operation(
    "layer_norm",
    forward=forward,
    backward=backward,
    formula="y = w (x - mean x) / sqrt(var x + eps) + b",
    gradient="dx = r (g - mean g - n mean(g n)), g = w dy; dw = sum dy n, db = sum dy",
)


def layer_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    bias: Float[Tensor, " D"] | None = None,
    *,
    eps: float = 1e-5,
) -> Float[Tensor, "*batch D"]:
    """Layer normalisation over the last dimension (module docstring: equation, gradient)."""
    y: Tensor = LAYER_NORM(x, weight, bias, eps=eps)
    return y
