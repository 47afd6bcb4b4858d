"""A growable run of rows: one tensor (lanes, C, width) per part, of which rows [begin, end) are filled.

Room is made in three ways, cheapest first: rows are free behind ``end``; rows that nobody needs any more lie before the kept
ones; new tensors of twice the size. Rows never move inside a tensor: moving means new tensors, so that views given out
earlier stay what they were until memory is written again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.transformer.kv_cache.codec import Part

# The first allocation of a growing run: a short question's worth, so that it is not followed by five small ones.
FIRST_ROWS = 16


class Rows:
    """See the module. ``tensors`` change when rows are moved: take them anew after ``open``."""

    def __init__(self, parts: Sequence[Part], device: torch.device) -> None:
        self.parts, self.device = tuple(parts), device
        self.begin = self.end = 0
        self.tensors = [part.empty(0, device) for part in self.parts]

    @property
    def capacity(self) -> int:
        """C, rows that the tensors have room for."""
        return self.tensors[0].shape[1]

    @property
    def allocated_bytes(self) -> int:
        """C x bytes of a row."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def rehouse(self, keep: int, capacity: int) -> None:
        """Move the newest ``keep`` rows to the start of new tensors of ``capacity`` rows."""
        old = self.view(self.end - keep, self.end)
        tensors = [part.empty(capacity, self.device) for part in self.parts]
        for tensor, rows in zip(tensors, old, strict=True):
            tensor[:, :keep].copy_(rows)
        self.tensors = tensors
        self.begin, self.end = 0, keep

    def open(self, count: int, *, keep: int, most: int | None = None) -> bool:
        """Make room for ``count`` rows behind the newest ``keep``; False when that is more than ``most`` rows."""
        if self.end + count <= self.capacity:
            return True
        wanted = keep + count
        if most is not None and wanted > max(most, self.capacity):
            return False
        # A move must free as many rows as it keeps, or the next one follows soon.
        ample = max(2 * min(wanted, self.capacity), wanted, FIRST_ROWS)
        limit = ample if most is None else min(ample, most)
        self.rehouse(keep, max(self.capacity, limit))
        return True

    def write(self, encoded: Sequence[Tensor], count: int) -> None:
        """Copy ``count`` encoded rows behind the last; the room was made by ``open``."""
        for tensor, rows in zip(self.tensors, encoded, strict=True):
            tensor.narrow(1, self.end, count).copy_(rows)
        self.end += count

    def view(self, begin: int, end: int) -> list[Tensor]:
        """Rows [begin, end) of every part; no copies."""
        count = end - begin
        return [tensor.narrow(1, begin, count) for tensor in self.tensors]

    def copy(self) -> Rows:
        """An equal run with tensors of its own and the same capacity."""
        twin = Rows(self.parts, self.device)
        twin.tensors = self.tensors
        twin.begin, twin.end = self.begin, self.end
        twin.rehouse(self.end - self.begin, self.capacity)
        return twin

    def clear(self) -> None:
        """Let the memory go."""
        self.begin = self.end = 0
        self.tensors = [part.empty(0, self.device) for part in self.parts]
