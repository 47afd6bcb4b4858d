"""GPT-NeoX, Pythia, Dolly 2: attention and feed-forward side by side, each behind a norm of its own; partial rotary.

With ``use_parallel_residual`` false they follow one another. The fused matrix holds query, key and value head by head.
Source: Black et al. 2022.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("gpt_neox",)
NAMES = """
embedding.weight                        gpt_neox.embed_in.weight
layers.{i}.norms.mixer.weight           gpt_neox.layers.{i}.input_layernorm.weight
layers.{i}.norms.mixer.bias             gpt_neox.layers.{i}.input_layernorm.bias
layers.{i}.mixer.query.weight           gpt_neox.layers.{i}.attention.query_key_value.weight    heads 0 of 3 by H
layers.{i}.mixer.query.bias             gpt_neox.layers.{i}.attention.query_key_value.bias      heads 0 of 3 by H
layers.{i}.mixer.key.weight             gpt_neox.layers.{i}.attention.query_key_value.weight    heads 1 of 3 by H
layers.{i}.mixer.key.bias               gpt_neox.layers.{i}.attention.query_key_value.bias      heads 1 of 3 by H
layers.{i}.mixer.value.weight           gpt_neox.layers.{i}.attention.query_key_value.weight    heads 2 of 3 by H
layers.{i}.mixer.value.bias             gpt_neox.layers.{i}.attention.query_key_value.bias      heads 2 of 3 by H
layers.{i}.mixer.output.weight          gpt_neox.layers.{i}.attention.dense.weight
layers.{i}.mixer.output.bias            gpt_neox.layers.{i}.attention.dense.bias
layers.{i}.norms.feed_forward.weight    gpt_neox.layers.{i}.post_attention_layernorm.weight
layers.{i}.norms.feed_forward.bias      gpt_neox.layers.{i}.post_attention_layernorm.bias
layers.{i}.feed_forward.up.weight       gpt_neox.layers.{i}.mlp.dense_h_to_4h.weight
layers.{i}.feed_forward.up.bias         gpt_neox.layers.{i}.mlp.dense_h_to_4h.bias
layers.{i}.feed_forward.down.weight     gpt_neox.layers.{i}.mlp.dense_4h_to_h.weight
layers.{i}.feed_forward.down.bias       gpt_neox.layers.{i}.mlp.dense_4h_to_h.bias
norm.weight                             gpt_neox.final_layer_norm.weight
norm.bias                               gpt_neox.final_layer_norm.bias
head.weight                             embed_out.weight
head.weight                             lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    bias = settings.flag("attention_bias", default=True)
    style = Style(
        norm=NormShape(kind="layer_norm", eps=settings.number("layer_norm_eps", default=1e-5)),
        activation=activation_of(settings, "hidden_act", default="gelu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=True,
        placement="beside" if settings.flag("use_parallel_residual", default=True) else "pre",
        rotaries=(("all", read_rotary(settings, head_width(spec), share=0.25)),),
        turn=lambda i: "all",
    )
    return build_decoder(spec, style)
