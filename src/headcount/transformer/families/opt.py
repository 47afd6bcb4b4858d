"""OPT: learned positions whose table starts with two spare rows, LayerNorms in front, ReLU, everything biased.

OPT-350m norms behind the sum (``do_layer_norm_before`` false), has no last norm, and embeds 512 wide, projected to D.
Source: Zhang et al. 2022.
"""

from __future__ import annotations

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("opt",)
NAMES = """
embedding.weight                        model.decoder.embed_tokens.weight
positions.weight                        model.decoder.embed_positions.weight
project_in.weight                       model.decoder.project_in.weight
project_out.weight                      model.decoder.project_out.weight
layers.{i}.norms.mixer.weight           model.decoder.layers.{i}.self_attn_layer_norm.weight
layers.{i}.norms.mixer.bias             model.decoder.layers.{i}.self_attn_layer_norm.bias
layers.{i}.mixer.query.weight           model.decoder.layers.{i}.self_attn.q_proj.weight
layers.{i}.mixer.query.bias             model.decoder.layers.{i}.self_attn.q_proj.bias
layers.{i}.mixer.key.weight             model.decoder.layers.{i}.self_attn.k_proj.weight
layers.{i}.mixer.key.bias               model.decoder.layers.{i}.self_attn.k_proj.bias
layers.{i}.mixer.value.weight           model.decoder.layers.{i}.self_attn.v_proj.weight
layers.{i}.mixer.value.bias             model.decoder.layers.{i}.self_attn.v_proj.bias
layers.{i}.mixer.output.weight          model.decoder.layers.{i}.self_attn.out_proj.weight
layers.{i}.mixer.output.bias            model.decoder.layers.{i}.self_attn.out_proj.bias
layers.{i}.norms.feed_forward.weight    model.decoder.layers.{i}.final_layer_norm.weight
layers.{i}.norms.feed_forward.bias      model.decoder.layers.{i}.final_layer_norm.bias
layers.{i}.feed_forward.up.weight       model.decoder.layers.{i}.fc1.weight
layers.{i}.feed_forward.up.bias         model.decoder.layers.{i}.fc1.bias
layers.{i}.feed_forward.down.weight     model.decoder.layers.{i}.fc2.weight
layers.{i}.feed_forward.down.bias       model.decoder.layers.{i}.fc2.bias
norm.weight                             model.decoder.final_layer_norm.weight
norm.bias                               model.decoder.final_layer_norm.bias
head.weight                             lm_head.weight
"""
SPARE_ROWS = 2


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    bias = settings.flag("enable_bias", default=True)
    affine = settings.flag("layer_norm_elementwise_affine", default=True)
    before = settings.flag("do_layer_norm_before", default=True)
    style = Style(
        norm=NormShape(kind="layer_norm", eps=1e-5, bias=affine, gain=affine),
        activation=activation_of(settings, "activation_function", default="relu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        placement="pre" if before else "post",
    )
    return build_decoder(
        spec,
        style,
        positions=spec.max_positions + SPARE_ROWS,
        position_offset=SPARE_ROWS,
        embedding_width=settings.integer("word_embed_proj_dim", default=spec.hidden_size),
        final_norm=before and not settings.flag("_remove_final_layer_norm"),
    )
