"""``Call``: one pass of a network over the new tokens of several conversations, each with its own caches.

    call = Call([(alice, 5), (bob, 1)])        a prompt chunk of 5 tokens beside a decode step: six rows
    call = Call([(alice, 5)], ends=[900])      the same chunk, of a prompt that ends at 900 tokens
    network(ids_1T, call=call)                 T = 6

Room for all new tokens is made before the first layer runs, in every cache of every conversation, so that a call either
fits whole or changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.attention.memory import Seen
from headcount.transformer.kv_cache.cache import Cache
from headcount.transformer.kv_cache.conversation import Conversation, reserve_pages


class Call:
    """The conversations of one pass, with how many new tokens each brings, in the order of the row.

    ``ends``: the length each conversation has once the prompt that is being read is whole; None: after this pass. Rotary
    rules that stretch by the length ask for it, so that a prompt is read alike in chunks of any size.

    Raises
    ------
    UsageError: no conversation, one given twice, a count below 1, or an end before this pass's own.
    CacheFullError: a cache has no room for the new tokens; no conversation has changed.
    """

    def __init__(
        self, shares: Sequence[tuple[Conversation, int]], *, ends: Sequence[int] | None = None
    ) -> None:
        if not shares or any(count < 1 for _, count in shares):
            raise UsageError("a call needs one conversation or more, each with one new token or more")
        if len({id(conversation) for conversation, _ in shares}) != len(shares):
            raise UsageError("a conversation stands twice in one call: its second share depends on its first")
        self.shares = list(shares)
        self.starts = [conversation.length for conversation, _ in shares]
        after = [start + count for start, (_, count) in zip(self.starts, shares, strict=True)]
        self.ends = after if ends is None else list(ends)
        if len(self.ends) != len(after) or any(end < own for end, own in zip(self.ends, after, strict=True)):
            raise UsageError("the ends of a call are those of its conversations, none before the pass itself")
        # What was promised before stays promised: room for this pass is part of it, never instead of it.
        reserve_pages(
            [
                (cache, max(start + count, cache.promised))
                for start, (conversation, count) in zip(self.starts, shares, strict=True)
                for cache in conversation.paged()
            ]
        )

    @property
    def counts(self) -> list[int]:
        """New tokens of each conversation, in the order of the row."""
        return [count for _, count in self.shares]

    def positions(self, device: torch.device) -> Tensor:
        """Absolute position of every row, ``(T)``."""
        return torch.cat(
            [
                torch.arange(start, start + count, device=device)
                for start, (_, count) in zip(self.starts, self.shares, strict=True)
            ]
        )

    def last_rows(self, device: torch.device | None = None) -> Tensor:
        """Index of each conversation's last row: where its next token is predicted."""
        return torch.tensor([count for _, count in self.shares], device=device).cumsum(0) - 1

    def memories(self, layer: int) -> list[LayerMemory]:
        """One per mixer of the layer."""
        mixers = len(self.shares[0][0].caches[layer])
        return [
            LayerMemory(
                [(conversation.caches[layer][mixer], count) for conversation, count in self.shares],
                self.starts,
            )
            for mixer in range(mixers)
        ]


class LayerMemory:
    """The caches of one mixer of one layer, one per conversation (``attention.memory.Memory``).

    ``shares`` is read directly by mixers that keep no keys and values: states, latents, the source of cross-attention.
    """

    def __init__(self, shares: Sequence[tuple[Cache, int]], starts: Sequence[int]) -> None:
        self.shares = shares
        self.starts = starts

    def rows(self) -> list[tuple[slice, Cache, int]]:
        """Each conversation's rows of the call, its cache, and the position of its first row."""
        parts, begin = [], 0
        for (cache, count), start in zip(self.shares, self.starts, strict=True):
            parts.append((slice(begin, begin + count), cache, start))
            begin += count
        return parts

    def extend(self, k_BKTH: Tensor, v_BKTW: Tensor) -> list[Seen]:
        """Append every conversation's rows to its cache; see ``attention.memory``."""
        seen = []
        for rows, cache, start in self.rows():
            kept = cache.extend(k_BKTH[0, :, rows], v_BKTW[0, :, rows])
            seen.append(Seen(rows, kept.keys[None], kept.values[None], start, kept.first))
        return seen
