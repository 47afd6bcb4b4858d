"""Qwen 2 and Qwen 3 mixtures: which layers have experts is a rule of the config, which the spec has read.

    qwen2_moe    biases on queries, keys and values; a shared expert weighed by a sigmoid per token
    qwen3_moe    a norm of every query and key head; no shared expert

The weights of the chosen experts are those of a softmax over all, renormalised only when ``norm_topk_prob`` says so.
Source: Qwen1.5-MoE (2024); Qwen3 technical report 2025.
"""

from __future__ import annotations

from headcount.errors import UnsupportedModelError
from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("qwen2_moe", "qwen3_moe")
NAMES = (
    llama.HEADS
    + """
embedding.weight                             model.embed_tokens.weight
layers.{i}.norms.mixer.weight                model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query_norm.weight           model.layers.{i}.self_attn.q_norm.weight
layers.{i}.mixer.key_norm.weight             model.layers.{i}.self_attn.k_norm.weight
layers.{i}.norms.feed_forward.weight         model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.gate.weight          model.layers.{i}.mlp.gate_proj.weight
layers.{i}.feed_forward.up.weight            model.layers.{i}.mlp.up_proj.weight
layers.{i}.feed_forward.down.weight          model.layers.{i}.mlp.down_proj.weight
layers.{i}.feed_forward.router.weight        model.layers.{i}.mlp.gate.weight
layers.{i}.feed_forward.gate                 model.layers.{i}.mlp.experts.{e}.gate_proj.weight    expert {e}
layers.{i}.feed_forward.up                   model.layers.{i}.mlp.experts.{e}.up_proj.weight      expert {e}
layers.{i}.feed_forward.down                 model.layers.{i}.mlp.experts.{e}.down_proj.weight    expert {e}
layers.{i}.feed_forward.shared.gate.weight   model.layers.{i}.mlp.shared_expert.gate_proj.weight
layers.{i}.feed_forward.shared.up.weight     model.layers.{i}.mlp.shared_expert.up_proj.weight
layers.{i}.feed_forward.shared.down.weight   model.layers.{i}.mlp.shared_expert.down_proj.weight
layers.{i}.feed_forward.shared_gate.weight   model.layers.{i}.mlp.shared_expert_gate.weight
norm.weight                                  model.norm.weight
head.weight                                  lm_head.weight
"""
)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded; UnsupportedModelError for a Qwen 2 mixture without a shared expert."""
    settings = Settings(spec)
    second = spec.family == "qwen2_moe"
    bias = settings.flag("qkv_bias", default=True) if second else settings.flag("attention_bias")
    head_width = spec.layers[0].mixers[0].head_dim  # type: ignore[attr-defined]
    style = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-6)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        qkv_bias=bias,
        output_bias=bias and not second,
        qk_norm=not second,
        rotaries=(("all", read_rotary(settings, head_width)),),
        turn=lambda i: "all",
    )
    if second and any(
        layer.feed_forward and layer.feed_forward.experts and not layer.feed_forward.shared_width
        for layer in spec.layers
    ):
        raise UnsupportedModelError(
            "model type 'qwen2_moe' with shared_expert_intermediate_size 0 is not run"
        )
    routing = {"renormalize": settings.flag("norm_topk_prob")}
    return build_decoder(
        spec,
        style.replace(
            feed_forward=lambda layer, i: feed_forward(spec, style, layer, routing, shared_gate=second),
        ),
    )
