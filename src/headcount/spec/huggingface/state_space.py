"""Mamba and its hybrids with attention: how each ``model_type`` arranges the two.

    mamba, falcon_mamba, mamba2   one mixer per block, nothing else
    jamba, bamba, granitemoehybrid  attention or Mamba, then a feed-forward (or experts)
    falcon_h1                     attention and Mamba side by side in every block
    nemotron_h                    each entry of the pattern is one sub-block: Mamba, attention, MLP or experts
    zamba2                        Mamba everywhere; some blocks first call a shared transformer block

Sources: the model classes of transformers 5.24.0 and its table of checkpoint renamings.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.huggingface.experts import Mixture, mixture_weights
from headcount.spec.huggingface.keys import MAX_LAYERS, Keys
from headcount.spec.huggingface.parts import (
    LAYER,
    PRE_NORMS,
    embedding,
    experts,
    gated,
    gqa,
    head_shape,
    layer_kinds,
    mixer,
    model_from,
    norms,
    plain,
    repeat_layers,
)
from headcount.spec.huggingface.recurrent_parts import (
    HYBRID_KINDS,
    Mamba1Shape,
    Mamba2Shape,
    mamba1_state,
    mamba1_weights,
    mamba2_state,
    mamba2_weights,
    note_prediction_layers,
    state_dtype_bytes,
    time_step_rank,
    whole_heads,
)
from headcount.spec.huggingface.shared_blocks import zamba2
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import FEED_FORWARD, REPLICATED, SHARED_EXPERTS, Weight, matrix, norm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.attention import Mixer

_BACKBONE = "backbone.layers.{i}."
_JAMBA_NORMS = ("input_layernorm", "pre_ff_layernorm")


def _listed_blocks(keys: Keys, attr: str, words: dict[str, str]) -> list[str]:
    """Kinds of a list that itself decides how many blocks there are, whatever ``num_hidden_layers`` says."""
    blocks = layer_kinds(keys, len(keys.sequence(attr) or []), attr=attr, names=words, fallback=lambda i: "")
    if not blocks:
        raise ModelFileError(f"config key {attr} lists no layers")
    stated = keys.optional_integer("num_hidden_layers") if "num_hidden_layers" in keys.config else None
    if stated is not None and stated != len(blocks):
        keys.notes.append(
            f"num_hidden_layers says {stated}, {attr} lists {len(blocks)} blocks: the list counts"
        )
    return blocks


# Attention-free -----------------------------------------------------------------------------------


def _attention_free(keys: Keys, state: Mixer, weights: tuple[Weight, ...]) -> ModelSpec:
    """A stack of equal mixers, one norm each."""
    hidden = keys.integer("hidden_size")
    layer = LayerSpec(
        mixers=(state,), feed_forward=None, weights=(*norm(_BACKBONE + "norm", hidden), *weights)
    )
    return model_from(
        keys,
        (layer,) * keys.layer_count(),
        embed=embedding("backbone.embeddings", keys.integer("vocab_size"), hidden),
        final_norm=norm("backbone.norm_f", hidden),
    )


def _mamba(keys: Keys) -> ModelSpec:
    """Mamba and Falcon-Mamba. A stated ``intermediate_size`` wins over ``expand x hidden_size``."""
    hidden = keys.integer("hidden_size")
    shape = Mamba1Shape(
        hidden=hidden,
        inner=keys.optional_integer("intermediate_size") or keys.integer("expand") * hidden,
        state=keys.integer("state_size"),
        rank=time_step_rank(keys, "time_step_rank", hidden),
        kernel=keys.integer("conv_kernel"),
    )
    weights = mamba1_weights(
        shape, _BACKBONE + "mixer.", bias=keys.flag("use_bias"), conv_bias=keys.flag("use_conv_bias")
    )
    return _attention_free(keys, mamba1_state(shape, state_dtype_bytes(keys)), weights)


def _mamba2(keys: Keys) -> ModelSpec:
    """Mamba-2 (Codestral Mamba): inner width ``expand x hidden_size``."""
    hidden = keys.integer("hidden_size")
    shape = Mamba2Shape(
        hidden=hidden,
        inner=keys.integer("expand") * hidden,
        heads=keys.integer("num_heads"),
        groups=keys.integer("n_groups"),
        state=keys.integer("state_size"),
        kernel=keys.integer("conv_kernel"),
    )
    shape = whole_heads(keys, "head_dim", shape)
    weights = mamba2_weights(
        shape, _BACKBONE + "mixer.", bias=keys.flag("use_bias"), conv_bias=keys.flag("use_conv_bias")
    )
    return _attention_free(keys, mamba2_state(shape, state_dtype_bytes(keys)), weights)


# Jamba --------------------------------------------------------------------------------------------


def _jamba_mixer(keys: Keys) -> tuple[Mixer, tuple[Weight, ...]]:
    hidden = keys.integer("hidden_size")
    shape = Mamba1Shape(
        hidden=hidden,
        inner=keys.integer("mamba_expand") * hidden,
        state=keys.integer("mamba_d_state"),
        rank=time_step_rank(keys, "mamba_dt_rank", hidden),
        kernel=keys.integer("mamba_d_conv"),
    )
    weights = mamba1_weights(
        shape,
        LAYER + "mamba.",
        bias=keys.flag("mamba_proj_bias"),
        conv_bias=keys.flag("mamba_conv_bias"),
        inner_norms=True,
    )
    return mamba1_state(shape, state_dtype_bytes(keys)), weights


def _periodic(keys: Keys, what: str) -> Callable[[int], bool]:
    """``i mod period == offset``; an offset that no layer can reach is refused."""
    period = keys.integer(f"{what}_layer_period")
    offset = keys.integer(f"{what}_layer_offset", minimum=0)
    if offset >= period:
        raise ModelFileError(
            f"config: {what}_layer_offset {offset} must be below {what}_layer_period {period}"
        )
    return lambda i: i % period == offset


def _jamba(keys: Keys) -> ModelSpec:
    """Jamba: attention every ``attn_layer_period``-th block, experts every ``expert_layer_period``-th."""
    hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
    attends, mixes = _periodic(keys, "attn"), _periodic(keys, "expert")
    count = keys.integer("num_experts", minimum=0)
    path = LAYER + "feed_forward."

    def make(i: int) -> LayerSpec:
        if attends(i):
            shape = head_shape(keys)
            kept, weights = mixer(shape, "full"), gqa(shape)
        else:
            kept, weights = _jamba_mixer(keys)
        ffn = FeedForward(width=width, matrices=3)
        if count > 1 and mixes(i):
            ffn = ffn.replace(experts=count, top_k=keys.integer("num_experts_per_tok"))
            ffn_weights = experts(hidden, ffn, path=path, router="router")
        else:
            ffn_weights = gated(hidden, width, path=path)
        return LayerSpec(
            mixers=(kept,),
            feed_forward=ffn,
            weights=(*norms(hidden, _JAMBA_NORMS), *weights, *ffn_weights),
        )

    kinds = [(attends(i), count > 1 and mixes(i)) for i in range(keys.layer_count())]
    return model_from(keys, repeat_layers(kinds, make), final_norm=norm("model.final_layernorm", hidden))


# Bamba, Granite 4, Falcon-H1: Mamba-2 under the same key names -------------------------------------


def _mamba2_shape(keys: Keys, inner: int) -> Mamba2Shape:
    shape = Mamba2Shape(
        hidden=keys.integer("hidden_size"),
        inner=inner,
        heads=keys.integer("mamba_n_heads"),
        groups=keys.integer("mamba_n_groups"),
        state=keys.integer("mamba_d_state"),
        kernel=keys.integer("mamba_d_conv"),
    )
    return whole_heads(keys, "mamba_d_head", shape)


def _mamba2_mixer(keys: Keys) -> tuple[Mixer, tuple[Weight, ...]]:
    shape = _mamba2_shape(keys, keys.integer("mamba_expand") * keys.integer("hidden_size"))
    weights = mamba2_weights(
        shape,
        LAYER + "mamba.",
        bias=keys.flag("mamba_proj_bias"),
        conv_bias=keys.flag("mamba_conv_bias"),
    )
    return mamba2_state(shape, state_dtype_bytes(keys)), weights


def _attention(keys: Keys) -> tuple[Mixer, tuple[Weight, ...]]:
    """Grouped-query attention over everything, biases as ``attention_bias`` says."""
    bias = keys.flag("attention_bias")
    shape = head_shape(keys)
    return mixer(shape, "full"), gqa(shape, qkv_bias=bias, o_bias=bias)


def _bamba(keys: Keys) -> ModelSpec:
    """Bamba: attention in the blocks of ``attn_layer_indices``, Mamba-2 in the others."""
    hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
    chosen = set(keys.integers("attn_layer_indices") or [])

    def make(i: int) -> LayerSpec:
        kept, weights = _attention(keys) if i in chosen else _mamba2_mixer(keys)
        ffn = gated(hidden, width, path=LAYER + "feed_forward.", bias=keys.flag("mlp_bias"))
        return LayerSpec(
            mixers=(kept,),
            feed_forward=FeedForward(width=width, matrices=3),
            weights=(*norms(hidden, _JAMBA_NORMS), *weights, *ffn),
        )

    kinds = [i in chosen for i in range(keys.layer_count())]
    return model_from(keys, repeat_layers(kinds, make), final_norm=norm("model.final_layernorm", hidden))


def _granite_feed_forward(keys: Keys) -> tuple[FeedForward, tuple[Weight, ...]]:
    """One MLP that every token visits, gate and up stored as one; beside it experts when there are any."""
    hidden, shared = keys.integer("hidden_size"), keys.integer("shared_intermediate_size", minimum=0)
    count = keys.optional_integer("num_local_experts", "num_experts", minimum=0) or 0
    part = SHARED_EXPERTS if count else FEED_FORWARD
    mlp: tuple[Weight, ...] = ()
    if shared:
        path, names = LAYER + "shared_mlp.", ("input_linear", "output_linear")
        both, down = plain(hidden, shared, path=path, bias=False, part=part, names=names)
        mlp = (both.replace(shape=(2 * shared, hidden)), down)
    if not count:
        return FeedForward(width=shared, matrices=3), mlp
    ffn = FeedForward(
        width=keys.integer("intermediate_size"),
        matrices=3,
        experts=count,
        top_k=keys.integer("num_experts_per_tok"),
        shared_width=shared,
    )
    if ffn.top_k > count:
        raise ModelFileError(f"config: {ffn.top_k} experts per token out of {count} is not possible")
    packed = Mixture(
        experts=("num_local_experts",),
        path=LAYER + "block_sparse_moe.",
        router="router.layer",
        names=("input_linear", "output_linear"),
    )
    return ffn, (*mixture_weights(hidden, ffn.replace(shared_width=0), packed), *mlp)


def _granite_hybrid(keys: Keys) -> ModelSpec:
    """Granite 4: ``layer_types`` names attention and Mamba-2 blocks; all Mamba-2 when there is no list."""
    hidden = keys.integer("hidden_size")
    kinds = layer_kinds(keys, keys.layer_count(), names=HYBRID_KINDS, fallback=lambda i: "linear")
    ffn, ffn_weights = _granite_feed_forward(keys)

    def make(i: int) -> LayerSpec:
        kept, weights = _attention(keys) if kinds[i] == "full" else _mamba2_mixer(keys)
        return LayerSpec(
            mixers=(kept,), feed_forward=ffn, weights=(*norms(hidden, PRE_NORMS), *weights, *ffn_weights)
        )

    return model_from(keys, repeat_layers(kinds, make))


def _falcon_h1(keys: Keys) -> ModelSpec:
    """Falcon-H1: attention and Mamba-2 read the same input in every block, so each block keeps both."""
    hidden, width = keys.integer("hidden_size"), keys.integer("intermediate_size")
    # A stated null means the expanded width; an absent key means the class default.
    stated = keys.stated("mamba_d_ssm") and keys.config.get("mamba_d_ssm") is None
    inner = None if stated else keys.optional_integer("mamba_d_ssm")
    shape = _mamba2_shape(keys, inner or keys.integer("mamba_expand") * hidden)
    kept, weights = _attention(keys)
    mamba = mamba2_weights(
        shape,
        LAYER + "mamba.",
        bias=keys.flag("mamba_proj_bias"),
        conv_bias=keys.flag("mamba_conv_bias"),
        out_bias=keys.flag("projectors_bias"),
        gated_norm=keys.flag("mamba_rms_norm"),
    )
    layer = LayerSpec(
        mixers=(kept, mamba2_state(shape, state_dtype_bytes(keys))),
        feed_forward=FeedForward(width=width, matrices=3),
        weights=(
            *norms(hidden, _JAMBA_NORMS),
            *weights,
            *mamba,
            *gated(hidden, width, path=LAYER + "feed_forward.", bias=keys.flag("mlp_bias")),
        ),
    )
    return model_from(keys, (layer,) * keys.layer_count(), final_norm=norm("model.final_layernorm", hidden))


# Nemotron-H ---------------------------------------------------------------------------------------

_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_BLOCK_WORDS = {
    "linear_attention": "mamba",
    "mamba": "mamba",
    "full_attention": "attention",
    "attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def _nemotron_blocks(keys: Keys) -> list[str]:
    """``layers_block_type``, else the letters of ``hybrid_override_pattern``, else the class default."""
    for name in ("block_configs", "per_layer_config"):
        if keys.value(name) is not None:
            raise UnsupportedModelError(
                f"model type 'nemotron_h': {name} gives each block its own widths, which is not supported"
            )
    listed = any(keys.config.get(name) is not None for name in ("layers_block_type", "layer_types"))
    pattern = keys.value("hybrid_override_pattern")
    if listed or pattern is None:
        return _listed_blocks(keys, "layers_block_type", _BLOCK_WORDS)
    if not isinstance(pattern, str | list) or not 0 < len(pattern) <= MAX_LAYERS:
        raise ModelFileError(f"config key hybrid_override_pattern must be 1 to {MAX_LAYERS:,} letters")
    return _listed_blocks(
        keys.over({**keys.config, "hybrid_override_pattern": list(pattern)}),
        "hybrid_override_pattern",
        _PATTERN,
    )


def _nemotron_mamba(keys: Keys) -> tuple[Mixer, tuple[Weight, ...]]:
    heads = keys.integer("mamba_num_heads")
    shape = Mamba2Shape(
        hidden=keys.integer("hidden_size"),
        inner=heads * keys.integer("mamba_head_dim"),
        heads=heads,
        # Older files spell these keys as Mamba's own code does.
        groups=keys.integer("mamba_n_groups", "n_groups"),
        state=keys.integer("ssm_state_size"),
        kernel=keys.integer("mamba_d_conv", "conv_kernel"),
    )
    weights = mamba2_weights(
        shape,
        _BACKBONE + "mixer.",
        bias=keys.flag("use_bias"),
        conv_bias=keys.flag("mamba_conv_bias", "use_conv_bias"),
    )
    return mamba2_state(shape, state_dtype_bytes(keys)), weights


def _nemotron_experts(keys: Keys) -> tuple[FeedForward, tuple[Weight, ...]]:
    """Plain (squared ReLU) experts; with ``moe_latent_size`` they work in a narrower, projected latent."""
    hidden, bias = keys.integer("hidden_size"), keys.flag("mlp_bias")
    path = _BACKBONE + "mixer."
    ffn = FeedForward(
        width=keys.integer("moe_intermediate_size"),
        matrices=2,
        experts=keys.integer("n_routed_experts"),
        top_k=keys.integer("num_experts_per_tok"),
        shared_width=keys.integer("moe_shared_expert_intermediate_size"),
    )
    latent = keys.optional_integer("moe_latent_size")
    router, *routed = experts(latent or hidden, ffn, path=path)
    down_and_up = (
        (
            *matrix(path + "fc1_latent_proj", FEED_FORWARD, (latent, hidden), REPLICATED, bias=bias),
            *matrix(path + "fc2_latent_proj", FEED_FORWARD, (hidden, latent), REPLICATED, bias=bias),
        )
        if latent
        else ()
    )
    return ffn, (
        # The router reads the full width, whatever the experts read.
        router.replace(shape=(ffn.experts, hidden)),
        *down_and_up,
        *routed,
        *plain(hidden, ffn.shared_width, path=path + "shared_experts.", bias=bias, part=SHARED_EXPERTS),
    )


def _nemotron_h(keys: Keys) -> ModelSpec:
    """Nemotron-H, Nemotron 3: L counts sub-blocks, each a norm and one mixer or feed-forward; never tied."""
    hidden = keys.integer("hidden_size")
    blocks = _nemotron_blocks(keys)
    note_prediction_layers(keys)
    path = _BACKBONE + "mixer."

    def make(i: int) -> LayerSpec:
        mixers: tuple[Mixer, ...] = ()
        ffn: FeedForward | None = None
        if blocks[i] == "mamba":
            kept, weights = _nemotron_mamba(keys)
            mixers = (kept,)
        elif blocks[i] == "attention":
            shape = head_shape(keys)
            # Older files say attention_head_dim; both names have the class default 128.
            if not keys.stated("head_dim") and keys.stated("attention_head_dim"):
                width = keys.integer("attention_head_dim")
                shape = shape.replace(d=width, dv=width)
            mixers, weights = (mixer(shape, "full"),), gqa(shape, path=path)
        elif blocks[i] == "mlp":
            width = keys.integer("intermediate_size")
            ffn = FeedForward(width=width, matrices=2)
            weights = plain(hidden, width, path=path, bias=keys.flag("mlp_bias"))
        else:
            ffn, weights = _nemotron_experts(keys)
        return LayerSpec(
            mixers=mixers, feed_forward=ffn, weights=(*norm(_BACKBONE + "norm", hidden), *weights)
        )

    return model_from(
        keys,
        repeat_layers(blocks, make),
        tied=False,
        embed=embedding("backbone.embeddings", keys.integer("vocab_size"), hidden),
        final_norm=norm("backbone.norm_f", hidden),
    )


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "falcon_mamba": _mamba,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
    "zamba2": zamba2,
}
