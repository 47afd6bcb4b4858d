"""Rotary positions: queries and keys are turned by an angle proportional to their position.

Forward. The first R columns of a head form R/2 planes; plane i of the token at position p turns by p w_i:

    (a', b') = (a cos - b sin,  b cos + a sin)          cos, sin of p w_i, times a constant attention factor c

Which columns form plane i: (i, i + R/2) in the ``half`` layout (GPT-NeoX, Llama), (2i, 2i + 1) in ``interleaved``
(the paper, GPT-J, DeepSeek). The two are one rotation with the columns permuted, so weights must match the layout.
Columns beyond R pass unchanged (partial rotary width).

Why: rotations are orthogonal and add up, so q at position s against k at position t gives
(R_s q) . (R_t k) = q . R_(t-s) k: the score depends on t - s alone.

Backward. The forward is linear in x, y = c R(p) x, hence dx = c R(p)^T dy = c R(-p) dy: turn back by the same angle,
that is, the same formula with -sin. Saved: cos and sin, shared by all layers; not x.

Shapes: x (..., T, H); cos, sin (T, R/2), or anything that broadcasts with x's leading dimensions: (B, 1, T, R/2) when
each sequence of x_BNTH has its own positions. Source: Su et al. 2021.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.errors import OperandError, UnknownNameError
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen

LAYOUTS = ("half", "interleaved")


class Saved(NamedTuple):
    """What the backward reads: the turning, and which columns form a plane."""

    cos: Tensor
    sin: Tensor
    layout: str


def forward(x: Tensor, cos: Tensor, sin: Tensor, *, layout: str = "half") -> tuple[Tensor, Saved]:
    """Return ``(c R(p) x, saved)``."""
    if layout not in LAYOUTS:
        raise UnknownNameError(what="rotary layout", given=layout, allowed=LAYOUTS)
    sizes = bind("rotary", x=(x, "... T H"), cos=(cos, "... T P"), sin=(sin, "... T P"))
    if 2 * sizes["P"] > sizes["H"]:
        raise OperandError(
            f"rotary: cos turns {sizes['P']} planes of two columns, x has H = {sizes['H']} columns"
        )
    return _turn(x, cos, sin, layout), Saved(cos, sin, layout)


def backward(saved: Saved, d_y: Tensor) -> tuple[Tensor, None, None]:
    """Return dy turned back by the same angle; cos and sin are constants."""
    return _turn(d_y, saved.cos, -saved.sin, saved.layout), None, None


ROTARY = Operation(
    "rotary", forward=forward, backward=backward, formula="y = c R(p) x", gradient="dx = c R(-p) dy"
)


def rotary(
    x: Float[Tensor, "*batch T H"], cos: Float[Tensor, ...], sin: Float[Tensor, ...], *, layout: str = "half"
) -> Float[Tensor, "*batch T H"]:
    """Turn each plane of x by its angle (``turns`` gives cos and sin)."""
    y: Tensor = ROTARY(x, cos, sin, layout=layout)
    return y


def turns(
    positions: Int[Tensor, "*batch T"],
    frequencies: Float[Tensor, " P"],
    *,
    attention_factor: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "*batch T P"], Float[Tensor, "*batch T P"]]:
    """c cos(p w_i) and c sin(p w_i), computed in the frequencies' dtype, then rounded to ``dtype``."""
    angles = positions[..., None].to(frequencies.dtype) * frequencies.to(positions.device)
    return (angles.cos() * attention_factor).to(dtype), (angles.sin() * attention_factor).to(dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> Tensor:
    width = 2 * cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if layout == "half":
        a, b = turned.chunk(2, dim=-1)
        return torch.cat(
            (torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin), rest), dim=-1
        )
    # Neighbouring columns are the real and imaginary part of one number; a turn is a complex product.
    planes = torch.view_as_complex(widen(turned).reshape(*x.shape[:-1], width // 2, 2).contiguous())
    out = torch.view_as_real(planes * torch.complex(widen(cos), widen(sin))).flatten(-2).to(x.dtype)
    return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out
