"""BLOOM: ALiBi instead of positions, a norm behind the embeddings, query, key and value fused head by head.

Source: BigScience 2022.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.self_attention import Alibi, alibi_slopes
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, build_decoder, heads_of
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("bloom",)
NAMES = """
embedding.weight                        transformer.word_embeddings.weight
embedding_norm.weight                   transformer.word_embeddings_layernorm.weight
embedding_norm.bias                     transformer.word_embeddings_layernorm.bias
layers.{i}.norms.mixer.weight           transformer.h.{i}.input_layernorm.weight
layers.{i}.norms.mixer.bias             transformer.h.{i}.input_layernorm.bias
layers.{i}.mixer.query.weight           transformer.h.{i}.self_attention.query_key_value.weight    heads 0 of 3 by H
layers.{i}.mixer.query.bias             transformer.h.{i}.self_attention.query_key_value.bias      heads 0 of 3 by H
layers.{i}.mixer.key.weight             transformer.h.{i}.self_attention.query_key_value.weight    heads 1 of 3 by H
layers.{i}.mixer.key.bias               transformer.h.{i}.self_attention.query_key_value.bias      heads 1 of 3 by H
layers.{i}.mixer.value.weight           transformer.h.{i}.self_attention.query_key_value.weight    heads 2 of 3 by H
layers.{i}.mixer.value.bias             transformer.h.{i}.self_attention.query_key_value.bias      heads 2 of 3 by H
layers.{i}.mixer.output.weight          transformer.h.{i}.self_attention.dense.weight
layers.{i}.mixer.output.bias            transformer.h.{i}.self_attention.dense.bias
layers.{i}.norms.feed_forward.weight    transformer.h.{i}.post_attention_layernorm.weight
layers.{i}.norms.feed_forward.bias      transformer.h.{i}.post_attention_layernorm.bias
layers.{i}.feed_forward.up.weight       transformer.h.{i}.mlp.dense_h_to_4h.weight
layers.{i}.feed_forward.up.bias         transformer.h.{i}.mlp.dense_h_to_4h.bias
layers.{i}.feed_forward.down.weight     transformer.h.{i}.mlp.dense_4h_to_h.weight
layers.{i}.feed_forward.down.bias       transformer.h.{i}.mlp.dense_4h_to_h.bias
norm.weight                             transformer.ln_f.weight
norm.bias                               transformer.ln_f.bias
head.weight                             lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    norm = NormShape(
        kind="layer_norm", eps=settings.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5)
    )
    style = Style(
        norm=norm,
        activation="gelu_tanh",
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        placement="through" if settings.flag("apply_residual_connection_post_layernorm") else "pre",
        bias=Alibi(alibi_slopes(heads_of(spec).num_attention_heads)),
    )
    return build_decoder(spec, style, embedding_norm=norm)
