"""Mixture-of-experts decoders with grouped-query attention: a ``Style`` and a ``Mixture`` per ``model_type``.

Which layers are mixtures and which see a window differs from type to type; each rule is a small function.
Source: the model classes of transformers 5.24.0.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.huggingface.experts import (
    PACKED,
    W123,
    Mixture,
    after_dense_layers,
    build_mixture,
    every_layer,
    feed_forward_rule,
    mixture_weights,
    note_prediction_layers,
    numbered_layers,
    shared_times,
    shared_width,
)
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import (
    LAYER,
    PRE_NORMS,
    HeadShape,
    embedding,
    gqa,
    layer_kinds,
    mixer,
    model_from,
    norms,
    repeat_layers,
    window_of,
)
from headcount.spec.huggingface.style import Style, all_sliding, every
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import ATTENTION, COLUMN, KV, REPLICATED, ROUTER, ROW, Weight, matrix, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Which layers are mixtures ------------------------------------------------------------------------


def _qwen_layers(keys: Keys, count: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer, except those in ``mlp_only_layers``."""
    dense = set(keys.integers("mlp_only_layers") or [])
    step = keys.integer("decoder_sparse_step", default=1)
    return [i not in dense and (i + 1) % step == 0 for i in range(count)]


def _ernie_layers(keys: Keys, count: int) -> list[bool]:
    """From ``moe_layer_start_index`` to ``_end_index`` (-1: the last), every ``moe_layer_interval``-th."""
    start = keys.integer("moe_layer_start_index", default=1, minimum=0)
    end = keys.optional_integer("moe_layer_end_index", minimum=-1)
    # 27 is the class default; it is an index, so it does not follow the number of layers.
    end = 27 if end is None else count - 1 if end == -1 else end
    step = keys.integer("moe_layer_interval", default=1)
    return [(i + 1) % step == 0 and start <= i <= end for i in range(count)]


def _llama4_layers(keys: Keys, count: int) -> list[bool]:
    """``moe_layers``, else every ``interleave_moe_layer_step``-th layer."""
    listed = keys.integers("moe_layers")
    if listed is not None:
        chosen = set(listed)
        return [i in chosen for i in range(count)]
    step = keys.integer("interleave_moe_layer_step", default=1)
    return [(i + 1) % step == 0 for i in range(count)]


# Which layers see a window ------------------------------------------------------------------------


def _qwen3_kinds(keys: Keys, count: int) -> list[str]:
    """The window applies to every layer, and only when ``use_sliding_window``."""
    kind = "sliding" if keys.flag("use_sliding_window") and window_of(keys) else "full"
    return layer_kinds(keys, count, fallback=lambda i: kind)


def _qwen2_kinds(keys: Keys, count: int) -> list[str]:
    """Even layers below ``max_window_layers`` slide, and only when ``use_sliding_window``."""
    start = keys.integer("max_window_layers", default=28, minimum=0)
    sliding = keys.flag("use_sliding_window") and window_of(keys) > 0
    return layer_kinds(
        keys, count, fallback=lambda i: "sliding" if sliding and i < start and i % 2 == 0 else "full"
    )


def _dots1_kinds(keys: Keys, count: int) -> list[str]:
    """Layers from ``max_window_layers`` on slide."""
    start = keys.integer("max_window_layers", default=62, minimum=0)
    sliding = window_of(keys) > 0
    return layer_kinds(keys, count, fallback=lambda i: "sliding" if sliding and i >= start else "full")


def _exaone_kinds(keys: Keys, count: int) -> list[str]:
    """One full layer in ``sliding_window_pattern``; no window, no sliding layer."""
    pattern = keys.value("sliding_window_pattern")
    if keys.sequence("layer_types") is not None or not window_of(keys) or pattern is None:
        return layer_kinds(keys, count, fallback=lambda i: "full")
    period = keys.checked("sliding_window_pattern", pattern)
    return ["full" if (i + 1) % period == 0 else "sliding" for i in range(count)]


def _cohere_kinds(keys: Keys, count: int) -> list[str]:
    """Dense prefix layers follow their own pattern; the rest restart the count."""
    dense = keys.integer("first_k_dense_replace", default=0, minimum=0)
    prefix = keys.integer("prefix_dense_sliding_window_pattern", default=1)
    period = keys.integer("sliding_window_pattern", default=4)

    def fallback(i: int) -> str:
        full = (i + 1) % prefix == 0 if i < dense else (i - dense + 1) % period == 0
        return "full" if full else "sliding"

    return layer_kinds(keys, count, fallback=fallback)


def _llama4_kinds(keys: Keys, count: int) -> list[str]:
    """Layers with rotary positions attend within chunks, those without attend to everything."""
    period = keys.integer("no_rope_layer_interval", default=4)
    chunked = keys.optional_integer("attention_chunk_size") is not None
    stated = keys.integers("no_rope_layers")
    rope = (
        numbered_layers(keys, "no_rope_layers", count) if stated else [(i + 1) % period for i in range(count)]
    )
    kinds = layer_kinds(keys, count, fallback=lambda i: "chunked" if rope[i] else "full")
    return kinds if chunked else ["full" if kind == "chunked" else kind for kind in kinds]


# The types ----------------------------------------------------------------------------------------


def _sinks(name: str) -> Callable[[Keys, HeadShape], tuple[Weight, ...]]:
    """One learned logit per query head that takes part in the softmax (gpt-oss)."""
    return lambda keys, shape: (vector(LAYER + "self_attn." + name, ATTENTION, shape.q, shard=COLUMN),)


def _correction_bias(path: str, hidden: int, ffn: FeedForward) -> tuple[Weight, ...]:
    """Ernie keeps the router's balancing bias as a parameter (in other types it is a buffer, not counted)."""
    return (vector(path + "moe_statics.e_score_correction_bias", ROUTER, 1, ffn.experts),)


def _shared_gate(path: str, hidden: int, ffn: FeedForward) -> tuple[Weight, ...]:
    """Qwen 2 weighs the shared expert by one sigmoid per token: a 1 x D matrix."""
    return matrix(path + "shared_expert_gate", ROUTER, (1, hidden), REPLICATED)


def _hunyuan_norms(keys: Keys, shape: HeadShape) -> tuple[Weight, ...]:
    path = LAYER + "self_attn."
    return (*norm(path + "query_layernorm", shape.d), *norm(path + "key_layernorm", shape.d))


_BIAS = "attention_bias"
_QKVO = Style(qkv_bias=_BIAS, o_bias=_BIAS)
_QWEN3 = _QKVO.replace(qk_norm="head")
_LOCAL = Mixture(experts=("num_local_experts",), width="intermediate_size")
_MIXTRAL = _LOCAL.replace(path=LAYER + "block_sparse_moe.", names=W123)
_ROUTED = Mixture(
    experts=("n_routed_experts",), shared=shared_times("n_shared_experts"), sparse=after_dense_layers()
)
_GRANITE = _LOCAL.replace(
    path=LAYER + "block_sparse_moe.", router="router.layer", names=("input_linear", "output_linear")
)
_QWEN_MOE = Mixture(experts=("num_experts", "num_local_experts"), sparse=_qwen_layers)

TYPES: dict[str, tuple[Style, Mixture]] = {
    "mixtral": (Style(kinds=all_sliding), _MIXTRAL),
    "phimoe": (
        _QKVO.replace(norm_bias=True, kinds=all_sliding, head_bias="lm_head_bias"),
        _MIXTRAL,
    ),
    # MiniMax-M2 normalises the whole query and key projection, as OLMoE does.
    "minimax_m2": (Style(qk_norm="full"), _MIXTRAL),
    "olmoe": (
        _QKVO.replace(qk_norm="full"),
        Mixture(experts=("num_experts",), width="intermediate_size"),
    ),
    "granitemoe": (_QKVO, _GRANITE),
    # The shared feed-forward stands beside the mixture, not inside it.
    "granitemoeshared": (
        _QKVO,
        _GRANITE.replace(
            path=LAYER,
            router="block_sparse_moe.router.layer",
            names=("block_sparse_moe.input_linear", "block_sparse_moe.output_linear"),
            shared=shared_width("shared_intermediate_size"),
            shared_path="shared_mlp.",
            shared_names=("input_linear", "output_linear"),
        ),
    ),
    "gpt_oss": (
        _QKVO.replace(layer_extra=_sinks("sinks"), kinds=every(2)),
        _LOCAL.replace(router="router", router_bias=True, names=PACKED, expert_bias=True),
    ),
    "llama4_text": (
        _QKVO.replace(kinds=_llama4_kinds),
        Mixture(
            experts=("num_local_experts",),
            width="intermediate_size",
            dense_width="intermediate_size_mlp",
            shared=lambda keys, width: width,
            sparse=_llama4_layers,
            path=LAYER + "feed_forward.",
            router="router",
            names=PACKED,
            shared_path="shared_expert.",
        ),
    ),
    "qwen2_moe": (
        Style(qkv_bias="qkv_bias", kinds=_qwen2_kinds),
        _QWEN_MOE.replace(
            shared=shared_width("shared_expert_intermediate_size"),
            shared_path="shared_expert.",
            extra=_shared_gate,
        ),
    ),
    "qwen3_moe": (_QWEN3.replace(kinds=_qwen3_kinds), _QWEN_MOE),
    "qwen3_omni_moe_text": (_QWEN3, _QWEN_MOE),
    "qwen3_vl_moe_text": (_QWEN3, _QWEN_MOE.replace(names=PACKED)),
    "cohere2_moe": (
        _QKVO.replace(norm_names=("input_layernorm",), kinds=_cohere_kinds),
        Mixture(
            experts=("num_experts",),
            width="intermediate_size",
            dense_width="prefix_dense_intermediate_size",
            shared=shared_times("num_shared_experts"),
            sparse=after_dense_layers(),
        ),
    ),
    "dots1": (_QWEN3.replace(kinds=_dots1_kinds), _ROUTED),
    "ernie4_5_moe": (
        Style(qkv_bias="use_bias", o_bias="use_bias", head_bias="use_bias"),
        Mixture(
            experts=("moe_num_experts",),
            top_k=("moe_k",),
            shared=shared_times("moe_num_shared_experts"),
            sparse=_ernie_layers,
            mlp_bias="use_bias",
            extra=_correction_bias,
        ),
    ),
    "exaone_moe": (
        Style(qk_norm="head", kinds=_exaone_kinds),
        _ROUTED.replace(
            experts=("num_experts",), shared=shared_times("num_shared_experts"), sparse=after_dense_layers(1)
        ),
    ),
    "solar_open": (Style(qkv_bias=_BIAS), _ROUTED.replace(sparse=every_layer)),
}


def _glm4_moe(keys: Keys) -> ModelSpec:
    """GLM-4.5, 4.6, 4.7 and 4.5V: query and key norms are a flag; H is the floor of D / N when not stated."""
    style = Style(
        qkv_bias=_BIAS,
        qk_norm="head" if keys.flag("use_qk_norm") else "none",
        head_dim=keys.integer("hidden_size") // keys.integer("num_attention_heads"),
    )
    return build_mixture(keys, style, _ROUTED.replace(sparse=after_dense_layers(1)))


def _hunyuan(keys: Keys) -> ModelSpec:
    """Hunyuan-A13B: a shared feed-forward as wide as an expert; sizes may be lists, one entry a layer."""
    config = {**keys.config}
    count = keys.layer_count()
    for name in ("num_experts", "moe_topk", "num_shared_expert", "moe_intermediate_size"):
        if isinstance(keys.value(name), list):
            values = numbered_layers(keys, name, count)
            if len(set(values)) != 1:
                raise UnsupportedModelError(
                    f"model type {keys.model_type!r}: {name} that differs between layers is not supported"
                )
            config[name] = values[0]
    keys = keys.over(config)
    if keys.flag("use_cla"):
        raise UnsupportedModelError(
            f"model type {keys.model_type!r} with use_cla (layers that share one cache) is not supported"
        )
    width = keys.integer("intermediate_size")
    if keys.integer("moe_intermediate_size", default=width) != width:
        raise UnsupportedModelError(
            f"model type {keys.model_type!r}: moe_intermediate_size differs from intermediate_size {width}"
        )
    if keys.integer("num_shared_expert", default=1) != 1:
        raise UnsupportedModelError(f"model type {keys.model_type!r} with num_shared_expert other than 1")
    mixture = Mixture(
        experts=("num_experts",),
        top_k=("moe_topk",),
        width="intermediate_size",
        shared=lambda keys, width: width,
        router="gate.wg",
        shared_path="shared_mlp.",
    )
    return build_mixture(keys, _QKVO.replace(layer_extra=_hunyuan_norms), mixture)


def _dbrx(keys: Keys) -> ModelSpec:
    """DBRX: own key names and tensor names, LayerNorm without shifts, one fused query-key-value matrix."""
    hidden, q = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    d = keys.divided("d_model", hidden, q)
    kv = keys.key_value_heads(q, "attn_config.kv_n_heads", default=1)
    shape = HeadShape(hidden=hidden, q=q, kv=kv, d=d, dv=d)
    block = "transformer.blocks.{i}."
    attn = block + "norm_attn_norm.attn."
    count = keys.integer("ffn_config.moe_num_experts", default=4)
    top_k = keys.integer("ffn_config.moe_top_k", default=1)
    if top_k > count:
        raise ModelFileError(f"config: {top_k} experts per token out of {count} is not possible")
    width = keys.integer("ffn_config.ffn_hidden_size", default=3584)
    ffn = FeedForward(width=width, matrices=3, experts=count, top_k=top_k)
    names = ("experts.mlp.w1", "experts.mlp.v1", "experts.mlp.w2")
    mixture = Mixture(experts=(), path=block + "ffn.", router="router.layer", names=names)
    layer = LayerSpec(
        mixers=(mixer(shape, "full"),),
        feed_forward=ffn,
        weights=(
            *norms(hidden, ("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"), path=block),
            *matrix(attn + "Wqkv", ATTENTION, (q * d, hidden), COLUMN, heads=q),
            *matrix(attn + "Wqkv", ATTENTION, (kv * d, hidden), KV, heads=kv),
            *matrix(attn + "Wqkv", ATTENTION, (kv * d, hidden), KV, heads=kv),
            *matrix(attn + "out_proj", ATTENTION, (hidden, q * d), ROW),
            *mixture_weights(hidden, ffn, mixture),
        ),
    )
    return model_from(
        keys,
        (layer,) * keys.layer_count(),
        tied=False,
        embed=embedding("transformer.wte", keys.integer("vocab_size"), hidden),
        final_norm=norm("transformer.norm_f", hidden),
    )


def _mimo_kinds(keys: Keys, count: int) -> list[str]:
    """``layer_types``, else ``hybrid_layer_pattern`` (1 slides), else layer 0 and every sixth full."""
    if keys.sequence("layer_types") is None and keys.sequence("hybrid_layer_pattern") is not None:
        flags = numbered_layers(keys, "hybrid_layer_pattern", count)
        return ["sliding" if flag else "full" for flag in flags]
    return layer_kinds(keys, count, fallback=lambda i: "full" if i == 0 or (i + 1) % 6 == 0 else "sliding")


def _mimo_shape(keys: Keys, kind: str) -> HeadShape:
    """Head geometry of one kind; sliding layers have ``swa_*`` keys, or twice the key/value heads."""
    hidden, q = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    kv = keys.key_value_heads(q)
    d, dv = keys.integer("head_dim"), keys.integer("v_head_dim")
    if kind == "sliding":
        q = keys.integer("swa_num_attention_heads", default=q)
        kv = keys.key_value_heads(q, "swa_num_key_value_heads", default=2 * kv)
        d = keys.integer("swa_head_dim", default=d)
        dv = keys.integer("swa_v_head_dim", default=dv)
    return HeadShape(hidden=hidden, q=q, kv=kv, d=d, dv=dv)


def _mimo(keys: Keys) -> ModelSpec:
    """MiMo-V2-Flash: keys wider than values (192 and 128), other head counts and sinks on sliding layers.

    The window is the config's ``sliding_window``, current token included, as serving engines read it.
    """
    count = keys.layer_count()
    kinds = _mimo_kinds(keys, count)
    window = keys.integer("sliding_window") if "sliding" in kinds else 0
    mixture = _ROUTED.replace(sparse=after_dense_layers(1))
    sparse, rule = feed_forward_rule(keys, mixture, count)
    bias = keys.flag(_BIAS)
    note_prediction_layers(keys)

    def make(i: int) -> LayerSpec:
        shape = _mimo_shape(keys, kinds[i])
        ffn, weights = rule(i)
        return LayerSpec(
            mixers=(mixer(shape, kinds[i], window=window),),
            feed_forward=ffn,
            weights=(
                *norms(shape.hidden, PRE_NORMS),
                *gqa(shape, qkv_bias=bias),
                *(_sinks("attention_sink_bias")(keys, shape) if kinds[i] == "sliding" else ()),
                *weights,
            ),
        )

    return model_from(keys, repeat_layers(list(zip(kinds, sparse, strict=True)), make))


def _typed(style: Style, mixture: Mixture) -> Callable[[Keys], ModelSpec]:
    return lambda keys: build_mixture(keys, style, mixture)


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    **{model_type: _typed(style, mixture) for model_type, (style, mixture) in TYPES.items()},
    "glm4_moe": _glm4_moe,
    "glm4v_moe_text": _glm4_moe,
    "hunyuan_v1_moe": _hunyuan,
    "dbrx": _dbrx,
    "mimo_v2_flash": _mimo,
}
