"""Contiguous: all rows of a conversation side by side, (K, C, H), so that the keys of one head are one run of memory.

``extend`` writes behind the last row and returns views. Without ``reserve`` the tensors double when they are full: n appends
copy fewer than 2 n rows in all. With ``reserve(n)`` they hold exactly n rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.kv_cache.cache import EntryCache, Kept, whole_tokens
from headcount.transformer.kv_cache.codec import FloatRows
from headcount.transformer.kv_cache.entry import Entry, HeadedEntry
from headcount.transformer.kv_cache.horizon import Everything, Horizon
from headcount.transformer.kv_cache.rows import Rows


class ContiguousCache(EntryCache):
    """Every token, in one run. ``extend``, ``read``: see ``Cache``.

    ``rows`` holds the tensors; a compiled step reads where the entries begin, end and lie.
    """

    kind = "contiguous"

    def __init__(
        self, entry: Entry, *, dtype: torch.dtype, device: torch.device, horizon: Horizon | None = None
    ) -> None:
        super().__init__(entry, horizon or Everything(), dtype=dtype, device=device)
        self.rows = Rows(entry.parts, device)
        # The most rows the tensors may grow to; None: as many as there are tokens.
        self._most: int | None = None

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors: capacity x bytes of an entry."""
        return self.rows.allocated_bytes

    @property
    def capacity(self) -> int:
        """Rows that fit before the tensors grow."""
        return self.rows.capacity

    @property
    def storage(self) -> tuple[Tensor, Tensor]:
        """Keys (K, C, H) and values (K, C, W) as they lie in memory; the entries kept end at row ``last_row``.

        Taken anew after every ``open_rows``, ``extend`` and ``reserve``: these may move it.

        Raises
        ------
        UsageError: after ``release``, or when rows are not plain numbers of K heads.
        """
        self._alive("storage")
        entry = self.entry
        if not (
            isinstance(entry, HeadedEntry)
            and isinstance(entry.keys, FloatRows)
            and isinstance(entry.values, FloatRows)
        ):
            raise UsageError(
                f"storage: rows of {entry.geometry.kind} {entry.geometry.format} are not plain (K, C, H)"
            )
        return self.rows.tensors[0], self.rows.tensors[1]

    @property
    def last_row(self) -> int:
        """One past the row of ``storage`` where the newest entry lies: position p lies in row ``last_row - length + p``."""
        return self.rows.end

    def reserve(self, tokens: int) -> None:
        """See ``Cache.reserve``; the tensors afterwards hold exactly as many rows as are kept of ``tokens`` tokens."""
        super().reserve(tokens)
        kept = self.rows.end - self.rows.begin
        capacity = max(self.horizon.kept(tokens), kept)
        if capacity != self.rows.capacity:
            self.rows.rehouse(kept, capacity)

    def open_rows(self, tokens: int) -> int:
        """Make room for ``tokens`` rows and return the row of ``storage`` where the first belongs; for a compiled kernel.

        The kernel writes rows [row, row + tokens) and calls ``advance(tokens)``. ``length`` does not change here.

        Raises
        ------
        UsageError: after ``release``, or more tokens than a rolling cache can show at once.
        """
        self._alive("open_rows")
        whole_tokens(tokens)
        if not self._open(tokens):
            raise UsageError(
                f"open_rows: {tokens} tokens at once need more rows than this cache has; use extend()"
            )
        return self.rows.end

    def advance(self, tokens: int) -> None:
        """Count ``tokens`` rows that were written into ``storage`` behind the last one.

        Raises
        ------
        UsageError: after ``release``, or more rows than ``open_rows`` made room for.
        """
        self._alive("advance")
        whole_tokens(tokens)
        free = self.rows.capacity - self.rows.end
        if tokens > free:
            raise UsageError(
                f"advance: {tokens} tokens, {free} rows are open; call open_rows({tokens}) first"
            )
        self.rows.end += tokens
        self._length += tokens
        self._drop()

    def fork(self) -> ContiguousCache:
        """See ``Cache.fork``; the rows are copied, and so is the room reserved."""
        self._alive("fork")
        twin = type(self)(self.entry, horizon=self.horizon, dtype=self.dtype, device=self.device)
        twin.rows = self.rows.copy()
        twin._length, twin._most = self._length, self._most
        return twin

    def release(self) -> None:
        """See ``Cache.release``."""
        self._alive("release")
        self.rows.clear()
        self._released = True

    def _open(self, tokens: int) -> bool:
        return self.rows.open(tokens, keep=self._length)

    def _drop(self) -> None:
        """Nothing is ever dropped here."""

    def _append(self, encoded: Sequence[Tensor], tokens: int) -> Kept:
        self.rows.open(tokens, keep=self._length)
        self.rows.write(encoded, tokens)
        self._length += tokens
        return self._decoded(self.rows.view(0, self._length), 0)

    def _show(self, count: int) -> Kept:
        rows = self.rows
        return self._decoded(rows.view(rows.end - count, rows.end), self._length - count)
