"""Mixtral: Mistral's layers with eight experts of which each token visits two, their weights renormalised.

Source: Jiang et al. 2024 (Mixtral of Experts).
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.experts import feed_forward
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("mixtral",)
NAMES = """
embedding.weight                        model.embed_tokens.weight
layers.{i}.norms.mixer.weight           model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query.weight           model.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.key.weight             model.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.value.weight           model.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.output.weight          model.layers.{i}.self_attn.o_proj.weight
layers.{i}.norms.feed_forward.weight    model.layers.{i}.post_attention_layernorm.weight
layers.{i}.feed_forward.router.weight   model.layers.{i}.block_sparse_moe.gate.weight
layers.{i}.feed_forward.gate            model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight    expert {e}
layers.{i}.feed_forward.up              model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight    expert {e}
layers.{i}.feed_forward.down            model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight    expert {e}
norm.weight                             model.norm.weight
head.weight                             lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    head_width = spec.layers[0].mixers[0].head_dim  # type: ignore[attr-defined]
    style = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-5)),
        activation=activation_of(settings, "hidden_act", default="silu"),
        rotaries=(("all", read_rotary(settings, head_width, base=1e6)),),
        turn=lambda i: "all",
    )
    return build_decoder(
        spec, style.replace(feed_forward=lambda layer, i: feed_forward(spec, style, layer, {}))
    )
