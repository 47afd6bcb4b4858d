"""Decoders that cache a latent instead of heads: multi-head latent attention (MLA) and DeepSeek-V4.

    r = kv_lora_rank, r_q = q_lora_rank, d_n, d_r = qk_nope and qk_rope head widths, d_v = v_head_dim
    queries  D r_q + r_q + r_q N (d_n + d_r)      or  D N (d_n + d_r)  without a query latent
    keys     D (r + d_r) + r + r N (d_n + d_v)    output  N d_v D
    indexer  r_q N_i d_i + D d_i + 2 d_i + D N_i  (sparse attention of DeepSeek-V3.2 and GLM-5)

MLA: arXiv 2405.04434, section 2.1. Sparse attention: DeepSeek-V3.2-Exp report. Tensors: the model classes of
transformers 5.24.0; names: the released checkpoints. ``--kv-heads`` does not apply: no heads.
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.attention import CompressedLatent, LatentAttention
from headcount.spec.huggingface.experts import (
    W123,
    Mixture,
    after_dense_layers,
    build_mixture,
    feed_forward_rule,
    mixture_weights,
    note_prediction_layers,
    read_mixture,
    shared_times,
)
from headcount.spec.huggingface.keys import MAX_LAYERS, Keys
from headcount.spec.huggingface.parts import (
    LAYER,
    PRE_NORMS,
    gated,
    layer_kinds,
    model_from,
    norms,
    repeat_layers,
)
from headcount.spec.huggingface.style import Style
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import ATTENTION, COLUMN, OTHER, REPLICATED, ROW, Weight, matrix, norm, vector

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SPARSE = {"indexed_attention": "latent", "deepseek_sparse_attention": "latent"}
_ROUTED = Mixture(experts=("n_routed_experts",), shared=shared_times("n_shared_experts"))
# These two classes let a stated num_experts replace n_routed_experts.
_MANY = _ROUTED.replace(experts=("num_experts", "n_routed_experts"))


def _no_layer(keys: Keys, count: int) -> list[bool]:
    return [False] * count


def latent_mixer(keys: Keys, *, index_head_dim: int = 0) -> LatentAttention:
    """Read the widths of multi-head latent attention; ModelFileError when one is missing."""
    return LatentAttention(
        num_attention_heads=keys.integer("num_attention_heads"),
        kv_lora_rank=keys.integer("kv_lora_rank"),
        qk_rope_head_dim=keys.integer("qk_rope_head_dim"),
        qk_nope_head_dim=keys.integer("qk_nope_head_dim"),
        v_head_dim=keys.integer("v_head_dim"),
        index_head_dim=index_head_dim,
    )


def latent_weights(
    keys: Keys, attention: LatentAttention, *, path: str = LAYER + "self_attn."
) -> tuple[Weight, ...]:
    """Return the projections of MLA. The latents are not divided by tensor parallelism, the heads are."""
    hidden, heads, rank = keys.integer("hidden_size"), attention.num_attention_heads, attention.kv_lora_rank
    bias = keys.flag("attention_bias")
    query = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    query_rank = keys.optional_integer("q_lora_rank")
    if query_rank is None:
        queries = matrix(path + "q_proj", ATTENTION, (query, hidden), COLUMN, heads=heads)
    else:
        queries = (
            *matrix(path + "q_a_proj", ATTENTION, (query_rank, hidden), REPLICATED, bias=bias),
            *norm(path + "q_a_layernorm", query_rank),
            *matrix(path + "q_b_proj", ATTENTION, (query, query_rank), COLUMN, heads=heads),
        )
    expanded = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    return (
        *queries,
        *matrix(
            path + "kv_a_proj_with_mqa", ATTENTION, (attention.latent_width, hidden), REPLICATED, bias=bias
        ),
        *norm(path + "kv_a_layernorm", rank),
        *matrix(path + "kv_b_proj", ATTENTION, (expanded, rank), COLUMN, heads=heads),
        *matrix(path + "o_proj", ATTENTION, (hidden, heads * attention.v_head_dim), ROW, bias=bias),
    )


def indexer_weights(keys: Keys) -> tuple[Weight, ...]:
    """Return the sparse-attention indexer: its queries, its one key head, and a weight per head."""
    hidden, path = keys.integer("hidden_size"), LAYER + "self_attn.indexer."
    heads, width = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    return (
        *matrix(path + "wq_b", ATTENTION, (heads * width, keys.integer("q_lora_rank")), REPLICATED),
        *matrix(path + "wk", ATTENTION, (width, hidden), REPLICATED),
        *norm(path + "k_norm", width, bias=True),
        *matrix(path + "weights_proj", ATTENTION, (heads, hidden), REPLICATED),
    )


def build_latent(
    keys: Keys, mixture: Mixture, indexers: Callable[[Keys, int], list[bool]] | None = None
) -> ModelSpec:
    """Build an MLA decoder. ``indexers``: which layers have a sparse-attention indexer (None: no layer)."""
    count, hidden = keys.layer_count(), keys.integer("hidden_size")
    sparse, rule = feed_forward_rule(keys, mixture, count)
    indexed = indexers(keys, count) if indexers else [False] * count
    note_prediction_layers(keys)

    def make(i: int) -> LayerSpec:
        attention = latent_mixer(keys, index_head_dim=keys.integer("index_head_dim") if indexed[i] else 0)
        ffn, weights = rule(i)
        return LayerSpec(
            mixers=(attention,),
            feed_forward=ffn,
            weights=(
                *norms(hidden, PRE_NORMS),
                *latent_weights(keys, attention),
                *(indexer_weights(keys) if indexed[i] else ()),
                *weights,
            ),
        )

    return model_from(keys, repeat_layers(list(zip(sparse, indexed, strict=True)), make))


def _every_indexer(keys: Keys, count: int) -> list[bool]:
    """DeepSeek-V3.2: each layer has its own indexer."""
    layer_kinds(keys, count, fallback=lambda i: "latent", names=_SPARSE)
    return [True] * count


def _some_indexers(keys: Keys, count: int) -> list[bool]:
    """GLM-5: ``shared`` layers reuse the selection of the last ``full`` one and have no indexer of their own.

    Stated by ``indexer_types``, by ``index_topk_pattern`` (``F`` and ``S``), or by one full layer in
    ``index_topk_freq`` counted from ``index_skip_topk_offset``.
    """
    layer_kinds(keys, count, fallback=lambda i: "latent", names=_SPARSE)
    names = {"full": "full", "shared": "shared", "F": "full", "S": "shared"}
    attr, pattern = "indexer_types", keys.value("index_topk_pattern")
    if keys.sequence(attr) is None and pattern is not None:
        attr = "index_topk_pattern"
        if isinstance(pattern, str):
            keys = keys.over({**keys.config, attr: list(pattern[:MAX_LAYERS])})
    period = max(keys.integer("index_topk_freq", default=1, minimum=0), 1)
    offset = keys.integer("index_skip_topk_offset", default=2, minimum=0)
    kinds = layer_kinds(
        keys,
        count,
        attr=attr,
        names=names,
        fallback=lambda i: "full" if max(i - offset + 1, 0) % period == 0 else "shared",
    )
    if kinds[0] != "full":
        raise ModelFileError(f"config key {attr}: layer 0 shares an indexer, but there is no layer before it")
    return [kind == "full" for kind in kinds]


def _deepseek_v2(keys: Keys) -> ModelSpec:
    """DeepSeek-V2. The older DeepSeekMoE (``deepseek``) and ``use_mla: false`` keep ordinary heads."""
    if keys.config.get("model_type") == "deepseek" or not keys.flag("use_mla", default=True):
        return _deepseek_v1(keys)
    return build_latent(keys, _ROUTED.replace(sparse=after_dense_layers(), mlp_bias="mlp_bias"))


def _deepseek_v1(keys: Keys) -> ModelSpec:
    """DeepSeekMoE 16B (arXiv 2401.06066, remote code): Llama attention; every size must be in the file."""
    old = keys.over(keys.config)
    old.model_type, old.defaults = "deepseek", {}
    old.integer("first_k_dense_replace", minimum=0)
    old.integer("n_shared_experts", minimum=0)
    style = Style(qkv_bias="attention_bias", o_bias="attention_bias", ignores_head_dim=True)
    return build_mixture(old, style, _ROUTED.replace(sparse=after_dense_layers()))


def _kimi_k2(keys: Keys) -> ModelSpec:
    """Kimi K2 (remote code): DeepSeek-V3's graph, no class defaults, so the file must state its sizes."""
    keys.integer("first_k_dense_replace", minimum=0)
    keys.integer("n_shared_experts", minimum=0)
    if not keys.stated("q_lora_rank"):
        raise ModelFileError(f"config of type {keys.model_type!r} lacks q_lora_rank")
    return build_latent(keys, _ROUTED.replace(sparse=after_dense_layers()))


def _longcat(keys: Keys) -> ModelSpec:
    """LongCat-Flash (arXiv 2509.01322): a block has two attentions, two dense feed-forwards, one mixture.

    ``zero_expert_num`` experts return their input: they take router outputs and top_k slots, but no weights.
    """
    hidden, width = keys.integer("hidden_size"), keys.integer("ffn_hidden_size")
    if not keys.stated("num_layers") and keys.stated("num_hidden_layers"):
        count = keys.divided("num_hidden_layers", keys.layer_count("num_hidden_layers"), 2)
    else:
        count = keys.layer_count("num_layers")
    zero = keys.integer("zero_expert_num", default=0, minimum=0)
    mixture = Mixture(
        experts=("n_routed_experts",), top_k=("moe_topk",), width="expert_ffn_hidden_size", router=""
    )
    ffn = read_mixture(keys, mixture)
    attention = latent_mixer(keys)
    router = matrix(
        LAYER + "mlp.router.classifier",
        "router",
        (ffn.experts + zero, hidden),
        REPLICATED,
        bias=keys.flag("router_bias"),
    )
    weights: list[Weight] = [*router, *mixture_weights(hidden, ffn, mixture)[1:]]
    for half in ("0", "1"):
        weights += norms(hidden, (f"input_layernorm.{half}", f"post_attention_layernorm.{half}"))
        weights += latent_weights(keys, attention, path=f"{LAYER}self_attn.{half}.")
        weights += gated(hidden, width, path=f"{LAYER}mlps.{half}.")
    if zero:
        keys.notes.append(
            f"{zero} of {ffn.experts + zero} experts return their input and store nothing; "
            f"a token runs at most {ffn.top_k} real experts, often fewer"
        )
    layer = LayerSpec(mixers=(attention, attention), feed_forward=ffn, weights=tuple(weights))
    return model_from(keys, (layer,) * count)


# DeepSeek-V4 --------------------------------------------------------------------------------------

_V4_KINDS = {
    "sliding_attention": "sliding",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}
_V4_RATIOS = {0: "sliding", 4: "csa", 128: "hca"}
_V4_RATES = {
    "csa": ("compressed_sparse_attention", "compress_rate_csa", 4),
    "hca": ("heavily_compressed_attention", "compress_rate_hca", 128),
}


def _v4_kinds(keys: Keys, count: int) -> list[str]:
    """``layer_types``, else ``compress_ratios`` (0, 4, 128), else two HCA, then HCA and CSA in turn."""
    ratios = keys.integers("compress_ratios")
    if keys.sequence("layer_types") is None and ratios is not None:
        if len(ratios) < count:
            raise ModelFileError(
                f"config key compress_ratios lists {len(ratios)} layers; num_hidden_layers is {count}"
            )
        unknown = sorted(set(ratios[:count]) - set(_V4_RATIOS))
        if unknown:
            raise UnsupportedModelError(
                f"model type {keys.model_type!r}: ratio {unknown[0]} in compress_ratios is not known; "
                f"known: {', '.join(map(str, _V4_RATIOS))}"
            )
        return [_V4_RATIOS[ratio] for ratio in ratios[:count]]
    return layer_kinds(keys, count, names=_V4_KINDS, fallback=lambda i: "csa" if i > 2 and i % 2 else "hca")


def _v4_rate(keys: Keys, kind: str) -> int:
    """Tokens per compressed entry of one kind of layer; 0 for a layer with the window alone."""
    if kind == "sliding":
        return 0
    word, legacy, default = _V4_RATES[kind]
    return keys.integer(legacy, "compress_rates." + word, default=default)


def _v4_compressor(keys: Keys, kind: str, path: str) -> tuple[Weight, ...]:
    """Return what pools ``rate`` tokens into one entry; CSA overlaps two windows and adds an indexer."""
    hidden, rate = keys.integer("hidden_size"), _v4_rate(keys, kind)
    width = keys.integer("head_dim")

    def pool(where: str, entry: int, lanes: int) -> tuple[Weight, ...]:
        return (
            vector(where + "ape", ATTENTION, rate, lanes * entry),
            *matrix(where + "wkv", ATTENTION, (lanes * entry, hidden), REPLICATED),
            *matrix(where + "wgate", ATTENTION, (lanes * entry, hidden), REPLICATED),
            *norm(where + "norm", entry),
        )

    if kind == "hca":
        return pool(path + "compressor.", width, 1)
    heads, index = keys.integer("index_n_heads"), keys.integer("index_head_dim")
    return (
        *pool(path + "compressor.", width, 2),
        *pool(path + "indexer.compressor.", index, 2),
        *matrix(path + "indexer.wq_b", ATTENTION, (heads * index, keys.integer("q_lora_rank")), REPLICATED),
        *matrix(path + "indexer.weights_proj", ATTENTION, (heads, hidden), REPLICATED),
    )


def _v4_attention(keys: Keys, kind: str) -> tuple[Weight, ...]:
    """Return one layer's attention: one shared key-value head, an output projection in low-rank groups."""
    path = "layers.{i}.attn."
    hidden, heads, width = (keys.integer(k) for k in ("hidden_size", "num_attention_heads", "head_dim"))
    rank, groups, out_rank = (keys.integer(k) for k in ("q_lora_rank", "o_groups", "o_lora_rank"))
    group_width = keys.divided("num_attention_heads x head_dim", heads * width, groups)
    return (
        vector(path + "attn_sink", ATTENTION, heads, shard=COLUMN),
        *matrix(path + "wq_a", ATTENTION, (rank, hidden), REPLICATED),
        *norm(path + "q_norm", rank),
        *matrix(path + "wq_b", ATTENTION, (heads * width, rank), COLUMN, heads=heads),
        *matrix(path + "wkv", ATTENTION, (width, hidden), REPLICATED),
        *norm(path + "kv_norm", width),
        *matrix(path + "wo_a", ATTENTION, (groups * out_rank, group_width), COLUMN),
        *matrix(path + "wo_b", ATTENTION, (hidden, groups * out_rank), ROW),
        *(_v4_compressor(keys, kind, path) if kind != "sliding" else ()),
    )


def _hyper_connections(hidden: int, streams: int, name: str, rows: int, scales: int) -> tuple[Weight, ...]:
    """Return one mixing of ``streams`` residual streams (hyper-connections, arXiv 2409.19606)."""
    return (
        *matrix(name + "_fn", OTHER, (rows, streams * hidden), REPLICATED),
        vector(name + "_base", OTHER, rows),
        vector(name + "_scale", OTHER, scales),
    )


def _deepseek_v4(keys: Keys) -> ModelSpec:
    """DeepSeek-V4: a window in every layer, compressed entries in most, mixtures, hyper-connections."""
    count, hidden, streams = keys.layer_count(), keys.integer("hidden_size"), keys.integer("hc_mult")
    kinds = _v4_kinds(keys, count)
    layer_kinds(
        keys,
        count,
        attr="mlp_layer_types",
        names={"hash_moe": "moe", "moe": "moe"},
        fallback=lambda i: "moe",
    )
    # The class has one shared expert, whatever n_shared_experts says.
    mixture = _ROUTED.replace(
        path="layers.{i}.ffn.", names=W123, shared_names=("w1", "w3", "w2"), shared=lambda keys, width: width
    )
    ffn: FeedForward = read_mixture(keys, mixture)
    rows = (2 + streams) * streams
    note_prediction_layers(keys)

    def make(i: int) -> LayerSpec:
        kind = kinds[i]
        attention = CompressedLatent(
            num_attention_heads=keys.integer("num_attention_heads"),
            head_dim=keys.integer("head_dim"),
            window=keys.integer("sliding_window"),
            rate=_v4_rate(keys, kind),
            index_head_dim=keys.integer("index_head_dim") if kind == "csa" else 0,
        )
        return LayerSpec(
            mixers=(attention,),
            feed_forward=ffn,
            weights=(
                *norms(hidden, ("attn_norm", "ffn_norm"), path="layers.{i}."),
                *_v4_attention(keys, kind),
                *mixture_weights(hidden, ffn, mixture, bias=keys.flag("mlp_bias")),
                *_hyper_connections(hidden, streams, "layers.{i}.hc_attn", rows, 3),
                *_hyper_connections(hidden, streams, "layers.{i}.hc_ffn", rows, 3),
            ),
        )

    head = _hyper_connections(hidden, streams, "hc_head", streams, 1)
    return model_from(keys, repeat_layers(kinds, make), extra=head)


BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": lambda keys: build_latent(keys, _ROUTED.replace(sparse=after_dense_layers(3))),
    "deepseek_v32": lambda keys: build_latent(
        keys, _MANY.replace(sparse=after_dense_layers(3)), _every_indexer
    ),
    "glm_moe_dsa": lambda keys: build_latent(
        keys, _MANY.replace(sparse=after_dense_layers(3)), _some_indexers
    ),
    "glm4_moe_lite": lambda keys: build_latent(keys, _ROUTED.replace(sparse=after_dense_layers(1))),
    "mistral4": lambda keys: build_latent(keys, _ROUTED.replace(sparse=after_dense_layers())),
    "youtu": lambda keys: build_latent(keys, _ROUTED.replace(sparse=_no_layer)),
    "kimi_k2": _kimi_k2,
    "longcat_flash": _longcat,
    "deepseek_v4": _deepseek_v4,
}
