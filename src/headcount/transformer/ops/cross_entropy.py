"""Cross-entropy of logits against token ids, through the log-sum-exp, with label smoothing.

Forward. For a row x of V logits with target t, softmax p_v = exp(x_v) / sum exp(x), smoothing e in [0, 1]:

    target distribution   q_v = (1 - e) [v = t] + e / V
    loss of the row       -sum_v q_v log p_v = lse(x) - (1 - e) x_t - e mean(x)
    lse(x)                = m + log sum_v exp(x_v - m),  m = max x

because log p_v = x_v - lse(x) and sum q = 1. No probability is formed, so none can be 0 under the logarithm, and m is
subtracted from x_t before the two large numbers could cancel. The result is the mean over the C rows whose target is
not ``ignore_index``.

Backward. d lse/d x_v = p_v, hence for a counted row

    dx_v = dL / C * (p_v - (1 - e) [v = t] - e / V)          and 0 in an ignored row

Saved: x (kept anyway: it is the output of the last linear map) and two numbers per row, m and sum exp(x - m), not the
V probabilities; they are computed again, straight into the gradient. Rows go in groups that fit the cache.

Policy: all targets ignored is refused, the mean of nothing is not 0; a counted row that holds NaN, +inf or only -inf
gives NaN. Half-precision logits are computed in float32 and the loss is float32: bfloat16 would keep 3 digits of it.

Shapes: logits (..., V), targets (...) integer -> scalar. Source: Szegedy et al. 2016 (smoothing); Vaswani et al. 2017, 5.4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.transformer.ops.operands import bind
from headcount.transformer.ops.operation import Operation
from headcount.transformer.ops.precision import widen

# Entries per group of rows: 1 MiB of float32, about one core's second-level cache (measured 2026-11-30, AMD EPYC).
GROUP = 1 << 18


class Saved(NamedTuple):
    """What the backward reads; ``m`` and ``total`` = sum exp(x - m) are one number per row."""

    logits: Tensor
    targets: Tensor
    m: Tensor
    total: Tensor
    counted: Tensor
    divisor: int
    smoothing: float


def forward(
    logits: Tensor, targets: Tensor, *, label_smoothing: float = 0.0, ignore_index: int = -100
) -> tuple[Tensor, Saved]:
    """Return ``(mean over counted rows of log sum exp(x - m) + (1 - e) (m - x_t) + e (m - mean(x)), saved)``."""
    if not 0 <= label_smoothing <= 1:
        raise UsageError(f"label smoothing {label_smoothing}; give 0 <= e <= 1")
    rows, flat, counted, count = _checked(logits, targets, ignore_index)
    m, total, mean = [], [], []
    for group in rows.chunk(_groups(rows)):
        wide = widen(group)
        m.append(wide.detach().amax(-1, keepdim=True))
        shifted = wide - m[-1]
        if label_smoothing:
            # After the shift: the mean of large logits would cancel against m.
            mean.append(shifted.mean(-1, keepdim=True))
        total.append(shifted.exp_().sum(-1, keepdim=True))
    m_M1, total_M1 = torch.cat(m), torch.cat(total)
    loss = total_M1.log() + (1 - label_smoothing) * (m_M1 - widen(rows.gather(1, flat)))
    if label_smoothing:
        loss = loss - label_smoothing * torch.cat(mean)
    if count < len(rows):
        loss = loss.masked_fill(~counted, 0.0)
    return loss.sum() / count, Saved(logits, flat, m_M1, total_M1, counted, count, label_smoothing)


def backward(saved: Saved, d_loss: Tensor) -> tuple[Tensor, None]:
    """Return dL / C * (p - q) in counted rows, 0 in ignored ones; targets have no gradient."""
    rows = saved.logits.reshape(-1, saved.logits.shape[-1])
    factor = d_loss / saved.divisor
    hit = (factor * (saved.smoothing - 1)).expand(saved.targets.shape)
    d_rows = torch.empty_like(rows)
    # p times dL / C in one multiplication per row.
    tensors = (rows, saved.m, factor / saved.total, saved.targets, hit, d_rows)
    for group, m, share, target, minus, out in zip(
        *(each.chunk(_groups(rows)) for each in tensors), strict=True
    ):
        p = torch.sub(group, m, out=out) if out.dtype == m.dtype else widen(group) - m
        p.exp_().mul_(share)
        if saved.smoothing:
            p.sub_(factor * (saved.smoothing / p.shape[-1]))
        p.scatter_add_(1, target, minus)
        if p is not out:
            out.copy_(p)
    if saved.divisor < len(rows):
        d_rows.masked_fill_(~saved.counted, 0.0)
    return d_rows.view(saved.logits.shape), None


CROSS_ENTROPY = Operation(
    "cross_entropy",
    whole_inputs=(1,),
    forward=forward,
    backward=backward,
    formula="L = mean(lse(x) - (1 - e) x_t - e mean(x))",
    gradient="dx = dL / C (softmax(x) - q)",
)


def cross_entropy(
    logits: Float[Tensor, "*batch V"],
    targets: Int[Tensor, "*batch"],
    *,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Float[Tensor, ""]:
    """Mean cross-entropy over the tokens whose target is not ``ignore_index``, in nats.

    Raises
    ------
    UsageError: every target is ignored, or smoothing outside [0, 1].
    OperandError: a target outside the vocabulary, or shapes that differ.
    """
    loss: Tensor = CROSS_ENTROPY(logits, targets, label_smoothing=label_smoothing, ignore_index=ignore_index)
    return loss


def _checked(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return logits (M, V), targets (M, 1) with ignored ones set to 0, which rows count (M, 1), and how many."""
    size = bind("cross_entropy", logits=(logits, "... V"))["V"]
    if targets.shape != logits.shape[:-1] or targets.is_floating_point():
        raise OperandError(
            f"cross_entropy: targets {tuple(targets.shape)} must be integers, one per row of logits {tuple(logits.shape)}"
        )
    flat = targets.reshape(-1, 1).long()
    counted = flat != ignore_index
    flat = torch.where(counted, flat, 0)
    if not flat.numel() or not (count := int(counted.sum())):
        raise UsageError(
            f"cross_entropy: all {flat.numel()} targets are ignored (ignore_index {ignore_index}); "
            "the mean over no tokens is undefined"
        )
    low, high = (int(end) for end in flat.aminmax())
    if low < 0 or high >= size:
        raise OperandError(
            f"cross_entropy: target {low if low < 0 else high} is outside the V = {size} logits"
        )
    return logits.reshape(-1, size), flat, counted, count


def _groups(rows: Tensor) -> int:
    return max(1, rows.numel() // GROUP)
