"""Phi-3, Phi-3.5, Phi-4: Llama with query, key and value in one matrix, gate and up in another; long contexts by longrope.

All layers slide when the config states a window. Source: Abdin et al. 2024.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("phi3",)
NAMES = """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query.weight           model.layers.{i}.self_attn.qkv_proj.weight    rows 0:NH
layers.{i}.mixer.key.weight             model.layers.{i}.self_attn.qkv_proj.weight    rows NH:NH+KH
layers.{i}.mixer.value.weight           model.layers.{i}.self_attn.qkv_proj.weight    rows NH+KH:NH+2KH
layers.{i}.mixer.output.weight          model.layers.{i}.self_attn.o_proj.weight
layers.{i}.norms.feed_forward.weight    model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.gate.weight     model.layers.{i}.mlp.gate_up_proj.weight      rows 0 of 2
layers.{i}.feed_forward.up.weight       model.layers.{i}.mlp.gate_up_proj.weight      rows 1 of 2
layers.{i}.feed_forward.down.weight     model.layers.{i}.mlp.down_proj.weight
norm.weight                             model.norm.weight
head.weight                             lm_head.weight
"""
# The length Phi-3 was trained on, where a config that stretches it does not say.
TRAINED_LENGTH = 4096


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    for name in ("rope_scaling", "rope_parameters"):
        # The reference reads its two other words as longrope; files with them are not known.
        for key in ("type", "rope_type"):
            settings.only(f"{name}.{key}", "default", "longrope", "su")
    stated = Settings(spec)
    stated.config = {"original_max_position_embeddings": TRAINED_LENGTH, **spec.config}
    style = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-5)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        rotaries=(("all", read_rotary(stated, head_width(spec))),),
        turn=lambda i: "all",
    )
    return build_decoder(spec, style)
