"""Structure without arithmetic: split and merge heads, repeat key/value heads, join and cut the last dimension.

Every entry of the output is a copy of one entry of the input, so the gradient is the inverse copy:

    split_heads    q_bnth = x_bt(nH+h)          dx_bt(nH+h) = dq_bnth
    merge_heads    x_bt(nH+h) = o_bnth          do_bnth = dx_bt(nH+h)
    repeat_heads   k_bnsh = k_b(n//G)sh         dk_bksh = sum_{n // G = k} dk_bnsh     (G copies: their gradients add up)
    concat         y = [x_1, ..., x_m]          dx_i = the slice of dy where x_i lies
    cut            x_i = the i-th slice of y    dy = [dx_1, ..., dx_m]

They are operations, not bare reshapes, so that a tape that follows values by identity stays connected. Splits and
merges are views where the strides allow it. Nothing is saved but shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation


class Heads(NamedTuple):
    """What the backward of a split or merge reads: the number of heads."""

    heads: int


def forward_split(x: Tensor, *, heads: int) -> tuple[Tensor, Heads]:
    """Return ``(x (..., T, N H) as (..., N, T, H), saved)``."""
    width = bind("split_heads", x=(x, "... T D"))["D"]
    if heads < 1 or width % heads:
        raise OperandError(f"split_heads: width D = {width} does not divide into N = {heads} heads")
    return x.reshape(*x.shape[:-1], heads, width // heads).transpose(-3, -2), Heads(heads)


def backward_split(saved: Heads, d_q: Tensor) -> tuple[Tensor]:
    """Return the gradient with the heads side by side again."""
    return (forward_merge(d_q)[0],)


def forward_merge(o: Tensor) -> tuple[Tensor, Heads]:
    """Return ``(o (..., N, T, H) as (..., T, N H), saved)``: head n occupies columns nH to (n+1)H."""
    heads = bind("merge_heads", o=(o, "... N T H"))["N"]
    return o.transpose(-3, -2).flatten(-2), Heads(heads)


def backward_merge(saved: Heads, d_x: Tensor) -> tuple[Tensor]:
    """Return the gradient cut into heads."""
    return (forward_split(d_x, heads=saved.heads)[0],)


class Groups(NamedTuple):
    """What the backward of a repetition reads: the copies per key/value head."""

    groups: int


def forward_repeat(k: Tensor, *, groups: int) -> tuple[Tensor, Groups]:
    """Return ``(k (..., K, S, H) as (..., K G, S, H), saved)``; copies of one head lie side by side."""
    bind("repeat_heads", k=(k, "... K S H"))
    if groups < 1:
        raise OperandError(f"repeat_heads: G = {groups} copies per head; give 1 or more")
    return k.repeat_interleave(groups, dim=-3), Groups(groups)


def backward_repeat(saved: Groups, d_out: Tensor) -> tuple[Tensor]:
    """Return the sum over the G copies of each head."""
    kept = d_out.shape[-3] // saved.groups
    return (d_out.reshape(*d_out.shape[:-3], kept, saved.groups, *d_out.shape[-2:]).sum(-3),)


class Widths(NamedTuple):
    """What the backward of joining or cutting reads: the widths of the parts."""

    widths: tuple[int, ...]


def forward_concat(*parts: Tensor) -> tuple[Tensor, Widths]:
    """Return ``(the parts side by side along the last dimension, saved)``."""
    bind("concat", **{f"x{i}": (part, "... D" + str(i)) for i, part in enumerate(parts)})
    if len({part.shape[:-1] for part in parts}) != 1:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts) or "nothing"
        raise OperandError(f"concat: parts of {shapes}; all dimensions but the last must be equal")
    return torch.cat(parts, dim=-1), Widths(tuple(part.shape[-1] for part in parts))


def backward_concat(saved: Widths, d_out: Tensor) -> tuple[Tensor, ...]:
    """Return the slice of dy that belongs to each part."""
    return d_out.split_with_sizes(saved.widths, dim=-1)


def forward_cut(x: Tensor, *, widths: tuple[int, ...]) -> tuple[tuple[Tensor, ...], Widths]:
    """Return ``(slices of the last dimension, saved)``."""
    width = bind("cut", x=(x, "... D"))["D"]
    if sum(widths) != width or min(widths, default=0) < 0:
        raise OperandError(f"cut: widths {widths} sum to {sum(widths)}, x has D = {width}")
    return x.split_with_sizes(widths, dim=-1), Widths(widths)


def backward_cut(saved: Widths, *d_parts: Tensor) -> tuple[Tensor]:
    """Return the gradients of the slices side by side."""
    return (torch.cat(d_parts, dim=-1),)


SPLIT_HEADS = Operation(
    "split_heads",
    forward=forward_split,
    backward=backward_split,
    formula="q_bnth = x_bt(nH+h)",
    gradient="dx_bt(nH+h) = dq_bnth",
)
MERGE_HEADS = Operation(
    "merge_heads",
    forward=forward_merge,
    backward=backward_merge,
    formula="x_bt(nH+h) = o_bnth",
    gradient="do_bnth = dx_bt(nH+h)",
)
REPEAT_HEADS = Operation(
    "repeat_heads",
    forward=forward_repeat,
    backward=backward_repeat,
    formula="k_n = k_(n//G)",
    gradient="dk_k = sum over n // G = k of dk_n",
)
CONCAT = Operation(
    "concat",
    forward=forward_concat,
    backward=backward_concat,
    formula="y = [x_1, ..., x_m]",
    gradient="dx_i = slice i of dy",
)
CUT = Operation(
    "cut",
    forward=forward_cut,
    backward=backward_cut,
    formula="x_i = slice i of y",
    gradient="dy = [dx_1, ..., dx_m]",
)


def split_heads(x_BTD: Float[Tensor, "*batch T D"], heads: int) -> Float[Tensor, "*batch N T H"]:
    """Cut the width D = N H into N heads and put the heads before the tokens (a view)."""
    q: Tensor = SPLIT_HEADS(x_BTD, heads=heads)
    return q


def merge_heads(o_BNTH: Float[Tensor, "*batch N T H"]) -> Float[Tensor, "*batch T D"]:
    """Put the N heads of width H side by side again: D = N H."""
    x: Tensor = MERGE_HEADS(o_BNTH)
    return x


def repeat_heads(k_BKSH: Float[Tensor, "*batch K S H"], groups: int) -> Float[Tensor, "*batch N S H"]:
    """Give each of the N = K G query heads its own copy of the key/value head it shares (grouped-query attention)."""
    k: Tensor = REPEAT_HEADS(k_BKSH, groups=groups)
    return k


def concat(*parts: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """Put tensors side by side along the last dimension."""
    y: Tensor = CONCAT(*parts)
    return y


def cut(x: Float[Tensor, ...], widths: Sequence[int]) -> tuple[Float[Tensor, ...], ...]:
    """Cut the last dimension into slices of the given widths (a fused projection into its parts; views)."""
    parts: tuple[Tensor, ...] = CUT(x, widths=tuple(widths))
    return parts
