"""GPT-2: learned positions, LayerNorms before the sub-layers, everything biased.

Its files hold matrices as (inputs, outputs), and query, key and value in one. Source: Radford et al. 2019.
"""

from __future__ import annotations

import math

from headcount.spec.attention import HeadedAttention
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.self_attention import SelfAttention
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, attention, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("gpt2",)
NAMES = """
embedding.weight                        transformer.wte.weight
positions.weight                        transformer.wpe.weight
layers.{i}.norms.mixer.weight           transformer.h.{i}.ln_1.weight
layers.{i}.norms.mixer.bias             transformer.h.{i}.ln_1.bias
layers.{i}.mixer.output.bias            transformer.h.{i}.attn.c_proj.bias
layers.{i}.norms.feed_forward.weight    transformer.h.{i}.ln_2.weight
layers.{i}.norms.feed_forward.bias      transformer.h.{i}.ln_2.bias
layers.{i}.feed_forward.up.bias         transformer.h.{i}.mlp.c_fc.bias
layers.{i}.feed_forward.down.bias       transformer.h.{i}.mlp.c_proj.bias
norm.weight                             transformer.ln_f.weight
norm.bias                               transformer.ln_f.bias
head.weight                             lm_head.weight
layers.{i}.mixer.query.weight           transformer.h.{i}.attn.c_attn.weight    transpose; rows 0 of 3
layers.{i}.mixer.query.bias             transformer.h.{i}.attn.c_attn.bias      rows 0 of 3
layers.{i}.mixer.key.weight             transformer.h.{i}.attn.c_attn.weight    transpose; rows 1 of 3
layers.{i}.mixer.key.bias               transformer.h.{i}.attn.c_attn.bias      rows 1 of 3
layers.{i}.mixer.value.weight           transformer.h.{i}.attn.c_attn.weight    transpose; rows 2 of 3
layers.{i}.mixer.value.bias             transformer.h.{i}.attn.c_attn.bias      rows 2 of 3
layers.{i}.mixer.output.weight          transformer.h.{i}.attn.c_proj.weight    transpose
layers.{i}.feed_forward.up.weight       transformer.h.{i}.mlp.c_fc.weight       transpose
layers.{i}.feed_forward.down.weight     transformer.h.{i}.mlp.c_proj.weight     transpose
"""


def style(spec: ModelSpec, *, default_activation: str = "gelu_new") -> Style:
    """GPT-2's switches."""
    settings = Settings(spec)
    plain = Style(
        norm=NormShape(
            kind="layer_norm", eps=settings.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5)
        ),
        activation=activation_of(settings, "activation_function", default=default_activation),
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
    )

    def mixer(layer: LayerSpec, index: int) -> SelfAttention:
        return attention(spec, plain.replace(scale=_scale(settings, layer, index)), layer, index)

    return plain.replace(mixer=mixer)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    return build_decoder(spec, style(spec), positions=spec.max_positions)


def _scale(settings: Settings, layer: LayerSpec, index: int) -> float:
    """1 / sqrt(H), or 1; with ``scale_attn_by_inverse_layer_idx`` divided by the layer's number, from 1."""
    heads = layer.mixers[0]
    assert isinstance(heads, HeadedAttention)
    scale = 1 / math.sqrt(heads.head_dim) if settings.flag("scale_attn_weights", default=True) else 1.0
    return scale / (index + 1) if settings.flag("scale_attn_by_inverse_layer_idx") else scale
