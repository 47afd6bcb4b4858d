"""PyTorch's fused kernel, where it computes the same thing: ``F.scaled_dot_product_attention``.

It has no soft cap and no sink, so such rules are refused by name, not approximated. Masks other than "everything" and
"causal from position 0" are handed over as booleans, which stores one (T, S) matrix of bytes. Its backward is PyTorch's own;
it leaves no node on a tape.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from headcount.errors import OperandError
from headcount.transformer.attention.masks import Causal, Everything
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops import recording


def fused(
    q_BNTH: Tensor,
    k_BKSH: Tensor,
    v_BKSW: Tensor,
    sinks_N: Tensor | None,
    bias_BNTS: Tensor | None = None,
    *,
    rule: Rule,
) -> Tensor:
    """The kernel PyTorch picks for these operands.

    Raises
    ------
    OperandError: a soft cap, sinks, or a tape that records (use the naive, composed or tiled kernel).
    """
    if rule.soft_cap is not None or sinks_N is not None:
        what = "a soft cap" if rule.soft_cap is not None else "attention sinks"
        raise OperandError(
            f"attention: the fused kernel has no form with {what}; use kernel 'tiled' or 'naive'"
        )
    if recording.active() is not None:
        raise OperandError(
            "attention: the fused kernel cannot be recorded; use kernel 'composed', 'naive' or 'tiled'"
        )
    T, S = q_BNTH.shape[2], k_BKSH.shape[2]
    causal = isinstance(rule.mask, Causal) and rule.query_start == 0 and bias_BNTS is None
    allowed = None
    if not causal and not isinstance(rule.mask, Everything):
        allowed = rule.allowed(T, S, q_BNTH.device)[:, None]
    told = allowed
    if bias_BNTS is not None:
        told = bias_BNTS if allowed is None else torch.where(allowed, bias_BNTS, -torch.inf)
    out: Tensor = functional.scaled_dot_product_attention(
        q_BNTH,
        k_BKSH,
        v_BKSW,
        attn_mask=told,
        is_causal=causal,
        scale=rule.resolved(q_BNTH.shape[3]),
        enable_gqa=q_BNTH.shape[1] != k_BKSH.shape[1],
    )
    if allowed is not None:
        # PyTorch's kernels disagree with each other on rows without a key (zeros or NaN); here they give zeros.
        out = torch.where(allowed.any(-1, keepdim=True), out, 0.0)
    return out
