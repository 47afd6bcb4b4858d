"""OLMo 1, 2 and 3: fully open models; Llama with other norms.

OLMo 1   LayerNorms without any parameter; query, key and value may be clipped
OLMo 2   norms behind the sub-layers, inside the sum; queries and keys normed over all heads at once
OLMo 3   the same; three sliding layers to one full one, of which only the full ones stretch their rotary positions

Source: Groeneveld et al. 2024; OLMo Team 2024, 2025.
"""

from __future__ import annotations

from headcount.spec.attention import SlidingWindow
from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import RotaryShape, read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("olmo", "olmo2", "olmo3")
NAMES = (
    llama.HEADS
    + """
embedding.weight                        model.embed_tokens.weight
layers.{i}.mixer.query_norm.weight      model.layers.{i}.self_attn.q_norm.weight
layers.{i}.mixer.key_norm.weight        model.layers.{i}.self_attn.k_norm.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.gate.weight     model.layers.{i}.mlp.gate_proj.weight
layers.{i}.feed_forward.up.weight       model.layers.{i}.mlp.up_proj.weight
layers.{i}.feed_forward.down.weight     model.layers.{i}.mlp.down_proj.weight
layers.{i}.norms.feed_forward.weight    model.layers.{i}.post_feedforward_layernorm.weight
norm.weight                             model.norm.weight
head.weight                             lm_head.weight
"""
)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    style = llama.style(spec).replace(ffn_bias=False)
    if spec.family == "olmo":
        norm = NormShape(kind="layer_norm", eps=1e-5, bias=False, gain=False)
        return build_decoder(
            spec, style.replace(norm=norm, clip=settings.number("clip_qkv", default=0.0) or None)
        )
    style = style.replace(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-5)), placement="after", qk_norm="full"
    )
    return build_decoder(spec, _olmo3(settings, style) if spec.family == "olmo3" else style)


def _olmo3(settings: Settings, style: Style) -> Style:
    """A rotary for each kind of layer."""
    width = head_width(settings.spec)
    slides = [isinstance(layer.mixers[0], SlidingWindow) for layer in settings.spec.layers]
    if settings.value("rope_parameters.sliding_attention") is not None:
        near = read_rotary(settings, width, base=500_000.0, kind="sliding_attention")
    else:
        near = RotaryShape(width=width, numbers=(("base", settings.number("rope_theta", default=500_000.0)),))
    far = read_rotary(settings, width, base=500_000.0, kind="full_attention")
    return style.replace(
        rotaries=(("full", far), ("sliding", near)), turn=lambda i: "sliding" if slides[i] else "full"
    )
