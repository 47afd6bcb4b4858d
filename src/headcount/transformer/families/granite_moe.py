"""Granite's mixtures: ``granitemoe`` (Granite 3), ``granitemoeshared`` (a feed-forward beside the experts) and
``granitemoehybrid`` (Granite 4: Mamba-2 in most layers; with or without experts; attention without positions unless told).

Four constants multiply the embeddings, the scores, what each sub-layer adds, and divide the logits. A token's weights are a
softmax over the logits of its chosen experts. Source: IBM 2024 (Granite 3.0), 2025 (Granite 4.0).
"""

from __future__ import annotations

from headcount.errors import ModelFileError
from headcount.spec.attention import HeadedAttention
from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama, mamba2
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward, refuse_other
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("granitemoe", "granitemoehybrid", "granitemoeshared")
NAMES = (
    llama.HEADS
    + mamba2.NAMES
    + """
embedding.weight                             model.embed_tokens.weight
layers.{i}.norms.mixer.weight                model.layers.{i}.input_layernorm.weight
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
)


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
    return build_decoder(
        spec,
        base.replace(
            mixer=mamba2.hybrid_mixer(spec, base, settings),
            feed_forward=lambda layer, i: feed_forward(spec, base, layer, {}),
        ),
        embedding_factor=settings.number("embedding_multiplier", default=1.0),
        logit_factor=1 / divisor,
    )
