"""Scaled dot-product attention as it is written, scores stored: the judge of every faster kernel.

Forward, for each query head n of key/value head k(n) = n // G:

    S  = Q K^T                  (T, S) one score per pair
    S' = S scale                then c tanh(S' / c) when capped; -inf where the mask forbids
    S''= S' + bias              where positions are told by a bias per pair (ALiBi, T5)
    A  = softmax(S'')           rows sum to one; a sink adds exp(sink) to the sum and to nothing else
    O  = A V

Backward, the same four steps walked back (dO given):

    1.  dA  = dO V^T            dV = A^T dO, summed over the G query heads that share V
    2.  dS' = A * (dA - rowsum(A * dA))     dsink = -sum_rows a_sink rowsum(A * dA), dbias = dS'
    3.  dS  = dS' scale         times 1 - (S' / c)^2 when capped
    4.  dQ  = dS K              dK = dS^T Q, summed over the G query heads that share K

MHA (K = N), GQA and MQA (K = 1) are this one path: the G query heads of a group are stacked as G T rows against one
key head, so keys and values are never copied. A fully masked row gives zeros (``ops/softmax.py``).

Saved: Q, K, V, A, and the capped scores when there is a cap: O(T S) memory per head. Source: Vaswani et al. 2017,
3.2.1; Shazeer 2019 (one key/value head); Ainslie et al. 2023 (groups).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headcount.transformer.attention.masks import Everything
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops import softmax
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen


class Saved(NamedTuple):
    """Rows of a group are stacked: q (B, K, G T, H), a (B, K, G T, S); ``capped`` is S' after the cap, or None."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    capped: Tensor | None
    a_sink: Tensor | None
    scale: float
    soft_cap: float | None
    heads: int
    bias: torch.Size | None = None


def forward(
    q_BNTH: Tensor,
    k_BKSH: Tensor,
    v_BKSW: Tensor,
    sinks_N: Tensor | None,
    bias_BNTS: Tensor | None = None,
    *,
    rule: Rule,
) -> tuple[Tensor, Saved]:
    """Return ``(o_BNTW, saved)``."""
    B, N, T, H = q_BNTH.shape
    K, S = k_BKSH.shape[1:3]
    G = N // K
    scale, dtype = rule.resolved(H), q_BNTH.dtype
    # 16 bits hold neither the scores nor their sums: float16 and bfloat16 are computed in float32.
    q_BNTH, k_BKSH, v_BKSW = widen(q_BNTH), widen(k_BKSH), widen(v_BKSW)
    sinks_N = None if sinks_N is None else widen(sinks_N)
    q = q_BNTH.reshape(B, K, G * T, H)
    scores = torch.matmul(q, k_BKSH.transpose(-1, -2)) * scale
    capped = None
    if rule.soft_cap is not None:
        capped = scores = torch.tanh(scores / rule.soft_cap) * rule.soft_cap
    if bias_BNTS is not None:
        scores = (scores.view(B, K, G, T, S) + widen(bias_BNTS).view(-1, K, G, T, S)).view(B, K, G * T, S)
    if not isinstance(rule.mask, Everything):
        allowed = rule.allowed(T, S, q.device)
        scores = torch.where(allowed[:, None, None], scores.view(B, K, G, T, S), -torch.inf).view(
            B, K, G * T, S
        )
    sink = None if sinks_N is None else sinks_N.view(K, G, 1).expand(K, G, T).reshape(1, K, G * T, 1)
    a, a_sink = _weights(scores, sink)
    o = torch.matmul(a, v_BKSW).to(dtype)
    saved = Saved(q, k_BKSH, v_BKSW, a, capped, a_sink, scale, rule.soft_cap, N)
    if bias_BNTS is not None:
        saved = saved._replace(bias=bias_BNTS.shape)
    return o.view(B, N, T, v_BKSW.shape[-1]), saved


def _weights(scores: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Rows of ``ops/softmax.py``; a sink is one more score beside them, whose probability is returned apart."""
    if sink is None:
        return softmax.forward(scores)[0], None
    beside = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), dim=-1)
    a = softmax.forward(beside)[0]
    return a[..., :-1], a[..., -1:]


def backward(saved: Saved, d_o: Tensor) -> tuple[Tensor | None, ...]:
    """Return ``(dQ, dK, dV, dsinks)``, and dbias where there was a bias: the four steps of the module docstring."""
    q, k, v, a, capped, a_sink, scale, soft_cap, heads, bias = saved
    B, N, T, W = d_o.shape
    dtype = d_o.dtype
    d_rows = widen(d_o).reshape(B, k.shape[1], q.shape[2], W)
    # step 1, forward was O = A V
    d_a = torch.matmul(d_rows, v.transpose(-1, -2))
    d_v = torch.matmul(a.transpose(-1, -2), d_rows)
    # step 2, forward was A = softmax(S')
    weighted = a * d_a
    row_dot = weighted.sum(-1, keepdim=True)
    d_s = torch.addcmul(weighted, a, row_dot, value=-1)
    d_sinks = None
    if a_sink is not None:
        d_sinks = -(a_sink * row_dot).view(B, heads, T).sum((0, 2)).to(dtype)
    d_bias: tuple[Tensor, ...] = ()
    if bias is not None:
        d_bias = (d_s.view(B, heads, T, k.shape[2]).sum_to_size(bias).to(dtype),)
    # step 3, forward was S' = cap(S scale)
    if capped is not None and soft_cap is not None:
        d_s = d_s * (1 - (capped / soft_cap).square())
    # step 4, forward was S = Q K^T; the scale of step 3 is applied to the narrow results instead of to dS
    d_q = torch.matmul(d_s, k).mul_(scale)
    d_k = torch.matmul(d_s.transpose(-1, -2), q).mul_(scale)
    return (d_q.view(B, N, T, q.shape[-1]).to(dtype), d_k.to(dtype), d_v.to(dtype), d_sinks, *d_bias)


NAIVE = Operation(
    "attention",
    forward=forward,
    backward=backward,
    formula="O = softmax(Q K^T / sqrt(d_k)) V",
    gradient="dV = A^T dO, dS' = A * (dO V^T - rowsum), dQ = dS K, dK = dS^T Q",
)
