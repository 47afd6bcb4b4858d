"""The compiled kernel for prompts on the CPU: online softmax over packed blocks of keys (``decode/prompt.py``).

It gives values, no gradients, and knows the masks that are an interval of keys per query: everything, causal, sliding
window, chunked; soft caps and sinks too. What it cannot do is refused by name. The compiler is imported with the first call.

float32 calls of fewer than 8 queries run the fused kernel where it can follow the rule: the tiles compute 8 queries
whether there are or not, and every key is packed first. In bfloat16 the fused kernel is the slower one
even for a single query, so that calls of any length are compiled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.errors import OperandError
from headcount.transformer.attention.fused import fused
from headcount.transformer.attention.masks import Causal, Chunked, Everything, Mask, SlidingWindow
from headcount.transformer.attention.rule import Rule
from headcount.transformer.ops import recording
from headcount.transformer.ops.operands import plain

DTYPES = (torch.bfloat16, torch.float32)
MASKS = (Everything, Causal, SlidingWindow, Chunked)
WIDTH_STEP = 16
FEW_QUERIES = 8
INSTEAD = "use kernel 'fused', 'tiled' or 'naive'"


def follows(mask: Mask | None, *widths: int) -> bool:
    """Whether the kernel runs a mask (None: everything) over heads of these widths."""
    return (mask is None or type(mask) in MASKS) and not any(width % WIDTH_STEP for width in widths)


def compiled(
    q_BNTH: Tensor,
    k_BKSH: Tensor,
    v_BKSW: Tensor,
    sinks_N: Tensor | None,
    bias_BNTS: Tensor | None = None,
    *,
    rule: Rule,
) -> Tensor:
    """Attention of many queries at once. Rows or columns that do not lie side by side are copied first.

    Raises
    ------
    OperandError: a bias per pair, a tape that records, gradients asked for, another device, dtype or mask, or head widths
    that are no multiple of 16.
    """
    _check((q_BNTH, k_BKSH, v_BKSW), sinks_N, bias_BNTS, rule)
    B, N, T, _ = q_BNTH.shape
    if not B * N * T * v_BKSW.shape[3] or not k_BKSH.shape[2]:
        return q_BNTH.new_zeros(B, N, T, v_BKSW.shape[3])
    if T < FEW_QUERIES and q_BNTH.dtype == torch.float32 and sinks_N is None and rule.soft_cap is None:
        return fused(q_BNTH, k_BKSH, v_BKSW, None, rule=rule)
    # Not before it is needed: the compiler takes a good part of a second to import.
    from headcount.transformer.decode.prompt_call import attend_prompt

    return attend_prompt(q_BNTH, k_BKSH, v_BKSW, sinks_N, rule=rule)


def _check(
    operands: tuple[Tensor, Tensor, Tensor], sinks: Tensor | None, bias: Tensor | None, rule: Rule
) -> None:
    q, _, v = operands
    given = [*operands, *([] if sinks is None else [sinks])]
    problem = None
    if bias is not None:
        problem = "takes no bias per pair"
    elif recording.active() is not None:
        problem = "cannot be recorded"
    elif torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        problem = "gives no gradients"
    elif any(tensor.device.type != "cpu" for tensor in given):
        problem = f"runs on the CPU alone, not on {q.device}"
    elif q.dtype not in DTYPES or any(tensor.dtype != q.dtype for tensor in operands):
        problem = f"takes bfloat16 or float32, the same for q, k and v; given {plain(q.dtype)}"
    elif type(rule.mask) not in MASKS:
        problem = f"has no form with the mask {type(rule.mask).__name__}"
    elif not follows(rule.mask, q.shape[3], v.shape[3]):
        problem = (
            f"takes head widths that are multiples of {WIDTH_STEP}; given H={q.shape[3]}, W={v.shape[3]}"
        )
    if problem is not None:
        raise OperandError(f"attention: the compiled kernel {problem}; {INSTEAD}")
