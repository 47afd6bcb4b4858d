"""Positions told to the stream or to the scores: learned rows, sinusoids computed when asked, T5's bias by distance.

    learned       x_p += P[p + offset]
    sinusoids     x_p += PE(p): sines in the first half of the columns, cosines in the second (Marian, Pegasus)
    by distance   s_ij += b[bucket(j - i), n]                                     (T5; one number per bucket and head)

T5's buckets, of which a reader of both sides uses half per direction: distances 0 to m - 1 have one each (m half of the
buckets at hand), those from m to ``reach`` share the other half logarithmically, everything beyond is in the last.

    bucket(d) = d                                               d < m
    bucket(d) = m + floor(log(d / m) / log(reach / m) (n - m))  else, n - 1 at most

Sources: Vaswani et al. 2017, 3.5; Raffel et al. 2020, 2.1, and the bucket rule of its published code.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Module

from headcount.errors import OperandError
from headcount.transformer.layers import Embedding
from headcount.transformer.ops.positions import sinusoidal_table


class LearnedPositions(Embedding):
    """A table of rows; position p has row p + ``offset`` (2 in BART, 2 in RoBERTa)."""

    def __init__(self, rows: int, width: int, *, offset: int = 0) -> None:
        super().__init__(rows, width)
        self.offset = offset

    def at(self, positions: Tensor, like: Tensor) -> Tensor:
        """Rows of these positions; OperandError past the last one."""
        last = int(positions.max()) if positions.numel() else 0
        if last + self.offset >= self.weight.shape[0]:
            raise OperandError(
                f"learned positions: position {last:,}, the table ends at {self.weight.shape[0] - self.offset - 1:,}"
            )
        told: Tensor = self(positions + self.offset)
        return told


class Sinusoids(Module):
    """The sinusoids of the original with their columns parted: all sines, then all cosines. Nothing is trained.

    ``rows`` is how many positions the model was made for. Published counts include the table, so it is held, as a
    buffer that no checkpoint stores: computed when first asked for.
    """

    table: Tensor

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.rows, self.width = rows, width
        self.register_buffer("table", torch.empty(rows, width), persistent=False)
        self._computed = False

    def at(self, positions: Tensor, like: Tensor) -> Tensor:
        """PE of these positions, computed in float64 and rounded once; OperandError past the last one."""
        last = int(positions.max()) if positions.numel() else 0
        if last >= self.rows:
            raise OperandError(
                f"sinusoidal positions: position {last:,}, the model was made for {self.rows:,}"
            )
        if not self._computed or self.table.dtype != like.dtype or self.table.device != like.device:
            table = sinusoidal_table(self.rows, self.width, dtype=like.dtype)
            self.table = torch.cat((table[:, 0::2], table[:, 1::2]), 1).to(like.device)
            self._computed = True
        return self.table[positions]


class RelativeBias(Module):
    """T5's bias (``attention.memory.Bias``); one module serves every layer that shares it."""

    def __init__(self, buckets: int, heads: int, *, reach: int, both_ways: bool) -> None:
        super().__init__()
        self.table = Embedding(buckets, heads)
        self.buckets, self.reach, self.both_ways = buckets, reach, both_ways

    def between(self, queries: range, keys: range, like: Tensor) -> Tensor:
        """``(1, N, T, S)``."""
        query_T = torch.arange(queries.start, queries.stop, device=like.device)
        key_S = torch.arange(keys.start, keys.stop, device=like.device)
        bias_TSN: Tensor = self.table(self.bucket(key_S[None] - query_T[:, None]))
        return bias_TSN.permute(2, 0, 1)[None]

    def bucket(self, ahead: Tensor) -> Tensor:
        """Bucket of keys that stand ``ahead`` of their query (behind it when negative)."""
        count, first = self.buckets, torch.zeros_like(ahead)
        if self.both_ways:
            count //= 2
            first = (ahead > 0).long() * count
            distance = ahead.abs()
        else:
            distance = (-ahead).clamp(min=0)
        exact = count // 2
        # In float32, as the published code rounds: float64 would move a distance at a border to the next bucket.
        share = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.reach / exact)
        far = (exact + (share * (count - exact)).long()).clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)
