"""Paged: a conversation's entries lie in pages of a shared pool, wherever they are free; its page table says in which order.

    position p  ->  page table[p // M - base], slot p mod M

Nothing is ever moved: growing takes a page, forking shares all of them. A page that two tables hold is copied before either
writes into it. With a window or chunks, whole pages that fell out of what is kept are given back.

All or nothing: ``extend`` and ``reserve`` count the pages they need before they change anything; when the pool has too few they
raise CacheFullError, and this cache and all others are as before. Reading gathers the pages into one copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.errors import CacheFullError
from headcount.transformer.kv_cache.cache import EntryCache, Kept
from headcount.transformer.kv_cache.horizon import Everything, Horizon
from headcount.transformer.kv_cache.pool import Pool
from headcount.units import ceil_div


class PagedCache(EntryCache):
    """One conversation's entries over a pool. ``extend``, ``read``: see ``Cache``.

    table     pages in order of their positions
    base      number of the first: it holds positions base M to base M + M - 1
    spare     pages taken ahead by ``reserve``
    promised  tokens in all that ``reserve`` made room for
    """

    kind = "paged"

    def __init__(self, pool: Pool, *, dtype: torch.dtype, horizon: Horizon | None = None) -> None:
        super().__init__(pool.entry, horizon or Everything(), dtype=dtype, device=pool.device)
        self.pool = pool
        self._table: list[int] = []
        self._base = 0
        self._spare: list[int] = []
        self._promised = 0
        self._index: Tensor | None = None
        pool.register(self)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pages held, spare ones and shared ones included."""
        return len(self.pages_held()) * self.pool.page_bytes

    @property
    def promised(self) -> int:
        """Tokens in all that ``reserve`` made room for last; 0 without."""
        return self._promised

    def pages_held(self) -> list[int]:
        """Every page this cache holds a reference to."""
        return self._table + self._spare

    def pages_to_reserve(self, tokens: int) -> int:
        """Pages that ``reserve(tokens)`` would take from the pool now."""
        copy = int(tokens > self._length and self._tail_is_shared(0))
        return max(0, self._spare_needed(tokens, owned_more=copy) - len(self._spare)) + copy

    def reserve(self, tokens: int) -> None:
        """See ``Cache.reserve``: pages are taken ahead, whole ones, so ``allocated_bytes`` is rounded up to a page.

        No ``extend`` up to ``tokens`` tokens in all then fails, until a ``fork`` shares pages that have to be copied.
        """
        super().reserve(tokens)
        need = self.pages_to_reserve(tokens)
        if need > self.pool.free_pages:
            raise self._full(need, self.pool.free_pages)
        if tokens > self._length and self._tail_is_shared(0):
            self._own_tail()
        self._promised = tokens
        while len(self._spare) < self._spare_needed(tokens):
            self._spare.append(self.pool.take())
        self._settle()

    def fork(self) -> PagedCache:
        """See ``Cache.fork``: no page is copied yet; the twin starts without a reservation."""
        self._alive("fork")
        twin = PagedCache(self.pool, dtype=self.dtype, horizon=self.horizon)
        self.pool.share(self._table)
        twin._table, twin._base, twin._length = list(self._table), self._base, self._length
        return twin

    def release(self) -> None:
        """See ``Cache.release``; shared pages live on in the other tables."""
        self._alive("release")
        for page in self.pages_held():
            self.pool.drop(page)
        self._table, self._spare, self._index = [], [], None
        self._released = True

    # Positions and pages -------------------------------------------------------------------------------

    @property
    def _table_end(self) -> int:
        """Number of the first page not in the table."""
        return self._base + len(self._table)

    def _tail_is_shared(self, first_page: int) -> bool:
        """Whether the next token goes into a page that another table holds as well, at or after ``first_page``."""
        partly_filled = self._length % self.pool.page_tokens and self._table and self._table_end > first_page
        return bool(partly_filled and self.pool.references[self._table[-1]] > 1)

    def _spare_needed(self, tokens: int, *, owned_more: int = 0) -> int:
        """Pages to hold ahead so that ``tokens`` tokens in all will fit.

        Every page still to come, ceil(tokens / M) less those in the table; under a horizon of w entries no more than can
        be in the table at once, ceil((w - 1) / M) + 1, less the table's own that come back when they fall out.
        """
        size = self.pool.page_tokens
        coming = max(0, ceil_div(tokens, size) - self._table_end)
        if self.horizon.most is None or not coming:
            return coming
        span = ceil_div(self.horizon.most - 1, size) + 1
        owned = sum(self.pool.references[page] == 1 for page in self._table) + owned_more
        return min(coming, max(0, span - owned))

    def _full(self, need: int, have: int) -> CacheFullError:
        pages = "1 more page" if need == 1 else f"{need:,} more pages"
        return CacheFullError(
            f"the KV budget has no room: {pages} of {self.pool.page_tokens} tokens asked for, {have:,} of "
            f"{self.pool.pages:,} free; release a conversation or give a larger budget"
        )

    # Appending -----------------------------------------------------------------------------------------

    def _append(self, encoded: Sequence[Tensor], tokens: int) -> Kept:
        length = self._length
        end = length + tokens
        start = end - self.horizon.kept(end)
        first = length - self.horizon.visible(length)
        self._check_room(start, end)
        # Where the new queries see entries that will not be kept, they are taken out before their pages go.
        through = first >= start
        old = [] if through else self._gather(first, length)
        self._drop_before(start)
        self._cover(end)
        begin = max(length, start)
        self.pool.write(self._flat_rows(begin, end), [part[:, begin - length :] for part in encoded])
        self._length = end
        if through:
            shown = self._gather(first, end)
        else:
            shown = [torch.cat((past, new.to(past.dtype)), 1) for past, new in zip(old, encoded, strict=True)]
        self._settle()
        return self._decoded(shown, first)

    def _show(self, count: int) -> Kept:
        return self._decoded(self._gather(self._length - count, self._length), self._length - count)

    def _check_room(self, start: int, end: int) -> None:
        """Raise CacheFullError unless positions up to ``end`` fit once the pages before ``start`` are given back."""
        first_page = start // self.pool.page_tokens
        need = ceil_div(end, self.pool.page_tokens) - max(self._table_end, first_page)
        need += self._tail_is_shared(first_page)
        dropped = self._table[: max(0, first_page - self._base)]
        have = (
            len(self._spare) + self.pool.free_pages + sum(self.pool.references[page] == 1 for page in dropped)
        )
        if need > have:
            raise self._full(need, have)

    def _drop_before(self, start: int) -> None:
        first_page = start // self.pool.page_tokens
        count = max(0, first_page - self._base)
        if not count:
            return
        for page in self._table[:count]:
            # An own page is kept at hand: the next one needed may be this one. What is left over, _settle gives back.
            if self.pool.references[page] == 1:
                self._spare.append(page)
            else:
                self.pool.drop(page)
        del self._table[:count]
        self._base, self._index = first_page, None

    def _cover(self, end: int) -> None:
        """Make the table reach position ``end``, its last page owned."""
        if self._tail_is_shared(0):
            self._own_tail()
        for _ in range(ceil_div(end, self.pool.page_tokens) - self._table_end):
            self._table.append(self._take())
            self._index = None

    def _own_tail(self) -> None:
        own = self._take()
        self.pool.copy_page(self._table[-1], own)
        self.pool.drop(self._table[-1])
        self._table[-1], self._index = own, None

    def _take(self) -> int:
        return self._spare.pop() if self._spare else self.pool.take()

    def _settle(self) -> None:
        """Give spare pages back that the promise does not need."""
        if self._spare:
            needed = self._spare_needed(self._promised)
            while len(self._spare) > needed:
                self.pool.drop(self._spare.pop())

    def _flat_rows(self, begin: int, end: int) -> list[int]:
        size, base = self.pool.page_tokens, self._base
        return [self._table[p // size - base] * size + p % size for p in range(begin, end)]

    def _gather(self, begin: int, end: int) -> list[Tensor]:
        if self._index is None:
            self._index = torch.tensor(self._table, dtype=torch.int64, device=self.device)
        offset = self._base * self.pool.page_tokens
        return self.pool.gather(self._index, begin - offset, end - offset)
