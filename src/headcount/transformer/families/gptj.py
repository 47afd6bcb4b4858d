"""GPT-J: attention and feed-forward side by side behind one norm; the first ``rotary_dim`` columns of a head turn in pairs.

Source: Wang, Komatsuzaki 2021 (the released code and weights).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import RotaryShape
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("gptj",)
NAMES = """
embedding.weight                        transformer.wte.weight
layers.{i}.norms.shared.weight          transformer.h.{i}.ln_1.weight
layers.{i}.norms.shared.bias            transformer.h.{i}.ln_1.bias
layers.{i}.mixer.query.weight           transformer.h.{i}.attn.q_proj.weight
layers.{i}.mixer.key.weight             transformer.h.{i}.attn.k_proj.weight
layers.{i}.mixer.value.weight           transformer.h.{i}.attn.v_proj.weight
layers.{i}.mixer.output.weight          transformer.h.{i}.attn.out_proj.weight
layers.{i}.feed_forward.up.weight       transformer.h.{i}.mlp.fc_in.weight
layers.{i}.feed_forward.up.bias         transformer.h.{i}.mlp.fc_in.bias
layers.{i}.feed_forward.down.weight     transformer.h.{i}.mlp.fc_out.weight
layers.{i}.feed_forward.down.bias       transformer.h.{i}.mlp.fc_out.bias
norm.weight                             transformer.ln_f.weight
norm.bias                               transformer.ln_f.bias
head.weight                             lm_head.weight
head.bias                               lm_head.bias
head_bias                               lm_head.bias
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    style = Style(
        norm=NormShape(
            kind="layer_norm", eps=settings.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5)
        ),
        activation=activation_of(settings, "activation_function", default="gelu_new"),
        ffn_bias=True,
        placement="parallel",
        rotaries=(("all", RotaryShape(width=settings.integer("rotary_dim", default=64))),),
        turn=lambda i: "all",
        rotary_layout="interleaved",
    )
    return build_decoder(spec, style, head_bias=True)
