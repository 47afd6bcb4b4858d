"""MPT: ALiBi, LayerNorms without shift, no biases at all; query, key and value in one matrix, optionally clipped.

Source: MosaicML 2023 (the released code and weights).
"""

from __future__ import annotations

from typing import Any

from headcount.errors import UnsupportedModelError
from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.self_attention import Alibi, alibi_slopes
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, build_decoder, heads_of
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("mpt",)
NAMES = """
embedding.weight                        transformer.wte.weight
layers.{i}.norms.mixer.weight           transformer.blocks.{i}.norm_1.weight
layers.{i}.mixer.query.weight           transformer.blocks.{i}.attn.Wqkv.weight    rows 0 of 3
layers.{i}.mixer.key.weight             transformer.blocks.{i}.attn.Wqkv.weight    rows 1 of 3
layers.{i}.mixer.value.weight           transformer.blocks.{i}.attn.Wqkv.weight    rows 2 of 3
layers.{i}.mixer.output.weight          transformer.blocks.{i}.attn.out_proj.weight
layers.{i}.norms.feed_forward.weight    transformer.blocks.{i}.norm_2.weight
layers.{i}.feed_forward.up.weight       transformer.blocks.{i}.ffn.up_proj.weight
layers.{i}.feed_forward.down.weight     transformer.blocks.{i}.ffn.down_proj.weight
norm.weight                             transformer.norm_f.weight
head.weight                             lm_head.weight
"""


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    for name, allowed in (("logit_scale", ()), ("attn_config.prefix_lm", (False,))):
        settings.only(name, *allowed)
    heads = heads_of(spec)
    if heads.num_key_value_heads != heads.num_attention_heads:
        raise UnsupportedModelError(
            "the transformer does not run MPT with fewer key/value heads than query heads"
        )
    scale: Any = settings.value("attn_config.softmax_scale")
    slopes = alibi_slopes(
        heads.num_attention_heads, largest_exponent=settings.number("attn_config.alibi_bias_max", default=8.0)
    )
    style = Style(
        norm=NormShape(
            kind="layer_norm",
            eps=settings.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5),
            bias=False,
        ),
        activation="gelu",
        scale=None if scale is None else settings.number("attn_config.softmax_scale", default=0.0),
        clip=settings.number("attn_config.clip_qkv", default=0.0) or None,
        bias=Alibi(slopes),
    )
    return build_decoder(spec, style)
