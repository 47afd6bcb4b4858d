"""Latent attention (MLA): one row per token, the latent c (r wide) and the rotary key k_r (R wide) side by side.

    keys   = c     (1, S, r)
    values = k_r   (1, S, R)

The protocol is that of one head with H = r, W = R. The row is stored whole, r + R numbers, because that is what a format
counts: one scale (int8) or whole blocks of 32 (q8_0) over r + R, not over each part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.transformer.kv_cache.codec import RowCodec
from headcount.transformer.kv_cache.entry import Entry, Geometry


class LatentEntry(Entry):
    """One codec of width r + R; ``latent`` is r."""

    def __init__(self, row: RowCodec, latent: int, *, format: str) -> None:
        self.row = row
        self.heads, self.key_width, self.value_width = 1, latent, row.width - latent
        self.parts = row.parts
        self.geometry = Geometry("latent", 1, latent, row.width - latent, format)

    def encode(self, keys_KTH: Tensor, values_KTW: Tensor) -> tuple[Tensor, ...]:
        """Put c and k_r side by side, then encode the row."""
        return self.row.encode(torch.cat((keys_KTH, values_KTW), dim=-1))

    def decode(self, parts: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Two views of the decoded row."""
        row = self.row.decode(parts, dtype)
        return row[..., : self.key_width], row[..., self.key_width :]
