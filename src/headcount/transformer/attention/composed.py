"""Attention as its separate operations: one node each on a tape, for graphs and derivations.

    K', V' repeated over their group    S = Q K'^T    S' = S scale (capped)    masked    A = softmax(S')    O = A V'

The values are those of ``naive.py``; memory and time are not a concern here. Two operations live in this file because nothing
else needs them:

    mask       s_ij = s_ij where allowed, -inf elsewhere        ds_ij = ds_ij where allowed, 0 elsewhere
    sink       a column of one logit per head beside the scores  dsink_n = sum over b, t of the column's gradient
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headcount.transformer.attention.masks import Everything
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops.arithmetic import add, product, scale, scores
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.rearrange import CONCAT, CUT, repeat_heads
from headcount.transformer.ops.recording import name
from headcount.transformer.ops.soft_cap import soft_cap
from headcount.transformer.ops.softmax import softmax


class SavedMask(NamedTuple):
    """What the mask's backward reads: the allowed pairs."""

    allowed: Tensor


def forward_mask(s: Tensor, *, allowed: Tensor) -> tuple[Tensor, SavedMask]:
    """Return ``(s where allowed, -inf elsewhere, saved)``."""
    return torch.where(allowed, s, -torch.inf), SavedMask(allowed)


def backward_mask(saved: SavedMask, d_s: Tensor) -> tuple[Tensor]:
    """A forbidden score does not reach the output, so its gradient is zero."""
    return (torch.where(saved.allowed, d_s, 0.0),)


class SavedSink(NamedTuple):
    """What the sink's backward reads: the heads."""

    heads: int


def forward_sink(sinks_N: Tensor, *, batch: int, queries: int) -> tuple[Tensor, SavedSink]:
    """Return ``(one column (B, N, T, 1) of each head's logit, saved)``."""
    column = sinks_N[None, :, None, None].expand(batch, -1, queries, 1)
    return column, SavedSink(len(sinks_N))


def backward_sink(saved: SavedSink, d_column: Tensor) -> tuple[Tensor]:
    """The one logit of a head is used in every row: its gradients add up."""
    return (d_column.sum((0, 2, 3)),)


MASK = Operation(
    "mask",
    forward=forward_mask,
    backward=backward_mask,
    formula="s = s where allowed, else -inf",
    gradient="ds = ds where allowed, else 0",
)
SINK = Operation(
    "sink",
    forward=forward_sink,
    backward=backward_sink,
    formula="column = sink_n",
    gradient="dsink = sum of column",
)


def composed(
    q_BNTH: Tensor,
    k_BKSH: Tensor,
    v_BKSW: Tensor,
    sinks_N: Tensor | None,
    bias_BNTS: Tensor | None = None,
    *,
    rule: Rule,
) -> Tensor:
    """O by one operation after another; the values are named S, S', A, O on a tape."""
    B, N, T, H = q_BNTH.shape
    G = N // k_BKSH.shape[1]
    k, v = (k_BKSH, v_BKSW) if G == 1 else (repeat_heads(k_BKSH, G), repeat_heads(v_BKSW, G))
    s = scale(name(scores(q_BNTH, k), "S"), rule.resolved(H))
    if rule.soft_cap is not None:
        s = soft_cap(s, rule.soft_cap)
    if bias_BNTS is not None:
        s = add(s, bias_BNTS.expand_as(s))
    if not isinstance(rule.mask, Everything):
        s = MASK(s, allowed=rule.allowed(T, k.shape[2], s.device)[:, None])
    if sinks_N is None:
        a = softmax(name(s, "S'"))
    else:
        beside = CONCAT(name(s, "S'"), SINK(sinks_N, batch=B, queries=T))
        a, _ = CUT(softmax(beside), widths=(s.shape[-1], 1))
    return name(product(name(a, "A"), v), "O")
