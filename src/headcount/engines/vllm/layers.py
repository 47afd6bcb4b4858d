"""ModelSpec -> the cache layers that vLLM plans, on one tensor-parallel rank.

    full, sliding     block 16; page = 16 x K_rank (H + H') p
    latent            no heads: whole on every rank; 64-token blocks beside a sparse indexer, whose keys are a layer too
    chunked           full, because the hybrid manager is off for Llama 4
    states            page padded to the attention page, whose block is lengthened until one state fits
    shared            nothing

Source: vLLM 0.33.0, v1/kv_cache_interface.py, model_executor/layers/attention, platforms/interface.py.
"""

from __future__ import annotations

from headcount.cost.cache import rank_mixer
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

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.vllm.groups import CacheLayer
    from headcount.spec.attention import Mixer
    from headcount.spec.kv_format import KvFormat
    from headcount.spec.model import ModelSpec

_BLOCK = 16
_SPARSE_BLOCK = 64
# fp8_ds_mla: 512 fp8 values, 4 fp32 scales, 64 bf16 rotary values (V3.2).
_FP8_DS_MLA = 656


class CacheSetting(Record):
    """What the layers of one model share: format, sharding, the aligned block and the longest request."""

    kv: KvFormat
    tp: int
    context: int
    block: int
    state_page: int = 0
    chunked_is_full: bool = True


def cache_setting(model: ModelSpec, kv: KvFormat, tp: int, context: int) -> CacheSetting:
    """Find the block size: 16, 64 beside a sparse indexer, or lengthened until an attention page holds a state."""
    mixers = {mixer for layer, _ in model.layer_runs() for mixer in layer.mixers}
    states = [rank_mixer(mixer, tp) for mixer in mixers if isinstance(mixer, StateSpace)]
    sparse = any(isinstance(mixer, LatentAttention) and mixer.index_head_dim for mixer in mixers)
    setting = CacheSetting(kv=kv, tp=tp, context=context, block=_SPARSE_BLOCK if sparse else _BLOCK)
    if not states:
        return setting
    state_bytes = max(
        mixer.state_bytes(_state_dtype_bytes(kv)) for mixer in states if isinstance(mixer, StateSpace)
    )
    token_bytes = [
        rank_mixer(mixer, tp).entry_bytes(kv)
        for mixer in mixers
        if isinstance(mixer, FullAttention | SlidingWindow | LatentAttention)
    ]
    if not token_bytes:
        return setting.replace(block=max(context, 1))
    aligned = align_hybrid_block(
        attention_bytes_per_token=max(token_bytes),
        state_bytes=state_bytes,
        kernel_block=_BLOCK,
        block_size=_BLOCK,
        latent=any(isinstance(mixer, LatentAttention) for mixer in mixers),
    )
    return setting.replace(block=aligned.block_size, state_page=aligned.page_bytes)


def _state_dtype_bytes(kv: KvFormat) -> int:
    return 4 if kv.name == "fp32" else 2


def rank_layers(
    model: ModelSpec, start: int, end: int, setting: CacheSetting
) -> list[tuple[CacheLayer, int]]:
    """The cache layers of decoder blocks ``start`` to ``end`` as ``(layer, count)`` runs, in order."""
    runs: list[tuple[CacheLayer, int]] = []
    known: dict[Mixer, list[CacheLayer]] = {}
    for layer in model.layers[start:end]:
        for mixer in layer.mixers:
            if mixer not in known:
                known[mixer] = _cache_layers(mixer, setting)
            for entry in known[mixer]:
                if runs and runs[-1][0] is entry:
                    runs[-1] = (entry, runs[-1][1] + 1)
                else:
                    runs.append((entry, 1))
    return runs


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
        state_bytes = part.state_bytes(_state_dtype_bytes(setting.kv))
        block = setting.block if setting.state_page else max(setting.context, 1)
        page = max(setting.state_page, state_bytes)
        return [state_layer(block_size=block, state_bytes=state_bytes, page_bytes=page, identity=part.family)]
    if isinstance(part, HeadedAttention):
        return [_headed(part, setting)]
    raise UnsupportedModelError(f"no vLLM cache rule for layer kind {mixer.kind!r}")


def _headed(part: HeadedAttention, setting: CacheSetting) -> CacheLayer:
    kind, reach = "full", 0
    if isinstance(part, SlidingWindow):
        kind, reach = "sliding", part.window
    elif isinstance(part, CrossAttention):
        kind = "cross"
    elif isinstance(part, ChunkedAttention) and not setting.chunked_is_full:
        kind, reach = "chunked", part.chunk
    return attention_layer(
        kind,
        block_size=setting.block,
        heads=part.num_key_value_heads,
        widths=(part.head_dim, part.v_head_dim),
        token_bytes=part.entry_bytes(setting.kv),
        dtype=setting.kv.name,
        reach=reach,
    )


def _latent(part: LatentAttention, setting: CacheSetting) -> list[CacheLayer]:
    width = part.latent_width
    token_bytes = setting.kv.row_bytes(1, width)
    if part.index_head_dim and setting.kv.name == "fp8":
        token_bytes = _FP8_DS_MLA
    layers = [
        latent_layer(block_size=setting.block, width=width, token_bytes=token_bytes, dtype=setting.kv.name)
    ]
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


def _compressed(part: CompressedLatent, setting: CacheSetting) -> list[CacheLayer]:
    raise UnsupportedModelError(
        "compressed attention (DeepSeek-V4) has a packed page layout in vLLM that is not modelled yet; "
        "--engine textbook counts its ideal cache"
    )
