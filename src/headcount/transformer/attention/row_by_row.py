"""Attention one query at a time, against exactly the keys its mask allows: as many products as the equations state.

    o_t = softmax(scale q_t K_allowed(t)^T) V_allowed(t)

The other kernels compute whole rectangles of scores and throw the forbidden half away; this one multiplies nothing that
is not needed, so that a FLOP counter beside it reads n (n + 1) / 2 pairs of a causal prompt, not n^2. For counting and for
judging masks; slow. Steps and derivatives are those of ``naive.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.transformer.attention.masks import ALL, Everything
from headcount.transformer.attention.naive import NAIVE
from headcount.transformer.attention.rule import Rule


def row_by_row(
    q_BNTH: Tensor,
    k_BKSH: Tensor,
    v_BKSW: Tensor,
    sinks_N: Tensor | None,
    bias_BNTS: Tensor | None = None,
    *,
    rule: Rule,
) -> Tensor:
    """O for each sequence and query apart (their masks differ)."""
    B, N, T, _ = q_BNTH.shape
    S = k_BKSH.shape[2]
    if T and S and rule.mask.coverage(range(rule.query_start, rule.query_start + T), range(S)) == ALL:
        # Nothing would be thrown away: the whole rectangle is what the equations state.
        bias = () if bias_BNTS is None else (bias_BNTS,)
        whole: Tensor = NAIVE(q_BNTH, k_BKSH, v_BKSW, sinks_N, *bias, rule=rule.replace(mask=Everything()))
        return whole
    open_BTS = rule.allowed(T, S, q_BNTH.device).expand(B, -1, -1)
    one = rule.replace(mask=Everything(), query_start=0)
    sequences = []
    for b in range(B):
        rows = []
        for t in range(T):
            keys = open_BTS[b, t].nonzero().squeeze(1)
            if not len(keys):
                rows.append(q_BNTH.new_zeros(1, N, 1, v_BKSW.shape[-1]))
                continue
            q, k, v = q_BNTH[b : b + 1, :, t : t + 1], k_BKSH[b : b + 1, :, keys], v_BKSW[b : b + 1, :, keys]
            bias = ()
            if bias_BNTS is not None:
                bias = (bias_BNTS[min(b, len(bias_BNTS) - 1), :, t, keys][None, :, None],)
            rows.append(NAIVE(q, k, v, sinks_N, *bias, rule=one))
        sequences.append(torch.cat(rows, 2))
    return torch.cat(sequences)
