"""The protocol: what every cache of a conversation answers, whatever it keeps and wherever that lies.

    length            tokens appended so far (absolute: dropped ones count)
    nbytes            bytes of what is kept now, scales included: the spec's ``Mixer.kv_bytes(length, format)``
    allocated_bytes   bytes of the tensors that really lie in memory for it
    reserve(n)        room for n tokens in all, exactly
    extend(k, v)      append T tokens; return everything these T queries may look at
    fork()            an independent continuation
    release()         give the memory back

Every error leaves the cache as it was. A cache belongs to one conversation and one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from headcount.errors import OperandError, UsageError
from headcount.transformer.kv_cache.entry import Entry
from headcount.transformer.kv_cache.horizon import Horizon
from headcount.transformer.ops.operands import bind, plain, shape_text


class Kept(NamedTuple):
    """Keys (K, S, H), values (K, S, W), and the absolute position of the first entry.

    The tensors may be views of the cache: they hold until its next ``extend``, ``reserve`` or ``release``.
    """

    keys: Tensor
    values: Tensor
    first: int


class Cache(ABC):
    """Base of all caches; the module says what the members mean."""

    kind = "cache"

    def __init__(self) -> None:
        self._length = 0
        self._released = False

    @property
    def length(self) -> int:
        """Tokens appended so far; changed by ``extend`` and ``write`` alone."""
        return self._length

    @property
    def released(self) -> bool:
        """Whether ``release`` was called."""
        return self._released

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of what is kept now; 0 after ``release``."""

    @property
    @abstractmethod
    def allocated_bytes(self) -> int:
        """Bytes of the tensors that lie in memory; 0 after ``release``."""

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all, exactly.

        Nothing that is kept is dropped: fewer tokens than are kept asks for what is kept. A cache of constant size has
        nothing to do.

        Raises
        ------
        UsageError: after ``release``, or tokens below 0.
        CacheFullError: over pages, when the pool has too few; nothing was reserved.
        """
        self._alive("reserve")
        whole_tokens(tokens)

    def extend(self, keys_KTH: Float[Tensor, "K T H"], values_KTW: Float[Tensor, "K T W"]) -> Kept:
        """Append T tokens and return all entries that their queries may look at, the new ones last.

        Precondition: K, H, W, dtype and device are the cache's own; no gradient is being recorded.
        Mutation: ``length`` grows by T; entries that no later query may see are dropped after the answer was taken.

        Raises
        ------
        OperandError: shapes, dtype or device differ from the cache's.
        UsageError: after ``release``; operands that require a gradient; a cache that is written, not extended.
        CacheFullError: over pages, when the pool has too few; nothing was appended.
        """
        self._alive("extend")
        raise UsageError(f"a {self.kind} cache is not extended token by token: use its write() and read()")

    @abstractmethod
    def fork(self) -> Cache:
        """Return an independent continuation: appending to one never shows in the other.

        Raises
        ------
        UsageError: after ``release``.
        """

    @abstractmethod
    def release(self) -> None:
        """Give memory or pages back; every later call but ``length`` and the byte counts raises UsageError."""

    def _alive(self, what: str) -> None:
        if self._released:
            raise UsageError(f"{self.kind} cache: {what} after release")


class EntryCache(Cache):
    """Base of the caches that keep one entry per token: checks once, encodes once, leaves the storing to the place."""

    kind = "entry"

    def __init__(self, entry: Entry, horizon: Horizon, *, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.entry, self.horizon = entry, horizon
        self.dtype, self.device = dtype, device

    @property
    def nbytes(self) -> int:
        """Entries kept x bytes of an entry."""
        return 0 if self._released else self.horizon.kept(self._length) * self.entry.nbytes

    def extend(self, keys_KTH: Float[Tensor, "K T H"], values_KTW: Float[Tensor, "K T W"]) -> Kept:
        """See ``Cache.extend``. What is returned was read back from storage: how a prompt is cut never shows."""
        self._alive("extend")
        tokens = check_rows(self, keys_KTH, values_KTW)
        if tokens == 0:
            return self._show(self.horizon.visible(self._length))
        return self._append(self.entry.encode(keys_KTH, values_KTW), tokens)

    def read(self) -> Kept:
        """Return the entries kept now, without appending; UsageError after ``release``."""
        self._alive("read")
        return self._show(self.horizon.kept(self._length))

    @abstractmethod
    def _append(self, encoded: Sequence[Tensor], tokens: int) -> Kept: ...

    @abstractmethod
    def _show(self, count: int) -> Kept: ...

    def _decoded(self, parts: Sequence[Tensor], first: int) -> Kept:
        keys, values = self.entry.decode(parts, self.dtype)
        return Kept(keys, values, first)


def whole_tokens(tokens: int) -> None:
    """Raise UsageError unless ``tokens`` is a whole number of 0 or more."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise UsageError(f"reserve: tokens must be a whole number of 0 or more; given {tokens!r}")


def check_rows(cache: EntryCache, keys: Tensor, values: Tensor) -> int:
    """Return T; raise when K, H, W, dtype or device are not the cache's (see ``Cache.extend``)."""
    entry = cache.entry
    key_shape, value_shape = keys.shape, values.shape
    if (
        len(key_shape) != 3
        or len(value_shape) != 3
        or key_shape[0] != value_shape[0]
        or key_shape[1] != value_shape[1]
        or keys.dtype != values.dtype
        or keys.device != values.device
    ):
        bind("cache extend", keys=(keys, "K T H"), values=(values, "K T W"))
    sizes = (key_shape[0], key_shape[2], value_shape[2])
    if sizes != (entry.heads, entry.key_width, entry.value_width):
        raise OperandError(
            f"cache extend: keys {shape_text(keys, 'K T H')} and values {shape_text(values, 'K T W')}; this cache keeps "
            f"K={entry.heads}, H={entry.key_width}, W={entry.value_width}"
        )
    if keys.dtype != cache.dtype or keys.device.type != cache.device.type:
        raise OperandError(
            f"cache extend: keys and values are {plain(keys.dtype)} on {keys.device}; this cache computes in "
            f"{plain(cache.dtype)} on {cache.device}"
        )
    if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
        raise UsageError(
            "a cache keeps numbers, not gradients: extend it under torch.no_grad() or inference_mode()"
        )
    return int(key_shape[1])
