"""Attention as its separate operations: one node each, for graphs and derivations."""

from __future__ import annotations

from torch import Tensor

from headcount.transformer.attention.rule import Rule


def composed(q_BNTH: Tensor, k_BKSH: Tensor, v_BKSW: Tensor, sinks_N: Tensor | None, *, rule: Rule) -> Tensor:
    """Placeholder until arithmetic is there."""
    raise NotImplementedError
