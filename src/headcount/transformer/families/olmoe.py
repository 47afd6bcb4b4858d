"""OLMoE: 64 narrow experts of which each token visits 8, and a norm over all heads of the queries and of the keys.

Source: Muennighoff et al. 2024 (OLMoE).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families import qwen_moe
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward, refuse_other
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("olmoe",)
NAMES = qwen_moe.NAMES


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded; UnsupportedModelError for a clip, which would follow the norms here."""
    settings = Settings(spec)
    refuse_other(settings, "clip_qkv")
    bias = settings.flag("attention_bias")
    head_width = spec.layers[0].mixers[0].head_dim  # type: ignore[attr-defined]
    style = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-5)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="full",
        rotaries=(("all", read_rotary(settings, head_width)),),
        turn=lambda i: "all",
    )
    routing = {"renormalize": settings.flag("norm_topk_prob")}
    rule = style.replace(feed_forward=lambda layer, i: feed_forward(spec, style, layer, routing))
    return build_decoder(spec, rule)
