"""StarCoder 2: rotary positions and grouped heads, LayerNorms with shift, a plain feed-forward, biases everywhere.

All layers slide when the config states a window. Source: Lozhkov et al. 2024.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("starcoder2",)
NAMES = (
    llama.HEADS
    + """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.norms.mixer.bias             model.layers.{i}.input_layernorm.bias
layers.{i}.norms.feed_forward.weight    model.layers.{i}.post_attention_layernorm.weight
layers.{i}.norms.feed_forward.bias      model.layers.{i}.post_attention_layernorm.bias
layers.{i}.feed_forward.up.weight       model.layers.{i}.mlp.c_fc.weight
layers.{i}.feed_forward.up.bias         model.layers.{i}.mlp.c_fc.bias
layers.{i}.feed_forward.down.weight     model.layers.{i}.mlp.c_proj.weight
layers.{i}.feed_forward.down.bias       model.layers.{i}.mlp.c_proj.bias
norm.weight                             model.norm.weight
norm.bias                               model.norm.bias
head.weight                             lm_head.weight
"""
)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    bias = settings.flag("use_bias", default=True)
    style = Style(
        norm=NormShape(
            kind="layer_norm", eps=settings.number("norm_epsilon", "layer_norm_eps", default=1e-5)
        ),
        activation=activation_of(settings, "hidden_act", default="gelu_pytorch_tanh"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        rotaries=(("all", read_rotary(settings, head_width(spec))),),
        turn=lambda i: "all",
    )
    return build_decoder(spec, style)
