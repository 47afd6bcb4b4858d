"""gpt-oss: every other layer sees a window, heads have sinks, all experts have biases and a clamped product.

The router's softmax runs over the chosen experts alone, which is the softmax over all, renormalised. A checkpoint stores
gate and up of an expert in one matrix, row about; released ones in blocks of 32 four-bit numbers with a shared exponent
(MXFP4, ``weights/mxfp4.py``). Source: OpenAI 2025 (gpt-oss-120b & gpt-oss-20b model card).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward, refuse_other
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("gpt_oss",)
NAMES = (
    llama.HEADS
    + """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.sinks                  model.layers.{i}.self_attn.sinks
layers.{i}.norms.feed_forward.weight    model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.router.weight   model.layers.{i}.mlp.router.weight
layers.{i}.feed_forward.router.bias     model.layers.{i}.mlp.router.bias
layers.{i}.feed_forward.gate            model.layers.{i}.mlp.experts.gate_up_proj         interleave columns 0 of 2; transpose
layers.{i}.feed_forward.up              model.layers.{i}.mlp.experts.gate_up_proj         interleave columns 1 of 2; transpose
layers.{i}.feed_forward.down            model.layers.{i}.mlp.experts.down_proj            transpose
layers.{i}.feed_forward.gate_bias       model.layers.{i}.mlp.experts.gate_up_proj_bias    interleave columns 0 of 2
layers.{i}.feed_forward.up_bias         model.layers.{i}.mlp.experts.gate_up_proj_bias    interleave columns 1 of 2
layers.{i}.feed_forward.down_bias       model.layers.{i}.mlp.experts.down_proj_bias
norm.weight                             model.norm.weight
head.weight                             lm_head.weight
"""
)
# What the class takes when the config says nothing of rotary scaling.
_STRETCHED = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    refuse_other(settings, "hidden_act", "silu", "swish")
    if settings.value("rope_parameters") is None and settings.value("rope_scaling") is None:
        settings.config = {**settings.config, "rope_parameters": _STRETCHED}
    bias = settings.flag("attention_bias", default=True)
    head_width = spec.layers[0].mixers[0].head_dim  # type: ignore[attr-defined]
    style = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-5)),
        qkv_bias=bias,
        output_bias=bias,
        sinks=True,
        rotaries=(("all", read_rotary(settings, head_width, base=150000.0)),),
        turn=lambda i: "all",
    )
    clamp = (settings.number("swiglu_alpha", default=1.702), settings.number("swiglu_limit", default=7.0))
    return build_decoder(
        spec,
        style.replace(
            feed_forward=lambda layer, i: feed_forward(
                spec, style, layer, {"bias": True}, bias=True, clamp=clamp
            )
        ),
    )
