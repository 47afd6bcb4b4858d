"""Cross-attention: keys and values of the source (an encoder's output, an image), written once and then only read."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import UsageError
from headcount.transformer.kv_cache.cache import Cache, Kept
from headcount.transformer.kv_cache.contiguous import ContiguousCache
from headcount.transformer.kv_cache.entry import Entry


class CrossCache(Cache):
    """At most ``source_positions`` entries. Forks share them: nobody writes again."""

    kind = "cross"

    def __init__(
        self, entry: Entry, source_positions: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.source_positions = source_positions
        self._source = ContiguousCache(entry, dtype=dtype, device=device)
        self._sharers = [1]

    @property
    def written(self) -> bool:
        """Whether the source is there."""
        return self._source.length > 0

    @property
    def nbytes(self) -> int:
        """Source tokens x bytes of an entry: the spec's constant once a full source is written, 0 before."""
        return 0 if self._released else self._source.nbytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors; shared ones count in every fork."""
        return 0 if self._released else self._source.allocated_bytes

    def write(self, keys_KSH: Float[Tensor, "K S H"], values_KSW: Float[Tensor, "K S W"]) -> Kept:
        """Store the source and return it as stored. ``length`` stays 0: the source is not the conversation's text.

        Raises
        ------
        OperandError: shapes, dtype or device differ from the cache's.
        UsageError: written before, released, empty, or longer than ``source_positions``.
        """
        self._alive("write")
        if self.written:
            raise UsageError(
                "cross cache: the source is written once; make a new conversation for another source"
            )
        tokens = keys_KSH.shape[1]
        if not 0 < tokens <= self.source_positions:
            raise UsageError(
                f"cross cache: a source of {tokens:,} tokens; 1 to {self.source_positions:,} are allowed"
            )
        self._source.reserve(tokens)
        return self._source.extend(keys_KSH, values_KSW)

    def read(self) -> Kept:
        """Return the source; UsageError before ``write`` and after ``release``."""
        self._alive("read")
        if not self.written:
            raise UsageError("cross cache: read before the source was written")
        return self._source.read()

    def fork(self) -> CrossCache:
        """See ``Cache.fork``; a source not yet written is each fork's own to write."""
        self._alive("fork")
        twin = CrossCache(
            self._source.entry, self.source_positions, dtype=self._source.dtype, device=self._source.device
        )
        if self.written:
            twin._source, twin._sharers = self._source, self._sharers
            self._sharers[0] += 1
        return twin

    def release(self) -> None:
        """See ``Cache.release``; the memory goes with the last of the forks."""
        self._alive("release")
        self._sharers[0] -= 1
        if not self._sharers[0]:
            self._source.release()
        self._released = True
