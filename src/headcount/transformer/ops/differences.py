"""Central differences: the gradient of any scalar function, one entry at a time, by evaluating it twice.

    dL/dx_i  ~  (L(x + h e_i) - L(x - h e_i)) / 2h

The error is h^2 L''' / 6 from the curve and about eps |L| / h from rounding; h = 6e-6, the cube root of float64's eps,
balances the two near 1e-10. It needs two evaluations per entry, so it checks a backward and never replaces one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.ops.operands import plain


def central_differences(
    loss: Callable[[Tensor], Tensor], x: Float[Tensor, "*shape"], *, step: float = 6e-6
) -> Float[Tensor, "*shape"]:
    """dL/dx of a scalar ``loss`` at x (float64).

    Raises
    ------
    OperandError: x is not float64; in float32 rounding alone would spoil the second digit.
    """
    if x.dtype != torch.float64:
        raise OperandError(f"central_differences: x is {plain(x.dtype)}; give float64")
    flat = x.detach().flatten()
    slopes = torch.empty_like(flat)
    with torch.no_grad():
        for i in range(len(flat)):
            ends = []
            for sign in (step, -step):
                moved = flat.clone()
                moved[i] += sign
                ends.append(loss(moved.view(x.shape)))
            slopes[i] = (ends[0] - ends[1]) / (2 * step)
    return slopes.view(x.shape)
