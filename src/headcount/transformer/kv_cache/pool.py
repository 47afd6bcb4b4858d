"""A pool of pages: fixed tensors that many caches of one geometry cut into pages of M tokens.

    parts      (P, M, lanes, width) each: fp16 keys (P, M, K, H), values (P, M, K, W); codes, scales, ggml rows alike
    free       pages that nobody holds
    references how many page tables hold each page; more than 1 after a fork

Memory is taken once, when the pool is made, so the budget cannot be passed: what does not fit is refused, and whoever holds
pages keeps them. Source of the idea: Kwon et al. 2023 (PagedAttention), 4.1 and 4.4.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from headcount.errors import CacheFullError, UsageError
from headcount.transformer.kv_cache.entry import Entry
from headcount.transformer.layers import positive


@runtime_checkable
class Holder(Protocol):
    """Whoever holds pages: ``Pool.check_integrity`` asks for them."""

    def pages_held(self) -> list[int]:
        """Every page held, each as often as it is."""
        ...


class Pool:
    """P pages of M tokens; see the module."""

    def __init__(
        self, entry: Entry, *, pages: int, page_tokens: int = 16, device: torch.device | str = "cpu"
    ) -> None:
        positive("pool", pages=pages, page_tokens=page_tokens)
        self.entry, self.pages, self.page_tokens = entry, pages, page_tokens
        self.device = torch.device(device)
        self.parts = [
            part.empty(pages * page_tokens, self.device).view(pages, page_tokens, part.lanes, part.width)
            for part in entry.parts
        ]
        # One row per token: what ``write`` and ``gather`` index.
        self._flat = [part.view(pages * page_tokens, *part.shape[2:]) for part in self.parts]
        self.references = [0] * pages
        # The last is taken first, so that pages are used in order.
        self._free = list(range(pages - 1, -1, -1))
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    @classmethod
    def within(
        cls, entry: Entry, *, budget_bytes: int, page_tokens: int = 16, device: torch.device | str = "cpu"
    ) -> Pool:
        """The largest pool whose pages lie within ``budget_bytes``; CacheFullError when not one page does."""
        positive("pool", page_tokens=page_tokens)
        pages = budget_bytes // (page_tokens * entry.nbytes)
        if pages < 1:
            raise CacheFullError(
                f"a KV budget of {budget_bytes:,} B holds no page: one of {page_tokens} tokens takes "
                f"{page_tokens * entry.nbytes:,} B"
            )
        return cls(entry, pages=pages, page_tokens=page_tokens, device=device)

    @property
    def page_bytes(self) -> int:
        """M x bytes of an entry."""
        return self.page_tokens * self.entry.nbytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the pool's tensors, in use or not."""
        return sum(part.numel() * part.element_size() for part in self.parts)

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def register(self, holder: Holder) -> None:
        """Remember a holder, weakly, for ``check_integrity``."""
        self._holders.add(holder)

    def take(self) -> int:
        """Return a page nobody held, now with one reference; CacheFullError when there is none."""
        if not self._free:
            raise CacheFullError(f"the KV budget has no room: all {self.pages:,} pages are held")
        page = self._free.pop()
        self.references[page] = 1
        return page

    def share(self, pages: Sequence[int]) -> None:
        """Add one reference to each page; UsageError when one is free."""
        if any(not self.references[page] for page in pages):
            raise UsageError("pool: a free page cannot be shared")
        for page in pages:
            self.references[page] += 1

    def drop(self, page: int) -> None:
        """Take one reference away; without any the page is free. UsageError when it is free already."""
        if not self.references[page]:
            raise UsageError(f"pool: page {page} is free already")
        self.references[page] -= 1
        if not self.references[page]:
            self._free.append(page)

    def copy_page(self, source: int, target: int) -> None:
        """Copy all M rows of ``source`` over ``target``."""
        for part in self.parts:
            part[target].copy_(part[source])

    def write(self, rows: Sequence[int], encoded: Sequence[Tensor]) -> None:
        """Store encoded rows (lanes, T, width) at ``rows``: page x M + slot, one per token."""
        if len(rows) == 1:
            for part, new in zip(self._flat, encoded, strict=True):
                part[rows[0]].copy_(new[:, 0])
            return
        index = torch.tensor(rows, device=self.device)
        for part, new in zip(self._flat, encoded, strict=True):
            part.index_copy_(0, index, new.transpose(0, 1).to(part.dtype))

    def gather(self, table: Tensor, start: int, stop: int) -> list[Tensor]:
        """Rows ``start`` to ``stop`` of the pages in ``table`` laid end to end, copied: (lanes, stop - start, width)."""
        first, last = start // self.page_tokens, -(-stop // self.page_tokens)
        begin = first * self.page_tokens
        found = []
        for part in self.parts:
            rows = part.index_select(0, table[first:last]).flatten(0, 1)
            found.append(rows[start - begin : stop - begin].transpose(0, 1))
        return found

    def check_integrity(self) -> None:
        """Compare free list, reference counts and what the living caches hold.

        Raises
        ------
        RuntimeError: a page that is free twice, held and free, counted otherwise than held, or lost. That is a fault of
        this module (or a cache that was forgotten instead of released), not of its user's input.
        """
        held = Counter(page for holder in self._holders for page in holder.pages_held())
        free = Counter(self._free)
        for page in range(self.pages):
            if self.references[page] != held[page]:
                raise RuntimeError(
                    f"page {page} counts {self.references[page]} references, {held[page]} are held"
                )
            if free[page] != (0 if held[page] else 1):
                raise RuntimeError(
                    f"page {page} is {free[page]} times in the free list, held {held[page]} times"
                )
        if len(self._free) + len(held) != self.pages:
            raise RuntimeError(f"{self.pages} pages, {len(self._free)} free and {len(held)} held")
