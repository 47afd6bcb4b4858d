"""What a batch of equally long sequences keeps between the steps of ``generate``, in ``kv_cache``'s contiguous storage.

The caches of ``kv_cache`` belong to one conversation. Here B sequences grow in step, so that B times K heads of one cache
hold them all: (B K, S, H) is (B, K, S, H).
"""

from __future__ import annotations

from torch import Tensor

from headcount.transformer.attention.memory import Seen
from headcount.transformer.attention.multi_head import Heads
from headcount.transformer.kv_cache.codec import FloatRows
from headcount.transformer.kv_cache.contiguous import ContiguousCache
from headcount.transformer.kv_cache.entry import HeadedEntry
from headcount.transformer.ops.operands import plain


class BatchMemory:
    """Keys and values of one attention layer for B sequences (``attention.memory.Memory``)."""

    def __init__(self, shape: Heads, like_BSD: Tensor) -> None:
        self.batch = len(like_BSD)
        heads, dtype = self.batch * shape.K, like_BSD.dtype
        keys, values = FloatRows(heads, shape.H, dtype), FloatRows(heads, shape.W, dtype)
        self.cache = ContiguousCache(
            HeadedEntry(keys, values, format=plain(dtype)), dtype=dtype, device=like_BSD.device
        )

    def extend(self, k_BKTH: Tensor, v_BKTW: Tensor) -> list[Seen]:
        """Append T tokens of every sequence; all of them may be looked at."""
        start = self.cache.length
        kept = self.cache.extend(k_BKTH.flatten(0, 1), v_BKTW.flatten(0, 1))
        keys, values = (
            kept_each.unflatten(0, (self.batch, -1))  # type: ignore[no-untyped-call]
            for kept_each in (kept.keys, kept.values)
        )
        return [Seen(slice(0, k_BKTH.shape[2]), keys, values, start, kept.first)]
