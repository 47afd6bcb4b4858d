"""ModelSpec -> the cache layers that vLLM plans, on one tensor-parallel rank.

    full, sliding     block 16; page = 16 x K_rank (H + H') p
    latent            no heads: whole on every rank; 64-token blocks beside a sparse indexer, whose keys are a layer too
    chunked           full, because the hybrid manager is off for Llama 4
    states            page padded to the attention page, whose block is lengthened until one state fits
    compressed        DeepSeek-V4: a window, one entry per r tokens, an indexer, and the rings that compressors fill
    shared            nothing
    drafter           MTP or EAGLE: one more layer like the model's last attention layer

Source: vLLM 0.33.0, v1/kv_cache_interface.py, model_executor/layers/attention, platforms/interface.py,
models/deepseek_v4 (attention.py, compressor.py).
"""

from __future__ import annotations

from headcount.cost.cache import rank_mixer
from headcount.engines.vllm.formats import DS_MLA
from headcount.engines.vllm.groups import CacheLayer
from headcount.engines.vllm.pages import align_hybrid_block, attention_layer, latent_layer, state_layer
from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import (
    ChunkedAttention,
    CompressedLatent,
    CrossAttention,
    FullAttention,
    HeadedAttention,
    LatentAttention,
    SharedCache,
    SlidingWindow,
    StateSpace,
)
from headcount.spec.kv_format import PairedKvFormat, kv_format
from headcount.units import ceil_div, round_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.vllm.options import Setup
    from headcount.spec.attention import Mixer
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

_BLOCK = 16
_CPU_BLOCK = 128
_SPARSE_BLOCK = 64
# TurboQuant leaves this many layers at either end unpacked.
_PLAIN_ENDS = 2
# DeepSeek-V4: 448 fp8 values, 64 bf16 rotary values, 8 scale bytes; pages are multiples of 576 B (512 B unpacked).
_V4_ENTRY, _V4_ALIGN, _V4_PLAIN_ALIGN = 584, 576, 512
_V4_BLOCK, _V4_WINDOW_BLOCK = 256, 64
# Rings of unfinished groups: (block, tokens kept) by rate; fp32 keys and scores, twice as wide where groups overlap.
_V4_RINGS = {4: (4, 8), 128: (8, 128)}


class CacheSetting(Record):
    """What the layers of one model share: the case's setup, sharding, the aligned block and the state's page.

    plain     the format of the first and last two layers where packed keys would cost quality (TurboQuant, no hybrids)
    indexer   width of a sparse model's indexer keys where every layer has an indexer, shared or not; else 0
    """

    setup: Setup
    tp: int
    block: int
    state_page: int = 0
    plain: KvFormat | None = None
    indexer: int = 0


def cache_setting(model: ModelSpec, setup: Setup, tp: int) -> CacheSetting:
    """Find the block size: 16 (128 on a CPU), 64 beside a sparse indexer, or lengthened until a page holds a state."""
    mixers = {mixer for layer, _ in model.layer_runs() for mixer in layer.mixers}
    indexer = max((mixer.index_head_dim for mixer in mixers if isinstance(mixer, LatentAttention)), default=0)
    default = _CPU_BLOCK if setup.on_cpu else _BLOCK
    setting = CacheSetting(
        setup=setup,
        tp=tp,
        block=_SPARSE_BLOCK if indexer else setup.block_size or default,
        indexer=0 if setup.shared_indexers else indexer,
    )
    if isinstance(setup.kv, PairedKvFormat) and not any(isinstance(mixer, StateSpace) for mixer in mixers):
        return _with_plain_ends(model, setting, mixers)
    states = [
        _state_bytes(part, setup)
        for part in (rank_mixer(m, tp) for m in mixers)
        if isinstance(part, StateSpace)
    ]
    if not states:
        return setting
    token_bytes = [
        rank_mixer(mixer, tp).entry_bytes(setup.kv)
        for mixer in mixers
        if isinstance(mixer, FullAttention | SlidingWindow | LatentAttention)
    ]
    if not token_bytes:
        return setting.replace(block=max(setup.longest, 1))
    aligned = align_hybrid_block(
        attention_bytes_per_token=max(token_bytes),
        state_bytes=max(states),
        kernel_block=default,
        block_size=setup.block_size or default,
        latent=any(isinstance(mixer, LatentAttention) for mixer in mixers),
    )
    return setting.replace(block=aligned.block_size, state_page=aligned.page_bytes)


def _with_plain_ends(model: ModelSpec, setting: CacheSetting, mixers: set[Mixer]) -> CacheSetting:
    """Lengthen the packed layers' block until their page holds 16 tokens of a plain layer, which is padded to it."""
    plain = kv_format("bf16" if model.dtype == "fp32" else model.dtype)
    parts = [rank_mixer(mixer, setting.tp) for mixer in mixers if isinstance(mixer, HeadedAttention)]
    if not parts:
        return setting
    packed = max(part.entry_bytes(setting.setup.kv) for part in parts)
    needed = _BLOCK * max(part.entry_bytes(plain) for part in parts)
    block = setting.block * ceil_div(needed, setting.block * packed)
    return setting.replace(block=block, state_page=block * packed, plain=plain)


def _state_bytes(part: StateSpace, setup: Setup) -> int:
    """One state: K - 1 columns of the convolution and one for each drafted token, and the recurrent numbers."""
    own = 4 if setup.kv.name == "fp32" else 2
    if setup.state_bytes is not None:
        part = part.replace(recurrent_dtype_bytes=setup.state_bytes)
    if setup.draft_tokens and part.conv_columns:
        wider = part.conv_elements // part.conv_columns * (part.conv_columns + setup.draft_tokens)
        part = part.replace(conv_elements=wider)
    return part.state_bytes(own)


def rank_layers(
    model: ModelSpec, start: int, end: int, setting: CacheSetting
) -> list[tuple[CacheLayer, int]]:
    """The cache layers of decoder blocks ``start`` to ``end`` as ``(layer, count)`` runs, in order."""
    runs: list[tuple[CacheLayer, int]] = []
    known: dict[tuple[Mixer, bool], list[CacheLayer]] = {}
    last = end == len(model.layers)
    count = len(model.layers)
    edges = {*range(min(_PLAIN_ENDS, count // 2)), *range(count - min(_PLAIN_ENDS, count // 2), count)}
    blocks = [
        tuple((mixer, setting.plain is not None and index in edges) for mixer in model.layers[index].mixers)
        for index in range(start, end)
    ]
    if last and setting.setup.drafter in ("mtp", "eagle", "eagle3"):
        blocks.append(((_drafter_mixer(model), False),))
    for mixers in blocks:
        for mixer in mixers:
            if mixer not in known:
                known[mixer] = (
                    _plain_layers(mixer[0], setting) if mixer[1] else _cache_layers(mixer[0], setting)
                )
            for entry in known[mixer]:
                if runs and runs[-1][0] is entry:
                    runs[-1] = (entry, runs[-1][1] + 1)
                else:
                    runs.append((entry, 1))
    return runs


def _plain_layers(mixer: Mixer, setting: CacheSetting) -> list[CacheLayer]:
    """A layer that stays in the model's format beside packed ones: 16 tokens in a page as wide as theirs."""
    assert setting.plain is not None
    own = setting.replace(
        setup=setting.setup.replace(kv=setting.plain), block=_BLOCK, state_page=0, plain=None
    )
    return [
        layer.replace(
            page_bytes=max(setting.state_page, layer.page_bytes),
            content_page_bytes=layer.page_bytes if layer.page_bytes < setting.state_page else 0,
        )
        for layer in _cache_layers(mixer, own)
    ]


def _drafter_mixer(model: ModelSpec) -> Mixer:
    """The cache of a one-layer drafter: like the model's last full (or latent) attention layer.

    In a sparse model it is like the last layer with an indexer: a drafter selects for itself.
    """
    whole = [
        mixer
        for layer in model.layers
        for mixer in layer.mixers
        if isinstance(mixer, FullAttention | LatentAttention | CompressedLatent)
    ]
    indexed = [mixer for mixer in whole if isinstance(mixer, LatentAttention) and mixer.index_head_dim]
    for mixer in reversed(indexed or whole):
        return mixer.replace(rate=0, index_head_dim=0) if isinstance(mixer, CompressedLatent) else mixer
    raise UnsupportedModelError(f"{model.name} has no full attention layer that a drafter could be like")


def _cache_layers(mixer: Mixer, setting: CacheSetting) -> list[CacheLayer]:
    """What one mixer registers: usually one layer; with an indexer two; shared caches none."""
    if isinstance(mixer, SharedCache):
        return []
    part = rank_mixer(mixer, setting.tp)
    if isinstance(part, LatentAttention):
        return _latent(part, setting)
    if isinstance(part, CompressedLatent):
        return _compressed(part, setting)
    if isinstance(part, StateSpace):
        state_bytes = _state_bytes(part, setting.setup)
        aligned = setting.state_page and setting.setup.states_cached
        block = setting.block if aligned else max(setting.setup.longest, 1)
        page = max(setting.state_page, state_bytes)
        return [
            state_layer(
                block_size=block,
                state_bytes=state_bytes,
                page_bytes=page,
                identity=part.family,
                speculative_blocks=setting.setup.draft_tokens,
            )
        ]
    if isinstance(part, HeadedAttention):
        return [_headed(part, setting)]
    raise UnsupportedModelError(f"no vLLM cache rule for layer kind {mixer.kind!r}")


def _headed(part: HeadedAttention, setting: CacheSetting) -> CacheLayer:
    kind, reach = "full", 0
    if isinstance(part, SlidingWindow) and setting.setup.windows:
        kind, reach = "sliding", part.window
    elif isinstance(part, CrossAttention) and setting.setup.windows:
        # V0 has one kind of block, over all layers; the blocks that a request's images take come on top of its tokens'.
        kind = "cross"
    elif isinstance(part, ChunkedAttention):
        # The hybrid manager is off for Llama 4, so that a chunk allocates like full attention.
        kind, reach = ("chunked", part.chunk) if setting.setup.hybrid_manager else ("full", 0)
    return attention_layer(
        kind,
        block_size=setting.block,
        heads=part.num_key_value_heads,
        widths=(part.head_dim, part.v_head_dim),
        token_bytes=part.entry_bytes(setting.setup.kv),
        dtype=setting.setup.kv.name,
        reach=reach,
    )


def _latent(part: LatentAttention, setting: CacheSetting) -> list[CacheLayer]:
    width, kv = part.latent_width, setting.setup.kv
    if setting.setup.latent != "latent":
        return [_expanded(part, setting)]
    part = part.replace(index_head_dim=part.index_head_dim or setting.indexer)
    token_bytes = setting.setup.packed_latent or kv.row_bytes(1, width)
    layers = [latent_layer(block_size=setting.block, width=width, token_bytes=token_bytes, dtype=kv.name)]
    if part.index_head_dim:
        layers.append(
            latent_layer(
                block_size=setting.block,
                width=part.index_head_dim,
                token_bytes=part.indexer_bytes,
                dtype="uint8",
                identity="indexer",
            )
        )
    return layers


def _expanded(part: LatentAttention, setting: CacheSetting) -> CacheLayer:
    """Before 0.7.1: all heads' keys and values, both padded to 256 (later: to the query's width)."""
    widths = {"256": 256, "query": part.qk_nope_head_dim + part.qk_rope_head_dim}
    width = widths.get(setting.setup.latent)
    if width is None:
        raise UnsupportedModelError(f"vLLM {setting.setup.version} did not have latent attention")
    heads = part.num_attention_heads
    return attention_layer(
        "full",
        block_size=setting.block,
        heads=heads,
        widths=(width, width),
        token_bytes=2 * setting.setup.kv.row_bytes(heads, width),
        dtype=setting.setup.kv.name,
    )


def _compressed(part: CompressedLatent, setting: CacheSetting) -> list[CacheLayer]:
    """DeepSeek-V4: the window's layer, and for rate r > 1 the compressed layer, its rings and its indexer."""
    packed = setting.setup.kv.name in DS_MLA
    align = _V4_ALIGN if packed else _V4_PLAIN_ALIGN
    entry = _v4_entry(part, setting)
    layers = [_aligned("sliding_mla", _V4_WINDOW_BLOCK, _V4_WINDOW_BLOCK * entry, align, window=part.window)]
    if not part.rate:
        return layers
    states = _V4_BLOCK // part.rate
    layers.append(
        _aligned("mla", _V4_BLOCK, states * entry, align, per_state=part.rate, identity="compressed")
    )
    widths = [part.head_dim]
    if part.index_head_dim:
        scale = 4 * ceil_div(part.index_head_dim, 128)
        page = states * (part.index_head_dim + scale)
        layers.append(_aligned("mla", _V4_BLOCK, page, align, per_state=part.rate, identity="indexer"))
        widths.append(part.index_head_dim)
    block, window = _V4_RINGS.get(part.rate, (0, 0))
    if not block:
        raise UnsupportedModelError(f"vLLM has no ring for a compression rate of {part.rate}; known: 4, 128")
    overlap = 2 if part.rate == min(_V4_RINGS) else 1
    for width in widths:
        # A key and a score for each number, in fp32.
        page = block * width * overlap * 2 * 4
        layers.append(_aligned("sliding_mla", block, page, align, window=window, identity=f"ring {width}"))
    return layers


def _v4_entry(part: CompressedLatent, setting: CacheSetting) -> int:
    kv = setting.setup.kv
    if kv.name == "fp8":
        return _V4_ENTRY
    if kv.name == "nvfp4":
        return DS_MLA["nvfp4"]
    return kv.row_bytes(1, part.head_dim)


def _aligned(
    kind: str,
    block: int,
    content: int,
    align: int,
    *,
    window: int = 0,
    per_state: int = 1,
    identity: str = "",
) -> CacheLayer:
    page = round_up(content, align)
    return CacheLayer(
        kind=kind,
        block_size=block,
        page_bytes=page,
        content_page_bytes=0 if page == content else content,
        page_alignment=align,
        window=window,
        heads=1,
        tokens_per_state=per_state,
        identity=identity,
    )
