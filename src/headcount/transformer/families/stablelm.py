"""StableLM 1 (3B) and 2: Llama with LayerNorms that shift, and a quarter of each head's columns turning.

With ``use_parallel_residual`` (12B) attention and feed-forward stand side by side behind one norm.
Source: Tow et al. 2023; Bellagente et al. 2024.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("stablelm",)
NAMES = f"""{llama.NAMES}
layers.{{i}}.norms.shared.weight          model.layers.{{i}}.input_layernorm.weight
layers.{{i}}.norms.shared.bias            model.layers.{{i}}.input_layernorm.bias
layers.{{i}}.norms.mixer.bias             model.layers.{{i}}.input_layernorm.bias
layers.{{i}}.norms.feed_forward.bias      model.layers.{{i}}.post_attention_layernorm.bias
norm.bias                               model.norm.bias
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    settings.only("qk_layernorm", False)
    style = Style(
        norm=NormShape(kind="layer_norm", eps=settings.number("layer_norm_eps", default=1e-5)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        qkv_bias=settings.flag("use_qkv_bias"),
        placement="parallel" if settings.flag("use_parallel_residual") else "pre",
        rotaries=(("all", read_rotary(settings, head_width(spec), share=0.25)),),
        turn=lambda i: "all",
    )
    return build_decoder(spec, style)
