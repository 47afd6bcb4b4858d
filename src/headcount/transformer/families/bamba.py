"""Bamba: Mamba-2 in most layers, attention with half-width rotary positions in a few, SwiGLU in all.

Source: IBM, Princeton, CMU, UIUC 2024 (Bamba-9B).
"""

from __future__ import annotations

from headcount.spec.attention import HeadedAttention
from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama, mamba2
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("bamba",)
NAMES = (
    llama.HEADS
    + mamba2.NAMES
    + """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.norms.feed_forward.weight    model.layers.{i}.pre_ff_layernorm.weight
layers.{i}.feed_forward.gate.weight     model.layers.{i}.feed_forward.gate_proj.weight
layers.{i}.feed_forward.gate.bias       model.layers.{i}.feed_forward.gate_proj.bias
layers.{i}.feed_forward.up.weight       model.layers.{i}.feed_forward.up_proj.weight
layers.{i}.feed_forward.up.bias         model.layers.{i}.feed_forward.up_proj.bias
layers.{i}.feed_forward.down.weight     model.layers.{i}.feed_forward.down_proj.weight
layers.{i}.feed_forward.down.bias       model.layers.{i}.feed_forward.down_proj.bias
norm.weight                             model.final_layernorm.weight
head.weight                             lm_head.weight
"""
)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    eps = settings.number("rms_norm_eps", default=1e-5)
    activation = activation_of(settings, "hidden_act", default="silu")
    bias = settings.flag("attention_bias")
    widths = [m.head_dim for layer in spec.layers for m in layer.mixers if isinstance(m, HeadedAttention)]
    base = Style(
        norm=NormShape(eps=eps),
        activation=activation,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=settings.flag("mlp_bias"),
        rotaries=(("all", read_rotary(settings, widths[0], share=0.5)),) if widths else (),
        turn=lambda i: "all",
    )
    return build_decoder(spec, base.replace(mixer=mamba2.hybrid_mixer(spec, base, settings)))
