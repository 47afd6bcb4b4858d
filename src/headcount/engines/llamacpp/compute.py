"""The compute buffer: the largest set of temporaries alive at once in the graph of one micro-batch, predicted.

llama.cpp lets its allocator lay out a worst-case graph and prints what that takes. With t = min(n_ctx, ubatch) tokens and
u = 4 t bytes per column (F feed-forward, D model, Q query, O attention output, K and V widths, all of one layer):

    masks       cells x t x (2 with flash attention, 4 without)                    each cache, alive through all layers
    feed        u (3 F + 3 D + O)                                                  2 F where the layer has no gate
    experts     u (3 k f + 3 D + O) + (u k D where k D > 2 k f)                    k experts a token
    attention   u (3 D + 2 Q + K + V) + N x cells x t x 4                          without flash attention
    latent      u (4 D + O + Q + N r + N (r + d_rope)) [+ scores]
    dequantised (K + V) x cells x streams x 2                                      CUDA, a quantised cache: f16 copies
    logits      outputs x vocabulary x 4 + 3 D u                                   masks are free again by then
    buffer      max(masks + max(feed, experts, attention, ...), logits)

Where the numbers come from: the source of 0c1e57098, and what that library prints for 11 models of real shapes on the CPU
(tests/engines/data/llamacpp_printed.json): most to 0.1 %, the worst 12 % off. Four figures that other builds printed for GPUs
(2024 to 2026) are met to +0.5, +2.1, +4.8 and +6.9 %. The interval is 15 % on either side; above, once more the inputs, which
a device may hold as copies. The f16 copies of a quantised cache follow from the source alone (ggml-cuda/fattn.cu): the lower
end is without them. Before #23907 they come out of CUDA's pool beside the buffer: Qwen3.6-27B with 131,072 cells in q8_0 printed
495.00 MiB (2026-05-14), which has no room for their 512.
"""

from __future__ import annotations

from headcount.engines.llamacpp.caches import FULL, SLIDING, cache_bytes
from headcount.record import Record
from headcount.spec.attention import HeadedAttention, LatentAttention, StateSpace
from headcount.spec.kv_format import kv_format

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headcount.engines.llamacpp.builds import Build
    from headcount.engines.llamacpp.caches import Cache
    from headcount.engines.llamacpp.options import Options
    from headcount.spec.model import LayerSpec, ModelSpec

_SPREAD = 0.15
_PIPELINE_COPIES = 4  # GGML_SCHED_MAX_COPIES: inputs of a layer split over GPUs are held this often


class ComputeBuffer(Record):
    """Predicted bytes and their interval; ``binding`` is the candidate that is largest, ``masks`` its inputs.

    printed   the part of ``expected`` that the log prints: without the copies that CUDA's pool gives
    """

    low: int
    expected: int
    printed: int
    high: int
    masks: int
    binding: str


def compute_buffer(
    model: ModelSpec,
    n_ctx: int,
    slots: int,
    *,
    options: Options,
    rules: Build,
    gpus: int = 1,
) -> ComputeBuffer:
    """Predict the buffer of one GPU; see the module for the candidates.

    Raises what ``cache_bytes`` raises.
    """
    caches = cache_bytes(model, n_ctx, slots, options=options, rules=rules)
    attention = [cache for cache in caches if cache.name in (FULL, SLIDING)]
    total = max((cache.cells * cache.streams for cache in attention), default=n_ctx)
    tokens = min(total, options.ubatch)
    entry = rules.mask_bytes if options.flash else 4
    masks = sum(cache.cells for cache in attention) * tokens * entry
    cells = max((cache.cells for cache in attention), default=0)
    hybrid = any(isinstance(m, StateSpace) for layer, _ in model.layer_runs() for m in layer.mixers)
    feed = max(_feed_bytes(layer, model.hidden_size, tokens, hybrid) for layer, _ in model.layer_runs())
    mix = max(
        (_attention_bytes(layer, model, tokens, cells, options) for layer, _ in model.layer_runs()), default=0
    )
    outputs = slots if rules.slot_outputs else tokens
    logits = 4 * min(outputs, tokens) * model.vocab_size + 12 * tokens * model.hidden_size
    sizes = {"feed-forward": masks + feed, "attention": masks + mix, "logits": logits}
    certain = max(sizes.values())
    copies = _dequantised_bytes(attention, options)
    if rules.copies_reserved:
        sizes["dequantised cache"] = masks + copies
    binding = max(sizes, key=lambda name: sizes[name])
    inputs = masks + 4 * tokens * model.hidden_size
    printed = sizes[binding] + (inputs * (_PIPELINE_COPIES - 1) if gpus > 1 else 0)
    expected = printed + (0 if rules.copies_reserved else copies)
    return ComputeBuffer(
        low=round(certain * (1 - _SPREAD)),
        expected=expected,
        printed=printed,
        high=round(expected * (1 + _SPREAD)) + inputs,
        masks=masks,
        binding=binding,
    )


def _feed_bytes(layer: LayerSpec, width: int, tokens: int, hybrid: bool) -> int:
    """``feed`` and ``experts``; a hybrid's widest layer was seen without the attention output (Qwen3.5)."""
    out = 0 if hybrid else max((_output_width(mixer) for mixer in layer.mixers), default=0)
    base = 3 * width + out
    feed = layer.feed_forward
    if feed is None:
        return 4 * tokens * base
    dense = base + feed.matrices * (feed.shared_width if feed.experts else feed.width)
    if not feed.experts:
        return 4 * tokens * dense
    routed, wide = feed.top_k * feed.width, feed.top_k * width
    experts = base + 3 * routed + (wide if wide > 2 * routed else 0)
    return 4 * tokens * max(dense, experts)


def _output_width(mixer: object) -> int:
    if isinstance(mixer, HeadedAttention | LatentAttention):
        return mixer.num_attention_heads * mixer.v_head_dim
    return 0


def _attention_bytes(layer: LayerSpec, model: ModelSpec, tokens: int, cells: int, options: Options) -> int:
    width, most = model.hidden_size, 0
    for mixer in layer.mixers:
        if isinstance(mixer, LatentAttention):
            heads, rank = mixer.num_attention_heads, mixer.kv_lora_rank
            query = heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim)
            columns = 4 * width + _output_width(mixer) + query + heads * (rank + mixer.latent_width)
        elif isinstance(mixer, HeadedAttention):
            heads, kv = mixer.num_attention_heads, mixer.num_key_value_heads
            columns = 3 * width + 2 * heads * mixer.head_dim + kv * (mixer.head_dim + mixer.v_head_dim)
        else:
            continue
        scores = 0 if options.flash else 4 * heads * cells * tokens
        most = max(most, 4 * tokens * columns + scores)
    return most


def _dequantised_bytes(caches: list[Cache], options: Options) -> int:
    """f16 copies of one layer's quantised keys and values, in all streams."""
    half = kv_format("fp16")
    most = 0
    for cache in caches:
        size = 0
        for stored, kv in ((cache.key_bytes, options.key), (cache.value_bytes, options.value)):
            if kv.block > 1:
                size += stored // cache.layers * kv.block * half.block_bytes // kv.block_bytes
        most = max(most, size)
    return most
