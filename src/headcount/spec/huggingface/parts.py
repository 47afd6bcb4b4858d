"""The parts that most decoders are assembled from, as lists of ``Weight``.

grouped-query attention   q: D x N H, k: D x K H, v: D x K H', o: N H' x D     (+ biases, + query/key norms)
gated feed-forward        gate, up: D x F, down: F x D                         plain: up, down
mixture of experts        router: D x E, and E gated or plain feed-forwards of which top_k run per token
"""

from __future__ import annotations

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.record import Record
from headcount.spec.attention import ChunkedAttention, FullAttention, SlidingWindow
from headcount.spec.model import FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import (
    ATTENTION,
    COLUMN,
    EMBEDDING,
    EXPERT,
    EXPERTS,
    FEED_FORWARD,
    HEAD,
    KV,
    REPLICATED,
    ROUTER,
    ROW,
    SHARED_EXPERTS,
    VOCAB,
    Weight,
    matrix,
    norm,
    vector,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from headcount.spec.attention import Mixer
    from headcount.spec.huggingface.keys import Keys

LAYER = "model.layers.{i}."


class HeadShape(Record):
    """Widths of one attention: D = hidden, N = q, K = kv, H = d (keys and queries), H' = dv (values)."""

    hidden: int
    q: int
    kv: int
    d: int
    dv: int


def head_shape(keys: Keys, *, head_dim: int | None = None, kv_default: int | None = None) -> HeadShape:
    """Read D, N, K, H under their usual names; H falls back to D / N."""
    hidden = keys.integer("hidden_size")
    q = keys.integer("num_attention_heads")
    kv = keys.key_value_heads(q, default=kv_default)
    d = keys.optional_integer("head_dim") or head_dim or keys.divided("hidden_size", hidden, q)
    return HeadShape(hidden=hidden, q=q, kv=kv, d=d, dv=d)


def gqa(
    shape: HeadShape,
    *,
    path: str = LAYER + "self_attn.",
    qkv_bias: bool = False,
    o_bias: bool = False,
    part: str = ATTENTION,
) -> tuple[Weight, ...]:
    """Return the four projections of grouped-query attention."""
    return (
        *matrix(
            path + "q_proj", part, (shape.q * shape.d, shape.hidden), COLUMN, bias=qkv_bias, heads=shape.q
        ),
        *matrix(path + "k_proj", part, (shape.kv * shape.d, shape.hidden), KV, bias=qkv_bias, heads=shape.kv),
        *matrix(
            path + "v_proj", part, (shape.kv * shape.dv, shape.hidden), KV, bias=qkv_bias, heads=shape.kv
        ),
        *matrix(path + "o_proj", part, (shape.hidden, shape.q * shape.dv), ROW, bias=o_bias),
    )


def mixer(shape: HeadShape, kind: str, *, window: int = 0, chunk: int = 0) -> Mixer:
    """Return the attention that remembers ``kind``: ``full``, ``sliding`` (needs window) or ``chunked``."""
    heads = {
        "num_attention_heads": shape.q,
        "num_key_value_heads": shape.kv,
        "head_dim": shape.d,
        "v_head_dim": shape.dv,
    }
    if (kind == "sliding" and not window) or (kind == "chunked" and not chunk):
        key = "sliding_window" if kind == "sliding" else "attention_chunk_size"
        raise ModelFileError(f"config has {kind} layers and no {key}: how much they keep is not known")
    if kind == "full":
        return FullAttention(**heads)
    if kind == "sliding":
        return SlidingWindow(window=window, **heads)
    if kind == "chunked":
        return ChunkedAttention(chunk=chunk, **heads)
    raise UnsupportedModelError(
        f"layer kind {kind!r} is not an attention headcount knows: full, sliding, chunked"
    )


def gated(
    hidden: int, ffn: int, *, path: str = LAYER + "mlp.", bias: bool = False, part: str = FEED_FORWARD
) -> tuple[Weight, ...]:
    """Return gate, up and down (SwiGLU, GeGLU): 3 D F."""
    return (
        *matrix(path + "gate_proj", part, (ffn, hidden), COLUMN, bias=bias),
        *matrix(path + "up_proj", part, (ffn, hidden), COLUMN, bias=bias),
        *matrix(path + "down_proj", part, (hidden, ffn), ROW, bias=bias),
    )


def plain(
    hidden: int,
    ffn: int,
    *,
    path: str = LAYER + "mlp.",
    bias: bool = True,
    part: str = FEED_FORWARD,
    names: tuple[str, str] = ("up_proj", "down_proj"),
) -> tuple[Weight, ...]:
    """Return up and down: 2 D F."""
    return (
        *matrix(path + names[0], part, (ffn, hidden), COLUMN, bias=bias),
        *matrix(path + names[1], part, (hidden, ffn), ROW, bias=bias),
    )


def experts(
    hidden: int,
    ffn: FeedForward,
    *,
    path: str = LAYER + "mlp.",
    router: str = "gate",
    router_bias: bool = False,
) -> tuple[Weight, ...]:
    """Return the router (D x E) and E expert feed-forwards, of which ``top_k`` run per token."""
    if not 0 < ffn.top_k <= ffn.experts:
        raise ModelFileError(f"config: {ffn.top_k} experts per token out of {ffn.experts} is not possible")
    inside = path + "experts.*."
    single = (
        gated(hidden, ffn.width, path=inside)
        if ffn.matrices == 3
        else plain(hidden, ffn.width, path=inside, bias=False)
    )
    return (
        *matrix(path + router, ROUTER, (ffn.experts, hidden), REPLICATED, bias=router_bias),
        *(w.replace(part=EXPERTS, shard=EXPERT, copies=ffn.experts, active=ffn.top_k) for w in single),
    )


def shared_experts(
    hidden: int, width: int, *, path: str = LAYER + "mlp.shared_experts.", matrices: int = 3
) -> tuple[Weight, ...]:
    """Return the expert that every token visits."""
    if not width:
        return ()
    if matrices == 3:
        return gated(hidden, width, path=path, part=SHARED_EXPERTS)
    return plain(hidden, width, path=path, bias=False, part=SHARED_EXPERTS)


def norms(hidden: int, names: Iterable[str], *, bias: bool = False, path: str = LAYER) -> tuple[Weight, ...]:
    """Return one normalisation of width ``hidden`` per name."""
    return tuple(weight for name in names for weight in norm(path + name, hidden, bias=bias))


PRE_NORMS = ("input_layernorm", "post_attention_layernorm")
SANDWICH_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)


def qk_norm(
    shape: HeadShape, mode: str, *, path: str = LAYER + "self_attn.", bias: bool = False
) -> tuple[Weight, ...]:
    """Return query and key norms: ``head`` over one head's width, ``full`` over all heads, ``none`` nothing."""
    if mode == "none":
        return ()
    widths = {"head": (shape.d, shape.d), "full": (shape.q * shape.d, shape.kv * shape.d)}[mode]
    return (*norm(path + "q_norm", widths[0], bias=bias), *norm(path + "k_norm", widths[1], bias=bias))


STANDARD_KINDS = {"full_attention": "full", "sliding_attention": "sliding", "chunked_attention": "chunked"}


def layer_kinds(
    keys: Keys,
    count: int,
    *,
    fallback: Callable[[int], str],
    attr: str = "layer_types",
    names: dict[str, str] | None = None,
) -> list[str]:
    """Return each layer's kind: the config's list mapped by ``names``, else ``fallback(i)``.

    A word that is not in ``names`` is refused by name: it is a layer kind headcount cannot price.
    """
    listed = keys.sequence(attr)
    if listed is None:
        return [fallback(i) for i in range(count)]
    known = names or STANDARD_KINDS
    if len(listed) < count:
        raise ModelFileError(f"config key {attr} lists {len(listed)} layers; num_hidden_layers is {count}")
    for word in listed[:count]:
        if not isinstance(word, str) or word not in known:
            raise UnsupportedModelError(
                f"model type {keys.model_type!r}: layer kind {str(word)[:40]!r} in {attr} is not known; "
                f"known: {', '.join(known)}"
            )
    return [known[word] for word in listed[:count]]


def window_of(keys: Keys, name: str = "sliding_window") -> int:
    """Return the sliding window in tokens, 0 when the config has none (null or 0)."""
    return keys.optional_integer(name, minimum=0) or 0


def repeat_layers(kinds: Sequence[Hashable], make: Callable[[int], LayerSpec]) -> tuple[LayerSpec, ...]:
    """Build one ``LayerSpec`` per distinct kind (from its first index) and share it."""
    built: dict[Hashable, LayerSpec] = {}
    layers = []
    for i, kind in enumerate(kinds):
        if kind not in built:
            built[kind] = make(i)
        layers.append(built[kind])
    return tuple(layers)


def embedding(name: str, rows: int, width: int) -> Weight:
    """Return an embedding table; a look-up, not a matrix product."""
    return vector(name, EMBEDDING, rows, width, shard=VOCAB)


def positions(name: str, rows: int, width: int) -> Weight:
    """Return a table of learned positions."""
    return vector(name, EMBEDDING, rows, width)


def lm_head(vocab: int, hidden: int, *, bias: bool = False, name: str = "lm_head") -> tuple[Weight, ...]:
    """Return an untied output projection."""
    return matrix(name, HEAD, (vocab, hidden), VOCAB, bias=bias)


def model_from(
    keys: Keys,
    layers: tuple[LayerSpec, ...],
    *,
    extra: tuple[Weight, ...] = (),
    tied: bool | None = None,
    final_norm: tuple[Weight, ...] | None = None,
    embed: Weight | None = None,
    head_bias: bool = False,
) -> ModelSpec:
    """Assemble a decoder: embeddings, blocks, final norm (RMS unless given), head unless tied.

    ``tied`` None means the config's tie_word_embeddings (or its class default, False when it has none). Name,
    dtype, quantisation and source are filled in by the reader.
    """
    hidden = keys.integer("hidden_size")
    vocab = keys.integer("vocab_size")
    shared = keys.flag("tie_word_embeddings", default=False) if tied is None else tied
    outside = (
        embed or embedding("model.embed_tokens", vocab, hidden),
        *(norm("model.norm", hidden) if final_norm is None else final_norm),
        *(() if shared else lm_head(vocab, hidden)),
        *((vector("lm_head.bias", HEAD, vocab, shard=VOCAB),) if head_bias else ()),
        *extra,
    )
    return ModelSpec(
        name="",
        family=keys.model_type,
        vocab_size=vocab,
        hidden_size=hidden,
        layers=layers,
        outside=outside,
        tied_embeddings=shared,
        max_positions=keys.optional_integer(*MAX_POSITION_KEYS) or 0,
        dtype="bf16",
        source="",
    )


MAX_POSITION_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "model_max_length",
    "max_target_positions",
)
