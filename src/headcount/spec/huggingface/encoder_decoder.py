"""Encoder-decoders: the source is read once; its keys and values then stay constant while text grows.

    decoder layer remembers   K (H + H') per generated token (self)  +  K (H + H') x source positions (cross)
    encoder layer             remembers nothing between requests

Grouped heads (``--kv-heads``) apply to the decoder's self- and cross-attention, not to the encoder, as in the
GQA paper (arXiv 2305.13245). The source is taken at the longest the model allows.

Sources: the model classes of transformers 5.24.0 (tests/reference/test_parameters.py). One difference is
meant: checkpoints of T5 1.1, Flan-T5 and mT5 hold an untied head and their configs say so; transformers 5
ties it anyway.
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.record import Record
from headcount.spec.attention import CrossAttention, FullAttention
from headcount.spec.huggingface.classic import projections
from headcount.spec.huggingface.parts import HeadShape, embedding, lm_head, norms, plain, positions
from headcount.spec.model import EncoderSpec, FeedForward, LayerSpec, ModelSpec
from headcount.spec.weight import (
    ATTENTION,
    COLUMN,
    CROSS_ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    OTHER,
    ROW,
    matrix,
    norm,
    vector,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headcount.spec.attention import Mixer
    from headcount.spec.huggingface.keys import Keys
    from headcount.spec.weight import Weight

# T5's relative positions have no end; it was trained on sources of 512 tokens (arXiv 1910.10683).
T5_SOURCE_POSITIONS = 512
_ACTIVATIONS = ("relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "swish", "tanh")


class Blueprint(Record):
    """What differs among BART's descendants.

    position_rows       spare rows of a stack's position table
    embedding_norm      a LayerNorm behind the embedding of each stack
    final_norm          a LayerNorm behind the last block of each stack
    key_bias            whether key projections have a bias (Whisper's do not)
    """

    position_rows: int
    embedding_norm: bool
    final_norm: bool
    key_bias: bool = True


def stack_shape(keys: Keys, heads: str, *, grouped: bool) -> HeadShape:
    """Head geometry of one stack: N = ``heads``, H = D / N; K = N in an encoder."""
    hidden, q = keys.integer("d_model"), keys.integer(heads)
    d = keys.divided("d_model", hidden, q)
    return HeadShape(hidden=hidden, q=q, kv=decoder_kv_heads(keys, q) if grouped else q, d=d, dv=d)


def decoder_kv_heads(keys: Keys, q: int) -> int:
    """K of the decoder: N, unless the user asks what fewer would do (these classes have no key for it)."""
    return keys.over({**keys.config, "num_key_value_heads": q}).key_value_heads(q)


def self_attention(shape: HeadShape) -> FullAttention:
    """Causal in the decoder, both ways in the encoder."""
    return FullAttention(
        num_attention_heads=shape.q, num_key_value_heads=shape.kv, head_dim=shape.d, v_head_dim=shape.dv
    )


def decoder_mixers(shape: HeadShape, source_positions: int) -> tuple[Mixer, ...]:
    """What one decoder layer remembers: its own tokens and the source."""
    cross = CrossAttention(
        num_attention_heads=shape.q,
        num_key_value_heads=shape.kv,
        head_dim=shape.d,
        v_head_dim=shape.dv,
        source_positions=source_positions,
    )
    return (self_attention(shape), cross)


def bart_attention(shape: HeadShape, path: str, blueprint: Blueprint, part: str) -> tuple[Weight, ...]:
    """Four biased projections (Whisper: no bias on keys)."""
    return projections(
        shape,
        path,
        ("q_proj", "k_proj", "v_proj", "out_proj"),
        biases=(True, blueprint.key_bias, True, True),
        part=part,
    )


def bart_layer(keys: Keys, blueprint: Blueprint, stack: str, source_positions: int) -> LayerSpec:
    """One block of ``stack`` (``encoder`` or ``decoder``)."""
    decoder = stack == "decoder"
    shape = stack_shape(keys, f"{stack}_attention_heads", grouped=decoder)
    width = keys.integer(f"{stack}_ffn_dim")
    path = f"model.{stack}.layers.{{i}}."
    names = ["self_attn_layer_norm", "final_layer_norm"]
    cross: tuple[Weight, ...] = ()
    if decoder:
        names.insert(1, "encoder_attn_layer_norm")
        cross = bart_attention(shape, path + "encoder_attn.", blueprint, CROSS_ATTENTION)
    return LayerSpec(
        mixers=decoder_mixers(shape, source_positions) if decoder else (self_attention(shape),),
        feed_forward=FeedForward(width=width, matrices=2),
        weights=(
            *bart_attention(shape, path + "self_attn.", blueprint, ATTENTION),
            *cross,
            *norms(shape.hidden, names, bias=True, path=path),
            *plain(shape.hidden, width, path=path, names=("fc1", "fc2")),
        ),
    )


def stack_outside(blueprint: Blueprint, stack: str, *, rows: int, hidden: int) -> tuple[Weight, ...]:
    """Positions and norms of one stack."""
    path = f"model.{stack}."
    return (
        positions(path + "embed_positions", rows + blueprint.position_rows, hidden),
        *(norm(path + "layernorm_embedding", hidden, bias=True) if blueprint.embedding_norm else ()),
        *(norm(path + "layer_norm", hidden, bias=True) if blueprint.final_norm else ()),
    )


def shared_embeddings(keys: Keys, hidden: int) -> tuple[tuple[Weight, ...], int]:
    """Return the token tables outside both stacks, and V of the decoder.

    Tied: one table for encoder, decoder and head. Untied: one for each, and the shared one. Marian may keep
    two vocabularies; its head then belongs to the decoder's.
    """
    vocab = keys.integer("vocab_size")
    # Not stated means the same as vocab_size, whatever that is: the class default would be a number.
    stated = keys.stated("decoder_vocab_size")
    target = keys.integer("decoder_vocab_size", default=vocab) if stated else vocab
    tied = keys.flag("tie_word_embeddings", default=True)
    own = (
        embedding("model.encoder.embed_tokens", vocab, hidden),
        embedding("model.decoder.embed_tokens", target, hidden),
    )
    if not keys.flag("share_encoder_decoder_embeddings", default=True):
        return (*own, *(() if tied else lm_head(target, hidden))), target
    shared = embedding("model.shared", vocab, hidden)
    return ((shared,) if tied else (shared, *own, *lm_head(vocab, hidden))), vocab


def two_stacks(
    keys: Keys, blueprint: Blueprint, tokens: tuple[Weight, ...], *, vocab: int, source: int, target: int
) -> ModelSpec:
    """Assemble BART, its descendants and Whisper; ``tokens`` are the weights outside both stacks."""
    hidden = keys.integer("d_model")
    encoder = EncoderSpec(
        layers=(bart_layer(keys, blueprint, "encoder", source),) * keys.layer_count("encoder_layers"),
        outside=stack_outside(blueprint, "encoder", rows=source, hidden=hidden),
        max_source_positions=source,
    )
    return ModelSpec(
        name="",
        family=keys.model_type,
        vocab_size=vocab,
        hidden_size=hidden,
        layers=(bart_layer(keys, blueprint, "decoder", source),) * keys.layer_count("decoder_layers"),
        outside=(*tokens, *stack_outside(blueprint, "decoder", rows=target, hidden=hidden)),
        tied_embeddings=keys.flag("tie_word_embeddings", default=True),
        max_positions=target,
        dtype="bf16",
        source="",
        encoder=encoder,
    )


def bart_family(blueprint: Blueprint) -> Callable[[Keys], ModelSpec]:
    """Return the builder of one text-to-text descendant of BART."""

    def builder(keys: Keys) -> ModelSpec:
        length = keys.integer("max_position_embeddings")
        tokens, vocab = shared_embeddings(keys, keys.integer("d_model"))
        return two_stacks(keys, blueprint, tokens, vocab=vocab, source=length, target=length)

    return builder


def whisper(keys: Keys) -> ModelSpec:
    """Whisper: two convolutions make 1500 source positions of 30 s of audio; the encoder has no tokens.

    Each convolution is three taps wide: 3 x mel bins x D and 3 x D x D numbers, and a bias of D.
    """
    hidden, vocab = keys.integer("d_model"), keys.integer("vocab_size")
    tied = keys.flag("tie_word_embeddings", default=True)
    spec = two_stacks(
        keys,
        Blueprint(position_rows=0, embedding_norm=False, final_norm=True, key_bias=False),
        (
            embedding("model.decoder.embed_tokens", vocab, hidden),
            *(() if tied else lm_head(vocab, hidden, name="proj_out")),
        ),
        vocab=vocab,
        source=keys.integer("max_source_positions"),
        target=keys.integer("max_target_positions"),
    )
    assert spec.encoder is not None
    convolutions = tuple(
        vector(f"model.encoder.{name}", OTHER, *shape)
        for name, shape in (
            ("conv1", (hidden, keys.integer("num_mel_bins"), 3)),
            ("conv1.bias", (hidden,)),
            ("conv2", (hidden, hidden, 3)),
            ("conv2.bias", (hidden,)),
        )
    )
    return spec.replace(encoder=spec.encoder.replace(outside=(*convolutions, *spec.encoder.outside)))


def t5_is_gated(keys: Keys) -> bool:
    """``feed_forward_proj``: ``relu`` has two matrices, ``gated-gelu`` three."""
    words = keys.text("feed_forward_proj", "relu").split("-")
    if len(words) > 2 or words[-1] not in _ACTIVATIONS or (len(words) == 2 and words[0] != "gated"):
        raise ModelFileError(
            f"config key feed_forward_proj must be X or gated-X, X one of {', '.join(_ACTIVATIONS)}; "
            f"given {'-'.join(words)[:40]!r}"
        )
    return words[0] == "gated"


def t5_layer(keys: Keys, stack: str, *, relative_bias: bool, source_positions: int) -> LayerSpec:
    """One T5 block; ``relative_bias`` adds its table of buckets x N scores."""
    hidden, q, d = keys.integer("d_model"), keys.integer("num_heads"), keys.integer("d_kv")
    decoder = stack == "decoder"
    shape = HeadShape(hidden=hidden, q=q, kv=decoder_kv_heads(keys, q) if decoder else q, d=d, dv=d)
    width, gated = keys.integer("d_ff"), t5_is_gated(keys)
    path = f"{stack}.block.{{i}}.layer."
    inside, last = path + "0.SelfAttention.", path + ("2." if decoder else "1.")
    sublayers = ["0.layer_norm", "1.layer_norm", *(["2.layer_norm"] if decoder else [])]
    names = ("q", "k", "v", "o")
    buckets = keys.integer("relative_attention_num_buckets")
    cross = projections(shape, path + "1.EncDecAttention.", names, part=CROSS_ATTENTION) if decoder else ()
    table = vector(inside + "relative_attention_bias", EMBEDDING, buckets, q)
    return LayerSpec(
        mixers=decoder_mixers(shape, source_positions) if decoder else (self_attention(shape),),
        feed_forward=FeedForward(width=width, matrices=3 if gated else 2),
        weights=(
            *projections(shape, inside, names),
            *((table,) if relative_bias else ()),
            *cross,
            *t5_feed_forward(last + "DenseReluDense.", hidden, width, gated=gated),
            *norms(hidden, sublayers, path=path),
        ),
    )


def t5_feed_forward(path: str, hidden: int, width: int, *, gated: bool) -> tuple[Weight, ...]:
    """``wi`` and ``wo``, or ``wi_0``, ``wi_1`` and ``wo`` when gated; no biases."""
    first = ("wi_0", "wi_1") if gated else ("wi",)
    return (
        *(weight for name in first for weight in matrix(path + name, FEED_FORWARD, (width, hidden), COLUMN)),
        *matrix(path + "wo", FEED_FORWARD, (hidden, width), ROW),
    )


def t5_stack(keys: Keys, stack: str, count: int, source_positions: int) -> tuple[LayerSpec, ...]:
    """All blocks of one stack: T5 and mT5 keep relative positions in the first only, UMT5 in each."""
    every = keys.model_type == "umt5"
    first = t5_layer(keys, stack, relative_bias=True, source_positions=source_positions)
    rest = first if every else t5_layer(keys, stack, relative_bias=False, source_positions=source_positions)
    return (first, *((rest,) * (count - 1)))


def t5_source_positions(keys: Keys) -> int:
    """Longest source: the config's ``n_positions``, else what T5 was trained on, with a note."""
    stated = keys.optional_integer("n_positions")
    if stated is None:
        keys.notes.append(
            f"the config states no longest source; cross-attention is counted at {T5_SOURCE_POSITIONS} tokens"
        )
    return stated or T5_SOURCE_POSITIONS


def t5(keys: Keys) -> ModelSpec:
    """T5, mT5 and UMT5: no biases, RMS norms, head width ``d_kv`` independent of D / N."""
    hidden, vocab = keys.integer("d_model"), keys.integer("vocab_size")
    source = t5_source_positions(keys)
    tied = keys.flag("tie_word_embeddings", default=True)
    encoder_count = keys.layer_count("num_layers")
    decoder_count = keys.layer_count("num_decoder_layers", "num_layers")
    return ModelSpec(
        name="",
        family=keys.model_type,
        vocab_size=vocab,
        hidden_size=hidden,
        layers=t5_stack(keys, "decoder", decoder_count, source),
        outside=(
            embedding("shared", vocab, hidden),
            *norm("decoder.final_layer_norm", hidden),
            *(() if tied else lm_head(vocab, hidden)),
        ),
        tied_embeddings=tied,
        max_positions=keys.optional_integer("n_positions") or 0,
        dtype="bf16",
        source="",
        encoder=EncoderSpec(
            layers=t5_stack(keys, "encoder", encoder_count, source),
            outside=norm("encoder.final_layer_norm", hidden),
            max_source_positions=source,
        ),
    )


# Marian and Pegasus compute their (sinusoidal) positions, and store them like learned ones.
_SINUSOIDAL = Blueprint(position_rows=0, embedding_norm=False, final_norm=True)

BUILDERS: dict[str, Callable[[Keys], ModelSpec]] = {
    "bart": bart_family(Blueprint(position_rows=2, embedding_norm=True, final_norm=False)),
    "marian": bart_family(_SINUSOIDAL.replace(final_norm=False)),
    "mbart": bart_family(Blueprint(position_rows=2, embedding_norm=True, final_norm=True)),
    "mt5": t5,
    "pegasus": bart_family(_SINUSOIDAL),
    "t5": t5,
    "umt5": t5,
    "whisper": whisper,
}
