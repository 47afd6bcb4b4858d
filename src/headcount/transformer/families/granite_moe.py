"""Granite's mixtures: ``granitemoe`` (Granite 3), ``granitemoeshared`` (a feed-forward beside the experts) and
``granitemoehybrid`` (Granite 4: Mamba-2 in most layers; with or without experts; attention without positions unless told).

Four constants multiply the embeddings, the scores, what each sub-layer adds, and divide the logits. A token's weights are a
softmax over the logits of its chosen experts. Source: IBM 2024 (Granite 3.0), 2025 (Granite 4.0).
"""

from __future__ import annotations

from torch.nn import Module

from headcount.errors import ModelFileError
from headcount.spec.attention import HeadedAttention, StateSpace
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward, refuse_other
from headcount.transformer.families.mamba2 import Mamba2, read_mamba
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, attention, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("granitemoe", "granitemoehybrid", "granitemoeshared")
NAMES = """
embedding.weight                             model.embed_tokens.weight
layers.{i}.norms.mixer.weight                model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query.weight                model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias                  model.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.key.weight                  model.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias                    model.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.value.weight                model.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias                  model.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight               model.layers.{i}.self_attn.o_proj.weight
layers.{i}.mixer.output.bias                 model.layers.{i}.self_attn.o_proj.bias
layers.{i}.mixer.output.weight               model.layers.{i}.mamba.out_proj.weight
layers.{i}.mixer.output.bias                 model.layers.{i}.mamba.out_proj.bias
layers.{i}.mixer.input.weight                model.layers.{i}.mamba.in_proj.weight
layers.{i}.mixer.input.bias                  model.layers.{i}.mamba.in_proj.bias
layers.{i}.mixer.conv.weight                 model.layers.{i}.mamba.conv1d.weight
layers.{i}.mixer.conv.bias                   model.layers.{i}.mamba.conv1d.bias
layers.{i}.mixer.step_bias                   model.layers.{i}.mamba.dt_bias
layers.{i}.mixer.decay_log                   model.layers.{i}.mamba.A_log
layers.{i}.mixer.skip                        model.layers.{i}.mamba.D
layers.{i}.mixer.norm_weight                 model.layers.{i}.mamba.norm.weight
layers.{i}.norms.feed_forward.weight         model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.router.weight        model.layers.{i}.block_sparse_moe.router.layer.weight
layers.{i}.feed_forward.gate                 model.layers.{i}.block_sparse_moe.input_linear.weight    rows 0 of 2
layers.{i}.feed_forward.up                   model.layers.{i}.block_sparse_moe.input_linear.weight    rows 1 of 2
layers.{i}.feed_forward.down                 model.layers.{i}.block_sparse_moe.output_linear.weight
layers.{i}.feed_forward.shared.gate.weight   model.layers.{i}.shared_mlp.input_linear.weight          rows 0 of 2
layers.{i}.feed_forward.shared.up.weight     model.layers.{i}.shared_mlp.input_linear.weight          rows 1 of 2
layers.{i}.feed_forward.shared.down.weight   model.layers.{i}.shared_mlp.output_linear.weight
layers.{i}.feed_forward.gate.weight          model.layers.{i}.shared_mlp.input_linear.weight          rows 0 of 2
layers.{i}.feed_forward.up.weight            model.layers.{i}.shared_mlp.input_linear.weight          rows 1 of 2
layers.{i}.feed_forward.down.weight          model.layers.{i}.shared_mlp.output_linear.weight
norm.weight                                  model.norm.weight
head.weight                                  lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded; UnsupportedModelError for positions other than rotary ones or none."""
    settings = Settings(spec)
    eps = settings.number("rms_norm_eps", default=1e-6)
    activation = activation_of(settings, "hidden_act", default="silu")
    bias = settings.flag("attention_bias")
    turns = True
    if spec.family == "granitemoehybrid":
        refuse_other(settings, "position_embedding_type", "rope", "nope")
        turns = settings.value("position_embedding_type") == "rope"
    divisor = settings.number("logits_scaling", default=1.0)
    if divisor == 0:
        raise ModelFileError("config key logits_scaling is 0; logits are divided by it")
    widths = [m.head_dim for layer in spec.layers for m in layer.mixers if isinstance(m, HeadedAttention)]
    base = Style(
        norm=NormShape(eps=eps),
        activation=activation,
        qkv_bias=bias,
        output_bias=bias,
        scale=settings.number("attention_multiplier", default=1.0),
        branch=settings.number("residual_multiplier", default=1.0),
        rotaries=(("all", read_rotary(settings, widths[0])),) if turns and widths else (),
        turn=lambda i: "all" if turns else None,
    )

    def mixer(layer: LayerSpec, index: int) -> Module:
        kept = layer.mixers[0]
        if isinstance(kept, StateSpace):
            return Mamba2(read_mamba(settings, kept, activation=activation, eps=eps))
        return attention(spec, base, layer, index)

    return build_decoder(
        spec,
        base.replace(mixer=mixer, feed_forward=lambda layer, i: feed_forward(spec, base, layer, {})),
        embedding_factor=settings.number("embedding_multiplier", default=1.0),
        logit_factor=1 / divisor,
    )
