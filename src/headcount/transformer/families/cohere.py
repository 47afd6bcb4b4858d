"""Command-R (cohere) and Command-R7B, Command-A (cohere2): one LayerNorm without shift feeds both sub-layers; logits scaled.

Rotary positions turn neighbouring columns. Command-R+ norms queries and keys with a gain for every head. In cohere2 three
layers in four slide; only these turn: the full ones know no positions.
Source: Cohere 2024, 2025 (the released configs and weights).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import Module, Parameter

from headcount.spec.attention import SlidingWindow
from headcount.spec.model import LayerSpec, ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import read_rotary
from headcount.transformer.families.self_attention import SelfAttention
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, attention, build_decoder, head_width
from headcount.transformer.layers import NormShape
from headcount.transformer.ops.layer_norm import layer_norm

MODEL_TYPES = ("cohere", "cohere2")
NAMES = (
    llama.HEADS
    + """
embedding.weight                       model.embed_tokens.weight
layers.{i}.norms.shared.weight         model.layers.{i}.input_layernorm.weight
layers.{i}.mixer.query_norm.weight     model.layers.{i}.self_attn.q_norm.weight
layers.{i}.mixer.key_norm.weight       model.layers.{i}.self_attn.k_norm.weight
layers.{i}.feed_forward.gate.weight    model.layers.{i}.mlp.gate_proj.weight
layers.{i}.feed_forward.up.weight      model.layers.{i}.mlp.up_proj.weight
layers.{i}.feed_forward.down.weight    model.layers.{i}.mlp.down_proj.weight
norm.weight                            model.norm.weight
head.weight                            lm_head.weight
"""
)


class HeadsNorm(Module):
    """A LayerNorm of each head's H numbers, with a gain of its own for every head: w_n (x - mean) / sqrt(var + eps)."""

    def __init__(self, heads: int, width: int, *, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(heads, width))
        self.eps = eps

    def forward(self, x_BNTH: Float[Tensor, "B N T H"]) -> Float[Tensor, "B N T H"]:
        """Normalise every head of every token."""
        y: Tensor = layer_norm(x_BNTH, eps=self.eps) * self.weight[:, None]
        return y


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    bias = settings.flag("attention_bias")
    everywhere = spec.family == "cohere"
    slides = [isinstance(layer.mixers[0], SlidingWindow) for layer in spec.layers]
    base = 500_000.0 if everywhere else 10_000.0
    style = Style(
        norm=NormShape(kind="layer_norm", eps=settings.number("layer_norm_eps", default=1e-5), bias=False),
        activation=activation_of(settings, "hidden_act", default="silu"),
        qkv_bias=bias,
        output_bias=bias,
        placement="parallel",
        rotaries=(("all", read_rotary(settings, head_width(spec), base=base)),),
        turn=lambda i: "all" if everywhere or slides[i] else None,
        rotary_layout="interleaved",
    )
    if settings.flag("use_qk_norm"):
        style = style.replace(mixer=lambda layer, index: _normed(spec, style, layer, index))
    return build_decoder(spec, style, logit_factor=settings.number("logit_scale", default=0.0625))


def _normed(spec: ModelSpec, style: Style, layer: LayerSpec, index: int) -> SelfAttention:
    """Attention with a norm of queries and keys."""
    mixer = attention(spec, style, layer, index)
    heads = mixer.shape
    mixer.query_norm = HeadsNorm(heads.heads, heads.H, eps=style.norm.eps)
    mixer.key_norm = HeadsNorm(heads.K, heads.H, eps=style.norm.eps)
    return mixer
