"""Token-by-token attention against a growing cache, compared with the whole sequence at once."""

from __future__ import annotations

import torch

from headcount.transformer.attention.attend import attend
from headcount.transformer.attention.masks import Causal
from headcount.transformer.attention.rule import Rule


def cached_difference(n: int = 48, seed: int = 0) -> tuple[int, float]:
    """``(tokens, largest difference)`` in float64."""
    stream = torch.Generator().manual_seed(seed)
    q = torch.randn(1, 4, n, 8, generator=stream, dtype=torch.float64)
    k, v = (torch.randn(1, 2, n, 8, generator=stream, dtype=torch.float64) for _ in range(2))
    whole = attend(q, k, v, rule=Rule(mask=Causal()))
    steps = [
        attend(
            q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], rule=Rule(mask=Causal(), query_start=t)
        )
        for t in range(n)
    ]
    return n, float((torch.cat(steps, 2) - whole).abs().max())
