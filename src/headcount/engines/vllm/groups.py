"""Which layers share one block table in vLLM, and how wide one block of the pool is.

vLLM gives every cache layer a *page* (bytes of one block of one layer on one rank) and cuts the layers into
groups. A group holds one block table; a block of the pool is as wide as the widest group:

    bytes per block = max over groups of the sum of its layers' pages

The decision, in order: all layers alike -> one group; all layers need the same number of tokens -> one
container group; pages packed side by side (block-outermost layouts) -> packed groups; else every page is
raised to the widest one and layers with equal descriptions are cut into groups of g layers each.

Source: vLLM 0.33.0, vllm/v1/core/kv_cache_planning.py and vllm/v1/kv_cache_interface.py (Apache-2.0). The
rules are restated here; tests/engines/test_vllm_pages.py compares them with that package's own answers.
"""

from __future__ import annotations

from math import lcm

from headcount.errors import LayoutError, UnsupportedModelError, UsageError
from headcount.record import Record
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Runs = Sequence[tuple["CacheLayer", int]]
    # Distinct layers in order of first appearance, each with its number of layers on every pipeline stage.
    Tally = dict["CacheLayer", tuple[int, ...]]

KINDS = ("full", "sliding", "chunked", "cross", "mla", "sliding_mla", "mamba", "ring", "encoder_only")
_WHOLE = ("full", "mla")
_WINDOWED = ("sliding", "sliding_mla")


class CacheLayer(Record):
    """What one layer keeps on one rank, as vLLM's planner sees it; alike means every field is equal.

    kind                full, mla, sliding, sliding_mla, chunked, mamba (any constant state), cross,
                        ring (one block per request), encoder_only (keeps nothing)
    block_size          tokens per block
    page_bytes          bytes of one block of this layer on this rank, padding included
    content_page_bytes  the same before padding; 0 when the page is not padded
    page_alignment      the page is always rounded up to this (latent layers of DeepSeek-V4); 0 = not
    stride_alignment    blocks start at multiples of this many bytes
    window, chunk       tokens attended; 0 = all. A full layer may carry one: it computes with a window but
                        allocates for every token
    retained_tokens     kept beyond the window for drafters of several modules
    heads, key_width, value_width, dtype, tokens_per_state, identity
                        what else makes two layers unlike although their bytes agree; ``identity`` is any text
    context_sharded     decode context parallelism divides this layer's tokens
    speculative_blocks, checkpoint_blocks
                        extra states of a mamba layer
    """

    kind: str
    block_size: int
    page_bytes: int
    content_page_bytes: int = 0
    page_alignment: int = 0
    stride_alignment: int = 1
    window: int = 0
    chunk: int = 0
    retained_tokens: int = 0
    heads: int = 0
    key_width: int = 0
    value_width: int = 0
    dtype: str = ""
    tokens_per_state: int = 1
    identity: str = ""
    context_sharded: bool = True
    speculative_blocks: int = 0
    checkpoint_blocks: int = 0

    def _check(self) -> None:
        if self.kind not in KINDS:
            raise UnsupportedModelError(
                f"cache layer kind {self.kind!r} has no vLLM page rule; known: {', '.join(KINDS)}"
            )
        smallest = 0 if self.kind == "encoder_only" else 1
        if self.block_size < 1 or self.page_bytes < smallest or self.content_page_bytes > self.page_bytes:
            raise UsageError(
                f"a {self.kind} cache layer needs block_size >= 1 and page_bytes >= its content; given block "
                f"{self.block_size}, page_bytes {self.page_bytes}, content {self.content_page_bytes}"
            )
        if (self.kind in _WINDOWED and self.window < 1) or (self.kind == "chunked" and self.chunk < 1):
            raise UsageError(f"a {self.kind} cache layer needs a window (or chunk) of at least one token")

    @property
    def content_bytes(self) -> int:
        """Bytes of one page before padding."""
        return self.content_page_bytes or self.page_bytes


class Group(Record):
    """Layers that share one block table, with their number on every pipeline stage.

    kind     the layer kind, or ``uniform`` for a container of layers with different pages
    layer    the layer whose rule says how many blocks a request needs
    parts    (page bytes, stride alignment, layers on each stage)
    """

    kind: str
    layer: CacheLayer
    parts: tuple[tuple[int, int, tuple[int, ...]], ...]


def tally_layers(stages: Sequence[Runs]) -> Tally:
    """Count the layers of every stage by description; layers that keep nothing are left out."""
    counts: dict[CacheLayer, list[int]] = {}
    seen: dict[int, list[int]] = {}
    for stage, runs in enumerate(stages):
        for layer, count in runs:
            row = seen.get(id(layer))
            if row is None:
                row = seen[id(layer)] = counts.setdefault(layer, [0] * len(stages))
            row[stage] += count
    return {layer: tuple(row) for layer, row in counts.items() if any(row) and layer.kind != "encoder_only"}


def form_groups(
    tally: Tally, *, hybrid_manager: bool, block_outermost: bool, widen_below: float, packed: str = "fitted"
) -> list[Group]:
    """Cut the layers of the whole model into groups.

    A group has as many layers as the largest bucket when that is smaller than ``widen_below`` times the
    smallest bucket, else as many as the smallest. ``packed``: ``EngineRules.packed_layout``. Raises LayoutError where
    vLLM refuses the mix.
    """
    if not hybrid_manager:
        tally = _without_hybrid_manager(tally)
    if not tally:
        return []
    layers = list(tally)
    if _one_description(layers):
        return [_plain_group(layers[0], _add(tally.values()))]
    if _one_type(layers):
        return [_container(tally)]
    if block_outermost and len({layer.page_bytes for layer in layers}) > 1:
        return _packed_groups(tally) if packed == "fitted" else _tuple_groups(tally, padded=packed == "slots")
    unified = _unify_pages(tally)
    if unified is not None:
        return _equal_groups(unified, widen_below)
    promoted = _full_allocation(tally)
    if promoted is None:
        raise LayoutError(
            f"vLLM refuses this mix of cache layers ({_names(layers)}): the page of a latent (MLA) layer "
            "neither divides the widest page nor may be padded to it"
        )
    return [_container(promoted)]


def _names(layers: Iterable[CacheLayer]) -> str:
    return ", ".join(f"{layer.kind} page {layer.page_bytes:,} B block {layer.block_size}" for layer in layers)


def _add(rows: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def _retally(pairs: Iterable[tuple[CacheLayer, tuple[int, ...]]]) -> Tally:
    """Rebuild a tally after a change that may have made two descriptions equal."""
    out: Tally = {}
    for layer, row in pairs:
        out[layer] = _add((out[layer], row)) if layer in out else row
    return out


def _plain_group(layer: CacheLayer, row: tuple[int, ...]) -> Group:
    return Group(kind=layer.kind, layer=layer, parts=((layer.page_bytes, layer.stride_alignment, row),))


def _container(tally: Tally) -> Group:
    parts = tuple((layer.page_bytes, layer.stride_alignment, row) for layer, row in tally.items())
    return Group(kind="uniform", layer=next(iter(tally)), parts=parts)


def _mergeable(layers: Sequence[CacheLayer]) -> bool:
    """Whether the descriptions can stand for each other in one block table.

    Full layers may differ in window or chunk; two different windows (or chunks) among them are an error in
    vLLM, raised here as LayoutError. Latent windowed layers are compared by format and window only.
    """
    first = layers[0]
    if any(layer.kind != first.kind for layer in layers):
        return False
    if first.kind == "full":
        windows = {layer.window for layer in layers if layer.window}
        chunks = {layer.chunk for layer in layers if layer.chunk}
        if len(windows) > 1 or len(chunks) > 1:
            reach = ", ".join(map(str, sorted(windows if len(windows) > 1 else chunks)))
            raise LayoutError(
                f"vLLM refuses one full-attention block table over different windows ({reach} tokens); "
                "keep the hybrid KV cache manager on"
            )
        if windows and chunks:
            return False
    return all(_merge_key(layer) == _merge_key(first) for layer in layers[1:])


def _merge_key(layer: CacheLayer) -> object:
    if layer.kind == "sliding_mla":
        return (
            layer.dtype,
            layer.tokens_per_state,
            layer.window,
            layer.retained_tokens,
            layer.stride_alignment,
            layer.context_sharded,
            layer.identity,
        )
    return layer.replace(window=0, chunk=0) if layer.kind in _WHOLE else layer


def _one_description(layers: Sequence[CacheLayer]) -> bool:
    return len(layers) == 1 or _mergeable(layers)


def _one_type(layers: Sequence[CacheLayer]) -> bool:
    """Whether all layers need the same number of blocks, so that one block table serves them."""
    first = layers[0]
    rest = layers[1:]
    if any(
        layer.block_size != first.block_size or layer.context_sharded != first.context_sharded
        for layer in rest
    ):
        return False
    if first.kind in _WHOLE:
        return all(layer.kind in _WHOLE for layer in rest)
    if first.kind == "sliding":
        return all(layer.kind in _WINDOWED and layer.window == first.window for layer in rest)
    if any(layer.kind != first.kind for layer in rest):
        return False
    if first.kind == "mamba":
        states = {(layer.page_bytes, layer.speculative_blocks, layer.checkpoint_blocks) for layer in layers}
        return len(states) == 1
    return all(layer.window == first.window and layer.chunk == first.chunk for layer in rest)


def _without_hybrid_manager(tally: Tally) -> Tally:
    """Apply ``--disable-hybrid-kv-cache-manager``: local layers allocate like full ones, or vLLM refuses.

    Attention layers that context parallelism does not shard are promoted apart from all other layers.
    """
    apart = {
        layer: row for layer, row in tally.items() if layer.kind != "mamba" and not layer.context_sharded
    }
    together = {layer: row for layer, row in tally.items() if layer not in apart}
    changed = {old: new for part in (together, apart) if part for old, new in _promote(list(part)).items()}
    return _retally((changed[layer], row) for layer, row in tally.items())


def _promote(layers: Sequence[CacheLayer]) -> dict[CacheLayer, CacheLayer]:
    """Map sliding and chunked layers beside full ones to full allocation with the full layers' block size.

    Raises LayoutError when the result is still not one type.
    """
    if _one_description(layers) or _one_type(layers):
        return {layer: layer for layer in layers}
    full_blocks = {layer.block_size for layer in layers if layer.kind in _WHOLE}
    local = any(layer.kind in _WINDOWED or layer.kind == "chunked" for layer in layers)
    block = next(iter(full_blocks)) if len(full_blocks) == 1 else 0
    promoted = {
        layer: _promoted_layer(layer, block or layer.block_size) if full_blocks and local else layer
        for layer in layers
    }
    distinct = list(dict.fromkeys(promoted.values()))
    if not (_one_description(distinct) or _one_type(distinct)):
        raise LayoutError(
            "vLLM refuses these cache layers without the hybrid KV cache manager: "
            f"{_names(layers)} do not become one type"
        )
    return promoted


def _promoted_layer(layer: CacheLayer, block_size: int) -> CacheLayer:
    if layer.kind == "sliding_mla":
        # 0.33.0 fails here: the windowed latent description has a field that the full one lacks.
        raise LayoutError("vLLM refuses windowed latent layers without the hybrid KV cache manager")
    if layer.kind not in ("sliding", "chunked"):
        return layer
    content = layer.content_bytes * block_size // layer.block_size
    page = max(layer.page_bytes, content) if layer.content_page_bytes else content
    return layer.replace(
        kind="full",
        block_size=block_size,
        page_bytes=page,
        content_page_bytes=0 if page == content else content,
        retained_tokens=0,
    )


def _full_allocation(tally: Tally) -> Tally | None:
    """Let sliding layers beside latent ones allocate like full ones; None where vLLM has no such fallback."""
    kinds = {layer.kind for layer in tally}
    if kinds & {"sliding_mla", "chunked"} or not {"mla", "sliding"} <= kinds:
        return None
    try:
        promoted = _promote(list(tally))
    except LayoutError:
        return None
    out = _retally((promoted[layer], row) for layer, row in tally.items())
    return out if _one_type(list(out)) else None


def _unify_pages(tally: Tally) -> Tally | None:
    """Raise every page to the widest one M; None when a latent layer cannot be raised.

    A mamba page is padded; a page that divides M gets M/page times the tokens per block; another attention
    page is padded; a latent page that does not divide M cannot be raised.
    """
    widest = max(layer.page_bytes for layer in tally)
    raised: list[tuple[CacheLayer, tuple[int, ...]]] = []
    for layer, row in tally.items():
        ratio, rest = divmod(widest, layer.page_bytes)
        if ratio == 1 and not rest:
            raised.append((layer, row))
        elif layer.kind == "mamba":
            raised.append((_padded(layer, widest), row))
        elif not rest:
            raised.append((_lengthened(layer, ratio, widest), row))
        elif layer.kind == "mla":
            return None
        else:
            if layer.page_alignment and layer.content_bytes % layer.page_alignment:
                raise _misaligned(layer, widest)
            raised.append((_padded(layer, widest), row))
    return _retally(raised)


def _padded(layer: CacheLayer, page: int) -> CacheLayer:
    return layer.replace(page_bytes=page, content_page_bytes=layer.content_bytes)


def _lengthened(layer: CacheLayer, ratio: int, page: int) -> CacheLayer:
    content = layer.content_bytes * ratio
    if layer.page_alignment and content % layer.page_alignment:
        reached = round_up(content, layer.page_alignment)
    else:
        # A padding that is not an alignment does not grow with the block.
        reached = layer.page_bytes if layer.content_page_bytes else content
    if reached != page:
        raise _misaligned(layer, page)
    return layer.replace(
        block_size=layer.block_size * ratio,
        page_bytes=page,
        content_page_bytes=0 if content == page else content,
    )


def _misaligned(layer: CacheLayer, page: int) -> LayoutError:
    return LayoutError(
        f"vLLM refuses to raise the padded page of a {layer.kind} layer ({layer.page_bytes:,} B, content "
        f"{layer.content_bytes:,} B) to the widest page of {page:,} B"
    )


def _buckets(tally: Tally) -> list[list[CacheLayer]]:
    buckets: list[list[CacheLayer]] = []
    for layer in tally:
        for bucket in buckets:
            try:
                fits = _mergeable([*bucket, layer])
            except LayoutError:
                fits = False
            if fits:
                bucket.append(layer)
                break
        else:
            buckets.append([layer])
    return buckets


def _equal_groups(tally: Tally, widen_below: float) -> list[Group]:
    """Cut every bucket of n layers into cdiv(n, g) groups; layer i goes to group i mod groups."""
    buckets = _buckets(tally)
    sizes = [sum(sum(tally[layer]) for layer in bucket) for bucket in buckets]
    smallest, largest = min(sizes), max(sizes)
    group_size = largest if largest < widen_below * smallest else smallest
    groups: list[Group] = []
    for bucket, size in zip(buckets, sizes, strict=True):
        rows = _deal([tally[layer] for layer in bucket], ceil_div(size, group_size))
        groups.extend(_plain_group(bucket[0], row) for row in rows)
    return groups


def _deal(rows: Sequence[tuple[int, ...]], hands: int) -> list[tuple[int, ...]]:
    """Deal layers round-robin into ``hands`` groups; return each group's layers per stage.

    ``rows`` are dealt one after the other, each stage by stage, as vLLM strides the list of layer names.
    """
    dealt = [[0] * len(rows[0]) for _ in range(hands)]
    start = 0
    for row in rows:
        for stage, count in enumerate(row):
            end = start + count
            for hand in range(hands):
                above = hands - 1 - hand
                dealt[hand][stage] += (end + above) // hands - (start + above) // hands
            start = end
    return [tuple(hand) for hand in dealt]


class _Bucket(Record):
    """Layers of one type in the packed layout, counted by page size."""

    layers: tuple[CacheLayer, ...]
    tally: dict[CacheLayer, tuple[int, ...]]
    by_page: dict[int, tuple[int, ...]]
    strides: dict[int, int]

    @property
    def depths(self) -> list[int]:
        return [sum(row) for row in self.by_page.values()]

    @property
    def balanced(self) -> bool:
        return len(set(self.depths)) == 1

    def widest_bytes(self, groups: int) -> int:
        """Bytes of the widest of ``groups`` groups."""
        return sum(ceil_div(sum(row), groups) * page for page, row in self.by_page.items())


def _packed_buckets(tally: Tally) -> list[_Bucket]:
    types: list[list[CacheLayer]] = []
    for layer in tally:
        for members in types:
            if _one_type([*members, layer]):
                members.append(layer)
                break
        else:
            types.append([layer])
    out: list[_Bucket] = []
    for members in types:
        by_page: dict[int, tuple[int, ...]] = {}
        strides: dict[int, int] = {}
        for layer in members:
            page, row = layer.page_bytes, tally[layer]
            by_page[page] = _add((by_page[page], row)) if page in by_page else row
            strides[page] = lcm(strides.get(page, 1), layer.stride_alignment)
        own = {layer: tally[layer] for layer in members}
        out.append(_Bucket(layers=tuple(members), tally=own, by_page=by_page, strides=strides))
    return out


def _repeats_per_group(buckets: Sequence[_Bucket]) -> int:
    """Pick the pattern repeats per group that pad least, ties the larger; 0 when nothing needs packing."""
    depths = [bucket.depths[0] for bucket in buckets if bucket.balanced]
    floor = max((b.depths[0] for b in buckets if b.balanced and len(b.by_page) > 1), default=0)
    if not floor:
        return 0

    def padding(repeats: int) -> int:
        return sum(-depth % repeats for depth in depths)

    return min(range(floor, max(depths) + 1), key=lambda repeats: (padding(repeats), -repeats))


def _packed_groups(tally: Tally) -> list[Group]:
    """Groups for a block-outermost layout, where pages of different sizes lie side by side in one block.

    Buckets with as many layers of each page size are a repeating pattern and are cut by repeats; state
    buckets (mamba, ring, and sliding ones when nothing repeats) are cut until they fit the block of the
    others.
    """
    buckets = _packed_buckets(tally)
    repeats = _repeats_per_group(buckets)

    def is_state(bucket: _Bucket) -> bool:
        kind = bucket.layers[0].kind
        return kind in ("mamba", "ring") or (not repeats and kind in _WINDOWED)

    def cuts(bucket: _Bucket) -> int:
        return ceil_div(bucket.depths[0], repeats) if bucket.balanced and repeats else 1

    anchor = max(b.widest_bytes(sum(b.depths) if is_state(b) else cuts(b)) for b in buckets)
    groups: list[Group] = []
    for bucket in buckets:
        count = cuts(bucket)
        if is_state(bucket):
            states = max(anchor // bucket.layers[0].page_bytes, 1)
            count = max(count, ceil_div(sum(bucket.depths), states))
        if count == 1:
            groups.append(_container(bucket.tally))
            continue
        if not bucket.balanced or count > bucket.depths[0]:
            raise LayoutError(
                f"vLLM cannot cut these packed cache layers into {count} groups: {_names(bucket.layers)}"
            )
        dealt = {page: _deal([row], count) for page, row in bucket.by_page.items()}
        for index in range(count):
            parts = tuple((page, bucket.strides[page], rows[index]) for page, rows in dealt.items())
            groups.append(Group(kind="uniform", layer=bucket.layers[0], parts=parts))
    return groups


def _tuple_groups(tally: Tally, *, padded: bool) -> list[Group]:
    """Before 0.29: the compressed layers are one group, windows by (block, window) are cut to its number of layers.

    Cut into cdiv(n, t) groups, where t >= layers of the compressed group's most frequent page pads all groups least, ties
    the larger. ``padded``: a window's page grows to the next compressed page. Source: vLLM 0.23.0 and 0.28.0,
    v1/core/kv_cache_utils.py _get_kv_cache_groups_uniform_groups.
    """
    whole = {layer: row for layer, row in tally.items() if layer.kind == "mla"}
    windows: dict[tuple[int, int], Tally] = {}
    for layer, row in tally.items():
        if layer not in whole:
            windows.setdefault((layer.block_size, layer.window), {})[layer] = row
    pages = sorted({layer.page_bytes for layer in whole})
    reach = [_most_frequent(part) for part in (whole, *windows.values())]

    def padding(count: int) -> int:
        return sum(-size % count for size in reach)

    tuples = min(range(reach[0], max(reach) + 1), key=lambda count: (padding(count), -count))
    groups = [_container(whole)]
    for part in windows.values():
        by_page: dict[int, tuple[int, ...]] = {}
        for layer, row in part.items():
            page = layer.page_bytes
            if padded:
                page = min((wider for wider in pages if wider >= page), default=page)
            by_page[page] = _add((by_page[page], row)) if page in by_page else row
        counts = {sum(row) for row in by_page.values()}
        if len(counts) > 1:
            raise LayoutError(f"vLLM cannot pack these window layers: {_names(part)}")
        cuts = ceil_div(counts.pop(), tuples)
        dealt = {page: _deal([row], cuts) for page, row in by_page.items()}
        first = next(iter(part))
        for index in range(cuts):
            parts = tuple((page, first.stride_alignment, rows[index]) for page, rows in dealt.items())
            groups.append(Group(kind="uniform", layer=first, parts=parts))
    return groups


def _most_frequent(tally: Tally) -> int:
    """Layers of the page size that most layers have."""
    counts: dict[int, int] = {}
    for layer, row in tally.items():
        counts[layer.page_bytes] = counts.get(layer.page_bytes, 0) + sum(row)
    return max(counts.values())


def slot_bytes(groups: Sequence[Group], stage: int) -> int:
    """Bytes of a block with a slot for every page: each page size as often as the group that has most of it."""
    slots: dict[int, int] = {}
    for group in groups:
        own: dict[int, int] = {}
        for page, _, row in group.parts:
            own[page] = own.get(page, 0) + row[stage]
        for page, count in own.items():
            slots[page] = max(slots.get(page, 0), count)
    return sum(page * count for page, count in slots.items())


def tuple_bytes(groups: Sequence[Group]) -> int:
    """What the start-up check charges for a block before 0.29: every page size of the compressed group, as often as its
    most frequent one (or a window's) occurs."""
    most = 0
    for group in groups:
        own: dict[int, int] = {}
        for page, _, row in group.parts:
            own[page] = own.get(page, 0) + sum(row)
        most = max(most, *own.values())
    return most * sum({page for page, _, _ in groups[0].parts})


def block_bytes(groups: Sequence[Group], stage: int, *, block_outermost: bool) -> int:
    """Bytes of one block of the pool on pipeline stage ``stage``: the widest group, with its alignments."""
    if not block_outermost:
        return max(
            sum(round_up(page, stride) * row[stage] for page, stride, row in group.parts) for group in groups
        )
    widest = max(sum(page * row[stage] for page, _, row in group.parts) for group in groups)
    strides = [stride for group in groups for _, stride, row in group.parts if row[stage]]
    return round_up(widest, lcm(*strides))
