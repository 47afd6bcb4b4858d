"""Linear map with the weight stored as torch.nn.Linear stores it: one row per output.

Forward, per token:  y_f = sum_d W_fd x_d + b_f,  for all tokens at once  Y = X W^T + b.

Backward. With dY (rows = tokens):

    dx_d  = sum_f dy_f W_fd          dX = dY W
    dW_fd = sum_tokens dy_f x_d      dW = dY^T X      one matrix product over all tokens of the batch
    db_f  = sum_tokens dy_f          db = dY^T 1

Saved: X and W (each is the other's gradient factor). Leading dimensions are flattened to rows first, so that the
weight's gradient is one product instead of one per sequence.

Shapes: x (..., D), weight (F, D), bias (F) -> (..., F). The output projection of a tied model is this operation with
the embedding table as its weight.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation


class Saved(NamedTuple):
    """What the backward reads: input, weight, and whether there was a bias."""

    x: Tensor
    weight: Tensor
    biased: bool


def forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Saved]:
    """Return ``(x W^T + b, saved)``."""
    sizes = bind("linear", x=(x, "... D"), weight=(weight, "F D"), bias=(bias, "F"))
    rows = x.reshape(x.shape[:-1].numel(), sizes["D"])
    y = rows @ weight.t() if bias is None else torch.addmm(bias, rows, weight.t())
    return y.view(*x.shape[:-1], sizes["F"]), Saved(x, weight, bias is not None)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return dX = dY W, dW = dY^T X, db = column sums of dY."""
    count = saved.x.shape[:-1].numel()
    d_rows, rows = d_y.reshape(count, d_y.shape[-1]), saved.x.reshape(count, saved.x.shape[-1])
    d_x = (d_rows @ saved.weight).view(saved.x.shape)
    return d_x, d_rows.t() @ rows, d_rows.sum(0) if saved.biased else None


LINEAR = Operation(
    "linear",
    forward=forward,
    backward=backward,
    formula="y = x W^T + b",
    gradient="dx = dy W, dW = dy^T x, db = sum dy",
)


def linear(
    x: Float[Tensor, "*batch D"], weight: Float[Tensor, "F D"], bias: Float[Tensor, " F"] | None = None
) -> Float[Tensor, "*batch F"]:
    """x W^T + b over the last dimension (module docstring: equation, gradient)."""
    y: Tensor = LINEAR(x, weight, bias)
    return y
