"""Self-attention that knows its mask, its rotary positions and its cache; and ALiBi, positions told as a bias.

    ALiBi    s_ij += slope_n (j - i),   slope_n = 2^(-8 n / N)       for a power of two N; others interleave two series

Source: Press et al. 2021.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.transformer.attention.masks import Causal, Everything, Mask
from headcount.transformer.attention.memory import Bias
from headcount.transformer.attention.multi_head import Heads, MultiHeadAttention
from headcount.transformer.families.step import Step


class SelfAttention(MultiHeadAttention):
    """``MultiHeadAttention`` of the layer's own tokens.

    ``mask`` says who sees whom, ``turn`` names its rotary positions (None: it does not turn), ``bias`` tells positions.
    """

    def __init__(
        self, shape: Heads, *, mask: Mask | None = None, turn: str | None = None, bias: Bias | None = None
    ) -> None:
        super().__init__(shape)
        self.mask = Causal() if mask is None else mask
        self.turn = turn
        self.told = bias

    def forward(self, x_BTD: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        """``(B, T, D) -> (B, T, D)``; with a cache B = 1, the conversations of the call one after another."""
        mask = self.mask
        if step.padding is not None:
            mask = step.padding if isinstance(mask, Everything) else mask & step.padding
        turned = None if self.turn is None else step.turns[self.turn]
        return super().forward(x_BTD, mask=mask, turns=turned, memory=step.memory(), bias=self.told)


class Alibi:
    """One slope per head; the bias of a pair is the slope times how far the key lies behind the query."""

    def __init__(self, slopes: Tensor) -> None:
        self.slopes_N = slopes

    def between(self, queries: range, keys: range, like: Tensor) -> Tensor:
        """``slope_n (j - i)``; future keys get a positive bias, which the causal mask removes."""
        query_T = torch.arange(queries.start, queries.stop, device=like.device)
        key_S = torch.arange(keys.start, keys.stop, device=like.device)
        distance_TS = (key_S[None] - query_T[:, None]).float()
        bias_NTS = self.slopes_N.to(like.device)[:, None, None] * distance_TS
        return bias_NTS[None].to(like.dtype)


def alibi_slopes(heads: int, *, largest_exponent: float = 8.0) -> Tensor:
    """2^(-8 n / N), n = 1 ... N; for an N that is no power of two, those of the next smaller one, then every other
    of the next larger one (the rule of the published code)."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-largest_exponent * n / power) for n in range(1, power + 1)]
    slopes += [2 ** (-largest_exponent * n / (2 * power)) for n in range(1, 2 * (heads - power) + 1, 2)]
    # Computed now, whatever device the network is being laid out on (``meta``).
    return torch.tensor(slopes, dtype=torch.float32, device="cpu")
