"""Bamba: Mamba-2 in most layers, attention with half-width rotary positions in a few, SwiGLU in all.

Source: IBM, Princeton, CMU, UIUC 2024 (Bamba-9B).
"""

from __future__ import annotations

from torch.nn import Module

from headcount.spec.attention import StateSpace
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.mamba2 import Mamba2, read_mamba
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, attention, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("bamba",)
NAMES = """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query.weight           model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias             model.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.key.weight             model.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias               model.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.value.weight           model.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias             model.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight          model.layers.{i}.self_attn.o_proj.weight
layers.{i}.mixer.output.bias            model.layers.{i}.self_attn.o_proj.bias
layers.{i}.mixer.output.weight          model.layers.{i}.mamba.out_proj.weight
layers.{i}.mixer.output.bias            model.layers.{i}.mamba.out_proj.bias
layers.{i}.mixer.input.weight           model.layers.{i}.mamba.in_proj.weight
layers.{i}.mixer.input.bias             model.layers.{i}.mamba.in_proj.bias
layers.{i}.mixer.conv.weight            model.layers.{i}.mamba.conv1d.weight
layers.{i}.mixer.conv.bias              model.layers.{i}.mamba.conv1d.bias
layers.{i}.mixer.step_bias              model.layers.{i}.mamba.dt_bias
layers.{i}.mixer.decay_log              model.layers.{i}.mamba.A_log
layers.{i}.mixer.skip                   model.layers.{i}.mamba.D
layers.{i}.mixer.norm_weight            model.layers.{i}.mamba.norm.weight
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


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    eps = settings.number("rms_norm_eps", default=1e-5)
    activation = activation_of(settings, "hidden_act", default="silu")
    bias = settings.flag("attention_bias")
    base = Style(
        norm=NormShape(eps=eps),
        activation=activation,
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=settings.flag("mlp_bias"),
        rotaries=(("all", read_rotary(settings, _head_width(spec), share=0.5)),),
        turn=lambda i: "all",
    )

    def mixer(layer: LayerSpec, index: int) -> Module:
        kept = layer.mixers[0]
        if isinstance(kept, StateSpace):
            return Mamba2(read_mamba(settings, kept, activation=activation, eps=eps))
        return attention(spec, base, layer, index)

    return build_decoder(spec, base.replace(mixer=mixer))


def _head_width(spec: ModelSpec) -> int:
    """H of the attention layers; any even number when there is none."""
    widths = [m.head_dim for layer in spec.layers for m in layer.mixers if not isinstance(m, StateSpace)]  # type: ignore[attr-defined]
    return widths[0] if widths else 4
