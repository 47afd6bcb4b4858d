"""RMS normalisation: each token's vector to root mean square 1, then a learned scale. No mean, no shift.

Forward, over the last dimension of size D, with r = 1 / sqrt(mean(x^2) + eps):

    y = w * (x r)              Gemma stores w - 1:  y = (1 + w) * (x r)   (``add_one``)

Backward. With n = x r and g = w * dy: d r/d x_j = -r^3 x_j / D, so d n_i/d x_j = r (delta_ij - n_i n_j / D) and

    dx = r (g - n mean(g n))          the part of g along n is removed: scaling x changes nothing
    dw = sum_tokens dy n              the same with ``add_one``

Saved: x and r (one number per token). Half-precision inputs are normalised in float32. The plain variant then rounds n
before it multiplies by w, as Llama's reference does; with ``add_one`` the product is rounded, as Gemma's does.

Shapes: x (..., D), weight (D) optional -> (..., D). Source: Zhang, Sennrich 2019.
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
    r: Tensor
    weight: Tensor | None
    add_one: bool


def forward(
    x: Tensor, weight: Tensor | None = None, *, eps: float = 1e-6, add_one: bool = False
) -> tuple[Tensor, Saved]:
    """Return ``(w * x r, saved)``, or (1 + w) * x r."""
    width = bind("rms_norm", x=(x, "... D"), weight=(weight, "D"))["D"]
    wide = widen(x)
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    r = (length * length).div_(width).add_(eps).rsqrt_()
    y = wide * r
    if weight is None:
        y = y.to(x.dtype)
    elif add_one:
        y = (y * (1 + widen(weight))).to(x.dtype)
    else:
        y = y.to(x.dtype) * weight
    return y, Saved(x, r, weight, add_one)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return dx = r (g - n mean(g n)) and dw = sum dy n, with n = x r and g = w dy."""
    x, r, weight, add_one = saved
    width = x.shape[-1]
    rows, d_rows, r = widen(x).reshape(-1, width), widen(d_y).reshape(-1, width), r.reshape(-1, 1)
    products = d_rows * rows
    if weight is None:
        d_weight = None
        d_x = d_rows * r
        mean_gx = products.mean(-1, keepdim=True)
    else:
        w = widen(weight) + 1 if add_one else widen(weight)
        # Row and column sums are matrix-vector products: sum_tokens r (dy x), and sum_d (dy x) w / D.
        d_weight = (r.t() @ products).view(-1).to(weight.dtype)
        d_x = (d_rows * w).mul_(r)
        mean_gx = (products @ (w / width)).view(-1, 1)
    d_x.addcmul_(rows, mean_gx * r**3, value=-1)
    return d_x.view(x.shape).to(x.dtype), d_weight


RMS_NORM = Operation(
    "rms_norm",
    forward=forward,
    backward=backward,
    formula="y = w x / sqrt(mean x^2 + eps)",
    gradient="dx = r (g - n mean(g n)), g = w dy; dw = sum dy n",
)


def rms_norm(
    x: Float[Tensor, "*batch D"],
    weight: Float[Tensor, " D"] | None = None,
    *,
    eps: float = 1e-6,
    add_one: bool = False,
) -> Float[Tensor, "*batch D"]:
    """RMS normalisation over the last dimension (module docstring: equation, gradient, rounding)."""
    y: Tensor = RMS_NORM(x, weight, eps=eps, add_one=add_one)
    return y
