"""Rows of real scores Q K^T: what saturation.py and gradients.py look at.

Queries and keys are drawn with independent normal components, as the variance argument assumes; the n queries of a
sequence meet the same n keys, as in attention. A row is then normal with variance |q|^2, which is d_k on average.
float64 throughout: what dies here dies of mathematics, not of rounding.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headcount.experiments.seeds import generator

DTYPE = torch.float64
UNSCALED, SCALED = "unscaled", "scaled"
_MOST_SCORES = 2**22


def sequences(
    purpose: str, *, seed: int, repeat: int, width: int, keys: int, rows: int
) -> Iterator[tuple[Tensor, Tensor, torch.Generator]]:
    """Yield ``(q, k, stream)``: batches of sequences (b, keys, width) until there are ``rows`` queries.

    ``stream`` is the batch's generator, for whatever else the experiment draws.
    """
    stream = generator(seed, purpose, repeat, width, keys)
    left = -(-rows // keys)
    batch = max(1, min(_MOST_SCORES // keys**2, _MOST_SCORES // (keys * width)))
    while left > 0:
        shape = (min(batch, left), keys, width)
        q = torch.randn(shape, generator=stream, dtype=DTYPE)
        k = torch.randn(shape, generator=stream, dtype=DTYPE)
        yield q, k, stream
        left -= shape[0]
