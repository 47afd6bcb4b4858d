"""T5, T5 1.1 and Flan-T5, mT5, UMT5: encoder-decoders whose positions are told to the scores, by distance.

RMS norms before the sub-layers, no biases, scores not divided by sqrt(H). The first layer of each column owns the table of
relative positions and all layers read it (in UMT5 each has its own); cross-attention has none. T5 ties its head to the
embeddings and divides what enters it by sqrt(D); 1.1 and Flan-T5 hold a head of their own and do not.
Sources: Raffel et al. 2020; Shazeer 2020 (gated feed-forwards).
"""

from __future__ import annotations

import math

from headcount.errors import ModelFileError, UnsupportedModelError
from headcount.spec.attention import FullAttention
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.families.column import ColumnStyle, column_layer
from headcount.transformer.families.encoder_decoder import EncoderDecoder, EncoderDecoderShape
from headcount.transformer.families.layer import Layer
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.stack import StackShape
from headcount.transformer.families.style import ACTIVATIONS
from headcount.transformer.families.told_positions import RelativeBias
from headcount.transformer.layers import FEED_FORWARDS, NormShape

MODEL_TYPES = ("mt5", "t5", "umt5")
NAMES = """
embedding.weight                                shared.weight
encoder.layers.{i}.norms.mixer.weight           encoder.block.{i}.layer.0.layer_norm.weight
encoder.layers.{i}.mixer.query.weight           encoder.block.{i}.layer.0.SelfAttention.q.weight
encoder.layers.{i}.mixer.key.weight             encoder.block.{i}.layer.0.SelfAttention.k.weight
encoder.layers.{i}.mixer.value.weight           encoder.block.{i}.layer.0.SelfAttention.v.weight
encoder.layers.{i}.mixer.output.weight          encoder.block.{i}.layer.0.SelfAttention.o.weight
encoder.layers.{i}.mixer.told.table.weight      encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight
encoder.layers.{i}.norms.feed_forward.weight    encoder.block.{i}.layer.1.layer_norm.weight
encoder.layers.{i}.feed_forward.up.weight       encoder.block.{i}.layer.1.DenseReluDense.wi.weight
encoder.layers.{i}.feed_forward.gate.weight     encoder.block.{i}.layer.1.DenseReluDense.wi_0.weight
encoder.layers.{i}.feed_forward.up.weight       encoder.block.{i}.layer.1.DenseReluDense.wi_1.weight
encoder.layers.{i}.feed_forward.down.weight     encoder.block.{i}.layer.1.DenseReluDense.wo.weight
encoder.norm.weight                             encoder.final_layer_norm.weight
layers.{i}.norms.mixer.weight                   decoder.block.{i}.layer.0.layer_norm.weight
layers.{i}.mixer.query.weight                   decoder.block.{i}.layer.0.SelfAttention.q.weight
layers.{i}.mixer.key.weight                     decoder.block.{i}.layer.0.SelfAttention.k.weight
layers.{i}.mixer.value.weight                   decoder.block.{i}.layer.0.SelfAttention.v.weight
layers.{i}.mixer.output.weight                  decoder.block.{i}.layer.0.SelfAttention.o.weight
layers.{i}.mixer.told.table.weight              decoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight
layers.{i}.norms.cross.weight                   decoder.block.{i}.layer.1.layer_norm.weight
layers.{i}.cross.query.weight                   decoder.block.{i}.layer.1.EncDecAttention.q.weight
layers.{i}.cross.key.weight                     decoder.block.{i}.layer.1.EncDecAttention.k.weight
layers.{i}.cross.value.weight                   decoder.block.{i}.layer.1.EncDecAttention.v.weight
layers.{i}.cross.output.weight                  decoder.block.{i}.layer.1.EncDecAttention.o.weight
layers.{i}.norms.feed_forward.weight            decoder.block.{i}.layer.2.layer_norm.weight
layers.{i}.feed_forward.up.weight               decoder.block.{i}.layer.2.DenseReluDense.wi.weight
layers.{i}.feed_forward.gate.weight             decoder.block.{i}.layer.2.DenseReluDense.wi_0.weight
layers.{i}.feed_forward.up.weight               decoder.block.{i}.layer.2.DenseReluDense.wi_1.weight
layers.{i}.feed_forward.down.weight             decoder.block.{i}.layer.2.DenseReluDense.wo.weight
norm.weight                                     decoder.final_layer_norm.weight
head.weight                                     lm_head.weight
"""
# Copies of ``shared`` that some files write, and a table that the first releases held and nothing reads.
IGNORED = (
    r"(encoder|decoder)\.embed_tokens\.weight",
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
)


def build(spec: ModelSpec) -> EncoderDecoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    assert spec.encoder is not None
    norm = NormShape(eps=settings.number("layer_norm_epsilon", default=1e-6))
    style = ColumnStyle(
        norm=norm, feed_forward=_feed_forward(spec, settings), placement="pre", bias=False, scale=1.0
    )
    stack = StackShape(width=spec.hidden_size, norm=norm, final_norm=True)
    # The published configs say by the tie whether the original's scaling applies; newer files say it outright. mT5 never scales.
    stated = settings.flag("tie_word_embeddings", default=True)
    scaled = settings.flag("scale_decoder_outputs", default=stated) and spec.family != "mt5"
    shape = EncoderDecoderShape(
        vocabulary=spec.vocab_size,
        encoder=stack,
        decoder=stack,
        tied=spec.tied_embeddings,
        head_factor=1 / math.sqrt(spec.hidden_size) if scaled else 1.0,
    )
    return EncoderDecoder(
        shape,
        _layers(spec, settings, style, spec.encoder.layers, causal=False),
        _layers(spec, settings, style, spec.layers, causal=True),
    )


def _layers(
    spec: ModelSpec, settings: Settings, style: ColumnStyle, layers: tuple[LayerSpec, ...], *, causal: bool
) -> list[Layer]:
    """A column; its layers share the first one's relative positions, except UMT5's."""
    made, bias = [], None
    for layer in layers:
        if bias is None or spec.family == "umt5":
            bias = _relative_bias(settings, layer, causal=causal)
        made.append(column_layer(spec.hidden_size, style, layer, causal=causal, bias=bias))
    return made


def _relative_bias(settings: Settings, layer: LayerSpec, *, causal: bool) -> RelativeBias:
    mixer = layer.mixers[0]
    assert isinstance(mixer, FullAttention)
    buckets = settings.integer("relative_attention_num_buckets", default=32)
    reach = settings.integer("relative_attention_max_distance", default=128)
    exact = buckets // (2 if causal else 4)
    if not 0 < exact < reach:
        raise ModelFileError(f"config: {buckets} buckets of relative positions do not reach {reach} tokens")
    return RelativeBias(buckets, mixer.num_attention_heads, reach=reach, both_ways=not causal)


def _feed_forward(spec: ModelSpec, settings: Settings) -> str:
    """``relu``, ``gated-gelu`` (tanh form, whatever the name says), ``gated-silu``, ...: its name in ``layers``."""
    stated = settings.text("feed_forward_proj", default="gated-gelu" if spec.family != "t5" else "relu")
    word = "gelu_new" if stated == "gated-gelu" else stated.removeprefix("gated-")
    if word not in ACTIVATIONS:
        raise UnsupportedModelError(f"activation {word[:40]!r} is not known; known: {', '.join(ACTIVATIONS)}")
    gated = {activation: name for name, (is_gated, activation) in FEED_FORWARDS.items() if is_gated}
    activation = ACTIVATIONS[word]
    return gated[activation] if stated.startswith("gated-") else activation
