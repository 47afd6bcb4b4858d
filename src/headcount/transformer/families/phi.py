"""Phi 1, 1.5 and 2: attention and feed-forward side by side behind one norm, biases everywhere, the head included.

Half of each head's columns turn. Source: Gunasekar et al. 2023; Li et al. 2023 (Phi-1.5).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("phi",)
NAMES = """
embedding.weight                       model.embed_tokens.weight
layers.{i}.norms.shared.weight         model.layers.{i}.input_layernorm.weight
layers.{i}.norms.shared.bias           model.layers.{i}.input_layernorm.bias
layers.{i}.mixer.query.weight          model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias            model.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.query_norm.weight     model.layers.{i}.self_attn.q_layernorm.weight
layers.{i}.mixer.query_norm.bias       model.layers.{i}.self_attn.q_layernorm.bias
layers.{i}.mixer.key.weight            model.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias              model.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.key_norm.weight       model.layers.{i}.self_attn.k_layernorm.weight
layers.{i}.mixer.key_norm.bias         model.layers.{i}.self_attn.k_layernorm.bias
layers.{i}.mixer.value.weight          model.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias            model.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight         model.layers.{i}.self_attn.dense.weight
layers.{i}.mixer.output.bias           model.layers.{i}.self_attn.dense.bias
layers.{i}.feed_forward.up.weight      model.layers.{i}.mlp.fc1.weight
layers.{i}.feed_forward.up.bias        model.layers.{i}.mlp.fc1.bias
layers.{i}.feed_forward.down.weight    model.layers.{i}.mlp.fc2.weight
layers.{i}.feed_forward.down.bias      model.layers.{i}.mlp.fc2.bias
norm.weight                            model.final_layernorm.weight
norm.bias                              model.final_layernorm.bias
head.weight                            lm_head.weight
head.bias                              lm_head.bias
head_bias                              lm_head.bias
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    style = Style(
        norm=NormShape(kind="layer_norm", eps=settings.number("layer_norm_eps", default=1e-5)),
        activation=activation_of(settings, "hidden_act", default="gelu_new"),
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        placement="parallel",
        qk_norm="head" if settings.flag("qk_layernorm") else False,
        rotaries=(("all", read_rotary(settings, head_width(spec), share=0.5)),),
        turn=lambda i: "all",
    )
    return build_decoder(spec, style, head_bias=True)
