"""Falcon: rotary or ALiBi; attention and feed-forward side by side, behind one norm (7B) or one each (40B), or in sequence (RW).

The fused matrix holds, for each key/value head, its G query heads, then the key, then the value: one group of all heads with
``multi_query`` (7B), K groups in the new architecture (40B, 180B), N groups of one in the ALiBi models.
Source: Almazrouei et al. 2023.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.spec.model import ModelSpec
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.self_attention import alibi_slopes
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, heads_of
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("falcon",)
NAMES = """
embedding.weight                        transformer.word_embeddings.weight
layers.{i}.norms.shared.weight          transformer.h.{i}.input_layernorm.weight
layers.{i}.norms.shared.bias            transformer.h.{i}.input_layernorm.bias
layers.{i}.norms.mixer.weight           transformer.h.{i}.ln_attn.weight
layers.{i}.norms.mixer.bias             transformer.h.{i}.ln_attn.bias
layers.{i}.norms.mixer.weight           transformer.h.{i}.input_layernorm.weight
layers.{i}.norms.mixer.bias             transformer.h.{i}.input_layernorm.bias
layers.{i}.norms.feed_forward.weight    transformer.h.{i}.ln_mlp.weight
layers.{i}.norms.feed_forward.bias      transformer.h.{i}.ln_mlp.bias
layers.{i}.norms.feed_forward.weight    transformer.h.{i}.post_attention_layernorm.weight
layers.{i}.norms.feed_forward.bias      transformer.h.{i}.post_attention_layernorm.bias
layers.{i}.mixer.query.weight           transformer.h.{i}.self_attention.query_key_value.weight    heads 0:G of G+2 by H
layers.{i}.mixer.query.bias             transformer.h.{i}.self_attention.query_key_value.bias      heads 0:G of G+2 by H
layers.{i}.mixer.key.weight             transformer.h.{i}.self_attention.query_key_value.weight    heads G:G+1 of G+2 by H
layers.{i}.mixer.key.bias               transformer.h.{i}.self_attention.query_key_value.bias      heads G:G+1 of G+2 by H
layers.{i}.mixer.value.weight           transformer.h.{i}.self_attention.query_key_value.weight    heads G+1:G+2 of G+2 by H
layers.{i}.mixer.value.bias             transformer.h.{i}.self_attention.query_key_value.bias      heads G+1:G+2 of G+2 by H
layers.{i}.mixer.output.weight          transformer.h.{i}.self_attention.dense.weight
layers.{i}.mixer.output.bias            transformer.h.{i}.self_attention.dense.bias
layers.{i}.feed_forward.up.weight       transformer.h.{i}.mlp.dense_h_to_4h.weight
layers.{i}.feed_forward.up.bias         transformer.h.{i}.mlp.dense_h_to_4h.bias
layers.{i}.feed_forward.down.weight     transformer.h.{i}.mlp.dense_4h_to_h.weight
layers.{i}.feed_forward.down.bias       transformer.h.{i}.mlp.dense_4h_to_h.bias
norm.weight                             transformer.ln_f.weight
norm.bias                               transformer.ln_f.bias
head.weight                             lm_head.weight
"""


class RoundedAlibi:
    """Falcon's ALiBi: slope_n j / sqrt(H), its product rounded to bfloat16 whatever the model's type.

    It tells the key's own position j, not its distance: softmax does not see the difference, the rounding does.
    """

    def __init__(self, slopes: Tensor, head_width: int) -> None:
        self.slopes_N = slopes.bfloat16()
        self.root = math.sqrt(head_width)

    def between(self, queries: range, keys: range, like: Tensor) -> Tensor:
        """The same for every query."""
        key_S = torch.arange(keys.start, keys.stop, device=like.device)
        bias_NS = self.slopes_N.to(like.device)[:, None] * key_S
        return (bias_NS.to(like.dtype) / self.root)[None, :, None].expand(1, -1, len(queries), -1)


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    settings.only("apply_residual_connection_post_layernorm", False)
    bias = settings.flag("bias")
    heads = heads_of(spec)
    alibi = settings.flag("alibi")
    rotary = () if alibi else (("all", read_rotary(settings, heads.head_dim)),)
    style = Style(
        norm=NormShape(
            kind="layer_norm", eps=settings.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5)
        ),
        activation=activation_of(settings, "activation", default="gelu"),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=bias,
        placement=_placement(settings),
        rotaries=rotary,
        turn=lambda i: None if alibi else "all",
        bias=RoundedAlibi(alibi_slopes(heads.num_attention_heads), heads.head_dim) if alibi else None,
    )
    return build_decoder(spec, style)


def _placement(settings: Settings) -> str:
    """In sequence, beside each other behind one norm, or behind one each."""
    # The first releases of 40B say RefinedWeb, or n_head_kv, and nothing of an architecture.
    first = settings.value("model_type") == "RefinedWeb" or settings.value("n_head_kv") is not None
    grouped = settings.flag("new_decoder_architecture", default=first)
    parallel = settings.flag("parallel_attn", default=True)
    if grouped:
        settings.only("parallel_attn", True)
        settings.only("num_ln_in_parallel_attn", 1, 2)
        return "parallel" if settings.integer("num_ln_in_parallel_attn", default=2) == 1 else "beside"
    if parallel:
        settings.only("num_ln_in_parallel_attn", 1)
    return "parallel" if parallel else "pre"
