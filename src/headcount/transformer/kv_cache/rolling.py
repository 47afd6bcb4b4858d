"""Rolling: the last entries only, for a sliding window or for chunks; still one run of memory, oldest first.

``extend`` returns the older entries that the first new query may see (w - 1 of a window; from the start of the chunk) and the
new ones, then drops what is older than the horizon keeps.

Left to grow, the tensors reach twice the window, and the rows move to the front once per window: amortised one row copied per
token. ``reserve(n)`` makes them exact, min(n, window) rows, at a price: once full there is no free row, and every step moves
the window (512 rows of 256 + 256 float32: 101 us a step instead of 13; 2026-11-30, one core of an AMD EPYC). A prompt longer
than the tensors is answered from a copy, and only its last rows are stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.kv_cache.cache import Kept
from headcount.transformer.kv_cache.contiguous import ContiguousCache
from headcount.transformer.kv_cache.entry import Entry
from headcount.transformer.kv_cache.horizon import Horizon


class RollingCache(ContiguousCache):
    """The last ``horizon.kept(length)`` entries. ``extend``, ``read``, ``storage``: see the bases."""

    kind = "rolling"

    def __init__(
        self, entry: Entry, *, dtype: torch.dtype, device: torch.device, horizon: Horizon | None = None
    ) -> None:
        if horizon is None or horizon.most is None:
            raise UsageError("a rolling cache needs a window or a chunk")
        super().__init__(entry, dtype=dtype, device=device, horizon=horizon)
        self._most = 2 * horizon.most

    def reserve(self, tokens: int) -> None:
        """See ``Cache.reserve``: exactly min(tokens, window) rows, which from then on are not outgrown."""
        super().reserve(tokens)
        assert self.horizon.most is not None
        # Below the window the run may still grow to it: the number asked for was too small, not wrong.
        self._most = self.horizon.most if tokens >= self.horizon.most else 2 * self.horizon.most

    def _retained(self, tokens: int) -> int:
        """Old entries still needed when ``tokens`` more arrive: those shown to them, and those kept after them."""
        length = self._length
        return max(self.horizon.visible(length), self.horizon.kept(length + tokens) - tokens)

    def _open(self, tokens: int) -> bool:
        return self.rows.open(tokens, keep=self._retained(tokens), most=self._most)

    def _drop(self) -> None:
        self.rows.begin = self.rows.end - self.horizon.kept(self._length)

    def _append(self, encoded: Sequence[Tensor], tokens: int) -> Kept:
        rows, seen = self.rows, self.horizon.visible(self._length)
        first = self._length - seen
        if self._open(tokens):
            rows.write(encoded, tokens)
            shown = rows.view(rows.end - seen - tokens, rows.end)
        else:
            shown = self._replace(encoded, tokens, seen)
        self._length += tokens
        self._drop()
        return self._decoded(shown, first)

    def _replace(self, encoded: Sequence[Tensor], tokens: int, seen: int) -> list[Tensor]:
        """Return old and new rows in a copy, and store the last of them.

        ``_open`` failed, so ``seen + tokens`` is more than the window: all that is kept is among them.
        """
        rows = self.rows
        kept = self.horizon.kept(self._length + tokens)
        old = rows.view(rows.end - seen, rows.end)
        # ``to`` rounds as storing would: what is shown now and what is read later are the same numbers.
        shown = [torch.cat((past, new.to(past.dtype)), dim=1) for past, new in zip(old, encoded, strict=True)]
        capacity = max(rows.capacity, kept)
        rows.rehouse(0, capacity)
        rows.write([part[:, -kept:] for part in shown], kept)
        return shown
