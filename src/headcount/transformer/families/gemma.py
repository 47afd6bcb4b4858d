"""Gemma 1, 2 and 3 (text): embeddings times sqrt(D), norms times 1 + w, GeGLU, heads of a width of their own.

Gemma 2   norms before and after each sub-layer; scores and logits capped; every other layer slides
Gemma 3   queries and keys normed instead of capped; five sliding layers to one full one, each kind with its own rotary base

Scores are multiplied by 1 / sqrt(``query_pre_attn_scalar``) in Gemma 2 and 3.
Source: Gemma Team 2024 (two reports), 2025.
"""

from __future__ import annotations

import math

from headcount.spec.attention import SlidingWindow
from headcount.spec.model import ModelSpec
from headcount.transformer.families import llama
from headcount.transformer.families.decoder import Decoder
from headcount.transformer.families.rotary import RotaryShape, read_rotary
from headcount.transformer.families.settings import Settings
from headcount.transformer.families.style import Style, activation_of, build_decoder, head_width
from headcount.transformer.layers import NormShape

MODEL_TYPES = ("gemma", "gemma2", "gemma3_text")
# What Gemma 1 calls post_attention_layernorm stands before the feed-forward; in 2 and 3 it stands behind the attention.
NAMES = (
    llama.HEADS
    + """
embedding.weight                            model.embed_tokens.weight
layers.{i}.norms.mixer.weight               model.layers.{i}.input_layernorm.weight
layers.{i}.norms.mixer_out.weight           model.layers.{i}.post_attention_layernorm.weight
layers.{i}.mixer.query_norm.weight          model.layers.{i}.self_attn.q_norm.weight
layers.{i}.mixer.key_norm.weight            model.layers.{i}.self_attn.k_norm.weight
layers.{i}.norms.feed_forward.weight        model.layers.{i}.pre_feedforward_layernorm.weight
layers.{i}.norms.feed_forward.weight        model.layers.{i}.post_attention_layernorm.weight
layers.{i}.norms.feed_forward_out.weight    model.layers.{i}.post_feedforward_layernorm.weight
layers.{i}.feed_forward.gate.weight         model.layers.{i}.mlp.gate_proj.weight
layers.{i}.feed_forward.up.weight           model.layers.{i}.mlp.up_proj.weight
layers.{i}.feed_forward.down.weight         model.layers.{i}.mlp.down_proj.weight
norm.weight                                 model.norm.weight
head.weight                                 lm_head.weight
"""
)
_TANH = "gelu_pytorch_tanh"


def build(spec: ModelSpec) -> Decoder:
    """The network, parameters not yet loaded."""
    settings = Settings(spec)
    settings.only("use_bidirectional_attention", False)
    bias = settings.flag("attention_bias")
    plain = Style(
        norm=NormShape(eps=settings.number("rms_norm_eps", default=1e-6), add_one=True),
        activation=_activation(settings),
        qkv_bias=bias,
        output_bias=bias,
    )
    style, cap = plain.replace(rotaries=_one_rotary(settings), turn=lambda i: "all"), None
    if spec.family == "gemma2":
        style, cap = _gemma2(settings, style), _cap(settings, "final_logit_softcapping", 30.0)
    if spec.family == "gemma3_text":
        style, cap = _gemma3(settings, style), _cap(settings, "final_logit_softcapping", None)
    return build_decoder(spec, style, embedding_factor=math.sqrt(spec.hidden_size), logit_cap=cap)


def _activation(settings: Settings) -> str:
    """GELU's tanh form; Gemma 1's first configs say ``gelu`` and mean that one."""
    if settings.spec.family != "gemma":
        return activation_of(settings, "hidden_activation", default=_TANH)
    stated = activation_of(settings, "hidden_act", default=_TANH)
    return "gelu_tanh" if stated == "gelu" else stated


def _gemma2(settings: Settings, style: Style) -> Style:
    """Norms around the sub-layers, capped scores."""
    return style.replace(
        placement="sandwich",
        scale=settings.number("query_pre_attn_scalar", default=256.0, above=0.0) ** -0.5,
        soft_cap=_cap(settings, "attn_logit_softcapping", 50.0),
    )


def _gemma3(settings: Settings, style: Style) -> Style:
    """Norms around the sub-layers and of queries and keys, a rotary for each kind of layer."""
    # Its class has the key, and no released Gemma 3 a cap on the scores: the norms took its place.
    settings.only("attn_logit_softcapping")
    slides = [isinstance(layer.mixers[0], SlidingWindow) for layer in settings.spec.layers]
    return style.replace(
        placement="sandwich",
        scale=settings.number("query_pre_attn_scalar", default=256.0, above=0.0) ** -0.5,
        qk_norm="head",
        rotaries=(("full", _far_rotary(settings)), ("sliding", _near_rotary(settings))),
        turn=lambda i: "sliding" if slides[i] else "full",
    )


def _one_rotary(settings: Settings) -> tuple[tuple[str, RotaryShape], ...]:
    return (("all", read_rotary(settings, head_width(settings.spec))),)


def _far_rotary(settings: Settings) -> RotaryShape:
    """Of the full layers: base 10^6, stretched when the config says so."""
    return read_rotary(settings, head_width(settings.spec), base=1_000_000.0, kind="full_attention")


def _near_rotary(settings: Settings) -> RotaryShape:
    """Of the sliding layers: base 10^4, never stretched in configs that state it as ``rope_local_base_freq``."""
    width = head_width(settings.spec)
    if settings.value("rope_parameters.sliding_attention") is not None:
        return read_rotary(settings, width, kind="sliding_attention")
    base = settings.number("rope_local_base_freq", default=10_000.0)
    return RotaryShape(width=width, numbers=(("base", base),))


def _cap(settings: Settings, name: str, default: float | None) -> float | None:
    """The cap a config states; null turns a class's default cap off."""
    if name in settings.config and settings.config[name] is None:
        return None
    found = settings.number(name, default=default or 0.0)
    return found or None
