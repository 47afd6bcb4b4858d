"""Llama 1 to 3, SmolLM 2, and Mistral (whose layers may slide): the plainest of today's decoders.

RMS norms before the sub-layers, rotary positions, grouped heads, SwiGLU; no biases unless the config says so.
Source: Touvron et al. 2023; Jiang et al. 2023 (Mistral 7B).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("llama", "mistral")
# Four projections under these names: the attention of most families since.
HEADS = """
layers.{i}.mixer.query.weight           model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias             model.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.key.weight             model.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias               model.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.value.weight           model.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias             model.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight          model.layers.{i}.self_attn.o_proj.weight
layers.{i}.mixer.output.bias            model.layers.{i}.self_attn.o_proj.bias
"""
NAMES = (
    HEADS
    + """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.norms.feed_forward.weight    model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.gate.weight     model.layers.{i}.mlp.gate_proj.weight
layers.{i}.feed_forward.gate.bias       model.layers.{i}.mlp.gate_proj.bias
layers.{i}.feed_forward.up.weight       model.layers.{i}.mlp.up_proj.weight
layers.{i}.feed_forward.up.bias         model.layers.{i}.mlp.up_proj.bias
layers.{i}.feed_forward.down.weight     model.layers.{i}.mlp.down_proj.weight
layers.{i}.feed_forward.down.bias       model.layers.{i}.mlp.down_proj.bias
norm.weight                             model.norm.weight
head.weight                             lm_head.weight
"""
)


def style(spec: ModelSpec) -> Style:
    """Llama's switches, as its config sets them."""
    settings = Settings(spec)
    bias = settings.flag("attention_bias")
    return Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-6)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=settings.flag("mlp_bias"),
        rotaries=(("all", read_rotary(settings, head_width(spec))),),
        turn=lambda i: "all",
    )


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded. Mistral has no biases, whatever its config says."""
    chosen = style(spec)
    if spec.family == "mistral":
        chosen = chosen.replace(qkv_bias=False, output_bias=False, ffn_bias=False)
    return build_decoder(spec, chosen)
