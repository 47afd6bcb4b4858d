"""A conversation: one list of caches per layer, one cache per mixer of the layer's spec.

    mixer              cache                                       with pools
    FullAttention      ContiguousCache (GroupedCache per channel)  PagedCache
    SlidingWindow      RollingCache, window                        PagedCache, whole pages given back
    ChunkedAttention   RollingCache, chunk                         PagedCache, whole pages given back
    LatentAttention    ContiguousCache of LatentEntry              PagedCache of LatentEntry
    CrossAttention     CrossCache                                  the same
    StateSpace         StateCache                                  the same

SharedCache (a layer that reads another layer's cache) and CompressedLatent are refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

import torch

from headcount.errors import CacheFullError, UnsupportedModelError, UsageError
from headcount.spec.attention import (
    ChunkedAttention,
    CrossAttention,
    FullAttention,
    HeadedAttention,
    LatentAttention,
    Mixer,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.spec.kv_format import GroupedKvFormat, kv_format
from headcount.spec.model import ModelSpec
from headcount.transformer.kv_cache.cache import Cache
from headcount.transformer.kv_cache.contiguous import ContiguousCache
from headcount.transformer.kv_cache.cross import CrossCache
from headcount.transformer.kv_cache.entry import Geometry
from headcount.transformer.kv_cache.formats import entry_of
from headcount.transformer.kv_cache.grouped import GroupedCache
from headcount.transformer.kv_cache.horizon import Chunks, Everything, Horizon, Window
from headcount.transformer.kv_cache.paged import PagedCache
from headcount.transformer.kv_cache.pool import Pool
from headcount.transformer.kv_cache.rolling import RollingCache
from headcount.transformer.kv_cache.state import StateCache
from headcount.units import ceil_div

Pools = Mapping[Geometry, Pool]


def make_caches(
    spec: ModelSpec,
    *,
    format: str = "fp32",
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    pools: Pools | None = None,
) -> list[list[Cache]]:
    """Return empty caches for one conversation: ``caches[layer][mixer]``.

    ``format`` is how entries are stored, ``dtype`` what keys and values are given and returned in. ``pools`` (``make_pools``)
    puts the entries into pages.

    Raises
    ------
    UnknownNameError: no such KV format.
    UnsupportedModelError: a mixer or format that the running cache does not have.
    UsageError: rows that do not fill the format's blocks; a per-channel format where not every token is kept, or over pages.
    """
    where = torch.device(device)
    return [
        [make_cache(mixer, format=format, dtype=dtype, device=where, pools=pools) for mixer in layer.mixers]
        for layer in spec.layers
    ]


def make_cache(
    mixer: Mixer, *, format: str, dtype: torch.dtype, device: torch.device, pools: Pools | None = None
) -> Cache:
    """Return the empty cache of one mixer; arguments and errors as ``make_caches``."""
    fmt = kv_format(format)
    if isinstance(mixer, SharedCache):
        raise UnsupportedModelError(
            f"a layer reads the cache of layer {mixer.source_layer} (shared): no running cache for it"
        )
    if isinstance(mixer, StateSpace):
        given = dtype if dtype.itemsize == 2 else torch.bfloat16
        half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(fmt.name, given)
        return StateCache(mixer, dtype_bytes=4 if fmt.name == "fp32" else 2, half=half, device=device)
    if isinstance(fmt, GroupedKvFormat):
        return _grouped(mixer, fmt, dtype=dtype, device=device, paged=pools is not None)
    entry = entry_of(mixer, format)
    if isinstance(mixer, CrossAttention):
        return CrossCache(entry, mixer.source_positions, dtype=dtype, device=device)
    horizon = horizon_of(mixer)
    if pools is not None:
        if entry.geometry not in pools:
            raise UsageError(
                f"no pool of pages for {entry.geometry}; make the pools from this model and format"
            )
        pool = pools[entry.geometry]
        if pool.device != device:
            raise UsageError(f"the pool lies on {pool.device}, the conversation on {device}")
        return PagedCache(pool, dtype=dtype, horizon=horizon)
    if horizon.most is None:
        return ContiguousCache(entry, dtype=dtype, device=device)
    return RollingCache(entry, dtype=dtype, device=device, horizon=horizon)


def horizon_of(mixer: Mixer) -> Horizon:
    """How far back the tokens of ``mixer`` look; UnsupportedModelError for a mixer that is not a plain attention."""
    if isinstance(mixer, SlidingWindow):
        return Window(window=mixer.window)
    if isinstance(mixer, ChunkedAttention):
        return Chunks(chunk=mixer.chunk)
    if isinstance(mixer, FullAttention | LatentAttention):
        return Everything()
    raise UnsupportedModelError(f"{type(mixer).__name__} ({mixer.kind}): no running cache for it")


def _grouped(
    mixer: Mixer, fmt: GroupedKvFormat, *, dtype: torch.dtype, device: torch.device, paged: bool
) -> GroupedCache:
    if paged:
        raise UsageError(f"KV format {fmt.name} shares scales between tokens: it is not stored in pages")
    if not isinstance(mixer, FullAttention):
        raise UsageError(
            f"KV format {fmt.name} needs layers that keep every token; one of this model is {mixer.kind}"
        )
    return GroupedCache(
        fmt,
        heads=mixer.num_key_value_heads,
        key_width=mixer.head_dim,
        value_width=mixer.v_head_dim,
        dtype=dtype,
        device=device,
    )


def make_pools(
    spec: ModelSpec,
    *,
    budget_bytes: int,
    context: int,
    format: str = "fp32",
    page_tokens: int = 16,
    device: torch.device | str = "cpu",
) -> dict[Geometry, Pool]:
    """Return one pool per geometry of entries in ``spec``, all within ``budget_bytes``.

    The budget is divided as conversations of ``context`` tokens would use it, pages_g page_bytes_g each:

        P_g = floor(budget pages_g / sum_h pages_h page_bytes_h)

    States and cross-attention lie outside of the pools. Errors as ``make_caches``, and CacheFullError when a pool would
    have no page.
    """
    entries, pages = {}, dict[Geometry, int]()
    for layer in spec.layers:
        for mixer in layer.mixers:
            if isinstance(mixer, HeadedAttention | LatentAttention) and not isinstance(
                mixer, CrossAttention | SharedCache
            ):
                entry = entry_of(mixer, format)
                entries[entry.geometry] = entry
                held = ceil_div(horizon_of(mixer).kept(context), page_tokens)
                pages[entry.geometry] = pages.get(entry.geometry, 0) + held
    each = sum(pages[geometry] * page_tokens * entry.nbytes for geometry, entry in entries.items())
    pools = {}
    for geometry, entry in entries.items():
        share = budget_bytes * pages[geometry] // each * page_tokens * entry.nbytes if each else 0
        pools[geometry] = Pool.within(entry, budget_bytes=share, page_tokens=page_tokens, device=device)
    return pools


def reserve_pages(wanted: Sequence[tuple[PagedCache, int]]) -> None:
    """Make room for ``tokens`` tokens in all in every ``(cache, tokens)``, or in none.

    Raises CacheFullError when a pool has too few pages for all that ask it; nothing was reserved.
    """
    need: dict[int, int] = {}
    pools = {id(cache.pool): cache.pool for cache, _ in wanted}
    for cache, tokens in wanted:
        need[id(cache.pool)] = need.get(id(cache.pool), 0) + cache.pages_to_reserve(tokens)
    for key, pool in pools.items():
        if need[key] > pool.free_pages:
            raise CacheFullError(
                f"the KV budget has no room: all layers together ask for {need[key]:,} more pages of "
                f"{pool.page_tokens} tokens, {pool.free_pages:,} of {pool.pages:,} are free"
            )
    for cache, tokens in wanted:
        cache.reserve(tokens)


class Conversation:
    """The caches of one live sequence, and what they weigh. As a context manager it releases them at the end.

    caches    ``caches[layer][mixer]``: what the network extends
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        format: str = "fp32",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        pools: Pools | None = None,
    ) -> None:
        self.spec, self.format = spec, format
        self._before = 0
        self.caches = make_caches(spec, format=format, dtype=dtype, device=device, pools=pools)

    @property
    def length(self) -> int:
        """Tokens that every layer has taken in: the least of all caches that grow with the text."""
        return min(self._lengths(), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes kept in all layers: the spec's sum of ``Mixer.kv_bytes(length)``."""
        return sum(cache.nbytes for cache in self._all())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors, or pages, that lie in memory for this conversation."""
        return sum(cache.allocated_bytes for cache in self._all())

    def nbytes_by_kind(self) -> dict[str, int]:
        """``Mixer.kind`` -> bytes kept in the layers of that kind, in order of first appearance."""
        kinds: dict[str, int] = {}
        for layer, caches in zip(self.spec.layers, self.caches, strict=True):
            for mixer, cache in zip(layer.mixers, caches, strict=True):
                kinds[mixer.kind] = kinds.get(mixer.kind, 0) + cache.nbytes
        return kinds

    def reserve(self, tokens: int, *, exact_windows: bool = True) -> None:
        """Make room for ``tokens`` tokens in all, in every layer or in none.

        Exact windows hold not one row more than the window, and then move it at every step (``rolling``); with
        ``exact_windows`` False they grow to twice the window and move it once per window.

        Over pages, reserve before each step: then no layer of it can be refused after others have taken their tokens.

        Raises
        ------
        CacheFullError: a pool has too few pages; nothing was reserved.
        UsageError: after ``release``.
        """
        reserve_pages([(cache, tokens) for cache in self.paged()])
        for cache in self._all():
            if isinstance(cache, PagedCache) or (isinstance(cache, RollingCache) and not exact_windows):
                continue
            cache.reserve(tokens)

    def make_room(self, tokens: int) -> None:
        """Before a pass: make sure that ``tokens`` more fit into every layer, or change nothing.

        Pages are reserved; other places grow as they are extended, amortised.

        Raises
        ------
        CacheFullError: a pool has too few pages; nothing was reserved.
        UsageError: after ``release``, or when an earlier pass broke off between two layers.
        """
        if any(cache.released for cache in self._all()):
            raise UsageError("conversation: make_room after release")
        lengths = self._lengths()
        if len(lengths) > 1:
            raise UsageError(
                f"a pass broke off: layers of this conversation hold {min(lengths):,} to {max(lengths):,} tokens; release it"
            )
        # What ``reserve`` promised before stays promised.
        total = self.length + tokens
        reserve_pages([(cache, max(total, cache.promised)) for cache in self.paged()])
        self._before = self.length

    def advance(self, tokens: int) -> None:
        """After a pass: check that every layer took in the ``tokens`` that ``make_room`` was asked for.

        Nothing changes but the checking point: ``length`` is what the caches hold. UsageError when one layer holds another count.
        """
        expected = self._before + tokens
        lengths = self._lengths()
        if lengths - {expected}:
            raise UsageError(
                f"after this pass every layer should hold {expected:,} tokens; they hold {min(lengths):,} to {max(lengths):,}"
            )
        self._before = expected

    def fork(self) -> Conversation:
        """Return an independent continuation: pages and sources are shared, everything else is copied."""
        twin = Conversation.__new__(Conversation)
        twin.spec, twin.format, twin._before = self.spec, self.format, self._before
        twin.caches = [[cache.fork() for cache in layer] for layer in self.caches]
        return twin

    def release(self) -> None:
        """Give everything back; using a cache afterwards raises UsageError."""
        for cache in self._all():
            cache.release()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not any(cache.released for cache in self._all()):
            self.release()

    def _lengths(self) -> set[int]:
        return {cache.length for cache in self._all() if not isinstance(cache, CrossCache)}

    def paged(self) -> list[PagedCache]:
        """The caches that lie in pages."""
        return [cache for cache in self._all() if isinstance(cache, PagedCache)]

    def _all(self) -> list[Cache]:
        return [cache for layer in self.caches for cache in layer]
