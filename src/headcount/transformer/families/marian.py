"""Marian (OPUS translation) and its relatives BART, mBART and Pegasus: the paper's encoder-decoder with small changes.

    type      positions                      norms                     embeddings     activation (default)
    marian    sinusoids, computed            after each sum            sqrt(D) x      gelu (released models: swish)
    bart      learned, from row 2            after each sum, and one behind the embeddings      gelu
    mbart     learned, from row 2            before each sub-layer, one behind the embeddings, one at the end
    pegasus   sinusoids, computed            before each sub-layer, one at the end

All biases; one table for source, target and head unless the config parts them; a constant row is added to the logits.
Sources: Junczys-Dowmunt et al. 2018; Lewis et al. 2020; Liu et al. 2020; Zhang et al. 2020.
"""

from __future__ import annotations

import math

from headcount.errors import UnsupportedModelError
from headcount.record import Record
from headcount.spec.model import ModelSpec
from headcount.transformer.families.column import ColumnStyle, column_layer
from headcount.transformer.families.encoder_decoder import EncoderDecoder, EncoderDecoderShape
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.stack import StackShape
from headcount.transformer.families.style import activation_of
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("bart", "marian", "mbart", "pegasus")
NAMES = """
embedding.weight                                model.decoder.embed_tokens.weight
embedding.weight                                model.shared.weight
source_embedding.weight                         model.encoder.embed_tokens.weight
encoder.positions.weight                        model.encoder.embed_positions.weight
encoder.embedding_norm.weight                   model.encoder.layernorm_embedding.weight
encoder.embedding_norm.bias                     model.encoder.layernorm_embedding.bias
encoder.layers.{i}.mixer.query.weight           model.encoder.layers.{i}.self_attn.q_proj.weight
encoder.layers.{i}.mixer.query.bias             model.encoder.layers.{i}.self_attn.q_proj.bias
encoder.layers.{i}.mixer.key.weight             model.encoder.layers.{i}.self_attn.k_proj.weight
encoder.layers.{i}.mixer.key.bias               model.encoder.layers.{i}.self_attn.k_proj.bias
encoder.layers.{i}.mixer.value.weight           model.encoder.layers.{i}.self_attn.v_proj.weight
encoder.layers.{i}.mixer.value.bias             model.encoder.layers.{i}.self_attn.v_proj.bias
encoder.layers.{i}.mixer.output.weight          model.encoder.layers.{i}.self_attn.out_proj.weight
encoder.layers.{i}.mixer.output.bias            model.encoder.layers.{i}.self_attn.out_proj.bias
encoder.layers.{i}.norms.mixer.weight           model.encoder.layers.{i}.self_attn_layer_norm.weight
encoder.layers.{i}.norms.mixer.bias             model.encoder.layers.{i}.self_attn_layer_norm.bias
encoder.layers.{i}.feed_forward.up.weight       model.encoder.layers.{i}.fc1.weight
encoder.layers.{i}.feed_forward.up.bias         model.encoder.layers.{i}.fc1.bias
encoder.layers.{i}.feed_forward.down.weight     model.encoder.layers.{i}.fc2.weight
encoder.layers.{i}.feed_forward.down.bias       model.encoder.layers.{i}.fc2.bias
encoder.layers.{i}.norms.feed_forward.weight    model.encoder.layers.{i}.final_layer_norm.weight
encoder.layers.{i}.norms.feed_forward.bias      model.encoder.layers.{i}.final_layer_norm.bias
encoder.norm.weight                             model.encoder.layer_norm.weight
encoder.norm.bias                               model.encoder.layer_norm.bias
positions.weight                                model.decoder.embed_positions.weight
embedding_norm.weight                           model.decoder.layernorm_embedding.weight
embedding_norm.bias                             model.decoder.layernorm_embedding.bias
layers.{i}.mixer.query.weight                   model.decoder.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias                     model.decoder.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.key.weight                     model.decoder.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias                       model.decoder.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.value.weight                   model.decoder.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias                     model.decoder.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight                  model.decoder.layers.{i}.self_attn.out_proj.weight
layers.{i}.mixer.output.bias                    model.decoder.layers.{i}.self_attn.out_proj.bias
layers.{i}.norms.mixer.weight                   model.decoder.layers.{i}.self_attn_layer_norm.weight
layers.{i}.norms.mixer.bias                     model.decoder.layers.{i}.self_attn_layer_norm.bias
layers.{i}.cross.query.weight                   model.decoder.layers.{i}.encoder_attn.q_proj.weight
layers.{i}.cross.query.bias                     model.decoder.layers.{i}.encoder_attn.q_proj.bias
layers.{i}.cross.key.weight                     model.decoder.layers.{i}.encoder_attn.k_proj.weight
layers.{i}.cross.key.bias                       model.decoder.layers.{i}.encoder_attn.k_proj.bias
layers.{i}.cross.value.weight                   model.decoder.layers.{i}.encoder_attn.v_proj.weight
layers.{i}.cross.value.bias                     model.decoder.layers.{i}.encoder_attn.v_proj.bias
layers.{i}.cross.output.weight                  model.decoder.layers.{i}.encoder_attn.out_proj.weight
layers.{i}.cross.output.bias                    model.decoder.layers.{i}.encoder_attn.out_proj.bias
layers.{i}.norms.cross.weight                   model.decoder.layers.{i}.encoder_attn_layer_norm.weight
layers.{i}.norms.cross.bias                     model.decoder.layers.{i}.encoder_attn_layer_norm.bias
layers.{i}.feed_forward.up.weight               model.decoder.layers.{i}.fc1.weight
layers.{i}.feed_forward.up.bias                 model.decoder.layers.{i}.fc1.bias
layers.{i}.feed_forward.down.weight             model.decoder.layers.{i}.fc2.weight
layers.{i}.feed_forward.down.bias               model.decoder.layers.{i}.fc2.bias
layers.{i}.norms.feed_forward.weight            model.decoder.layers.{i}.final_layer_norm.weight
layers.{i}.norms.feed_forward.bias              model.decoder.layers.{i}.final_layer_norm.bias
norm.weight                                     model.decoder.layer_norm.weight
norm.bias                                       model.decoder.layer_norm.bias
head.weight                                     lm_head.weight
head_offset                                     final_logits_bias
"""


class _Kind(Record):
    """What a type's class fixes; ``spare`` rows stand before position 0's in its table of positions."""

    positions: str
    placement: str
    embedding_norm: bool
    final_norm: bool
    spare: int = 0
    scale_embedding: bool = False


_KINDS = {
    "bart": _Kind(positions="learned", placement="post", embedding_norm=True, final_norm=False, spare=2),
    "marian": _Kind(positions="sinusoidal", placement="post", embedding_norm=False, final_norm=False),
    "mbart": _Kind(positions="learned", placement="pre", embedding_norm=True, final_norm=True, spare=2),
    "pegasus": _Kind(positions="sinusoidal", placement="pre", embedding_norm=False, final_norm=True),
}
IGNORED = (
    # Sinusoids, which are computed here.
    r"model\.(encoder|decoder)\.embed_positions\.weight",
    # Copies of the one table; where the config parts it, the class keeps a shared one that nothing reads.
    r"model\.(encoder\.embed_tokens|shared)\.weight",
)


def build(spec: ModelSpec) -> EncoderDecoder:
    """The network, parameters not yet loaded."""
    kind, settings = _KINDS[spec.family], Settings(spec)
    assert spec.encoder is not None
    _refuse_other_wiring(kind, settings)
    norm = NormShape(kind="layer_norm", eps=1e-5)
    activation = activation_of(settings, "activation_function", default="gelu")
    style = ColumnStyle(norm=norm, feed_forward=activation, placement=kind.placement)
    width = spec.hidden_size
    scaled = settings.flag("scale_embedding", default=kind.scale_embedding)
    stack = StackShape(
        width=width,
        norm=norm,
        factor=math.sqrt(width) if scaled else 1.0,
        positions=kind.positions,
        rows=spec.max_positions + kind.spare,
        offset=kind.spare,
        embedding_norm=kind.embedding_norm,
        final_norm=kind.final_norm,
    )
    parted = not settings.flag("share_encoder_decoder_embeddings", default=True)
    own = parted or not spec.tied_embeddings
    shape = EncoderDecoderShape(
        vocabulary=spec.vocab_size,
        encoder=stack,
        decoder=stack,
        tied=spec.tied_embeddings,
        source_vocabulary=settings.integer("vocab_size", default=spec.vocab_size) if own else None,
        head_offset=True,
    )
    return EncoderDecoder(
        shape,
        [column_layer(width, style, layer, causal=False) for layer in spec.encoder.layers],
        [column_layer(width, style, layer, causal=True) for layer in spec.layers],
    )


def _refuse_other_wiring(kind: _Kind, settings: Settings) -> None:
    """Keys of older files that no class reads any more: refused where they ask for another network than the class's."""
    fixed = {
        "normalize_before": kind.placement == "pre",
        "normalize_embedding": kind.embedding_norm,
        "add_final_layer_norm": kind.final_norm,
        "static_position_embeddings": kind.positions == "sinusoidal",
    }
    for key, value in fixed.items():
        if settings.flag(key, default=value) != value:
            raise UnsupportedModelError(
                f"config key {key} is {not value}; a {settings.spec.family} network here has it {value}"
            )
