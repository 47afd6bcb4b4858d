"""Linear attention, gated delta nets, short convolutions and RG-LRU, each mixed with some attention layers.

    qwen3_next, qwen3_5_text, qwen3_5_moe_text   three gated delta nets, then one gated full attention
    olmo_hybrid                                  the same rhythm, OLMo's norms
    kimi_linear                                  Kimi delta attention, every fourth layer latent attention
    minimax                                      lightning attention and full attention, experts everywhere
    lfm2, lfm2_moe                               gated short convolutions and full attention
    recurrent_gemma                              two RG-LRU blocks, then one with a window

Sources: the model classes of transformers 5.24.0 and its table of checkpoint renamings.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.attention import LatentAttention
from headcount.spec.huggingface.experts import (
    PACKED,
    SEPARATE,
    W123,
    Mixture,
    after_dense_layers,
    expert_matrices,
    feed_forward_rule,
    shared_times,
    shared_width,
)
from headcount.spec.huggingface.keys import Keys
from headcount.spec.huggingface.parts import (
    LAYER,
    PRE_NORMS,
    HeadShape,
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
from headcount.spec.huggingface.recurrent_parts import (
    HYBRID_KINDS,
    DeltaShape,
    delta_state,
    delta_weights,
    kimi_delta_state,
    kimi_delta_weights,
    lightning_state,
    lightning_weights,
    note_prediction_layers,
    rg_lru_state,
    rg_lru_weights,
    short_conv_state,
    short_conv_weights,
    state_dtype_bytes,
)
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import (
    ATTENTION,
    COLUMN,
    FEED_FORWARD,
    REPLICATED,
    ROUTER,
    ROW,
    Weight,
    matrix,
    norm,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.attention import Mixer

    Part = tuple[Mixer, tuple[Weight, ...]]
    FeedForwardOf = Callable[[int], tuple[FeedForward, tuple[Weight, ...]]]

_ATTENTION = LAYER + "self_attn."


def _dense(keys: Keys) -> tuple[FeedForward, tuple[Weight, ...]]:
    hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
    return FeedForward(width=width, matrices=3), gated(hidden, width)


def _assemble(
    keys: Keys,
    kinds: list[str],
    sparse: list[bool],
    mix: Callable[[str], Part],
    feed_forward: FeedForwardOf,
) -> ModelSpec:
    """Blocks with the two usual norms whose mixer depends on the kind and whose feed-forward on the index."""
    hidden = keys.integer("hidden_size")

    def make(i: int) -> LayerSpec:
        kept, weights = mix(kinds[i])
        ffn, ffn_weights = feed_forward(i)
        return LayerSpec(
            mixers=(kept,), feed_forward=ffn, weights=(*norms(hidden, PRE_NORMS), *weights, *ffn_weights)
        )

    return model_from(keys, repeat_layers(list(zip(kinds, sparse, strict=True)), make))


# Qwen3-Next and Qwen3.5 ---------------------------------------------------------------------------


def _delta_shape(keys: Keys) -> DeltaShape:
    return DeltaShape(
        hidden=keys.integer("hidden_size"),
        key_heads=keys.integer("linear_num_key_heads"),
        key_dim=keys.integer("linear_key_head_dim"),
        value_heads=keys.integer("linear_num_value_heads"),
        value_dim=keys.integer("linear_value_head_dim"),
        kernel=keys.integer("linear_conv_kernel_dim"),
    )


def _qwen_delta(keys: Keys) -> Part:
    """Qwen3-Next stores two input matrices (q, k, v, gate; both rates per head), Qwen3.5 four."""
    shape = _delta_shape(keys)
    qkv, values = 2 * shape.keys_width + shape.values_width, shape.values_width
    if keys.model_type == "qwen3_next":
        rows = {"in_proj_qkvz": qkv + values, "in_proj_ba": 2 * shape.value_heads}
    else:
        rates = shape.value_heads
        rows = {"in_proj_qkv": qkv, "in_proj_z": values, "in_proj_b": rates, "in_proj_a": rates}
    path, convs = LAYER + "linear_attn.", {"conv1d": qkv}
    weights = delta_weights(shape, path, rows=rows, convs=convs, ends=("norm", "out_proj"))
    return delta_state(shape, state_dtype_bytes(keys)), weights


def _gated_attention(keys: Keys) -> Part:
    """Full attention whose q_proj also makes one output gate per query feature: twice as many rows."""
    shape = head_shape(keys)
    bias = keys.flag("attention_bias")
    doubled = gqa(shape.replace(q=2 * shape.q), qkv_bias=bias)[: 2 if bias else 1]
    rest = gqa(shape, qkv_bias=bias, o_bias=bias)[len(doubled) :]
    queries = tuple(weight.replace(heads=shape.q) for weight in doubled)
    return mixer(shape, "full"), (*queries, *rest, *qk_norm(shape, "head"))


def _every_fourth(keys: Keys) -> list[str]:
    """``layer_types``, else one full layer in ``full_attention_interval`` (4)."""
    period = keys.integer("full_attention_interval", default=4)
    return layer_kinds(
        keys,
        keys.layer_count(),
        names=HYBRID_KINDS,
        fallback=lambda i: "linear" if (i + 1) % period else "full",
    )


def _qwen_sparse(keys: Keys, count: int) -> list[bool]:
    """Every ``decoder_sparse_step``-th layer, except those in ``mlp_only_layers``; none without experts."""
    if not keys.integer("num_experts", minimum=0):
        return [False] * count
    dense = set(keys.integers("mlp_only_layers") or [])
    step = keys.integer("decoder_sparse_step", default=1)
    return [i not in dense and (i + 1) % step == 0 for i in range(count)]


def _shared_gate(path: str, hidden: int, ffn: FeedForward) -> tuple[Weight, ...]:
    """One sigmoid per token weighs the shared expert: a 1 x D matrix."""
    return matrix(path + "shared_expert_gate", ROUTER, (1, hidden), REPLICATED)


def _qwen_mixture(names: tuple[str, ...]) -> Mixture:
    return Mixture(
        experts=("num_experts",),
        shared=shared_width("shared_expert_intermediate_size"),
        sparse=_qwen_sparse,
        names=names,
        shared_path="shared_expert.",
        extra=_shared_gate,
    )


def _qwen(mixture: Mixture | None) -> Callable[[Keys], ModelSpec]:
    """Gated delta nets and gated attention, with dense feed-forwards or with ``mixture``."""

    def build(keys: Keys) -> ModelSpec:
        kinds = _every_fourth(keys)
        note_prediction_layers(keys)

        def mix(kind: str) -> Part:
            return _gated_attention(keys) if kind == "full" else _qwen_delta(keys)

        if mixture is None:
            return _assemble(keys, kinds, [False] * len(kinds), mix, lambda i: _dense(keys))
        sparse, rule = feed_forward_rule(keys, mixture, len(kinds))
        return _assemble(keys, kinds, sparse, mix, rule)

    return build


# OLMo hybrid --------------------------------------------------------------------------------------


def _olmo_delta(keys: Keys) -> Part:
    """Six separate projections and three convolutions; unstated heads follow the attention's."""
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    key_heads = keys.integer("linear_num_key_heads", default=heads)
    key_dim = keys.integer("linear_key_head_dim", default=3 * hidden // (4 * key_heads))
    shape = DeltaShape(
        hidden=hidden,
        key_heads=key_heads,
        key_dim=key_dim,
        value_heads=keys.integer("linear_num_value_heads", default=heads),
        value_dim=keys.integer("linear_value_head_dim", default=2 * key_dim),
        kernel=keys.integer("linear_conv_kernel_dim"),
    )
    convs = {"q": shape.keys_width, "k": shape.keys_width, "v": shape.values_width}
    rows = {**convs, "g": shape.values_width, "a": shape.value_heads, "b": shape.value_heads}
    weights = delta_weights(
        shape,
        LAYER + "linear_attn.",
        rows={f"{letter}_proj": width for letter, width in rows.items()},
        convs={f"{letter}_conv1d": width for letter, width in convs.items()},
        ends=("o_norm", "o_proj"),
    )
    return delta_state(shape, state_dtype_bytes(keys)), weights


def _olmo_hybrid(keys: Keys) -> ModelSpec:
    """OLMo hybrid: attention layers normalise after each half, delta layers before."""
    hidden, count = keys.integer("hidden_size"), keys.layer_count()
    # A model of fewer than four layers makes its last one full.
    kinds = layer_kinds(
        keys,
        count,
        names=HYBRID_KINDS,
        fallback=lambda i: "full" if i % 4 == 3 or (count < 4 and i == count - 1) else "linear",
    )
    ffn, ffn_weights = _dense(keys)

    def make(i: int) -> LayerSpec:
        if kinds[i] == "full":
            shape, bias = head_shape(keys), keys.flag("attention_bias")
            kept: Mixer = mixer(shape, "full")
            weights = (*gqa(shape, qkv_bias=bias, o_bias=bias), *qk_norm(shape, "full"))
            names = ("post_attention_layernorm", "post_feedforward_layernorm")
        else:
            kept, weights = _olmo_delta(keys)
            names = ("attention_layer_norm", "feedforward_layer_norm")
        return LayerSpec(
            mixers=(kept,), feed_forward=ffn, weights=(*norms(hidden, names), *weights, *ffn_weights)
        )

    return model_from(keys, repeat_layers(kinds, make))


# Kimi Linear --------------------------------------------------------------------------------------


def _kimi_kinds(keys: Keys) -> list[str]:
    """``layer_types``; else the 1-based lists of ``linear_attn_config``; else every fourth but the first."""
    count = keys.layer_count()
    full = keys.integers("linear_attn_config.full_attn_layers", minimum=1)
    delta = keys.integers("linear_attn_config.kda_layers", minimum=1)
    if keys.sequence("layer_types") is not None or (full is None and delta is None):
        return layer_kinds(
            keys, count, names=HYBRID_KINDS, fallback=lambda i: "full" if i and i % 4 == 0 else "linear"
        )
    full, delta = full or [], delta or []
    if sorted(full + delta) != list(range(1, count + 1)):
        raise ModelFileError(
            "config key linear_attn_config: full_attn_layers and kda_layers must name each layer, "
            f"1 to {count}, once"
        )
    return ["full" if i + 1 in full else "linear" for i in range(count)]


def _kimi_delta(keys: Keys) -> Part:
    heads = keys.integer("linear_attn_config.num_heads", "linear_num_heads")
    head_dim = keys.integer("linear_attn_config.head_dim", "linear_head_dim")
    kernel = keys.integer("linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim")
    weights = kimi_delta_weights(keys.integer("hidden_size"), heads, head_dim, kernel, _ATTENTION)
    return kimi_delta_state(heads, head_dim, kernel), weights


def _kimi_latent(keys: Keys) -> Part:
    """Latent attention (MLA): queries direct or through ``q_lora_rank``; one latent, one rotary key."""
    hidden, q = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    nope, rope = keys.integer("qk_nope_head_dim"), keys.integer("qk_rope_head_dim")
    rank, value, low = (
        keys.integer("kv_lora_rank"),
        keys.integer("v_head_dim"),
        keys.optional_integer("q_lora_rank"),
    )
    bias = keys.flag("attention_bias")
    path, out = _ATTENTION, q * (nope + rope)
    queries = (
        (
            *matrix(path + "q_a_proj", ATTENTION, (low, hidden), REPLICATED, bias=bias),
            *norm(path + "q_a_layernorm", low),
            *matrix(path + "q_b_proj", ATTENTION, (out, low), COLUMN),
        )
        if low
        else matrix(path + "q_proj", ATTENTION, (out, hidden), COLUMN)
    )
    weights = (
        *queries,
        *matrix(path + "kv_a_proj_with_mqa", ATTENTION, (rank + rope, hidden), REPLICATED, bias=bias),
        *norm(path + "kv_a_layernorm", rank),
        *matrix(path + "kv_b_proj", ATTENTION, (q * (nope + value), rank), COLUMN),
        *matrix(path + "o_proj", ATTENTION, (hidden, q * value), ROW, bias=bias),
    )
    kept = LatentAttention(
        num_attention_heads=q,
        kv_lora_rank=rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
        v_head_dim=value,
    )
    return kept, weights


_KIMI_MIXTURE = Mixture(
    experts=("num_experts", "num_local_experts"),
    top_k=("num_experts_per_token",),
    shared=shared_times("num_shared_experts"),
    sparse=after_dense_layers(1),
    path=LAYER + "block_sparse_moe.",
    names=W123,
)


def _kimi_linear(keys: Keys) -> ModelSpec:
    """Kimi Linear; its class never ties the head."""
    kinds = _kimi_kinds(keys)
    note_prediction_layers(keys)
    sparse, rule = feed_forward_rule(keys, _KIMI_MIXTURE, len(kinds))

    def feed_forward(i: int) -> tuple[FeedForward, tuple[Weight, ...]]:
        return rule(i) if sparse[i] else _dense(keys)

    def mix(kind: str) -> Part:
        return _kimi_latent(keys) if kind == "full" else _kimi_delta(keys)

    config = {**keys.config, "tie_word_embeddings": False}
    return _assemble(keys.over(config), kinds, sparse, mix, feed_forward)


# MiniMax-01 ---------------------------------------------------------------------------------------


def _minimax(keys: Keys) -> ModelSpec:
    """MiniMax-01: ``layer_types``, else ``attn_type_list`` (1 = full), else full and lightning in turn."""
    count = keys.layer_count()
    numbers = keys.integers("attn_type_list")
    if numbers is not None and (len(numbers) < count or set(numbers) - {0, 1}):
        raise UnsupportedModelError(
            "model type 'minimax': attn_type_list must give 0 (lightning) or 1 (full) for every layer"
        )
    kinds = layer_kinds(
        keys,
        count,
        names=HYBRID_KINDS,
        fallback=lambda i: "full" if (numbers[i] if numbers is not None else i % 2 == 0) else "linear",
    )
    shape = head_shape(keys)

    def mix(kind: str) -> Part:
        if kind == "full":
            return mixer(shape, "full"), gqa(shape)
        weights = lightning_weights(shape.hidden, shape.q, shape.d, _ATTENTION)
        return lightning_state(shape.q, shape.d), weights

    mixture = Mixture(
        experts=("num_local_experts",),
        width="intermediate_size",
        path=LAYER + "block_sparse_moe.",
        names=W123,
    )
    sparse, rule = feed_forward_rule(keys, mixture, count)
    return _assemble(keys, kinds, sparse, mix, rule)


# LFM2 ---------------------------------------------------------------------------------------------


def _lfm2_kinds(keys: Keys, count: int) -> list[str]:
    """``layer_types``, else attention in ``full_attn_idxs`` (all layers when unstated)."""
    chosen = keys.integers("full_attn_idxs")
    if keys.model_type == "lfm2_moe" and keys.sequence("layer_types") is None:
        raise ModelFileError("config of type 'lfm2_moe' lacks layer_types")
    return layer_kinds(
        keys,
        count,
        names={"full_attention": "full", "attention": "full", "conv": "conv"},
        fallback=lambda i: "full" if chosen is None or i in chosen else "conv",
    )


def _lfm2_mixer(keys: Keys, kind: str) -> Part:
    hidden = keys.integer("hidden_size")
    if kind == "conv":
        kernel = keys.integer("conv_L_cache")
        weights = short_conv_weights(hidden, kernel, LAYER + "conv.", bias=keys.flag("conv_bias"))
        return short_conv_state(hidden, kernel), weights
    shape = head_shape(keys)
    *inputs, output = gqa(shape)
    head_norms = (*norm(_ATTENTION + "q_layernorm", shape.d), *norm(_ATTENTION + "k_layernorm", shape.d))
    return mixer(shape, "full"), (*inputs, output.replace(name=_ATTENTION + "out_proj"), *head_norms)


def _lfm2_width(keys: Keys) -> int:
    """F: two thirds of the stated width, times a factor, rounded up; as stated without auto-adjust."""
    width = keys.integer("block_ff_dim", "intermediate_size")
    if not keys.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = 2 * width // 3
    factor = keys.value("block_ffn_dim_multiplier")
    if factor is None:
        return width
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= 1024:
        raise ModelFileError(
            f"config key block_ffn_dim_multiplier must be above 0, at most 1,024; given {str(factor)[:40]!r}"
        )
    multiple = keys.integer("block_multiple_of")
    return multiple * -(-int(factor * width) // multiple)


def _lfm2(keys: Keys) -> ModelSpec:
    """LFM2 and LFM2-MoE: the first ``num_dense_layers`` of the latter are dense."""
    hidden, count = keys.integer("hidden_size"), keys.layer_count()
    kinds = _lfm2_kinds(keys, count)
    moe = keys.model_type == "lfm2_moe"
    dense = keys.integer("num_dense_layers", minimum=0) if moe else count
    path = LAYER + "feed_forward."
    mixture = Mixture(
        experts=("num_experts",), path=path, names=W123, sparse=lambda _, n: [i >= dense for i in range(n)]
    )
    sparse, rule = feed_forward_rule(keys, mixture, count)

    def make(i: int) -> LayerSpec:
        kept, weights = _lfm2_mixer(keys, kinds[i])
        if sparse[i]:
            ffn, ffn_weights = rule(i)
        else:
            width = keys.integer("intermediate_size") if moe else _lfm2_width(keys)
            ffn = FeedForward(width=width, matrices=3)
            ffn_weights = expert_matrices(path, ("w1", "w3", "w2"), (hidden, width), part=FEED_FORWARD)
        return LayerSpec(
            mixers=(kept,),
            feed_forward=ffn,
            weights=(*norms(hidden, ("operator_norm", "ffn_norm")), *weights, *ffn_weights),
        )

    # The files of the first release say tie_embedding.
    tied = keys.flag("tie_embedding", "tie_word_embeddings")
    layers = repeat_layers(list(zip(kinds, sparse, strict=True)), make)
    return model_from(keys, layers, tied=tied, final_norm=norm("model.embedding_norm", hidden))


# RecurrentGemma -----------------------------------------------------------------------------------


def _gemma_kinds(keys: Keys) -> list[str]:
    """``block_types`` repeated over the layers; attention blocks see a window."""
    pattern = layer_kinds(
        keys,
        len(keys.sequence("block_types") or []),
        attr="block_types",
        names={"recurrent": "recurrent", "attention": "sliding"},
        fallback=lambda i: "recurrent",
    )
    if not pattern:
        raise ModelFileError("config key block_types lists no blocks")
    return [pattern[i % len(pattern)] for i in range(keys.layer_count())]


def _gemma_attention(keys: Keys, shape: HeadShape) -> Part:
    weights = gqa(shape, path=LAYER + "temporal_block.", qkv_bias=keys.flag("attention_bias"), o_bias=True)
    return mixer(shape, "sliding", window=keys.integer("attention_window_size")), weights


def _recurrent_gemma(keys: Keys) -> ModelSpec:
    """RecurrentGemma (Griffin): intermediate_size is gate and up together, twice the real width."""
    hidden, q = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    width = keys.integer("intermediate_size") // 2
    lru = keys.integer("lru_width", default=hidden)
    kernel = keys.integer("conv1d_width")
    keys.divided("lru_width", lru, q)
    kinds = _gemma_kinds(keys)
    path = LAYER + "temporal_block."

    def make(i: int) -> LayerSpec:
        if kinds[i] == "sliding":
            kept, weights = _gemma_attention(keys, head_shape(keys))
        else:
            kept, weights = rg_lru_state(lru, kernel), rg_lru_weights(hidden, lru, q, kernel, path)
        return LayerSpec(
            mixers=(kept,),
            feed_forward=FeedForward(width=width, matrices=3),
            weights=(
                *norms(hidden, ("temporal_pre_norm", "channel_pre_norm")),
                *weights,
                *gated(hidden, width, path=LAYER + "mlp_block.", bias=True),
            ),
        )

    return model_from(keys, repeat_layers(kinds, make), final_norm=norm("model.final_norm", hidden))


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "minimax": _minimax,
    "olmo_hybrid": _olmo_hybrid,
    "qwen3_5_moe_text": _qwen(_qwen_mixture(PACKED)),
    "qwen3_5_text": _qwen(None),
    "qwen3_next": _qwen(_qwen_mixture(SEPARATE)),
    "recurrent_gemma": _recurrent_gemma,
}
