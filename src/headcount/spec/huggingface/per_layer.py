"""Decoders whose layers differ in more than their window: Gemma 3n, Gemma 4 and Llama 3.2 Vision.

    shared caches    the last S layers read the cache of an earlier layer of their kind: no keys, no values
    per-layer input  an embedding of V' x L E' beside the usual one, and D x E' in and out of each layer
    head widths      Gemma 4's full layers have their own head width and key/value head count
    cross attention  Llama 3.2 Vision reads an image in some layers: a cache that text does not grow

Sources: the model classes of transformers 5.24.0; AltUp arXiv 2301.13310, LAuReL arXiv 2411.07501.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.attention import CrossAttention, SharedCache
from headcount.spec.huggingface.experts import Mixture, mixture_weights, read_mixture
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import (
    LAYER,
    PRE_NORMS,
    SANDWICH_NORMS,
    HeadShape,
    embedding,
    gated,
    gqa,
    head_shape,
    layer_kinds,
    mixer,
    model_from,
    norms,
    qk_norm,
    repeat_layers,
)
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import (
    ATTENTION,
    CROSS_ATTENTION,
    OTHER,
    REPLICATED,
    ROUTER,
    Weight,
    matrix,
    norm,
    vector,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.attention import Mixer

_MODEL = "model."


def cache_sources(keys: Keys, kinds: list[str]) -> list[int | None]:
    """Return for each layer the layer whose cache it reads, None for its own.

    The last ``num_kv_shared_layers`` layers read the last earlier layer of their own kind.
    """
    count = len(kinds)
    shared = keys.integer("num_kv_shared_layers", default=0, minimum=0)
    if shared >= count:
        raise ModelFileError(
            f"config: num_kv_shared_layers {shared} leaves none of {count} layers to keep a cache"
        )
    last_of = {kind: i for i, kind in enumerate(kinds[: count - shared])}
    missing = sorted({kind for kind in kinds[count - shared :] if kind not in last_of})
    if missing:
        raise ModelFileError(
            f"config: {missing[0]} layers share a cache, but no earlier {missing[0]} layer keeps one"
        )
    return [None] * (count - shared) + [last_of[kind] for kind in kinds[count - shared :]]


def layer_mixer(shape: HeadShape, kind: str, window: int, source: int | None) -> Mixer:
    """Return a layer's attention: its own, or one that reads layer ``source``."""
    if source is None:
        return mixer(shape, kind, window=window)
    return SharedCache(
        num_attention_heads=shape.q,
        num_key_value_heads=shape.kv,
        head_dim=shape.d,
        v_head_dim=shape.dv,
        source_layer=source,
        window=window if kind == "sliding" else 0,
    )


def own_projections(shape: HeadShape, *, bias: bool, shared: bool, key_is_value: bool) -> tuple[Weight, ...]:
    """Return projections and query/key norms; a shared layer has no k, v; ``key_is_value`` has no v."""
    path = LAYER + "self_attn."
    absent = [path + "v_proj"] if key_is_value or shared else []
    absent += [path + "k_proj", path + "k_norm"] if shared else []
    weights = (*gqa(shape, qkv_bias=bias, o_bias=bias), *qk_norm(shape, "head"))
    return tuple(w for w in weights if w.name.removesuffix(".bias") not in absent)


def per_layer_input(hidden: int, width: int) -> tuple[Weight, ...]:
    """Return what mixes a layer's own embedding of E' = ``width`` into the stream: gate, projection, norm."""
    if not width:
        return ()
    return (
        *matrix(LAYER + "per_layer_input_gate", OTHER, (width, hidden), REPLICATED),
        *matrix(LAYER + "per_layer_projection", OTHER, (hidden, width), REPLICATED),
        *norm(LAYER + "post_per_layer_input_norm", hidden),
    )


def per_layer_embeddings(keys: Keys, layers: int, width: int) -> tuple[Weight, ...]:
    """Return the table of V' x L E', its projection of the token's embedding, and their norm."""
    if not width:
        return ()
    rows = keys.integer("vocab_size_per_layer_input")
    keys.notes.append(
        f"per-layer embeddings of {rows * layers * width:,} parameters are counted with the model; "
        "an engine may keep them outside GPU memory"
    )
    return (
        embedding(_MODEL + "embed_tokens_per_layer", rows, layers * width),
        *matrix(
            _MODEL + "per_layer_model_projection",
            OTHER,
            (layers * width, keys.integer("hidden_size")),
            REPLICATED,
        ),
        *norm(_MODEL + "per_layer_projection_norm", width),
    )


def refuse_bidirectional(keys: Keys) -> None:
    """Refuse configs whose text attends in both directions: such an encoder keeps no cache."""
    value = keys.value("use_bidirectional_attention")
    if value is True or value == "all":
        raise UnsupportedModelError(
            f"model type {keys.model_type!r} with use_bidirectional_attention {value}: "
            "an encoder keeps no cache"
        )


# Gemma 3n -----------------------------------------------------------------------------------------


def _altup(hidden: int, inputs: int, rank: int) -> tuple[Weight, ...]:
    """Return AltUp's predict and correct steps over ``inputs`` streams, and LAuReL's low-rank residual."""
    altup, laurel = LAYER + "altup.", LAYER + "laurel."
    return (
        vector(altup + "correct_output_scale", OTHER, hidden),
        *matrix(altup + "correction_coefs", OTHER, (inputs, inputs), REPLICATED),
        *matrix(altup + "prediction_coefs", OTHER, (inputs * inputs, inputs), REPLICATED),
        *matrix(altup + "modality_router", OTHER, (inputs, hidden), REPLICATED),
        *norm(altup + "router_norm", hidden),
        *matrix(laurel + "linear_left", OTHER, (rank, hidden), REPLICATED),
        *matrix(laurel + "linear_right", OTHER, (hidden, rank), REPLICATED),
        *norm(laurel + "post_laurel_norm", hidden),
    )


def _widths(keys: Keys, count: int) -> list[int]:
    """``intermediate_size``: one number, or one per layer."""
    if not isinstance(keys.value("intermediate_size"), list):
        return [keys.integer("intermediate_size", default=16384)] * count
    widths = keys.integers("intermediate_size", minimum=1) or []
    if len(widths) != count:
        raise ModelFileError(
            f"config key intermediate_size lists {len(widths)} layers; num_hidden_layers is {count}"
        )
    return widths


def _gemma3n(keys: Keys) -> ModelSpec:
    """Gemma 3n: shared caches, per-layer embeddings, AltUp and LAuReL."""
    refuse_bidirectional(keys)
    shape, count = head_shape(keys, head_dim=256), keys.layer_count()
    kinds = layer_kinds(keys, count, fallback=lambda i: "full" if (i + 1) % 5 == 0 else "sliding")
    window = keys.integer("sliding_window") if "sliding" in kinds else 0
    sources, widths = cache_sources(keys, kinds), _widths(keys, count)
    extra_width = keys.integer("hidden_size_per_layer_input")
    inputs, rank = keys.integer("altup_num_inputs", maximum=1024), keys.integer("laurel_rank")
    bias, hidden = keys.flag("attention_bias"), shape.hidden

    def make(i: int) -> LayerSpec:
        shared = sources[i] is not None
        return LayerSpec(
            mixers=(layer_mixer(shape, kinds[i], window, sources[i]),),
            feed_forward=FeedForward(width=widths[i], matrices=3),
            weights=(
                *norms(hidden, SANDWICH_NORMS),
                *own_projections(shape, bias=bias, shared=shared, key_is_value=False),
                *gated(hidden, widths[i]),
                *_altup(hidden, inputs, rank),
                *per_layer_input(hidden, extra_width),
            ),
        )

    streams: list[Weight] = []
    for name in ("altup_projections.*", "altup_unembed_projections.*") if inputs > 1 else ():
        single = matrix(_MODEL + name, OTHER, (hidden, hidden), REPLICATED)
        streams += [w.replace(copies=inputs - 1) for w in single]
    return model_from(
        keys,
        repeat_layers(list(zip(kinds, sources, widths, strict=True)), make),
        extra=(*per_layer_embeddings(keys, count, extra_width), *streams),
    )


# Gemma 4 ------------------------------------------------------------------------------------------


def _gemma4_kinds(keys: Keys, count: int) -> list[str]:
    """Every sixth layer full; the last one always is."""
    kinds = layer_kinds(keys, count, fallback=lambda i: "full" if (i + 1) % 6 == 0 else "sliding")
    return [*kinds[:-1], "full"]


def _gemma4_shapes(keys: Keys, kinds: list[str]) -> list[HeadShape]:
    """Return head geometry per layer: ``per_layer_config``, else ``global_*`` keys on full layers.

    With ``attention_k_eq_v`` full layers may have their own key/value head count.
    """
    base = head_shape(keys, head_dim=256)
    stated = keys.value("per_layer_config")
    if stated is not None:
        return _overridden_shapes(keys, base, stated, len(kinds))
    # Stated as null: full layers have the common width. Left out: the class default.
    common = keys.stated("global_head_dim") and keys.value("global_head_dim") is None
    d = base.d if common else keys.integer("global_head_dim", default=512)
    kv = base.kv
    if keys.flag("attention_k_eq_v"):
        kv = keys.key_value_heads(base.q, "num_global_key_value_heads", default=base.kv)
    wide = base.replace(d=d, dv=d, kv=kv)
    return [wide if kind == "full" else base for kind in kinds]


def _overridden_shapes(keys: Keys, base: HeadShape, stated: object, count: int) -> list[HeadShape]:
    """Apply ``per_layer_config``: layer index -> head_dim, num_key_value_heads; other keys are refused."""
    if not isinstance(stated, dict) or len(stated) > count:
        raise ModelFileError(f"config key per_layer_config must map at most {count} layer indices to objects")
    shapes = [base] * count
    for index, override in stated.items():
        digits = str(index)
        known = digits.isdecimal() and len(digits) < 6 and int(digits) < count
        if not known or not isinstance(override, dict):
            raise ModelFileError(
                f"config key per_layer_config: {digits[:20]!r} is not a layer of {count} with an object"
            )
        unknown = sorted(set(override) - {"head_dim", "num_key_value_heads"})
        if unknown:
            raise UnsupportedModelError(
                f"model type {keys.model_type!r}: per_layer_config changes {str(unknown[0])[:40]!r}, "
                "which is not supported; supported: head_dim, num_key_value_heads"
            )
        layer = keys.over({**keys.config, **override})
        d = layer.integer("head_dim", default=base.d)
        shapes[int(digits)] = base.replace(d=d, dv=d, kv=layer.key_value_heads(base.q, default=base.kv))
    return shapes


def _gemma4_experts(hidden: int, ffn: FeedForward) -> tuple[Weight, ...]:
    """Return the mixture that runs beside the dense feed-forward, with its own norms and scales."""
    mixture = Mixture(
        experts=(), path=LAYER, router="router.proj", names=("experts.gate_up_proj", "experts.down_proj")
    )
    return (
        *mixture_weights(hidden, ffn.replace(shared_width=0), mixture),
        vector(LAYER + "router.scale", ROUTER, hidden),
        vector(LAYER + "router.per_expert_scale", ROUTER, ffn.experts),
        *norms(
            hidden,
            ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"),
        ),
    )


def _gemma4_input_width(keys: Keys) -> int:
    """Width of the per-layer input. Models without one say 0, so a default that applies is noted."""
    width = keys.integer("hidden_size_per_layer_input", minimum=0)
    if width and not keys.stated("hidden_size_per_layer_input"):
        keys.notes.append(
            f"hidden_size_per_layer_input is not stated: the class default {width} adds per-layer embeddings"
        )
    return width


def _gemma4(keys: Keys, *, unified: bool = False) -> ModelSpec:
    """Gemma 4. ``unified``: the variant with neither per-layer embeddings nor a mixture."""
    refuse_bidirectional(keys)
    count, hidden = keys.layer_count(), keys.integer("hidden_size")
    kinds = _gemma4_kinds(keys, count)
    window = keys.integer("sliding_window") if "sliding" in kinds else 0
    shapes, sources = _gemma4_shapes(keys, kinds), cache_sources(keys, kinds)
    extra_width = 0 if unified else _gemma4_input_width(keys)
    dense, bias = keys.integer("intermediate_size"), keys.flag("attention_bias")
    double, key_is_value = keys.flag("use_double_wide_mlp"), keys.flag("attention_k_eq_v")
    routed: FeedForward | None = None
    if not unified and keys.flag("enable_moe_block"):
        routed = read_mixture(keys, Mixture(experts=("num_experts",), top_k=("top_k_experts",)))

    def make(i: int) -> LayerSpec:
        shared = sources[i] is not None
        width = dense * (2 if double and shared else 1)
        ffn = routed.replace(shared_width=width) if routed else FeedForward(width=width, matrices=3)
        return LayerSpec(
            mixers=(layer_mixer(shapes[i], kinds[i], window, sources[i]),),
            feed_forward=ffn,
            weights=(
                *norms(hidden, SANDWICH_NORMS),
                *own_projections(
                    shapes[i], bias=bias, shared=shared, key_is_value=key_is_value and kinds[i] == "full"
                ),
                *gated(hidden, width),
                *(_gemma4_experts(hidden, ffn) if routed else ()),
                *per_layer_input(hidden, extra_width),
            ),
        )

    return model_from(
        keys,
        repeat_layers(list(zip(kinds, shapes, sources, strict=True)), make),
        extra=per_layer_embeddings(keys, count, extra_width),
    )


# Llama 3.2 Vision ---------------------------------------------------------------------------------

# A 560-pixel tile in 14-pixel patches is 40 x 40 patches and one class token; an image has at most 4 tiles.
MLLAMA_VISION_TOKENS = 4 * (40 * 40 + 1)


def _mllama(keys: Keys) -> ModelSpec:
    """Llama 3.2 Vision: some layers attend to an image instead of to text.

    The embedding has 8 rows more than the head, so the two are never one tensor.
    """
    shape, count = head_shape(keys), keys.layer_count()
    d = keys.divided("hidden_size", shape.hidden, shape.q)
    shape = shape.replace(d=d, dv=d)
    hidden, width, vocab = shape.hidden, keys.integer("intermediate_size"), keys.integer("vocab_size")
    crossing = set(keys.integers("cross_attention_layers") or [])
    kinds = ["cross" if i in crossing else "full" for i in range(count)]
    if "cross" in kinds:
        keys.notes.append(
            f"cross-attention layers are charged {MLLAMA_VISION_TOKENS:,} vision tokens: one image of "
            "4 tiles of 1,601 tokens; a conversation without an image holds none"
        )
    cross = CrossAttention(
        num_attention_heads=shape.q,
        num_key_value_heads=shape.kv,
        head_dim=d,
        v_head_dim=d,
        source_positions=MLLAMA_VISION_TOKENS,
    )

    def make(i: int) -> LayerSpec:
        path = LAYER + "cross_attn."
        if kinds[i] == "cross":
            attention: tuple[Weight, ...] = (
                *gqa(shape, path=path, part=CROSS_ATTENTION),
                *qk_norm(shape, "head", path=path),
                vector(LAYER + "cross_attn_attn_gate", CROSS_ATTENTION, 1),
                vector(LAYER + "cross_attn_mlp_gate", CROSS_ATTENTION, 1),
            )
        else:
            attention = gqa(shape, part=ATTENTION)
        return LayerSpec(
            mixers=(cross if kinds[i] == "cross" else mixer(shape, "full"),),
            feed_forward=FeedForward(width=width, matrices=3),
            weights=(*norms(hidden, PRE_NORMS), *attention, *gated(hidden, width)),
        )

    embed = embedding(_MODEL + "embed_tokens", vocab + 8, hidden)
    return model_from(keys, repeat_layers(kinds, make), embed=embed, tied=False)


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": lambda keys: _gemma4(keys, unified=True),
    "mllama_text_model": _mllama,
}
