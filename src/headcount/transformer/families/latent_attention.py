"""Latent self-attention (MLA) that knows its mask, its rotary positions and its cache."""

from __future__ import annotations

from torch import Tensor

from headcount.transformer.attention.latent import LatentAttention, LatentHeads
from headcount.transformer.attention.masks import Causal
from headcount.transformer.families.step import Step


class LatentSelfAttention(LatentAttention):
    """``LatentAttention`` of the layer's own tokens, causal; ``turn`` names its rotary positions."""

    def __init__(self, shape: LatentHeads, *, turn: str) -> None:
        super().__init__(shape)
        self.turn = turn

    def forward(self, x_BTD: Tensor, step: Step) -> Tensor:  # type: ignore[override]
        """``(B, T, D) -> (B, T, D)``; with a cache B = 1, the conversations of the call one after another."""
        mask = Causal() if step.padding is None else Causal() & step.padding
        return super().forward(x_BTD, turns=step.turns[self.turn], mask=mask, memory=step.memory())
