"""Positions added to the embeddings: the sinusoids of the original, or a learned table.

Attention alone does not see order: permuting the tokens permutes its outputs. So a vector that depends on the
position p is added to each token's embedding.

Sinusoidal, a constant (no gradient of its own; x + PE hands dy to x unchanged):

    PE(p, 2i)   = sin(p / 10000^(2i/D))
    PE(p, 2i+1) = cos(p / 10000^(2i/D))

Each pair of columns is a point on a circle turning at its own speed; a shift by k is the same rotation of every pair
whatever p is, so relative offsets are linear in PE:

    (sin(p+k)w, cos(p+k)w) = (sin pw cos kw + cos pw sin kw, cos pw cos kw - sin pw sin kw)

Learned: y = x + P[p], the embedding of the position, with the embedding's gradient (``embedding``, then ``add``).

Computed in float64 and rounded once: at p = 10^5 a float32 angle is off by up to 4e-3 radians.

Shapes: table (T, D), D even; learned weight (positions, D). Source: Vaswani et al. 2017, 3.5.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.transformer.ops.arithmetic import add
from headcount.transformer.ops.embedding import embedding


def sinusoidal_table(
    length: int, width: int, *, base: float = 10000.0, start: int = 0, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "T D"]:
    """PE of positions ``start`` to ``start + length``: sines in even columns, cosines in odd ones."""
    if width % 2 or width < 2:
        raise UsageError(
            f"sinusoidal positions need an even width, sine and cosine in pairs; given D = {width}"
        )
    speeds = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(start, start + length, dtype=torch.float64)[:, None] * speeds
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)


def sinusoidal_positions(
    x_BTD: Float[Tensor, "*batch T D"], *, base: float = 10000.0, start: int = 0
) -> Float[Tensor, "*batch T D"]:
    """x + PE; ``start`` is the position of the first token (tokens already in a cache)."""
    length, width = x_BTD.shape[-2:]
    return add(
        x_BTD, sinusoidal_table(length, width, base=base, start=start, dtype=x_BTD.dtype).to(x_BTD.device)
    )


def learned_positions(
    x_BTD: Float[Tensor, "*batch T D"], weight: Float[Tensor, "P D"], *, start: int = 0
) -> Float[Tensor, "*batch T D"]:
    """x + P[start : start + T].

    Raises
    ------
    OperandError: the sequence reaches past the last learned position.
    """
    length = x_BTD.shape[-2]
    if start < 0 or start + length > weight.shape[0]:
        raise OperandError(
            f"learned_positions: positions {start} to {start + length - 1}, the table has {weight.shape[0]} rows"
        )
    ids = torch.arange(start, start + length, device=x_BTD.device)
    return add(x_BTD, embedding(ids, weight))
