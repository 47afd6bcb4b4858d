"""Decoders from before Llama: LayerNorm with bias, plain feed-forwards, learned or ALiBi positions.

    block = attention(D, N, K, H) + up/down feed-forward (2 D F) + one or two LayerNorms (2 D each)

A ``Blueprint`` says how one model type names its tensors and which biases it has; a builder reads the type's
own keys (``n_inner``, ``ffn_dim``, ``multi_query`` ...) and settles the rest. A fused q/k/v matrix is
kept as three weights ``name.q``, ``name.k``, ``name.v``: tensor parallelism divides them differently.

Sources: the model classes of transformers 5.24.0; every count is tested against those classes built without
allocating weights (tests/reference/test_parameters.py).
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.record import Record
from headcount.spec.huggingface.keys import MAX_LAYERS
from headcount.spec.huggingface.parts import (
    HeadShape,
    embedding,
    gated,
    lm_head,
    mixer,
    model_from,
    norms,
    plain,
    positions,
    repeat_layers,
)
from headcount.spec.model import FeedForward, LayerSpec
from headcount.spec.weight import ATTENTION, COLUMN, KV, NORM, OTHER, REPLICATED, ROW, matrix, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.model import ModelSpec
    from headcount.spec.weight import Weight


class Blueprint(Record):
    """Names and switches of one model type.

    layer   path of a block, ``{i}`` its index; all other names but ``embed`` and ``final`` stand below it
    qkv     one fused matrix, or three
    ffn     up and down; when ``gated`` the three have Llama's names instead
    norms   the block's norms; ``norm_bias`` False: gain only; ``norms_have_weights`` False: neither
    """

    layer: str
    qkv: str | tuple[str, str, str]
    out: str
    ffn: tuple[str, str]
    norms: tuple[str, ...]
    embed: str
    final: str
    qkv_bias: bool = True
    o_bias: bool = True
    ffn_bias: bool = True
    gated: bool = False
    norm_bias: bool = True
    norms_have_weights: bool = True
    head_bias: bool = False


def projections(
    shape: HeadShape,
    path: str,
    names: tuple[str, str, str, str],
    *,
    biases: tuple[bool, bool, bool, bool] = (False, False, False, False),
    part: str = ATTENTION,
) -> tuple[Weight, ...]:
    """Return query, key, value and output matrices of one attention, each with or without a bias."""
    q, k, v, o = (path + name for name in names)
    return (
        *matrix(q, part, (shape.q * shape.d, shape.hidden), COLUMN, bias=biases[0], heads=shape.q),
        *matrix(k, part, (shape.kv * shape.d, shape.hidden), KV, bias=biases[1], heads=shape.kv),
        *matrix(v, part, (shape.kv * shape.dv, shape.hidden), KV, bias=biases[2], heads=shape.kv),
        *matrix(o, part, (shape.hidden, shape.q * shape.dv), ROW, bias=biases[3]),
    )


def plain_shape(keys: Keys, *, kv_heads: int | None = None, head_dim: int | None = None) -> HeadShape:
    """Head geometry of a type that computes H = D / N; ``kv_heads`` is K by the class's own rule."""
    hidden, q = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    fixed = keys if kv_heads is None else keys.over({**keys.config, "num_key_value_heads": kv_heads})
    d = head_dim or keys.divided("hidden_size", hidden, q)
    return HeadShape(hidden=hidden, q=q, kv=fixed.key_value_heads(q), d=d, dv=d)


def block_norms(blueprint: Blueprint, hidden: int) -> tuple[Weight, ...]:
    """The block's LayerNorms: gains and shifts, or nothing when they have no weights."""
    if not blueprint.norms_have_weights:
        return ()
    return norms(hidden, blueprint.norms, bias=blueprint.norm_bias, path=blueprint.layer)


def block_weights(blueprint: Blueprint, shape: HeadShape, width: int) -> tuple[Weight, ...]:
    """Every tensor of one block: norms, attention, feed-forward of ``width``."""
    qkv = blueprint.qkv
    names = (f"{qkv}.q", f"{qkv}.k", f"{qkv}.v") if isinstance(qkv, str) else qkv
    bias = blueprint.qkv_bias
    attention = projections(
        shape, blueprint.layer, (*names, blueprint.out), biases=(bias, bias, bias, blueprint.o_bias)
    )
    if blueprint.gated:
        ffn = gated(shape.hidden, width, path=f"{blueprint.layer}mlp.", bias=blueprint.ffn_bias)
    else:
        ffn = plain(shape.hidden, width, path=blueprint.layer, bias=blueprint.ffn_bias, names=blueprint.ffn)
    return (*block_norms(blueprint, shape.hidden), *attention, *ffn)


def assemble(
    keys: Keys,
    blueprint: Blueprint,
    shape: HeadShape,
    *,
    width: int | None = None,
    layer_extra: tuple[Weight, ...] = (),
    outside: tuple[Weight, ...] = (),
    windows: tuple[int, ...] = (),
) -> ModelSpec:
    """Build the decoder. ``width`` is F, 4 D when None; ``windows`` is each layer's window, 0 for full."""
    width = width or 4 * shape.hidden
    count = keys.layer_count()
    weights = (*block_weights(blueprint, shape, width), *layer_extra)
    ffn = FeedForward(width=width, matrices=3 if blueprint.gated else 2)

    def make(i: int) -> LayerSpec:
        window = windows[i] if windows else 0
        remembers = mixer(shape, "sliding" if window else "full", window=window)
        return LayerSpec(mixers=(remembers,), feed_forward=ffn, weights=weights)

    return model_from(
        keys,
        repeat_layers(windows or (0,) * count, make),
        embed=embedding(blueprint.embed, keys.integer("vocab_size"), shape.hidden),
        final_norm=norm(blueprint.final, shape.hidden, bias=blueprint.norm_bias),
        extra=outside,
        head_bias=blueprint.head_bias,
    )


def renamed(keys: Keys, legacy: dict[str, str]) -> Keys:
    """The same keys with old spellings (``n_head``) under their present names; a present name wins."""
    config: dict[str, Any] = {**keys.config}
    for old, new in legacy.items():
        if config.get(old) is not None and config.get(new) is None:
            config[new] = config[old]
    return keys.over(config)


def refuse(keys: Keys, name: str, *, when: bool, why: str) -> None:
    """Raise UnsupportedModelError when the flag ``name`` has the value that changes the network."""
    if keys.flag(name, default=not when) is when:
        raise UnsupportedModelError(f"model type {keys.model_type!r} with {name}={str(when).lower()}: {why}")


_GPT2 = Blueprint(
    layer="transformer.h.{i}.",
    qkv="attn.c_attn",
    out="attn.c_proj",
    ffn=("mlp.c_fc", "mlp.c_proj"),
    norms=("ln_1", "ln_2"),
    embed="transformer.wte",
    final="transformer.ln_f",
)
_GPTJ = Blueprint(
    layer="transformer.h.{i}.",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    out="attn.out_proj",
    ffn=("mlp.fc_in", "mlp.fc_out"),
    norms=("ln_1",),
    embed="transformer.wte",
    final="transformer.ln_f",
    qkv_bias=False,
    o_bias=False,
    head_bias=True,
)
_MEGATRON_FFN = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
_BLOOM = Blueprint(
    layer="transformer.h.{i}.",
    qkv="self_attention.query_key_value",
    out="self_attention.dense",
    ffn=_MEGATRON_FFN,
    norms=("input_layernorm", "post_attention_layernorm"),
    embed="transformer.word_embeddings",
    final="transformer.ln_f",
)
_GPT_NEOX = Blueprint(
    layer="gpt_neox.layers.{i}.",
    qkv="attention.query_key_value",
    out="attention.dense",
    ffn=_MEGATRON_FFN,
    norms=("input_layernorm", "post_attention_layernorm"),
    embed="gpt_neox.embed_in",
    final="gpt_neox.final_layer_norm",
)
_MPT = Blueprint(
    layer="transformer.blocks.{i}.",
    qkv="attn.Wqkv",
    out="attn.out_proj",
    ffn=("ffn.up_proj", "ffn.down_proj"),
    norms=("norm_1", "norm_2"),
    embed="transformer.wte",
    final="transformer.norm_f",
    qkv_bias=False,
    o_bias=False,
    ffn_bias=False,
    norm_bias=False,
)
_PERSIMMON = Blueprint(
    layer="model.layers.{i}.",
    qkv="self_attn.query_key_value",
    out="self_attn.dense",
    ffn=_MEGATRON_FFN,
    norms=("input_layernorm", "post_attention_layernorm"),
    embed="model.embed_tokens",
    final="model.final_layernorm",
)
_SPLIT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_PHI = Blueprint(
    layer="model.layers.{i}.",
    qkv=_SPLIT,
    out="self_attn.dense",
    ffn=("mlp.fc1", "mlp.fc2"),
    norms=("input_layernorm",),
    embed="model.embed_tokens",
    final="model.final_layernorm",
    head_bias=True,
)
_OPT = Blueprint(
    layer="model.decoder.layers.{i}.",
    qkv=_SPLIT,
    out="self_attn.out_proj",
    ffn=("fc1", "fc2"),
    norms=("self_attn_layer_norm", "final_layer_norm"),
    embed="model.decoder.embed_tokens",
    final="model.decoder.final_layer_norm",
)
_STABLELM = Blueprint(
    layer="model.layers.{i}.",
    qkv=_SPLIT,
    out="self_attn.o_proj",
    ffn=("mlp.up_proj", "mlp.down_proj"),
    norms=("input_layernorm", "post_attention_layernorm"),
    embed="model.embed_tokens",
    final="model.norm",
    o_bias=False,
    ffn_bias=False,
    gated=True,
)


def _gpt2(keys: Keys) -> ModelSpec:
    """GPT-2: learned positions, everything biased, F = n_inner or 4 D."""
    refuse(keys, "add_cross_attention", when=True, why="the encoder it attends to is not described")
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    table = positions("transformer.wpe", keys.integer("n_positions", "max_position_embeddings"), shape.hidden)
    return assemble(keys, _GPT2, shape, width=keys.optional_integer("n_inner"), outside=(table,))


def _gpt_bigcode(keys: Keys) -> ModelSpec:
    """SantaCoder, StarCoder 1: GPT-2 with one key/value head when ``multi_query``."""
    refuse(keys, "add_cross_attention", when=True, why="the encoder it attends to is not described")
    q = keys.integer("num_attention_heads")
    shape = plain_shape(keys, kv_heads=1 if keys.flag("multi_query", default=True) else q)
    table = positions("transformer.wpe", keys.integer("n_positions", "max_position_embeddings"), shape.hidden)
    return assemble(keys, _GPT2, shape, width=keys.optional_integer("n_inner"), outside=(table,))


def neo_windows(keys: Keys) -> tuple[int, ...]:
    """Expand ``attention_types`` ([[kinds, repeats], ...]) into a window per layer; 0 for a global layer."""
    count, window = keys.layer_count(), keys.integer("window_size")
    kinds: list[Any] = []
    for entry in keys.sequence("attention_types") or []:
        if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list)):
            raise ModelFileError("config key attention_types must list [kinds, repeats] pairs")
        repeats = keys.checked("attention_types repeats", entry[1], maximum=MAX_LAYERS)
        if len(kinds) + len(entry[0]) * repeats > MAX_LAYERS:
            raise ModelFileError(f"config key attention_types describes more than {MAX_LAYERS:,} layers")
        kinds += entry[0] * repeats
    if len(kinds) != count:
        raise ModelFileError(f"config: attention_types describes {len(kinds)} layers; num_layers is {count}")
    for kind in kinds:
        if kind not in ("global", "local"):
            raise UnsupportedModelError(
                f"model type 'gpt_neo': layer kind {str(kind)[:40]!r} in attention_types is not known; "
                "known: global, local"
            )
    return tuple(window if kind == "local" else 0 for kind in kinds)


def _gpt_neo(keys: Keys) -> ModelSpec:
    """GPT-Neo: GPT-2 with separate projections and, in every other layer, a window of 256 tokens."""
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    blueprint = _GPT2.replace(
        qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
        out="attn.attention.out_proj",
        qkv_bias=False,
    )
    table = positions("transformer.wpe", keys.integer("max_position_embeddings"), shape.hidden)
    width = keys.optional_integer("intermediate_size")
    return assemble(keys, blueprint, shape, width=width, outside=(table,), windows=neo_windows(keys))


def _gpt_neox(keys: Keys) -> ModelSpec:
    """GPT-NeoX, Pythia, Dolly 2: rotary positions, two norms (parallel or not), untied head."""
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    bias = keys.flag("attention_bias", default=True)
    blueprint = _GPT_NEOX.replace(qkv_bias=bias, o_bias=bias)
    return assemble(keys, blueprint, shape, width=keys.integer("intermediate_size"))


def _gptj(keys: Keys, blueprint: Blueprint = _GPTJ) -> ModelSpec:
    """GPT-J: parallel block under one norm; the head has a bias, tied or not."""
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    return assemble(keys, blueprint, shape, width=keys.optional_integer("n_inner"))


def _codegen(keys: Keys) -> ModelSpec:
    """CodeGen: GPT-J with one fused projection."""
    return _gptj(keys, _GPTJ.replace(qkv="attn.qkv_proj"))


def _bloom(keys: Keys) -> ModelSpec:
    """BLOOM: ALiBi, and a norm right behind the embedding. ``n_embed``, the old name of D, wins."""
    if keys.config.get("n_embed") is not None:
        keys = keys.over({**keys.config, "hidden_size": keys.config["n_embed"]})
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    first = norm("transformer.word_embeddings_layernorm", shape.hidden, bias=True)
    return assemble(keys, _BLOOM, shape, outside=first)


_FALCON_LEGACY = {
    "n_embed": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_head_kv": "num_kv_heads",
}


def _falcon_norms(keys: Keys, grouped: bool) -> tuple[str, ...]:
    """Sequential blocks have two norms; parallel ones share one, or have one each (Falcon-40B)."""
    if not keys.flag("parallel_attn", default=True):
        return ("post_attention_layernorm", "input_layernorm")
    count = keys.optional_integer("num_ln_in_parallel_attn") or (2 if grouped else 1)
    return ("ln_attn", "ln_mlp") if count == 2 else ("input_layernorm",)


def _falcon(keys: Keys) -> ModelSpec:
    """Falcon: K = 1 with ``multi_query`` (7B), ``num_kv_heads`` in the new architecture (40B, 180B), else N.

    The first releases called themselves RefinedWeb (40B, always grouped) and RefinedWebModel (7B).
    """
    first_release = keys.config.get("model_type") == "RefinedWeb" or keys.config.get("n_head_kv") is not None
    keys = renamed(keys, _FALCON_LEGACY)
    grouped = keys.flag("new_decoder_architecture") or (
        first_release and not keys.stated("new_decoder_architecture")
    )
    q = keys.integer("num_attention_heads")
    if grouped:
        kv = keys.optional_integer("num_kv_heads") or q
    else:
        kv = 1 if keys.flag("multi_query", default=True) else q
    bias = keys.flag("bias")
    blueprint = _BLOOM.replace(norms=_falcon_norms(keys, grouped), qkv_bias=bias, o_bias=bias, ffn_bias=bias)
    shape = plain_shape(keys, kv_heads=kv)
    return assemble(keys, blueprint, shape, width=keys.optional_integer("ffn_hidden_size"))


def _mpt(keys: Keys) -> ModelSpec:
    """MPT: no biases at all, ALiBi; grouped heads only in the original code (``attn_config.kv_n_heads``)."""
    refuse(keys, "no_bias", when=False, why="only the released networks without any bias are known")
    refuse(keys, "attn_config.qk_ln", when=True, why="query and key norms are not known for it")
    refuse(keys, "attn_config.alibi", when=False, why="only the released networks with ALiBi are known")
    q = keys.integer("num_attention_heads")
    single = keys.text("attn_config.attn_type") == "multiquery_attention"
    kv = keys.optional_integer("attn_config.kv_n_heads") or (1 if single else q)
    shape = plain_shape(keys, kv_heads=kv)
    return assemble(keys, _MPT, shape, width=keys.integer("expansion_ratio", default=4) * shape.hidden)


def _opt(keys: Keys) -> ModelSpec:
    """OPT: learned positions with two spare rows; 350M norms behind the block and embeds narrowly."""
    bias = keys.flag("enable_bias", default=True)
    affine = keys.flag("layer_norm_elementwise_affine", default=True)
    blueprint = _OPT.replace(qkv_bias=bias, o_bias=bias, ffn_bias=bias, norms_have_weights=affine)
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    hidden, vocab = shape.hidden, keys.integer("vocab_size")
    narrow = keys.optional_integer("word_embed_proj_dim") or hidden
    pre_norm = keys.flag("do_layer_norm_before", default=True) and not keys.flag("_remove_final_layer_norm")
    tied = keys.flag("tie_word_embeddings", default=True)
    path = "model.decoder."
    table = positions(path + "embed_positions", keys.integer("max_position_embeddings") + 2, hidden)
    spec = assemble(keys, blueprint, shape, width=keys.integer("ffn_dim"))
    outside = [embedding(blueprint.embed, vocab, narrow), table]
    if narrow != hidden:
        outside += matrix(path + "project_in", OTHER, (hidden, narrow), REPLICATED)
        outside += matrix(path + "project_out", OTHER, (narrow, hidden), REPLICATED)
    outside += norm(blueprint.final, hidden, bias=True) if pre_norm and affine else ()
    outside += () if tied else lm_head(vocab, narrow)
    return spec.replace(outside=tuple(outside))


def _head_norms(path: str, shape: HeadShape) -> tuple[Weight, ...]:
    """LayerNorms of one head's width D / N over queries and over keys."""
    width = shape.hidden // shape.q
    return (
        *norm(path + "self_attn.q_layernorm", width, bias=True),
        *norm(path + "self_attn.k_layernorm", width, bias=True),
    )


def _persimmon(keys: Keys) -> ModelSpec:
    """Persimmon: fused biased projections, query/key norms unless turned off."""
    shape = plain_shape(keys, kv_heads=keys.integer("num_attention_heads"))
    extra = _head_norms(_PERSIMMON.layer, shape) if keys.flag("qk_layernorm", default=True) else ()
    return assemble(keys, _PERSIMMON, shape, width=keys.integer("intermediate_size"), layer_extra=extra)


def _phi(keys: Keys) -> ModelSpec:
    """Phi 1, 1.5 and 2: parallel block under one norm, biases everywhere, in the head too."""
    shape = plain_shape(keys, head_dim=keys.optional_integer("head_dim"))
    extra = _head_norms(_PHI.layer, shape) if keys.flag("qk_layernorm") else ()
    return assemble(keys, _PHI, shape, width=keys.integer("intermediate_size"), layer_extra=extra)


def _stablelm(keys: Keys) -> ModelSpec:
    """StableLM: gated, LayerNorms with bias; query/key norms have a gain for each head."""
    shape = plain_shape(keys)
    parallel = keys.flag("use_parallel_residual")
    blueprint = _STABLELM.replace(
        qkv_bias=keys.flag("use_qkv_bias"), norms=_STABLELM.norms[:1] if parallel else _STABLELM.norms
    )
    extra: tuple[Weight, ...] = ()
    if keys.flag("qk_layernorm"):
        path = _STABLELM.layer + "self_attn."
        extra = (
            vector(path + "q_layernorm.norms", NORM, shape.q, shape.d),
            vector(path + "k_layernorm.norms", NORM, shape.kv, shape.d),
        )
    return assemble(keys, blueprint, shape, width=keys.integer("intermediate_size"), layer_extra=extra)


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    "bloom": _bloom,
    "codegen": _codegen,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "mpt": _mpt,
    "opt": _opt,
    "persimmon": _persimmon,
    "phi": _phi,
    "stablelm": _stablelm,
}
