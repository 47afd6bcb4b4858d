"""What every attention kernel is asked: operands checked once, the rule resolved once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.record import Record
from headcount.transformer.attention.masks import Everything, Mask
from headcount.transformer.ops.operands import bind, plain
from headcount.transformer.ops.soft_cap import CAP_LIMIT


class Rule(Record):
    """How scores are made: s = cap(scale q.k), over the pairs the mask allows.

    ``scale`` None is 1 / sqrt(H); ``soft_cap`` c replaces s by c tanh(s / c); ``query_start`` is the absolute position
    of the first query (S - T when a cache holds the tokens before).
    """

    mask: Mask = Everything()
    scale: float | None = None
    soft_cap: float | None = None
    query_start: int = 0

    def _check(self) -> None:
        if not isinstance(self.mask, Mask):
            raise UsageError(f"attention: mask must be a mask (attention.masks); given {self.mask!r}")
        if self.soft_cap is not None and not 0 < self.soft_cap <= CAP_LIMIT:
            raise UsageError(
                f"attention: soft_cap must be positive and at most {CAP_LIMIT:g}; given {self.soft_cap}"
            )
        if self.scale is not None and not math.isfinite(self.scale):
            raise UsageError(f"attention: scale must be finite; given {self.scale}")
        if not isinstance(self.query_start, int) or self.query_start < 0:
            raise UsageError(
                f"attention: query_start must be a whole number, 0 or more; given {self.query_start}"
            )

    def resolved(self, head_width: int) -> float:
        """The scale as a number."""
        return 1 / math.sqrt(head_width) if self.scale is None else self.scale

    def allowed(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """The whole mask, ``(1 or B, T, S)``: for the kernels that store scores anyway."""
        query_T = torch.arange(self.query_start, self.query_start + queries, device=device)
        return self.mask.allowed(query_T, torch.arange(keys, device=device))


def check_operands(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, rule: Rule) -> None:
    """Raise OperandError unless q (B, N, T, H), k (B, K, S, H), v (B, K, S, W) belong together and K divides N."""
    sizes = bind("attention", q=(q, "B N T H"), k=(k, "B K S H"), v=(v, "B K S W"), sinks=(sinks, "N"))
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not tensor.is_floating_point():
            raise OperandError(f"attention: q, k and v must be floating; {name} is {plain(tensor.dtype)}")
    if sizes["K"] == 0 or sizes["N"] % sizes["K"]:
        raise OperandError(
            f"attention: {sizes['N']} query heads (N) do not divide into {sizes['K']} key/value heads (K); "
            "N must be a multiple of K"
        )
    if sizes["H"] == 0:
        raise OperandError("attention: head width H is 0")
    rule.mask.check(sizes["B"], rule.query_start + sizes["T"], sizes["S"])
