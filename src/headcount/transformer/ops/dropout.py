"""Dropout, inverted: each entry is zeroed with probability p and the rest grow by 1 / (1 - p).

Forward:  y = x * m,  m_i = 0 with probability p, else 1 / (1 - p), drawn once per entry. E[m] = 1, so E[y] = x and
nothing changes at inference.

Backward. m is a constant of this step, so dx = dy * m with the same m.

Saved: m. It cannot be computed again, unless the generator's state were kept and replayed; that is why a dropout on
attention probabilities costs a T x S tensor per head.

Shapes: (...) -> (...). Source: Srivastava et al. 2014; Vaswani et al. 2017, 5.4.
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
    """What the backward reads: the mask with its growth factor; None when nothing was dropped."""

    mask: Tensor | None


def forward(x: Tensor, *, p: float, generator: torch.Generator | None = None) -> tuple[Tensor, Saved]:
    """Return ``(x * m, saved)``; p = 0 returns x itself."""
    if not 0 <= p < 1:
        raise UsageError(f"dropout probability p = {p}; give 0 <= p < 1 (at 1 nothing would be left to grow)")
    if p == 0:
        return x, Saved(None)
    # Uniform draws are compared with p in float32 at least: half precision has too few steps between 0 and 1.
    draws = torch.rand(x.shape, generator=generator, dtype=widen(x.new_empty(0)).dtype, device=x.device)
    mask = draws.ge_(p).mul_(1 / (1 - p)).to(x.dtype)
    return x * mask, Saved(mask)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor]:
    """Return dy * m."""
    return (d_y if saved.mask is None else d_y * saved.mask,)


DROPOUT = Operation(
    "dropout", forward=forward, backward=backward, formula="y = x m, E[m] = 1", gradient="dx = dy m"
)


def dropout(
    x: Float[Tensor, "*shape"], p: float, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Zero each entry with probability p and divide the rest by 1 - p (training only; the caller decides).

    Raises
    ------
    UsageError: p outside [0, 1).
    """
    y: Tensor = DROPOUT(x, p=p, generator=generator)
    return y
