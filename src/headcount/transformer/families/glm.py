"""GLM-4-9B (glm) and GLM-4-0414 (glm4): half of each head's columns turn, in pairs; gate and up are one matrix.

glm4 norms before and after each sub-layer. Source: GLM Team 2024.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("glm", "glm4")
NAMES = """
embedding.weight                            model.embed_tokens.weight
layers.{i}.norms.mixer.weight               model.layers.{i}.input_layernorm.weight
layers.{i}.norms.mixer_out.weight           model.layers.{i}.post_self_attn_layernorm.weight
layers.{i}.mixer.query.weight               model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias                 model.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.key.weight                 model.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias                   model.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.value.weight               model.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias                 model.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight              model.layers.{i}.self_attn.o_proj.weight
layers.{i}.norms.feed_forward.weight        model.layers.{i}.post_attention_layernorm.weight
layers.{i}.norms.feed_forward_out.weight    model.layers.{i}.post_mlp_layernorm.weight
layers.{i}.feed_forward.gate.weight         model.layers.{i}.mlp.gate_up_proj.weight    rows 0 of 2
layers.{i}.feed_forward.up.weight           model.layers.{i}.mlp.gate_up_proj.weight    rows 1 of 2
layers.{i}.feed_forward.down.weight         model.layers.{i}.mlp.down_proj.weight
norm.weight                                 model.norm.weight
head.weight                                 lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    style = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1.5625e-7)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        qkv_bias=settings.flag("attention_bias", default=True),
        placement="sandwich" if spec.family == "glm4" else "pre",
        rotaries=(("all", read_rotary(settings, head_width(spec), share=0.5)),),
        turn=lambda i: "all",
        rotary_layout="interleaved",
    )
    return build_decoder(spec, style)
